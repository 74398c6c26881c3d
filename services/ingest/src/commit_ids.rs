//! Commit ids of one process: hybrid logical time.

use meridian_proto::{CommitId, CommitTime, Incarnation};
use std::sync::atomic::{AtomicU64, Ordering};

/// Makes ids of change rows: each greater than the last, none made twice by this or any other process.
#[derive(Debug)]
pub struct CommitIds {
    incarnation: Incarnation,
    last_us: AtomicU64,
}

impl CommitIds {
    /// Ids of a process with this incarnation: to be drawn anew at each start.
    pub fn new(incarnation: Incarnation) -> Self {
        Self { incarnation, last_us: AtomicU64::new(0) }
    }

    /// The next id. Its time is `now`, or a microsecond more than the last one's where the clock has not gone on.
    pub fn next(&self, now: CommitTime) -> CommitId {
        let after = |last: u64| now.0.max(last + 1);
        let last = self.last_us.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(after(last)));
        CommitId::of_row(CommitTime(after(last.unwrap_or_default())), self.incarnation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::HashSet, sync::Mutex, thread};

    #[test]
    fn ids_grow_also_when_the_clock_stands_still_or_goes_back() {
        let ids = CommitIds::new(Incarnation::from_random(7));
        let made: Vec<CommitId> = [10, 10, 10, 5, 20].map(|now| ids.next(CommitTime(now))).to_vec();
        assert_eq!(made.iter().map(|id| id.time().0).collect::<Vec<_>>(), [10, 11, 12, 13, 20]);
    }

    #[test]
    fn threads_never_make_the_same_id() {
        let (ids, seen) = (CommitIds::new(Incarnation::from_random(7)), Mutex::new(HashSet::new()));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let made: Vec<_> = (0..10_000).map(|now| ids.next(CommitTime(now / 100))).collect();
                    seen.lock().unwrap().extend(made);
                });
            }
        });
        assert_eq!(seen.lock().unwrap().len(), 40_000);
    }
}
