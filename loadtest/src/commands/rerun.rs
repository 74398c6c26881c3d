//! `loadtest report` and `loadtest check`: a finished run once more.

use crate::{
    audit::{RegionAudit, outside},
    converge,
    history::History,
    latency,
    report::{json, terminal, write},
    verdict::judge,
    world::World,
};
use anyhow::Result;
use futures::future::try_join_all;
use std::{path::Path, sync::Arc};

pub fn report(folder: &Path) -> Result<u8> {
    let run = write::read_run(folder)?;
    write::drawn(folder, &run)?;
    println!("{}", folder.join("report.html").display());
    Ok(0)
}

/// The history, the audits and the faults decide; `run.json` is brought into line with them.
pub async fn check(world: Option<&Path>, folder: &Path, again: bool) -> Result<u8> {
    let mut run = write::read_run(folder)?;
    let history = History::read(&folder.join("history.ndjson"))?;
    let audits = if again { audited(world, &run, &history).await? } else { write::read_audits(folder)? };
    let latency = latency::measure(&history, &audits);
    run.verdict = judge(&history, &audits);
    run.verdict.doubt(json::not_inflicted(&run.faults));
    run.converged_s = run.converged_s.filter(|_| run.verdict.good);
    run.pairs = json::pairs(&latency);
    run.series = json::series(&history, &latency);
    run.operations = json::operations(&history, run.plan.duration_s);
    run.send_error_ms = latency.send_error.stats();
    write::kept(folder, &audits)?;
    write::drawn(folder, &run)?;
    terminal::print(&run);
    Ok(run.verdict.exit_code())
}

/// Every region as it is now.
async fn audited(world: Option<&Path>, run: &json::Run, history: &History) -> Result<Vec<RegionAudit>> {
    let world = Arc::new(World::find(world)?);
    let usage = Arc::new(outside::Usage::on(&world, &history.head.tenants, &run.plan.event.meter)?);
    let effects = converge::Effects::on(world, usage, history.head.clone());
    try_join_all((0..history.head.regions.len()).map(|region| (effects.audit_region)(region))).await
}
