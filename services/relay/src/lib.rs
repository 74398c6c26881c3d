//! change log → **relay** → log
//!
//! In: rows of the region's change log, and hints that there are new ones. Out: their events and watermarks in the region's own
//! topic, at least once, with the bytes that ingest made.
//!
//! * **A watermark is written only after everything that it covers is acknowledged by the log** (rule R3).
//! * **The time up to which it covers is taken before the first page is read, less `L + ε`**: no row before it can still be
//!   acknowledged (rule R1).
//! * **Progress lives in the log alone**: a relay begins where the last watermark of each partition says.
//!
//! Each partition is a [`lane`] of its own; nothing that one waits for holds up another.

mod board;
mod config;
mod lane;
pub mod log;
pub mod registry;
mod remembered;
#[cfg(test)]
mod tests;

pub use config::Config;
pub use log::{LastWatermark, Outgoing};

use crate::{board::Board, lane::Lane};
use adapters::{
    redpanda::OutRecord,
    scylla::{ChangeRange, ChangeRow, Generation},
};
use anyhow::{Context, Result, ensure};
use kit::{Effect, backoff::Backoff, health::Health, shutdown, shutdown::CancellationToken};
use meridian_proto::{CommitTime, PartitionId, Topic};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::{task::JoinSet, time::Instant};

/// Everything that the relay does to the outside world.
#[derive(Clone)]
pub struct Effects {
    /// The rows of a span of one partition, in order.
    pub read_changes: Effect<ChangeRange, Vec<ChangeRow>>,
    /// Appends events, and what could not be read to the dead letters. `Ok` when all is acknowledged.
    pub publish_batch: Effect<Outgoing, ()>,
    /// Appends watermarks. `Ok` when all are acknowledged.
    pub publish_watermarks: Effect<Vec<OutRecord>, ()>,
    /// Where the log says that sealing stands.
    pub last_watermark: Effect<PartitionId, LastWatermark>,
    /// The clock that made the commit times.
    pub region_time: Effect<(), CommitTime>,
    /// Partitions that may have news, since the last call.
    pub await_hint: Effect<(), BTreeSet<u16>>,
    /// The generation that is written now, registered if it was not.
    pub register_generation: Effect<(), Generation>,
}

/// Numbers that hold the relay together.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// L of rule R1: ingest counts no row that was acknowledged later than this after its commit time.
    pub fence: Duration,
    /// ε of rule R1: two clocks of a region differ by less.
    pub clock_margin: Duration,
    /// How often a partition is sealed.
    pub seal_every: Duration,
    /// How far back the quick path reads; what is older is left to the sweep.
    pub quick_span: Duration,
    /// Bytes of events that are handed to the log at once.
    pub publish_bytes_max: usize,
    /// Bytes of one event that the log takes; a larger one is a dead letter.
    pub event_bytes_max: usize,
    /// Bytes that one step of catching up should read.
    pub step_bytes: usize,
    /// Partitions that may catch up at a time.
    pub catching_up_max: usize,
    /// Rows that a partition remembers as published and not sealed.
    pub remembered_rows_max: usize,
}

impl Limits {
    /// How far the sealed time stays behind: `L + ε`.
    pub fn hold_back(&self) -> Duration {
        self.fence + self.clock_margin
    }

    /// Asserts the relations between the numbers.
    ///
    /// # Errors
    /// Names the relation that does not hold.
    pub fn check(&self) -> Result<()> {
        ensure!(self.seal_every * 2 <= Duration::from_micros(lane::STEP_FIRST_US), "seal_every <= 2.5 s");
        ensure!(!self.seal_every.is_zero(), "seal_every > 0");
        ensure!(self.quick_span >= self.hold_back() + self.seal_every, "quick_span >= fence + clock_margin + seal_every");
        ensure!(self.catching_up_max > 0 && self.publish_bytes_max > 0 && self.step_bytes > 0, "limits > 0");
        Ok(())
    }
}

/// The parts that the relay needs to be ready.
pub const HEALTH_PARTS: [&str; 3] = ["clock", "database", "log"];

/// The log says less than it once acknowledged. A new generation has to be begun; until that is built, a person decides.
#[derive(Debug, thiserror::Error)]
#[error("the log lost records: {0}. Nothing more is written to it; a new generation has to be begun")]
pub struct LogLost(pub String);

/// Relays until asked to stop.
///
/// # Errors
/// [`LogLost`]; a layout or limits that do not fit. Engines that are away are waited for.
pub async fn run(effects: Effects, limits: Limits, health: Health, shutdown: CancellationToken) -> Result<()> {
    limits.check()?;
    let Some(generation) = shutdown::until(&shutdown, registered(&effects, &health)).await? else { return Ok(()) };
    generation.assert_known_layout()?;
    let topic = Topic { region: generation.region.clone(), generation: generation.generation };
    tracing::info!(%topic, "relays");
    let board = Arc::new(Board::new(&generation, &limits, health));
    let mut tasks = JoinSet::new();
    let began = Instant::now();
    for partition in 0..generation.partitions {
        let id = PartitionId { topic: topic.clone(), partition };
        let lane = Lane::new(effects.clone(), limits, Arc::clone(&board), id, CommitTime(generation.created_us), began);
        let shutdown = shutdown.clone();
        tasks.spawn(async move { shutdown::until(&shutdown, lane.follow()).await });
    }
    for side in [board::take_hints(Arc::clone(&board), effects.await_hint), board::report(Arc::clone(&board), effects.region_time)] {
        let shutdown = shutdown.clone();
        tasks.spawn(async move { shutdown::until(&shutdown, side).await });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.context("a part of the relay broke")??;
    }
    Ok(())
}

/// The generation that is written now; waits for the database.
async fn registered(effects: &Effects, health: &Health) -> Result<Generation> {
    let mut backoff = Backoff::default();
    loop {
        match (effects.register_generation)(()).await {
            Ok(generation) => return Ok(generation),
            Err(error) if error.is::<LogLost>() => return Err(error),
            Err(error) => health.unready("database", format!("{error:#}")),
        }
        backoff.wait().await;
    }
}
