//! The charts of a run.

use super::{
    json::{PairReport, Run},
    svg::{self, Bar, Line, Mark, Row, Scale, Stack, escape, time},
};
use crate::latency::Hop;
use std::fmt::Write;

/// One-way latency of a pair's link.
pub fn link_ms(run: &Run, pair: &PairReport) -> Option<f64> {
    let link = run.wan.links.iter().find(|link| (&link.from, &link.to) == (&pair.origin, &pair.destination));
    link.map(|link| link.latency_ms).filter(|ms| *ms > 0.0)
}

/// The way of the median event, pair by pair.
pub fn waterfalls(run: &Run) -> String {
    let rows: Vec<Row> = run.pairs.iter().map(|pair| row(run, pair)).collect();
    let legend: String = Hop::ALL.iter().map(|hop| format!("<span><i class=hop-{}></i>{}</span>", hop.name(), meaning(*hop))).collect();
    let lateness = &run.wan.router_lateness;
    format!(
        "<h2>Where the time goes</h2><p class=note>Medians from the intended time of the post, hop by hop. The line above a copy's bar is \
         the link's one-way latency. Thin bars below lie beside the way: the client's answer, and the stored row. Regions share one host \
         and one clock. The router delivered half of its packets within {} of their due time, 99 % within {}; the tester sent 99 % within {} \
         of the intended time.</p><div class=card><div class=legend>{legend}</div>{}</div>",
        time(lateness.p50_ms),
        time(lateness.p99_ms),
        time(run.send_error_ms.p99_ms),
        svg::waterfall(&rows)
    )
}

fn meaning(hop: Hop) -> &'static str {
    match hop {
        Hop::Accepted => "accepted: ingest had read it",
        Hop::Committed => "committed: the client had its answer",
        Hop::Relayed => "relayed: in the origin's log",
        Hop::Mirrored => "mirrored: in the copy",
        Hop::Stored => "stored: a row in ClickHouse",
        Hop::Signalled => "signalled: the hint was sent",
        Hop::Pulled => "pulled: the consumer had it",
    }
}

fn row(run: &Run, pair: &PairReport) -> Row {
    let at = |wanted: Hop| pair.hops.iter().find(|hop| hop.hop == wanted).map(|hop| hop.corrected.p50_ms);
    let mut bars: Vec<Bar> = Vec::new();
    for hop in [Hop::Accepted, Hop::Relayed, Hop::Mirrored, Hop::Signalled, Hop::Pulled] {
        let from_ms = bars.last().map_or(0.0, |bar| bar.to_ms);
        // Medians of different sets of events may cross by a hair.
        bars.extend(at(hop).map(|ms| Bar { name: hop.name(), from_ms, to_ms: ms.max(from_ms) }));
    }
    let accepted = at(Hop::Accepted).unwrap_or_default();
    let in_log = at(Hop::Mirrored).or(at(Hop::Relayed)).unwrap_or_default();
    let beside = [(Hop::Committed, accepted), (Hop::Stored, in_log)];
    let beside =
        beside.into_iter().filter_map(|(hop, from_ms)| Some(Bar { name: hop.name(), from_ms, to_ms: at(hop)?.max(from_ms) })).collect();
    Row { label: format!("{} → {}", pair.origin, pair.destination), bars, beside, link_ms: link_ms(run, pair) }
}

fn marks(run: &Run) -> Vec<Mark> {
    run.faults.iter().map(|fault| Mark { at: fault.done_s, text: fault.what.clone() }).collect()
}

fn legend(run: &Run) -> String {
    let mut out = String::from("<div class=legend>");
    for (region, k) in run.regions.iter().zip(0..) {
        let _ = write!(out, "<span><i class=k{k}></i>{}</span>", escape(region));
    }
    out.push_str("<span><i class=dash></i>99 %</span></div>");
    out
}

/// Percentiles, success and throughput, second by second.
pub fn over_time(run: &Run) -> String {
    let marks = marks(run);
    let mut out = String::from(
        "<h2>Second by second</h2><p class=note>By the second in which a post was intended. Solid lines are medians, dashed ones 99 %. A post whose first outcome is unknown is repeated with the same id; its latency runs on until it is answered.</p>",
    );
    out.push_str(&legend(run));
    let _ = write!(out, "<div class=grid2>{}{}</div>", answers(run, &marks), throughput(run, &marks));
    out.push_str("<h3 style=\"margin-top:16px\">From post to pull, by destination; colours are origins</h3><div class=grid3>");
    run.regions.iter().for_each(|destination| out.push_str(&pulls(run, destination, &marks)));
    out.push_str(
        "</div><h3 style=\"margin-top:16px\">First tries, requests a second</h3><div class=legend><span><i class=kok></i>accepted</span><span><i class=krefused></i>refused</span><span><i class=kunknown></i>outcome unknown</span><span><i class=kunsent></i>not sent</span></div><div class=grid3>",
    );
    run.regions.iter().for_each(|region| out.push_str(&success(run, region, &marks)));
    out.push_str("</div>");
    out
}

fn answers(run: &Run, marks: &[Mark]) -> String {
    let mut lines = Vec::new();
    for (region, k) in run.regions.iter().zip(0..) {
        let rows = run.series.posts.iter().filter(|row| row.region == *region && row.p50_ms > 0.0);
        let points = |value: fn(&super::json::PostSecond) -> f64| rows.clone().map(|row| (row.second as f64, value(row))).collect();
        lines.push(Line { name: format!("{region} p99"), class: format!("c{k}"), dashed: true, points: points(|row| row.p99_ms) });
        lines.push(Line { name: format!("{region} p50"), class: format!("c{k}"), dashed: false, points: points(|row| row.p50_ms) });
    }
    let chart = svg::lines("time to the answer", svg::HALF, run.plan.duration_s, Scale::Log, &time_tick, &lines, marks);
    format!("<div class=card><h3>From post to answer, by region posted to</h3>{chart}</div>")
}

fn throughput(run: &Run, marks: &[Mark]) -> String {
    let line = |(region, k): (&String, usize)| {
        let rows = run.series.posts.iter().filter(|row| row.region == *region);
        let points = rows.map(|row| (row.second as f64, row.events_ok as f64)).collect();
        Line { name: region.clone(), class: format!("c{k}"), dashed: false, points }
    };
    let lines: Vec<Line> = run.regions.iter().zip(0..).map(line).collect();
    let chart =
        svg::lines("events acknowledged", svg::HALF, run.plan.duration_s, Scale::Linear, &|value| format!("{value:.0}"), &lines, marks);
    format!("<div class=card><h3>Events acknowledged, of those intended in the second</h3>{chart}</div>")
}

fn pulls(run: &Run, destination: &str, marks: &[Mark]) -> String {
    let mut lines = Vec::new();
    for (origin, k) in run.regions.iter().zip(0..) {
        let rows = run.series.pulls.iter().filter(|row| row.origin == *origin && row.destination == destination && row.count > 0);
        let points = |value: fn(&super::json::PullSecond) -> f64| rows.clone().map(|row| (row.second as f64, value(row))).collect();
        lines.push(Line { name: format!("{origin} p99"), class: format!("c{k}"), dashed: true, points: points(|row| row.p99_ms) });
        lines.push(Line { name: format!("{origin} p50"), class: format!("c{k}"), dashed: false, points: points(|row| row.p50_ms) });
    }
    let chart = svg::lines("time to the pull", svg::THIRD, run.plan.duration_s, Scale::Log, &time_tick, &lines, marks);
    format!("<div class=card><h3>pulled in {}</h3>{chart}</div>", escape(destination))
}

fn success(run: &Run, region: &str, marks: &[Mark]) -> String {
    let stack = |row: &super::json::PostSecond| {
        let outcomes = &row.first_try;
        let parts = [("ok", outcomes.ok), ("refused", outcomes.fail), ("unknown", outcomes.unknown), ("unsent", outcomes.unsent)];
        Stack { second: row.second as f64, parts: parts.into_iter().map(|(class, count)| (class, count as f64)).collect() }
    };
    let stacks: Vec<Stack> = run.series.posts.iter().filter(|row| row.region == region).map(stack).collect();
    let chart = svg::stacks("first tries", svg::THIRD, run.plan.duration_s, &stacks, marks);
    format!("<div class=card><h3>posted to {}</h3>{chart}</div>", escape(region))
}

fn time_tick(ms: f64) -> String {
    match ms {
        _ if ms >= 1000.0 => format!("{:.0} s", ms / 1000.0),
        _ if ms >= 1.0 => format!("{ms:.0} ms"),
        _ => format!("{ms} ms"),
    }
}
