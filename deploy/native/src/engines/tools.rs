//! The toolchains that the fetch and the engines stand on, and where they are.

use anyhow::{Context, Result, bail, ensure};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// A JDK: its `java`, and what tells it from others.
#[derive(Clone, Debug)]
pub struct Jdk {
    pub java: PathBuf,
    /// Its `release` file: version and build.
    pub release: String,
}

/// The value of an environment variable that is an interface of somebody else's.
#[allow(clippy::disallowed_methods)]
pub fn variable(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Finds a program on the search path.
///
/// # Errors
/// Says what to install.
pub fn program(name: &str, hint: &str) -> Result<PathBuf> {
    let path = variable("PATH").unwrap_or_default();
    let found = env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file());
    found.with_context(|| format!("{name} was not found on PATH: {hint}"))
}

/// The folder that outlives builds and clones: `$XDG_CACHE_HOME/meridian/engines`, by default under `~/.cache`.
///
/// # Errors
/// When there is no home folder.
pub fn cache_dir() -> Result<PathBuf> {
    let base = variable("XDG_CACHE_HOME").filter(|path| path.is_absolute());
    let base = base.or_else(|| Some(variable("HOME")?.join(".cache"))).context("neither XDG_CACHE_HOME nor HOME is set")?;
    Ok(base.join("meridian/engines"))
}

/// The JDK of this major version: `JAVA_HOME`, then the folders where systems put theirs, then `java` on the search path.
///
/// # Errors
/// Lists what was found instead.
pub fn jdk(major: u32) -> Result<Jdk> {
    let mut homes: Vec<PathBuf> = variable("JAVA_HOME").into_iter().collect();
    for folder in ["/usr/lib/jvm", "/usr/java", "/opt/java", "/opt"] {
        let mut found: Vec<PathBuf> = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        found.sort();
        homes.extend(found);
    }
    if let Ok(java) = program("java", "").and_then(|java| Ok(fs::canonicalize(java)?)) {
        homes.extend(java.parent().and_then(Path::parent).map(Path::to_path_buf));
    }
    let jdks: Vec<(PathBuf, String, u32)> = homes.into_iter().filter_map(release_of).collect();
    if let Some((home, release, _)) = jdks.iter().find(|(_, _, found)| *found == major) {
        return Ok(Jdk { java: home.join("bin/java"), release: release.clone() });
    }
    let mut others: Vec<String> = jdks.iter().map(|(home, _, found)| format!("{found} in {}", home.display())).collect();
    others.dedup();
    let others = if others.is_empty() { "none at all".into() } else { others.join(", ") };
    bail!("JDK {major} is needed and was not found (found: {others}). Install it (Debian: openjdk-{major}-jdk-headless) or set JAVA_HOME.")
}

fn release_of(home: PathBuf) -> Option<(PathBuf, String, u32)> {
    let home = fs::canonicalize(home).ok()?;
    let release = fs::read_to_string(home.join("release")).ok()?;
    let version = release.lines().find_map(|line| line.strip_prefix("JAVA_VERSION="))?.trim_matches('"');
    let major = version.split(['.', '-', '+']).next()?.parse().ok()?;
    home.join("bin/java").is_file().then_some((home, release, major))
}

/// A Python of at least 3.9 that has pip.
///
/// # Errors
/// Says what to install.
pub fn python() -> Result<PathBuf> {
    let hint = "install Python 3.11 with venv (Debian: python3 python3-venv python3-pip)";
    let python = program("python3.11", hint).or_else(|_| program("python3", hint))?;
    let probe = "import sys, venv; assert sys.version_info >= (3, 9); print(sys.executable)";
    let answer = Command::new(&python).args(["-c", probe]).output().with_context(|| format!("run {}", python.display()))?;
    ensure!(answer.status.success(), "{} is too old or has no venv: {hint}", python.display());
    // The interpreter itself: a version manager's shim would cost a shell at each start.
    Ok(PathBuf::from(String::from_utf8_lossy(&answer.stdout).trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_jdk_is_named_with_what_was_found() {
        let error = jdk(3).unwrap_err().to_string();
        assert!(error.contains("JDK 3 is needed") && error.contains("JAVA_HOME"), "{error}");
    }
}
