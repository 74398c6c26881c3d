//! Reading the log: following its end, and looking at spans of it that memory does not hold.

use crate::{
    Effects,
    head::tenant_of,
    ring::{Budget, Found, Scan},
};
use adapters::redpanda::{Batch, Bounds, FollowSpec, Follower, Kind, LogReader, ReadSpan, Record, RedpandaConfig, StartAt};
use anyhow::{Context, Result};
use kit::{Effect, bind, seldom::Seldom};
use meridian_proto::{PartitionId, Sequence, Step};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// Records of one read of the log.
const READ_RECORDS_MAX: usize = 5000;
/// Bytes of one read of the log.
const READ_BYTES_MAX: usize = 1 << 20;
/// How far behind a missing position it is looked for, in records: what somebody else put into the log is stepped over.
const GAP_RECORDS_MAX: usize = 1000;
/// Places remembered between pages.
const PLACES_MAX: usize = 4096;

/// This region's log.
pub struct Log {
    /// Where it is.
    pub config: RedpandaConfig,
    /// Whose it is.
    pub own_region: String,
    /// Reads here and there.
    pub reader: Arc<LogReader>,
}

/// Follows partitions from the places given; the effect that it gives waits for the next records.
///
/// # Errors
/// When the settings are refused.
pub async fn tail_log(log: Arc<Log>, partitions: Vec<(PartitionId, StartAt)>) -> Result<Effect<(), Batch>> {
    let spec = FollowSpec {
        partitions,
        own_region: log.own_region.clone(),
        batch_bytes_max: 1 << 20,
        batch_records_max: 10_000,
        linger: Duration::ZERO,
        held_back: Duration::ZERO,
    };
    let follower = Follower::start(&log.config, spec)?;
    Ok(bind(&follower, |follower, ()| Follower::next_batch(Arc::clone(&follower), ())))
}

/// The partitions of the topics of these regions only: a topic that somebody else made is nobody's to read. Without regions, all.
pub fn of_regions(list_partitions: Effect<(), Vec<PartitionId>>, regions: Vec<String>) -> Effect<(), Vec<PartitionId>> {
    kit::effect(move |()| {
        let (all, regions) = (list_partitions(()), regions.clone());
        async move {
            let mut partitions = all.await?;
            partitions.retain(|id| regions.is_empty() || regions.contains(&id.topic.region));
            Ok(partitions)
        }
    })
}

/// Reads records from a local offset on.
///
/// # Errors
/// See [`LogReader::read_span`].
pub async fn read_log_page(log: Arc<Log>, span: ReadSpan) -> Result<Batch> {
    Arc::clone(&log.reader).read_span(span).await
}

/// Whose event a record is, if it is one.
pub fn owner<'a>(record: &Record<'a>) -> Option<&'a str> {
    (record.kind == Kind::Event).then(|| tenant_of(record.value))?
}

/// What looking into the log gave.
#[derive(Debug, PartialEq, Eq)]
pub enum Look {
    /// Records, perhaps none.
    Scanned(Scan),
    /// What comes at the position is not kept any more.
    Trimmed {
        /// Origin offset of the oldest record kept.
        oldest: u64,
    },
}

/// Local places of positions, remembered from page to page: it saves searches and decides nothing.
#[derive(Debug, Default)]
pub struct Places {
    locals: Mutex<HashMap<(PartitionId, u64), u64>>,
    told: Seldom,
}

impl Places {
    fn get(&self, partition: &PartitionId, next: u64) -> Option<u64> {
        self.locals.lock().unwrap_or_else(PoisonError::into_inner).get(&(partition.clone(), next)).copied()
    }

    fn put(&self, partition: &PartitionId, next: u64, local: u64) {
        let mut places = self.locals.lock().unwrap_or_else(PoisonError::into_inner);
        if places.len() >= PLACES_MAX {
            places.clear();
        }
        places.insert((partition.clone(), next), local);
    }
}

/// Where to begin: the local offset, and the origin offset if it is known which one comes.
struct Start {
    local: u64,
    next: Option<u64>,
    remembered: bool,
}

/// Looks at the records of `partition` from origin offset `next` on (`None`: from the oldest kept) for events of `tenant`.
///
/// # Errors
/// When the log does not answer.
pub async fn look(
    effects: &Effects,
    places: &Places,
    partition: &PartitionId,
    tenant: &str,
    next: Option<u64>,
    budget: Budget,
) -> Result<Look> {
    let bounds = (effects.log_bounds)(partition.clone()).await.context("log bounds")?;
    if let Some(start) = next.and_then(|next| Some(Start { local: places.get(partition, next)?, next: Some(next), remembered: true }))
        && (bounds.low..=bounds.high).contains(&start.local)
        && let Some(look) = look_from(effects, places, partition, tenant, start, bounds, budget).await?
    {
        return Ok(look);
    }
    let local = match next {
        Some(next) => (effects.find_position)((partition.clone(), next)).await.context("find position")?.max(bounds.low),
        None => bounds.low,
    };
    let start = Start { local, next, remembered: false };
    let nothing = Look::Scanned(Scan { next: next.unwrap_or_default(), ..Scan::default() });
    Ok(look_from(effects, places, partition, tenant, start, bounds, budget).await?.unwrap_or(nothing))
}

/// `None` when a remembered place turns out wrong.
async fn look_from(
    effects: &Effects,
    places: &Places,
    partition: &PartitionId,
    tenant: &str,
    start: Start,
    bounds: Bounds,
    budget: Budget,
) -> Result<Option<Look>> {
    let mut walk = Walk::new(tenant, start.next, budget);
    let mut local = start.local;
    while local < bounds.high && !walk.is_over() {
        let span = ReadSpan {
            partition: partition.clone(),
            from_local: local,
            records_max: READ_RECORDS_MAX.min(walk.left.records.max(1)),
            bytes_max: READ_BYTES_MAX.min(walk.left.bytes.max(1)),
        };
        let batch = (effects.read_log_page)(span).await.context("read log page")?;
        if batch.is_empty() {
            break;
        }
        for index in 0..batch.len() {
            let Some(record) = batch.get(index) else { break };
            if walk.is_over() {
                break;
            }
            local = record.local_offset + 1;
            match walk.take(&record) {
                Step::Gap { .. } if walk.scan.records == 0 && start.remembered => return Ok(None),
                // Nothing of what comes before is kept: not a hole, but the end of history.
                Step::Gap { .. } if walk.scan.records == 0 && walk.skipped == 0 && start.local == bounds.low => {
                    return Ok(Some(Look::Trimmed { oldest: record.offset }));
                }
                _ => {}
            }
        }
    }
    if walk.is_stuck() {
        metrics::counter!("meridian_alarms_total", "alarm" => "gap").increment(1);
        if let Some(withheld) = places.told.due() {
            tracing::error!(%partition, expected = walk.next(), withheld, "positions are missing in this region's log: pages stop before them");
        }
    } else {
        places.put(partition, walk.next(), local);
    }
    let next = walk.next();
    Ok(Some(Look::Scanned(Scan { next, ..walk.scan })))
}

/// A walk over records in the order of the log, under the rule of positions: the one expected is taken, what was taken
/// before is dropped, and a missing one is never jumped.
struct Walk<'a> {
    tenant: &'a str,
    sequence: Option<Sequence>,
    left: Budget,
    scan: Scan,
    /// Records dropped before the first one taken.
    skipped: usize,
    /// Records met beyond a missing one.
    beyond: usize,
}

impl<'a> Walk<'a> {
    fn new(tenant: &'a str, next: Option<u64>, left: Budget) -> Self {
        Self { tenant, sequence: next.map(Sequence::starting_at), left, scan: Scan::default(), skipped: 0, beyond: 0 }
    }

    fn next(&self) -> u64 {
        self.sequence.unwrap_or_default().next()
    }

    fn is_stuck(&self) -> bool {
        self.beyond > 0
    }

    fn is_over(&self) -> bool {
        self.left.is_spent() || self.beyond > GAP_RECORDS_MAX
    }

    fn take(&mut self, record: &Record<'_>) -> Step {
        if !record.origin_known() {
            // Not put there by a mirror: it has no position, so it is not part of the copy.
            return Step::Drop;
        }
        let step = self.sequence.get_or_insert(Sequence::starting_at(record.offset)).step(record.offset);
        match step {
            Step::Take => self.count(record),
            Step::Drop => self.skipped += 1,
            Step::Gap { .. } => self.beyond += 1,
        }
        step
    }

    fn count(&mut self, record: &Record<'_>) {
        self.beyond = 0;
        self.scan.records += 1;
        self.scan.bytes += record.value.len();
        self.left.records -= 1;
        self.left.bytes = self.left.bytes.saturating_sub(record.value.len());
        if owner(record) == Some(self.tenant) {
            self.left.events -= 1;
            self.scan.events.push(Found {
                offset: record.offset,
                relayed_ms: record.relayed_ms,
                appended_ms: record.appended_ms,
                value: bytes::Bytes::copy_from_slice(record.value),
            });
        }
    }
}
