//! What every service speaks: effects, configuration, telemetry, health and shutdown.
//!
//! **No driver and no domain live here.**

pub mod backoff;
pub mod config;
mod effect;
pub mod health;
pub mod seldom;
pub mod shutdown;
pub mod telemetry;

pub use effect::{Effect, bind, delayed, effect, fail_first, limited, recorded, retrying, timed, unused};
