//! The tables of a run.

use super::{
    json::Run,
    svg::{escape, time},
};
use crate::verdict::{EXAMPLES_MAX, Example};
use std::fmt::Write;

/// Tiers of regions, and examples of what is wrong.
pub fn verdict(run: &Run) -> String {
    let mut out = String::from(
        "<h2>Verdict</h2><p class=note>Every acknowledged event must be in every region's log, rows, usage and consumer; nothing else may be. Events found, and in brackets what must be there where that differs.</p><div class=card><table><tr><th>tier",
    );
    run.regions.iter().for_each(|region| out.push_str(&format!("<th>{}", escape(region))));
    let copies = run.regions.iter().map(|region| format!("log of {region}"));
    let others = ["stored", "usage", "handled"].map(ToOwned::to_owned);
    for tier in ["own log".to_owned()].into_iter().chain(copies).chain(others) {
        let _ = write!(out, "<tr><td>{}", escape(&tier));
        for region in &run.regions {
            let line = run.verdict.tiers.iter().find(|line| line.tier == tier && line.region == *region);
            let _ = match line {
                None => write!(out, "<td class=soft>–"),
                Some(line) => {
                    let class = if line.differs.is_empty() { "ok" } else { "no" };
                    let sign = if line.differs.is_empty() { "✓" } else { "✗" };
                    let expected = if line.events == line.expected { String::new() } else { format!(" ({})", line.expected) };
                    let sum = line.sum.as_ref().map(|sum| format!(" · Σ {}", escape(sum))).unwrap_or_default();
                    write!(out, "<td class={class} title=\"{}\">{sign} {}{expected}{sum}", escape(&line.differs.join("; ")), line.events)
                }
            };
        }
    }
    let _ = write!(out, "</table></div>{}", examples(run));
    out
}

fn examples(run: &Run) -> String {
    let mut out = String::new();
    for (kind, examples) in &run.verdict.examples {
        let open = if kind == "duplicated_in_log" { "" } else { " open" };
        let _ = write!(
            out,
            "<details{open}><summary>{}: up to {EXAMPLES_MAX} examples</summary><div class=card><table>",
            kind.replace('_', " ")
        );
        out.push_str("<tr><th>tenant<th class=l>id<th class=l>what<th class=l>seen at<th class=l>not seen at");
        for Example { tenant, source, id, what, seen, not_seen } in examples {
            let _ = write!(
                out,
                "<tr><td>{}<td class=\"l mono\" title=\"{}\">{}<td class=wrap>{}<td class=wrap>{}<td class=wrap>{}",
                escape(tenant),
                escape(source),
                escape(id),
                escape(what),
                escape(&seen.join(", ")),
                escape(&not_seen.join(", "))
            );
        }
        out.push_str("</table></div></details>");
    }
    out
}

/// All numbers of all pairs.
pub fn pairs(run: &Run) -> String {
    let mut out = String::from(
        "<h2>All pairs, all hops</h2><p class=note>Corrected: from the intended time of the post. Uncorrected: from the time when it was sent. Step: from the place before. Times of logs are whole milliseconds; differences below 0 are counted, not clamped.</p><div class=card><table><tr><th>pair<th class=l>place<th>count<th>step p50<th>step p99<th>p50<th>p99<th>p99.9<th>greatest<th>uncorrected p50<th>p99<th>below 0",
    );
    for pair in &run.pairs {
        for (hop, k) in pair.hops.iter().zip(0..) {
            let (name, class) =
                if k == 0 { (format!("{} → {}", pair.origin, pair.destination), " class=first") } else { (String::new(), "") };
            let (step, corrected, uncorrected) = (hop.step, hop.corrected, hop.uncorrected);
            let _ = write!(
                out,
                "<tr{class}><td>{}<td class=l>{}<td>{}<td>{}<td>{}<td><b>{}</b><td>{}<td>{}<td>{}<td>{}<td>{}<td>{}",
                escape(&name),
                hop.hop.name(),
                corrected.count,
                time(step.p50_ms),
                time(step.p99_ms),
                time(corrected.p50_ms),
                time(corrected.p99_ms),
                time(corrected.p999_ms),
                time(corrected.max_ms),
                time(uncorrected.p50_ms),
                time(uncorrected.p99_ms),
                step.negative
            );
        }
    }
    out.push_str("</table></div>");
    out
}

/// What the run ran on and what was sent.
pub fn conditions(run: &Run) -> String {
    format!(
        "<h2>Conditions</h2><div class=grid2><div class=card><h3>Engines</h3>{}</div><div class=card><h3>Machine</h3>{}</div><div class=card><h3>Requests</h3>{}</div><div class=card><h3>Network between regions</h3>{}</div></div><h2>Processes</h2><p class=note>CPU seconds from the start of the load until everything was read; greatest resident memory ever.</p><div class=card>{}</div>",
        engines(run),
        machine(run),
        requests(run),
        network(run),
        processes(run)
    )
}

fn engines(run: &Run) -> String {
    let mut out = String::from("<table><tr><th>place<th class=l>engine<th class=l>version<th class=l>an acknowledged write survives");
    for engine in &run.engines {
        let texts = [&engine.name, &engine.engine, &engine.version, &engine.durability].map(|text| escape(text));
        let _ = write!(out, "<tr><td>{}<td class=wrap>{}<td class=l>{}<td class=wrap>{}", texts[0], texts[1], texts[2], texts[3]);
    }
    out + "</table>"
}

fn machine(run: &Run) -> String {
    let machine = &run.machine;
    let rows = [
        ("processor", format!("{} × {}", machine.cores, machine.cpu)),
        ("memory", format!("{} MiB", machine.memory_mib)),
        ("system", format!("{}, kernel {}", machine.system, machine.kernel)),
        ("load before the run", format!("{:.2}", machine.load_before)),
        ("CPU used by others meanwhile", format!("{:.1} s", machine.cpu_seconds_elsewhere)),
        ("clock", machine.clock.clone()),
        ("warm-up left out of percentiles", format!("{} s", run.warm_up_s)),
        (
            "send error p50 / p99 / p99.9",
            [run.send_error_ms.p50_ms, run.send_error_ms.p99_ms, run.send_error_ms.p999_ms].map(time).join(" / "),
        ),
    ];
    let rows = rows.into_iter().map(|(name, value)| format!("<tr><td>{name}<td class=wrap>{}", escape(&value)));
    format!("<table>{}</table>", rows.collect::<String>())
}

fn requests(run: &Run) -> String {
    let mut out = String::from("<table><tr><th>meant to be<th>requests<th>2xx<th>4xx or no connection<th>unknown<th>not sent");
    for (kind, outcomes) in &run.operations.by_kind {
        let _ = write!(
            out,
            "<tr><td>{kind}<td>{}<td>{}<td>{}<td>{}<td>{}",
            outcomes.requests, outcomes.ok, outcomes.fail, outcomes.unknown, outcomes.unsent
        );
    }
    let statuses: Vec<String> = run.operations.tries_by_status.iter().map(|(status, count)| format!("{status}: {count}")).collect();
    let rates: Vec<String> =
        run.operations.acknowledged_per_s.iter().map(|(region, rate)| format!("{} {rate:.0}", escape(region))).collect();
    let _ = write!(
        out,
        "</table><p class=note>Tries by status: {}. Repeated after an unknown outcome: {}. Events acknowledged a second: {}.</p>",
        escape(&statuses.join(", ")),
        run.operations.repeated_after_unknown,
        rates.join(", ")
    );
    out
}

fn network(run: &Run) -> String {
    let mut out = String::from("<table><tr><th>link<th>one way<th>jitter<th>loss<th>doubled<th>packets<th>MiB");
    for link in &run.wan.links {
        let _ = write!(
            out,
            "<tr><td>{} → {}<td>{:.0} ms<td>± {:.0} ms<td>{:.1} %<td>{:.1} %<td>{}<td>{:.1}",
            escape(&link.from),
            escape(&link.to),
            link.latency_ms,
            link.jitter_ms,
            link.loss * 100.0,
            link.duplicate * 100.0,
            link.packets,
            link.bytes as f64 / 1_048_576.0
        );
    }
    let late = &run.wan.router_lateness;
    let _ = write!(
        out,
        "</table><p class=note>Lateness of the router itself over {} packets: p50 {}, p99 {}, greatest {}.</p>",
        late.packets,
        time(late.p50_ms),
        time(late.p99_ms),
        time(late.max_ms)
    );
    out
}

fn processes(run: &Run) -> String {
    let mut names: Vec<&str> = Vec::new();
    for process in &run.processes {
        if !names.contains(&process.name.as_str()) {
            names.push(&process.name);
        }
    }
    let places: Vec<&str> = run.regions.iter().map(String::as_str).chain([""]).collect();
    let mut out = String::from("<table><tr><th>process");
    places.iter().for_each(|place| out.push_str(&format!("<th>{}", if place.is_empty() { "host" } else { place })));
    for name in names {
        let _ = write!(out, "<tr><td>{}", escape(name));
        for place in &places {
            let process = run.processes.iter().find(|process| process.name == name && process.region == *place);
            let cell = process.map(|process| format!("{:.1} s · {:.0} MiB", process.cpu_seconds, process.peak_rss_mib));
            let _ = write!(out, "<td>{}", cell.unwrap_or_default());
        }
    }
    out + "</table>"
}
