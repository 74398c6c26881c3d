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
use std::{collections::BTreeSet, time::Duration};

/// Far longer than on a quiet machine, where it is some seconds.
pub const LIMIT: Duration = Duration::from_secs(90);
/// Ours, with a replica in every region: the best proof, once it is there.
const IN_ALL: &str = "SELECT generation FROM meridian.generations WHERE region = 'none'";
/// Every cluster has these, with a replica in three and in two nodes.
const IN_THREE: &str = "SELECT status FROM system_distributed.view_build_status WHERE keyspace_name = 'x' AND view_name = 'y'";
const IN_TWO: &str = "SELECT session_id FROM system_traces.sessions WHERE session_id = 00000000-0000-0000-0000-000000000000";

/// Waits until each of `regions` knows all the others, all report one schema, and each reads through every replica.
///
/// # Errors
/// Says what did not hold within `limit`, or which node ended.
pub fn whole_cluster(world: &World, regions: &[String], limit: Duration) -> Result<()> {
    let alive = || regions.iter().try_for_each(|region| probe::alive(world, region, "cassandra"));
    let pause = Duration::from_millis(100);
    probe::until("every node knows its peers, and all have one schema", limit, pause, alive, || one_schema(world, regions))?;
    probe::until("every node reads through every replica", limit, pause, alive, || {
        regions.iter().try_for_each(|region| reads_all(world, region, regions.len()).with_context(|| region.clone()))
    })
}

/// Proves that a coordinator holds its peers alive and connected: gossip alone does not.
fn reads_all(world: &World, region: &str, count: usize) -> Result<()> {
    let mut node = Cql::connect(world, region)?;
    let statement = match count {
        _ if has_schema(&mut node)? => IN_ALL,
        0 | 1 => return Ok(()),
        2 => IN_TWO,
        _ => IN_THREE,
    };
    node.query(statement, ALL).map(drop)
}

fn has_schema(node: &mut Cql) -> Result<bool> {
    let text = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = 'meridian' AND table_name = 'generations'";
    Ok(!node.query(text, ONE)?.is_empty())
}

/// Waits until the node of one region serves its own data: all that can be asked while peers are down.
///
/// # Errors
/// Says what did not hold within 90 s, or that the node ended.
pub fn own_region(world: &World, region: &str) -> Result<()> {
    let alive = || probe::alive(world, region, "cassandra");
    probe::until("the node serves its own replica", LIMIT, Duration::from_millis(100), alive, || {
        let mut node = Cql::connect(world, region)?;
        if has_schema(&mut node)? {
            node.query(IN_ALL, LOCAL_QUORUM)?;
        }
        Ok(())
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
