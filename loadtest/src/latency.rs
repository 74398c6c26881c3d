//! How long an event took, hop by hop, for each pair of regions.

use crate::{
    audit::RegionAudit,
    history::{History, Outcome},
};
use anyhow::Result;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

/// Places on an event's way, each with the place from which its step is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hop {
    /// Ingest had read the request. From the intended time.
    Accepted,
    /// The client had its answer. From `accepted`.
    Committed,
    /// In the origin's log. From `accepted`.
    Relayed,
    /// In the destination's copy of the log. From `relayed`.
    Mirrored,
    /// In the destination's ClickHouse. From `mirrored`.
    Stored,
    /// The signal was sent in the destination. From `mirrored`.
    Signalled,
    /// The destination's consumer had the page. From `signalled`, or from `mirrored` if it pulled by its tick.
    Pulled,
}

impl Hop {
    /// In the order of the way.
    pub const ALL: [Self; 7] =
        [Self::Accepted, Self::Committed, Self::Relayed, Self::Mirrored, Self::Stored, Self::Signalled, Self::Pulled];

    /// As in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Committed => "committed",
            Self::Relayed => "relayed",
            Self::Mirrored => "mirrored",
            Self::Stored => "stored",
            Self::Signalled => "signalled",
            Self::Pulled => "pulled",
        }
    }
}

/// 1 µs to 60 s, 3 digits.
#[derive(Clone, Debug)]
pub struct Times {
    histogram: Histogram<u64>,
    /// Differences below 0: of two clocks, or of stamps in whole milliseconds. Counted, not clamped.
    pub negative: u64,
}

impl Default for Times {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, 60_000_000, 3).expect("the bounds are constants");
        Self { histogram, negative: 0 }
    }
}

impl Times {
    /// Takes the time from one stamp to another, both microseconds since the Unix epoch.
    pub fn record(&mut self, from_us: u64, to_us: u64) {
        match to_us.checked_sub(from_us) {
            Some(time) => self.histogram.saturating_record(time),
            None => self.negative += 1,
        }
    }

    /// Adds the times of another.
    ///
    /// # Errors
    /// Never between histograms of this type.
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        self.negative += other.negative;
        Ok(self.histogram.add(&other.histogram)?)
    }

    /// The histogram itself.
    pub fn histogram(&self) -> &Histogram<u64> {
        &self.histogram
    }

    /// Its numbers.
    pub fn stats(&self) -> Stats {
        let at = |quantile| self.histogram.value_at_quantile(quantile) as f64 / 1e3;
        if self.histogram.is_empty() {
            return Stats { negative: self.negative, ..Stats::default() };
        }
        Stats {
            count: self.histogram.len(),
            p50_ms: at(0.5),
            p99_ms: at(0.99),
            p999_ms: at(0.999),
            max_ms: self.histogram.max() as f64 / 1e3,
            negative: self.negative,
        }
    }
}

/// Numbers of one histogram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// Times taken.
    pub count: u64,
    /// Median.
    pub p50_ms: f64,
    /// 99 %.
    pub p99_ms: f64,
    /// 99.9 %.
    pub p999_ms: f64,
    /// Greatest.
    pub max_ms: f64,
    /// Differences below 0, not part of the others.
    #[serde(default)]
    pub negative: u64,
}

/// Times of one hop.
#[derive(Clone, Debug, Default)]
pub struct HopTimes {
    /// From the place before.
    pub step: Times,
    /// From the intended time.
    pub corrected: Times,
    /// From the time of the first sending.
    pub uncorrected: Times,
}

/// Times of one pair of regions.
pub type PairTimes = BTreeMap<Hop, HopTimes>;

/// Origin and destination.
pub type Pair = (String, String);

/// All that is measured of a run.
#[derive(Clone, Debug, Default)]
pub struct Latency {
    /// By origin and destination.
    pub pairs: BTreeMap<Pair, PairTimes>,
    /// Actual less intended time of the first sending.
    pub send_error: Times,
    /// From intended to pulled, by pair and second of the intended time.
    pub pulled_by_second: BTreeMap<(Pair, u64), Times>,
    /// From intended to the answer, by region and second of the intended time.
    pub answered_by_second: BTreeMap<(String, u64), Times>,
}

/// What the client knows of a commit id.
#[derive(Clone, Copy)]
struct Posted {
    intended_us: u64,
    sent_us: u64,
    answered_us: u64,
}

/// Stamps of an event at a destination; 0 is unknown.
#[derive(Clone, Copy, Debug, Default)]
struct Stamps {
    accepted_us: u64,
    relayed_us: u64,
    mirrored_us: u64,
    stored_us: u64,
    signalled_us: u64,
    pulled_us: u64,
}

/// Measures a run.
pub fn measure(history: &History, audits: &[RegionAudit]) -> Latency {
    let mut latency = Latency::default();
    let posted = measure_client(history, &mut latency);
    for audit in audits {
        for (commit, (origin, stamps)) in stamps(audit) {
            if let Some(posted) = posted.get(&commit) {
                record(&mut latency, history.head.start_us, (origin, audit.region.clone()), *posted, stamps);
            }
        }
    }
    latency
}

fn measure_client(history: &History, latency: &mut Latency) -> HashMap<u128, Posted> {
    let mut posted = HashMap::new();
    for record in &history.records {
        let Some(first) = record.attempts.first() else { continue };
        if record.intended_us >= history.head.measured_from_us {
            latency.send_error.record(record.intended_us.min(first.sent_us), first.sent_us);
        }
        let Some(decided) = record.decided_by().filter(|_| record.outcome == Outcome::Ok) else { continue };
        let second = record.intended_us.saturating_sub(history.head.start_us) / 1_000_000;
        latency.answered_by_second.entry((record.region.clone(), second)).or_default().record(record.intended_us, decided.answered_us);
        if record.intended_us < history.head.measured_from_us {
            continue;
        }
        let times = Posted { intended_us: record.intended_us, sent_us: first.sent_us, answered_us: decided.answered_us };
        posted.extend(record.events.iter().filter_map(|event| Some((event.commit_id?, times))));
    }
    posted
}

/// The first sight of each commit id at a destination. Append times are whole milliseconds: their middle is taken.
fn stamps(audit: &RegionAudit) -> HashMap<u128, (String, Stamps)> {
    let middle = |ms: i64| u64::try_from(ms).map_or(0, |ms| ms * 1000 + 500);
    let mut stamps: HashMap<u128, (String, Stamps)> = HashMap::new();
    for log in &audit.logs {
        for record in &log.records {
            let seen = Stamps {
                accepted_us: record.accepted_us,
                relayed_us: middle(record.relayed_ms),
                mirrored_us: middle(record.appended_ms),
                ..Stamps::default()
            };
            let known = stamps.entry(record.commit).or_insert_with(|| (log.origin.clone(), seen));
            if seen.mirrored_us < known.1.mirrored_us {
                known.1 = seen;
            }
        }
    }
    for row in audit.stored.iter().filter(|row| row.stored_us != 0) {
        let Some((_, stamps)) = stamps.get_mut(&row.commit) else { continue };
        stamps.stored_us = row.stored_us;
    }
    for event in &audit.handled {
        let Some((_, stamps)) = stamps.get_mut(&event.commit) else { continue };
        if stamps.pulled_us == 0 || event.pulled_us < stamps.pulled_us {
            (stamps.signalled_us, stamps.pulled_us) = (event.signalled_us, event.pulled_us);
        }
    }
    stamps
}

fn record(latency: &mut Latency, start_us: u64, pair: Pair, posted: Posted, stamps: Stamps) {
    let Stamps { accepted_us, relayed_us, mirrored_us, stored_us, signalled_us, pulled_us } = stamps;
    let same_region = pair.0 == pair.1;
    // A signal sent before the event was there was meant for another one: the pull came by its page or by the tick.
    let signalled_us = if signalled_us >= mirrored_us.saturating_sub(1_000) { signalled_us } else { 0 };
    let before_pull = if signalled_us == 0 { mirrored_us } else { signalled_us };
    let places = [
        (Hop::Accepted, posted.intended_us, accepted_us),
        (Hop::Committed, accepted_us, posted.answered_us),
        (Hop::Relayed, accepted_us, relayed_us),
        (Hop::Mirrored, relayed_us, if same_region { 0 } else { mirrored_us }),
        (Hop::Stored, mirrored_us, stored_us),
        (Hop::Signalled, mirrored_us, signalled_us),
        (Hop::Pulled, before_pull, pulled_us),
    ];
    if pulled_us != 0 {
        let second = posted.intended_us.saturating_sub(start_us) / 1_000_000;
        latency.pulled_by_second.entry((pair.clone(), second)).or_default().record(posted.intended_us, pulled_us);
    }
    let hops = latency.pairs.entry(pair).or_default();
    for (hop, from_us, to_us) in places.into_iter().filter(|(.., to_us)| *to_us != 0) {
        let times = hops.entry(hop).or_default();
        times.step.record(from_us, to_us);
        times.corrected.record(posted.intended_us, to_us);
        times.uncorrected.record(posted.sent_us, to_us);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        audit::{Handled, LogAudit, LogRecord, StoredRow},
        decimal::Decimal,
        history::{Attempt, EventRecord, Head, Record},
    };

    const T0: u64 = 1_000_000_000;

    fn history() -> History {
        let attempt = |sent, answered, outcome| Attempt {
            region: "fra".into(),
            sent_us: T0 + sent,
            answered_us: T0 + answered,
            status: None,
            outcome,
            note: String::new(),
        };
        let record = Record {
            operation: 0,
            kind: "post".into(),
            detail: String::new(),
            tenant: "t".into(),
            region: "fra".into(),
            intended_us: T0,
            attempts: vec![attempt(2_000, 50_000, Outcome::Unknown), attempt(60_000, 70_000, Outcome::Ok)],
            outcome: Outcome::Ok,
            events: vec![EventRecord { id: "e".into(), hash: [0; 32], amount: Decimal::default(), commit_id: Some(7) }],
        };
        History { head: Head { start_us: T0, ..Head::default() }, records: vec![record] }
    }

    fn audit() -> RegionAudit {
        let seen = |offset, appended_ms| LogRecord {
            name: 0,
            hash: [0; 16],
            commit: 7,
            offset,
            accepted_us: T0 + 62_000,
            relayed_ms: 1_000_080,
            appended_ms,
        };
        let records = vec![seen(5, 1_000_130), seen(9, 1_000_900)];
        let handled = |ms: u64| Handled { name: 0, hash: [0; 16], commit: 7, signalled_us: T0 + 131_000, pulled_us: T0 + ms * 1000 };
        RegionAudit {
            region: "iad".into(),
            logs: vec![LogAudit { origin: "fra".into(), generation: 1, records, ..LogAudit::default() }],
            stored: vec![StoredRow { name: 0, hash: [0; 16], commit: 7, stored_us: T0 + 300_000 }],
            handled: vec![handled(500), handled(140)],
            ..RegionAudit::default()
        }
    }

    #[test]
    fn hops_of_the_first_sight_run_from_the_intended_time() {
        let latency = measure(&history(), &[audit()]);
        let hops = &latency.pairs[&("fra".to_owned(), "iad".to_owned())];
        let near = |times: &Times| times.stats().p50_ms.round();
        let corrected: Vec<(&str, f64)> = hops.iter().map(|(hop, times)| (hop.name(), near(&times.corrected))).collect();
        let expected = [
            ("accepted", 62.0),
            ("committed", 70.0),
            ("relayed", 81.0),
            ("mirrored", 131.0),
            ("stored", 300.0),
            ("signalled", 131.0),
            ("pulled", 140.0),
        ];
        assert_eq!(corrected, expected);
        assert_eq!(near(&hops[&Hop::Pulled].uncorrected), 138.0);
        assert_eq!(near(&hops[&Hop::Mirrored].step), 50.0);
        assert_eq!(near(&hops[&Hop::Pulled].step), 9.0);
        assert_eq!(latency.send_error.stats().p50_ms.round(), 2.0);
        assert_eq!(latency.answered_by_second[&("fra".to_owned(), 0)].stats().count, 1);
        assert_eq!(latency.pulled_by_second.len(), 1);
    }

    #[test]
    fn the_warm_up_is_not_measured() {
        let mut history = history();
        history.head.measured_from_us = T0 + 1;
        let latency = measure(&history, &[audit()]);
        assert!(latency.pairs.is_empty() && latency.send_error.stats().count == 0);
    }

    #[test]
    fn negative_differences_are_counted_not_clamped() {
        let mut times = Times::default();
        times.record(10, 5);
        times.record(10, 12);
        let stats = times.stats();
        assert_eq!((stats.count, stats.negative), (1, 1));
        assert!(stats.max_ms < 0.01);
    }

    #[test]
    fn merged_histograms_are_those_of_all_times() {
        let (mut a, mut b) = (Times::default(), Times::default());
        (0..1000).for_each(|k| a.record(0, 1_000 + k));
        (0..10).for_each(|k| b.record(0, 1_000_000 + k));
        a.merge(&b).unwrap();
        assert_eq!(a.stats().count, 1010);
        assert!(a.stats().p50_ms < 2.0 && a.stats().p999_ms > 900.0);
    }
}
