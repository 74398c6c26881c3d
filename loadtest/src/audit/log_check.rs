//! What a partition must hold by itself: positions that are dense and stand once, and watermarks that say the truth.

use std::collections::{BTreeSet, HashSet};

/// Faults told of one partition at most.
const FAULTS_MAX: usize = 20;

/// A watermark as it stands in a log.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// Commit times, exclusive and inclusive.
    pub from_us: u64,
    /// See `from_us`.
    pub through_us: u64,
    /// Events in the interval.
    pub rows: u64,
    /// Exclusive or of their commit ids.
    pub xor: u128,
}

/// Reads one partition from its oldest record on.
#[derive(Debug, Default)]
pub struct LogCheck {
    next: Option<u64>,
    seen: HashSet<u64>,
    commits: BTreeSet<u128>,
    sealed_through_us: u64,
    /// Origin offsets met again.
    pub repeated: Vec<u64>,
    /// Commit ids that came after their time was sealed.
    pub late: Vec<u128>,
    /// What is wrong, in words.
    pub faults: Vec<String>,
}

impl LogCheck {
    /// Notes a fault, unless there are enough.
    pub fn fault(&mut self, text: String) {
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(text);
        }
    }

    /// Takes the next record's position. False for one that stood there before.
    pub fn position(&mut self, offset: u64) -> bool {
        if !self.seen.insert(offset) {
            self.repeated.push(offset);
            return false;
        }
        match self.next {
            Some(next) if offset > next => self.fault(format!("positions {next} to {} are missing", offset - 1)),
            Some(next) if offset < next => self.fault(format!("position {offset} stands after position {}", next - 1)),
            _ => {}
        }
        self.next = Some(self.next.unwrap_or_default().max(offset + 1));
        true
    }

    /// Takes an event.
    pub fn event(&mut self, commit: u128) {
        let new = self.commits.insert(commit);
        if new && (commit >> 64) as u64 <= self.sealed_through_us {
            self.late.push(commit);
        }
    }

    /// Takes a watermark: all that it counts must stand before it.
    pub fn watermark(&mut self, offset: u64, claim: Claim) {
        let Claim { from_us, through_us, rows, xor } = claim;
        let time = |us: u64| u128::from(us) << 64 | u128::from(u64::MAX);
        if through_us < from_us {
            return self.fault(format!("position {offset}: a watermark from {from_us} through {through_us}"));
        }
        let (count, seen) = self.commits.range(time(from_us) + 1..=time(through_us)).fold((0, 0), |(count, xor), id| (count + 1, xor ^ id));
        if (count, seen) != (rows, xor) {
            self.fault(format!(
                "position {offset}: a watermark counts {rows} events from {from_us} through {through_us}, {count} stand there"
            ));
        }
        if self.sealed_through_us != 0 && from_us > self.sealed_through_us {
            self.fault(format!("position {offset}: a watermark from {from_us}, the chain ends at {}", self.sealed_through_us));
        }
        self.sealed_through_us = self.sealed_through_us.max(through_us);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(steps: impl FnOnce(&mut LogCheck)) -> (Vec<u64>, Vec<String>) {
        let mut log = LogCheck::default();
        steps(&mut log);
        (log.repeated, log.faults)
    }

    fn id(us: u64, low: u64) -> u128 {
        u128::from(us) << 64 | u128::from(low)
    }

    fn sound(log: &mut LogCheck) {
        for (offset, us) in [(4, 10), (5, 20), (6, 15)] {
            assert!(log.position(offset));
            log.event(id(us, 7));
        }
        log.position(7);
        log.watermark(7, Claim { from_us: 5, through_us: 15, rows: 2, xor: id(10, 7) ^ id(15, 7) });
        log.position(8);
        log.watermark(8, Claim { from_us: 15, through_us: 30, rows: 1, xor: id(20, 7) });
    }

    #[test]
    fn a_sound_partition_has_no_faults() {
        assert_eq!(check(sound), (vec![], vec![]));
        let repeated_rows = check(|log| {
            sound(log);
            // A relay that starts again publishes and seals a span once more: the same ids, no fault.
            log.position(9);
            log.event(id(20, 7));
            log.position(10);
            log.watermark(10, Claim { from_us: 15, through_us: 40, rows: 1, xor: id(20, 7) });
        });
        assert_eq!(repeated_rows, (vec![], vec![]));
    }

    #[test]
    fn positions_must_be_dense_and_stand_once() {
        let (repeated, faults) = check(|log| {
            [4, 5, 5, 6, 9, 8].into_iter().for_each(|offset| {
                log.position(offset);
            })
        });
        assert_eq!(repeated, [5]);
        assert_eq!(faults, ["positions 7 to 8 are missing", "position 8 stands after position 9"]);
    }

    #[test]
    fn a_watermark_before_its_events_is_seen() {
        let mut log = LogCheck::default();
        log.position(0);
        log.watermark(0, Claim { from_us: 5, through_us: 15, rows: 1, xor: id(10, 7) });
        log.position(1);
        log.event(id(10, 7));
        assert_eq!((log.faults.len(), log.late), (1, vec![id(10, 7)]));
    }

    #[test]
    fn a_watermark_that_counts_wrongly_or_does_not_join_is_seen() {
        for claim in [
            Claim { from_us: 30, through_us: 50, rows: 1, xor: 0 },
            Claim { from_us: 30, through_us: 50, rows: 0, xor: 1 },
            Claim { from_us: 31, through_us: 50, rows: 0, xor: 0 },
            Claim { from_us: 30, through_us: 20, rows: 0, xor: 0 },
        ] {
            let (_, faults) = check(|log| {
                sound(log);
                log.position(9);
                log.watermark(9, claim);
            });
            assert_eq!(faults.len(), 1, "{claim:?}: {faults:?}");
        }
    }
}
