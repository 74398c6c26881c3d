//! Runs the schema job inside a region.

use crate::{
    services,
    world::{ProcessSpec, World, guarded},
};
use anyhow::{Context, Result, ensure};
use std::{fs, time::Duration};

const LIMIT: Duration = Duration::from_secs(180);

/// The jobs, as the job's command line names them.
pub const CQL: &str = "cql";
pub const CLICKHOUSE: &str = "clickhouse";
pub const TOPICS: &str = "topics";
pub const GENERATION: &str = "generation";
pub const CHECK: &str = "check";

/// Runs one job to its end; gives what it printed.
///
/// # Errors
/// Its last lines, when it failed.
pub fn run(world: &World, region: &str, job: &str) -> Result<String> {
    let name = format!("schema-{job}");
    let argv = vec![services::binary("schema")?.display().to_string(), job.to_owned()];
    world.spawn(region, ProcessSpec { name: name.clone(), argv, env: services::environment(world, region)?, cwd: None })?;
    let status = world.wait_exit(region, &name, LIMIT)?;
    let log = fs::read(world.log_path(region, &name)).unwrap_or_default();
    let log = String::from_utf8_lossy(&log).into_owned();
    let lines: Vec<&str> = log.lines().collect();
    let last = lines[lines.len().saturating_sub(12)..].join("\n    ");
    ensure!(status.success(), "schema {job} failed in {region}:\n    {last}");
    Ok(log)
}

/// A name for what the CQL files say.
///
/// # Errors
/// When the job's program is missing.
pub fn digest() -> Result<String> {
    let output = guarded(services::binary("schema")?).arg("digest").output().context("start schema digest")?;
    ensure!(output.status.success(), "schema digest: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
