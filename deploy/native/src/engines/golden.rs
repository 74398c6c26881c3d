//! Golden data folders of Cassandra: a cluster of these regions with the schema applied, shut down in order. Worlds start from copies, without a
//! single schema change.

use super::{archives, cache, cassandra, fetch::Engines, gate, schema};
use crate::{
    progress::Progress,
    world::{RegionSpec, Signal, World},
};
use anyhow::{Context, Result};
use std::{fs, path::Path, time::Duration};

const TRIES: u32 = 3;
const GATE_LIMIT: Duration = Duration::from_secs(45);
const DRAIN_LIMIT: Duration = Duration::from_secs(90);
/// Inside a data folder: which schema it was started with.
const SCHEMA: &str = "meridian-schema";

/// A folder holds the addresses of its peers: it fits regions of these names and addresses alone.
fn entry(engines: &Engines, digest: &str, regions: &[RegionSpec]) -> String {
    let places: Vec<String> = regions.iter().map(|region| format!("{}={}", region.name, region.address)).collect();
    let hash = cache::hash_of([digest, &*cassandra::data_fingerprint(engines), &*places.join(",")]);
    format!("golden-{}-{}", regions.len(), &hash[..16])
}

/// Makes the golden folders of these regions unless they are there. A try that fails is repeated from empty disks, in a new world.
///
/// # Errors
/// When a node does not start, or the schema cannot be applied, [`TRIES`] times.
pub fn make(
    engines: &Engines,
    digest: &str,
    regions: &[RegionSpec],
    open: impl Fn(&Path) -> Result<World>,
    progress: &Progress,
) -> Result<()> {
    let waiting = || progress.say("prepare", "another process makes the golden Cassandra folders, waiting …");
    cache::entry(&engines.cache, &entry(engines, digest, regions), waiting, |folder, work| {
        let regions = &names(regions);
        progress.say("prepare", format!("golden Cassandra folders of {}, once a schema …", regions.join(", ")));
        for attempt in 1.. {
            match open(&work.join(attempt.to_string())).and_then(|world| build(&world, engines, regions, folder)) {
                Ok(()) => break,
                Err(error) if attempt == TRIES => return Err(error),
                Err(error) => progress.say("prepare", format!("once more from empty disks: {error:#}")),
            }
        }
        progress.say("prepare", "golden Cassandra folders are there");
        Ok(())
    })?;
    Ok(())
}

/// A cluster with the schema, shut down in order; its data in `folder`.
fn build(world: &World, engines: &Engines, regions: &[String], folder: &Path) -> Result<()> {
    let classes = archives::classes(engines, cassandra::NAME);
    for (place, region) in regions.iter().enumerate() {
        world.spawn(region, cassandra::process(world, engines, region, &classes)?)?;
        // Nodes that begin at the same moment from empty disks may miss each other for good; the others find the first one living.
        if place == 0 {
            cassandra::answers(world, region)?;
        }
    }
    regions.iter().try_for_each(|region| cassandra::answers(world, region))?;
    gate::whole_cluster(world, regions, GATE_LIMIT)?;
    schema::run(world, &regions[0], schema::CQL)?;
    gate::whole_cluster(world, regions, GATE_LIMIT)?;
    // Asked to stop, a node writes all to its tables: the copy has no commit log to replay.
    regions.iter().try_for_each(|region| world.signal(region, cassandra::NAME, Signal::SIGTERM))?;
    for region in regions {
        world.wait_exit(region, cassandra::NAME, DRAIN_LIMIT)?;
        cache::copy(&world.region_dir(region).join(cassandra::NAME), &folder.join(region), &cassandra::NOT_DATA)?;
    }
    Ok(())
}

/// Puts a region's golden folder where no data is yet. Gives whether a folder of this schema is there now.
///
/// # Errors
/// When the copy fails.
pub fn plant(world: &World, engines: &Engines, digest: &str, region: &str) -> Result<bool> {
    let data = world.region_dir(region).join(cassandra::NAME);
    let golden = engines.cache.join(entry(engines, digest, world.regions())).join(region);
    if !data.join("data").is_dir() && golden.is_dir() {
        cache::remove(&data)?;
        cache::copy(&golden, &data, &[]).context("copy the golden folder")?;
        note(&data, digest)?;
    }
    Ok(fs::read_to_string(data.join(SCHEMA)).is_ok_and(|noted| noted == digest))
}

/// Notes that the folders of all regions hold this schema.
///
/// # Errors
/// When a note cannot be written.
pub fn note_all(world: &World, digest: &str) -> Result<()> {
    names(world.regions()).iter().try_for_each(|region| note(&world.region_dir(region).join(cassandra::NAME), digest))
}

fn note(data: &Path, digest: &str) -> Result<()> {
    fs::write(data.join(SCHEMA), digest).context("note the schema")
}

/// The names of regions.
pub fn names(regions: &[RegionSpec]) -> Vec<String> {
    regions.iter().map(|region| region.name.clone()).collect()
}
