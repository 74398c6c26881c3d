//! Cost of encoding, in a process of its own: nothing is allocated per event. Times are printed, never asserted.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use meridian_proto::{CommitId, CommitTime, Event, Incarnation, PartitionId, Topic};
use prost::Message;
use sink::Block;
use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering},
    time::Instant,
};

struct Counting;

static CALLS: AtomicUsize = AtomicUsize::new(0);

#[allow(unsafe_code)]
// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const ROWS: u64 = 100_000;

fn record(number: u64) -> Vec<u8> {
    let event = Event {
        tenant: format!("tenant-{:02}", number % 20),
        source: "/load/fra".into(),
        id: format!("{number:024x}"),
        r#type: "com.meridian.order.v1".into(),
        subject: Some(format!("customer-{}", number % 1000)),
        time_us: Some(1_700_000_000_000_000 + number as i64),
        data: format!(
            r#"{{"amount":"{}.25","currency":"EUR","lines":[{{"sku":"a-{number}","n":1}}],"pad":"{}"}}"#,
            number,
            "x".repeat(120)
        )
        .into(),
        extensions: [("region".to_owned(), "fra".to_owned())].into(),
        origin: "fra".into(),
        commit_id: Bytes::copy_from_slice(
            &CommitId::of_row(CommitTime(1_700_000_000_000_000 + number), Incarnation::from_random(3)).to_bytes(),
        ),
        payload_hash: Bytes::from_static(&[7; 32]),
        trace_parent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into(),
        accepted_us: 1_700_000_000_000_000 + number,
        ..Event::default()
    };
    event.encode_to_vec()
}

#[test]
fn encoding_allocates_nothing_per_event() {
    let place = PartitionId { topic: Topic { region: "fra".into(), generation: 1 }, partition: 3 };
    let records: Vec<Vec<u8>> = (0..ROWS).map(record).collect();
    let mut block = Block::default();
    let mut best = f64::MAX;
    for round in 0..10 {
        let (calls, started) = (CALLS.load(Ordering::Relaxed), Instant::now());
        for (offset, value) in records.iter().enumerate() {
            block.push(&place, offset as u64, value).unwrap();
        }
        best = best.min(started.elapsed().as_secs_f64() / ROWS as f64 * 1e6);
        let calls = CALLS.load(Ordering::Relaxed) - calls;
        let taken = block.take();
        let bytes = taken.rows.len();
        block.recycle(taken.rows);
        // The first block grows the buffer by doubling; the next ones use it again.
        let allowed = if round == 0 { 64 } else { 2 };
        assert!(calls <= allowed, "round {round}: {calls} allocations for {ROWS} events");
        if round == 9 {
            println!(
                "{best:.3} µs per event of {} bytes ({} bytes as a row), {calls} allocations per {ROWS} events",
                records[0].len(),
                bytes as u64 / ROWS
            );
        }
    }
}
