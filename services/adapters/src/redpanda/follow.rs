//! Following partitions as they grow.

use super::{
    Batch, RedpandaConfig, client,
    native::Polled,
    read::Cursor,
    record::BatchBuilder,
    source::{Source, Table, judge},
};
use anyhow::{Context, Result, anyhow, ensure};
use meridian_proto::PartitionId;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{Mutex, mpsc},
    time::Instant,
};

/// Batches that may wait to be taken.
const QUEUE_BATCHES: usize = 2;
/// How often a follower looks whether it is still wanted.
const LOOK: Duration = Duration::from_millis(250);
/// How often it looks for partitions that do not exist yet.
const LOOK_FOR_PARTITIONS: Duration = Duration::from_millis(500);
/// How long a reader waits before it is told that nothing came.
const EMPTY_AFTER: Duration = Duration::from_secs(1);

/// Where a follower begins in one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartAt {
    /// The oldest record kept.
    Oldest,
    /// What is appended from now on; a partition that does not exist yet is read from its beginning.
    Latest,
    /// The first record whose origin offset is `next` or greater. In the log of the origin region itself an offset outside
    /// of what is kept is an error; in a copy, one before what is kept is.
    Offset {
        /// Origin offset to read next.
        next: u64,
        /// Local offset at which a reader met it, or one past where it met the one before. Saves the search; when another
        /// record stands there, it is searched for.
        local_hint: Option<u64>,
    },
}

/// What to follow, and how much to gather.
#[derive(Clone, Debug)]
pub struct FollowSpec {
    /// Partitions; those that do not exist yet are waited for.
    pub partitions: Vec<(PartitionId, StartAt)>,
    /// Region whose log this is: on its own topics the position header is ignored.
    pub own_region: String,
    /// A batch is handed over when it has this many bytes,
    pub batch_bytes_max: usize,
    /// or this many records,
    pub batch_records_max: usize,
    /// or when its first record has waited for this long. Zero: what is there at once.
    pub linger: Duration,
    /// How long the broker may hold back less than a good deal. Zero: not at all, which costs it an answer for each record.
    pub held_back: Duration,
}

/// A thread of its own that reads partitions in order and hands over batches through a bounded queue.
///
/// It ends when the follower is dropped. What it holds is bounded: 8 MiB fetched ahead (a fetch of 4 MiB may come on top)
/// and four batches.
pub struct Follower {
    batches: Mutex<mpsc::Receiver<Result<Batch>>>,
    stop: Arc<AtomicBool>,
    ended: std::sync::OnceLock<String>,
}

impl Follower {
    /// Starts to follow. Waits for nothing: a broker that is away is waited for by the thread.
    ///
    /// # Errors
    /// When the settings are refused or no thread can be had.
    pub fn start(config: &RedpandaConfig, spec: FollowSpec) -> Result<Arc<Self>> {
        let (sender, receiver) = mpsc::channel(QUEUE_BATCHES);
        let stop = Arc::new(AtomicBool::new(false));
        let (ids, starts): (Vec<_>, Vec<_>) = spec.partitions.iter().cloned().unzip();
        let mut following = Following {
            source: Source::open(&client::follower(config, spec.held_back))?,
            config: config.clone(),
            table: Table::of(ids, &spec.own_region),
            waiting: starts.into_iter().enumerate().collect(),
            looked_before: false,
            batch: BatchBuilder::default(),
            spec,
            stop: Arc::clone(&stop),
        };
        let follow = move || {
            if let Err(error) = following.run(&sender) {
                // Refused only when nobody wants it any more.
                let _ = sender.blocking_send(Err(error));
            }
        };
        std::thread::Builder::new().name("log follower".into()).spawn(follow).context("thread of the follower")?;
        Ok(Arc::new(Self { batches: Mutex::new(receiver), stop, ended: std::sync::OnceLock::new() }))
    }

    /// The next records: at least one, or none after a second without any. Safe to drop while it waits.
    ///
    /// # Errors
    /// When the follower has stopped, and why: an offset that is not kept, never a jump. It stays stopped: start a new one.
    pub async fn next_batch(self: Arc<Self>, (): ()) -> Result<Batch> {
        let mut batches = self.batches.lock().await;
        match tokio::time::timeout(EMPTY_AFTER, batches.recv()).await {
            Err(_) => Ok(Batch::empty()),
            Ok(Some(Ok(batch))) => Ok(batch),
            Ok(Some(Err(error))) => {
                let _ = self.ended.set(format!("{error:#}"));
                Err(error.context("follow the log"))
            }
            Ok(None) => Err(anyhow!("the follower has stopped: {}", self.ended.get().map_or("its thread ended", String::as_str))),
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// What the thread works on.
struct Following {
    // Dropped before anything else, while the thread still may block.
    source: Source,
    config: RedpandaConfig,
    spec: FollowSpec,
    table: Table,
    /// Index in the table and start of the partitions that are not read yet.
    waiting: Vec<(usize, StartAt)>,
    looked_before: bool,
    batch: BatchBuilder,
    stop: Arc<AtomicBool>,
}

impl Following {
    fn run(&mut self, sender: &mpsc::Sender<Result<Batch>>) -> Result<()> {
        let mut look = Instant::now();
        while !self.stop.load(Ordering::Relaxed) {
            if !self.waiting.is_empty() && Instant::now() >= look {
                self.begin_with_known()?;
                look = Instant::now() + LOOK_FOR_PARTITIONS;
            }
            self.gather(if self.waiting.is_empty() { LOOK } else { LOOK.min(LOOK_FOR_PARTITIONS) })?;
            if self.batch.len() > 0 && sender.blocking_send(Ok(self.batch.take(&self.table.partitions))).is_err() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Waits for a first record, then takes what comes within the linger time.
    fn gather(&mut self, patience: Duration) -> Result<()> {
        let mut wait = patience;
        let mut deadline = None;
        while self.batch.len() < self.spec.batch_records_max && self.batch.bytes() < self.spec.batch_bytes_max {
            match self.source.poll(wait) {
                Polled::Record(record) => {
                    self.table.take(&record, &mut self.batch);
                    if self.spec.linger.is_zero() {
                        wait = Duration::ZERO;
                    } else {
                        let deadline = *deadline.get_or_insert_with(|| Instant::now() + self.spec.linger);
                        wait = deadline.saturating_duration_since(Instant::now());
                    }
                }
                Polled::Failed(code) => judge(code)?,
                Polled::Other => {}
                Polled::Nothing => return Ok(()),
            }
        }
        Ok(())
    }

    /// Begins to read those of the waiting partitions that exist.
    fn begin_with_known(&mut self) -> Result<()> {
        let topics = match self.source.topics() {
            Ok(topics) => topics,
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "the log is waited for");
                return Ok(());
            }
        };
        let exists = |id: &PartitionId| topics.get(&id.topic.to_string()).is_some_and(|partitions| usize::from(id.partition) < *partitions);
        let partitions = Arc::clone(&self.table.partitions);
        let (found, waiting): (Vec<_>, Vec<_>) = self.waiting.iter().partition(|(index, _)| exists(&partitions[*index]));
        let mut cursor = None;
        let mut begun = Vec::with_capacity(found.len());
        for (index, start) in found {
            let id = &partitions[index];
            match self.local_start(id, start, &mut cursor) {
                Ok(local) => begun.push((id, local)),
                Err(Refused::ForNow(error)) => {
                    tracing::warn!(error = format!("{error:#}"), "the log is waited for");
                    return Ok(());
                }
                Err(Refused::ForGood(error)) => return Err(error),
            }
        }
        if !begun.is_empty()
            && let Err(error) = self.source.assign(&begun, false)
        {
            tracing::warn!(error = format!("{error:#}"), "the log is waited for");
            return Ok(());
        }
        self.waiting = waiting;
        self.looked_before = true;
        Ok(())
    }

    /// The local offset at which to begin.
    fn local_start(&self, id: &PartitionId, start: StartAt, cursor: &mut Option<Cursor>) -> Result<u64, Refused> {
        let cursor = match cursor {
            Some(cursor) => cursor,
            None => cursor.insert(Cursor::open(&self.config, &self.spec.own_region).map_err(Refused::ForGood)?),
        };
        let bounds = cursor.bounds(id).map_err(Refused::ForNow)?;
        match start {
            StartAt::Oldest => Ok(bounds.low),
            StartAt::Latest => Ok(if self.looked_before { bounds.low } else { bounds.high }),
            StartAt::Offset { next, .. } if id.topic.region == self.spec.own_region => {
                let (low, high) = (bounds.low, bounds.high);
                let kept = || -> Result<u64> {
                    ensure!(next >= low, "{id}: offset {next} is not kept any more, the oldest is {low}");
                    ensure!(next <= high, "{id}: offset {next} lies beyond the end of the log, {high}: the log lost records");
                    Ok(next)
                };
                kept().map_err(Refused::ForGood)
            }
            StartAt::Offset { next, local_hint } => {
                let local = cursor.find(id, next, local_hint).map_err(Refused::ForNow)?;
                let oldest = cursor.oldest_origin(id, local).map_err(Refused::ForNow)?;
                match oldest {
                    Some(oldest) if oldest > next => {
                        Err(Refused::ForGood(anyhow!("{id}: origin offset {next} is not kept any more, the oldest is {oldest}")))
                    }
                    _ => Ok(local),
                }
            }
        }
    }
}

/// Why a partition is not begun.
enum Refused {
    ForNow(anyhow::Error),
    ForGood(anyhow::Error),
}
