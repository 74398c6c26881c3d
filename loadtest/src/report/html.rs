//! `report.html`: one file that needs nothing else.

use super::{
    charts,
    json::{PairReport, Run},
    svg::{escape, time},
    tables,
};
use std::fmt::Write;

/// The whole page.
pub fn render(run: &Run) -> String {
    let mut out = String::new();
    let title = format!("Meridian: {} {}", run.name, run.id);
    let _ = write!(
        out,
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width,initial-scale=1\"><title>{}</title><style>{}</style><main>",
        escape(&title),
        include_str!("style.css")
    );
    out.push_str(&head(run));
    out.push_str(&banner(run));
    out.push_str(&charts::waterfalls(run));
    out.push_str(&matrix(run));
    out.push_str(&charts::over_time(run));
    out.push_str(&tables::verdict(run));
    out.push_str(&tables::pairs(run));
    out.push_str(&tables::conditions(run));
    out.push_str("</main></html>\n");
    out
}

fn head(run: &Run) -> String {
    let commit = if run.commit.id.is_empty() {
        "no commit".into()
    } else {
        format!(
            "commit <span class=mono>{}</span>{}",
            escape(&run.commit.id[..run.commit.id.len().min(12)]),
            if run.commit.dirty { " with changes" } else { "" }
        )
    };
    let rate = run.plan.load.events_per_s();
    format!(
        "<h1>{} <span class=soft>{}</span></h1><p class=soft>{} · {commit} · {} regions ({}) · {rate:.0} events/s a region for {:.0} s · seed {} · on {} × {}, {:.0} GiB</p>",
        escape(&run.name),
        escape(&run.kind),
        escape(&run.started),
        run.regions.len(),
        escape(&run.regions.join(", ")),
        run.plan.duration_s,
        run.seed,
        run.machine.cores,
        escape(&run.machine.cpu),
        run.machine.memory_mib as f64 / 1024.0,
    )
}

fn banner(run: &Run) -> String {
    let verdict = &run.verdict;
    let class = ["good", "bad", "open"][usize::from(verdict.exit_code())];
    let converged = match run.converged_s {
        Some(seconds) => format!("All tiers of all regions were equal {seconds:.1} s after the end of the load."),
        None => format!("Tiers were not equal within {} s after the load.", run.plan.limits.converge_s),
    };
    let faults = if run.faults.is_empty() {
        String::new()
    } else {
        let words: Vec<String> = run.faults.iter().map(|fault| format!("{} at {:.1} s", escape(&fault.what), fault.done_s)).collect();
        format!("<p>Faults: {}.</p>", words.join(", "))
    };
    let mut out = format!(
        "<div class=\"banner {class}\"><strong>{}</strong><p>{converged}</p>{faults}</div><div class=tiles>",
        escape(&verdict.words())
    );
    for (name, count) in verdict.counts() {
        let wrong = if count > 0 { " wrong" } else { "" };
        let _ = write!(out, "<div class=\"tile{wrong}\"><b>{count}</b><span>{}</span></div>", name.replace('_', " "));
    }
    let _ = write!(out, "<div class=tile><b>{}</b><span>duplicated in log (allowed)</span></div></div>", verdict.duplicated_in_log);
    out
}

/// End to end, origin by destination.
fn matrix(run: &Run) -> String {
    let mut out = String::from(
        "<h2>From post to pull</h2><p class=note>Median and 99 % from the intended time of the post to the page in the consumer's hand; rows accept, columns pull. In brackets: the link's one-way latency.</p><div class=card><table><tr><th>accepted in",
    );
    run.regions.iter().for_each(|region| out.push_str(&format!("<th>pulled in {}", escape(region))));
    for origin in &run.regions {
        let _ = write!(out, "<tr><td>{}", escape(origin));
        for destination in &run.regions {
            let pair = run.pairs.iter().find(|pair| (&pair.origin, &pair.destination) == (origin, destination));
            let cell = pair.map_or_else(|| "–".into(), |pair| cell(run, pair));
            let _ = write!(out, "<td>{cell}");
        }
    }
    out.push_str("</table></div>");
    out
}

fn cell(run: &Run, pair: &PairReport) -> String {
    let stats = pair.end_to_end.corrected;
    let link = charts::link_ms(run, pair).map(|ms| format!(" <span class=soft>({ms:.0} ms)</span>")).unwrap_or_default();
    format!("<b>{}</b> · {}{link}", time(stats.p50_ms), time(stats.p99_ms))
}
