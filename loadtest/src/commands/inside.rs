//! `loadtest audit`: inside a region.

use super::AuditOptions;
use crate::{
    audit::{
        Scope,
        collect::{audit_region, engines_at},
    },
    world::World,
};
use anyhow::Result;
use std::path::Path;

pub async fn audit(world: Option<&Path>, options: &AuditOptions) -> Result<u8> {
    let world = World::find(world)?;
    let engines = engines_at(&world.region(&options.region)?.address);
    let scope = Scope { source: options.source.clone(), since_us: options.since_us };
    let audit = audit_region(&options.region, &engines, &scope).await?;
    audit.write(&options.out)?;
    let records: usize = audit.logs.iter().map(|log| log.records.len()).sum();
    println!("{}: {records} records of {} partitions, {} rows", options.region, audit.logs.len(), audit.stored.len());
    for (tier, why) in &audit.unread {
        println!("{}: {tier:?} could not be read: {why}", options.region);
    }
    Ok(0)
}
