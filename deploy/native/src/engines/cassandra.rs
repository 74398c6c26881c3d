//! Apache Cassandra, one node and datacenter a region: speaks CQL in ScyllaDB's place.

use super::{
    cache, cql,
    fetch::Engines,
    jvm::{self, Classes},
    probe, tools,
};
use crate::world::{ProcessSpec, World};
use anyhow::{Context, Result};
use std::{fs, time::Duration};

/// Its name among a region's processes.
pub const NAME: &str = "cassandra";
const CONFIG: &str = include_str!("../../engines/cassandra/cassandra.yaml");
const LOGGING: &str = include_str!("../../engines/cassandra/logback.xml");
const OPTIONS: &str = include_str!("../../engines/cassandra/jvm.options");
/// Folders beside the data that are written at each start.
pub const NOT_DATA: [&str; 1] = ["tmp"];

/// What a class archive of it depends on, beside the JDK.
pub fn fingerprint(engines: &Engines) -> String {
    cache::hash_of([&engines.cassandra.version, OPTIONS, &*engines.cassandra.folder.to_string_lossy()])
}

/// What a data folder of it depends on, beside the schema.
pub fn data_fingerprint(engines: &Engines) -> String {
    cache::hash_of([&engines.cassandra.version, CONFIG])
}

/// Writes the configuration and names the process. `together` are the regions of its cluster.
///
/// # Errors
/// When a file cannot be written.
pub fn process(world: &World, engines: &Engines, region: &str, classes: &Classes) -> Result<ProcessSpec> {
    let folder = world.region_dir(region);
    let (data, conf, temporary) = (folder.join(NAME), folder.join("conf"), folder.join(NAME).join("tmp"));
    fs::create_dir_all(&conf)?;
    fs::create_dir_all(&temporary)?;
    let place = world.region(region)?;
    let seeds: Vec<String> = world.regions().iter().map(|region| format!("{}:7000", region.address)).collect();
    let config = CONFIG.replace("@ADDRESS@", &place.address.to_string()).replace("@SEEDS@", &seeds.join(","));
    let config = config.replace("@TOKEN@", &(u32::from(place.index - 1) * 1000).to_string()).replace("@DATA@", &data.display().to_string());
    let rack = format!("dc={region}\nrack=r1\nprefer_local=false\n");
    let (config_file, rack_file, logging_file) =
        (conf.join("cassandra.yaml"), conf.join("cassandra-rackdc.properties"), conf.join("cassandra-logback.xml"));
    fs::write(&config_file, config)?;
    fs::write(&rack_file, rack)?;
    fs::write(&logging_file, LOGGING)?;
    let mut options = jvm::options(OPTIONS);
    options.extend([
        format!("-Djava.io.tmpdir={}", temporary.display()),
        format!("-Dcassandra.config={}", jvm::url(&config_file)),
        format!("-Dcassandra-rackdc.properties={}", jvm::url(&rack_file)),
        format!("-Dlogback.configurationFile={}", logging_file.display()),
        format!("-Dcassandra.storagedir={}", data.display()),
    ]);
    let main = ["org.apache.cassandra.service.CassandraDaemon"];
    let argv = unlocked(jvm::command(engines, &engines.cassandra.folder, classes, options, &main)?);
    Ok(ProcessSpec { name: NAME.into(), argv, env: vec![("MALLOC_ARENA_MAX".into(), "2".into())], cwd: Some(folder) })
}

/// Without the right to lock memory: with it (as root) the node would pin its whole heap, twice the memory.
fn unlocked(argv: Vec<String>) -> Vec<String> {
    match tools::program("setpriv", "") {
        Ok(setpriv) => {
            let mut words = vec![setpriv.display().to_string()];
            words.extend(["--bounding-set", "-ipc_lock", "--inh-caps", "-ipc_lock"].map(Into::into));
            words.extend(argv);
            words
        }
        Err(_) => argv,
    }
}

/// Waits until the node answers over CQL; that says nothing about its cluster yet, see the gate.
///
/// # Errors
/// When it does not in time, or ended.
pub fn answers(world: &World, region: &str) -> Result<()> {
    let alive = || probe::alive(world, region, NAME);
    let pause = Duration::from_millis(100);
    probe::until("Cassandra answers CQL", probe::START_LIMIT, pause, alive, || cql::answers(world, region)).context(region.to_owned())
}
