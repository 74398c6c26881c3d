//! A fake of the log: records by partition, appended in order, each with the time of its append.
//!
//! It keeps what the engine promises and no more: an append that was not acknowledged may be there in none, some or all of its
//! records, always a prefix; some may come late; a follower gets records in order from where it began, or an error.

use crate::{
    plan::REGIONS,
    world::{EPOCH_US, Process, World},
};
use adapters::redpanda::{Batch, Bounds, DeadLetter, Kind, OutRecord, ReadSpan, Record, StartAt};
use anyhow::{Context, Result, anyhow, bail, ensure};
use bytes::Bytes;
use meridian_proto::{Origin, PARTITIONS, PartitionId, Topic};
use std::{
    borrow::Cow,
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// Records of one batch of a follower at most.
const BATCH_RECORDS: usize = 60;

/// One region's log.
pub struct Log {
    /// Its region.
    pub own: &'static str,
    index: BTreeMap<PartitionId, usize>,
    partitions: Vec<Partition>,
    /// Dead letters of all topics.
    pub letters: Vec<DeadLetter>,
    /// It answers again from then on, milliseconds.
    pub down_until: u64,
    /// So many of the next appends end unknown.
    pub appends_unknown: u32,
}

/// One partition.
pub struct Partition {
    /// Which.
    pub id: PartitionId,
    /// Offset of the first record kept.
    pub low: u64,
    /// The records kept.
    pub records: Vec<Stored>,
}

/// A record as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The `content-type` header.
    pub content_type: Cow<'static, str>,
    /// Its bytes.
    pub value: Bytes,
    /// The position header.
    pub origin: Option<Origin>,
    /// When it was appended, milliseconds since the Unix epoch.
    pub appended_ms: i64,
}

impl Partition {
    /// One past the newest record.
    pub fn high(&self) -> u64 {
        self.low + self.records.len() as u64
    }

    /// The record at a local offset as readers see it.
    fn record(&self, local: u64, own: bool) -> Option<Record<'_>> {
        let stored = self.records.get(local.checked_sub(self.low)? as usize)?;
        let unknown = Origin { offset: Record::UNKNOWN_ORIGIN, append_time_ms: stored.appended_ms };
        let origin = if own { Origin { offset: local, append_time_ms: stored.appended_ms } } else { stored.origin.unwrap_or(unknown) };
        Some(Record {
            partition: &self.id,
            local_offset: local,
            offset: origin.offset,
            relayed_ms: origin.append_time_ms,
            appended_ms: stored.appended_ms,
            kind: Kind::of(&stored.content_type),
            content_type: &stored.content_type,
            value: &stored.value,
        })
    }

    /// Local offset of the first record of this origin offset or a greater one.
    fn find(&self, wanted: u64, own: bool) -> u64 {
        if own {
            return wanted.clamp(self.low, self.high());
        }
        let at = self.records.iter().position(|stored| stored.origin.is_some_and(|origin| origin.offset >= wanted));
        let at = at.unwrap_or(self.records.len());
        // A search among records that nobody's mirror put there may end before them.
        let strangers = self.records[..at].iter().rev().take_while(|stored| stored.origin.is_none()).count();
        self.low + (at - strangers) as u64
    }
}

impl Log {
    /// The log of a region, with the empty topics of the first generation of so many regions.
    pub fn of_regions(regions: usize, own: usize) -> Self {
        let mut log = Self {
            own: REGIONS[own],
            index: BTreeMap::new(),
            partitions: Vec::new(),
            letters: Vec::new(),
            down_until: 0,
            appends_unknown: 0,
        };
        REGIONS.iter().take(regions).for_each(|region| log.create(&Topic { region: (*region).into(), generation: 1 }));
        log
    }

    /// Makes a topic, unless it is there.
    pub fn create(&mut self, topic: &Topic) {
        for partition in 0..PARTITIONS {
            let id = PartitionId { topic: topic.clone(), partition };
            if !self.index.contains_key(&id) {
                self.index.insert(id.clone(), self.partitions.len());
                self.partitions.push(Partition { id, low: 0, records: Vec::new() });
            }
        }
    }

    /// All partitions, in order of their names.
    pub fn ids(&self) -> Vec<PartitionId> {
        self.index.keys().cloned().collect()
    }

    /// A partition.
    pub fn get(&self, id: &PartitionId) -> Option<&Partition> {
        self.index.get(id).map(|index| &self.partitions[*index])
    }

    fn known(&self, id: &PartitionId) -> Result<&Partition> {
        self.get(id).with_context(|| format!("{id} does not exist"))
    }

    /// Whether these are this region's own records.
    pub fn is_own(&self, id: &PartitionId) -> bool {
        id.topic.region == self.own
    }

    /// Appends a record as it is.
    pub fn put(&mut self, id: &PartitionId, stored: Stored) {
        if let Some(index) = self.index.get(id) {
            self.partitions[*index].records.push(stored);
        }
    }

    /// Where a follower begins in a partition.
    fn start(&self, id: &PartitionId, at: StartAt) -> Result<u64> {
        let (partition, own) = (self.known(id)?, self.is_own(id));
        let (low, high) = (partition.low, partition.high());
        match at {
            StartAt::Oldest => Ok(low),
            StartAt::Latest => Ok(high),
            StartAt::Offset { next, .. } if own => {
                ensure!(next >= low, "{id}: offset {next} is not kept any more, the oldest is {low}");
                ensure!(next <= high, "{id}: offset {next} lies beyond the end of the log, {high}: the log lost records");
                Ok(next)
            }
            StartAt::Offset { next, .. } => {
                let local = partition.find(next, false);
                let oldest = (local <= low).then(|| partition.record(local, false)).flatten().filter(Record::origin_known);
                if let Some(oldest) = oldest.filter(|oldest| oldest.offset > next) {
                    bail!("{id}: origin offset {next} is not kept any more, the oldest is {}", oldest.offset);
                }
                Ok(local)
            }
        }
    }
}

fn append_time_ms(world: &World) -> i64 {
    (EPOCH_US / 1_000 + world.now_ms()) as i64
}

fn put_all(world: &World, region: usize, records: &[OutRecord]) {
    if records.is_empty() {
        return;
    }
    let appended_ms = append_time_ms(world);
    let mut state = world.state();
    for OutRecord { partition, content_type, value, origin } in records {
        let stored = Stored { content_type: content_type.clone(), value: value.clone(), origin: *origin, appended_ms };
        state.regions[region].log.put(partition, stored);
    }
    drop(state);
    world.grown[region].notify_waiters();
}

/// Waits while the log is away: a producer waits for longer than any of these absences.
async fn reached(process: &Process) {
    loop {
        process.short().await;
        let down_until = process.world.state().regions[process.region].log.down_until;
        if down_until <= process.world.now_ms() {
            return;
        }
        process.world.until_ms(down_until).await;
    }
}

/// Whether the next append ends unknown.
fn ends_unknown(process: &Process) -> bool {
    let mut state = process.world.state();
    let log = &mut state.regions[process.region].log;
    let unknown = log.appends_unknown > 0;
    log.appends_unknown = log.appends_unknown.saturating_sub(1);
    unknown
}

/// Appends a prefix of what was given; the rest of what the relay sent may come later.
pub async fn append(process: &Arc<Process>, records: Vec<OutRecord>, may_come_late: bool) -> Result<()> {
    if records.is_empty() {
        return Ok(());
    }
    reached(process).await;
    if !ends_unknown(process) {
        put_all(&process.world, process.region, &records);
        process.short().await;
        return Ok(());
    }
    let count = process.draw(|random| random.below(records.len() as u64 + 1)) as usize;
    put_all(&process.world, process.region, &records[..count]);
    let late = may_come_late && process.draw(|random| random.chance(40));
    let (all, partition) = (records.len(), records[0].partition.clone());
    if late {
        let (world, region, after_ms) = (Arc::clone(&process.world), process.region, process.draw(|random| random.between(50, 3_000)));
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(after_ms)).await;
            put_all(&world, region, &records[count..]);
        });
    }
    process.world.tell(process.region, process.role, || {
        let rest = if late { ", the rest comes later" } else { "" };
        format!("hears nothing of an append to {partition}: {count} of {all} records are there{rest}")
    });
    Err(anyhow!("the log did not acknowledge"))
}

/// See [`adapters::redpanda::Publisher::dead_letter`].
pub async fn dead_letter(process: Arc<Process>, letter: DeadLetter) -> Result<()> {
    reached(&process).await;
    process.world.tell(process.region, process.role, || format!("puts {} aside: {}", letter.position.partition, letter.reason));
    process.world.state().regions[process.region].log.letters.push(letter);
    Ok(())
}

async fn asked(process: &Process) -> Result<()> {
    process.short().await;
    let away = process.world.state().regions[process.region].log.down_until > process.world.now_ms();
    ensure!(!away, "the log does not answer");
    Ok(())
}

/// See [`adapters::redpanda::list_partitions`].
pub async fn list_partitions(process: Arc<Process>, (): ()) -> Result<Vec<PartitionId>> {
    asked(&process).await?;
    Ok(process.world.state().regions[process.region].log.ids())
}

/// See [`adapters::redpanda::LogReader::bounds`].
pub async fn bounds(process: Arc<Process>, id: PartitionId) -> Result<Bounds> {
    asked(&process).await?;
    let state = process.world.state();
    let partition = state.regions[process.region].log.known(&id)?;
    Ok(Bounds { low: partition.low, high: partition.high() })
}

/// See [`adapters::redpanda::LogReader::find_position`].
pub async fn find_position(process: Arc<Process>, (id, offset): (PartitionId, u64)) -> Result<u64> {
    asked(&process).await?;
    let state = process.world.state();
    let log = &state.regions[process.region].log;
    Ok(log.known(&id)?.find(offset, log.is_own(&id)))
}

/// See [`adapters::redpanda::LogReader::read_span`].
pub async fn read_span(process: Arc<Process>, span: ReadSpan) -> Result<Batch> {
    asked(&process).await?;
    let state = process.world.state();
    let log = &state.regions[process.region].log;
    let (partition, own) = (log.known(&span.partition)?, log.is_own(&span.partition));
    let (from, low, high) = (span.from_local, partition.low, partition.high());
    ensure!((low..=high).contains(&from), "{}: local offset {from} is not among {low}..{high}", span.partition);
    let mut bytes = 0;
    let fits = |record: &Record<'_>| {
        let before = bytes;
        bytes += record.value.len();
        before < span.bytes_max
    };
    Ok(Batch::of((from..high).take(span.records_max).filter_map(|local| partition.record(local, own)).take_while(fits)))
}

/// Reads partitions as they grow.
pub struct Follower {
    region: usize,
    linger: Duration,
    places: Mutex<Vec<(usize, u64)>>,
}

impl Follower {
    /// Begins at these places.
    ///
    /// # Errors
    /// When one of them is not kept.
    pub fn start(process: &Process, starts: &[(PartitionId, StartAt)], linger: Duration) -> Result<Arc<Self>> {
        let state = process.world.state();
        let log = &state.regions[process.region].log;
        let place = |(id, at): &(PartitionId, StartAt)| {
            let index = *log.index.get(id).with_context(|| format!("{id} does not exist"))?;
            Ok((index, log.start(id, *at)?))
        };
        let places = starts.iter().map(place).collect::<Result<_>>()?;
        Ok(Arc::new(Self { region: process.region, linger, places: Mutex::new(places) }))
    }

    fn has_news(&self, world: &World) -> bool {
        let state = world.state();
        let log = &state.regions[self.region].log;
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        log.down_until <= world.now_ms() && places.iter().any(|(index, next)| log.partitions[*index].high() > *next)
    }

    fn take(&self, world: &World) -> Batch {
        let state = world.state();
        let log = &state.regions[self.region].log;
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let mut records = Vec::new();
        for (index, next) in places.iter_mut() {
            let partition = &log.partitions[*index];
            let own = log.is_own(&partition.id);
            while let Some(record) = partition.record(*next, own).filter(|_| records.len() < BATCH_RECORDS) {
                *next += 1;
                records.push(record);
            }
        }
        Batch::of(records)
    }

    /// See [`adapters::redpanda::Follower::next_batch`]: may be dropped while it waits.
    pub async fn next_batch(self: Arc<Self>, world: Arc<World>) -> Batch {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(1);
        loop {
            let mut grown = std::pin::pin!(world.grown[self.region].notified());
            grown.as_mut().enable();
            if self.has_news(&world) {
                break;
            }
            if tokio::time::timeout_at(deadline, grown).await.is_err() {
                return Batch::empty();
            }
        }
        tokio::time::sleep(self.linger).await;
        self.take(&world)
    }
}
