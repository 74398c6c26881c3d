//! The tail, its signals and its memory.

use super::{Bench, FakeLog, partition, sorted, zero};
use crate::Limits;
use kit::{effect, fail_first};
use meridian_proto::Cursor;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::time::{Instant, sleep};

#[tokio::test(start_paused = true)]
async fn the_first_signal_goes_at_once_and_the_next_ones_once_in_a_while() {
    let log = FakeLog::of(&["fra"]);
    let bench = Bench::start(&log, "fra", Limits::STANDARD).await;
    let started = Instant::now();
    for number in 0..200 {
        log.post("fra", "acme", &number.to_string());
        if number == 100 {
            log.post("fra", "globex", "one");
        }
        sleep(Duration::from_millis(1)).await;
    }
    sleep(Duration::from_secs(1)).await;
    let sent = bench.signals.lock().unwrap().clone();
    let acme: Vec<Duration> = sent.iter().filter(|(tenant, _)| tenant == "acme").map(|(_, at)| *at - started).collect();
    assert!(acme[0] <= Duration::from_millis(1), "{:?}", acme[0]);
    assert!((30..=41).contains(&acme.len()), "{}", acme.len());
    assert!(acme.windows(2).all(|pair| pair[1] - pair[0] >= Duration::from_millis(5)));
    assert!(*acme.last().unwrap() >= Duration::from_millis(199), "the last event was told too");
    assert_eq!(sent.iter().filter(|(tenant, _)| tenant == "globex").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_lost_tail_is_taken_up_where_it_stood() {
    let log = FakeLog::of(&["fra", "iad"]);
    let opened = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&opened);
    let bench = Bench::with(&log, "fra", Limits::STANDARD, |mut effects| {
        let tail_log = effects.tail_log.clone();
        effects.tail_log = effect(move |starts| {
            let (tail_log, nth) = (tail_log.clone(), count.fetch_add(1, Ordering::Relaxed));
            async move {
                let next_batch = tail_log(starts).await?;
                // Each of the first tails breaks after three batches.
                let left = AtomicUsize::new(if nth < 5 { 3 } else { usize::MAX });
                Ok(effect(move |()| {
                    let breaks = left.fetch_sub(1, Ordering::Relaxed) == 0;
                    if breaks { fail_first(1, next_batch.clone())(()) } else { next_batch(()) }
                }))
            }
        });
        effects
    })
    .await;
    for number in 0..300 {
        log.post(["fra", "iad"][number % 2], "acme", &format!("{number:03}"));
        sleep(Duration::from_millis(10)).await;
    }
    sleep(Duration::from_secs(30)).await;
    bench.caught_up(&log).await;
    assert!(opened.load(Ordering::Relaxed) >= 5);
    let (ids, _) = bench.pull_all("acme", Cursor::default(), &[50]).await;
    assert_eq!(sorted(ids), (0..300).map(|number| format!("{number:03}")).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn memory_is_bounded_in_bytes_whatever_the_backlog() {
    let log = FakeLog::of(&["fra"]);
    let limits = Limits { tail_bytes_max: 256 * 1024, ..Limits::STANDARD };
    let bench = Bench::start(&log, "fra", limits).await;
    for number in 0..5000 {
        log.post_bytes("fra", "acme", &number.to_string(), 1000);
    }
    bench.caught_up(&log).await;
    let held = bench.feed.tails.bytes_held();
    assert!((40_000..=64 * 1024).contains(&held), "four of sixteen partitions: {held}");
    let (ids, _) = bench.pull_all("acme", zero("acme", &["fra"]), &[1000]).await;
    assert_eq!(ids.len(), 5000);
}

#[tokio::test(start_paused = true)]
async fn a_topic_that_appears_later_is_followed() {
    let log = FakeLog::of(&["fra"]);
    let bench = Bench::start(&log, "fra", Limits::STANDARD).await;
    let (_, cursor) = bench.pull_all("acme", Cursor::default(), &[10]).await;
    for number in 0..16 {
        log.partitions.lock().unwrap().insert(partition("iad", number), Default::default());
    }
    log.post("iad", "acme", "new");
    sleep(Duration::from_secs(40)).await;
    let (ids, _) = bench.pull_all("acme", cursor, &[10]).await;
    assert_eq!(ids, ["new"]);
}
