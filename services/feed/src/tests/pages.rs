//! Pages: nothing skipped, the same from memory and from the log, in any region.

use super::{Bench, FakeLog, fake::Stored, ids_of, partition, small_tail, sorted, zero};
use crate::{Limits, page::PageError};
use adapters::redpanda::Record;
use meridian_proto::{CONTENT_TYPE_EVENT, Cursor, partition_of, partitions_of};
use proptest::prelude::*;
use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

const TENANTS: [&str; 4] = ["acme", "globex", "initech", "umbrella"];

fn interleaved(log: &FakeLog, regions: &[&str], events: usize) {
    for number in 0..events {
        log.post(regions[number % regions.len()], TENANTS[number % 4], &format!("event-{number:05}"));
        if number % 50 == 0 {
            regions.iter().for_each(|region| log.watermarks(region));
        }
    }
}

fn expected(tenant: usize, events: usize) -> Vec<String> {
    (0..events).filter(|number| number % 4 == tenant).map(|number| format!("event-{number:05}")).collect()
}

#[tokio::test(start_paused = true)]
async fn pages_of_any_size_give_what_was_appended() {
    let log = FakeLog::of(&["fra", "iad", "sin"]);
    interleaved(&log, &["fra", "iad", "sin"], 1000);
    for limits in [Limits::STANDARD, small_tail()] {
        let bench = Bench::start(&log, "fra", limits).await;
        for limit in [1, 7, 1000] {
            for (index, tenant) in TENANTS.iter().enumerate() {
                let (ids, cursor) = bench.pull_all(tenant, Cursor::default(), &[limit]).await;
                assert_eq!(sorted(ids), expected(index, 1000), "{tenant} by {limit}");
                let again = bench.feed.page(tenant, &cursor, limit).await.unwrap();
                assert!(again.events.is_empty() && !again.more);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_tail_that_holds_all_of_a_topic_gives_pages_from_its_beginning_without_the_log() {
    let log = FakeLog::of(&["fra"]);
    interleaved(&log, &["fra"], 100);
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let bench = Bench::with(&log, "fra", Limits::STANDARD, |effects| {
        let log_bounds = effects.log_bounds;
        let counted = kit::effect(move |partition| {
            counter.fetch_add(1, Ordering::Relaxed);
            log_bounds(partition)
        });
        crate::Effects { log_bounds: counted, ..effects }
    })
    .await;
    let before = asked.load(Ordering::Relaxed);
    let (ids, _) = bench.pull_all("acme", Cursor::default(), &[10]).await;
    assert_eq!((sorted(ids), asked.load(Ordering::Relaxed)), (expected(0, 100), before));
}

#[tokio::test(start_paused = true)]
async fn an_empty_page_moves_over_all_that_was_looked_at() {
    let log = FakeLog::of(&["fra"]);
    let lane = partition("fra", partitions_of("acme")[0]);
    for _ in 0..5000 {
        log.append(&lane, CONTENT_TYPE_EVENT, b"somebody else's".to_vec());
    }
    for limits in [Limits { tail_start_records: 1_000_000, ..Limits::STANDARD }, small_tail()] {
        let bench = Bench::start(&log, "fra", Limits { scan_records_max: 1000, ..limits }).await;
        let mut cursor = zero("acme", &["fra"]);
        for pages in 1..=5 {
            let page = bench.feed.page("acme", &cursor, 10).await.unwrap();
            assert!(page.events.is_empty() && page.more);
            assert_eq!(page.cursor.next[&lane], pages * 1000);
            cursor = page.cursor;
        }
        assert!(!bench.feed.page("acme", &cursor, 10).await.unwrap().more);
    }
}

/// A copy of `log` as another region may have it: other local offsets, positions that come twice, records of nobody.
fn copy(log: &FakeLog, seed: u64) -> Arc<FakeLog> {
    let copy = FakeLog::default();
    for (index, (id, source)) in log.partitions.lock().unwrap().iter().enumerate() {
        let mut records: Vec<Stored> = Vec::new();
        for (at, record) in source.records.iter().enumerate() {
            let draw = (seed.wrapping_mul(31).wrapping_add((index * 7 + at) as u64)) % 5;
            if draw == 0 {
                records.push(Stored { offset: Record::UNKNOWN_ORIGIN, content_type: "text/plain", value: vec![9] });
            }
            records.push(record.clone());
            if draw == 1 {
                records.extend(source.records[at.saturating_sub(3)..=at].iter().cloned());
            }
        }
        let partition = super::fake::FakePartition { low: seed % 1000 + index as u64, records };
        copy.partitions.lock().unwrap().insert(id.clone(), partition);
    }
    Arc::new(copy)
}

#[tokio::test(start_paused = true)]
async fn a_cursor_moves_between_regions_and_skips_nothing() {
    let log = FakeLog::of(&["fra", "iad"]);
    interleaved(&log, &["fra", "iad"], 800);
    let regions = [
        Bench::start(&log, "fra", Limits::STANDARD).await,
        Bench::start(&copy(&log, 17), "iad", small_tail()).await,
        Bench::start(&copy(&log, 4), "sin", Limits::STANDARD).await,
    ];
    for (index, tenant) in TENANTS.iter().enumerate() {
        let (mut cursor, mut ids, mut at) = (Cursor::default(), Vec::new(), index);
        loop {
            let page = regions[at % 3].feed.page(tenant, &cursor, 9).await.unwrap();
            ids.extend(ids_of(&page));
            cursor = page.cursor;
            at += 1;
            if !page.more {
                break;
            }
        }
        assert_eq!(sorted(ids), expected(index, 800));
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_position_stops_pages_before_it_and_lets_them_go_on_when_it_comes() {
    let log = FakeLog::of(&["iad"]);
    let lane = partition("iad", partition_of("acme", Some("a")));
    log.post("iad", "acme", "a");
    for limits in [Limits::STANDARD, small_tail()] {
        let bench = Bench::start(&log, "fra", limits).await;
        let held = log.partitions.lock().unwrap()[&lane].records[0].clone();
        log.append_at(&lane, Stored { offset: 2, ..held.clone() });
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        let (ids, cursor) = bench.pull_all("acme", zero("acme", &["iad"]), &[10]).await;
        assert_eq!((ids.len(), cursor.next[&lane]), (1, 1));
        log.append_at(&lane, Stored { offset: 1, ..held });
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        let (ids, cursor) = bench.pull_all("acme", cursor, &[10]).await;
        assert_eq!((ids.len(), cursor.next[&lane]), (1, 2));
        log.partitions.lock().unwrap().get_mut(&lane).unwrap().records.truncate(1);
    }
}

#[tokio::test(start_paused = true)]
async fn trimmed_history_is_told_with_the_oldest_position() {
    let log = FakeLog::of(&["fra"]);
    interleaved(&log, &["fra"], 400);
    let bench = Bench::start(&log, "fra", small_tail()).await;
    let page = bench.feed.page("acme", &Cursor::default(), 3).await.unwrap();
    log.trim(20);
    let PageError::Trimmed { oldest, .. } = bench.feed.page("acme", &page.cursor, 100).await.unwrap_err() else { panic!("not trimmed") };
    assert_eq!(oldest, 20);
    let beginning = bench.feed.page("acme", &Cursor::default(), 3).await.unwrap();
    assert_eq!(beginning.events.len(), 3, "a cursor that names nothing begins with what is kept");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_never_blocks() {
    let log = FakeLog::of(&["fra"]);
    let lane = partition("fra", partition_of("acme", Some("1")));
    for (kind, value) in
        [("application/x-unknown", vec![1]), (CONTENT_TYPE_EVENT, vec![0xff; 20]), (CONTENT_TYPE_EVENT, vec![]), ("", vec![0; 9])]
    {
        log.append(&lane, kind, value);
    }
    log.post("fra", "acme", "1");
    for limits in [Limits::STANDARD, small_tail()] {
        let bench = Bench::start(&log, "fra", limits).await;
        let (ids, cursor) = bench.pull_all("acme", zero("acme", &["fra"]), &[1, 5]).await;
        assert_eq!((ids, cursor.next[&lane]), (vec!["1".to_owned()], 5));
    }
}

#[tokio::test(start_paused = true)]
async fn a_position_that_this_region_does_not_know_stays_in_the_cursor() {
    let log = FakeLog::of(&["fra"]);
    interleaved(&log, &["fra"], 40);
    let bench = Bench::start(&log, "fra", Limits::STANDARD).await;
    let mut cursor = Cursor::default();
    let elsewhere = partition("syd", partitions_of("acme")[1]);
    cursor.next.insert(elsewhere.clone(), 77);
    let ahead = partition("fra", partitions_of("acme")[0]);
    cursor.next.insert(ahead.clone(), 1_000_000);
    let page = bench.feed.page("acme", &cursor, 100).await.unwrap();
    assert_eq!((page.cursor.next[&elsewhere], page.cursor.next[&ahead]), (77, 1_000_000));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Whatever is appended, in whatever limits it is pulled: all of it, and each page the same from memory, from the log,
    /// and from another region's copy.
    #[test]
    fn pulled_is_appended_and_a_page_is_a_function_of_cursor_and_limit(
        events in proptest::collection::vec((0usize..2, 0usize..4, 0usize..3000, any::<bool>()), 1..120),
        limits in proptest::collection::vec(1u32..40, 1..6),
        scan in (40usize..200, 300_000usize..400_000), seed in 0u64..1000, tenant in 0usize..4,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let regions = ["fra", "iad"];
            let log = FakeLog::of(&regions);
            let mut want = BTreeSet::new();
            for (number, (region, owner, bytes, watermark)) in events.iter().enumerate() {
                let id = format!("event-{number:05}");
                log.post_bytes(regions[*region], TENANTS[*owner], &id, *bytes);
                if *owner == tenant {
                    want.insert(id);
                }
                if *watermark {
                    log.watermarks(regions[*region]);
                }
            }
            let bounded = |limits: Limits| Limits { scan_records_max: scan.0, scan_bytes_max: scan.1, page_events_default: 1, page_events_max: 40, ..limits };
            let memory = Bench::start(&log, "fra", bounded(Limits { tail_start_records: 1_000_000, ..Limits::STANDARD })).await;
            let plain = Bench::start(&log, "fra", bounded(small_tail())).await;
            let moved = Bench::start(&copy(&log, seed), "sin", bounded(small_tail())).await;
            let mut cursor = zero(TENANTS[tenant], &regions);
            let mut pulled = Vec::new();
            for limit in limits.iter().cycle() {
                let page = memory.feed.page(TENANTS[tenant], &cursor, *limit).await.unwrap();
                for other in [&plain, &moved] {
                    let same = other.feed.page(TENANTS[tenant], &cursor, *limit).await.unwrap();
                    assert_eq!(page, same);
                }
                pulled.extend(ids_of(&page));
                cursor = page.cursor;
                if !page.more {
                    break;
                }
            }
            assert_eq!(pulled.len(), want.len(), "nothing comes twice by itself");
            assert_eq!(pulled.into_iter().collect::<BTreeSet<_>>(), want);
        });
    }
}
