//! Finding an origin offset in a copy, whose local offsets are others.

use super::{Bounds, Record};
use anyhow::Result;

/// How far back from the place found a repeated stretch is looked for: a mirror that repeats, repeats what it had in flight.
const REPEAT_WINDOW: u64 = 4096;
/// How many records without a known origin are looked over at once.
const STEP: usize = 16;

/// Reads records from a local offset on, at most so many: (local offset, origin offset) each.
pub(super) type Probe<'a> = &'a mut dyn FnMut(u64, usize) -> Result<Vec<(u64, u64)>>;

/// Local offset of the first record whose origin offset is `wanted` or greater, `bounds.high` if there is none.
///
/// Origin offsets of a copy rise by one, apart from stretches that are repeated and records that nobody's mirror put there;
/// both are allowed for. Costs one read where nothing was repeated before, else about log2(records).
pub(super) fn first_at_or_after(bounds: Bounds, wanted: u64, hint: Option<u64>, probe: Probe<'_>) -> Result<u64> {
    if bounds.low >= bounds.high {
        return Ok(bounds.high);
    }
    if let Some(hint) = hint
        && stands_at(bounds, wanted, hint, probe)?
    {
        return Ok(hint);
    }
    let Some((first_local, first_origin)) = known_from(bounds.low, bounds.high, probe)? else { return Ok(bounds.high) };
    if first_origin >= wanted {
        return Ok(first_local);
    }
    // As many records as offsets lie between: nothing was repeated before, so this is the first of its offset.
    let guess = first_local.saturating_add(wanted - first_origin);
    if stands_at(bounds, wanted, guess, probe)? {
        return Ok(guess);
    }
    let mut found = halve(first_local, bounds.high, wanted, probe)?;
    loop {
        let from = found.saturating_sub(REPEAT_WINDOW).max(bounds.low);
        let Some(earlier) = first_within(from, found, wanted, probe)? else { return Ok(found) };
        found = earlier;
    }
}

/// Whether `local` holds `wanted`, or is the end of a log that ends just before `wanted`.
fn stands_at(bounds: Bounds, wanted: u64, local: u64, probe: Probe<'_>) -> Result<bool> {
    if local < bounds.low || local > bounds.high {
        return Ok(false);
    }
    let (at, expected) = if local < bounds.high { (local, Some(wanted)) } else { (local - 1, wanted.checked_sub(1)) };
    Ok(probe(at, 1)?.first().is_some_and(|(found, origin)| *found == at && Some(*origin) == expected))
}

/// The first record in `from..end` whose origin is known.
fn known_from(mut from: u64, end: u64, probe: Probe<'_>) -> Result<Option<(u64, u64)>> {
    let mut step = 1;
    while from < end {
        let records = probe(from, step)?;
        let Some((last, _)) = records.last() else { return Ok(None) };
        if let Some(found) = records.iter().find(|(local, origin)| *local < end && *origin != Record::UNKNOWN_ORIGIN) {
            return Ok(Some(*found));
        }
        (from, step) = (last + 1, STEP);
    }
    Ok(None)
}

/// Between `below`, which holds less than `wanted`, and `end`.
fn halve(below: u64, end: u64, wanted: u64, probe: Probe<'_>) -> Result<u64> {
    let (mut below, mut found) = (below, end);
    while found - below > 1 {
        let middle = below + (found - below) / 2;
        match known_from(middle, found, probe)? {
            Some((local, origin)) if origin < wanted => below = local,
            // Where all from the middle up to `found` is unknown, or up to a greater one, reading may as well begin at the middle.
            _ => found = middle,
        }
    }
    Ok(found)
}

/// The first record in `from..end` whose origin offset is known and at least `wanted`.
fn first_within(mut from: u64, end: u64, wanted: u64, probe: Probe<'_>) -> Result<Option<u64>> {
    while from < end {
        let records = probe(from, (end - from) as usize)?;
        let Some((last, _)) = records.last() else { return Ok(None) };
        let fits = |(local, origin): &&(u64, u64)| *local < end && *origin != Record::UNKNOWN_ORIGIN && *origin >= wanted;
        if let Some((local, _)) = records.iter().find(fits) {
            return Ok(Some(*local));
        }
        from = last + 1;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_proto::{Sequence, Step};

    const UNKNOWN: u64 = Record::UNKNOWN_ORIGIN;

    /// What a reader that starts where `find` says takes, beginning with `wanted`, and how many reads the search took.
    fn check(low: u64, origins: &[u64], wanted: u64, hint: Option<u64>) -> (u64, usize) {
        let bounds = Bounds { low, high: low + origins.len() as u64 };
        let mut reads = 0;
        let mut probe = |from: u64, max: usize| {
            reads += 1;
            assert!(from >= low, "reads only what is kept");
            Ok(origins.iter().enumerate().map(|(k, origin)| (low + k as u64, *origin)).skip((from - low) as usize).take(max).collect())
        };
        let found = first_at_or_after(bounds, wanted, hint, &mut probe).unwrap();
        let mut sequence = Sequence::starting_at(wanted);
        for origin in origins.iter().skip((found - low) as usize).filter(|origin| **origin != UNKNOWN) {
            assert!(
                !matches!(sequence.step(*origin), Step::Gap { .. }),
                "{origins:?} from {found}, wanted {wanted}: a gap before {origin}"
            );
        }
        let greatest = origins.iter().filter(|origin| **origin != UNKNOWN).max().map_or(0, |greatest| greatest + 1);
        assert_eq!(sequence.next(), greatest.max(wanted), "{origins:?} from {found}: everything from {wanted} on was taken");
        (found, reads)
    }

    #[test]
    fn a_dense_copy_takes_two_reads() {
        let origins: Vec<u64> = (100..10_000).collect();
        assert_eq!(check(7, &origins, 100, None).0, 7);
        assert_eq!(check(7, &origins, 5_000, None), (4_907, 2));
        assert_eq!(check(7, &origins, 10_000, None), (9_907, 2), "the end");
        assert_eq!(check(7, &origins, 5_000, Some(4_907)), (4_907, 1), "a right hint");
        assert_eq!(check(7, &origins, 5_000, Some(1)), (4_907, 2), "a wrong hint");
        assert_eq!(check(0, &[], 5, None).0, 0);
    }

    #[test]
    fn a_place_past_repeats_and_strangers_is_found_from_every_side() {
        let mut origins: Vec<u64> = (0..60).collect();
        origins.splice(50..50, 30..50);
        origins.splice(20..20, [UNKNOWN; 40]);
        origins.extend([UNKNOWN, 60, 58, 59, 60, 61, UNKNOWN]);
        for wanted in 0..=62 {
            // A hint is where a reader that took everything once met the offset: never within a repeat.
            for hint in [None, Some(3), Some(origins.len() as u64)] {
                check(0, &origins, wanted, hint);
                check(1_000, &origins, wanted, hint);
            }
        }
        for wanted in 5..=9 {
            check(0, &[5, 6, 7, 8, 5, 9], wanted, None);
            check(0, &[5, 6, 7, 8, 6, 7, 9], wanted, None);
        }
    }
}
