//! `summary.md`: a run in a few lines, for a pull request.

use super::json::Run;
use std::fmt::Write;

/// The whole text.
pub fn render(run: &Run) -> String {
    let mut out = format!("## {} {} ({})\n\n**{}**\n\n", run.kind, run.name, run.id, run.verdict.words());
    let counts: Vec<String> = run.verdict.counts().iter().map(|(name, count)| format!("{} {count}", name.replace('_', " "))).collect();
    let _ = writeln!(out, "{}, duplicated in log {} (allowed).\n", counts.join(", "), run.verdict.duplicated_in_log);
    for fault in &run.faults {
        let _ = writeln!(
            out,
            "* {:.1} s: {}{}",
            fault.done_s,
            fault.what,
            fault.error.as_ref().map(|error| format!(" FAILED: {error}")).unwrap_or_default()
        );
    }
    let _ = writeln!(
        out,
        "\n| accepted in | pulled in | p50 | p99 | p99.9 | greatest | one way |\n| --- | --- | ---: | ---: | ---: | ---: | ---: |"
    );
    for pair in &run.pairs {
        let stats = pair.end_to_end.corrected;
        let link = super::charts::link_ms(run, pair).map_or_else(|| "–".into(), |ms| format!("{ms:.0} ms"));
        let times = [stats.p50_ms, stats.p99_ms, stats.p999_ms, stats.max_ms].map(|ms| format!("{ms:.1} ms")).join(" | ");
        let _ = writeln!(out, "| {} | {} | {times} | {link} |", pair.origin, pair.destination);
    }
    let engines: Vec<String> = run.engines.iter().map(|engine| format!("{} {}", engine.engine, engine.version)).collect();
    let _ = writeln!(
        out,
        "\n{} × {}; {}; {:.0} events/s a region for {:.0} s; seed {}; commit {}{}; send error p99 {:.2} ms; router late p99 {:.2} ms.",
        run.machine.cores,
        run.machine.cpu,
        engines.join(", "),
        run.plan.load.events_per_s(),
        run.plan.duration_s,
        run.seed,
        run.commit.id.get(..12).unwrap_or("unknown"),
        if run.commit.dirty { " with changes" } else { "" },
        run.send_error_ms.p99_ms,
        run.wan.router_lateness.p99_ms
    );
    out
}
