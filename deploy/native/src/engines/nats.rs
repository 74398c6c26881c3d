//! The NATS server, one a region, joined by gateways.

use super::{fetch::Engines, probe};
use crate::world::{ProcessSpec, World};
use anyhow::{Context, Result, bail};
use std::{fmt::Write as _, fs, time::Duration};

/// Its name among a region's processes.
pub const NAME: &str = "nats";
const CONFIG: &str = include_str!("../../engines/nats/nats.conf");
const LIMIT: Duration = Duration::from_secs(60);

/// Writes the configuration and names the process.
///
/// # Errors
/// When a file cannot be written.
pub fn process(world: &World, engines: &Engines, region: &str) -> Result<ProcessSpec> {
    let folder = world.region_dir(region);
    let conf = folder.join("conf");
    fs::create_dir_all(&conf)?;
    let mut gateways = String::new();
    for peer in world.regions() {
        writeln!(gateways, "    {{ name: \"{}\", url: \"nats://{}:7222\" }}", peer.name, peer.address)?;
    }
    let address = world.region(region)?.address.to_string();
    let config = CONFIG.replace("@REGION@", region).replace("@ADDRESS@", &address).replace("@GATEWAYS@", gateways.trim_end());
    let file = conf.join("nats.conf");
    fs::write(&file, config)?;
    let argv = vec![engines.nats.folder.join("nats-server").display().to_string(), "-c".into(), file.display().to_string()];
    Ok(ProcessSpec { name: NAME.into(), argv, env: Vec::new(), cwd: Some(folder) })
}

/// Waits until the server is joined with every peer that lives, both ways.
///
/// # Errors
/// When it is not in time, or ended.
pub fn ready(world: &World, region: &str) -> Result<()> {
    let alive = || probe::alive(world, region, NAME);
    probe::until("NATS is joined with its peers", LIMIT, Duration::from_millis(100), alive, || {
        let health = probe::http_get(world, region, 8222, "/healthz")?;
        if !health.contains("ok") {
            bail!("/healthz answers {health}");
        }
        let peers: Vec<&str> = world.regions().iter().map(|peer| &*peer.name).filter(|peer| *peer != region && world.is_up(peer)).collect();
        if peers.is_empty() { Ok(()) } else { joined(&probe::http_get(world, region, 8222, "/gatewayz")?, &peers) }
    })
}

fn joined(page: &str, peers: &[&str]) -> Result<()> {
    let page: serde_json::Value = serde_json::from_str(page).context("/gatewayz")?;
    for peer in peers {
        if page["outbound_gateways"].get(peer).is_none() {
            bail!("no gateway to {peer} yet");
        }
        if page["inbound_gateways"].get(peer).and_then(|gateways| gateways.as_array()).is_none_or(Vec::is_empty) {
            bail!("no gateway from {peer} yet");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_directions_count() {
        let page = r#"{"outbound_gateways": {"iad": {}}, "inbound_gateways": {"iad": [{}], "sin": []}}"#;
        joined(page, &["iad"]).unwrap();
        assert_eq!(joined(page, &["iad", "sin"]).unwrap_err().to_string(), "no gateway to sin yet");
        let page = r#"{"outbound_gateways": {"iad": {}}, "inbound_gateways": null}"#;
        assert_eq!(joined(page, &["iad"]).unwrap_err().to_string(), "no gateway from iad yet");
    }
}
