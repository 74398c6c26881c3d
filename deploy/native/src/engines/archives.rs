//! Class-data archives of the two JVM engines, made once a machine: a start from them costs half the CPU time.

use super::{
    cache, cassandra,
    cql::{Cql, ONE},
    fetch::Engines,
    jvm::Classes,
    kafka, probe,
};
use crate::{
    progress::Progress,
    world::{Signal, World},
};
use anyhow::{Result, ensure};
use std::{
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// Writing an archive takes half a minute on a loaded machine.
const DUMP_LIMIT: Duration = Duration::from_secs(240);
const ROWS: u32 = 3000;

fn entry(engines: &Engines) -> String {
    let jdk = [&*engines.jdk.release, &*engines.jdk.java.to_string_lossy()];
    let hash = cache::hash_of([jdk[0], jdk[1], &cassandra::fingerprint(engines), &kafka::fingerprint(engines)]);
    format!("classes-{}", &hash[..16])
}

/// Where an engine takes its classes from: its archive, once that is there.
pub fn classes(engines: &Engines, name: &str) -> Classes {
    let archive = engines.cache.join(entry(engines)).join(format!("{name}.jsa"));
    if archive.is_file() { Classes::From(archive) } else { Classes::Plain }
}

/// Makes the archives unless they are there.
///
/// # Errors
/// When an engine does not start or writes none.
pub fn make(engines: &Engines, open: impl FnOnce(&Path) -> Result<World>, progress: &Progress) -> Result<PathBuf> {
    let waiting = || progress.say("prepare", "another process makes the class archives, waiting …");
    cache::entry(&engines.cache, &entry(engines), waiting, |folder, work| {
        progress.say("prepare", "class archives of Cassandra and Kafka, once a machine …");
        let world = open(work)?;
        let region = &*world.regions()[0].name;
        let archive = |name: &str| folder.join(format!("{name}.jsa"));
        world.spawn(region, cassandra::process(&world, engines, region, &Classes::Into(archive(cassandra::NAME)))?)?;
        world.spawn(region, kafka::process(&world, engines, region, &Classes::Into(archive(kafka::NAME)))?)?;
        kafka::ready(&world, region)?;
        cassandra::answers(&world, region)?;
        train(&world, region)?;
        // Classes are written at an orderly end.
        let names = [cassandra::NAME, kafka::NAME];
        names.iter().try_for_each(|name| world.signal(region, name, Signal::SIGTERM))?;
        for name in names {
            world.wait_exit(region, name, DUMP_LIMIT)?;
            ensure!(archive(name).is_file(), "{name} wrote no archive of its classes");
        }
        progress.say("prepare", "class archives are there");
        Ok(())
    })
}

/// What a node does all day, so that the archive holds the classes for it.
fn train(world: &World, region: &str) -> Result<()> {
    let alive = || probe::alive(world, region, cassandra::NAME);
    let replication = format!("{{'class': 'NetworkTopologyStrategy', '{region}': 1}}");
    // Only a node that knows its own datacenter takes this one.
    let keyspace = format!("CREATE KEYSPACE IF NOT EXISTS training WITH replication = {replication}");
    let mut node = probe::until("a keyspace", probe::START_LIMIT, Duration::from_millis(200), alive, || {
        let mut node = Cql::connect(world, region)?;
        node.patience(Duration::from_secs(30))?;
        node.query(&keyspace, ONE).map(|_| node)
    })?;
    let clustering =
        "WITH CLUSTERING ORDER BY (b ASC) AND compaction = {'class': 'TimeWindowCompactionStrategy'} AND default_time_to_live = 3600";
    node.query(&format!("CREATE TABLE IF NOT EXISTS training.rows (a int, b blob, c blob, PRIMARY KEY (a, b)) {clustering}"), ONE)?;
    for row in 0..ROWS {
        node.query(&format!("INSERT INTO training.rows (a, b, c) VALUES ({}, 0x{row:08x}, 0xcafe)", row % 16), ONE)?;
    }
    for part in 0..ROWS / 10 {
        node.query(&format!("SELECT b, c FROM training.rows WHERE a = {} AND b > 0x00000100 LIMIT 50", part % 16), ONE)?;
    }
    // Let the compilers and the flush threads come to rest.
    thread::sleep(Duration::from_millis(500));
    Ok(())
}
