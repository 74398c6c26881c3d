//! What the sink does when its surroundings fail, on paused time. Numbers name the kinds of fault in the catalogue of field reports.
#![allow(clippy::unwrap_used)]

mod common;

use adapters::clickhouse::Positions;
use anyhow::{Result, bail};
use bytes::Bytes;
use common::{Fault, LIMITS, World, event, partition};
use kit::{delayed, effect, health::Health, shutdown::CancellationToken};
use meridian_proto::{CONTENT_TYPE_EVENT, CONTENT_TYPE_WATERMARK, Event};
use prost::Message;
use rand::RngExt;
use sink::{Effects, HEALTH_PARTS, Limits, Polled};
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, sleep, timeout};

fn start(effects: Effects, limits: Limits, health: &Health) -> tokio::task::JoinHandle<Result<()>> {
    tokio::spawn(sink::run(effects, limits, health.clone(), CancellationToken::new()))
}

/// Runs one sink against `world` until all `events` are stored and `offsets` are stated, which has to happen within `patience`.
async fn check(world: &Arc<World>, events: usize, offsets: &[u64], patience: Duration) {
    let health = Health::of(&HEALTH_PARTS);
    let sink = start(world.effects(), LIMITS, &health);
    until_stored(world, events, offsets, patience).await;
    sleep(Duration::from_secs(2)).await;
    assert_eq!(health.complaints(), Vec::<String>::new());
    sink.abort();
}

async fn until_stored(world: &Arc<World>, events: usize, offsets: &[u64], patience: Duration) {
    let started = Instant::now();
    while world.stored() != events || world.next_offsets() != offsets {
        assert!(started.elapsed() < patience, "{} rows, next offsets {:?}", world.stored(), world.next_offsets());
        sleep(Duration::from_millis(10)).await;
    }
}

fn fails(times: usize, when_stored: bool) -> Fault {
    let mut left = times;
    Box::new(move |stored| {
        if stored == when_stored && left > 0 {
            left -= 1;
            bail!("Code: 516. Authentication failed");
        }
        Ok(())
    })
}

#[tokio::test(start_paused = true)]
async fn report_1_a_refused_block_is_repeated_before_anything_after_it() {
    let world = World::new("one");
    world.append_events("iad", 0..3000);
    *world.insert_fault.lock().unwrap() = Some(fails(1, false));
    check(&world, 3000, &[1500, 1500], Duration::from_secs(10)).await;
}

#[tokio::test(start_paused = true)]
async fn reports_2_and_4_no_error_lasts_long_enough_to_skip() {
    let world = World::new("one");
    world.append_events("iad", 0..300);
    let down_until = Instant::now() + Duration::from_secs(12 * 60);
    *world.insert_fault.lock().unwrap() = Some(Box::new(move |_| if Instant::now() < down_until { bail!("refused") } else { Ok(()) }));
    let health = Health::of(&HEALTH_PARTS);
    let sink = start(world.effects(), LIMITS, &health);
    sleep(Duration::from_secs(11 * 60)).await;
    assert_eq!((world.stored(), world.next_offsets()), (0, vec![]));
    assert!(health.complaints()[0].starts_with("clickhouse: insert block: refused"), "{:?}", health.complaints());
    until_stored(&world, 300, &[150, 150], Duration::from_secs(70)).await;
    assert_eq!(health.complaints(), Vec::<String>::new());
    sink.abort();
}

#[tokio::test(start_paused = true)]
async fn report_5_blocks_stored_with_their_answer_lost_are_repeated() {
    let world = World::new("one");
    world.append_events("iad", 0..2000);
    *world.insert_fault.lock().unwrap() = Some(fails(20, true));
    *world.save_fault.lock().unwrap() = Some(fails(20, true));
    check(&world, 2000, &[1000, 1000], Duration::from_secs(300)).await;
}

#[tokio::test(start_paused = true)]
async fn report_6_the_last_partial_block_is_stored_within_the_flush_period() {
    let world = World::new("one");
    world.append_events("iad", 0..1123);
    check(&world, 1123, &[562, 561], Duration::from_secs(2)).await;
    assert!(world.store.lock().unwrap().inserts.len() <= 3);
}

#[tokio::test(start_paused = true)]
async fn report_8_killed_anywhere_it_resumes_without_loss() {
    let world = World::new("one");
    for round in 0..100 {
        world.append_events("iad", round * 40..(round + 1) * 40);
        world.append_watermark("iad", round * 10, (round + 1) * 10);
        let sink = start(world.effects(), LIMITS, &Health::of(&HEALTH_PARTS));
        let life = rand::rng().random_range(0..1500);
        sleep(Duration::from_millis(life)).await;
        sink.abort();
        world.assert_positions_are_true();
    }
    check(&world, 4000, &[2100, 2100], Duration::from_secs(20)).await;
    for row in world.store.lock().unwrap().positions.values() {
        assert_eq!((row.since_us, row.through_us, row.gap_through_us), (0, 1000, 0), "the chain survives every kill");
    }
}

#[tokio::test(start_paused = true)]
async fn report_9_what_came_before_the_first_sink_is_stored() {
    let world = World::new("one");
    world.append_events("iad", 0..2);
    check(&world, 2, &[1, 1], Duration::from_secs(3)).await;
}

#[tokio::test(start_paused = true)]
async fn reports_10_and_40_a_sink_that_wakes_up_late_claims_nothing_false() {
    let world = World::new("one");
    world.append_events("iad", 0..500);
    let slow = world.effects();
    let slow = Effects {
        insert_block: delayed(Duration::from_secs(30), slow.insert_block),
        save_positions: delayed(Duration::from_secs(45), slow.save_positions),
        ..slow
    };
    let sinks = [slow, world.effects()].map(|effects| start(effects, LIMITS, &Health::of(&HEALTH_PARTS)));
    for round in 1..100 {
        sleep(Duration::from_secs(2)).await;
        world.append_events("iad", round * 500..(round + 1) * 500);
    }
    until_stored(&world, 50_000, &[25_000, 25_000], Duration::from_secs(5)).await;
    sleep(Duration::from_secs(300)).await;
    assert_eq!(world.next_offsets(), [25_000, 25_000], "the furthest position stands");
    sinks.iter().for_each(|sink| sink.abort());
}

#[tokio::test(start_paused = true)]
async fn a_sink_starts_over_when_its_store_was_made_new() {
    let world = World::new("one");
    world.append_events("iad", 0..500);
    let sink = start(world.effects(), LIMITS, &Health::of(&HEALTH_PARTS));
    until_stored(&world, 500, &[250, 250], Duration::from_secs(5)).await;
    *world.store.lock().unwrap() = common::Store { id: "two".into(), ..common::Store::default() };
    world.append_events("iad", 500..600);
    until_stored(&world, 600, &[300, 300], Duration::from_secs(60)).await;
    assert!(world.store.lock().unwrap().positions.values().all(|row| row.store == "two"));
    sink.abort();
}

#[tokio::test(start_paused = true)]
async fn report_46_few_events_make_few_blocks() {
    let world = World::new("one");
    world.append_events("iad", 0..1);
    let sink = start(world.effects(), LIMITS, &Health::of(&HEALTH_PARTS));
    for number in 1..1200 {
        world.append_events("iad", number..number + 1);
        sleep(Duration::from_millis(50)).await;
    }
    let before = world.store.lock().unwrap().inserts.len();
    assert!(before <= 62, "{before} blocks in a minute");
    sleep(Duration::from_secs(60)).await;
    assert!(world.store.lock().unwrap().inserts.len() <= before + 1, "nothing when nothing came");
    sink.abort();
}

#[tokio::test(start_paused = true)]
async fn report_57_poison_is_dead_lettered_and_the_next_event_flows() {
    let with = |change: fn(&mut Event)| {
        let mut event = event("iad", 9);
        change(&mut event);
        Bytes::from(event.encode_to_vec())
    };
    let poison: [(&'static str, Bytes, &str); 10] = [
        (CONTENT_TYPE_EVENT, Bytes::new(), "must not be empty"),
        (CONTENT_TYPE_EVENT, Bytes::from_static(b"\xff\xff\xff"), "not a protobuf"),
        (CONTENT_TYPE_EVENT, Bytes::from_static(b"\x0a\x7fshort"), "longer than its record"),
        (CONTENT_TYPE_EVENT, Bytes::from_static(b"\x0a\x02\xff\xfe"), "not UTF-8"),
        (CONTENT_TYPE_EVENT, with(|event| event.data = Bytes::from_static(b"{\"amount\":")), "not JSON"),
        (CONTENT_TYPE_EVENT, with(|event| event.data = "[".repeat(10_000).into()), "not JSON"),
        (CONTENT_TYPE_EVENT, with(|event| event.commit_id = Bytes::from_static(b"short")), "16 bytes"),
        (CONTENT_TYPE_EVENT, with(|event| event.payload_hash = Bytes::new()), "32 bytes"),
        ("application/vnd.meridian.event.v9+protobuf", with(|_| {}), "unknown content type"),
        (CONTENT_TYPE_WATERMARK, Bytes::from_static(b"\xff"), "not a watermark"),
    ];
    let world = World::new("one");
    let place = partition("iad", 0);
    for (content_type, value, _) in &poison {
        world.append(&place, content_type, value.clone());
    }
    world.append_events("iad", 0..2);
    check(&world, 2, &[11, 1], Duration::from_secs(5)).await;
    let (letters, store) = (world.letters.lock().unwrap(), world.store.lock().unwrap());
    assert_eq!((letters.len(), store.parked.len()), (poison.len(), poison.len()));
    for (offset, ((content_type, value, reason), letter)) in poison.iter().zip(letters.iter()).enumerate() {
        assert!(letter.reason.contains(reason), "{offset}: {} is not {reason}", letter.reason);
        assert_eq!((letter.position.offset, &letter.content_type[..], &letter.value), (offset as u64, *content_type, value));
        assert_eq!(store.parked[&("iad".into(), 0, offset as u64)].reason, letter.reason);
    }
}

#[tokio::test(start_paused = true)]
async fn report_59_blocks_stay_bounded_while_a_backlog_drains() {
    let world = World::new("one");
    world.append_events("iad", 0..2);
    for number in 2..200 {
        let mut large = event("iad", number);
        large.data = format!("\"{}\"", "x".repeat(200_000)).into();
        world.append(&partition("iad", (number % 2) as u16), CONTENT_TYPE_EVENT, large.encode_to_vec().into());
    }
    let limits = Limits { bytes_max: 1 << 20, ..LIMITS };
    let sink = start(world.effects(), limits, &Health::of(&HEALTH_PARTS));
    until_stored(&world, 200, &[100, 100], Duration::from_secs(60)).await;
    // A block may pass its limit by what one batch holds.
    let batch_bytes = 50 * 200_500;
    assert!(world.store.lock().unwrap().inserts.iter().all(|(_, bytes)| *bytes <= (1 << 20) + batch_bytes));
    sink.abort();
}

#[tokio::test(start_paused = true)]
async fn a_gap_stops_its_partition_loudly_and_no_other() {
    let world = World::new("one");
    world.append_events("iad", 0..10);
    world.log.lock().unwrap().get_mut(&partition("iad", 1)).unwrap().remove(2);
    let health = Health::of(&HEALTH_PARTS);
    let sink = start(world.effects(), LIMITS, &health);
    until_stored(&world, 7, &[5, 2], Duration::from_secs(5)).await;
    assert_eq!(health.complaints(), ["sequence: events.iad.g1/1: offset 2 should have come, 3 came: records are missing"]);
    sink.abort();
}

#[tokio::test(start_paused = true)]
async fn a_log_that_cannot_be_followed_is_tried_again() {
    let world = World::new("one");
    world.append_events("iad", 0..10);
    let effects = world.effects();
    let poll_batch = kit::fail_first(3, Arc::clone(&effects.poll_batch));
    let load_positions = kit::fail_first(3, Arc::clone(&effects.load_positions));
    let sink = start(Effects { poll_batch, load_positions, ..effects }, LIMITS, &Health::of(&HEALTH_PARTS));
    until_stored(&world, 10, &[5, 5], Duration::from_secs(30)).await;
    sink.abort();
}

#[tokio::test(start_paused = true)]
async fn it_stops_when_asked_also_while_nothing_answers() {
    let never = |_| async { std::future::pending().await };
    let effects = Effects {
        load_positions: effect(move |()| async { std::future::pending::<Result<Positions>>().await }),
        poll_batch: effect(|()| async { std::future::pending::<Result<Polled>>().await }),
        insert_block: effect(never),
        ..World::new("one").effects()
    };
    let shutdown = CancellationToken::new();
    let sink = tokio::spawn(sink::run(effects, LIMITS, Health::of(&HEALTH_PARTS), shutdown.clone()));
    sleep(Duration::from_secs(5)).await;
    shutdown.cancel();
    timeout(Duration::from_secs(1), sink).await.unwrap().unwrap().unwrap();
}
