//! Waiting longer after each failure, with jitter, up to a bound.

use rand::{RngExt, SeedableRng, rngs::SmallRng};
use std::{cell::RefCell, time::Duration};

thread_local! {
    static JITTER: RefCell<Option<SmallRng>> = const { RefCell::new(None) };
}

/// Draws the jitter of this thread's waits from a seed from now on, so that a simulation can be repeated.
pub fn seed_jitter(seed: u64) {
    JITTER.set(Some(SmallRng::seed_from_u64(seed)));
}

fn jitter() -> f64 {
    JITTER.with_borrow_mut(|seeded| match seeded {
        Some(seeded) => seeded.random_range(0.5..=1.0),
        None => rand::rng().random_range(0.5..=1.0),
    })
}

/// Exponential backoff with full jitter: each wait is drawn between half the current step and the whole.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    max: Duration,
    step: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::new(Duration::from_millis(50), Duration::from_secs(5))
    }
}

impl Backoff {
    /// Waits of about `first`, doubled each time, at most `max`.
    pub fn new(first: Duration, max: Duration) -> Self {
        Self { first, max, step: first }
    }

    /// The next wait, without waiting.
    pub fn next_delay(&mut self) -> Duration {
        let delay = self.step.mul_f64(jitter());
        self.step = (self.step * 2).min(self.max);
        delay
    }

    /// Waits.
    pub async fn wait(&mut self) {
        tokio::time::sleep(self.next_delay()).await;
    }

    /// After a success: start over.
    pub fn reset(&mut self) {
        self.step = self.first;
    }
}
