//! The relay against a change log, a log and a clock in memory, in paused time.

use crate::{Effects, LastWatermark, Limits, LogLost, Outgoing, run};
use adapters::{
    redpanda::OutRecord,
    scylla::{ChangeRange, ChangeRow, Generation},
};
use anyhow::{Result, bail};
use kit::{effect, health::Health, shutdown::CancellationToken};
use meridian_proto::{Chain, ChainStep, Change, CommitId, CommitTime, Incarnation, KEY_FUNCTION, PARTITIONS, Watermark};
use prost::Message;
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::time::{Instant, sleep, sleep_until};

const CREATED_US: u64 = 1_700_000_000_000_000;
const PARTITION: u16 = 3;
const FENCE_MS: u64 = 2_000;

const LIMITS: Limits = Limits {
    fence: Duration::from_millis(FENCE_MS),
    clock_margin: Duration::from_millis(250),
    seal_every: Duration::from_secs(1),
    quick_span: Duration::from_secs(4),
    publish_bytes_max: 1_000,
    event_bytes_max: 500,
    step_bytes: 2_000,
    catching_up_max: 2,
    remembered_rows_max: 1_000,
};

/// A row of the change log: commit time, when it could be read (both ms after the start), and its number of events.
#[derive(Clone, Copy, Debug)]
struct Row {
    commit_ms: u64,
    visible_ms: u64,
    events: usize,
}

fn row(commit_ms: u64, visible_ms: u64, events: usize) -> Row {
    Row { commit_ms, visible_ms, events }
}

impl Row {
    fn id(&self) -> CommitId {
        CommitId::of_row(CommitTime(CREATED_US + self.commit_ms * 1_000), Incarnation::from_random(7))
    }

    /// No events stand for bytes that cannot be read.
    fn change(&self) -> ChangeRow {
        let events = (0..self.events).map(|index| self.id().at_index(index as u16).to_bytes().to_vec().into());
        let readable = Change { events: events.collect() }.encode_to_vec();
        ChangeRow { row: self.id(), change: if self.events == 0 { vec![0xff; 9].into() } else { readable.into() } }
    }

    fn events(&self) -> impl Iterator<Item = CommitId> {
        let id = self.id();
        (0..self.events).map(move |index| id.at_index(index as u16))
    }
}

/// What goes wrong. Calls are counted over restarts.
#[derive(Clone, Default)]
struct Faults {
    hints_lost: bool,
    read_delay_ms: u64,
    reads_failing: usize,
    batches_failing: usize,
    /// How many records of a failing batch are appended all the same.
    batch_prefix: usize,
    watermarks_failing: usize,
    watermarks_appended_all_the_same: bool,
    /// From then on no watermark is answered.
    watermarks_silent_from_ms: Option<u64>,
    /// The process is killed and started again.
    restarts_ms: Vec<u64>,
    clock_away_until_ms: u64,
}

#[derive(Clone, Debug, PartialEq)]
enum Entry {
    Event(CommitId),
    Watermark(Watermark),
}

#[derive(Default)]
struct State {
    log: Vec<(u64, Entry)>,
    dead_letters: Vec<String>,
    reads: usize,
    read_bytes_max: usize,
    batches: usize,
    watermarks: usize,
}

struct World {
    start: Instant,
    rows: Vec<Row>,
    faults: Faults,
    state: Mutex<State>,
}

impl World {
    fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    async fn read_changes(self: Arc<Self>, range: ChangeRange) -> Result<Vec<ChangeRow>> {
        // What the read finds is what is there when it begins.
        let now_ms = self.now_ms();
        let fits = |row: &&Row| {
            range.partition == PARTITION && row.visible_ms <= now_ms && row.id() > range.after && row.id().time() <= range.through
        };
        let mut found: Vec<ChangeRow> = self.rows.iter().filter(fits).map(Row::change).collect();
        found.sort_by_key(|found| found.row);
        let fails = {
            let mut state = self.state();
            state.reads += 1;
            state.read_bytes_max = state.read_bytes_max.max(found.iter().map(|row| row.change.len()).sum());
            state.reads <= self.faults.reads_failing
        };
        sleep(Duration::from_millis(self.faults.read_delay_ms)).await;
        if fails {
            bail!("no answer");
        }
        Ok(found)
    }

    async fn publish_batch(self: Arc<Self>, batch: Outgoing) -> Result<()> {
        sleep(Duration::from_millis(3)).await;
        let now_ms = self.now_ms();
        let mut state = self.state();
        state.batches += 1;
        let fails = state.batches <= self.faults.batches_failing;
        let appended = if fails { self.faults.batch_prefix } else { usize::MAX };
        for record in batch.records.iter().take(appended) {
            state.log.push((now_ms, Entry::Event(CommitId::from_bytes(&record.value).unwrap())));
        }
        if fails {
            bail!("unknown");
        }
        state.dead_letters.extend(batch.dead_letters.into_iter().map(|letter| letter.reason));
        Ok(())
    }

    async fn publish_watermarks(self: Arc<Self>, records: Vec<OutRecord>) -> Result<()> {
        sleep(Duration::from_millis(3)).await;
        let now_ms = self.now_ms();
        let mine = records.iter().filter(|record| record.partition.partition == PARTITION);
        let watermarks: Vec<Watermark> = mine.map(|record| Watermark::decode(record.value.clone()).unwrap()).collect();
        if watermarks.is_empty() {
            return Ok(());
        }
        if self.faults.watermarks_silent_from_ms.is_some_and(|from| now_ms >= from && now_ms < from + 5_000) {
            std::future::pending::<()>().await;
        }
        let mut state = self.state();
        state.watermarks += 1;
        let fails = state.watermarks <= self.faults.watermarks_failing;
        if !fails || self.faults.watermarks_appended_all_the_same {
            state.log.extend(watermarks.into_iter().map(|watermark| (now_ms, Entry::Watermark(watermark))));
        }
        if fails { bail!("unknown") } else { Ok(()) }
    }

    async fn last_watermark(self: Arc<Self>, partition: u16) -> Result<LastWatermark> {
        let mut found = LastWatermark::default();
        if partition != PARTITION {
            return Ok(LastWatermark { through: Some(CommitTime(CREATED_US)), ..found });
        }
        let state = self.state();
        let through_us = state.log.iter().rev().find_map(|(_, entry)| match entry {
            Entry::Watermark(watermark) => Some(watermark.through_us),
            Entry::Event(_) => None,
        });
        found.through = through_us.map(CommitTime);
        found.published.extend(state.log.iter().filter_map(|(_, entry)| match entry {
            Entry::Event(id) if Some(id.time()) > found.through => Some(*id),
            _ => None,
        }));
        found.published.sort_unstable();
        found.published.dedup();
        Ok(found)
    }

    /// Hints as ingest sends them: as soon as a row can be read.
    async fn await_hint(self: Arc<Self>) -> Result<BTreeSet<u16>> {
        let now_ms = self.now_ms();
        let next = self.rows.iter().map(|row| row.visible_ms).filter(|visible_ms| *visible_ms > now_ms).min();
        match next {
            Some(visible_ms) if !self.faults.hints_lost => sleep_until(self.start + Duration::from_millis(visible_ms)).await,
            _ => std::future::pending().await,
        }
        Ok(BTreeSet::from([PARTITION]))
    }

    async fn region_time(self: Arc<Self>) -> Result<CommitTime> {
        if self.now_ms() < self.faults.clock_away_until_ms {
            bail!("the anchor is stale");
        }
        Ok(CommitTime(CREATED_US + self.start.elapsed().as_micros() as u64))
    }

    fn effects(self: &Arc<Self>) -> Effects {
        let world = || Arc::clone(self);
        let (a, b, c, d, e, f) = (world(), world(), world(), world(), world(), world());
        Effects {
            read_changes: effect(move |range| Arc::clone(&a).read_changes(range)),
            publish_batch: effect(move |batch| Arc::clone(&b).publish_batch(batch)),
            publish_watermarks: effect(move |records| Arc::clone(&c).publish_watermarks(records)),
            last_watermark: effect(move |id: meridian_proto::PartitionId| Arc::clone(&d).last_watermark(id.partition)),
            region_time: effect(move |()| Arc::clone(&e).region_time()),
            await_hint: effect(move |()| Arc::clone(&f).await_hint()),
            register_generation: effect(|()| async {
                let (region, key_function) = ("fra".into(), KEY_FUNCTION.into());
                let (cluster_id, host_ids) = (String::new(), Vec::new());
                let (partitions, window_ms, created_us) = (PARTITIONS, 10_000, CREATED_US);
                Ok(Generation { region, generation: 1, partitions, window_ms, key_function, cluster_id, host_ids, created_us })
            }),
        }
    }

    /// What must hold of any log, whatever went wrong.
    fn assert_promises(&self) -> Chain {
        let state = self.state();
        let mut chain: Option<Chain> = None;
        for (index, (at_ms, entry)) in state.log.iter().enumerate() {
            let Entry::Watermark(watermark) = entry else { continue };
            let (from, through) = (CommitTime(watermark.from_us), CommitTime(watermark.through_us));
            match &mut chain {
                None => chain = Some(Chain::starting_with(from, through)),
                Some(chain) => assert_ne!(chain.advance(from, through), ChainStep::Gap, "{chain:?} then {from:?}"),
            }
            let covered = |row: &&Row| (from..=through).contains(&row.id().time()) && row.id().time() > from && row.visible_ms <= *at_ms;
            let (mut events, mut xor) = (0, 0);
            for row in self.rows.iter().filter(covered) {
                for event in row.events() {
                    let before = state.log[..index].iter().any(|(_, entry)| *entry == Entry::Event(event));
                    assert!(before, "the watermark at {at_ms} ms covers {row:?}, which is not in the log before it");
                    (events, xor) = (events + 1, xor ^ event.0);
                }
            }
            assert_eq!((watermark.rows, &watermark.xor[..]), (events, &xor.to_be_bytes()[..]), "sums of the watermark at {at_ms} ms");
        }
        let chain = chain.expect("a watermark was written");
        assert!(chain.since < CommitTime(CREATED_US));
        chain
    }

    /// Everything is in the log and sealed, but for what the fence holds back.
    fn assert_caught_up(&self, end_ms: u64) {
        let chain = self.assert_promises();
        let state = self.state();
        let through_ms = (chain.through.0 - CREATED_US) / 1_000;
        assert!(through_ms + FENCE_MS + 250 + 1_100 >= end_ms, "sealed through {through_ms} ms at {end_ms} ms");
        for row in &self.rows {
            assert!(row.events().all(|event| state.log.iter().any(|(_, entry)| *entry == Entry::Event(event))), "{row:?} is lost");
        }
    }

    /// How often, and when first, an event stands in the log.
    fn seen(&self, row: &Row) -> (usize, u64) {
        let first = row.events().next().unwrap();
        let state = self.state();
        let times: Vec<u64> = state.log.iter().filter(|(_, entry)| *entry == Entry::Event(first)).map(|(at_ms, _)| *at_ms).collect();
        (times.len(), times.first().copied().unwrap_or(u64::MAX))
    }
}

/// Runs the relay over the rows, with these faults, until `end_ms`, and checks what must always hold.
async fn check(rows: &[Row], faults: Faults, end_ms: u64) -> Arc<World> {
    let world = unchecked(rows, faults, end_ms).await.unwrap();
    world.assert_caught_up(end_ms);
    world
}

async fn unchecked(rows: &[Row], faults: Faults, end_ms: u64) -> Result<Arc<World>> {
    let ends: Vec<u64> = faults.restarts_ms.iter().copied().chain([end_ms]).collect();
    let world = Arc::new(World { start: Instant::now(), rows: rows.to_vec(), faults, state: Mutex::default() });
    for end_ms in ends {
        let shutdown = CancellationToken::new();
        let running = run(world.effects(), LIMITS, Health::default(), shutdown.clone());
        let stop = async {
            sleep_until(world.start + Duration::from_millis(end_ms)).await;
            shutdown.cancel();
            Ok(())
        };
        tokio::try_join!(running, stop)?;
    }
    Ok(world)
}

fn steady(from_ms: u64, to_ms: u64) -> Vec<Row> {
    (from_ms..to_ms).step_by(100).map(|ms| row(ms, ms + 4, 1 + ms as usize % 3)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_row_is_published_on_its_hint_and_sealed_after_the_fence() {
    let rows = steady(0, 3_000);
    let world = check(&rows, Faults::default(), 8_000).await;
    let watermarks = world.state().watermarks;
    assert!((5..=8).contains(&watermarks), "{watermarks} watermarks in 8 s");
    for row in &rows[1..] {
        let (times, first_ms) = world.seen(row);
        assert!(times == 1 && first_ms <= row.visible_ms + 10, "{row:?} was published {times} times, first at {first_ms} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn without_hints_the_tick_finds_rows() {
    let rows = steady(0, 3_000);
    let world = check(&rows, Faults { hints_lost: true, ..Faults::default() }, 8_000).await;
    assert!(rows.iter().all(|row| world.seen(row).0 == 1 && world.seen(row).1 <= row.visible_ms + 1_010));
}

#[tokio::test(start_paused = true)]
async fn a_row_that_is_written_late_within_the_fence_is_published_before_its_time_is_sealed() {
    let mut rows = steady(0, 5_000);
    rows.extend([row(990, 990 + FENCE_MS - 1, 2), row(1_500, 1_500 + FENCE_MS - 1, 1), row(2_501, 3_400, 1)]);
    for hints_lost in [false, true] {
        check(&rows, Faults { hints_lost, ..Faults::default() }, 12_000).await;
    }
}

#[tokio::test(start_paused = true)]
async fn slow_reads_seal_nothing_that_they_did_not_read() {
    let late = (0..20_000).step_by(70).map(|ms| row(ms + 1, ms + FENCE_MS, 1));
    let rows: Vec<Row> = steady(0, 20_000).into_iter().chain(late).collect();
    for read_delay_ms in [50, 300, 800] {
        let world = unchecked(&rows, Faults { read_delay_ms, ..Faults::default() }, 26_000).await.unwrap();
        let through_ms = (world.assert_promises().through.0 - CREATED_US) / 1_000;
        assert!(through_ms > 15_000, "sealed through {through_ms} ms with reads of {read_delay_ms} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sealed_before_its_batch_is_acknowledged() {
    let rows = steady(0, 2_000);
    for (batches_failing, batch_prefix) in [(8, 0), (8, 1), (3, usize::MAX)] {
        let world = check(&rows, Faults { batches_failing, batch_prefix, ..Faults::default() }, 15_000).await;
        let repeats = rows.iter().filter(|row| world.seen(row).0 > 1).count();
        assert_eq!(repeats > 0, batch_prefix == 1, "what the log is found to hold whole is not repeated");
    }
}

#[tokio::test(start_paused = true)]
async fn a_watermark_of_unknown_fate_is_repeated_and_chains() {
    let rows = steady(0, 4_000);
    for watermarks_appended_all_the_same in [false, true] {
        check(&rows, Faults { watermarks_failing: 4, watermarks_appended_all_the_same, ..Faults::default() }, 12_000).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_between_batch_and_watermark_goes_on_from_the_log() {
    let rows = steady(0, 9_000);
    let faults = Faults { watermarks_silent_from_ms: Some(3_000), restarts_ms: vec![6_000, 6_500, 8_010], ..Faults::default() };
    let world = check(&rows, faults, 16_000).await;
    let repeated: Vec<_> = rows.iter().filter(|row| world.seen(row).0 > 1).collect();
    assert!(repeated.is_empty(), "the log itself tells what it holds: {repeated:?}");
}

#[tokio::test(start_paused = true)]
async fn a_row_of_which_a_crash_left_half_in_the_log_is_published_whole() {
    let faults = Faults { batches_failing: 1, batch_prefix: 2, restarts_ms: vec![20], ..Faults::default() };
    let world = check(&[row(5, 10, 5), row(2_000, 2_001, 1)], faults, 8_000).await;
    assert_eq!(world.seen(&row(5, 10, 5)).0, 2, "its first events stand there twice, with the same identity");
}

#[tokio::test(start_paused = true)]
async fn engines_that_are_away_are_waited_for() {
    let rows = steady(0, 6_000);
    check(&rows, Faults { reads_failing: 200, clock_away_until_ms: 3_000, ..Faults::default() }, 40_000).await;
}

#[tokio::test(start_paused = true)]
async fn a_row_that_cannot_be_read_becomes_a_dead_letter_once_and_the_next_one_flows() {
    let mut rows = steady(0, 2_000);
    rows.push(row(501, 505, 0));
    let world = unchecked(&rows, Faults::default(), 8_000).await.unwrap();
    rows.pop();
    assert!(rows.iter().all(|row| world.seen(row).0 == 1));
    let letters = world.state().dead_letters.clone();
    assert!(letters.len() == 1 && letters[0].contains("of the change log"), "{letters:?}");
    let sealed = world.state().log.iter().rev().find_map(|(_, entry)| matches!(entry, Entry::Watermark(_)).then_some(entry.clone()));
    assert!(matches!(sealed, Some(Entry::Watermark(watermark)) if watermark.through_us > CREATED_US + 4_000_000), "it blocks nothing");
}

#[tokio::test(start_paused = true)]
async fn a_log_that_forgot_what_it_acknowledged_stops_the_relay() {
    let rows = steady(0, 9_000);
    let world = Arc::new(World { start: Instant::now(), rows, faults: Faults::default(), state: Mutex::default() });
    let mut effects = world.effects();
    let publish = Arc::clone(&effects.publish_watermarks);
    let lost = Arc::clone(&world);
    // The log is made anew: what is in flight fails once.
    effects.publish_watermarks = effect(move |records: Vec<OutRecord>| {
        let (publish, lost) = (Arc::clone(&publish), Arc::clone(&lost));
        async move {
            if (5_000..5_600).contains(&lost.now_ms()) {
                lost.state().log.clear();
                bail!("unknown");
            }
            publish(records).await
        }
    });
    let running = run(effects, LIMITS, Health::default(), CancellationToken::new());
    let error = tokio::time::timeout(Duration::from_secs(60), running).await.expect("it stops by itself").unwrap_err();
    assert!(error.is::<LogLost>(), "{error:#}");
}

#[tokio::test(start_paused = true)]
async fn a_backlog_is_caught_up_in_steps_of_bounded_size() {
    let mut rows: Vec<Row> = (0..3_000).map(|k| row(k * 20, k * 20, 4)).collect();
    rows.extend(steady(3_600_000, 3_604_000));
    let world = Arc::new(World { start: Instant::now(), rows, faults: Faults::default(), state: Mutex::default() });
    tokio::time::advance(Duration::from_secs(3_600)).await;
    let shutdown = CancellationToken::new();
    let stop = async {
        sleep(Duration::from_secs(8)).await;
        shutdown.cancel();
        Ok(())
    };
    tokio::try_join!(run(world.effects(), LIMITS, Health::default(), shutdown.clone()), stop).unwrap();
    world.assert_caught_up(3_608_000);
    let read_bytes_max = world.state().read_bytes_max;
    let backlog: usize = world.rows.iter().map(|row| row.change().change.len()).sum();
    assert!(read_bytes_max < backlog / 8, "{read_bytes_max} of {backlog} bytes were read at once");
    let live = steady(3_600_100, 3_604_000);
    assert!(live.iter().all(|row| world.seen(row).1 <= row.visible_ms + 100), "live rows do not wait for the backlog");
}
