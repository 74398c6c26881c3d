//! A log and a store in memory, with faults, and a reader of RowBinary.
#![allow(dead_code)]

use adapters::{
    clickhouse::{InsertBlock, ParkedRow, PositionRow, Positions, SaveProgress},
    redpanda::{Batch, DeadLetter, Kind, Record},
};
use anyhow::{Result, bail};
use bytes::Bytes;
use kit::{bind, effect};
use meridian_proto::{CONTENT_TYPE_EVENT, CONTENT_TYPE_WATERMARK, CommitId, CommitTime, Event, Incarnation, PartitionId, Topic, Watermark};
use prost::Message;
use sink::{Effects, Followed, Limits, Polled, row_of};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

pub const LIMITS: Limits = Limits {
    rows_max: 1000,
    bytes_max: 1 << 20,
    flush_after: Duration::from_millis(200),
    flush_after_few: Duration::from_secs(1),
    rows_few: 100,
    store_check_every: Duration::from_secs(10),
};

pub fn partition(region: &str, partition: u16) -> PartitionId {
    PartitionId { topic: Topic { region: region.into(), generation: 1 }, partition }
}

pub fn event(region: &str, number: u64) -> Event {
    Event {
        tenant: "acme".into(),
        source: "/test".into(),
        id: format!("{region}-{number}"),
        r#type: "com.meridian.order.v1".into(),
        data: Bytes::from(format!(r#"{{"amount":"{number}.5"}}"#)),
        origin: region.into(),
        commit_id: Bytes::copy_from_slice(&CommitId::of_row(CommitTime(1_000_000 + number), Incarnation::from_random(7)).to_bytes()),
        payload_hash: Bytes::from(vec![number as u8; 32]),
        accepted_us: 1_000_000 + number,
        ..Event::default()
    }
}

/// One record as it stands in a log.
#[derive(Clone, Debug)]
pub struct Entry {
    pub partition: PartitionId,
    pub offset: u64,
    pub content_type: &'static str,
    pub value: Bytes,
}

/// What a store keeps.
#[derive(Debug, Default)]
pub struct Store {
    pub id: String,
    /// Log positions of the rows, as the rows state them.
    pub rows: BTreeSet<(String, u16, u64)>,
    pub inserts: Vec<(u64, usize)>,
    pub positions: BTreeMap<(String, u16), PositionRow>,
    pub parked: BTreeMap<(String, u16, u64), ParkedRow>,
}

/// A deployment's part around one sink.
#[derive(Default)]
pub struct World {
    pub log: Mutex<BTreeMap<PartitionId, Vec<Entry>>>,
    pub store: Mutex<Store>,
    pub letters: Mutex<Vec<DeadLetter>>,
    /// Told of each insert before (`false`) and after (`true`) its rows are stored; an error fails the call there.
    pub insert_fault: Mutex<Option<Fault>>,
    pub save_fault: Mutex<Option<Fault>>,
    pub batch_records: usize,
}

pub type Fault = Box<dyn FnMut(bool) -> Result<()> + Send>;

/// One sink's reading place.
struct Reader {
    world: Arc<World>,
    at: Mutex<BTreeMap<PartitionId, u64>>,
}

impl World {
    pub fn new(id: &str) -> Arc<Self> {
        let store = Store { id: id.into(), ..Store::default() };
        Arc::new(Self { store: Mutex::new(store), batch_records: 50, ..Self::default() })
    }

    pub fn append(&self, partition: &PartitionId, content_type: &'static str, value: Bytes) -> u64 {
        let mut log = self.log.lock().unwrap();
        let entries = log.entry(partition.clone()).or_default();
        let offset = entries.len() as u64;
        entries.push(Entry { partition: partition.clone(), offset, content_type, value });
        offset
    }

    pub fn append_events(&self, region: &str, numbers: std::ops::Range<u64>) {
        for number in numbers {
            self.append(&partition(region, (number % 2) as u16), CONTENT_TYPE_EVENT, event(region, number).encode_to_vec().into());
        }
    }

    pub fn append_watermark(&self, region: &str, from_us: u64, through_us: u64) {
        for lane in 0..2_u16 {
            let watermark =
                Watermark { region: region.into(), generation: 1, partition: lane.into(), from_us, through_us, ..Watermark::default() };
            self.append(&partition(region, lane), CONTENT_TYPE_WATERMARK, watermark.encode_to_vec().into());
        }
    }

    pub fn effects(self: &Arc<Self>) -> Effects {
        let reader = Arc::new(Reader { world: Arc::clone(self), at: Mutex::default() });
        let (letters, start) = (Arc::clone(self), tokio::time::Instant::now());
        Effects {
            load_positions: bind(self, load_positions),
            start_following: bind(&reader, start_following),
            poll_batch: bind(&reader, poll_batch),
            insert_block: bind(self, insert_block),
            save_positions: bind(self, save_positions),
            dead_letter: effect(move |letter| {
                letters.letters.lock().unwrap().push(letter);
                async { Ok(()) }
            }),
            host_time: effect(move |()| async move { Ok(CommitTime(2_000_000 + start.elapsed().as_micros() as u64)) }),
        }
    }

    /// The promise: below every stated position each record is a row, a parked record or a watermark.
    pub fn assert_positions_are_true(&self) {
        let (log, store, letters) = (self.log.lock().unwrap(), self.store.lock().unwrap(), self.letters.lock().unwrap());
        for row in store.positions.values() {
            for entry in log.get(&partition(&row.origin, row.partition)).into_iter().flatten() {
                let place = (row.origin.clone(), row.partition, entry.offset);
                let dead =
                    letters.iter().any(|letter| letter.position.partition == entry.partition && letter.position.offset == entry.offset);
                let kept = store.rows.contains(&place)
                    || (store.parked.contains_key(&place) && dead)
                    || entry.content_type == CONTENT_TYPE_WATERMARK && Watermark::decode(entry.value.clone()).is_ok();
                assert!(entry.offset >= row.next_offset || kept, "a position was stated over {place:?}, which is not stored");
            }
        }
    }

    pub fn stored(&self) -> usize {
        self.store.lock().unwrap().rows.len()
    }

    pub fn next_offsets(&self) -> Vec<u64> {
        self.store.lock().unwrap().positions.values().map(|row| row.next_offset).collect()
    }
}

async fn load_positions(world: Arc<World>, (): ()) -> Result<Positions> {
    let store = world.store.lock().unwrap();
    let rows = store.positions.values().cloned().collect();
    Ok(Positions { store: store.id.clone(), rows })
}

async fn start_following(reader: Arc<Reader>, rows: Vec<PositionRow>) -> Result<Vec<Followed>> {
    let ids: Vec<PartitionId> = reader.world.log.lock().unwrap().keys().cloned().collect();
    let next = |id: &PartitionId| row_of(&rows, id).map_or(0, |row| row.next_offset);
    *reader.at.lock().unwrap() = ids.iter().map(|id| (id.clone(), next(id))).collect();
    Ok(ids.into_iter().map(|id| Followed { id, partitions: 2 }).collect())
}

async fn poll_batch(reader: Arc<Reader>, (): ()) -> Result<Polled> {
    for _ in 0..50 {
        let batch = next_batch(&reader);
        if !batch.is_empty() {
            // Before it is taken, so that a dropped poll loses nothing.
            return Ok(Polled::Records(batch));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(Polled::Records(Batch::empty()))
}

fn next_batch(reader: &Reader) -> Batch {
    let (log, mut at) = (reader.world.log.lock().unwrap(), reader.at.lock().unwrap());
    let mut left = reader.world.batch_records;
    let mut taken = Vec::new();
    for (id, next) in at.iter_mut() {
        let waiting = log[id].iter().skip_while(|entry| entry.offset < *next).take(left);
        let before = taken.len();
        taken.extend(waiting);
        left -= taken.len() - before;
        *next = taken.last().filter(|_| taken.len() > before).map_or(*next, |entry| entry.offset + 1);
    }
    Batch::of(taken.iter().map(|entry| Record {
        partition: &entry.partition,
        local_offset: entry.offset,
        offset: entry.offset,
        relayed_ms: 1,
        appended_ms: 2,
        kind: Kind::of(entry.content_type),
        content_type: entry.content_type,
        value: &entry.value,
    }))
}

fn fault(slot: &Mutex<Option<Fault>>, stored: bool) -> Result<()> {
    slot.lock().unwrap().as_mut().map_or(Ok(()), |fault| fault(stored))
}

async fn insert_block(world: Arc<World>, block: InsertBlock) -> Result<()> {
    tokio::time::sleep(Duration::from_millis(5)).await;
    fault(&world.insert_fault, false)?;
    let rows = read_rows(&block.rows)?;
    assert_eq!(rows.len() as u64, block.count);
    {
        let mut store = world.store.lock().unwrap();
        store.inserts.push((block.count, block.rows.len()));
        store.rows.extend(rows.into_iter().map(|row| (row.log_region, row.log_partition, row.log_offset)));
    }
    fault(&world.insert_fault, true)
}

async fn save_positions(world: Arc<World>, progress: SaveProgress) -> Result<()> {
    tokio::time::sleep(Duration::from_millis(5)).await;
    fault(&world.save_fault, false)?;
    {
        let mut store = world.store.lock().unwrap();
        for row in progress.parked {
            store.parked.insert((row.origin.clone(), row.partition, row.offset), row);
        }
        for row in progress.positions {
            let key = (row.origin.clone(), row.partition);
            let further = store.positions.get(&key).is_some_and(|known| known.next_offset > row.next_offset);
            if row.store == store.id && !further {
                store.positions.insert(key, row);
            }
        }
    }
    world.assert_positions_are_true();
    fault(&world.save_fault, true)
}

/// A row as ClickHouse reads it.
#[derive(Debug, Default, PartialEq)]
pub struct Row {
    pub event: Event,
    pub time_us: i64,
    pub time_given: bool,
    pub log_region: String,
    pub log_generation: u32,
    pub log_partition: u16,
    pub log_offset: u64,
}

/// Reads RowBinary in the order of `sink::COLUMNS`, by the format's definition.
pub fn read_rows(bytes: &[u8]) -> Result<Vec<Row>> {
    let mut rest = bytes;
    let mut rows = Vec::new();
    while !rest.is_empty() {
        rows.push(read_row(&mut rest)?);
    }
    Ok(rows)
}

fn read_row(rest: &mut &[u8]) -> Result<Row> {
    let mut row = Row::default();
    let event = &mut row.event;
    (event.tenant, event.source, event.id) = (text(rest)?, text(rest)?, text(rest)?);
    event.commit_id = Bytes::copy_from_slice(&u128::from_le_bytes(fixed(rest)?).to_be_bytes());
    event.payload_hash = Bytes::copy_from_slice(&fixed::<32>(rest)?);
    (event.origin, event.r#type) = (text(rest)?, text(rest)?);
    let some = |text: String| (!text.is_empty()).then_some(text);
    event.subject = some(text(rest)?);
    row.time_us = i64::from_le_bytes(fixed(rest)?);
    row.time_given = fixed::<1>(rest)?[0] == 1;
    event.time_us = row.time_given.then_some(row.time_us);
    (event.data_content_type, event.data_schema) = (some(text(rest)?), some(text(rest)?));
    event.data = Bytes::copy_from_slice(span(rest)?);
    for _ in 0..length(rest)? {
        event.extensions.insert(text(rest)?, text(rest)?);
    }
    event.key_id = text(rest)?;
    event.accepted_us = u64::from_le_bytes(fixed(rest)?);
    row.log_region = text(rest)?;
    row.log_generation = u32::from_le_bytes(fixed(rest)?);
    row.log_partition = u16::from_le_bytes(fixed(rest)?);
    row.log_offset = u64::from_le_bytes(fixed(rest)?);
    Ok(row)
}

fn length(rest: &mut &[u8]) -> Result<usize> {
    let (mut value, mut shift) = (0, 0);
    loop {
        let [byte] = fixed(rest)?;
        value |= usize::from(byte & 0x7f) << shift;
        shift += 7;
        if byte < 0x80 {
            return Ok(value);
        }
    }
}

fn fixed<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N]> {
    let Some((head, tail)) = rest.split_first_chunk::<N>() else { bail!("cut short") };
    *rest = tail;
    Ok(*head)
}

fn span<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8]> {
    let length = length(rest)?;
    let Some((head, tail)) = rest.split_at_checked(length) else { bail!("cut short") };
    *rest = tail;
    Ok(head)
}

fn text(rest: &mut &[u8]) -> Result<String> {
    Ok(String::from_utf8(span(rest)?.to_vec())?)
}
