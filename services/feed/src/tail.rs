//! Following the end of the log: fills the rings, wakes long polls, asks for signals.

use crate::{
    Feed,
    log::owner,
    ring::{Arrival, Budget, Ring, Scan},
};
use adapters::redpanda::{Batch, Bounds, Kind, ReadSpan, StartAt};
use anyhow::{Context, Result, ensure};
use kit::{backoff::Backoff, health::Health};
use meridian_proto::{PartitionId, Step};
use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::Duration,
};
use tokio::time::Instant;

/// How often it is asked whether there are new topics.
const LIST_PERIOD: Duration = Duration::from_secs(30);
/// Records looked at for one that tells its position, when the tail begins.
const START_SEARCH_RECORDS: usize = 64;

/// What memory knows of a partition.
#[derive(Debug)]
pub enum Known {
    /// Nothing: the log has to be asked.
    Nothing,
    /// That the log keeps no record of it, until one comes.
    Empty,
    /// Its newest records.
    Newest(Ring),
}

/// The tail of one partition.
#[derive(Debug)]
pub struct Tail {
    known: Known,
    /// Set while a position is missing: the tail stands still before it.
    stopped: bool,
}

/// The tails of all known partitions.
#[derive(Debug, Default)]
pub struct Tails(RwLock<BTreeMap<PartitionId, Arc<Mutex<Tail>>>>);

fn open(tail: &Mutex<Tail>) -> MutexGuard<'_, Tail> {
    tail.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tails {
    /// The partitions known, in order.
    pub fn partitions(&self) -> Vec<PartitionId> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    fn get(&self, partition: &PartitionId) -> Option<Arc<Mutex<Tail>>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(partition).cloned()
    }

    /// Looks at the newest records of a partition, where memory has some.
    pub fn with<T>(&self, partition: &PartitionId, work: impl FnOnce(&Ring) -> T) -> Option<T> {
        let tail = self.get(partition)?;
        match &open(&tail).known {
            Known::Newest(ring) => Some(work(ring)),
            Known::Nothing | Known::Empty => None,
        }
    }

    /// Looks at a partition from `next` on; `None` when memory cannot tell. A scan of no records says nothing about a position.
    pub fn scan(&self, partition: &PartitionId, tenant: &str, next: Option<u64>, budget: Budget) -> Option<Scan> {
        let tail = self.get(partition)?;
        match (&open(&tail).known, next) {
            // A ring that still holds the topic's first record knows what is oldest.
            (Known::Newest(ring), next) => ring.scan(tenant, next.or((ring.first() == 0).then_some(0))?, budget),
            (Known::Empty, next) => Some(Scan { next: next.unwrap_or_default(), ..Scan::default() }),
            (Known::Nothing, _) => None,
        }
    }

    /// Takes up a partition anew.
    pub fn put(&self, partition: &PartitionId, known: Known) {
        let tail = Arc::new(Mutex::new(Tail { known, stopped: false }));
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(partition.clone(), tail);
    }

    /// Bytes that all tails hold.
    pub fn bytes_held(&self) -> usize {
        self.partitions().iter().filter_map(|partition| self.with(partition, Ring::bytes_held)).sum()
    }

    /// Takes records, and gives the tenants that have new events.
    pub fn push(&self, batch: &Batch, ring_bytes_max: usize) -> BTreeSet<Arc<str>> {
        let mut tenants = BTreeSet::new();
        let mut current: Option<(usize, Arc<Mutex<Tail>>)> = None;
        for (index, record) in batch.iter().enumerate().filter(|(_, record)| record.origin_known()) {
            let at = batch.partition_index(index);
            if current.as_ref().is_none_or(|(known, _)| *known != at) {
                current = self.get(record.partition).map(|tail| (at, tail));
            }
            let Some((_, tail)) = &current else { continue };
            let mut tail = open(tail);
            let arrival = Arrival {
                offset: record.offset,
                local_offset: record.local_offset,
                relayed_ms: record.relayed_ms,
                appended_ms: record.appended_ms,
                tenant: owner(&record),
                value: record.value,
            };
            if record.kind == Kind::Unknown || (record.kind == Kind::Event && arrival.tenant.is_none()) {
                metrics::counter!("meridian_feed_unreadable_total").increment(1);
            }
            let (step, tenant) = tail.ring(record.offset, ring_bytes_max).push(&arrival);
            tail.note(step, record.partition, record.offset);
            tenants.extend(tenant);
        }
        tenants
    }
}

impl Tail {
    /// The ring, which begins with the first record that comes where nothing was known.
    fn ring(&mut self, offset: u64, bytes_max: usize) -> &mut Ring {
        if !matches!(self.known, Known::Newest(_)) {
            self.known = Known::Newest(Ring::starting_at(offset, bytes_max));
        }
        let Known::Newest(ring) = &mut self.known else { unreachable!("a ring was just put there") };
        ring
    }

    /// A missing position stops the tail, once told; the missing record, should it come, lets it go on.
    fn note(&mut self, step: Step, partition: &PartitionId, offset: u64) {
        match step {
            Step::Gap { expected } if !self.stopped => {
                self.stopped = true;
                metrics::counter!("meridian_alarms_total", "alarm" => "gap").increment(1);
                metrics::gauge!("meridian_feed_stopped", "partition" => partition.to_string()).set(1.0);
                tracing::error!(%partition, expected, offset, "positions are missing in this region's log: the tail stops before them");
            }
            Step::Take if self.stopped => {
                self.stopped = false;
                metrics::gauge!("meridian_feed_stopped", "partition" => partition.to_string()).set(0.0);
                tracing::warn!(%partition, offset, "the missing position came: the tail goes on");
            }
            _ => {}
        }
    }
}

impl Feed {
    /// Follows the log for ever: starts again where it stood whenever the log goes away, and takes up new topics.
    ///
    /// # Errors
    /// Never; the type says that it doesn't end.
    pub async fn follow_log(&self, health: &Health) -> Result<Infallible> {
        let mut backoff = Backoff::default();
        loop {
            let started = Instant::now();
            if let Err(error) = self.follow_once(health).await {
                let error = format!("{error:#}");
                tracing::warn!(error, "the tail of the log was lost; it will be taken up again");
                health.unready("log", &error);
                if started.elapsed() > Duration::from_secs(30) {
                    backoff.reset();
                }
                backoff.wait().await;
            }
        }
    }

    /// Follows until the log fails, or there are partitions that were not known.
    async fn follow_once(&self, health: &Health) -> Result<()> {
        let partitions = (self.effects.list_partitions)(()).await.context("list partitions")?;
        ensure!(!partitions.is_empty(), "this region's log has no topic of events");
        let ring_bytes_max = self.limits.tail_bytes_max / partitions.len();
        let mut starts = Vec::with_capacity(partitions.len());
        for partition in &partitions {
            starts.push((partition.clone(), self.start_of(partition, ring_bytes_max).await?));
        }
        let next_batch = (self.effects.tail_log)(starts).await.context("tail log")?;
        health.ready("log");
        let mut listed = Instant::now();
        loop {
            let batch = next_batch(()).await.context("tail log")?;
            let tenants = self.tails.push(&batch, ring_bytes_max);
            self.note_lag(&batch).await;
            self.waiters.wake(&tenants);
            self.signals.ask(tenants);
            if listed.elapsed() >= LIST_PERIOD {
                listed = Instant::now();
                if (self.effects.list_partitions)(()).await.is_ok_and(|now| now != partitions) {
                    tracing::info!("there are new topics");
                    return Ok(());
                }
            }
        }
    }

    /// Where to follow a partition from: where its tail stands, else some records before the end. Memory is only a copy of
    /// the log's end, so where it lies before what is kept it begins anew; cursors are judged by the log itself.
    async fn start_of(&self, partition: &PartitionId, ring_bytes_max: usize) -> Result<StartAt> {
        let bounds = (self.effects.log_bounds)(partition.clone()).await.context("log bounds")?;
        let stands = self.tails.with(partition, |ring| (ring.end(), ring.local_end()));
        if let Some((next, local_hint)) = stands
            && local_hint.is_none_or(|local| bounds.low <= local)
        {
            return Ok(StartAt::Offset { next, local_hint });
        }
        let (known, start) = self.near_the_end(partition, bounds, ring_bytes_max).await?;
        self.tails.put(partition, known);
        Ok(start)
    }

    async fn near_the_end(&self, partition: &PartitionId, bounds: Bounds, ring_bytes_max: usize) -> Result<(Known, StartAt)> {
        if bounds.low == bounds.high {
            return Ok((Known::Empty, StartAt::Oldest));
        }
        let from_local = bounds.high.saturating_sub(self.limits.tail_start_records).max(bounds.low);
        let span = ReadSpan { partition: partition.clone(), from_local, records_max: START_SEARCH_RECORDS, bytes_max: 1 << 20 };
        let batch = (self.effects.read_log_page)(span).await.context("read log page")?;
        let Some(first) = batch.iter().find(|record| record.origin_known()) else { return Ok((Known::Nothing, StartAt::Latest)) };
        let ring = Ring::starting_at(first.offset, ring_bytes_max);
        Ok((Known::Newest(ring), StartAt::Offset { next: first.offset, local_hint: Some(first.local_offset) }))
    }

    async fn note_lag(&self, batch: &Batch) {
        let Ok(now) = (self.effects.host_time)(()).await else { return };
        let newest: BTreeMap<&str, i64> = batch.iter().map(|record| (record.partition.topic.region.as_str(), record.relayed_ms)).collect();
        for (origin, relayed_ms) in newest {
            let seconds = (now.0 as f64 / 1e6 - relayed_ms as f64 / 1e3).max(0.0);
            metrics::gauge!("meridian_lag_seconds", "origin" => origin.to_owned(), "hop" => "feed").set(seconds);
        }
        metrics::gauge!("meridian_feed_tail_bytes").set(self.tails.bytes_held() as f64);
    }
}
