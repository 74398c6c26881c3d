//! `loadtest report` and `loadtest check`: a finished run once more.

use crate::{
    history::History,
    latency,
    report::{json, terminal, write},
    verdict::judge,
};
use anyhow::Result;
use std::path::Path;

pub fn report(folder: &Path) -> Result<u8> {
    let run = write::read_run(folder)?;
    write::drawn(folder, &run)?;
    println!("{}", folder.join("report.html").display());
    Ok(0)
}

/// The history and the audits decide; `run.json` is brought into line with them.
pub fn check(folder: &Path) -> Result<u8> {
    let mut run = write::read_run(folder)?;
    let history = History::read(&folder.join("history.ndjson"))?;
    let audits = write::read_audits(folder)?;
    let latency = latency::measure(&history, &audits);
    run.verdict = judge(&history, &audits);
    run.pairs = json::pairs(&latency);
    run.series = json::series(&history, &latency);
    run.operations = json::operations(&history, run.plan.duration_s);
    run.send_error_ms = latency.send_error.stats();
    write::drawn(folder, &run)?;
    terminal::print(&run);
    Ok(run.verdict.exit_code())
}
