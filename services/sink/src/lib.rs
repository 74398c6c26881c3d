//! log → **sink** → ClickHouse
//!
//! Comes in: every partition of every region's topic of events, as this region's log holds them. Goes out: large blocks of rows,
//! then where each partition stands.
//!
//! **A position is stated only after its block is stored.** A record is stored, or dead-lettered and parked, or still to come;
//! it is never skipped. What is repeated is harmless: rows are replaced by identity, positions by the furthest.

mod block;
mod config;
mod json;
mod lane;
mod log;
mod session;
mod view;

pub use block::{Block, COLUMNS};
pub use config::Config;
pub use lane::{row_of, start_at};
pub use log::{Log, LogConfig};
pub use session::{HEALTH_PARTS, Session};

use adapters::{
    clickhouse::{InsertBlock, PositionRow, Positions, SaveProgress},
    redpanda::{Batch, DeadLetter},
};
use anyhow::Result;
use kit::{
    Effect,
    backoff::Backoff,
    health::Health,
    shutdown::{CancellationToken, until},
};
use meridian_proto::{CommitTime, PartitionId};
use std::time::Duration;

/// A partition that is followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Followed {
    /// Which.
    pub id: PartitionId,
    /// How many its topic has.
    pub partitions: u16,
}

/// What following the log brought.
#[derive(Clone, Debug)]
pub enum Polled {
    /// Records, or none for a while.
    Records(Batch),
    /// There are partitions now that are not followed: start again.
    TopicsChanged,
}

/// Everything the sink does to the outside world.
#[derive(Clone)]
pub struct Effects {
    /// The store's id and the furthest row of each partition.
    pub load_positions: Effect<(), Positions>,
    /// Begins to read every partition behind these positions; says which they are.
    pub start_following: Effect<Vec<PositionRow>, Vec<Followed>>,
    /// The next records. May be dropped while it waits.
    pub poll_batch: Effect<(), Polled>,
    /// Stores a block: `Ok` only when all of it is stored.
    pub insert_block: Effect<InsertBlock, ()>,
    /// Saves parked records and positions.
    pub save_positions: Effect<SaveProgress, ()>,
    /// Appends to the topic's `.dlq`, acknowledged.
    pub dead_letter: Effect<DeadLetter, ()>,
    /// The host's clock.
    pub host_time: Effect<(), CommitTime>,
}

/// When a block is stored.
#[derive(Clone, Debug)]
pub struct Limits {
    /// At this many rows,
    pub rows_max: u64,
    /// or this many bytes,
    pub bytes_max: usize,
    /// or this long after the first row, if there are at least `rows_few`,
    pub flush_after: Duration,
    /// or this long after anything at all.
    pub flush_after_few: Duration,
    /// See `flush_after`.
    pub rows_few: u64,
    /// How often the store is asked whether it is still the same one.
    pub store_check_every: Duration,
}

impl Limits {
    /// Asserts the relations between them.
    ///
    /// # Panics
    /// When one doesn't hold.
    pub fn assert(&self) {
        assert!(self.rows_max >= self.rows_few && self.rows_few > 0, "rows_max >= rows_few > 0");
        assert!(self.flush_after <= self.flush_after_few, "flush_after <= flush_after_few");
        assert!((1 << 16..=24 << 20).contains(&self.bytes_max), "64 KiB <= bytes_max <= 24 MiB: the service may grow by 64 MiB");
    }
}

/// Stores what the log holds, until asked to stop. Whatever fails is tried again from what the store says, with backoff, for ever;
/// the backlog waits in the log.
///
/// # Errors
/// None for now; a caller ends the process on one.
pub async fn run(effects: Effects, limits: Limits, health: Health, shutdown: CancellationToken) -> Result<()> {
    limits.assert();
    let mut backoff = Backoff::default();
    loop {
        let session = async {
            let mut session = Session::start(&effects, &limits, &health).await?;
            backoff.reset();
            session.run().await
        };
        match until(&shutdown, session).await {
            Ok(None) => return Ok(()),
            Ok(Some(reason)) => tracing::info!(reason, "starting again from the store's positions"),
            Err(error) => {
                let why = format!("{error:#}");
                tracing::warn!(error = why, "will start again from the store's positions");
                health.unready("log", why);
                let waited = async {
                    backoff.wait().await;
                    Ok(())
                };
                if until(&shutdown, waited).await?.is_none() {
                    return Ok(());
                }
            }
        }
    }
}
