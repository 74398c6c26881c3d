//! Sums and conflicts. **Every filter but the tenant's runs after FINAL**; the tenant is part of the identity, so all copies
//! of an event share it.

use super::{ClickHouse, connect::answered};
use anyhow::{Context, Result};
use clickhouse::Row;
use serde::Deserialize;
use std::sync::Arc;

/// How a meter makes one number of many events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Aggregation {
    /// The number of events.
    Count,
    /// The sum of a top-level member of their JSON data.
    Sum {
        /// The member's name.
        property: String,
    },
}

/// A question for a tenant's sums.
#[derive(Clone, Debug)]
pub struct SumMeter {
    /// The tenant.
    pub tenant: String,
    /// The type of the events that count.
    pub event_type: String,
    /// How.
    pub aggregation: Aggregation,
    /// Where the windows begin, ascending, microseconds since the Unix epoch. Each ends where the next begins.
    pub starts_us: Vec<i64>,
    /// Where the last window ends.
    pub end_us: i64,
}

/// What one window holds. Windows without events are left out.
#[derive(Clone, Debug, PartialEq, Eq, Row, Deserialize)]
pub struct Bucket {
    /// Where the window begins.
    pub start_us: i64,
    /// An exact decimal.
    pub value: String,
    /// Events in it, each identity once.
    pub events: u64,
    /// Events among them whose value could not be read; they add nothing.
    pub skipped: u64,
}

/// Numbers arrive as the shortest text that reads back as the same double, which is exact up to 15 significant digits; more
/// digits cannot be told from rounding and are not read. Texts must be plain decimals.
const SUM: &str = "SELECT roundDown(time_us, {starts:Array(Int64)}) AS start_us, toString(sum(ifNull(number, toDecimal256(0, 18)))) AS value, \
     count() AS events, countIf(isNull(number)) AS skipped FROM (\
     SELECT time_us, toString(JSONType(data, {property:String})) AS kind, \
     if(kind = 'String', JSONExtractString(data, {property:String}), JSONExtractRaw(data, {property:String})) AS text, \
     if(match(text, if(kind = 'String', '^-?[0-9]{1,20}([.][0-9]{1,18})?$', '^-?[0-9.]{1,24}(e-?[0-9]+)?$')) \
     AND (kind = 'String' OR length(replaceRegexpAll(replaceRegexpOne(text, 'e.*$', ''), '^[-0.]+|[-.]', '')) <= 15), \
     toDecimal256OrNull(text, 18), NULL) AS number \
     FROM (SELECT type, time_us, data FROM events FINAL WHERE tenant = {tenant:String}) \
     WHERE type = {type:String} AND time_us >= {from:Int64} AND time_us < {to:Int64}) GROUP BY start_us ORDER BY start_us";

const COUNT: &str = "SELECT roundDown(time_us, {starts:Array(Int64)}) AS start_us, toString(count()) AS value, count() AS events, \
     toUInt64(0) AS skipped FROM (SELECT type, time_us FROM events FINAL WHERE tenant = {tenant:String}) \
     WHERE type = {type:String} AND time_us >= {from:Int64} AND time_us < {to:Int64} GROUP BY start_us ORDER BY start_us";

/// A tenant's sums, each identity once, by the payload with the least commit id. An event counts in the window that holds its
/// own time, or its commit time when it gave none.
///
/// # Errors
/// When the store does not answer in time.
pub async fn sum_meter(clickhouse: Arc<ClickHouse>, question: SumMeter) -> Result<Vec<Bucket>> {
    let Some(from) = question.starts_us.first().copied() else { return Ok(Vec::new()) };
    let query = match &question.aggregation {
        Aggregation::Count => clickhouse.read(COUNT),
        Aggregation::Sum { property } => clickhouse.read(SUM).param("property", property),
    };
    let query = query.param("tenant", &question.tenant).param("type", &question.event_type);
    let query = query.param("from", from).param("to", question.end_us).param("starts", &question.starts_us);
    answered(query.fetch_all()).await.context("sum")
}

/// A question for a tenant's conflicts.
#[derive(Clone, Debug)]
pub struct ListConflicts {
    /// The tenant.
    pub tenant: String,
    /// How many identities at most.
    pub limit: u32,
}

/// One payload of an identity that has several. Of one identity the rows follow each other, the one that counts first.
#[derive(Clone, Debug, PartialEq, Eq, Row, Deserialize)]
pub struct ConflictRow {
    /// CloudEvents `source`.
    pub source: String,
    /// CloudEvents `id`.
    pub id: String,
    /// The payload's hash.
    pub hash: [u8; 32],
    /// Its least commit id.
    pub commit_id: u128,
    /// Region in which that was given.
    pub origin: String,
    /// CloudEvents `type` of that payload.
    #[serde(rename = "type")]
    pub event_type: String,
}

const CONFLICTS: &str = "SELECT source, id, (row.2 AS h)::FixedString(32) AS hash, row.1 AS commit_id, row.3 AS origin, row.4 AS type FROM (\
     SELECT source, id, arraySort(groupArray((commit_id, hash, toString(origin), toString(type)))) AS rows FROM (\
     SELECT source, id, hash, commit_id, origin, type FROM conflicts FINAL WHERE tenant = {tenant:String}) \
     GROUP BY source, id HAVING length(rows) > 1 ORDER BY source, id LIMIT {limit:UInt32}) \
     ARRAY JOIN rows AS row ORDER BY source, id, commit_id";

/// A tenant's identities with more than one payload, in order of source and id.
///
/// # Errors
/// When the store does not answer in time.
pub async fn list_conflicts(clickhouse: Arc<ClickHouse>, question: ListConflicts) -> Result<Vec<ConflictRow>> {
    let query = clickhouse.read(CONFLICTS).param("tenant", &question.tenant).param("limit", question.limit);
    answered(query.fetch_all()).await.context("conflicts")
}
