//! The receiver against faults, in paused time.
#![allow(clippy::unwrap_used)]

mod fakes;

use fakes::{Log, Peer, Running, VALUE_BYTES_MAX, eventually, partition};
use meridian_proto::{CONTENT_TYPE_EVENT, Origin, PartitionId};
use mirror::{CONTENT_TYPE_REFUSED, wire::v1::Frame};
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

fn iad(number: u16) -> PartitionId {
    partition("iad", number)
}

/// The origin's log with two partitions of `count` events, and an empty copy.
fn logs(count: u64) -> (Arc<Log>, Arc<Log>) {
    let partitions = [iad(0), iad(1)];
    let (origin, copy) = (Log::with(&partitions), Log::with(&partitions));
    partitions.iter().for_each(|partition| origin.put_events(partition, 0..count));
    (origin, copy)
}

fn holds_once(copy: &Log, partition: &PartitionId, count: u64) -> bool {
    copy.origins(partition) == (0..count).collect::<Vec<_>>()
}

/// Copies 1000 events twice over under `fault`, with a restart between, and wants each position once, in order, unchanged.
async fn check(fault: impl Fn(usize, Frame) -> Option<Vec<Frame>> + Send + Sync + 'static, failing_appends: usize) -> Arc<Peer> {
    let (origin, copy) = logs(1000);
    copy.failing_appends.store(failing_appends, Ordering::Relaxed);
    let peer = Peer::new(&origin, fault);
    let running = Running::receiver(&copy, &peer, "iad");
    eventually("part of the copy", 60, || copy.origins(&iad(0)).len() > 300).await;
    running.stop().await;
    let running = Running::receiver(&copy, &peer, "iad");
    origin.put_events(&iad(1), 1000..2000);
    eventually("the copy", 120, || holds_once(&copy, &iad(0), 1000) && holds_once(&copy, &iad(1), 2000)).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    running.stop().await;
    assert!(holds_once(&copy, &iad(0), 1000) && holds_once(&copy, &iad(1), 2000), "nothing comes twice");
    for (own, copied) in origin.records(&iad(1)).iter().zip(copy.records(&iad(1))) {
        assert_eq!((&own.value, &own.content_type), (&copied.value, &copied.content_type));
        assert_eq!(copied.origin.unwrap().append_time_ms, own.append_time_ms);
    }
    peer
}

#[tokio::test(start_paused = true)]
async fn each_position_is_copied_once_over_a_restart() {
    check(|_, frame| Some(vec![frame]), 0).await;
}

#[tokio::test(start_paused = true)]
async fn repeated_frames_are_dropped() {
    check(|_, frame| Some(vec![frame.clone(), frame]), 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_append_that_took_half_is_not_repeated() {
    check(|_, frame| Some(vec![frame]), 7).await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_ends_goes_on_where_the_copy_ends() {
    let peer = check(|stream, frame| (stream >= 5 || frame.first_offset < 100 * (stream as u64 + 1)).then(|| vec![frame]), 0).await;
    assert!(peer.streams.load(Ordering::Relaxed) > 5);
}

#[tokio::test(start_paused = true)]
async fn a_frame_lost_on_the_way_is_asked_for_again() {
    let lost = |frame: &Frame| frame.partition == 0 && (200..300).contains(&frame.first_offset);
    check(move |stream, frame| Some(if stream == 0 && lost(&frame) { vec![] } else { vec![frame] }), 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_gap_that_stays_stops_its_partition_alone() {
    let (origin, copy) = logs(1000);
    let lost = |frame: &Frame| frame.partition == 0 && (100..=500).contains(&frame.first_offset);
    let peer = Peer::new(&origin, move |_, frame| Some(if lost(&frame) { vec![] } else { vec![frame] }));
    let running = Running::receiver(&copy, &peer, "iad");
    tokio::time::sleep(Duration::from_secs(120)).await;
    let stands = copy.origins(&iad(0));
    assert!(stands.len() < 200 && holds_once(&copy, &iad(0), stands.len() as u64), "never jumped: {}", stands.len());
    assert!(holds_once(&copy, &iad(1), 1000), "the other partition went on");
    origin.put_events(&iad(1), 1000..1100);
    eventually("the other partition, still", 5, || holds_once(&copy, &iad(1), 1100)).await;
    let streams = peer.streams.load(Ordering::Relaxed);
    assert!((3..20).contains(&streams), "asked for again with longer waits: {streams}");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer_is_dialled_again() {
    let (origin, copy) = logs(500);
    let peer = Peer::new(&origin, |stream, frame| Some(if stream == 0 { vec![] } else { vec![frame] }));
    let running = Running::receiver(&copy, &peer, "iad");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(peer.streams.load(Ordering::Relaxed), 1, "silence is judged after four seconds");
    eventually("the copy", 3, || holds_once(&copy, &iad(0), 500)).await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_record_leaves_a_stand_in_and_a_dead_letter() {
    let (origin, copy) = logs(40);
    let large = vec![b'x'; VALUE_BYTES_MAX + 1];
    origin.put(&iad(0), CONTENT_TYPE_EVENT, &large, None);
    origin.put_events(&iad(0), 41..90);
    let peer = Peer::new(&origin, |_, frame| Some(vec![frame]));
    let running = Running::receiver(&copy, &peer, "iad");
    eventually("the copy", 30, || holds_once(&copy, &iad(0), 90)).await;
    running.stop().await;
    let records = copy.records(&iad(0));
    assert_eq!((records[40].content_type.as_str(), records[40].value.len()), (CONTENT_TYPE_REFUSED, 0));
    assert_eq!(records.iter().filter(|record| record.content_type == CONTENT_TYPE_REFUSED).count(), 1);
    let letters = copy.letters.lock().unwrap();
    let [letter] = letters.as_slice() else { panic!("{} letters", letters.len()) };
    assert_eq!((letter.position.offset, letter.value.len(), letter.reason.as_str()), (40, large.len(), "too large: 1001"));
}

#[tokio::test(start_paused = true)]
async fn a_new_copy_begins_where_the_peer_begins_and_an_old_one_never_jumps() {
    let (origin, copy) = logs(1000);
    copy.put(&iad(1), CONTENT_TYPE_EVENT, b"0", Some(Origin { offset: 0, append_time_ms: 1 }));
    [iad(0), iad(1)].iter().for_each(|partition| origin.trim(partition, 600));
    let peer = Peer::new(&origin, |_, frame| Some(vec![frame]));
    let running = Running::receiver(&copy, &peer, "iad");
    eventually("what is left", 30, || copy.origins(&iad(0)) == (600..1000).collect::<Vec<_>>()).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(copy.origins(&iad(1)), [0], "history that is missing is for a person");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_others_put_into_the_copy_is_stepped_over() {
    let (origin, copy) = logs(300);
    let peer = Peer::new(&origin, |_, frame| Some(vec![frame]));
    let running = Running::receiver(&copy, &peer, "iad");
    eventually("the copy", 30, || holds_once(&copy, &iad(0), 300)).await;
    running.stop().await;
    copy.put(&iad(0), CONTENT_TYPE_EVENT, b"forged", Some(Origin { offset: 1_000_000, append_time_ms: 1 }));
    copy.put(&iad(0), CONTENT_TYPE_EVENT, b"bare", None);
    origin.put_events(&iad(0), 300..400);
    let running = Running::receiver(&copy, &peer, "iad");
    eventually("the copy", 30, || copy.origins(&iad(0)).len() == 402).await;
    running.stop().await;
    let mut kept = copy.origins(&iad(0));
    kept.retain(|&offset| offset < 1_000_000);
    assert_eq!(kept, (0..400).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_lost_its_log_is_not_followed_blindly() {
    let (origin, copy) = logs(10);
    for offset in 0..50 {
        copy.put(&iad(0), CONTENT_TYPE_EVENT, b"x", Some(Origin { offset, append_time_ms: 1 }));
    }
    let peer = Peer::new(&origin, |_, frame| Some(vec![frame]));
    let running = Running::receiver(&copy, &peer, "iad");
    eventually("the other partition", 30, || holds_once(&copy, &iad(1), 10)).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(copy.origins(&iad(0)).len(), 50);
    running.stop().await;
}
