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
        let Ok(mut state) = self.state.lock() else { bail!("region clock: poisoned") };
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
        if let Some(offset_us) = self.offset_us
            && (sample.offset_us - offset_us).abs() > BOUND_US + sample.uncertainty_us
        {
            // It cannot be explained by its round trip: the database's clock was set, or ours stood still.
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
        let (Some(offset_us), Some(best)) = (self.offset_us, self.best(now)) else { bail!("region clock: no answer of the database yet") };
        let newest = self.samples.back().map_or(best.at, |sample| sample.at);
        if now.saturating_duration_since(newest) > STALE_AFTER {
            bail!("region clock: stale, no answer of the database for {} s", now.saturating_duration_since(newest).as_secs());
        }
        let error_us = best.offset_us - offset_us;
        if error_us.abs() + best.uncertainty_at(now) > BOUND_US {
            bail!(
                "region clock: disagrees with the database's by {error_us} µs (bound {BOUND_US}, uncertainty {})",
                best.uncertainty_at(now)
            );
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
