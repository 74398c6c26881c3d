//! Usage's configuration: the keys of `config.toml`.

use serde::Deserialize;

/// See `config.toml`.
#[derive(Clone, Debug, Deserialize)]
#[allow(missing_docs)]
pub struct Config {
    pub region: String,
    #[serde(deserialize_with = "kit::config::list")]
    pub regions: Vec<String>,
    pub listen: String,
    pub clickhouse_url: String,
    pub clickhouse_database: String,
    pub keys_file: String,
    pub meters_file: String,
    pub questions_max: usize,
    pub question_patience_ms: u64,
}
