//! Where a copy ends, read from its last records. Pure.

use std::cmp::Reverse;

/// The origin offset that a copy holds last, judged by its tail.
///
/// `offsets` are the origin offsets of the tail's records in local order; `None` where no mirror of ours stamped one. The answer is the
/// end of the longest run of consecutive offsets, the lowest one if several are as long (too low costs repeats, too high would skip): a
/// record that somebody else put there, with whatever position, is no part of a run. A repeat (two mirrors at once) is part of one.
pub fn last_of_tail(offsets: &[Option<u64>]) -> Tail {
    let mut sorted: Vec<u64> = offsets.iter().flatten().copied().collect();
    sorted.sort_unstable();
    sorted.dedup();
    let best = sorted.chunk_by(|a, b| a.checked_add(1) == Some(*b)).max_by_key(|run| (run.len(), Reverse(run.last())));
    let Some((last, run)) = best.and_then(|run| Some((*run.last()?, run))) else {
        return Tail { last: None, strays: offsets.len() };
    };
    let strays = offsets.iter().filter(|offset| !offset.is_some_and(|offset| run.contains(&offset))).count();
    Tail { last: Some(last), strays }
}

/// What a tail tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// The origin offset held last; `None` when no record of the tail has one.
    pub last: Option<u64>,
    /// Records that are no part of the copy: unreadable, unstamped or with a position that does not join.
    pub strays: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(offsets: &[i64], last: Option<u64>, strays: usize) {
        let offsets: Vec<_> = offsets.iter().map(|&offset| u64::try_from(offset).ok()).collect();
        assert_eq!(last_of_tail(&offsets), Tail { last, strays }, "{offsets:?}");
    }

    #[test]
    fn a_tail_is_believed_as_far_as_it_joins() {
        check(&[], None, 0);
        check(&[7], Some(7), 0);
        check(&[7, 8, 9], Some(9), 0);
        // Nobody's stamp at the end: walked back over.
        check(&[7, 8, 9, -1, -1], Some(9), 2);
        check(&[-1, -1], None, 2);
        // A forged position, far above or below.
        check(&[7, 8, 9, 5000], Some(9), 1);
        check(&[7, 8, 9, 2], Some(9), 1);
        check(&[5000, 7, 8], Some(8), 1);
        check(&[7, 5000], Some(7), 1);
        // Two mirrors at once, or an append that arrived late.
        check(&[7, 8, 7, 8, 9, 9], Some(9), 0);
        check(&[7, 8, 9, 10, 7, 8], Some(10), 0);
    }
}
