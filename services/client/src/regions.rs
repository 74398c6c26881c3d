//! Which of several regions to ask: the preferred one, or for a while another when it does not answer.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// After this time elsewhere the preferred region is tried again.
const RETURN_AFTER: Duration = Duration::from_secs(10);

/// The region in use, as an index into a configured list.
#[derive(Debug)]
pub(crate) struct Regions {
    count: usize,
    moved: Mutex<(usize, Option<Instant>)>,
}

impl Regions {
    pub(crate) fn new(count: usize) -> Self {
        Self { count, moved: Mutex::new((0, None)) }
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The region to ask now.
    pub(crate) fn current(&self) -> usize {
        let mut moved = self.moved.lock().unwrap_or_else(PoisonError::into_inner);
        if moved.1.is_some_and(|since| since.elapsed() >= RETURN_AFTER) {
            *moved = (0, None);
        }
        moved.0
    }

    /// The region did not answer: move on, unless another caller has moved on already.
    pub(crate) fn failed(&self, region: usize) {
        let mut moved = self.moved.lock().unwrap_or_else(PoisonError::into_inner);
        if moved.0 == region && self.count > 1 {
            *moved = ((region + 1) % self.count, Some(Instant::now()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_moves_on_once_a_failure_and_comes_back() {
        let regions = Regions::new(3);
        assert_eq!(regions.current(), 0);
        regions.failed(0);
        regions.failed(0);
        assert_eq!(regions.current(), 1);
        regions.failed(1);
        assert_eq!(regions.current(), 2);
        tokio::time::advance(RETURN_AFTER).await;
        assert_eq!(regions.current(), 0);
    }
}
