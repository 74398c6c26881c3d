//! The connection, inserts, and the settings that counting once stands on.

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use clickhouse::{Client, Compression, query::Query};
use std::{future::Future, sync::Arc, time::Duration};

const ANSWER_DEADLINE: Duration = Duration::from_secs(30);
const SEND_DEADLINE: Duration = Duration::from_secs(10);
/// Part of a block that is handed to the connection at once: slices, not copies.
const CHUNK_BYTES: usize = 256 * 1024;

/// An insert is stored when it is answered, whole, and is never taken for a repeat of another.
const INSERT_SETTINGS: [(&str, &str); 5] = [
    ("async_insert", "0"),
    ("insert_deduplicate", "0"),
    ("deduplicate_blocks_in_dependent_materialized_views", "0"),
    ("materialized_views_ignore_errors", "0"),
    ("optimize_on_insert", "1"),
];

/// No filter runs before FINAL, and nothing but the table is read.
const READ_SETTINGS: [(&str, &str); 9] = [
    ("optimize_move_to_prewhere", "0"),
    ("optimize_move_to_prewhere_if_final", "0"),
    ("use_skip_indexes_if_final", "0"),
    ("use_query_condition_cache", "0"),
    ("use_query_cache", "0"),
    ("optimize_use_projections", "0"),
    ("do_not_merge_across_partitions_select_final", "0"),
    ("max_memory_usage", "2000000000"),
    ("max_execution_time", "25"),
];

/// Tables that sums and positions stand on, with their sorting keys.
const TABLES: [(&str, &str); 4] = [
    ("events", "tenant, source, id"),
    ("conflicts", "tenant, source, id, hash"),
    ("positions", "store, origin, generation, partition"),
    ("parked", "origin, generation, partition, offset"),
];

/// One region's ClickHouse. Connections are pooled and made anew as needed.
pub struct ClickHouse {
    insert: Client,
    read: Client,
    database: String,
}

impl ClickHouse {
    /// A client that waits for nothing: whether the store answers is seen at the first call.
    pub fn new(url: &str, database: &str) -> Arc<Self> {
        let plain = Client::default().with_url(url).with_database(database).with_compression(Compression::None);
        let with =
            |settings: &[(&str, &str)]| settings.iter().fold(plain.clone(), |client, (name, value)| client.with_setting(*name, *value));
        Arc::new(Self { insert: with(&INSERT_SETTINGS).with_validation(false), read: with(&READ_SETTINGS), database: database.into() })
    }

    /// A client of a store that answers.
    ///
    /// # Errors
    /// When it does not.
    pub async fn connect(url: &str, database: &str) -> Result<Arc<Self>> {
        let this = Self::new(url, database);
        let ping = this.read.clone().with_database("default").query("SELECT toUInt8(1)").fetch_one::<u8>();
        within(ANSWER_DEADLINE, ping).await.with_context(|| format!("ClickHouse at {url}"))?;
        Ok(this)
    }

    /// The database.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// The same store with further settings on every query, such as `compatibility`: for tests.
    pub fn with_read_setting(&self, name: &str, value: &str) -> Arc<Self> {
        let read = self.read.clone().with_setting(name, value);
        Arc::new(Self { insert: self.insert.clone(), read, database: self.database.clone() })
    }

    pub(super) fn read(&self, sql: &str) -> Query {
        self.read.query_raw(sql)
    }

    pub(super) fn write(&self) -> &Client {
        &self.insert
    }
}

/// Awaits an answer for a bounded time.
pub(super) async fn answered<T>(call: impl Future<Output = Result<T, clickhouse::error::Error>>) -> Result<T> {
    within(ANSWER_DEADLINE, call).await
}

async fn within<T>(deadline: Duration, call: impl Future<Output = Result<T, clickhouse::error::Error>>) -> Result<T> {
    Ok(tokio::time::timeout(deadline, call).await.with_context(|| format!("no answer within {deadline:?}"))??)
}

/// Rows for one table, encoded as RowBinary.
#[derive(Clone, Debug)]
pub struct InsertBlock {
    /// The table.
    pub table: &'static str,
    /// Its columns in the order of the encoding, separated by commas.
    pub columns: &'static str,
    /// The rows.
    pub rows: Bytes,
    /// How many they are.
    pub count: u64,
}

/// Stores a block: `Ok` only when all of it is stored.
///
/// # Errors
/// "Unknown": all, none or a part of the rows may be stored. Repeat the block; identity makes that harmless.
pub async fn insert_block(clickhouse: Arc<ClickHouse>, block: InsertBlock) -> Result<()> {
    let sql = format!("INSERT INTO {} ({}) FORMAT RowBinary", block.table, block.columns);
    let mut insert = clickhouse.insert.insert_formatted_with(sql).with_timeouts(Some(SEND_DEADLINE), Some(ANSWER_DEADLINE));
    let mut rows = block.rows;
    while !rows.is_empty() {
        insert.send(rows.split_to(rows.len().min(CHUNK_BYTES))).await.context("send block")?;
    }
    insert.end().await.with_context(|| format!("insert {} rows into {}", block.count, block.table))
}

/// Asserts what counting once stands on: the settings of inserts and reads as the engine sees them, and that no table has a
/// partition, another sorting key, a TTL or an insert-deduplication window.
///
/// # Errors
/// Names what is different from what it has to be, or that the store does not answer.
pub async fn check_settings(clickhouse: Arc<ClickHouse>, (): ()) -> Result<()> {
    for (client, wanted) in [(&clickhouse.insert, INSERT_SETTINGS.as_slice()), (&clickhouse.read, READ_SETTINGS.as_slice())] {
        let names: Vec<String> = wanted.iter().map(|(name, _)| format!("'{name}'")).collect();
        let sql = format!("SELECT name, value FROM system.settings WHERE name IN ({})", names.join(", "));
        let seen: Vec<(String, String)> = answered(client.query_raw(&sql).fetch_all()).await.context("read settings")?;
        for (name, value) in wanted {
            let found = seen.iter().find(|(seen, _)| seen == name).map(|(_, value)| value.as_str());
            ensure!(found == Some(value), "setting {name} must be {value}, the engine has {found:?}");
        }
    }
    let sql = "SELECT name, sorting_key, partition_key, engine_full FROM system.tables WHERE database = currentDatabase()";
    let seen: Vec<(String, String, String, String)> = answered(clickhouse.read(sql).fetch_all()).await.context("read tables")?;
    for (table, sorting_key) in TABLES {
        let Some((_, sorting, partition, engine)) = seen.iter().find(|(name, ..)| name == table) else {
            bail!("table {table} does not exist: has the schema been applied?");
        };
        ensure!(sorting == sorting_key, "table {table} must be ordered by ({sorting_key}), not by ({sorting})");
        ensure!(partition.is_empty(), "table {table} must have no partition key, it has ({partition})");
        ensure!(engine.starts_with("ReplacingMergeTree("), "table {table} must be a ReplacingMergeTree, not {engine}");
        ensure!(engine.contains("non_replicated_deduplication_window = 0"), "table {table} must have no insert-deduplication window");
        ensure!(!engine.contains(" TTL "), "table {table} must have no TTL");
    }
    Ok(())
}
