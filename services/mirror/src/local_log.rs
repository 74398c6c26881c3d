//! The effects on this region's log, over the adapter's functions.

use crate::{Appended, Limits, LocalTail, Opened, Place, frame::frames_of, tail::last_of_tail};
use adapters::redpanda::{
    Batch, Bounds, FollowSpec, Follower, LogReader, OutRecord, Publisher, ReadSpan, RedpandaConfig, StartAt, list_partitions, refusal,
};
use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use meridian_proto::PartitionId;
use std::{sync::Arc, time::Duration};

/// Records of a copy's end that are looked at first.
const TAIL_RECORDS: u64 = 64;
/// And how far back when something is wrong with those.
const DEEP_TAIL_RECORDS: u64 = 8192;
/// Bytes of one read while looking.
const TAIL_BYTES: usize = 4 << 20;
/// Partitions that are looked at at a time.
const READS_AT_A_TIME: usize = 4;

/// This region's log.
pub struct LocalLog {
    config: RedpandaConfig,
    region: String,
    reader: Arc<LogReader>,
    publisher: Arc<Publisher>,
    limits: Limits,
}

impl LocalLog {
    /// Makes the clients; waits for no broker.
    ///
    /// # Errors
    /// When the settings are refused.
    pub async fn connect(config: RedpandaConfig, region: &str, limits: Limits) -> Result<Arc<Self>> {
        let (reader, publisher) = tokio::try_join!(LogReader::connect(&config, region), Publisher::connect(&config))?;
        Ok(Arc::new(Self { config, region: region.into(), reader, publisher, limits }))
    }

    /// The client that appends, for [`crate::Effects::park_record`].
    pub fn publisher(&self) -> &Arc<Publisher> {
        &self.publisher
    }
}

/// Opens a tail of the own log. What lies outside of what is kept is told before anything is read.
///
/// # Errors
/// When the log does not answer in time.
pub async fn read_local_log(log: Arc<LocalLog>, places: Vec<Place>) -> Result<Opened> {
    let bounds = stream::iter(places.clone()).map(|place| Arc::clone(&log.reader).bounds(place.partition)).buffered(READS_AT_A_TIME);
    let bounds: Vec<Bounds> = bounds.try_collect().await?;
    for (place, Bounds { low, high }) in places.iter().zip(bounds) {
        if !(low..=high).contains(&place.next) {
            return Ok(Opened::OutOfRange { place: place.clone(), low, high });
        }
    }
    let limits = &log.limits;
    let start = |place: Place| (place.partition, StartAt::Offset { next: place.next, local_hint: Some(place.next) });
    let follower = Follower::start(
        &log.config,
        FollowSpec {
            partitions: places.into_iter().map(start).collect(),
            own_region: log.region.clone(),
            batch_bytes_max: limits.frame_bytes_max,
            batch_records_max: limits.append_records_max,
            linger: limits.linger,
            held_back: Duration::ZERO,
        },
    )?;
    let frame_bytes_max = limits.frame_bytes_max;
    let tail: LocalTail = kit::effect(move |()| {
        let next = Arc::clone(&follower).next_batch(());
        async move { Ok(frames_of(&next.await?, frame_bytes_max)) }
    });
    Ok(Opened::Tail(tail))
}

/// Appends copies.
///
/// # Errors
/// When the outcome is not known: where the copy ends must be read again.
pub async fn append_local_log(log: Arc<LocalLog>, records: Vec<OutRecord>) -> Result<Appended> {
    match Arc::clone(&log.publisher).publish(records).await {
        Ok(()) => Ok(Appended::All),
        Err(error) => match refusal(&error) {
            Some(reason) => Ok(Appended::Refused { reason }),
            None => Err(error),
        },
    }
}

/// Where the local copies of a region's topics end.
///
/// # Errors
/// When the log does not answer in time.
pub async fn last_mirrored(log: Arc<LocalLog>, region: String) -> Result<Vec<Place>> {
    let partitions = list_partitions(Arc::clone(&log.reader), ()).await.context("list partitions")?;
    let copies = partitions.into_iter().filter(|partition| partition.topic.region == region);
    stream::iter(copies).map(|partition| end_of_copy(&log.reader, partition)).buffered(READS_AT_A_TIME).try_collect().await
}

async fn end_of_copy(reader: &Arc<LogReader>, partition: PartitionId) -> Result<Place> {
    let mut depth = TAIL_RECORDS;
    loop {
        let bounds = Arc::clone(reader).bounds(partition.clone()).await?;
        let from = bounds.low.max(bounds.high.saturating_sub(depth));
        let (offsets, newest) = read_tail(reader, &partition, from..bounds.high).await.with_context(|| format!("tail of {partition}"))?;
        let tail = last_of_tail(&offsets);
        if tail.strays > 0 && depth < DEEP_TAIL_RECORDS && from > bounds.low {
            depth = DEEP_TAIL_RECORDS;
            continue;
        }
        if tail.strays > 0 {
            let counted = metrics::counter!("meridian_alarms_total", "alarm" => "tail", "hop" => "mirror", "origin" => partition.topic.region.clone());
            counted.increment(1);
            tracing::error!(%partition, strays = tail.strays, last = tail.last, "the copy's end holds records that no mirror put there");
        }
        // An unreadable tail to its bottom is not an empty copy: beginning anew would be a guess.
        anyhow::ensure!(tail.last.is_some() || offsets.is_empty() || from == bounds.low, "{partition}: no position within {depth} records");
        let next = tail.last.map_or(0, |last| last + 1);
        return Ok(Place { partition, next, empty: tail.last.is_none(), as_of_ms: newest });
    }
}

/// The origin offsets of a span, and the greatest append time in the origin.
async fn read_tail(reader: &Arc<LogReader>, partition: &PartitionId, span: std::ops::Range<u64>) -> Result<(Vec<Option<u64>>, i64)> {
    let (mut offsets, mut newest, mut from_local) = (Vec::new(), 0, span.start);
    while from_local < span.end {
        let left = (span.end - from_local) as usize;
        let span = ReadSpan { partition: partition.clone(), from_local, records_max: left, bytes_max: TAIL_BYTES };
        let batch: Batch = Arc::clone(reader).read_span(span).await?;
        let Some(last) = batch.iter().next_back() else { break };
        from_local = last.local_offset + 1;
        for record in batch.iter() {
            offsets.push(record.origin_known().then_some(record.offset));
            newest = newest.max(if record.origin_known() { record.relayed_ms } else { 0 });
        }
    }
    Ok((offsets, newest))
}
