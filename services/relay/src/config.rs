//! The relay's configuration: the keys of `config.toml`.

use crate::Limits;
use adapters::{
    clock::EPSILON_US,
    nats::NatsConfig,
    redpanda::RedpandaConfig,
    scylla::{FENCE, ScyllaConfig},
};
use serde::Deserialize;
use std::time::Duration;

/// What the log takes as one record, less its frame.
const EVENT_BYTES_MAX: usize = 900_000;

/// See `config.toml`.
#[derive(Clone, Debug, Deserialize)]
#[allow(missing_docs)]
pub struct Config {
    pub region: String,
    #[serde(deserialize_with = "kit::config::list")]
    pub regions: Vec<String>,
    pub listen: String,
    pub scylla_address: String,
    pub kafka_address: String,
    pub nats_url: String,
    pub seal_every_ms: u64,
    pub publish_bytes_max: usize,
    pub step_bytes: usize,
    pub catching_up_max: usize,
    pub remembered_rows_max: usize,
}

impl Config {
    /// Where the database is.
    pub fn scylla(&self) -> ScyllaConfig {
        ScyllaConfig { address: self.scylla_address.clone(), region: self.region.clone(), regions: self.regions.clone() }
    }

    /// Where the log is.
    pub fn redpanda(&self) -> RedpandaConfig {
        RedpandaConfig { address: self.kafka_address.clone(), client_id: "relay".into() }
    }

    /// Where hints come from.
    pub fn nats(&self) -> NatsConfig {
        NatsConfig { url: self.nats_url.clone(), region: self.region.clone(), client_id: "relay".into() }
    }

    /// The numbers.
    pub fn limits(&self) -> Limits {
        let clock_margin = Duration::from_micros(EPSILON_US);
        let seal_every = Duration::from_millis(self.seal_every_ms);
        Limits {
            fence: FENCE,
            clock_margin,
            seal_every,
            quick_span: FENCE + clock_margin + 2 * seal_every,
            publish_bytes_max: self.publish_bytes_max,
            event_bytes_max: EVENT_BYTES_MAX,
            step_bytes: self.step_bytes,
            catching_up_max: self.catching_up_max,
            remembered_rows_max: self.remembered_rows_max,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_hold_together() {
        let config: Config = kit::config::defaults(include_str!("../config.toml")).unwrap();
        config.limits().check().unwrap();
    }
}
