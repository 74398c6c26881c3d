//! ClickHouse's engine behind a front that serves its HTTP protocol, one a region.

use super::{fetch::Engines, probe};
use crate::world::{ProcessSpec, World};
use anyhow::{Result, ensure};
use std::{fs, time::Duration};

/// Its name among a region's processes.
pub const NAME: &str = "clickhouse";
const CONFIG: &str = include_str!("../../engines/clickhouse/engine.xml");
/// The front's own files.
const FRONT: [(&str, &str); 4] = [
    ("front.py", include_str!("../../engines/clickhouse/front.py")),
    ("bodies.py", include_str!("../../engines/clickhouse/bodies.py")),
    ("engine.py", include_str!("../../engines/clickhouse/engine.py")),
    ("statements.py", include_str!("../../engines/clickhouse/statements.py")),
];

/// Writes the configuration and the front, and names the process.
///
/// # Errors
/// When a file cannot be written.
pub fn process(world: &World, engines: &Engines, region: &str) -> Result<ProcessSpec> {
    let folder = world.region_dir(region);
    let front = folder.join("conf/clickhouse");
    fs::create_dir_all(&front)?;
    for (name, text) in FRONT {
        fs::write(front.join(name), text)?;
    }
    let config = front.join("engine.xml");
    fs::write(&config, CONFIG)?;
    let address = world.region(region)?.address.to_string();
    let mut argv = vec![engines.python.display().to_string(), front.join("front.py").display().to_string()];
    argv.extend(["--data".into(), folder.join(NAME).display().to_string(), "--config".into(), config.display().to_string()]);
    argv.extend(["--host".into(), address, "--port".into(), "8123".into()]);
    let env = [("PYTHONPATH", engines.clickhouse.folder.display().to_string()), ("PYTHONDONTWRITEBYTECODE", "1".into())];
    let env = env.map(|(name, value)| (name.to_owned(), value)).to_vec();
    Ok(ProcessSpec { name: NAME.into(), argv, env, cwd: Some(folder) })
}

/// Waits until the front answers.
///
/// # Errors
/// When it does not in time, or ended.
pub fn ready(world: &World, region: &str) -> Result<()> {
    let alive = || probe::alive(world, region, NAME);
    probe::until("ClickHouse answers", probe::START_LIMIT, Duration::from_millis(100), alive, || {
        let answer = probe::http_get(world, region, 8123, "/ping")?;
        ensure!(answer.trim() == "Ok.", "/ping answers {answer}");
        Ok(())
    })
}
