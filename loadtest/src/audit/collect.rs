//! Reading a region's log and rows, from inside the region.

use super::{
    LogAudit, LogRecord, Names, RegionAudit, Scope, StoredRow, Tier, hash_head,
    log_check::{Claim, LogCheck},
};
use adapters::{
    clickhouse::{self, ClickHouse},
    redpanda::{Kind, LogReader, ReadSpan, Record, RedpandaConfig, list_partitions},
};
use anyhow::{Context, Result};
use kit::{Effect, bind};
use meridian_proto::{CommitId, Event, PartitionId, Watermark};
use prost::Message;

const RECORDS_MAX: usize = 10_000;
const BYTES_MAX: usize = 8 << 20;

/// Where a region's engines are, as seen from inside.
#[derive(Clone, Debug)]
pub struct Engines {
    /// `host:port`.
    pub kafka_address: String,
    /// `http://host:port`.
    pub clickhouse_url: String,
    /// Database.
    pub clickhouse_database: String,
}

/// What an audit reads.
#[derive(Clone)]
pub struct Effects {
    /// All partitions of all topics of events.
    pub list_partitions: Effect<(), Vec<PartitionId>>,
    /// Oldest and next local offset of a partition.
    pub bounds: Effect<PartitionId, adapters::redpanda::Bounds>,
    /// Records from a local offset on.
    pub read_span: Effect<ReadSpan, adapters::redpanda::Batch>,
    /// Rows of ClickHouse as sums are made.
    pub read_events: Effect<(), Vec<clickhouse::StoredEvent>>,
}

impl Effects {
    /// Effects on a region's engines.
    ///
    /// # Errors
    /// When one cannot be reached.
    pub async fn connect(region: &str, engines: &Engines) -> Result<Self> {
        let config = RedpandaConfig { address: engines.kafka_address.clone(), client_id: "loadtest".into() };
        let reader = LogReader::connect(&config, region).await.context("connect to the log")?;
        let store = ClickHouse::connect(&engines.clickhouse_url, &engines.clickhouse_database).await.context("connect to ClickHouse")?;
        Ok(Self {
            list_partitions: bind(&reader, list_partitions),
            bounds: bind(&reader, LogReader::bounds),
            read_span: bind(&reader, LogReader::read_span),
            read_events: bind(&store, clickhouse::read_events),
        })
    }
}

/// Reads logs and rows of `region`; usage and consumer are added from outside. A tier that cannot be read is named.
pub async fn collect(Effects { list_partitions, bounds, read_span, read_events }: &Effects, region: &str, scope: &Scope) -> RegionAudit {
    let mut names = Names::default();
    let mut audit = RegionAudit { region: region.into(), ..RegionAudit::default() };
    let logs = async {
        let mut logs = Vec::new();
        for partition in list_partitions(()).await.context("list partitions")? {
            let log = read_partition(bounds, read_span, partition.clone(), scope, &mut names).await;
            logs.push(log.with_context(|| partition.to_string())?);
        }
        anyhow::Ok(logs)
    };
    match logs.await {
        Ok(logs) => audit.logs = logs,
        Err(error) => audit.unread.push((Tier::Log, format!("{error:#}"))),
    }
    match read_events(()).await {
        Ok(rows) => {
            let rows = rows.into_iter().filter(|row| scope.holds(&row.source, row.commit_id));
            audit.stored = rows.map(|row| stored_row(&row, &mut names)).collect();
        }
        Err(error) => audit.unread.push((Tier::Stored, format!("{error:#}"))),
    }
    audit.names = names.into_list();
    audit
}

fn stored_row(row: &clickhouse::StoredEvent, names: &mut Names) -> StoredRow {
    let name = names.number(&row.tenant, &row.source, &row.id);
    StoredRow { name, hash: hash_head(&row.hash), commit: row.commit_id, stored_us: u64::try_from(row.stored_us).unwrap_or_default() }
}

async fn read_partition(
    bounds: &Effect<PartitionId, adapters::redpanda::Bounds>,
    read_span: &Effect<ReadSpan, adapters::redpanda::Batch>,
    partition: PartitionId,
    scope: &Scope,
    names: &mut Names,
) -> Result<LogAudit> {
    let end = bounds(partition.clone()).await.context("bounds")?;
    let mut reading = Reading { scope, names, check: LogCheck::default(), records: Vec::new() };
    let mut from_local = end.low;
    while from_local < end.high {
        let span = ReadSpan { partition: partition.clone(), from_local, records_max: RECORDS_MAX, bytes_max: BYTES_MAX };
        let batch = read_span(span).await.context("read")?;
        let Some(last) = batch.iter().last() else { break };
        from_local = last.local_offset + 1;
        batch.iter().for_each(|record| reading.take(&record));
    }
    let Reading { check, records, .. } = reading;
    Ok(LogAudit {
        origin: partition.topic.region,
        generation: partition.topic.generation,
        partition: partition.partition,
        records,
        repeated_positions: check.repeated,
        late: check.late,
        faults: check.faults,
    })
}

struct Reading<'a> {
    scope: &'a Scope,
    names: &'a mut Names,
    check: LogCheck,
    records: Vec<LogRecord>,
}

impl Reading<'_> {
    fn take(&mut self, record: &Record<'_>) {
        let offset = record.offset;
        if !record.origin_known() {
            return self.check.fault(format!("local offset {} does not say where it stood in its origin", record.local_offset));
        }
        if !self.check.position(offset) {
            return;
        }
        match record.kind {
            Kind::Event => match Event::decode(record.value) {
                Ok(event) => self.event(record, &event),
                Err(error) => self.check.fault(format!("position {offset} is no event: {error}")),
            },
            Kind::Watermark => match Watermark::decode(record.value).ok().and_then(|watermark| claim(&watermark)) {
                Some(claim) => self.check.watermark(offset, claim),
                None => self.check.fault(format!("position {offset} is no watermark")),
            },
            Kind::Unknown => self.check.fault(format!("position {offset} has the content type {:?}", record.content_type)),
        }
    }

    fn event(&mut self, record: &Record<'_>, event: &Event) {
        let Some(CommitId(commit)) = CommitId::from_bytes(&event.commit_id) else {
            return self.check.fault(format!("position {} has a commit id of {} bytes", record.offset, event.commit_id.len()));
        };
        self.check.event(commit);
        if !self.scope.holds(&event.source, commit) {
            return;
        }
        self.records.push(LogRecord {
            name: self.names.number(&event.tenant, &event.source, &event.id),
            hash: hash_head(&event.payload_hash),
            commit,
            offset: record.offset,
            accepted_us: event.accepted_us,
            relayed_ms: record.relayed_ms,
            appended_ms: record.appended_ms,
        });
    }
}

fn claim(watermark: &Watermark) -> Option<Claim> {
    let CommitId(xor) = CommitId::from_bytes(&watermark.xor)?;
    Some(Claim { from_us: watermark.from_us, through_us: watermark.through_us, rows: watermark.rows, xor })
}

/// Engines of a region from its addresses.
pub fn engines_at(address: &str) -> Engines {
    Engines {
        kafka_address: format!("{address}:9092"),
        clickhouse_url: format!("http://{address}:8123"),
        clickhouse_database: "meridian".into(),
    }
}

/// Connects to a region's engines and reads them.
///
/// # Errors
/// When they cannot be reached at all.
pub async fn audit_region(region: &str, engines: &Engines, scope: &Scope) -> Result<RegionAudit> {
    let effects = Effects::connect(region, engines).await?;
    Ok(collect(&effects, region, scope).await)
}

#[cfg(test)]
mod tests {
    use super::*;
    use adapters::redpanda::{Batch, Bounds};
    use kit::effect;
    use meridian_proto::{CONTENT_TYPE_EVENT, CONTENT_TYPE_WATERMARK, Topic};
    use std::sync::Arc;

    fn event(commit: u128, source: &str) -> Vec<u8> {
        let event = Event {
            tenant: "t".into(),
            source: source.into(),
            id: "e".into(),
            commit_id: commit.to_be_bytes().to_vec().into(),
            ..Event::default()
        };
        event.encode_to_vec()
    }

    fn watermark(rows: u64, xor: u128) -> Vec<u8> {
        Watermark { from_us: 0, through_us: 100, rows, xor: xor.to_be_bytes().to_vec().into(), ..Watermark::default() }.encode_to_vec()
    }

    async fn audit_of(values: Vec<(&'static str, Vec<u8>)>) -> RegionAudit {
        let partition = PartitionId { topic: Topic { region: "iad".into(), generation: 1 }, partition: 3 };
        let (named, at) = (partition.clone(), values.len() as u64);
        let values = Arc::new(values);
        let effects = Effects {
            list_partitions: effect(move |()| {
                let partitions = vec![named.clone()];
                async move { Ok(partitions) }
            }),
            bounds: effect(move |_| async move { Ok(Bounds { low: 0, high: at }) }),
            read_span: effect(move |span: ReadSpan| {
                let (partition, values) = (partition.clone(), Arc::clone(&values));
                async move {
                    // Two at a time, so that reading goes on where it ended.
                    let here = values.iter().enumerate().skip(span.from_local as usize).take(2);
                    Ok(Batch::of(here.map(|(offset, (content_type, value))| Record {
                        partition: &partition,
                        local_offset: offset as u64,
                        offset: offset as u64,
                        relayed_ms: 1,
                        appended_ms: 2,
                        kind: Kind::of(content_type),
                        content_type,
                        value,
                    })))
                }
            }),
            read_events: effect(|()| async { anyhow::bail!("no answer") }),
        };
        collect(&effects, "fra", &Scope { source: "/run".into(), since_us: 50 }).await
    }

    #[tokio::test]
    async fn a_log_is_read_whole_and_checked_and_the_run_is_kept() {
        let (old, mine) = (10_u128 << 64, 20_u128 << 64);
        let audit = audit_of(vec![
            (CONTENT_TYPE_EVENT, event(old, "/before")),
            (CONTENT_TYPE_EVENT, event(mine, "/run")),
            (CONTENT_TYPE_WATERMARK, watermark(2, old ^ mine)),
        ])
        .await;
        let log = &audit.logs[0];
        assert_eq!((log.origin.as_str(), log.partition, log.records.len(), log.records[0].offset), ("iad", 3, 1, 1));
        assert_eq!(log.faults, Vec::<String>::new());
        assert_eq!(audit.unread, [(Tier::Stored, "no answer".to_owned())]);
    }

    #[tokio::test]
    async fn what_cannot_be_read_or_is_wrong_is_a_fault() {
        let audit = audit_of(vec![
            (CONTENT_TYPE_EVENT, vec![0xff]),
            ("text/plain", vec![]),
            (CONTENT_TYPE_WATERMARK, watermark(1, 7)),
            (CONTENT_TYPE_EVENT, Event::default().encode_to_vec()),
        ])
        .await;
        assert_eq!(audit.logs[0].faults.len(), 4, "{:?}", audit.logs[0].faults);
    }
}
