//! Our own services in a region: where they listen, what they are told, when they are ready.

use crate::{
    engines::probe,
    progress::Progress,
    world::{ProcessSpec, World, guarded},
};
use anyhow::{Context, Result, anyhow, ensure};
use std::{env, fs, path::PathBuf, sync::Arc, thread, time::Duration};

/// A service: its name is that of its program and of its process.
struct Service {
    name: &'static str,
    /// Where `/livez`, `/readyz` and `/metrics` are, and the public API if it has one.
    port: u16,
}

const SERVICES: [Service; 7] = [
    Service { name: "ingest", port: 8080 },
    Service { name: "relay", port: 9101 },
    Service { name: "mirror", port: 9103 },
    Service { name: "sink", port: 9102 },
    Service { name: "feed", port: 8081 },
    Service { name: "usage", port: 8082 },
    Service { name: "consumer", port: 9104 },
];

const MIRROR_PORT: u16 = 7400;
const READY_LIMIT: Duration = Duration::from_secs(90);

/// What the host can reach of each region: name and port.
pub const EXPOSED: [(&str, u16); 9] = [
    ("ingest", 8080),
    ("feed", 8081),
    ("usage", 8082),
    ("relay", 9101),
    ("sink", 9102),
    ("mirror", 9103),
    ("consumer", 9104),
    ("clickhouse", 8123),
    ("nats", 4222),
];

/// The names of all services.
pub fn names() -> impl Iterator<Item = &'static str> {
    SERVICES.iter().map(|service| service.name)
}

/// A program of ours: it lies beside this one.
///
/// # Errors
/// Says how to build it when it is missing.
pub fn binary(name: &str) -> Result<PathBuf> {
    let program = env::current_exe()?.with_file_name(name);
    ensure!(program.is_file(), "{} is missing: build it with `cargo build --release -p {name}`", program.display());
    Ok(program)
}

/// Folder of the development keys and the cursors' key.
pub fn secrets(world: &World) -> PathBuf {
    world.dir().join("secrets")
}

/// Makes the development keys and the cursors' key once.
///
/// # Errors
/// When `ingest keys dev` fails.
pub fn prepare(world: &World) -> Result<()> {
    let folder = secrets(world);
    let mut command = guarded(binary("ingest")?);
    command.args(["keys", "dev", "--tenants", "20", "--dir"]).arg(&folder);
    let output = command.output().context("start ingest keys dev")?;
    ensure!(output.status.success(), "ingest keys dev: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// Starts the services of a region, all of them when `only` is empty.
///
/// # Errors
/// Names the service that is unknown, not built, or runs already.
pub fn start(world: &Arc<World>, region: &str, only: &[String]) -> Result<()> {
    chosen(only)?.iter().try_for_each(|service| start_process(world, region, service.name))
}

/// Starts one service of a region.
///
/// # Errors
/// When it is unknown, not built, or runs already.
pub fn start_process(world: &Arc<World>, region: &str, name: &str) -> Result<()> {
    let service = chosen(&[name.to_owned()])?[0];
    let folder = world.region_dir(region);
    let address = world.region(region)?.address;
    let mut env = environment(world, region)?;
    let mut set = |key: &str, value: String| env.push((format!("MERIDIAN_{key}"), value));
    set("LISTEN", format!("{address}:{}", service.port));
    set("MIRROR_LISTEN", format!("{address}:{MIRROR_PORT}"));
    set("MIRROR_PEERS", mirror_peers(world, region));
    set("FEED_URLS", feed_urls(world, region));
    let state = folder.join(name);
    set("STATE_DIR", state.display().to_string());
    if name == "consumer" {
        fs::create_dir_all(&state)?;
    }
    let argv = vec![binary(name)?.display().to_string()];
    world.spawn(region, ProcessSpec { name: name.into(), argv, env, cwd: Some(folder) })
}

/// Waits until every chosen service of a region says that it is ready.
///
/// # Errors
/// What the service that is late complains of, or its log's last lines when it ended.
pub fn wait_ready(world: &Arc<World>, region: &str, only: &[String], progress: &Progress) -> Result<()> {
    let chosen = chosen(only)?;
    thread::scope(|scope| {
        let waits: Vec<_> = chosen.iter().map(|service| scope.spawn(|| ready(world, region, service))).collect();
        let results: Vec<Result<()>> =
            waits.into_iter().map(|wait| wait.join().unwrap_or_else(|_| Err(anyhow!("a wait panicked")))).collect();
        results.into_iter().collect::<Result<()>>()
    })?;
    let names: Vec<&str> = chosen.iter().map(|service| service.name).collect();
    progress.say(region, format!("ready: {}", names.join(", ")));
    Ok(())
}

fn ready(world: &World, region: &str, service: &Service) -> Result<()> {
    let what = format!("{} of {region} is ready", service.name);
    let alive = || probe::alive(world, region, service.name);
    probe::until(&what, READY_LIMIT, Duration::from_millis(100), alive, || {
        probe::http_get(world, region, service.port, "/readyz").map(drop)
    })
}

fn chosen(only: &[String]) -> Result<Vec<&'static Service>> {
    if only.is_empty() {
        return Ok(SERVICES.iter().collect());
    }
    let find = |name: &String| SERVICES.iter().find(|service| service.name == *name);
    only.iter()
        .map(|name| {
            find(name).with_context(|| format!("no service is called {name}; services are {}", names().collect::<Vec<_>>().join(", ")))
        })
        .collect()
}

/// What every program of ours in a region is told by its environment.
///
/// # Errors
/// When the world has no such region.
pub fn environment(world: &World, region: &str) -> Result<Vec<(String, String)>> {
    let address = world.region(region)?.address;
    let regions: Vec<&str> = world.regions().iter().map(|region| &*region.name).collect();
    let secret = |name: &str| secrets(world).join(name).display().to_string();
    let values = [
        ("REGION", region.to_owned()),
        ("REGIONS", regions.join(",")),
        ("SCYLLA_ADDRESS", format!("{address}:9042")),
        ("KAFKA_ADDRESS", format!("{address}:9092")),
        ("CLICKHOUSE_URL", format!("http://{address}:8123")),
        ("CLICKHOUSE_DATABASE", "meridian".into()),
        ("NATS_URL", format!("nats://{address}:4222")),
        ("KEYS_FILE", secret("keys.toml")),
        ("DEV_KEYS_FILE", secret("dev-keys.toml")),
        ("CURSOR_KEY_FILE", secret("cursor.key")),
        ("METERS_FILE", meters_file(world)?.display().to_string()),
    ];
    Ok(values.map(|(key, value)| (format!("MERIDIAN_{key}"), value)).to_vec())
}

/// `deploy/meters.toml` of the checkout: that around the world's folder, else the one that this program was built in.
fn meters_file(world: &World) -> Result<PathBuf> {
    let program = env::current_exe()?;
    let mut around = world.dir().ancestors().chain(program.ancestors()).map(|folder| folder.join("deploy/meters.toml"));
    around.find(|file| file.is_file()).context("deploy/meters.toml is neither around the world's folder nor around this program")
}

fn mirror_peers(world: &World, region: &str) -> String {
    let peers = world.regions().iter().filter(|peer| peer.name != region);
    peers.map(|peer| format!("{}=http://{}:{MIRROR_PORT}", peer.name, peer.address)).collect::<Vec<_>>().join(",")
}

/// The feeds of all regions, the own one first.
fn feed_urls(world: &World, region: &str) -> String {
    let (own, others): (Vec<_>, Vec<_>) = world.regions().iter().partition(|place| place.name == region);
    own.into_iter().chain(others).map(|place| format!("http://{}:8081", place.address)).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_name_is_told_the_right_ones() {
        let error = chosen(&["sinc".into()]).err().unwrap().to_string();
        assert!(error.contains("sinc") && error.contains("sink"), "{error}");
        assert_eq!(chosen(&[]).unwrap().len(), SERVICES.len());
    }

    #[test]
    fn ports_are_unique() {
        let mut ports: Vec<u16> = EXPOSED.iter().map(|(_, port)| *port).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), EXPOSED.len());
        assert!(SERVICES.iter().all(|service| EXPOSED.contains(&(service.name, service.port))));
    }
}
