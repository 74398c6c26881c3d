//! `run.json`: everything that a run showed. Documented in docs/run-json.md.

use crate::{
    history::{History, Outcome},
    latency::{Hop, Latency, Pair, PairTimes, Stats},
    plan::Plan,
    verdict::Verdict,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version that this code writes and reads.
pub const SCHEMA: &str = "meridian.run/1";

/// A whole run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// Format.
    pub schema: String,
    /// UTC time of its start, as its folder is named.
    pub id: String,
    /// `drill` or `load`.
    pub kind: String,
    /// Name of the drill or plan.
    pub name: String,
    /// RFC 3339.
    pub started: String,
    /// RFC 3339, after judging.
    pub ended: String,
    /// What was tested.
    pub commit: Commit,
    /// On what.
    pub machine: Machine,
    /// On which engines.
    pub engines: Vec<Engine>,
    /// Over which network.
    pub wan: Wan,
    /// Regions of the world.
    pub regions: Vec<String>,
    /// The load.
    pub plan: Plan,
    /// Seed of the load.
    pub seed: u64,
    /// Seconds at the beginning that are judged, but not part of the percentiles.
    pub warm_up_s: f64,
    /// What was done to the world.
    pub faults: Vec<FaultMark>,
    /// What was sent and what was answered.
    pub operations: Operations,
    /// The verdict.
    pub verdict: Verdict,
    /// Seconds from the end of the load until all tiers were equal; absent if they never were.
    pub converged_s: Option<f64>,
    /// Actual less intended time of sending.
    pub send_error_ms: Stats,
    /// Latency by pair of regions.
    pub pairs: Vec<PairReport>,
    /// Second by second.
    pub series: Series,
    /// CPU and memory by process.
    pub processes: Vec<ProcessReport>,
}

/// What was tested.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Commit {
    /// Of the checkout; empty outside of one.
    pub id: String,
    /// There were changes beyond it.
    pub dirty: bool,
}

/// The machine.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// Model of its processor.
    pub cpu: String,
    /// Processors that may be used.
    pub cores: usize,
    /// Memory.
    pub memory_mib: u64,
    /// Release of its kernel.
    pub kernel: String,
    /// Distribution.
    pub system: String,
    /// Load average of the last minute before the run.
    pub load_before: f64,
    /// CPU seconds during the load by anything but the world and the tester.
    pub cpu_seconds_elsewhere: f64,
    /// How clocks of regions relate.
    pub clock: String,
}

/// An engine.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Engine {
    /// Its place in the design.
    pub name: String,
    /// What fills it.
    pub engine: String,
    /// Its version.
    pub version: String,
    /// What an acknowledged write survives.
    pub durability: String,
}

/// The network between regions.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Wan {
    /// Each direction.
    pub links: Vec<Link>,
    /// How late the router itself delivered packets.
    pub router_lateness: Lateness,
}

/// One direction of a link.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Link {
    /// Sender.
    pub from: String,
    /// Receiver.
    pub to: String,
    /// One way.
    pub latency_ms: f64,
    /// To either side.
    pub jitter_ms: f64,
    /// Share.
    pub loss: f64,
    /// Share.
    pub duplicate: f64,
    /// Bits a second, 0 without limit.
    pub rate_bits: u64,
    /// Packets that arrived.
    pub packets: u64,
    /// Bytes that arrived.
    pub bytes: u64,
}

/// How late the router was.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Lateness {
    /// Packets.
    pub packets: u64,
    /// Median.
    pub p50_ms: f64,
    /// 99 %.
    pub p99_ms: f64,
    /// Greatest.
    pub max_ms: f64,
}

/// A fault that was carried out.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct FaultMark {
    /// In words.
    pub what: String,
    /// Region concerned, if it is one.
    pub region: Option<String>,
    /// Planned, seconds from the start of the load.
    pub planned_s: f64,
    /// When it was done.
    pub done_s: f64,
    /// Why it could not be done.
    pub error: Option<String>,
}

/// What was not inflicted was not survived: reasons to doubt a run.
pub fn not_inflicted(faults: &[FaultMark]) -> Vec<String> {
    faults.iter().filter_map(|fault| Some(format!("fault not carried out: {}: {}", fault.what, fault.error.as_ref()?))).collect()
}

/// What was sent and what was answered.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Operations {
    /// Requests of the schedule.
    pub requests: u64,
    /// Events in them.
    pub events: u64,
    /// By what was intended: post, invalid, repeat, conflict.
    pub by_kind: BTreeMap<String, Outcomes>,
    /// Tries by HTTP status, `none` without an answer.
    pub tries_by_status: BTreeMap<String, u64>,
    /// Requests that had an unknown outcome and were repeated.
    pub repeated_after_unknown: u64,
    /// Events acknowledged a second over the length of the load, by region.
    pub acknowledged_per_s: BTreeMap<String, f64>,
}

/// Requests by outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcomes {
    /// All.
    pub requests: u64,
    /// 2xx.
    pub ok: u64,
    /// 4xx, or no connection.
    pub fail: u64,
    /// Not decided.
    pub unknown: u64,
    /// Not sent.
    pub unsent: u64,
}

impl Outcomes {
    fn add(&mut self, outcome: Outcome) {
        self.requests += 1;
        let count = match outcome {
            Outcome::Ok => &mut self.ok,
            Outcome::Fail => &mut self.fail,
            Outcome::Unknown => &mut self.unknown,
            Outcome::Unsent => &mut self.unsent,
        };
        *count += 1;
    }
}

/// Latency of a pair.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PairReport {
    /// Region that accepted.
    pub origin: String,
    /// Region where it was pulled.
    pub destination: String,
    /// In order of the way.
    pub hops: Vec<HopReport>,
    /// From intended to pulled.
    pub end_to_end: Ends,
}

/// Latency up to one place.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HopReport {
    /// The place.
    pub hop: Hop,
    /// From the place before.
    pub step: Stats,
    /// From the intended time.
    pub corrected: Stats,
    /// From the time of the first sending.
    pub uncorrected: Stats,
}

/// Both ways of counting.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Ends {
    /// From the intended time.
    pub corrected: Stats,
    /// From the time of the first sending.
    pub uncorrected: Stats,
}

/// Second by second, by intended time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Series {
    /// By region that was posted to.
    pub posts: Vec<PostSecond>,
    /// By pair.
    pub pulls: Vec<PullSecond>,
}

/// What was posted to a region in a second.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PostSecond {
    /// From the start of the load.
    pub second: u64,
    /// Region.
    pub region: String,
    /// By the first try's outcome, requests that should be accepted only.
    pub first_try: Outcomes,
    /// Events acknowledged, whenever.
    pub events_ok: u64,
    /// Median to the answer.
    pub p50_ms: f64,
    /// 99 % to the answer.
    pub p99_ms: f64,
}

/// Events intended in a second, as they were pulled.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PullSecond {
    /// From the start of the load.
    pub second: u64,
    /// Region that accepted.
    pub origin: String,
    /// Region where they were pulled.
    pub destination: String,
    /// How many.
    pub count: u64,
    /// Median.
    pub p50_ms: f64,
    /// 99 %.
    pub p99_ms: f64,
}

/// CPU and memory of a process during the load.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ProcessReport {
    /// Region; empty for the tester and the launcher.
    pub region: String,
    /// Its name.
    pub name: String,
    /// CPU seconds from the start of the load until all was read.
    pub cpu_seconds: f64,
    /// Greatest resident memory ever.
    pub peak_rss_mib: f64,
    /// How often it was started.
    pub starts: u64,
}

/// What was sent and answered.
pub fn operations(history: &History, duration_s: f64) -> Operations {
    let mut all = Operations::default();
    for record in &history.records {
        all.requests += 1;
        all.events += record.events.len() as u64;
        all.by_kind.entry(record.kind.clone()).or_default().add(record.outcome);
        all.repeated_after_unknown += u64::from(record.was_unknown());
        for attempt in &record.attempts {
            let status = attempt.status.map_or_else(|| "none".into(), |status| status.to_string());
            *all.tries_by_status.entry(status).or_default() += 1;
        }
        if let Some(attempt) = record.decided_by().filter(|_| record.outcome == Outcome::Ok) {
            *all.acknowledged_per_s.entry(attempt.region.clone()).or_default() += record.events.len() as f64;
        }
    }
    all.acknowledged_per_s.values_mut().for_each(|events| *events /= duration_s);
    all
}

/// Latency by pair.
pub fn pairs(latency: &Latency) -> Vec<PairReport> {
    latency.pairs.iter().map(|(pair, times)| pair_report(pair, times)).collect()
}

fn pair_report((origin, destination): &Pair, times: &PairTimes) -> PairReport {
    let report = |hop: Hop| {
        let times = times.get(&hop)?;
        Some(HopReport { hop, step: times.step.stats(), corrected: times.corrected.stats(), uncorrected: times.uncorrected.stats() })
    };
    let hops: Vec<HopReport> = Hop::ALL.into_iter().filter_map(report).collect();
    let pulled = hops.iter().find(|hop| hop.hop == Hop::Pulled);
    let end_to_end = pulled.map(|hop| Ends { corrected: hop.corrected, uncorrected: hop.uncorrected }).unwrap_or_default();
    PairReport { origin: origin.clone(), destination: destination.clone(), hops, end_to_end }
}

/// Second by second.
pub fn series(history: &History, latency: &Latency) -> Series {
    let mut posts: BTreeMap<(u64, String), PostSecond> = BTreeMap::new();
    for record in history.records.iter().filter(|record| matches!(record.kind.as_str(), "post" | "repeat")) {
        let second = record.intended_us.saturating_sub(history.head.start_us) / 1_000_000;
        let row = posts.entry((second, record.region.clone())).or_insert_with(|| PostSecond {
            second,
            region: record.region.clone(),
            ..PostSecond::default()
        });
        row.first_try.add(record.attempts.first().map_or(Outcome::Unsent, |attempt| attempt.outcome));
        if record.outcome == Outcome::Ok {
            row.events_ok += record.events.len() as u64;
        }
    }
    for ((region, second), times) in &latency.answered_by_second {
        if let Some(row) = posts.get_mut(&(*second, region.clone())) {
            let stats = times.stats();
            (row.p50_ms, row.p99_ms) = (stats.p50_ms, stats.p99_ms);
        }
    }
    let pulls = latency.pulled_by_second.iter().map(|(((origin, destination), second), times)| {
        let Stats { count, p50_ms, p99_ms, .. } = times.stats();
        PullSecond { second: *second, origin: origin.clone(), destination: destination.clone(), count, p50_ms, p99_ms }
    });
    Series { posts: posts.into_values().collect(), pulls: pulls.collect() }
}
