//! What a run prints at its end.

use super::json::Run;
use crate::latency::Hop;
use comfy_table::{CellAlignment, Table, presets};

/// Medians by hop of each pair, then the verdict in words.
pub fn print(run: &Run) {
    println!("\n{}\n", waterfall(run));
    println!(
        "p50 in ms from the intended time of the post; pulled p99 last. Send error p50 {:.2}, p99 {:.2}, p99.9 {:.2} ms. Router late p50 {:.2}, p99 {:.2} ms.\n",
        run.send_error_ms.p50_ms,
        run.send_error_ms.p99_ms,
        run.send_error_ms.p999_ms,
        run.wan.router_lateness.p50_ms,
        run.wan.router_lateness.p99_ms
    );
    let verdict = &run.verdict;
    for (kind, examples) in verdict.examples.iter().filter(|(kind, _)| *kind != "duplicated_in_log") {
        for example in examples.iter().take(3) {
            let name = [example.tenant.as_str(), example.id.as_str()].join(" ");
            let seen = if example.seen.is_empty() { String::new() } else { format!("; seen at {}", example.seen.join(", ")) };
            println!("  {}: {} {}{seen}", kind.replace('_', " "), name.trim(), example.what);
        }
    }
    let counts: Vec<String> = verdict.counts().iter().map(|(name, count)| format!("{count} {}", name.replace('_', " "))).collect();
    println!("{}, {} duplicated in log (allowed)", counts.join(", "), verdict.duplicated_in_log);
    if let Some(seconds) = run.converged_s {
        println!("all tiers of all regions equal {seconds:.1} s after the load");
    }
    println!("{}", verdict.words());
}

fn waterfall(run: &Run) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header(["pair"].into_iter().chain(Hop::ALL.map(Hop::name)).chain(["p99", "one way"]));
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    for pair in &run.pairs {
        let mut cells = vec![format!("{} → {}", pair.origin, pair.destination)];
        for wanted in Hop::ALL {
            let hop = pair.hops.iter().find(|hop| hop.hop == wanted && hop.corrected.count > 0);
            cells.push(hop.map(|hop| format!("{:.1}", hop.corrected.p50_ms)).unwrap_or_default());
        }
        cells.push(format!("{:.1}", pair.end_to_end.corrected.p99_ms));
        cells.push(super::charts::link_ms(run, pair).map(|ms| format!("{ms:.0}")).unwrap_or_default());
        table.add_row(cells);
    }
    table
}
