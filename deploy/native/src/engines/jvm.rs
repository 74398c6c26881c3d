//! What the two JVM engines have in common.

use super::fetch::Engines;
use anyhow::{Context, Result, ensure};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// What becomes of the class-data archive in a run: it halves the CPU time of a start.
#[derive(Clone, Debug)]
pub enum Classes {
    /// Taken from this archive; ignored by the JVM where it does not fit.
    From(PathBuf),
    /// Written there when the process is asked to stop.
    Into(PathBuf),
    /// Neither.
    Plain,
}

impl Classes {
    fn options(&self) -> Vec<String> {
        match self {
            Self::From(archive) => vec!["-Xshare:auto".into(), format!("-XX:SharedArchiveFile={}", archive.display())],
            Self::Into(archive) => vec![format!("-XX:ArchiveClassesAtExit={}", archive.display())],
            Self::Plain => Vec::new(),
        }
    }
}

/// The command line of a class of the jars in `jars`.
///
/// # Errors
/// When the folder cannot be read or holds no jar.
pub fn command(engines: &Engines, jars: &Path, classes: &Classes, options: Vec<String>, main: &[&str]) -> Result<Vec<String>> {
    let mut argv = vec![engines.jdk.java.display().to_string()];
    argv.extend(classes.options());
    argv.extend(options);
    // Jar by jar and in order: a folder on the class path, or another order, would disable the archive.
    argv.extend(["-cp".into(), class_path(jars)?]);
    argv.extend(main.iter().map(|&word| word.into()));
    Ok(argv)
}

fn class_path(folder: &Path) -> Result<String> {
    let entries = fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
    let mut jars: Vec<String> =
        entries.flatten().map(|entry| entry.path().display().to_string()).filter(|path| path.ends_with(".jar")).collect();
    ensure!(!jars.is_empty(), "{} holds no jar", folder.display());
    jars.sort();
    Ok(jars.join(":"))
}

/// The options of a file: one a line, `#` begins a comment.
pub fn options(text: &str) -> Vec<String> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).map(Into::into).collect()
}

/// A path as a URL that a JVM reads.
pub fn url(path: &Path) -> String {
    let escaped: String = path.display().to_string().replace('%', "%25").replace(' ', "%20").replace('#', "%23");
    format!("file://{escaped}")
}
