//! One partition: publish what is new, then seal what can no longer change.

use crate::{Effects, Limits, LogLost, board::Board, log::Outgoing, remembered::Remembered};
use adapters::{
    redpanda::{DeadLetter, OutRecord},
    scylla::{ChangeRange, ChangeRow},
};
use anyhow::{Context, Result};
use bytes::Bytes;
use kit::backoff::Backoff;
use meridian_proto::{Change, CommitId, CommitTime, LogPosition, PartitionId, Watermark};
use prost::Message;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// Events that a row can hold: an event's index has 16 bits.
const ROW_EVENTS_MAX: usize = 1 << 16;
/// Bytes of a dead letter's value.
const DEAD_LETTER_BYTES_MAX: usize = 512 * 1024;
/// The first watermark begins this long before the generation was registered: the clock that said when may be ahead.
const CREATION_MARGIN_US: u64 = 1_000_000;
/// Spans of one step of catching up. The first is more than what comes between two turns of a lane that keeps up.
pub(crate) const STEP_FIRST_US: u64 = 5_000_000;
const STEP_MIN_US: u64 = 20_000;
/// Bounds what a dense stretch after an empty one can bring at once.
const STEP_MAX_US: u64 = 30_000_000;

pub(crate) struct Lane {
    effects: Effects,
    limits: Limits,
    board: Arc<Board>,
    id: Arc<PartitionId>,
    /// Where the first watermark of the generation begins.
    created: CommitTime,
    /// The time through which the log is known to hold everything; `None` before the log was asked.
    sealed: Option<CommitTime>,
    /// Whether something may have been appended that was not acknowledged.
    doubt: bool,
    /// The last row that the quick path saw.
    seen: CommitId,
    published: Remembered,
    /// When the relay began: all lanes seal at the same moments, so that engines and readers wake once for all of them.
    began: Instant,
    seal_at: Instant,
    step_us: u64,
}

/// What a watermark says about its interval.
#[derive(Default)]
struct Sums {
    events: u64,
    xor: u128,
}

impl Sums {
    fn add(&mut self, row: CommitId, events: usize) {
        self.events += events as u64;
        self.xor = (0..events).fold(self.xor, |xor, index| xor ^ row.at_index(index as u16).0);
    }
}

impl Lane {
    pub(crate) fn new(effects: Effects, limits: Limits, board: Arc<Board>, id: PartitionId, created: CommitTime, began: Instant) -> Self {
        Self {
            effects,
            limits,
            board,
            created: created.minus_micros(CREATION_MARGIN_US),
            sealed: None,
            doubt: true,
            seen: CommitId::default(),
            published: Remembered::new(limits.remembered_rows_max),
            began,
            seal_at: began + limits.seal_every,
            step_us: STEP_FIRST_US,
            id: Arc::new(id),
        }
    }

    /// Works for ever; what fails is repeated.
    pub(crate) async fn follow(mut self) -> Result<()> {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
        let mut failing = false;
        loop {
            match self.turn().await {
                Ok(()) => {
                    if std::mem::take(&mut failing) {
                        tracing::info!(partition = %self.id, "relays again");
                    }
                    backoff.reset();
                    tokio::select! {
                        biased;
                        () = self.board.hint(self.id.partition) => {}
                        () = tokio::time::sleep_until(self.seal_at) => {}
                    }
                }
                Err(error) if error.is::<LogLost>() => return Err(error),
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(partition = %self.id, error = format!("{error:#}"), "will repeat");
                    }
                    backoff.wait().await;
                }
            }
        }
    }

    async fn turn(&mut self) -> Result<()> {
        if self.doubt {
            self.stand_where_the_log_says().await?;
        }
        if Instant::now() < self.seal_at {
            return self.publish_new().await;
        }
        let behind = self.seal().await?;
        self.seal_at = if behind { Instant::now() } else { self.next_seal() };
        Ok(())
    }

    fn next_seal(&self) -> Instant {
        let every = self.limits.seal_every;
        let since = self.began.elapsed().as_nanos() % every.as_nanos();
        Instant::now() + every - Duration::from_nanos(since as u64)
    }

    /// Reads progress back from the log, which alone knows it.
    async fn stand_where_the_log_says(&mut self) -> Result<()> {
        let found = (self.effects.last_watermark)((*self.id).clone()).await;
        let found = self.board.told("log", found.context("read the last watermark"))?;
        let through = found.through.unwrap_or(self.created);
        if let Some(acknowledged) = self.sealed.filter(|acknowledged| through < *acknowledged) {
            let lost =
                format!("{} ends with a watermark through {} µs, one through {} µs was acknowledged", self.id, through.0, acknowledged.0);
            return Err(LogLost(lost).into());
        }
        self.seal_through(through);
        self.published.extend(count_by_row(&found.published));
        self.doubt = false;
        Ok(())
    }

    fn seal_through(&mut self, through: CommitTime) {
        self.sealed = Some(through);
        self.seen = self.seen.max(CommitId::last_at(through));
        self.published.forget_through(through);
        self.board.sealed(self.id.partition, through);
    }

    async fn now(&self) -> Result<CommitTime> {
        self.board.told("clock", (self.effects.region_time)(()).await.context("region time"))
    }

    /// The clock of whoever made a commit time may be ahead by the margin.
    fn ahead_of(&self, now: CommitTime) -> CommitTime {
        CommitTime(now.0 + self.limits.clock_margin.as_micros() as u64)
    }

    async fn read(&self, after: CommitId, through: CommitTime) -> Result<Vec<ChangeRow>> {
        let range = ChangeRange { generation: self.id.topic.generation, partition: self.id.partition, after, through };
        self.board.told("database", (self.effects.read_changes)(range).await.context("read changes"))
    }

    /// The quick path: what stands above the last row seen. Rows that are written late are left to the sweep.
    async fn publish_new(&mut self) -> Result<()> {
        let now = self.now().await?;
        let oldest = now.minus_micros(self.limits.quick_span.as_micros() as u64);
        if self.seen.time() < oldest {
            self.seen = CommitId::last_at(now.minus_micros(self.limits.hold_back().as_micros() as u64));
        }
        let rows = self.read(self.seen, self.ahead_of(now)).await?;
        let Some(last) = rows.last().map(|row| row.row) else { return Ok(()) };
        self.publish(rows).await?;
        self.seen = self.seen.max(last);
        Ok(())
    }

    /// The sweep: reads what can no longer change, publishes what is missing, and then says that the log holds it.
    /// True when there is more to seal at once.
    async fn seal(&mut self) -> Result<bool> {
        // Taken before the first page is read: what is acknowledged from now on has a later commit time.
        let now = self.now().await?;
        let bound = now.minus_micros(self.limits.hold_back().as_micros() as u64);
        let from = self.sealed.unwrap_or(self.created);
        let through = bound.min(CommitTime(from.0.saturating_add(self.step_us)));
        let behind = through < bound;
        // A quiet lane's sweep looks for both, what is new and what can be sealed: one question instead of two.
        let is_quiet = bound > from && !behind && self.published.is_empty();
        if !is_quiet {
            self.publish_new().await?;
        }
        if bound <= from {
            return Ok(false);
        }
        let board = Arc::clone(&self.board);
        let _turn = if behind { Some(board.catching_up.acquire().await?) } else { None };
        let mut rows = self.read(CommitId::last_at(from), if is_quiet { self.ahead_of(now) } else { through }).await?;
        let new = rows.split_off(rows.partition_point(|row| row.row.time() <= through));
        self.fit_step(behind, rows.iter().map(|row| row.change.len()).sum());
        let late = rows.iter().filter(|row| row.row <= self.seen && self.published.events_of(row.row).is_none()).count();
        let sums = self.publish(rows).await?;
        let last_new = new.last().map_or(self.seen, |row| row.row);
        self.publish(new).await?;
        self.seen = self.seen.max(last_new);
        if !behind {
            self.board.meters.late_rows.increment(late as u64);
        }
        // Only now, with every event of the interval acknowledged: a crash before this repeats, never loses.
        let watermark = self.watermark(from, through, &sums);
        self.doubt = true;
        let published = (self.effects.publish_watermarks)(vec![OutRecord::watermark(&self.id, watermark)]).await;
        self.board.told("log", published.context("publish watermark"))?;
        self.doubt = false;
        self.seal_through(through);
        Ok(behind)
    }

    fn watermark(&self, from: CommitTime, through: CommitTime, sums: &Sums) -> Bytes {
        let watermark = Watermark {
            region: self.id.topic.region.clone(),
            generation: self.id.topic.generation,
            partition: self.id.partition.into(),
            from_us: from.0,
            through_us: through.0,
            rows: sums.events,
            xor: Bytes::copy_from_slice(&sums.xor.to_be_bytes()),
        };
        watermark.encode_to_vec().into()
    }

    /// Fits the span of the next step to what this one brought; back at the end, to the first.
    fn fit_step(&mut self, behind: bool, bytes: usize) {
        self.step_us = match bytes {
            bytes if bytes > self.limits.step_bytes => (self.step_us / 2).max(STEP_MIN_US),
            _ if !behind => STEP_FIRST_US,
            bytes if bytes < self.limits.step_bytes / 2 => (self.step_us * 2).min(STEP_MAX_US),
            _ => self.step_us,
        };
    }

    /// Publishes those of the rows that are not known to be in the log, in order, and sums up all.
    async fn publish(&mut self, rows: Vec<ChangeRow>) -> Result<Sums> {
        let mut sums = Sums::default();
        let (mut batch, mut bytes, mut batch_rows) = (Outgoing::default(), 0, Vec::new());
        for ChangeRow { row, change } in rows {
            let events = readable(&change, self.limits.event_bytes_max);
            let count = events.as_ref().map_or(0, Vec::len);
            sums.add(row, count);
            if self.published.events_of(row) == Some(count) {
                continue;
            }
            bytes += change.len();
            batch_rows.push((row, count));
            match events {
                Ok(events) => batch.records.extend(events.into_iter().map(|event| OutRecord::event(&self.id, event))),
                Err(reason) => batch.dead_letters.push(self.dead_letter(row, &reason, &change)),
            }
            if bytes >= self.limits.publish_bytes_max {
                self.send(std::mem::take(&mut batch), std::mem::take(&mut batch_rows)).await?;
                bytes = 0;
            }
        }
        self.send(batch, batch_rows).await?;
        Ok(sums)
    }

    async fn send(&mut self, batch: Outgoing, rows: Vec<(CommitId, usize)>) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let (events, dead) = (batch.records.len(), batch.dead_letters.len());
        self.doubt = true;
        self.board.told("log", (self.effects.publish_batch)(batch).await.context("publish batch"))?;
        self.doubt = false;
        let meters = &self.board.meters;
        meters.events.increment(events as u64);
        meters.dead_letters.increment(dead as u64);
        if let Ok(now) = (self.effects.region_time)(()).await {
            rows.iter().for_each(|(row, _)| meters.hop_seconds.record(now.since(row.time()) as f64 / 1e6));
        }
        self.published.extend(rows);
        Ok(())
    }

    fn dead_letter(&self, row: CommitId, reason: &str, change: &Bytes) -> DeadLetter {
        tracing::error!(partition = %self.id, %row, reason, "a row of the change log cannot be relayed");
        metrics::counter!("meridian_alarms_total", "alarm" => "change_row_unreadable").increment(1);
        DeadLetter {
            position: LogPosition { partition: (*self.id).clone(), offset: 0 },
            reason: format!("row {row} of the change log: {reason}"),
            content_type: "application/vnd.meridian.change.v1+protobuf".into(),
            value: change.slice(..change.len().min(DEAD_LETTER_BYTES_MAX)),
        }
    }
}

/// How many events of each row there are, of sorted ids.
fn count_by_row(events: &[CommitId]) -> impl Iterator<Item = (CommitId, usize)> {
    events.chunk_by(|one, next| one.row() == next.row()).map(|events| (events[0].row(), events.len()))
}

/// The events of a row, as slices of its bytes.
fn readable(change: &Bytes, event_bytes_max: usize) -> Result<Vec<Bytes>, String> {
    let Change { events } = Change::decode(change.clone()).map_err(|error| error.to_string())?;
    if events.len() > ROW_EVENTS_MAX {
        return Err(format!("{} events, a row has at most {ROW_EVENTS_MAX}", events.len()));
    }
    match events.iter().find(|event| event.len() > event_bytes_max) {
        Some(event) => Err(format!("an event has {} bytes, the log takes at most {event_bytes_max}", event.len())),
        None => Ok(events),
    }
}
