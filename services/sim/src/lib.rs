//! A simulator of Meridian: the services' own `run` functions over fakes of the engines, in paused time, from one seed.
//!
//! In: a seed, which gives a [`plan::Plan`]: at least 3 regions, 50 events, 5 faults, 30 simulated seconds. Out: the promises of
//! docs/architecture.md that were broken, and what happened, as a story. Promised: **the same seed gives the same bytes**; **the fakes
//! keep what the engines promise and no more**.

pub mod bus;
pub mod clients;
pub mod database;
pub mod drive;
pub mod effects;
pub mod ledger;
pub mod log;
pub mod plan;
pub mod planted;
pub mod promises;
pub mod pull;
pub mod random;
pub mod reads;
pub mod services;
pub mod shrink;
pub mod store;
pub mod wan;
pub mod world;

pub use drive::{Outcome, simulate};
pub use plan::Plan;
pub use planted::Bug;
pub use shrink::shrink;
