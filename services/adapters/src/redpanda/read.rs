//! Random reads of the log.

use super::{
    Batch, Record, RedpandaConfig,
    client::{self, ANSWER, READ_AHEAD},
    native::Polled,
    record::BatchBuilder,
    search,
    source::{Source, Table, judge},
};
use anyhow::{Context, Result, anyhow, bail, ensure};
use meridian_proto::PartitionId;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{sync::Semaphore, time::Instant};

/// Consumers in a pool.
const CONSUMERS: usize = 4;

/// How long a read may wait for a consumer of the pool.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a partition keeps, in local offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The oldest record kept; equal to `high` when there is none.
    pub low: u64,
    /// One past the newest.
    pub high: u64,
}

/// A read from one place on.
#[derive(Clone, Debug)]
pub struct ReadSpan {
    /// Where.
    pub partition: PartitionId,
    /// Local offset of the first record wanted.
    pub from_local: u64,
    /// At most this many records.
    pub records_max: usize,
    /// At most about this many bytes: the record that reaches it is the last.
    pub bytes_max: usize,
}

/// A few pooled consumers for reads here and there. A read that goes on where an earlier one ended is cheapest.
pub struct LogReader {
    config: RedpandaConfig,
    own_region: String,
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<Cursor>>,
}

impl LogReader {
    /// Makes the pool; waits for no broker. `own_region` is the region whose log this is.
    ///
    /// # Errors
    /// When the settings are refused.
    pub async fn connect(config: &RedpandaConfig, own_region: &str) -> Result<Arc<Self>> {
        let idle = Mutex::new(vec![Cursor::open(config, own_region)?]);
        let (config, own_region) = (config.clone(), own_region.to_owned());
        Ok(Arc::new(Self { config, own_region, permits: Arc::new(Semaphore::new(CONSUMERS)), idle }))
    }

    /// What the partition keeps.
    ///
    /// # Errors
    /// When the partition does not exist or the log does not answer in time.
    pub async fn bounds(self: Arc<Self>, partition: PartitionId) -> Result<Bounds> {
        self.with_cursor(None, move |cursor| cursor.source.bounds(&partition)).await
    }

    /// Records from a local offset on, up to the end of the log as it is now, without waiting for more. At the end: an empty batch.
    ///
    /// # Errors
    /// When the offset is not kept (any more), or the log does not answer in time.
    pub async fn read_span(self: Arc<Self>, span: ReadSpan) -> Result<Batch> {
        let place = (span.partition.clone(), span.from_local);
        self.with_cursor(Some(place), move |cursor| cursor.span(&span)).await
    }

    /// Local offset of the first record whose origin offset is the given one or greater; the end of the log when there is none.
    /// In the origin region's own log it is the same number.
    ///
    /// # Errors
    /// As for [`LogReader::read_span`].
    pub async fn find_position(self: Arc<Self>, (partition, offset): (PartitionId, u64)) -> Result<u64> {
        self.with_cursor(None, move |cursor| cursor.find(&partition, offset, None)).await
    }

    /// The newest record, as a batch of one; empty when the partition keeps none.
    ///
    /// # Errors
    /// As for [`LogReader::read_span`].
    pub async fn last_record(self: Arc<Self>, partition: PartitionId) -> Result<Batch> {
        let read = move |cursor: &mut Cursor| {
            let bounds = cursor.source.bounds(&partition)?;
            let from_local = bounds.high.saturating_sub(1).max(bounds.low);
            cursor.read(&ReadSpan { partition, from_local, records_max: 1, bytes_max: usize::MAX }, bounds)
        };
        self.with_cursor(None, read).await
    }

    /// All topics of events that exist, with their numbers of partitions.
    pub(super) async fn topics(self: Arc<Self>) -> Result<BTreeMap<String, usize>> {
        self.with_cursor(None, |cursor| cursor.source.topics()).await
    }

    /// Works on a consumer of the pool, on a thread that may block: the one that stands at `place`, else one that has none,
    /// else a new one while there may be more, else the one that was used longest ago.
    async fn with_cursor<T: Send + 'static>(
        self: Arc<Self>,
        place: Option<(PartitionId, u64)>,
        work: impl FnOnce(&mut Cursor) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let permit = tokio::time::timeout(PATIENCE, Arc::clone(&self.permits).acquire_owned())
            .await
            .map_err(|_| anyhow!("reads are queueing"))??;
        let read = move || {
            let _permit = permit;
            let mut cursor = self.take(place)?;
            let result = work(&mut cursor);
            // A consumer that failed may be in any state: it is dropped.
            if result.is_ok()
                && let Ok(mut idle) = self.idle.lock()
            {
                idle.push(cursor);
            }
            result
        };
        tokio::task::spawn_blocking(read).await.context("read")?
    }

    fn take(&self, place: Option<(PartitionId, u64)>) -> Result<Cursor> {
        let taken = {
            let Ok(mut idle) = self.idle.lock() else { bail!("the pool of readers is broken") };
            let at_place = place.as_ref().and_then(|_| idle.iter().position(|cursor| cursor.at == place));
            let nowhere = || idle.iter().position(|cursor| cursor.at.is_none());
            // All idle consumers are elsewhere. Those in use are not counted: the permits bound them.
            let oldest = || (!idle.is_empty() && (place.is_none() || idle.len() + 1 >= CONSUMERS)).then_some(0);
            at_place.or_else(nowhere).or_else(oldest).map(|index| idle.remove(index))
        };
        taken.map_or_else(|| Cursor::open(&self.config, &self.own_region), Ok)
    }
}

/// A consumer, and where it stands.
pub(super) struct Cursor {
    source: Source,
    own_region: String,
    table: Table,
    at: Option<(PartitionId, u64)>,
    batch: BatchBuilder,
}

impl Cursor {
    pub(super) fn open(config: &RedpandaConfig, own_region: &str) -> Result<Self> {
        let table = Table::of(Vec::new(), own_region);
        Ok(Self {
            source: Source::open(&client::reader(config))?,
            own_region: own_region.into(),
            table,
            at: None,
            batch: BatchBuilder::default(),
        })
    }

    pub(super) fn bounds(&self, partition: &PartitionId) -> Result<Bounds> {
        self.source.bounds(partition)
    }

    /// Origin offset of the record at `local`, if that is the oldest kept.
    pub(super) fn oldest_origin(&mut self, id: &PartitionId, local: u64) -> Result<Option<u64>> {
        let bounds = self.source.bounds(id)?;
        if local > bounds.low {
            return Ok(None);
        }
        let span = ReadSpan { partition: id.clone(), from_local: local.max(bounds.low), records_max: 1, bytes_max: usize::MAX };
        Ok(self.read(&span, bounds)?.get(0).filter(Record::origin_known).map(|record| record.offset))
    }

    fn span(&mut self, span: &ReadSpan) -> Result<Batch> {
        let bounds = self.source.bounds(&span.partition)?;
        self.read(span, bounds)
    }

    fn read(&mut self, span: &ReadSpan, bounds: Bounds) -> Result<Batch> {
        let (id, from) = (&span.partition, span.from_local);
        ensure!(from >= bounds.low, "{id}: local offset {from} is not kept any more, the oldest is {}", bounds.low);
        ensure!(from <= bounds.high, "{id}: local offset {from} lies beyond the end of the log, {}", bounds.high);
        if from == bounds.high || span.records_max == 0 {
            return Ok(Batch::empty());
        }
        if self.at.as_ref() != Some(&(id.clone(), from)) {
            self.table = Table::of(vec![id.clone()], &self.own_region);
            self.at = None;
            self.source.assign(&[(id, from)], true)?;
        }
        let deadline = Instant::now() + ANSWER;
        let mut next = from;
        while next < bounds.high && self.batch.len() < span.records_max && self.batch.bytes() < span.bytes_max {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.batch.clear();
                bail!("{id}: no record at local offset {next} within {} s", ANSWER.as_secs());
            }
            match self.source.poll(left.min(Duration::from_millis(200))) {
                Polled::Record(record) if record.offset() >= next => {
                    if self.table.take(&record, &mut self.batch) {
                        next = record.offset() + 1;
                    }
                }
                Polled::Failed(code) => judge(code).inspect_err(|_| self.batch.clear()).with_context(|| format!("{id} at {next}"))?,
                Polled::Record(_) | Polled::Other | Polled::Nothing => {}
            }
        }
        // Near the end a consumer at rest would ask again and again.
        let goes_on = bounds.high - next > 2 * READ_AHEAD;
        self.at = goes_on.then(|| (id.clone(), next));
        if !goes_on {
            self.source.rest()?;
        }
        Ok(self.batch.take(&self.table.partitions))
    }

    /// As [`LogReader::find_position`], with a place to look at first.
    pub(super) fn find(&mut self, id: &PartitionId, wanted: u64, hint: Option<u64>) -> Result<u64> {
        let bounds = self.source.bounds(id)?;
        if id.topic.region == self.own_region {
            return Ok(wanted.clamp(bounds.low, bounds.high));
        }
        let mut probe = |from: u64, records_max: usize| {
            let span = ReadSpan { partition: id.clone(), from_local: from, records_max, bytes_max: usize::MAX };
            Ok(self.read(&span, bounds)?.iter().map(|record| (record.local_offset, record.offset)).collect())
        };
        search::first_at_or_after(bounds, wanted, hint, &mut probe).with_context(|| format!("find origin offset {wanted} in {id}"))
    }
}
