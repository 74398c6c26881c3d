//! The sink's configuration: the keys of `config.toml`.

use crate::{Limits, LogConfig};
use adapters::redpanda::RedpandaConfig;
use serde::Deserialize;
use std::time::Duration;

/// See `config.toml`.
#[derive(Clone, Debug, Deserialize)]
#[allow(missing_docs)]
pub struct Config {
    pub region: String,
    #[serde(deserialize_with = "kit::config::list")]
    pub regions: Vec<String>,
    pub listen: String,
    pub kafka_address: String,
    pub clickhouse_url: String,
    pub clickhouse_database: String,
    pub rows_max: u64,
    pub bytes_max: usize,
    pub flush_after_ms: u64,
    pub rows_few: u64,
    pub flush_after_few_ms: u64,
    pub store_check_every_ms: u64,
    pub batch_bytes_max: usize,
    pub batch_records_max: usize,
    pub linger_ms: u64,
    pub held_back_ms: u64,
}

impl Config {
    /// Where the log is.
    pub fn redpanda(&self) -> RedpandaConfig {
        RedpandaConfig { address: self.kafka_address.clone(), client_id: "sink".into() }
    }

    /// What to read of it.
    pub fn log(&self) -> LogConfig {
        LogConfig {
            redpanda: self.redpanda(),
            region: self.region.clone(),
            regions: self.regions.clone(),
            batch_bytes_max: self.batch_bytes_max,
            batch_records_max: self.batch_records_max,
            linger: Duration::from_millis(self.linger_ms),
            held_back: Duration::from_millis(self.held_back_ms),
        }
    }

    /// When a block is stored.
    pub fn limits(&self) -> Limits {
        Limits {
            rows_max: self.rows_max,
            bytes_max: self.bytes_max,
            flush_after: Duration::from_millis(self.flush_after_ms),
            flush_after_few: Duration::from_millis(self.flush_after_few_ms),
            rows_few: self.rows_few,
            store_check_every: Duration::from_millis(self.store_check_every_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_hold_their_own_limits() {
        let config: Config = kit::config::defaults(include_str!("../config.toml")).unwrap();
        config.limits().assert();
        assert_eq!(config.regions, ["fra", "iad", "sin"]);
    }
}
