//! How complete an answer is: per origin region, everything acknowledged in (`since`, `through`] is counted in it.
//! **No chain of evidence, no claim.**

use adapters::clickhouse::{PositionRow, Progress};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// An interval of commit time that no watermark covers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
pub struct Gap {
    /// Exclusive.
    pub from: String,
    /// Inclusive.
    pub through: String,
}

/// What is known of one origin region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Completeness {
    /// The answer holds every event that this region acknowledged after this time; null: unknown, no claim.
    pub since: Option<String>,
    /// … and before or at this time; null: unknown, no claim.
    pub through: Option<String>,
    /// Where knowledge stops although more is there.
    pub gaps: Vec<Gap>,
    /// Records of this region that could not be read and are neither redriven nor dismissed: they are not counted.
    pub parked: u64,
}

/// Completeness of each region, from progress that was read before the sums: the minimum over all partitions of every known
/// generation. A partition without a row, or without a watermark, makes the region unknown.
pub fn completeness(regions: &[String], progress: &Progress) -> BTreeMap<String, Completeness> {
    let of_region = |region: &String| {
        let rows: Vec<&PositionRow> = progress.rows.iter().filter(|row| row.origin == *region).collect();
        let parked = progress.parked.iter().filter(|(origin, _)| origin == region).map(|(_, records)| records).sum();
        let mut gaps: Vec<Gap> = rows
            .iter()
            .filter(|row| row.gap_through_us > row.gap_from_us)
            .map(|row| Gap { from: text(row.gap_from_us), through: text(row.gap_through_us) })
            .collect();
        gaps.sort();
        gaps.dedup();
        let known = known(&rows).filter(|(since, through)| since <= through);
        let (since, through) = (known.map(|(since, _)| text(since)), known.map(|(_, through)| text(through)));
        (region.clone(), Completeness { since, through, gaps, parked })
    };
    regions.iter().map(of_region).collect()
}

/// The interval that every partition of every generation covers, if every one of them is there.
fn known(rows: &[&PositionRow]) -> Option<(u64, u64)> {
    let mut generations: BTreeMap<u32, (u16, usize)> = BTreeMap::new();
    for row in rows {
        let (partitions, seen) = generations.entry(row.generation).or_default();
        *partitions = (*partitions).max(row.partitions);
        *seen += usize::from(row.through_us > 0);
    }
    let whole = |(partitions, seen): &(u16, usize)| *partitions > 0 && usize::from(*partitions) == *seen;
    if generations.is_empty() || !generations.values().all(whole) {
        return None;
    }
    Some((rows.iter().map(|row| row.since_us).max()?, rows.iter().map(|row| row.through_us).min()?))
}

/// Microseconds since the Unix epoch as RFC 3339, always with six digits of the second.
pub fn text(us: u64) -> String {
    let time = i64::try_from(us).ok().and_then(|us| Timestamp::from_microsecond(us).ok());
    time.map_or_else(|| format!("{us} µs"), |time| format!("{time:.6}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(origin: &str, generation: u32, partition: u16, since_us: u64, through_us: u64) -> PositionRow {
        PositionRow { origin: origin.into(), generation, partition, partitions: 2, since_us, through_us, ..PositionRow::default() }
    }

    fn check(rows: Vec<PositionRow>, expected: Option<(u64, u64)>) {
        let regions = ["fra".to_owned()];
        let found = completeness(&regions, &Progress { rows, parked: vec![("iad".into(), 1)], ..Progress::default() });
        let fra = &found["fra"];
        assert_eq!(
            (fra.since.clone(), fra.through.clone()),
            (expected.map(|(since, _)| text(since)), expected.map(|(_, through)| text(through)))
        );
        assert_eq!((found.len(), fra.parked), (1, 0));
    }

    #[test]
    fn only_a_whole_region_is_claimed_and_only_as_far_as_its_least_partition() {
        check(vec![], None);
        check(vec![row("fra", 1, 0, 5, 10)], None);
        check(vec![row("fra", 1, 0, 5, 10), row("iad", 1, 1, 5, 10)], None);
        check(vec![row("fra", 1, 0, 5, 10), row("fra", 1, 1, 7, 9)], Some((7, 9)));
        check(vec![row("fra", 1, 0, 5, 10), row("fra", 1, 1, 0, 0)], None);
        check(vec![row("fra", 1, 0, 0, 10), row("fra", 1, 1, 0, 9)], Some((0, 9)));
        check(vec![row("fra", 1, 0, 5, 10), row("fra", 1, 1, 11, 12)], None);
    }

    #[test]
    fn every_known_generation_counts() {
        let first = [row("fra", 1, 0, 5, 10), row("fra", 1, 1, 5, 10)];
        check([&first[..], &[row("fra", 2, 0, 8, 20)]].concat(), None);
        check([&first[..], &[row("fra", 2, 0, 8, 20), row("fra", 2, 1, 8, 30)]].concat(), Some((8, 10)));
    }

    #[test]
    fn gaps_and_parked_records_are_named() {
        let gap = PositionRow { gap_from_us: 10, gap_through_us: 12, ..row("fra", 1, 0, 5, 10) };
        let progress = Progress {
            rows: vec![gap.clone(), PositionRow { partition: 1, ..gap }],
            parked: vec![("fra".into(), 3)],
            ..Progress::default()
        };
        let found = &completeness(&["fra".into()], &progress)["fra"];
        assert_eq!(found.gaps, [Gap { from: "1970-01-01T00:00:00.000010Z".into(), through: "1970-01-01T00:00:00.000012Z".into() }]);
        assert_eq!((found.parked, found.through.as_deref()), (3, Some("1970-01-01T00:00:00.000010Z")));
    }
}
