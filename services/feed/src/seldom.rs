//! Saying the same thing not too often.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Allows something once in ten seconds: a line of log about what may happen at every record or request.
#[derive(Debug, Default)]
pub struct Seldom(Mutex<Option<Instant>>);

impl Seldom {
    /// Whether it is time.
    pub fn due(&self) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last.is_none_or(|last| last.elapsed() >= Duration::from_secs(10));
        if due {
            *last = Some(Instant::now());
        }
        due
    }
}
