//! Starting engines: of all regions at once, of one region that comes back, or one process.

use super::{
    archives, cassandra, clickhouse,
    fetch::Engines,
    gate,
    golden::{self, names},
    kafka, nats, schema,
};
use crate::{
    progress::Progress,
    world::{ProcessSpec, RegionSpec, Signal, WanSpec, World, WorldSpec},
};
use anyhow::{Result, anyhow, bail};
use serde::Serialize;
use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Instant,
};

/// An engine as reports name it.
#[derive(Clone, Debug, Serialize)]
pub struct EngineInfo {
    /// Its name among a region's processes.
    pub name: &'static str,
    /// What it is, and in whose place.
    pub engine: &'static str,
    /// Its version.
    pub version: String,
    /// What "acknowledged" means on it.
    pub durability: &'static str,
}

/// The engines of every region of a world.
pub fn describe(engines: &Engines) -> Vec<EngineInfo> {
    let info = |name, engine, version: &str, durability| EngineInfo { name, engine, version: version.into(), durability };
    vec![
        info(
            cassandra::NAME,
            "Apache Cassandra, for ScyllaDB",
            &engines.cassandra.version,
            "commit log synced before each answer (group, 5 ms)",
        ),
        info(kafka::NAME, "Apache Kafka, for Redpanda", &engines.kafka.version, "page cache: survives a process kill, not a power loss"),
        info(
            clickhouse::NAME,
            "ClickHouse's engine embedded, for the server",
            &engines.clickhouse.version,
            "page cache, fsync where a table asks for it (fsync_after_insert)",
        ),
        info(nats::NAME, "NATS", &engines.nats.version, "none: signals are hints"),
    ]
}

/// Makes what quick starts of the world `spec` stand on: class archives once a machine, golden Cassandra folders once a schema and set of
/// regions. Opens worlds of its own, which end before it returns; does nothing when all is there.
///
/// # Errors
/// When an engine does not start, or the schema cannot be applied.
pub fn prepare(engines: &Engines, spec: &WorldSpec, progress: &Progress) -> Result<()> {
    let digest = schema::digest()?;
    kafka::format_template(engines)?;
    // Without delay between the regions: nothing is measured here.
    let open = |dir: &Path, regions: &[RegionSpec]| {
        World::open(WorldSpec { dir: dir.into(), regions: regions.to_vec(), links: WanSpec::default(), ..spec.clone() })
    };
    archives::make(engines, |dir| open(dir, &spec.regions[..1]), progress)?;
    golden::make(engines, &digest, &spec.regions, |dir| open(dir, &spec.regions), progress)
}

/// Starts every engine of every region, and returns when all are ready and the schema is applied everywhere.
///
/// # Errors
/// Names region and engine, with the last lines of its log where it ended.
pub fn start_all(world: &Arc<World>, engines: &Engines, progress: &Progress) -> Result<()> {
    let (regions, started, digest) = (names(world.regions()), Instant::now(), schema::digest()?);
    let mut planted = true;
    for region in &regions {
        planted &= golden::plant(world, engines, &digest, region)?;
        spawn_all(world, engines, region)?;
    }
    let cluster = || -> Result<()> {
        for region in &regions {
            cassandra::answers(world, region)?;
            said(progress, region, "cassandra answers", started);
        }
        gate::whole_cluster(world, &regions, gate::LIMIT)?;
        said(progress, "world", "cassandra is one cluster", started);
        if !planted {
            schema::run(world, &regions[0], schema::CQL)?;
            golden::note_all(world, &digest)?;
            said(progress, "world", "cassandra has the schema", started);
        }
        Ok(())
    };
    let first = Mutex::new(None);
    // Whatever fails first ends the others' waits, by ending what they wait for.
    let told = |result: Result<()>| {
        let Err(error) = result else { return };
        first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        end_all(world, &regions);
    };
    thread::scope(|scope| {
        scope.spawn(|| told(cluster()));
        for region in &regions {
            scope.spawn(|| told(log_ready(world, region, progress, started)));
            scope.spawn(|| told(store_ready(world, region, progress, started)));
            scope.spawn(|| told(signals_ready(world, region, progress, started)));
        }
    });
    first.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)?;
    thread::scope(|scope| joined(regions.iter().map(|region| scope.spawn(|| checked(world, region, progress, started))).collect()))
}

/// Starts the engines of a region that comes back; the others may be up or down.
///
/// # Errors
/// As [`start_all`].
pub fn start_region(world: &Arc<World>, engines: &Engines, region: &str, progress: &Progress) -> Result<()> {
    let started = Instant::now();
    golden::plant(world, engines, &schema::digest()?, region)?;
    spawn_all(world, engines, region)?;
    let node = || -> Result<()> {
        cassandra::answers(world, region)?;
        gate::own_region(world, region)?;
        said(progress, region, "cassandra serves its own replica", started);
        Ok(())
    };
    thread::scope(|scope| {
        let mut waits = vec![scope.spawn(node), scope.spawn(|| log_ready(world, region, progress, started))];
        waits.push(scope.spawn(|| store_ready(world, region, progress, started)));
        waits.push(scope.spawn(|| signals_ready(world, region, progress, started)));
        joined(waits)
    })
}

/// The names of the engines, in the order in which they are started.
pub const NAMES: [&str; 4] = [cassandra::NAME, kafka::NAME, clickhouse::NAME, nats::NAME];

fn process(world: &World, engines: &Engines, region: &str, name: &str) -> Result<ProcessSpec> {
    match name {
        cassandra::NAME => cassandra::process(world, engines, region, &archives::classes(engines, name)),
        kafka::NAME => kafka::process(world, engines, region, &archives::classes(engines, name)),
        clickhouse::NAME => clickhouse::process(world, engines, region),
        nats::NAME => nats::process(world, engines, region),
        other => bail!("{other} is no engine; engines are {}", NAMES.join(", ")),
    }
}

fn spawn_all(world: &World, engines: &Engines, region: &str) -> Result<()> {
    NAMES.iter().try_for_each(|name| world.spawn(region, process(world, engines, region, name)?))
}

fn end_all(world: &World, regions: &[String]) {
    for (region, name) in regions.iter().flat_map(|region| NAMES.map(|name| (region, name))) {
        // One that has ended already is what was wanted.
        let _ = world.signal(region, name, Signal::SIGKILL);
    }
}

fn log_ready(world: &World, region: &str, progress: &Progress, started: Instant) -> Result<()> {
    kafka::ready(world, region)?;
    schema::run(world, region, schema::TOPICS)?;
    said(progress, region, "kafka is ready, with its topics", started);
    Ok(())
}

fn store_ready(world: &World, region: &str, progress: &Progress, started: Instant) -> Result<()> {
    clickhouse::ready(world, region)?;
    schema::run(world, region, schema::CLICKHOUSE)?;
    said(progress, region, "clickhouse is ready, with its tables", started);
    Ok(())
}

fn signals_ready(world: &World, region: &str, progress: &Progress, started: Instant) -> Result<()> {
    nats::ready(world, region)?;
    said(progress, region, "nats is ready, joined with its peers", started);
    Ok(())
}

fn checked(world: &World, region: &str, progress: &Progress, started: Instant) -> Result<()> {
    schema::run(world, region, schema::GENERATION)?;
    let report = schema::run(world, region, schema::CHECK)?;
    report.lines().filter(|line| line.starts_with("check: ")).for_each(|line| progress.say(region, line));
    said(progress, region, "engines are ready", started);
    Ok(())
}

fn said(progress: &Progress, scope: &str, what: &str, started: Instant) {
    progress.say(scope, format!("{what} ({:.1} s after the start)", started.elapsed().as_secs_f64()));
}

/// Waits for all, and gives the first error.
fn joined(waits: Vec<thread::ScopedJoinHandle<'_, Result<()>>>) -> Result<()> {
    let results: Vec<Result<()>> = waits.into_iter().map(|wait| wait.join().unwrap_or_else(|_| Err(anyhow!("a wait panicked")))).collect();
    results.into_iter().collect()
}
