//! Logs in memory, and effects over them.
#![allow(dead_code)]

use adapters::redpanda::{Batch, DeadLetter, Kind, OutRecord, Record};
use anyhow::{Result, bail};
use bytes::Bytes;
use futures::{StreamExt, stream};
use kit::{effect, health::Health, shutdown::CancellationToken};
use meridian_proto::{CONTENT_TYPE_EVENT, CommitTime, Origin, PartitionId};
use mirror::{Appended, Ask, Effects, Frames, Limits, LocalTail, Opened, Place, Received, frames_of, last_of_tail, wire::v1::Frame};
use std::{
    borrow::Cow,
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};

/// Largest value that a fake log takes.
pub const VALUE_BYTES_MAX: usize = 1000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub content_type: String,
    pub value: Bytes,
    pub origin: Option<Origin>,
    pub append_time_ms: i64,
}

#[derive(Default)]
struct Partition {
    /// Offset of the first record kept.
    low: u64,
    records: Vec<Stored>,
}

/// A region's log.
#[derive(Default)]
pub struct Log {
    partitions: Mutex<BTreeMap<PartitionId, Partition>>,
    pub letters: Mutex<Vec<DeadLetter>>,
    grown: Notify,
    /// So many of the next appends fail after they took half of what they were given.
    pub failing_appends: AtomicUsize,
    clock: AtomicUsize,
}

pub fn partition(region: &str, partition: u16) -> PartitionId {
    PartitionId { topic: format!("events.{region}.g1").parse().unwrap(), partition }
}

impl Log {
    pub fn with(partitions: &[PartitionId]) -> Arc<Self> {
        let log = Self::default();
        log.partitions.lock().unwrap().extend(partitions.iter().map(|partition| (partition.clone(), Partition::default())));
        Arc::new(log)
    }

    pub fn put(&self, partition: &PartitionId, content_type: &str, value: &[u8], origin: Option<Origin>) {
        let mut partitions = self.partitions.lock().unwrap();
        let append_time_ms = self.clock.fetch_add(1, Ordering::Relaxed) as i64 + 1;
        let stored = Stored { content_type: content_type.into(), value: Bytes::copy_from_slice(value), origin, append_time_ms };
        partitions.get_mut(partition).expect("a known partition").records.push(stored);
        drop(partitions);
        self.grown.notify_waiters();
    }

    /// Events whose values are their numbers.
    pub fn put_events(&self, partition: &PartitionId, numbers: std::ops::Range<u64>) {
        numbers.for_each(|number| self.put(partition, CONTENT_TYPE_EVENT, number.to_string().as_bytes(), None));
    }

    /// Forgets the records below `low`.
    pub fn trim(&self, partition: &PartitionId, low: u64) {
        let mut partitions = self.partitions.lock().unwrap();
        let kept = partitions.get_mut(partition).expect("a known partition");
        kept.records.drain(..(low - kept.low) as usize);
        kept.low = low;
    }

    pub fn records(&self, partition: &PartitionId) -> Vec<Stored> {
        self.partitions.lock().unwrap()[partition].records.clone()
    }

    /// The origin offsets of a copy, in its order.
    pub fn origins(&self, partition: &PartitionId) -> Vec<u64> {
        self.records(partition).iter().map(|stored| stored.origin.map_or(u64::MAX, |origin| origin.offset)).collect()
    }

    pub fn bounds(&self, partition: &PartitionId) -> (u64, u64) {
        let partitions = self.partitions.lock().unwrap();
        let kept = &partitions[partition];
        (kept.low, kept.low + kept.records.len() as u64)
    }

    /// Own records from an offset on.
    fn batch(&self, partition: &PartitionId, from: u64, count: usize) -> Batch {
        let partitions = self.partitions.lock().unwrap();
        let kept = &partitions[partition];
        let records = kept.records.iter().enumerate().skip((from - kept.low) as usize).take(count);
        Batch::of(records.map(|(index, stored)| Record {
            partition,
            local_offset: kept.low + index as u64,
            offset: kept.low + index as u64,
            relayed_ms: stored.append_time_ms,
            appended_ms: stored.append_time_ms,
            kind: Kind::of(&stored.content_type),
            content_type: &stored.content_type,
            value: &stored.value,
        }))
    }

    fn append(&self, records: &[OutRecord]) {
        for OutRecord { partition, content_type, value, origin } in records {
            self.put(partition, content_type, value, *origin);
        }
    }

    async fn grow(&self) {
        _ = tokio::time::timeout(Duration::from_millis(20), self.grown.notified()).await;
    }
}

pub async fn read_local_log(log: Arc<Log>, places: Vec<Place>) -> Result<Opened> {
    for place in &places {
        let (low, high) = log.bounds(&place.partition);
        if !(low..=high).contains(&place.next) {
            return Ok(Opened::OutOfRange { place: place.clone(), low, high });
        }
    }
    let places = Arc::new(tokio::sync::Mutex::new(places));
    let tail: LocalTail = effect(move |()| {
        let (places, log) = (Arc::clone(&places), Arc::clone(&log));
        async move {
            let (mut places, deadline) = (places.lock().await, Instant::now() + Duration::from_millis(900));
            loop {
                let mut frames = Vec::new();
                for place in places.iter_mut() {
                    let batch = log.batch(&place.partition, place.next, 100);
                    place.next += batch.len() as u64;
                    frames.extend(frames_of(&batch, 1 << 10));
                }
                if !frames.is_empty() || Instant::now() > deadline {
                    return Ok(frames);
                }
                log.grow().await;
            }
        }
    });
    Ok(Opened::Tail(tail))
}

pub async fn append_local_log(log: Arc<Log>, records: Vec<OutRecord>) -> Result<Appended> {
    tokio::time::sleep(Duration::from_millis(1)).await;
    if let Some(large) = records.iter().find(|record| record.value.len() > VALUE_BYTES_MAX) {
        return Ok(Appended::Refused { reason: format!("too large: {}", large.value.len()) });
    }
    if log.failing_appends.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
        log.append(&records[..records.len() / 2]);
        bail!("the broker went away");
    }
    log.append(&records);
    Ok(Appended::All)
}

pub async fn last_mirrored(log: Arc<Log>, region: String) -> Result<Vec<Place>> {
    let partitions: Vec<_> = log.partitions.lock().unwrap().keys().filter(|partition| partition.topic.region == region).cloned().collect();
    let place = |partition: PartitionId| {
        let tail: Vec<_> = log.records(&partition).iter().map(|stored| stored.origin.map(|origin| origin.offset)).collect();
        let last = last_of_tail(&tail).last;
        Place { partition, next: last.map_or(0, |last| last + 1), empty: last.is_none(), as_of_ms: 0 }
    };
    Ok(partitions.into_iter().map(place).collect())
}

async fn park_record(log: Arc<Log>, letter: DeadLetter) -> Result<()> {
    log.letters.lock().unwrap().push(letter);
    Ok(())
}

/// A peer without a network: its log, and what is done to its frames.
pub struct Peer {
    pub log: Arc<Log>,
    /// Called with the number of the stream and each frame: `None` ends the stream.
    pub fault: Box<dyn Fn(usize, Frame) -> Option<Vec<Frame>> + Send + Sync>,
    pub streams: AtomicUsize,
}

impl Peer {
    pub fn new(log: &Arc<Log>, fault: impl Fn(usize, Frame) -> Option<Vec<Frame>> + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { log: Arc::clone(log), fault: Box::new(fault), streams: AtomicUsize::new(0) })
    }
}

pub async fn receive_frames(peer: Arc<Peer>, ask: Ask) -> Result<Received> {
    let number = peer.streams.fetch_add(1, Ordering::Relaxed);
    let tail = match read_local_log(Arc::clone(&peer.log), ask.from).await? {
        Opened::Tail(tail) => tail,
        Opened::OutOfRange { place, low, high } => {
            return Ok(Received::OutOfRange { partition: place.partition, asked: place.next, low, high });
        }
    };
    let frames = stream::unfold((tail, peer, false), move |(tail, peer, ended)| async move {
        if ended {
            return None;
        }
        let frames = match tail(()).await {
            Ok(frames) if frames.is_empty() => vec![Frame::default()],
            Ok(frames) => frames,
            Err(error) => return Some((vec![Err(error)], (tail, peer, true))),
        };
        let mut changed = Vec::new();
        for frame in frames {
            match (peer.fault)(number, frame) {
                Some(frames) => changed.extend(frames.into_iter().map(Ok)),
                None => return Some((changed, (tail, peer, true))),
            }
        }
        Some((changed, (tail, peer, false)))
    });
    let frames: Frames = frames.flat_map(stream::iter).boxed();
    Ok(Received::Following(frames))
}

/// Effects over the log of the region that is tested; `send_frames` and `receive_frames` are set by the test.
pub fn effects(local: &Arc<Log>) -> Effects {
    Effects {
        read_local_log: kit::bind(local, read_local_log),
        send_frames: kit::unused("send_frames"),
        receive_frames: kit::unused("receive_frames"),
        append_local_log: kit::bind(local, append_local_log),
        last_mirrored: kit::bind(local, last_mirrored),
        park_record: kit::bind(local, park_record),
        host_time: effect(|()| async { Ok(CommitTime(1_000_000)) }),
    }
}

/// A receiver at work, until it is dropped.
pub struct Running {
    pub shutdown: CancellationToken,
    task: tokio::task::JoinHandle<Result<()>>,
}

impl Running {
    pub fn receiver(local: &Arc<Log>, peer: &Arc<Peer>, region: &str) -> Self {
        let effects = Effects { receive_frames: kit::bind(peer, receive_frames), ..effects(local) };
        let shutdown = CancellationToken::new();
        let work = mirror::receive(effects, Arc::new(Limits::default()), region.into(), Health::of(&["log"]), shutdown.clone());
        Self { shutdown, task: tokio::spawn(work) }
    }

    pub async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.unwrap().unwrap();
    }
}

/// Waits, in the test's time, until it holds.
pub async fn eventually(what: &str, seconds: u64, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not within {seconds} s");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Content type of a record as a test writes it.
pub fn content_type(text: &'static str) -> Cow<'static, str> {
    Cow::Borrowed(text)
}
