//! What survives a kill: `handled.ndjson`, and a cursor file a tenant.

use anyhow::{Context, Result, ensure};
use client::Page;
use meridian_proto::CommitId;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};
use tokio::task::spawn_blocking;

/// The state's folder, held by this process alone.
#[derive(Debug)]
pub struct State {
    dir: PathBuf,
    handled: Mutex<Handled>,
    _lock: File,
}

#[derive(Debug)]
struct Handled {
    file: File,
    /// Length up to which the file holds whole lines.
    whole: u64,
}

/// A page to be handled.
#[derive(Debug)]
pub struct HandlePage {
    /// Whose.
    pub tenant: String,
    /// The page.
    pub page: Page,
    /// When the signal was sent that led to the pull.
    pub signalled_us: Option<u64>,
    /// When the page was there.
    pub pulled_us: u64,
}

/// A cursor to be kept.
#[derive(Clone, Debug)]
pub struct SaveCursor {
    /// Whose.
    pub tenant: String,
    /// The cursor.
    pub cursor: String,
}

/// One line of `handled.ndjson`. Times in microseconds or milliseconds since the Unix epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Tenant.
    pub tenant: String,
    /// CloudEvents `source`.
    pub source: String,
    /// CloudEvents `id`.
    pub id: String,
    /// Payload hash, 64 hexadecimal digits.
    pub hash: String,
    /// Commit id, 32 hexadecimal digits.
    pub commit_id: String,
    /// Region that accepted the event.
    pub origin: String,
    /// When it was accepted.
    pub accepted_us: u64,
    /// The commit time within the commit id.
    pub committed_us: u64,
    /// When it was appended to the log of its origin.
    pub relayed_ms: i64,
    /// When it was appended to the log of the region that served the page.
    pub mirrored_ms: i64,
    /// When the signal was sent that led to the pull; 0 if it was the tick, or the signal was sent before the event was there.
    pub signalled_us: u64,
    /// When the page was there.
    pub pulled_us: u64,
}

impl State {
    /// Opens the folder, makes it if need be, takes its lock, and cuts off a last line that a kill left half written.
    ///
    /// # Errors
    /// When another process has the folder, or it cannot be written.
    pub fn open(dir: &Path) -> Result<Arc<Self>> {
        fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
        let lock = File::create(dir.join("lock"))?;
        lock.try_lock().with_context(|| format!("{} is used by another consumer", dir.display()))?;
        let path = dir.join("handled.ndjson");
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(&path)?;
        let whole = whole_lines(&mut file).with_context(|| format!("read {}", path.display()))?;
        file.set_len(whole)?;
        Ok(Arc::new(Self { dir: dir.to_owned(), handled: Mutex::new(Handled { file, whole }), _lock: lock }))
    }

    fn cursor_file(&self, tenant: &str) -> Result<PathBuf> {
        let plain = !tenant.is_empty() && !tenant.contains(['/', '\\', '\0']);
        ensure!(plain, "{tenant:?} is not the name of a tenant");
        Ok(self.dir.join(format!("{tenant}.cursor")))
    }

    fn append(&self, lines: &[u8]) -> Result<()> {
        let mut handled = self.handled.lock().unwrap_or_else(PoisonError::into_inner);
        let whole = handled.whole;
        if let Err(error) = handled.file.write_all(lines) {
            // Half a page must not stand before the next one.
            handled.file.set_len(whole).context("cut off half a page")?;
            return Err(error).context("append to handled.ndjson");
        }
        handled.whole += lines.len() as u64;
        Ok(())
    }
}

/// Length of the file up to and with its last line feed.
fn whole_lines(file: &mut File) -> Result<u64> {
    const BLOCK: u64 = 64 * 1024;
    let mut end = file.seek(SeekFrom::End(0))?;
    let mut block = Vec::new();
    while end > 0 {
        let start = end.saturating_sub(BLOCK);
        file.seek(SeekFrom::Start(start))?;
        block.clear();
        Read::by_ref(file).take(end - start).read_to_end(&mut block)?;
        if let Some(at) = block.iter().rposition(|byte| *byte == b'\n') {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

/// Appends a page's events, and returns when the system has them: a kill of this process loses none.
///
/// # Errors
/// When they cannot be written; then none of them is there.
pub async fn handle_page(state: Arc<State>, input: HandlePage) -> Result<()> {
    let lines = lines(&input)?;
    note(&input);
    spawn_blocking(move || state.append(&lines)).await?
}

fn lines(input: &HandlePage) -> Result<Vec<u8>> {
    let mut lines = Vec::with_capacity(input.page.events.len() * 400);
    for event in &input.page.events {
        let commit_id = u128::from_str_radix(&event.commit_id, 16).map(CommitId).unwrap_or_default();
        let there_us = u64::try_from(event.hops.mirrored_ms).unwrap_or_default() * 1000;
        let line = Line {
            tenant: input.tenant.clone(),
            source: event.source.clone(),
            id: event.id.clone(),
            hash: event.hash.clone(),
            commit_id: event.commit_id.clone(),
            origin: event.origin.clone(),
            accepted_us: event.hops.accepted_us,
            committed_us: commit_id.time().0,
            relayed_ms: event.hops.relayed_ms,
            mirrored_ms: event.hops.mirrored_ms,
            signalled_us: input.signalled_us.filter(|signalled| *signalled >= there_us).unwrap_or_default(),
            pulled_us: input.pulled_us,
        };
        serde_json::to_writer(&mut lines, &line)?;
        lines.push(b'\n');
    }
    Ok(lines)
}

fn note(input: &HandlePage) {
    metrics::counter!("meridian_consumer_events_total").increment(input.page.events.len() as u64);
    let mut newest: BTreeMap<&str, i64> = BTreeMap::new();
    for event in &input.page.events {
        let relayed_ms = newest.entry(&event.origin).or_default();
        *relayed_ms = event.hops.relayed_ms.max(*relayed_ms);
        let seconds = input.pulled_us.saturating_sub(event.hops.accepted_us) as f64 / 1e6;
        metrics::histogram!("meridian_hop_seconds", "hop" => "consumer", "origin" => event.origin.clone()).record(seconds);
    }
    for (origin, relayed_ms) in newest {
        let seconds = (input.pulled_us as f64 / 1e6 - relayed_ms as f64 / 1e3).max(0.0);
        metrics::gauge!("meridian_lag_seconds", "origin" => origin.to_owned(), "hop" => "consumer").set(seconds);
    }
}

/// Replaces a tenant's cursor: a reader sees the old one or the new one, whole.
///
/// # Errors
/// When it cannot be written; then the old one is there.
pub async fn save_cursor(state: Arc<State>, input: SaveCursor) -> Result<()> {
    let path = state.cursor_file(&input.tenant)?;
    let write = move || {
        let next = path.with_extension("cursor.next");
        fs::write(&next, &input.cursor)?;
        fs::rename(&next, &path)
    };
    spawn_blocking(write).await?.context("save cursor")
}

/// Reads a tenant's cursor; empty when none was saved.
///
/// # Errors
/// When the file is there and cannot be read.
pub async fn load_cursor(state: Arc<State>, tenant: String) -> Result<String> {
    match tokio::fs::read_to_string(state.cursor_file(&tenant)?).await {
        Ok(cursor) => Ok(cursor),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error).context("read cursor"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_last_line_is_cut_off() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("handled.ndjson");
        let long = "x".repeat(200_000);
        for (found, kept) in [
            ("", String::new()),
            ("{\"a\"", String::new()),
            ("{}\n", "{}\n".into()),
            ("{}\n{}\n{\"a", "{}\n{}\n".into()),
            (&format!("{{}}\n{long}"), "{}\n".into()),
            (&format!("{long}\n{long}"), format!("{long}\n")),
        ] {
            fs::write(&path, found).unwrap();
            let state = State::open(dir.path()).unwrap();
            state.append(b"next\n").unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), kept + "next\n");
        }
    }

    #[tokio::test]
    async fn a_folder_has_one_consumer_and_cursors_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::open(dir.path()).unwrap();
        assert!(State::open(dir.path()).is_err());
        assert_eq!(load_cursor(state.clone(), "a".into()).await.unwrap(), "");
        for cursor in ["one", "two"] {
            save_cursor(state.clone(), SaveCursor { tenant: "a".into(), cursor: cursor.into() }).await.unwrap();
            assert_eq!(load_cursor(state.clone(), "a".into()).await.unwrap(), cursor);
        }
        assert!(load_cursor(state.clone(), "../a".into()).await.is_err());
        drop(state);
        State::open(dir.path()).unwrap();
    }
}
