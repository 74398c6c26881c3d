//! Configuration: `config.toml`, overridden by the environment.

use adapters::{nats::NatsConfig, scylla::ScyllaConfig};
use anyhow::Result;
use serde::Deserialize;
use std::path::PathBuf;

/// See `config.toml` for what each key means.
#[derive(Clone, Debug, Deserialize)]
#[allow(missing_docs)]
pub struct Config {
    pub region: String,
    #[serde(deserialize_with = "kit::config::list")]
    pub regions: Vec<String>,
    pub scylla_address: String,
    pub nats_url: String,
    pub listen: String,
    pub keys_file: PathBuf,
    pub meters_file: PathBuf,
    pub in_flight_bytes_max: usize,
}

impl Config {
    /// The defaults, and what the environment says.
    ///
    /// # Errors
    /// Names the key that is wrong.
    pub fn load() -> Result<Self> {
        kit::config::load(include_str!("../config.toml"))
    }

    /// Where the database is.
    pub fn scylla(&self) -> ScyllaConfig {
        ScyllaConfig { address: self.scylla_address.clone(), region: self.region.clone(), regions: self.regions.clone() }
    }

    /// Where NATS is.
    pub fn nats(&self) -> NatsConfig {
        NatsConfig { url: self.nats_url.clone(), region: self.region.clone(), client_id: "ingest".into() }
    }
}
