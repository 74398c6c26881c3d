//! How far the sink is, and how complete that makes an answer.

use super::{ClickHouse, check_settings, connect::answered};
use anyhow::{Context, Result};
use clickhouse::Row;
use serde::{Deserialize, Serialize};
use std::{sync::Arc, time::Duration};

/// One partition's progress: offset and watermark state in one row. Times are microseconds since the Unix epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Row, Serialize, Deserialize)]
pub struct PositionRow {
    /// The store that the row speaks of: [`Positions::store`] when the sink started.
    pub store: String,
    /// Region of the topic.
    pub origin: String,
    /// Generation of the topic.
    pub generation: u32,
    /// Partition.
    pub partition: u16,
    /// How many partitions the topic has.
    pub partitions: u16,
    /// Origin offset to read next; everything below is stored, dead or parked.
    pub next_offset: u64,
    /// Hint: local offset of the last record read.
    pub local_offset: u64,
    /// Everything acknowledged in (`since_us`, `through_us`] is stored; both 0: no watermark has been met.
    pub since_us: u64,
    /// See `since_us`.
    pub through_us: u64,
    /// The first interval (`gap_from_us`, `gap_through_us`] that no watermark covers; both 0: none.
    pub gap_from_us: u64,
    /// See `gap_from_us`.
    pub gap_through_us: u64,
    /// When it was written, by the host's clock.
    pub stored_at: i64,
}

/// A record that could not be read; it lies in the topic's `.dlq`.
#[derive(Clone, Debug, PartialEq, Eq, Row, Serialize, Deserialize)]
pub struct ParkedRow {
    /// Region of the topic.
    pub origin: String,
    /// Generation of the topic.
    pub generation: u32,
    /// Partition.
    pub partition: u16,
    /// Origin offset.
    pub offset: u64,
    /// How many partitions the topic has.
    pub partitions: u16,
    /// 0: parked, 1: redriven, 2: dismissed.
    pub state: u8,
    /// Why, for people.
    pub reason: String,
    /// When it was written, microseconds since the Unix epoch by the host's clock.
    pub stored_at: i64,
}

/// What a store knows of progress.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Positions {
    /// The store's own id, drawn when it was made. Another id: another, empty store.
    pub store: String,
    /// The furthest row of each partition.
    pub rows: Vec<PositionRow>,
}

/// What to save after a block: parked records first, then positions.
#[derive(Clone, Debug, Default)]
pub struct SaveProgress {
    /// Rows of partitions that moved.
    pub positions: Vec<PositionRow>,
    /// Records parked since the last save.
    pub parked: Vec<ParkedRow>,
}

/// What completeness is computed from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The store that it speaks of, as [`Positions::store`].
    pub store: String,
    /// The furthest row of each partition, of this store only.
    pub rows: Vec<PositionRow>,
    /// (origin, records parked and neither redriven nor dismissed).
    pub parked: Vec<(String, u64)>,
}

const POSITIONS: &str = "SELECT store, toString(origin) AS origin, generation, partition, partitions, next_offset, local_offset, since_us, \
     through_us, gap_from_us, gap_through_us, toUnixTimestamp64Micro(stored_at) AS stored_at FROM positions FINAL WHERE store = {store:String}";
const PARKED: &str =
    "SELECT toString(origin) AS origin, count() AS records FROM (SELECT origin, state FROM parked FINAL) WHERE state = 0 GROUP BY origin";

/// The store's id and the furthest row of each partition, after [`check_settings`]: whoever writes on asserts first what it stands on.
///
/// # Errors
/// When the store does not answer, no schema has been applied, or a setting is another than it must be.
pub async fn load_positions(clickhouse: Arc<ClickHouse>, (): ()) -> Result<Positions> {
    check_settings(Arc::clone(&clickhouse), ()).await?;
    read_positions(&clickhouse).await
}

async fn read_positions(clickhouse: &Arc<ClickHouse>) -> Result<Positions> {
    let StoreRow { store, .. } = read_store(Arc::clone(clickhouse), ()).await?;
    let rows = answered(clickhouse.read(POSITIONS).param("store", &store).fetch_all()).await.context("positions")?;
    Ok(Positions { store, rows })
}

/// Saves what is parked, then where each partition stands. May be repeated, and may come late: the furthest row is the one read.
///
/// # Errors
/// "Unknown": repeat it.
pub async fn save_positions(clickhouse: Arc<ClickHouse>, SaveProgress { positions, parked }: SaveProgress) -> Result<()> {
    insert_rows(&clickhouse, "parked", &parked).await?;
    insert_rows(&clickhouse, "positions", &positions).await
}

async fn insert_rows<T>(clickhouse: &ClickHouse, table: &'static str, rows: &[T]) -> Result<()>
where
    T: for<'a> Row<Value<'a> = T> + Serialize,
{
    if rows.is_empty() {
        return Ok(());
    }
    let (send, end) = (Duration::from_secs(10), Duration::from_secs(30));
    let insert = async {
        let mut insert = clickhouse.write().insert::<T>(table).await?.with_timeouts(Some(send), Some(end));
        for row in rows {
            insert.write(row).await?;
        }
        insert.end().await
    };
    answered(insert).await.with_context(|| format!("insert into {table}"))
}

/// Progress for completeness. Parked records are read after the positions that step over them, so none is missed.
///
/// # Errors
/// When the store does not answer.
pub async fn read_progress(clickhouse: Arc<ClickHouse>, (): ()) -> Result<Progress> {
    let Positions { store, rows } = read_positions(&clickhouse).await?;
    let parked = answered(clickhouse.read(PARKED).fetch_all()).await.context("parked")?;
    Ok(Progress { store, rows, parked })
}

/// Which store answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Row, Deserialize)]
pub struct StoreRow {
    /// Its own id, as [`Positions::store`].
    pub store: String,
    /// The engine's release.
    pub release: String,
}

/// Which store answers, and the release that it runs on.
///
/// # Errors
/// When the store does not answer in time, or no schema has been applied.
pub async fn read_store(clickhouse: Arc<ClickHouse>, (): ()) -> Result<StoreRow> {
    let query = clickhouse.read("SELECT id AS store, version() AS release FROM store ORDER BY made_at, id LIMIT 1");
    answered(query.fetch_one()).await.context("store id")
}
