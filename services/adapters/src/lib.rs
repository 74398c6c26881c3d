//! **The only crate that knows a driver.** Each module holds plain async functions over one engine's connection;
//! services bind them to the fields of their `Effects`.

pub mod clickhouse;
pub mod clock;
pub mod nats;
pub mod redpanda;
pub mod scylla;
