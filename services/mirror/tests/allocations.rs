//! What a copied record costs in allocations of ours: nothing each, a handful a frame.
#![allow(unsafe_code, clippy::unwrap_used)]

use anyhow::Result;
use futures::{StreamExt, stream};
use kit::{effect, health::Health, shutdown::CancellationToken, unused};
use meridian_proto::{CommitTime, PartitionId};
use mirror::{
    Appended, Effects, Place, Received,
    wire::v1::{Frame, KnownContentType, Record},
};
use prost::Message;
use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::sync::Notify;

struct Counting;
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const FRAMES: u64 = 200;
const RECORDS: u64 = 1000;

fn encoded(partition: &PartitionId) -> Vec<bytes::Bytes> {
    let record = |_| Record { value: vec![b'x'; 200].into(), known: KnownContentType::Event.into(), ..Record::default() };
    let frame = |number: u64| Frame {
        topic: partition.topic.to_string(),
        first_offset: number * RECORDS,
        records: (0..RECORDS).map(record).collect(),
        ..Frame::default()
    };
    (0..FRAMES).map(|number| frame(number).encode_to_vec().into()).collect()
}

#[tokio::test]
async fn a_record_costs_no_allocation() {
    let partition = PartitionId { topic: "events.iad.g1".parse().unwrap(), partition: 0 };
    let frames = Arc::new(encoded(&partition));
    let (appended, whole) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let (counted, done) = (Arc::clone(&appended), Arc::clone(&whole));
    let effects = Effects {
        read_local_log: unused("read_local_log"),
        send_frames: unused("send_frames"),
        receive_frames: effect(move |_| {
            let frames = Arc::clone(&frames);
            let decoded = (0..frames.len()).map(move |index| Frame::decode(frames[index].clone()).map_err(Into::into));
            async move { Ok(Received::Following(stream::iter(decoded).chain(stream::pending()).boxed())) }
        }),
        append_local_log: effect(move |records: Vec<_>| {
            if counted.fetch_add(records.len(), Ordering::Relaxed) + records.len() == (FRAMES * RECORDS) as usize {
                done.notify_one();
            }
            async move { Ok(Appended::All) }
        }),
        last_mirrored: effect(move |_| {
            let partition = partition.clone();
            async move { Ok(vec![Place { partition, next: 0, empty: true, as_of_ms: 0 }]) as Result<_> }
        }),
        park_record: unused("park_record"),
        host_time: effect(|()| async { Ok(CommitTime(1)) }),
    };
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    let shutdown = CancellationToken::new();
    let work = tokio::spawn(mirror::receive(effects, Arc::default(), "iad".into(), Health::default(), shutdown.clone()));
    whole.notified().await;
    let each = (ALLOCATIONS.load(Ordering::Relaxed) - before) as f64 / (FRAMES * RECORDS) as f64;
    shutdown.cancel();
    work.await.unwrap().unwrap();
    println!("{each:.4} allocations a record");
    assert!(each < 0.05, "{each} allocations a record");
}
