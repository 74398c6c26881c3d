//! The region's own log, as the relay uses it.

use crate::LogLost;
use adapters::redpanda::{Batch, DeadLetter, Kind, LogReader, OutRecord, Publisher, ReadSpan};
use anyhow::Result;
use meridian_proto::{CommitId, CommitTime, Event, PartitionId, Watermark};
use prost::Message;
use std::sync::Arc;

/// Records that are looked over at once on the way back from the end of the log.
const WALK_RECORDS: u64 = 1024;
/// Bytes of them.
const WALK_BYTES: usize = 16 << 20;
/// Records that are looked over at most once the watermark is found: what is not remembered is published again.
const WALK_RECORDS_MAX: u64 = 65_536;
/// By how much the log's clock may be behind the region's.
const CLOCK_MARGIN_MS: u64 = 1_000;

/// What is to be appended.
#[derive(Clone, Debug, Default)]
pub struct Outgoing {
    /// Events, in order.
    pub records: Vec<OutRecord>,
    /// What could not be read.
    pub dead_letters: Vec<DeadLetter>,
}

/// Where the log says that sealing stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LastWatermark {
    /// The time through which watermarks reach, be it the last one or one before it; `None` when none was ever written.
    pub through: Option<CommitTime>,
    /// Events of a later commit time that stand in the log, in order of id, each once: wherever they are among the records
    /// that were appended since that time, for live events overtake the watermarks.
    pub published: Vec<CommitId>,
}

/// Appends events, then dead letters; all acknowledged.
///
/// # Errors
/// When it is unknown whether all were appended.
pub async fn publish_batch(publisher: Arc<Publisher>, batch: Outgoing) -> Result<()> {
    Arc::clone(&publisher).publish(batch.records).await?;
    for letter in batch.dead_letters {
        Arc::clone(&publisher).dead_letter(letter).await?;
    }
    Ok(())
}

/// Walks back from the end of the log to the last watermark, and on to where nothing can stand that it does not cover.
/// What cannot be read on the way is passed over with an alarm.
///
/// # Errors
/// When the log does not answer in time. [`LogLost`] when the beginning of the log is gone and no watermark is left.
pub async fn last_watermark(reader: Arc<LogReader>, id: PartitionId) -> Result<LastWatermark> {
    let bounds = Arc::clone(&reader).bounds(id.clone()).await?;
    let mut found = LastWatermark::default();
    let mut end = bounds.high;
    while end > bounds.low && (found.through.is_none() || bounds.high - end < WALK_RECORDS_MAX) {
        let start = end.saturating_sub(WALK_RECORDS).max(bounds.low);
        let stretch = read_stretch(&reader, &id, start, end).await?;
        if stretch.iter().rev().any(|batch| walk_back(batch, &id, &mut found)) {
            break;
        }
        end = start;
    }
    if found.through.is_none() && bounds.low > 0 {
        return Err(LogLost(format!("{id} begins at {} and holds no watermark", bounds.low)).into());
    }
    found.published.retain(|event| Some(event.time()) > found.through);
    found.published.sort_unstable();
    found.published.dedup();
    Ok(found)
}

/// The records from `start` up to `end`.
async fn read_stretch(reader: &Arc<LogReader>, id: &PartitionId, start: u64, end: u64) -> Result<Vec<Batch>> {
    let (mut stretch, mut at) = (Vec::new(), start);
    while at < end {
        let span = ReadSpan { partition: id.clone(), from_local: at, records_max: (end - at) as usize, bytes_max: WALK_BYTES };
        let batch = Arc::clone(reader).read_span(span).await?;
        let Some(last) = batch.iter().next_back().map(|record| record.local_offset) else { break };
        at = last + 1;
        stretch.push(batch);
    }
    Ok(stretch)
}

/// Goes over a batch from its end; true where everything before was appended earlier than the last watermark's time.
fn walk_back(batch: &Batch, id: &PartitionId, found: &mut LastWatermark) -> bool {
    for (index, record) in batch.iter().enumerate().rev() {
        let appended_us = (record.appended_ms.max(0) as u64 + CLOCK_MARGIN_MS) * 1_000;
        if found.through.is_some_and(|through| appended_us < through.0) {
            return true;
        }
        let bytes = batch.value_bytes(index);
        let read = match record.kind {
            Kind::Event => Event::decode(bytes).ok().and_then(|event| CommitId::from_bytes(&event.commit_id)).map(|event| {
                found.published.push(event);
            }),
            Kind::Watermark => Watermark::decode(bytes).ok().filter(|watermark| is_of(watermark, id)).map(|watermark| {
                // The greatest, not the last: one of an earlier try, or of another relay, may have come late.
                found.through = found.through.max(Some(CommitTime(watermark.through_us)));
            }),
            Kind::Unknown => None,
        };
        if read.is_none() {
            tracing::error!(partition = %id, offset = record.offset, "a record of the own log cannot be read");
            metrics::counter!("meridian_alarms_total", "alarm" => "own_log_unreadable").increment(1);
        }
    }
    false
}

fn is_of(watermark: &Watermark, id: &PartitionId) -> bool {
    watermark.region == id.topic.region && watermark.generation == id.topic.generation && watermark.partition == u32::from(id.partition)
}

#[cfg(test)]
mod tests {
    use super::*;
    use adapters::redpanda::Record;

    fn id() -> PartitionId {
        PartitionId { topic: "events.iad.g1".parse().unwrap(), partition: 3 }
    }

    /// Watermarks by (through, append time), both in seconds, in the order of the log.
    fn check(watermarks: &[(u64, i64)], expected: Option<u64>) {
        let bytes = |through: u64| {
            let of =
                Watermark { region: "iad".into(), generation: 1, partition: 3, through_us: through * 1_000_000, ..Watermark::default() };
            of.encode_to_vec()
        };
        let values: Vec<Vec<u8>> = watermarks.iter().map(|(through, _)| bytes(*through)).collect();
        let (partition, mut found) = (id(), LastWatermark::default());
        let records = watermarks.iter().zip(&values).enumerate().map(|(offset, ((_, appended_s), value))| Record {
            partition: &partition,
            local_offset: offset as u64,
            offset: offset as u64,
            relayed_ms: appended_s * 1_000,
            appended_ms: appended_s * 1_000,
            kind: Kind::Watermark,
            content_type: meridian_proto::CONTENT_TYPE_WATERMARK,
            value,
        });
        walk_back(&Batch::of(records), &id(), &mut found);
        assert_eq!(found.through, expected.map(|through| CommitTime(through * 1_000_000)), "{watermarks:?}");
    }

    #[test]
    fn a_watermark_that_came_late_takes_nothing_back() {
        check(&[], None);
        check(&[(10, 13), (11, 14), (12, 15)], Some(12));
        check(&[(10, 13), (12, 15), (11, 16)], Some(12));
        check(&[(12, 15), (10, 15), (11, 16)], Some(12));
    }
}
