//! The world under test, as `world.json` describes it.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// A world.
#[derive(Clone, Debug)]
pub struct World {
    /// Path of `world.json`.
    pub file: PathBuf,
    /// Engines with version and durability, as the launcher tells them.
    pub engines: serde_json::Value,
    /// In the launcher's order.
    pub regions: Vec<Region>,
    folder: PathBuf,
    secrets: PathBuf,
}

/// A region of a world.
#[derive(Clone, Debug, Deserialize)]
pub struct Region {
    /// Its name.
    pub name: String,
    /// Address inside the world.
    pub address: String,
    /// `host:port` usable from here, by service.
    #[serde(default)]
    pub exposed: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct WorldFile {
    folder: PathBuf,
    secrets: PathBuf,
    #[serde(default)]
    engines: serde_json::Value,
    regions: Vec<Region>,
}

#[derive(Deserialize)]
struct DevKeys {
    keys: BTreeMap<String, String>,
}

impl World {
    /// Reads the world that is named, or that of the environment (`MERIDIAN_WORLD`), or the checkout's own.
    ///
    /// # Errors
    /// When there is none, and what to do.
    pub fn find(named: Option<&Path>) -> Result<Self> {
        let named = named.map(Path::to_path_buf).or_else(|| kit::config::variable("MERIDIAN_WORLD").map(PathBuf::from));
        let file = std::path::absolute(named.unwrap_or_else(|| PathBuf::from(".meridian/world.json")))?;
        let text = fs::read_to_string(&file)
            .with_context(|| format!("no world at {}: start one with `native up`, or run this by `native run -- …`", file.display()))?;
        let WorldFile { folder, secrets, engines, regions } = serde_json::from_str(&text).with_context(|| file.display().to_string())?;
        ensure!(!regions.is_empty(), "{} names no region", file.display());
        Ok(Self { file, engines, regions, folder, secrets })
    }

    /// Folder of the world's state.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Folder of a region's state.
    pub fn region_folder(&self, region: &str) -> PathBuf {
        self.folder().join(region)
    }

    /// Names of the regions, in order.
    pub fn region_names(&self) -> Vec<String> {
        self.regions.iter().map(|region| region.name.clone()).collect()
    }

    /// A region by its name.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn region(&self, name: &str) -> Result<&Region> {
        let known = || format!("no region {name:?} in this world, which has {}", self.region_names().join(", "));
        self.regions.iter().find(|region| region.name == name).with_context(known)
    }

    /// URLs of a service usable from here, in order of regions.
    ///
    /// # Errors
    /// When a region does not expose it.
    pub fn urls(&self, service: &str) -> Result<Vec<String>> {
        let url = |region: &Region| {
            let address = region.exposed.get(service).with_context(|| format!("{} does not expose {service}", region.name))?;
            Ok(format!("http://{address}"))
        };
        self.regions.iter().map(url).collect()
    }

    /// Development keys of the tenants, by tenant.
    ///
    /// # Errors
    /// When there are none.
    pub fn keys(&self) -> Result<BTreeMap<String, String>> {
        let path = self.secrets.join("dev-keys.toml");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        Ok(toml::from_str::<DevKeys>(&text).with_context(|| path.display().to_string())?.keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_world_is_read_and_its_gaps_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("world.json");
        let text = serde_json::json!({
            "control": "x", "folder": dir.path().join("run"), "secrets": dir.path(), "regions": [{"name": "fra", "address": "10.1.0.1", "exposed": {"ingest": "127.0.0.1:21080"}}],
        });
        fs::write(&file, text.to_string()).unwrap();
        fs::write(dir.path().join("dev-keys.toml"), "[keys]\ntenant-01 = \"key\"\n").unwrap();
        let world = World::find(Some(&file)).unwrap();
        assert_eq!(world.urls("ingest").unwrap(), ["http://127.0.0.1:21080"]);
        assert_eq!(world.keys().unwrap()["tenant-01"], "key");
        assert!(world.urls("feed").unwrap_err().to_string().contains("fra does not expose feed"));
        assert!(world.region("iad").unwrap_err().to_string().contains("fra"));
        assert!(World::find(Some(Path::new("/nowhere/world.json"))).unwrap_err().to_string().contains("native up"));
    }
}
