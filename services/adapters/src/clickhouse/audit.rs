//! Reading everything back, for those who check.

use super::{ClickHouse, connect::answered};
use anyhow::{Context, Result};
use clickhouse::Row;
use serde::Deserialize;
use std::sync::Arc;

/// What is stored of one identity: the payload that counts.
#[derive(Clone, Debug, PartialEq, Eq, Row, Deserialize)]
pub struct StoredEvent {
    /// Tenant.
    pub tenant: String,
    /// CloudEvents `source`.
    pub source: String,
    /// CloudEvents `id`.
    pub id: String,
    /// Hash of the payload.
    pub hash: [u8; 32],
    /// Least commit id.
    pub commit_id: u128,
    /// Region that accepted it.
    pub origin: String,
    /// `stored_at` of the progress row that first covered it, microseconds since the Unix epoch; 0 when no row does (yet, or
    /// any more: they are kept for three days).
    pub stored_us: i64,
}

const EVENTS: &str = "SELECT e.tenant AS tenant, e.source AS source, e.id AS id, e.hash AS hash, e.commit_id AS commit_id, \
     e.event_origin AS origin, toUnixTimestamp64Micro(f.stored_at) AS stored_us FROM (\
     SELECT tenant, source, id, hash, commit_id, toString(origin) AS event_origin, toString(log_region) AS origin, \
     log_generation AS generation, log_partition AS partition, log_offset FROM events FINAL) AS e \
     ASOF LEFT JOIN (SELECT toString(origin) AS origin, generation, partition, next_offset, min(stored_at) AS stored_at \
     FROM flushes GROUP BY origin, generation, partition, next_offset) AS f \
     ON e.origin = f.origin AND e.generation = f.generation AND e.partition = f.partition AND e.log_offset < f.next_offset";

/// All events that count, in no order.
///
/// # Errors
/// When the store does not answer in time.
pub async fn read_events(clickhouse: Arc<ClickHouse>, (): ()) -> Result<Vec<StoredEvent>> {
    answered(clickhouse.read(EVENTS).fetch_all()).await.context("events")
}
