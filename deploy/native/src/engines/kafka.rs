//! Apache Kafka, one broker a region: speaks Kafka's protocol in Redpanda's place.

use super::{
    cache,
    fetch::Engines,
    jvm::{self, Classes},
    probe,
};
use crate::world::{ProcessSpec, World, guarded};
use anyhow::{Context, Result, ensure};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use rand::RngExt;
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

/// Its name among a region's processes.
pub const NAME: &str = "kafka";
const SERVER: &str = include_str!("../../engines/kafka/server.properties");
const LOGGING: &str = include_str!("../../engines/kafka/log4j2.properties");
const OPTIONS: &str = include_str!("../../engines/kafka/jvm.options");
const CHECKPOINT: &str = "bootstrap.checkpoint";

/// What a class archive of it depends on, beside the JDK.
pub fn fingerprint(engines: &Engines) -> String {
    cache::hash_of([&engines.kafka.version, OPTIONS, &*engines.kafka.folder.to_string_lossy()])
}

/// Writes the configuration, formats an empty folder, and names the process.
///
/// # Errors
/// When a file cannot be written.
pub fn process(world: &World, engines: &Engines, region: &str, classes: &Classes) -> Result<ProcessSpec> {
    let folder = world.region_dir(region);
    let (data, conf) = (folder.join(NAME), folder.join("conf"));
    fs::create_dir_all(&conf)?;
    let server = properties(&world.region(region)?.address.to_string(), &data);
    let (server_file, logging_file) = (conf.join("kafka.properties"), conf.join("kafka-log4j2.properties"));
    fs::write(&server_file, server)?;
    fs::write(&logging_file, LOGGING)?;
    format(engines, &data)?;
    let mut options = jvm::options(OPTIONS);
    options.push(format!("-Dlog4j2.configurationFile={}", logging_file.display()));
    let argv = jvm::command(engines, &engines.kafka.folder, classes, options, &["kafka.Kafka", &server_file.to_string_lossy()])?;
    Ok(ProcessSpec { name: NAME.into(), argv, env: vec![("MALLOC_ARENA_MAX".into(), "2".into())], cwd: Some(folder) })
}

fn properties(address: &str, data: &Path) -> String {
    // A properties file takes a backslash for an escape.
    SERVER.replace("@ADDRESS@", address).replace("@DATA@", &data.display().to_string().replace('\\', "\\\\"))
}

/// What `kafka-storage format` would do, without a JVM: the checkpoint holds no name and no path, so one serves all; identities are new.
fn format(engines: &Engines, data: &Path) -> Result<()> {
    if data.join("meta.properties").is_file() {
        return Ok(());
    }
    fs::create_dir_all(data)?;
    fs::copy(format_template(engines)?.join(CHECKPOINT), data.join(CHECKPOINT)).context("copy the checkpoint")?;
    let (cluster, directory) = (new_uuid(), new_uuid());
    fs::write(data.join("meta.properties"), format!("version=1\nnode.id=1\ncluster.id={cluster}\ndirectory.id={directory}\n"))?;
    Ok(())
}

/// A random identity as Kafka writes them. None begins with `-`, which its tools take for an option.
fn new_uuid() -> String {
    loop {
        let text = BASE64_URL_SAFE_NO_PAD.encode(rand::rng().random::<[u8; 16]>());
        if !text.starts_with('-') {
            return text;
        }
    }
}

/// A folder with a formatted broker's checkpoint, made once.
///
/// # Errors
/// What Kafka's storage tool said.
pub fn format_template(engines: &Engines) -> Result<PathBuf> {
    cache::entry(
        &engines.cache,
        &format!("kafka-format-{}", engines.kafka.version),
        || (),
        |folder, work| {
            let (data, file) = (work.join("data"), work.join("server.properties"));
            fs::write(&file, properties("127.0.0.1", &data))?;
            let main = ["kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c", &*file.to_string_lossy()];
            let argv = jvm::command(engines, &engines.kafka.folder, &Classes::Plain, vec!["-Xmx64m".into()], &main)?;
            let output = guarded(&argv[0]).args(&argv[1..]).output().context("start Kafka's storage tool")?;
            ensure!(output.status.success(), "Kafka's storage tool: {}", String::from_utf8_lossy(&output.stderr));
            fs::copy(data.join(CHECKPOINT), folder.join(CHECKPOINT)).context("the storage tool made no checkpoint")?;
            Ok(())
        },
    )
}

/// Waits until the broker leads: it names itself and its controller.
///
/// # Errors
/// When it does not in time, or ended.
pub fn ready(world: &World, region: &str) -> Result<()> {
    let alive = || probe::alive(world, region, NAME);
    let pause = Duration::from_millis(100);
    probe::until("Kafka names its controller", probe::START_LIMIT, pause, alive, || probe::kafka_metadata(world, region))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_kafkas() {
        let uuid = new_uuid();
        assert!(uuid.len() == 22 && !uuid.starts_with('-'), "{uuid}");
    }
}
