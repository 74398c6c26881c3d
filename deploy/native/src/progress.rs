//! What is being done right now, for a person who waits.

use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One thing that was said.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Line {
    /// Seconds since the launcher began.
    pub seconds: f64,
    /// What it is about: a region's name, `fetch`, `world`.
    pub scope: String,
    /// What happened.
    pub text: String,
}

impl std::fmt::Display for Line {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:7.1} s  {:<6} {}", self.seconds, self.scope, self.text)
    }
}

/// Says what is being done: each line goes to standard error at once and is kept for those who ask later. Shared by cloning.
#[derive(Clone)]
pub struct Progress(Arc<Shared>);

struct Shared {
    began: Instant,
    lines: Mutex<Vec<Line>>,
    more: Condvar,
}

impl Default for Progress {
    fn default() -> Self {
        Self(Arc::new(Shared { began: Instant::now(), lines: Mutex::default(), more: Condvar::new() }))
    }
}

impl Progress {
    /// Says one line.
    pub fn say(&self, scope: &str, text: impl Into<String>) {
        let line = Line { seconds: self.0.began.elapsed().as_secs_f64(), scope: scope.into(), text: text.into() };
        // A closed standard error (the terminal went away) must not stop the world.
        let _ = writeln!(std::io::stderr(), "{line}");
        self.lines().push(line);
        self.0.more.notify_all();
    }

    /// The lines from number `from` on; waits up to `patience` for the first of them.
    pub fn since(&self, from: usize, patience: Duration) -> Vec<Line> {
        let lines = self.lines();
        let (lines, _) =
            self.0.more.wait_timeout_while(lines, patience, |lines| lines.len() <= from).unwrap_or_else(PoisonError::into_inner);
        lines.get(from..).unwrap_or_default().to_vec()
    }

    /// Seconds since the launcher began.
    pub fn seconds(&self) -> f64 {
        self.0.began.elapsed().as_secs_f64()
    }

    fn lines(&self) -> MutexGuard<'_, Vec<Line>> {
        self.0.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
