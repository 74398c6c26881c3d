//! A region's log in memory.

use crate::Effects;
use adapters::redpanda::{Batch, Bounds, Kind, ReadSpan, Record, StartAt};
use anyhow::{Result, bail};
use kit::{Effect, effect, unused};
use meridian_proto::{CONTENT_TYPE_EVENT, CONTENT_TYPE_WATERMARK, CommitTime, Event, PartitionId, Topic, partition_of};
use prost::Message;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{sync::Notify, time::timeout};

#[derive(Clone)]
pub struct Stored {
    pub offset: u64,
    pub content_type: &'static str,
    pub value: Vec<u8>,
}

#[derive(Default)]
pub struct FakePartition {
    pub low: u64,
    pub records: Vec<Stored>,
}

#[derive(Default)]
pub struct FakeLog {
    pub partitions: Mutex<BTreeMap<PartitionId, FakePartition>>,
    changed: Notify,
}

impl FakeLog {
    pub fn of(regions: &[&str]) -> Arc<Self> {
        let log = Self::default();
        for region in regions {
            for partition in 0..meridian_proto::PARTITIONS {
                let topic = Topic { region: (*region).into(), generation: 1 };
                log.partitions.lock().unwrap().insert(PartitionId { topic, partition }, FakePartition::default());
            }
        }
        Arc::new(log)
    }

    /// Appends bytes at the next origin offset.
    pub fn append(&self, partition: &PartitionId, content_type: &'static str, value: Vec<u8>) {
        let offset = self.ends()[partition];
        self.append_at(partition, Stored { offset, content_type, value });
    }

    pub fn append_at(&self, partition: &PartitionId, record: Stored) {
        self.partitions.lock().unwrap().get_mut(partition).unwrap().records.push(record);
        self.changed.notify_waiters();
    }

    pub fn post(&self, region: &str, tenant: &str, id: &str) {
        self.post_bytes(region, tenant, id, 10);
    }

    pub fn post_bytes(&self, region: &str, tenant: &str, id: &str, bytes: usize) {
        let event = Event {
            tenant: tenant.into(),
            source: "/test".into(),
            id: id.into(),
            r#type: "t".into(),
            subject: Some(id.into()),
            origin: region.into(),
            commit_id: vec![0; 16].into(),
            payload_hash: vec![0; 32].into(),
            data: format!("\"{}\"", "x".repeat(bytes)).into(),
            ..Event::default()
        };
        let topic = Topic { region: region.into(), generation: 1 };
        let partition = PartitionId { topic, partition: partition_of(tenant, Some(id)) };
        self.append(&partition, CONTENT_TYPE_EVENT, event.encode_to_vec());
    }

    pub fn watermarks(&self, region: &str) {
        for (partition, _) in self.ends().into_iter().filter(|(id, _)| id.topic.region == region) {
            self.append(&partition, CONTENT_TYPE_WATERMARK, vec![1, 2, 3]);
        }
    }

    /// One past the newest origin offset, by partition.
    pub fn ends(&self) -> BTreeMap<PartitionId, u64> {
        let partitions = self.partitions.lock().unwrap();
        let end = |log: &FakePartition| {
            log.records
                .iter()
                .map(|record| record.offset)
                .filter(|offset| *offset != Record::UNKNOWN_ORIGIN)
                .max()
                .map_or(0, |last| last + 1)
        };
        partitions.iter().map(|(id, log)| (id.clone(), end(log))).collect()
    }

    /// Forgets the oldest records of every partition.
    pub fn trim(&self, records: usize) {
        for log in self.partitions.lock().unwrap().values_mut() {
            let count = records.min(log.records.len());
            log.records.drain(..count);
            log.low += count as u64;
        }
    }

    fn bounds(&self, id: &PartitionId) -> Bounds {
        let partitions = self.partitions.lock().unwrap();
        let log = &partitions[id];
        Bounds { low: log.low, high: log.low + log.records.len() as u64 }
    }

    fn find(&self, id: &PartitionId, offset: u64) -> u64 {
        let partitions = self.partitions.lock().unwrap();
        let log = &partitions[id];
        let known = |record: &Stored| record.offset != Record::UNKNOWN_ORIGIN && record.offset >= offset;
        log.low + log.records.iter().position(known).unwrap_or(log.records.len()) as u64
    }

    fn read(&self, spans: &[(PartitionId, u64, usize, usize)]) -> Result<Batch> {
        let partitions = self.partitions.lock().unwrap();
        let mut records = Vec::new();
        for (id, from, records_max, bytes_max) in spans {
            let log = &partitions[id];
            let Some(skip) = from.checked_sub(log.low) else { bail!("offset {from} of {id} is not kept") };
            let mut bytes = 0;
            for (index, stored) in log.records.iter().enumerate().skip(skip as usize).take(*records_max) {
                if bytes >= *bytes_max {
                    break;
                }
                bytes += stored.value.len();
                records.push(Record {
                    partition: id,
                    local_offset: log.low + index as u64,
                    offset: stored.offset,
                    relayed_ms: 1000 + stored.offset as i64,
                    appended_ms: 2000 + stored.offset as i64,
                    kind: Kind::of(stored.content_type),
                    content_type: stored.content_type,
                    value: &stored.value,
                });
            }
        }
        Ok(Batch::of(records))
    }

    fn tail(self: Arc<Self>, starts: Vec<(PartitionId, StartAt)>) -> Effect<(), Batch> {
        let place = |(id, start): (PartitionId, StartAt)| {
            let bounds = self.bounds(&id);
            let local = match start {
                StartAt::Oldest => bounds.low,
                StartAt::Latest => bounds.high,
                StartAt::Offset { next, .. } => self.find(&id, next),
            };
            (id, local)
        };
        let places: Arc<Mutex<BTreeMap<PartitionId, u64>>> = Arc::new(Mutex::new(starts.into_iter().map(place).collect()));
        effect(move |()| {
            let (log, places) = (Arc::clone(&self), Arc::clone(&places));
            async move {
                let deadline = tokio::time::Instant::now() + Duration::from_secs(1);
                loop {
                    let mut changed = std::pin::pin!(log.changed.notified());
                    changed.as_mut().enable();
                    let spans: Vec<_> = places.lock().unwrap().iter().map(|(id, from)| (id.clone(), *from, 50, usize::MAX)).collect();
                    let batch = log.read(&spans)?;
                    for record in batch.iter() {
                        places.lock().unwrap().insert(record.partition.clone(), record.local_offset + 1);
                    }
                    if !batch.is_empty() || tokio::time::timeout_at(deadline, changed).await.is_err() {
                        return Ok(batch);
                    }
                }
            }
        })
    }
}

pub fn effects(log: &Arc<FakeLog>) -> Effects {
    let of = || Arc::clone(log);
    let (listed, tailed, bounded, read, found) = (of(), of(), of(), of(), of());
    Effects {
        list_partitions: effect(move |()| {
            let names = listed.ends().into_keys().collect();
            async { Ok(names) }
        }),
        tail_log: effect(move |starts| {
            let tail = Arc::clone(&tailed).tail(starts);
            async { Ok(tail) }
        }),
        log_bounds: effect(move |id| {
            let bounds = bounded.bounds(&id);
            async move { Ok(bounds) }
        }),
        read_log_page: effect(move |span: ReadSpan| {
            let batch = read.read(&[(span.partition, span.from_local, span.records_max, span.bytes_max)]);
            async move { batch }
        }),
        find_position: effect(move |(id, offset)| {
            let local = found.find(&id, offset);
            async move { Ok(local) }
        }),
        send_signal: unused("send_signal"),
        host_time: effect(|()| async { Ok(CommitTime(3_000_000)) }),
    }
}

#[tokio::test(start_paused = true)]
async fn the_fake_waits_as_the_log_does() {
    let log = FakeLog::of(&["fra"]);
    let next = Arc::clone(&log).tail(vec![(super::partition("fra", 0), StartAt::Oldest)]);
    assert!(next(()).await.unwrap().is_empty());
    let waiting = tokio::spawn(next(()));
    tokio::task::yield_now().await;
    log.append(&super::partition("fra", 0), "text/plain", vec![]);
    let batch = timeout(Duration::from_millis(1), waiting).await.unwrap().unwrap().unwrap();
    assert_eq!(batch.len(), 1);
}
