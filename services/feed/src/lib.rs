//! The log → signals, and pages by cursor.
//!
//! In: records of this region's log, its own topics and the copies of other regions'; requests of tenants for pages.
//! Out: a [`meridian_proto::Signal`] to each tenant that has something new; pages of a tenant's events.
//!
//! Promised: **a page is a function of cursor and limit** (and of what the log holds), whether it is read from memory or from
//! the log, in any region; **a cursor never skips**: it moves over what was looked at, stops before a missing position, and
//! says so (410) when history was trimmed past it; **a record that cannot be read never blocks**; **everything is bounded**:
//! memory in bytes, a page in records and bytes looked at, requests at a time, waits in time. Signals may be lost.

pub mod cloudevent;
pub mod head;
pub mod http;
pub mod log;
pub mod page;
pub mod ring;
pub mod signals;
pub mod tail;
#[cfg(test)]
mod tests;
pub mod waiters;

use adapters::{
    nats::SendSignal,
    redpanda::{Batch, Bounds, ReadSpan, StartAt},
};
use anyhow::Result;
use kit::{Effect, health::Health, seldom::Seldom, shutdown::CancellationToken};
use meridian_proto::{CommitTime, CursorKey, PartitionId};
use serde::Deserialize;
use std::{sync::Arc, time::Duration};
use tokio::sync::Semaphore;

/// Everything the feed does to the outside world.
#[derive(Clone)]
pub struct Effects {
    /// Names the partitions of all topics of events in this region's log.
    pub list_partitions: Effect<(), Vec<PartitionId>>,
    /// Begins to follow partitions; what it gives waits for the next records, and fails when it cannot go on.
    pub tail_log: Effect<Vec<(PartitionId, StartAt)>, Effect<(), Batch>>,
    /// What a partition keeps, in local offsets.
    pub log_bounds: Effect<PartitionId, Bounds>,
    /// Reads records from a local offset on, up to the end.
    pub read_log_page: Effect<ReadSpan, Batch>,
    /// Local offset of the first record at or after an origin offset.
    pub find_position: Effect<(PartitionId, u64), u64>,
    /// Sends a hint.
    pub send_signal: Effect<SendSignal, ()>,
    /// The host's clock.
    pub host_time: Effect<(), CommitTime>,
}

/// Numbers that bound the feed.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Events of a page when the request names no limit.
    pub page_events_default: u32,
    /// Events of a page at most.
    pub page_events_max: u32,
    /// Records looked at for one page.
    pub scan_records_max: usize,
    /// Bytes of the records looked at for one page.
    pub scan_bytes_max: usize,
    /// Longest wait of a long poll.
    pub wait_ms_max: u32,
    /// Requests that wait, in all.
    pub waits_max: usize,
    /// Requests of one tenant that wait.
    pub tenant_waits_max: usize,
    /// Pages read at a time.
    pub pages_at_once_max: usize,
    /// Requests that wait for their turn to read a page.
    pub queue_max: usize,
    /// How long a request waits for its turn before it is refused.
    pub turn_patience: Duration,
    /// Longest time for one page.
    pub page_timeout: Duration,
    /// Bytes of all tails in memory.
    pub tail_bytes_max: usize,
    /// Records before the end of a partition with which its tail begins.
    pub tail_start_records: u64,
    /// A tenant gets at most one signal in this time.
    pub signal_gap: Duration,
}

impl Limits {
    /// What the feed runs with.
    pub const STANDARD: Self = Self {
        page_events_default: 100,
        page_events_max: 1000,
        scan_records_max: 20_000,
        scan_bytes_max: 4 << 20,
        wait_ms_max: 30_000,
        waits_max: 1024,
        tenant_waits_max: 64,
        pages_at_once_max: 8,
        queue_max: 256,
        turn_patience: Duration::from_secs(1),
        page_timeout: Duration::from_secs(5),
        tail_bytes_max: 32 << 20,
        tail_start_records: 256,
        signal_gap: Duration::from_millis(5),
    };

    /// Holds what the numbers must be to each other.
    ///
    /// # Panics
    /// When they are not.
    pub fn check(&self) {
        let record_bytes_max = meridian_proto::Limits::STANDARD.data_bytes_max;
        assert!(self.page_events_default <= self.page_events_max, "the default page is one that may be asked for");
        assert!(self.page_events_max as usize <= self.scan_records_max, "a page of events has to fit into what is looked at");
        assert!(self.scan_bytes_max > record_bytes_max, "the largest event has to fit into a page");
        assert!(
            self.tenant_waits_max <= self.waits_max && self.pages_at_once_max <= self.queue_max && self.pages_at_once_max > 0,
            "somebody must be let in"
        );
        assert!(self.signal_gap < Duration::from_secs(1), "signals are to come sooner than the consumers' tick");
    }
}

/// Configuration, flat: see config.toml.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    /// This region.
    pub region: String,
    /// All regions: whose topics are read.
    #[serde(deserialize_with = "kit::config::list")]
    pub regions: Vec<String>,
    /// Address of the public interface.
    pub listen: String,
    /// `host:port` of this region's log.
    pub kafka_address: String,
    /// URL of this region's NATS.
    pub nats_url: String,
    /// File of the hashes of the tenants' keys.
    pub keys_file: String,
    /// File of the secret with which cursors are signed.
    pub cursor_key_file: String,
}

/// One region's feed.
pub struct Feed {
    /// What it does to the outside world.
    pub effects: Effects,
    /// What bounds it.
    pub limits: Limits,
    region: String,
    cursor_key: CursorKey,
    tails: tail::Tails,
    places: log::Places,
    waiters: waiters::Waiters,
    signals: signals::Signals,
    turns: Semaphore,
    queue: Semaphore,
    told: Seldom,
    shutdown: CancellationToken,
}

impl Feed {
    /// A feed that knows nothing yet.
    ///
    /// # Panics
    /// When the limits contradict each other.
    pub fn new(effects: Effects, limits: Limits, region: &str, cursor_key: CursorKey, shutdown: CancellationToken) -> Arc<Self> {
        limits.check();
        Arc::new(Self {
            effects,
            limits,
            region: region.to_owned(),
            cursor_key,
            tails: tail::Tails::default(),
            places: log::Places::default(),
            waiters: waiters::Waiters::new(limits.waits_max, limits.tenant_waits_max),
            signals: signals::Signals::default(),
            turns: Semaphore::new(limits.pages_at_once_max),
            queue: Semaphore::new(limits.queue_max),
            told: Seldom::default(),
            shutdown,
        })
    }
}

/// Follows the log and sends signals until asked to stop.
///
/// # Errors
/// None that end it: what fails is taken up again.
pub async fn run(feed: Arc<Feed>, health: Health) -> Result<()> {
    let work = async {
        tokio::try_join!(feed.follow_log(&health), feed.signals.send(&feed.effects, &feed.region, feed.limits.signal_gap)).map(|_| ())
    };
    kit::shutdown::until(&feed.shutdown, work).await.map(|_| ())
}
