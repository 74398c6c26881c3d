//! From the positions in the store to the next reason to read them again.

use crate::{Block, Effects, Limits, Polled, lane::Lane, row_of};
use adapters::{
    clickhouse::{InsertBlock, ParkedRow, SaveProgress},
    redpanda::{Batch, DeadLetter, Kind, Record},
};
use anyhow::{Context, Result};
use kit::{backoff::Backoff, health::Health};
use meridian_proto::{LogPosition, PartitionId, Watermark};
use prost::Message;
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};
use tokio::time::{Instant, timeout_at};

/// The parts that `/readyz` names.
pub const HEALTH_PARTS: [&str; 3] = ["log", "clickhouse", "sequence"];

/// What a session holds between two flushes.
pub struct Session<'a> {
    effects: &'a Effects,
    limits: &'a Limits,
    health: &'a Health,
    store: String,
    lanes: Vec<Lane>,
    index: HashMap<PartitionId, usize>,
    /// The table of the last batch, and the lane of each entry.
    table: (Arc<[PartitionId]>, Vec<Option<usize>>),
    block: Block,
    parked: Vec<ParkedRow>,
    /// When something came that the store does not hold yet.
    since: Option<Instant>,
    /// Append time here of the oldest record that is not stored yet, by origin, milliseconds.
    waiting_ms: BTreeMap<String, i64>,
    store_checked: Instant,
    /// An effect on the store failed since it was checked.
    doubtful: bool,
}

struct Poison {
    /// `None`: a copy without position, which is no record of the origin's log.
    lane: Option<usize>,
    record: usize,
    reason: &'static str,
}

impl<'a> Session<'a> {
    /// Reads where the store stands and begins to follow from there.
    ///
    /// # Errors
    /// When store or log do not answer.
    pub async fn start(effects: &'a Effects, limits: &'a Limits, health: &'a Health) -> Result<Self> {
        let positions = (effects.load_positions)(()).await.inspect_err(|error| health.unready("clickhouse", format!("{error:#}")));
        let positions = positions.context("load positions")?;
        health.ready("clickhouse");
        let followed = (effects.start_following)(positions.rows.clone()).await.context("start following")?;
        let lanes: Vec<Lane> = followed
            .into_iter()
            .map(|followed| {
                let row = row_of(&positions.rows, &followed.id).cloned();
                Lane::resume(followed, row.as_ref())
            })
            .collect();
        let index = lanes.iter().enumerate().map(|(index, lane)| (lane.id.clone(), index)).collect();
        let since = lanes.iter().any(|lane| lane.moved).then(Instant::now);
        health.ready("log");
        health.ready("sequence");
        let mut session = Self {
            effects,
            limits,
            health,
            store: positions.store,
            lanes,
            index,
            table: (Arc::new([]), Vec::new()),
            // A block may pass its limit by what one batch holds.
            block: Block::with_capacity(limits.bytes_max + limits.bytes_max / 4),
            parked: Vec::new(),
            since,
            waiting_ms: BTreeMap::new(),
            store_checked: Instant::now(),
            doubtful: false,
        };
        session.report(0);
        Ok(session)
    }

    /// Reads and stores until the positions have to be read again; says why.
    ///
    /// # Errors
    /// When the log cannot be followed any more.
    pub async fn run(&mut self) -> Result<&'static str> {
        loop {
            let polled = match self.flush_at() {
                Some(at) => timeout_at(at, (self.effects.poll_batch)(())).await.unwrap_or_else(|_| Ok(Polled::Records(Batch::empty()))),
                None => (self.effects.poll_batch)(()).await,
            };
            match polled.context("poll batch")? {
                Polled::TopicsChanged => return Ok("the log has partitions that were not followed"),
                Polled::Records(batch) => self.absorb(&batch).await,
            }
            if self.flush_at().is_some_and(|at| at <= Instant::now()) {
                self.store_block().await;
                if !self.same_store().await {
                    return Ok("the store is another one");
                }
                self.store_progress().await;
            } else if !self.same_store().await {
                return Ok("the store is another one");
            }
        }
    }

    fn flush_at(&self) -> Option<Instant> {
        let since = self.since?;
        let (rows, limits) = (self.block.count() + self.parked.len() as u64, self.limits);
        Some(match rows {
            _ if rows >= limits.rows_max || self.block.bytes() >= limits.bytes_max => since,
            _ if rows >= limits.rows_few => since + limits.flush_after,
            _ => since + limits.flush_after_few,
        })
    }

    async fn absorb(&mut self, batch: &Batch) {
        if batch.is_empty() {
            return;
        }
        if !Arc::ptr_eq(&self.table.0, batch.partitions()) {
            let lanes = batch.partitions().iter().map(|id| self.index.get(id).copied()).collect();
            self.table = (Arc::clone(batch.partitions()), lanes);
        }
        self.since.get_or_insert_with(Instant::now);
        for poison in self.encode(batch) {
            self.park(batch, poison).await;
        }
    }

    /// The inner loop: no future and no allocation per record, unless one is poison.
    fn encode(&mut self, batch: &Batch) -> Vec<Poison> {
        let mut poison = Vec::new();
        let mut oldest = None;
        for (index, record) in batch.iter().enumerate() {
            let Some(lane_index) = self.table.1[batch.partition_index(index)] else { continue };
            if !record.origin_known() {
                poison.push(Poison { lane: None, record: index, reason: "a copy without its position in the origin's log" });
                continue;
            }
            let lane = &mut self.lanes[lane_index];
            if !lane.takes(&record) {
                continue;
            }
            if oldest.replace(lane_index) != Some(lane_index) && !self.waiting_ms.contains_key(&lane.id.topic.region) {
                self.waiting_ms.insert(lane.id.topic.region.clone(), record.appended_ms);
            }
            if let Err(reason) = take(lane, &mut self.block, &record) {
                poison.push(Poison { lane: Some(lane_index), record: index, reason });
            }
        }
        if self.lanes.iter().any(|lane| lane.stopped.is_some()) {
            let reasons: Vec<&str> = self.lanes.iter().filter_map(|lane| lane.stopped.as_deref()).collect();
            self.health.unready("sequence", reasons.join("; "));
        }
        poison
    }

    /// Dead letter first, acknowledged; the parked row goes with the next progress.
    async fn park(&mut self, batch: &Batch, poison: Poison) {
        let Some(record) = batch.get(poison.record) else { return };
        let letter = DeadLetter {
            position: LogPosition { partition: record.partition.clone(), offset: record.offset },
            reason: poison.reason.into(),
            content_type: record.content_type.into(),
            value: batch.value_bytes(poison.record),
        };
        tracing::warn!(partition = %record.partition, offset = record.offset, reason = poison.reason, "dead letter");
        let mut backoff = Backoff::default();
        while let Err(error) = (self.effects.dead_letter)(letter.clone()).await {
            self.health.unready("log", format!("dead letter: {error:#}"));
            backoff.wait().await;
        }
        self.health.ready("log");
        metrics::counter!("meridian_dead_letters").increment(1);
        if let Some(lane) = poison.lane {
            self.parked.push(self.lanes[lane].parked(record.offset, poison.reason.into()));
            metrics::counter!("meridian_parked_records").increment(1);
        }
    }

    async fn store_block(&mut self) {
        let block = self.block.take();
        if block.count > 0 {
            self.insert(&block).await;
        }
        self.block.recycle(block.rows);
    }

    /// Asks from time to time, and after each failure, whether the store is still the one that the positions came from.
    async fn same_store(&mut self) -> bool {
        if !self.doubtful && self.store_checked.elapsed() < self.limits.store_check_every {
            return true;
        }
        let store = self.current_store().await;
        if store != self.store {
            tracing::error!(was = self.store, is = store, "ClickHouse was made new: starting over");
            return false;
        }
        (self.doubtful, self.store_checked) = (false, Instant::now());
        true
    }

    /// Only ever after the block.
    async fn store_progress(&mut self) {
        let now_us = self.now_us().await;
        let positions = self.lanes.iter().filter(|lane| lane.moved).map(|lane| lane.row(&self.store, now_us)).collect();
        let mut parked = std::mem::take(&mut self.parked);
        parked.iter_mut().for_each(|row| row.stored_at = now_us);
        self.save(SaveProgress { positions, parked }).await;
        self.lanes.iter_mut().for_each(|lane| lane.moved = false);
        self.since = None;
        self.report(now_us);
    }

    async fn insert(&mut self, block: &InsertBlock) {
        let mut backoff = Backoff::default();
        while let Err(error) = (self.effects.insert_block)(block.clone()).await {
            self.failed("insert block", &error).await;
            backoff.wait().await;
        }
        self.health.ready("clickhouse");
    }

    async fn save(&mut self, progress: SaveProgress) {
        let mut backoff = Backoff::default();
        while let Err(error) = (self.effects.save_positions)(progress.clone()).await {
            self.failed("save positions", &error).await;
            backoff.wait().await;
        }
        self.health.ready("clickhouse");
    }

    async fn current_store(&mut self) -> String {
        let mut backoff = Backoff::default();
        loop {
            match (self.effects.load_positions)(()).await {
                Ok(positions) => return positions.store,
                Err(error) => self.failed("load positions", &error).await,
            }
            backoff.wait().await;
        }
    }

    async fn failed(&mut self, what: &str, error: &anyhow::Error) {
        self.doubtful = true;
        let why = format!("{what}: {error:#}");
        tracing::warn!(error = why, "will be repeated");
        self.health.unready("clickhouse", why);
        let now_us = self.now_us().await;
        self.report_lag(now_us);
    }

    async fn now_us(&self) -> i64 {
        (self.effects.host_time)(()).await.map_or(0, |time| time.0 as i64)
    }

    /// Lag is the age of what had been waiting longest; then nothing waits.
    fn report_lag(&self, now_us: i64) {
        for origin in self.origins() {
            let waiting = self.waiting_ms.get(origin).map_or(0, |ms| (now_us - ms * 1000).max(0));
            metrics::gauge!("meridian_lag_seconds", "origin" => origin.to_owned(), "hop" => "sink").set(waiting as f64 / 1e6);
        }
    }

    fn report(&mut self, now_us: i64) {
        self.report_lag(now_us);
        self.waiting_ms.clear();
        for origin in self.origins() {
            let lanes = || self.lanes.iter().filter(|lane| lane.id.topic.region == origin);
            let through = lanes().map(|lane| lane.through().map_or(0, |time| time.0)).min().unwrap_or(0);
            let age = if through == 0 { f64::INFINITY } else { (now_us - through as i64).max(0) as f64 / 1e6 };
            metrics::gauge!("meridian_watermark_age_seconds", "origin" => origin.to_owned()).set(age);
            let alarms = lanes().filter(|lane| lane.stopped.is_some()).count();
            metrics::gauge!("meridian_sequence_gaps", "origin" => origin.to_owned()).set(alarms as f64);
            metrics::gauge!("meridian_watermark_gaps", "origin" => origin.to_owned())
                .set(lanes().filter(|lane| lane.has_gap()).count() as f64);
        }
    }

    fn origins(&self) -> std::collections::BTreeSet<&str> {
        self.lanes.iter().map(|lane| lane.id.topic.region.as_str()).collect()
    }
}

fn take(lane: &mut Lane, block: &mut Block, record: &Record<'_>) -> Result<(), &'static str> {
    match record.kind {
        Kind::Event => block.push(&lane.id, record.offset, record.value),
        Kind::Watermark => lane.advance(&Watermark::decode(record.value).map_err(|_| "not a watermark")?),
        Kind::Unknown => Err("unknown content type"),
    }
}
