//! The clocks. **Wall clock time enters the services here and nowhere else.**
//!
//! Rule R1: one clock a region for ingest and relay. It is an anchor from the database plus monotonic time. Every
//! process keeps within half of [`EPSILON_US`] of the database's clock or refuses to tell the time, so any two of a region
//! that tell it differ by at most [`EPSILON_US`].

use crate::scylla::DatabaseTime;
use anyhow::{Result, bail};
use kit::{Effect, shutdown::CancellationToken};
use meridian_proto::CommitTime;
use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::time::Instant;

/// ε of rule R1: by how much two clocks of a region that tell the time may differ.
pub const EPSILON_US: u64 = 250_000;
/// Each clock's own share of ε.
const BOUND_US: i64 = (EPSILON_US / 2) as i64;
/// How often the database is asked.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// At start, until there is an anchor.
const SAMPLE_FIRST_EVERY: Duration = Duration::from_millis(100);
/// Samples among which the best one is looked for.
const SAMPLES: usize = 10;
/// Without a sample for so long, the clock is stale.
const STALE_AFTER: Duration = Duration::from_secs(10);
/// What a sample loses in trust as it ages: the drift that two clocks of one machine class may have, µs a second.
const DRIFT_US_PER_S: i64 = 200;
/// By how much the clock is pulled towards the anchor, µs a second: time always goes on, and never jumps.
const SLEW_US_PER_S: i64 = 5_000;
/// Samples that differ by more than their round trips and this say that a clock was set. Covers a clock that shows whole
/// milliseconds only.
const SETTING_US: i64 = 5_000;
/// So many samples in a row must put the database ahead by more than the bound before the clock goes forward to it.
const AHEAD_SAMPLES: u32 = 5;

/// One answer of the database: its clock less ours, and by how much that may be wrong (half of the round trip).
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Instant,
    offset_us: i64,
    uncertainty_us: i64,
}

impl Sample {
    fn uncertainty_at(&self, now: Instant) -> i64 {
        self.uncertainty_us + now.saturating_duration_since(self.at).as_micros() as i64 * DRIFT_US_PER_S / 1_000_000
    }
}

#[derive(Debug)]
struct State {
    samples: VecDeque<Sample>,
    /// Offset in use, as of `steered_at`; `None` before the first anchor.
    offset_us: Option<i64>,
    steered_at: Instant,
    ahead: u32,
}

/// A region's time: see the module.
#[derive(Debug)]
pub struct RegionClock {
    start: Instant,
    state: Mutex<State>,
    last_us: AtomicU64,
}

impl RegionClock {
    /// Starts to follow the database's clock, until asked to stop. Before the first answer the time is not told.
    pub fn start(database_time: Effect<(), DatabaseTime>, shutdown: CancellationToken) -> Arc<Self> {
        let now = Instant::now();
        let state = State { samples: VecDeque::new(), offset_us: None, steered_at: now, ahead: 0 };
        let clock = Arc::new(Self { start: now, state: Mutex::new(state), last_us: AtomicU64::new(0) });
        tokio::spawn(follow(Arc::clone(&clock), database_time, shutdown));
        clock
    }

    fn since_start_us(&self, at: Instant) -> i64 {
        at.saturating_duration_since(self.start).as_micros() as i64
    }

    fn take(&self, asked: Instant, answered: Instant, DatabaseTime(database_us): DatabaseTime) {
        let uncertainty_us = (answered.saturating_duration_since(asked).as_micros() as i64) / 2;
        let middle_us = self.since_start_us(asked) + uncertainty_us;
        let sample = Sample { at: answered, offset_us: database_us as i64 - middle_us, uncertainty_us };
        if let Ok(mut state) = self.state.lock() {
            state.take(sample);
            metrics::gauge!("meridian_region_clock_offset_seconds").set(state.error_us(answered).unwrap_or_default() as f64 / 1e6);
        }
    }

    fn now(&self, now: Instant) -> Result<CommitTime> {
        let Ok(mut state) = self.state.lock() else { bail!("poisoned") };
        let offset_us = state.steer(now)?;
        let time = u64::try_from(self.since_start_us(now) + offset_us).unwrap_or_default();
        // Held under the lock, so that no later reading is smaller.
        let last = self.last_us.fetch_max(time, Ordering::Relaxed);
        Ok(CommitTime(time.max(last)))
    }

    /// Whether the clock tells the time at all: for tests and readiness.
    fn is_anchored(&self) -> bool {
        self.state.lock().is_ok_and(|state| state.offset_us.is_some())
    }
}

impl State {
    fn take(&mut self, sample: Sample) {
        if let Some(best) = self.best(sample.at)
            && (sample.offset_us - best.offset_us).abs() > sample.uncertainty_us + best.uncertainty_at(sample.at) + SETTING_US
        {
            // Round trips don't explain the difference: the database's clock was set, or ours stood still.
            self.samples.clear();
        }
        self.samples.push_back(sample);
        if self.samples.len() > SAMPLES {
            self.samples.pop_front();
        }
        let now = sample.at;
        let Some(best) = self.best(now).filter(|best| best.uncertainty_at(now) <= BOUND_US) else { return };
        match self.offset_us {
            None => (self.offset_us, self.steered_at) = (Some(best.offset_us), now),
            Some(offset_us) if best.offset_us - offset_us > BOUND_US => {
                self.ahead += 1;
                if self.ahead >= AHEAD_SAMPLES {
                    // Nobody was told a time since, and none that was told lies behind this one.
                    tracing::warn!(by_us = best.offset_us - offset_us, "the region clock goes forward to the database's");
                    (self.offset_us, self.steered_at, self.ahead) = (Some(best.offset_us), now, 0);
                }
            }
            Some(_) => self.ahead = 0,
        }
    }

    fn best(&self, now: Instant) -> Option<Sample> {
        self.samples.iter().copied().min_by_key(|sample| sample.uncertainty_at(now))
    }

    /// How far the best sample lies from the offset in use.
    fn error_us(&self, now: Instant) -> Option<i64> {
        Some(self.best(now)?.offset_us - self.offset_us?)
    }

    /// Pulls the offset towards the best sample, as far as the time since the last call allows.
    fn steer(&mut self, now: Instant) -> Result<i64> {
        let (Some(offset_us), Some(best)) = (self.offset_us, self.best(now)) else { bail!("no answer of the database yet") };
        let newest = self.samples.back().map_or(best.at, |sample| sample.at);
        if now.saturating_duration_since(newest) > STALE_AFTER {
            bail!("stale, no answer of the database for {} s", now.saturating_duration_since(newest).as_secs());
        }
        let error_us = best.offset_us - offset_us;
        if error_us.abs() + best.uncertainty_at(now) > BOUND_US {
            bail!("disagrees with the database's by {error_us} µs (bound {BOUND_US}, uncertainty {})", best.uncertainty_at(now));
        }
        let pull_max = now.saturating_duration_since(self.steered_at).as_micros() as i64 * SLEW_US_PER_S / 1_000_000;
        if pull_max > 0 {
            self.steered_at = now;
            self.offset_us = Some(offset_us + error_us.clamp(-pull_max, pull_max));
        }
        Ok(self.offset_us.unwrap_or(offset_us))
    }
}

async fn follow(clock: Arc<RegionClock>, database_time: Effect<(), DatabaseTime>, shutdown: CancellationToken) {
    loop {
        let asked = Instant::now();
        let answer = tokio::select! { () = shutdown.cancelled() => return, answer = database_time(()) => answer };
        match answer {
            Ok(time) => clock.take(asked, Instant::now(), time),
            Err(error) => tracing::debug!(error = format!("{error:#}"), "the database's clock was not read"),
        }
        let every = if clock.is_anchored() { SAMPLE_EVERY } else { SAMPLE_FIRST_EVERY };
        tokio::select! { () = shutdown.cancelled() => return, () = tokio::time::sleep_until(asked + every) => {} }
    }
}

/// The region's time now. Never smaller than any time told before by the same clock.
///
/// # Errors
/// When the anchor is missing, stale, or disagrees with the database by more than this clock's share of [`EPSILON_US`].
pub async fn region_time(clock: Arc<RegionClock>, (): ()) -> Result<CommitTime> {
    clock.now(Instant::now())
}

/// The host's clock, read once at start and carried on by monotonic time: for services without a database.
#[derive(Debug)]
pub struct HostClock {
    start: Instant,
    start_us: u64,
}

impl HostClock {
    /// Reads the host's clock.
    #[allow(clippy::disallowed_methods, clippy::new_ret_no_self)]
    pub fn start() -> Arc<Self> {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Arc::new(Self { start: Instant::now(), start_us: since_epoch.as_micros() as u64 })
    }

    /// The time now.
    pub fn now(&self) -> CommitTime {
        CommitTime(self.start_us + self.start.elapsed().as_micros() as u64)
    }
}

/// The host's time now.
///
/// # Errors
/// Never: the shape is that of [`region_time`].
pub async fn host_time(clock: Arc<HostClock>, (): ()) -> Result<CommitTime> {
    Ok(clock.now())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kit::effect;
    use std::sync::atomic::AtomicI64;

    const EPOCH_US: u64 = 1_790_000_000_000_000;

    /// A database whose clock can be set and whose answers can be delayed, each way on its own, or left out.
    #[derive(Default)]
    struct Database {
        offset_us: AtomicI64,
        drift_ppm: AtomicI64,
        there_ms: AtomicU64,
        back_ms: AtomicU64,
        silent: AtomicU64,
    }

    struct World {
        start: Instant,
        database: Arc<Database>,
        clock: Arc<RegionClock>,
        asked: Arc<AtomicU64>,
    }

    impl World {
        fn start(database: Database) -> Self {
            let (database, start, asked) = (Arc::new(database), Instant::now(), Arc::new(AtomicU64::new(0)));
            let (of, count) = (Arc::clone(&database), Arc::clone(&asked));
            let database_time = effect(move |()| {
                let (of, count) = (Arc::clone(&of), Arc::clone(&count));
                async move {
                    count.fetch_add(1, Ordering::Relaxed);
                    let wait = |ms: &AtomicU64| tokio::time::sleep(Duration::from_millis(ms.load(Ordering::Relaxed)));
                    wait(&of.there_ms).await;
                    anyhow::ensure!(of.silent.load(Ordering::Relaxed) == 0, "no answer");
                    let shown = DatabaseTime(of.shows(start));
                    wait(&of.back_ms).await;
                    Ok(shown)
                }
            });
            Self { start, clock: RegionClock::start(database_time, CancellationToken::new()), database, asked }
        }

        /// Told time less the database's, every 100 ms for `seconds`; `None` where no time is told. Holds that told times
        /// never go back, and go on at nearly the pace of monotonic time between two that were told.
        async fn run(&self, seconds: u64) -> Vec<Option<i64>> {
            let (mut last, mut errors): (Option<(u64, Instant)>, Vec<Option<i64>>) = (None, Vec::new());
            for _ in 0..seconds * 10 {
                tokio::time::sleep(Duration::from_millis(100)).await;
                let told = region_time(Arc::clone(&self.clock), ()).await.ok();
                errors.push(told.map(|told| told.0 as i64 - self.database.shows(self.start) as i64));
                if let (Some(told), Some((before, at))) = (told, last) {
                    assert!(told.0 >= before, "time went back by {} us", before - told.0);
                    let pace = told.0.abs_diff(before).abs_diff(at.elapsed().as_micros() as u64);
                    assert!(pace <= 1_000 || errors.iter().rev().nth(1) == Some(&None), "a step of {pace} us");
                }
                last = told.map(|told| (told.0, Instant::now())).or(last);
            }
            errors
        }
    }

    impl Database {
        fn shows(&self, start: Instant) -> u64 {
            let elapsed_us = start.elapsed().as_micros() as i64;
            let drift_us = elapsed_us * self.drift_ppm.load(Ordering::Relaxed) / 1_000_000;
            (EPOCH_US as i64 + elapsed_us + drift_us + self.offset_us.load(Ordering::Relaxed)) as u64
        }
        fn set(&self, field: impl Fn(&Self) -> &AtomicI64, value: i64) {
            field(self).store(value, Ordering::Relaxed);
        }
    }

    fn told(errors: &[Option<i64>]) -> usize {
        errors.iter().flatten().count()
    }

    #[tokio::test(start_paused = true)]
    async fn without_an_answer_no_time_is_told_and_with_the_first_it_is() {
        let world = World::start(Database { silent: AtomicU64::new(1), ..Database::default() });
        assert_eq!(told(&world.run(3).await), 0);
        world.database.silent.store(0, Ordering::Relaxed);
        let errors = world.run(3).await;
        assert!(errors[2..].iter().all(|error| error.is_some_and(|us| us.abs() < 1_000)), "{errors:?}");
        let asked = world.asked.load(Ordering::Relaxed);
        world.run(10).await;
        assert_eq!(world.asked.load(Ordering::Relaxed) - asked, 10, "asked once a second");
    }

    #[tokio::test(start_paused = true)]
    async fn the_best_round_trip_decides() {
        let world = World::start(Database { there_ms: AtomicU64::new(1), back_ms: AtomicU64::new(1), ..Database::default() });
        let delay = |there_ms, back_ms| {
            world.database.there_ms.store(there_ms, Ordering::Relaxed);
            world.database.back_ms.store(back_ms, Ordering::Relaxed);
        };
        for (there_ms, back_ms) in [(200, 0), (0, 200), (60, 0)] {
            delay(1, 1);
            world.run(3).await;
            delay(there_ms, back_ms);
            let errors = world.run(4).await;
            assert!(errors.iter().all(|error| error.is_some_and(|us| us.abs() < 5_000)), "{there_ms} {back_ms}: {errors:?}");
        }
        // Only round trips of 300 ms for long: half of one is more than the clock's share.
        delay(0, 300);
        assert!(world.run(15).await.last().unwrap().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stale_anchor_tells_no_time_until_there_is_a_new_one() {
        let world = World::start(Database::default());
        world.run(2).await;
        world.database.silent.store(1, Ordering::Relaxed);
        let errors = world.run(30).await;
        assert_eq!(told(&errors[..90]), 90);
        assert_eq!(told(&errors[120..]), 0);
        world.database.silent.store(0, Ordering::Relaxed);
        assert!(told(&world.run(3).await) > 15);
    }

    #[tokio::test(start_paused = true)]
    async fn a_database_set_back_silences_the_clock_until_it_agrees_again() {
        for minutes in [1, 5] {
            let world = World::start(Database::default());
            world.run(20).await;
            world.database.set(|database| &database.offset_us, -minutes * 60_000_000);
            let errors = world.run(minutes as u64 * 60 + 30).await;
            assert_eq!(told(&errors[15..]), 0, "a time behind one that was told is never told");
            world.database.set(|database| &database.offset_us, 0);
            let errors = world.run(5).await;
            assert!(errors[20..].iter().all(|error| error.is_some_and(|us| us.abs() < 2_000)), "{errors:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_database_set_forward_silences_the_clock_then_is_followed() {
        let world = World::start(Database::default());
        world.run(20).await;
        world.database.set(|database| &database.offset_us, 30_000_000);
        let errors = world.run(20).await;
        assert!(told(&errors[15..35]) == 0, "{errors:?}");
        assert!(errors[70..].iter().all(|error| error.is_some_and(|us| us.abs() < 2_000)), "{errors:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_small_difference_is_pulled_in_without_a_step() {
        let world = World::start(Database { drift_ppm: AtomicI64::new(100), ..Database::default() });
        let errors = world.run(120).await;
        assert!(errors[2..].iter().all(|error| error.is_some_and(|us| us.abs() < 3_000)), "{errors:?}");
        world.database.set(|database| &database.offset_us, 100_000);
        let errors = world.run(60).await;
        assert_eq!(told(&errors), 600, "within its share of the bound time is told all along");
        assert!(errors[0].unwrap() < -95_000 && errors[599].unwrap().abs() < 3_000);
    }

    #[tokio::test(start_paused = true)]
    async fn the_hosts_clock_goes_on() {
        let clock = HostClock::start();
        let before = host_time(Arc::clone(&clock), ()).await.unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(clock.now().since(before), 2_000_000);
    }
}
