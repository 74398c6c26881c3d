//! Rows that are published and not sealed yet.

use meridian_proto::{CommitId, CommitTime};
use std::collections::BTreeMap;

/// For each row, how many of its events the log is known to hold. Bounded: forgetting costs a repeat in the log, nothing else.
pub(crate) struct Remembered {
    rows: BTreeMap<CommitId, usize>,
    max: usize,
}

impl Remembered {
    pub(crate) fn new(max: usize) -> Self {
        Self { rows: BTreeMap::new(), max }
    }

    /// Events of the row that are in the log, if any is known of it. A row of which only some are has to be published again.
    pub(crate) fn events_of(&self, row: CommitId) -> Option<usize> {
        self.rows.get(&row).copied()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(crate) fn extend(&mut self, rows: impl IntoIterator<Item = (CommitId, usize)>) {
        self.rows.extend(rows);
        while self.rows.len() > self.max {
            self.rows.pop_first();
        }
    }

    pub(crate) fn forget_through(&mut self, sealed: CommitTime) {
        let later = CommitId(CommitId::last_at(sealed).0.saturating_add(1));
        self.rows = self.rows.split_off(&later);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_forgets_what_is_sealed_and_the_oldest_above_its_bound() {
        let row = |time| CommitId::last_at(CommitTime(time)).row();
        let mut remembered = Remembered::new(3);
        remembered.extend([1, 2, 3, 4].map(|time| (row(time), 1)));
        let known = |remembered: &Remembered| [1, 2, 3, 4].map(|time| remembered.events_of(row(time)).is_some());
        assert_eq!(known(&remembered), [false, true, true, true]);
        remembered.forget_through(CommitTime(3));
        assert_eq!(known(&remembered), [false, false, false, true]);
        assert!(!remembered.is_empty());
    }
}
