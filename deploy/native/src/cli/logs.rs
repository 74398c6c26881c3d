//! `logs`: what the processes of a region wrote.

use crate::control::StateDir;
use crate::world::stages::logs_dir;
use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write, stdout};
use std::path::{Path, PathBuf};
use std::time::Duration;

const LOOK: Duration = Duration::from_millis(200);

/// A log that is being read: where it stands, and the line that is not whole yet.
struct Tail {
    reader: BufReader<File>,
    partial: Vec<u8>,
}

pub fn logs(dir: &StateDir, region: &str, name: Option<&str>, follow: bool, lines: usize) -> Result<i32> {
    let folder = logs_dir(dir.path(), region);
    let mut tails: BTreeMap<String, Tail> = BTreeMap::new();
    let mut first = true;
    loop {
        for (log, path) in current_logs(&folder, name)? {
            let read = if let Some(tail) = tails.get_mut(&log) {
                reopen_if_replaced(tail, &path)?;
                tail.read_lines()?
            } else {
                let mut tail = Tail::open(&path)?;
                let read = tail.read_lines()?;
                tails.insert(log.clone(), tail);
                if first { last(read, lines) } else { read }
            };
            let prefix = if name.is_some() { String::new() } else { format!("{log:<12} ") };
            if print(&prefix, &read).is_err() {
                return Ok(0);
            }
        }
        if first && tails.is_empty() && !follow {
            bail!("no logs in {}{}", folder.display(), name.map(|name| format!(" of {name}")).unwrap_or_default());
        }
        if !follow {
            return Ok(0);
        }
        first = false;
        std::thread::sleep(LOOK);
    }
}

/// Logs of the runs that are going on or were the last ones: `NAME.log`, not `NAME.1.log`.
fn current_logs(folder: &Path, name: Option<&str>) -> Result<Vec<(String, PathBuf)>> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(Vec::new()) };
    let mut logs = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let Some(log) = path.file_name().and_then(|file| file.to_str()).and_then(|file| file.strip_suffix(".log")) else { continue };
        // Numbered logs are shown when they are asked for by name: `kafka.1`.
        let older = log.rsplit_once('.').is_some_and(|(_, number)| number.parse::<u32>().is_ok());
        if name.map_or(!older, |name| name == log) {
            logs.push((log.to_string(), path));
        }
    }
    logs.sort();
    Ok(logs)
}

/// A process that was started again writes to a new file of the same name.
fn reopen_if_replaced(tail: &mut Tail, path: &Path) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    let (Ok(now), open) = (fs::metadata(path), tail.reader.get_ref().metadata()?) else { return Ok(()) };
    if now.ino() != open.ino() {
        *tail = Tail::open(path)?;
    }
    Ok(())
}

impl Tail {
    fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Self { reader: BufReader::new(file), partial: Vec::new() })
    }

    fn read_lines(&mut self) -> Result<Vec<Vec<u8>>> {
        let mut lines = Vec::new();
        while self.reader.read_until(b'\n', &mut self.partial)? > 0 {
            if self.partial.ends_with(b"\n") {
                lines.push(std::mem::take(&mut self.partial));
            }
        }
        Ok(lines)
    }
}

fn last(lines: Vec<Vec<u8>>, count: usize) -> Vec<Vec<u8>> {
    let mut lines = VecDeque::from(lines);
    lines.drain(..lines.len().saturating_sub(count));
    lines.into()
}

fn print(prefix: &str, lines: &[Vec<u8>]) -> std::io::Result<()> {
    let mut output = stdout().lock();
    for line in lines {
        output.write_all(prefix.as_bytes())?;
        output.write_all(line)?;
    }
    output.flush()
}
