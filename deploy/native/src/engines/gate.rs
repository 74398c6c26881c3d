//! The gate before a cluster may be used: a node that answers is not yet a node that knows its peers.
//!
//! A coordinator hands a schema change only to peers that it holds alive and connected, so a change made earlier can leave a node on another
//! schema for good.

use super::{
    cql::{ALL, Cql, LOCAL_QUORUM, ONE},
    probe,
};
use crate::world::World;
use anyhow::{Context, Result, ensure};
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

const LIMIT: Duration = Duration::from_secs(90);
/// A table that every cluster has, with a replica in three nodes.
const EVERYWHERE: &str = "SELECT status FROM system_distributed.view_build_status WHERE keyspace_name = 'x' AND view_name = 'y'";

/// Waits until each of `regions` knows all the others, all report one schema, and each reads through every replica.
///
/// # Errors
/// Says what did not hold within 90 s, or which node ended.
pub fn whole_cluster(world: &World, regions: &[String]) -> Result<Duration> {
    let started = Instant::now();
    let alive = || regions.iter().try_for_each(|region| probe::alive(world, region, "cassandra"));
    let pause = Duration::from_millis(100);
    probe::until("every node knows its peers, and all have one schema", LIMIT, pause, alive, || one_schema(world, regions))?;
    probe::until("every node reads through every replica", LIMIT, pause, alive, || {
        regions.iter().try_for_each(|region| Cql::connect(world, region)?.query(EVERYWHERE, ALL).map(drop).with_context(|| region.clone()))
    })?;
    Ok(started.elapsed())
}

/// Waits until the node of one region serves its own data: all that can be asked while peers are down.
///
/// # Errors
/// Says what did not hold within 90 s, or that the node ended.
pub fn own_region(world: &World, region: &str) -> Result<()> {
    let alive = || probe::alive(world, region, "cassandra");
    probe::until("the node serves its own replica", LIMIT, Duration::from_millis(100), alive, || {
        let mut node = Cql::connect(world, region)?;
        node.query("SELECT keyspace_name FROM system_schema.keyspaces", ONE)?;
        let here =
            node.query("SELECT table_name FROM system_schema.tables WHERE keyspace_name = 'meridian' AND table_name = 'generations'", ONE)?;
        if here.is_empty() {
            return Ok(());
        }
        node.query("SELECT count(*) FROM meridian.generations", LOCAL_QUORUM).map(drop)
    })
}

fn one_schema(world: &World, regions: &[String]) -> Result<()> {
    let mut versions = BTreeSet::new();
    for region in regions {
        let mut node = Cql::connect(world, region)?;
        let peers = node.query("SELECT schema_version FROM system.peers_v2", ONE)?;
        ensure!(peers.len() == regions.len() - 1, "{region} knows {} of {} peers", peers.len(), regions.len() - 1);
        versions.extend(peers);
        versions.extend(node.query("SELECT schema_version FROM system.local", ONE)?);
    }
    ensure!(versions.len() == 1, "{} versions of the schema", versions.len());
    Ok(())
}
