//! Saying the same thing not too often.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Allows something once in a while: a line of log about what may happen at every request.
#[derive(Debug)]
pub struct Seldom {
    every: Duration,
    state: Mutex<(Option<Instant>, u64)>,
}

impl Default for Seldom {
    /// Once in ten seconds.
    fn default() -> Self {
        Self::new(Duration::from_secs(10))
    }
}

impl Seldom {
    /// Allows once in `every`.
    pub const fn new(every: Duration) -> Self {
        Self { every, state: Mutex::new((None, 0)) }
    }

    /// Whether it is time, and how often it was not since the last time it was.
    pub fn due(&self) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.0.is_some_and(|last| last.elapsed() < self.every) {
            state.1 += 1;
            return None;
        }
        state.0 = Some(Instant::now());
        Some(std::mem::take(&mut state.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_was_withheld_is_told() {
        let seldom = Seldom::new(Duration::from_secs(1));
        assert_eq!([seldom.due(), seldom.due(), seldom.due()], [Some(0), None, None]);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(seldom.due(), Some(2));
    }
}
