//! Allocations of ours per record, on the way into the log and out of it, and what a follower holds of a backlog: at
//! `MERIDIAN_KAFKA_ADDRESS`.
#![allow(clippy::unwrap_used)]
#![allow(unsafe_code)]

use adapters::redpanda::{FollowSpec, Follower, OutRecord, Publisher, RedpandaConfig, StartAt, TopicSettings, create_topics};
use bytes::Bytes;
use meridian_proto::{Origin, PartitionId, Topic};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Resident memory of this process: proc_pid_statm(5), second field, in pages of 4 KiB.
fn resident_mib() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<f64>().unwrap() / 256.0
}

const RECORDS: usize = 400_000;
const BATCH: usize = 1_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_costs_no_allocation_in_publisher_and_follower() {
    let address = kit::config::variable("MERIDIAN_KAFKA_ADDRESS").expect("MERIDIAN_KAFKA_ADDRESS names a broker");
    let config = RedpandaConfig { address, client_id: "live-tests".into() };
    let topic = Topic { region: format!("a{:08x}", rand::random::<u32>()), generation: 1 };
    let settings = TopicSettings { name: topic.to_string(), partitions: 4, replication: 1, settings: BTreeMap::new() };
    create_topics(&config, &[settings]).await.unwrap();
    let ids: Vec<_> = (0..4).map(|partition| Arc::new(PartitionId { topic: topic.clone(), partition })).collect();
    let value = Bytes::from(vec![b'x'; 200]);
    let publisher = Publisher::connect(&config).await.unwrap();
    let batch = |start: usize| -> Vec<OutRecord> {
        let record = |k: usize| OutRecord {
            origin: Some(Origin { offset: (k / 4) as u64, append_time_ms: 1 }),
            ..OutRecord::event(&ids[k % 4], value.clone())
        };
        (start..start + BATCH).map(record).collect()
    };
    Arc::clone(&publisher).publish(batch(0)).await.unwrap();

    let (before, started) = (ALLOCATIONS.load(Relaxed), Instant::now());
    for start in (BATCH..RECORDS).step_by(BATCH) {
        Arc::clone(&publisher).publish(batch(start)).await.unwrap();
    }
    let published = (RECORDS - BATCH) as f64;
    let per_published = (ALLOCATIONS.load(Relaxed) - before) as f64 / published;
    println!("publish: {per_published:.4} allocations a record, {:.0} records/s", published / started.elapsed().as_secs_f64());

    let spec = FollowSpec {
        partitions: ids.iter().map(|id| ((**id).clone(), StartAt::Oldest)).collect(),
        own_region: "own".into(),
        batch_bytes_max: 1 << 20,
        batch_records_max: 4_096,
        linger: Duration::ZERO,
        held_back: Duration::ZERO,
    };
    let before = resident_mib();
    let follower = Follower::start(&config, spec).unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let held_mib = resident_mib() - before;
    println!("a backlog of {} MiB that nobody takes: {held_mib:.1} MiB held", (RECORDS * 200) >> 20);
    assert!(held_mib < 48.0, "{held_mib} MiB");

    let mut seen = Arc::clone(&follower).next_batch(()).await.unwrap().len();
    let (before, started, first) = (ALLOCATIONS.load(Relaxed), Instant::now(), seen);
    let mut bytes = 0;
    while seen < RECORDS {
        let batch = Arc::clone(&follower).next_batch(()).await.unwrap();
        seen += batch.len();
        bytes += batch.iter().map(|record| record.value.len()).sum::<usize>();
    }
    let followed = (RECORDS - first) as f64;
    let per_followed = (ALLOCATIONS.load(Relaxed) - before) as f64 / followed;
    println!("follow: {per_followed:.4} allocations a record, {:.0} records/s", followed / started.elapsed().as_secs_f64());
    assert_eq!((seen, bytes), (RECORDS, (RECORDS - first) * 200));
    assert!(per_published < 0.05 && per_followed < 0.05, "{per_published} {per_followed}");
}
