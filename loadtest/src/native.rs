//! The launcher's command line: the binary `native` beside this one.

use anyhow::{Context, Result, ensure};
use std::{
    path::{Path, PathBuf},
    process::Stdio,
};
use tokio::process::Command;

/// Where the launcher is: beside this binary, else by the search path.
pub fn binary() -> PathBuf {
    let beside = std::env::current_exe().ok().and_then(|path| path.parent().map(|folder| folder.join("native")));
    beside.filter(|path| path.exists()).unwrap_or_else(|| PathBuf::from("native"))
}

/// Runs the launcher with `arguments` for the world whose `world.json` is at `world`, and gives its standard output.
///
/// # Errors
/// When it cannot be started or says no; the text is its own.
pub async fn run(world: &Path, arguments: &[String]) -> Result<Vec<u8>> {
    let named = format!("native {}", arguments.join(" "));
    let output = Command::new(binary())
        .arg("--dir")
        .arg(world.parent().unwrap_or(Path::new(".")))
        .args(arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| named.clone())?;
    ensure!(output.status.success(), "{named}: {} {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    Ok(output.stdout)
}

/// The same, with the answer read as JSON.
///
/// # Errors
/// As [`run`], or when the answer is not JSON.
pub async fn json(world: &Path, arguments: &[&str]) -> Result<serde_json::Value> {
    let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
    let output = run(world, &arguments).await?;
    serde_json::from_slice(&output).with_context(|| format!("native {}: not JSON", arguments.join(" ")))
}
