//! The services' own functions on the log, over the fake: what `relay::log`, `mirror::local_log`, `sink::Log` and `feed::log` do
//! on the real one.

use crate::{log, log::Follower, services::follower, store, world::Process};
use adapters::{
    clickhouse::{InsertBlock, PositionRow},
    redpanda::{Batch, Kind, OutRecord, StartAt},
};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use kit::Effect;
use meridian_proto::{CommitId, CommitTime, Event, PartitionId, Watermark};
use mirror::{Appended, LocalTail, Opened, Place, frames_of, last_of_tail};
use prost::Message;
use relay::{LastWatermark, LogLost, Outgoing};
use sink::{Followed, Polled, row_of, start_at};
use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError},
};

/// Records of a copy's end that are looked at.
const TAIL_RECORDS: usize = 64;
/// Values of a frame.
const FRAME_BYTES_MAX: usize = 64 << 10;

/// The ids of the events among values, for people.
pub fn names<'a>(values: impl Iterator<Item = &'a Bytes>) -> String {
    let name = |value: &Bytes| Event::decode(value.clone()).map_or_else(|_| "?".into(), |event| event.id);
    values.map(name).collect::<Vec<_>>().join(", ")
}

/// See [`relay::log::publish_batch`].
pub async fn publish_batch(process: Arc<Process>, batch: Outgoing) -> Result<()> {
    if process.world.traced() && !batch.records.is_empty() {
        let (ids, place) = (names(batch.records.iter().map(|record| &record.value)), &batch.records[0].partition);
        process.world.tell(process.region, process.role, || format!("publishes {ids} to {place}"));
    }
    log::append(&process, batch.records, true).await?;
    for letter in batch.dead_letters {
        log::dead_letter(Arc::clone(&process), letter).await?;
    }
    Ok(())
}

/// Appends watermarks.
pub async fn publish_watermarks(process: Arc<Process>, records: Vec<OutRecord>) -> Result<()> {
    log::append(&process, records, true).await
}

/// See [`relay::log::last_watermark`].
pub async fn last_watermark(process: Arc<Process>, id: PartitionId) -> Result<LastWatermark> {
    let bounds = log::bounds(Arc::clone(&process), id.clone()).await?;
    let state = process.world.state();
    let partition = state.regions[process.region].log.get(&id).context("no such partition")?;
    let mut found = LastWatermark::default();
    for stored in partition.records.iter().rev() {
        match Kind::of(&stored.content_type) {
            Kind::Event => {
                let event = Event::decode(stored.value.clone()).ok();
                found.published.extend(event.and_then(|event| CommitId::from_bytes(&event.commit_id)));
            }
            Kind::Watermark => {
                if let Ok(watermark) = Watermark::decode(stored.value.clone()) {
                    found.through = found.through.max(Some(CommitTime(watermark.through_us)));
                }
            }
            Kind::Unknown => {}
        }
    }
    if found.through.is_none() && bounds.low > 0 {
        return Err(LogLost(format!("{id} begins at {} and holds no watermark", bounds.low)).into());
    }
    found.published.retain(|event| Some(event.time()) > found.through);
    found.published.sort_unstable();
    found.published.dedup();
    Ok(found)
}

/// See [`mirror::local_log::read_local_log`].
pub async fn read_local_log(process: Arc<Process>, places: Vec<Place>) -> Result<Opened> {
    for place in &places {
        let bounds = log::bounds(Arc::clone(&process), place.partition.clone()).await?;
        if !(bounds.low..=bounds.high).contains(&place.next) {
            return Ok(Opened::OutOfRange { place: place.clone(), low: bounds.low, high: bounds.high });
        }
    }
    let start = |place: Place| (place.partition, StartAt::Offset { next: place.next, local_hint: Some(place.next) });
    let starts: Vec<_> = places.into_iter().map(start).collect();
    let (follower, world) = (follower(&process, &starts)?, Arc::clone(&process.world));
    let tail: LocalTail = kit::effect(move |()| {
        let next = Arc::clone(&follower).next_batch(Arc::clone(&world));
        async move { Ok(frames_of(&next.await, FRAME_BYTES_MAX)) }
    });
    Ok(Opened::Tail(tail))
}

/// See [`mirror::local_log::append_local_log`].
pub async fn append_local_log(process: Arc<Process>, records: Vec<OutRecord>) -> Result<Appended> {
    // Its producer waits longer than a broker takes to carry out what is on its way: nothing of it comes late.
    log::append(&process, records, false).await.map(|()| Appended::All)
}

/// See [`mirror::local_log::last_mirrored`].
pub async fn last_mirrored(process: Arc<Process>, region: String) -> Result<Vec<Place>> {
    let ids = log::list_partitions(Arc::clone(&process), ()).await?;
    let state = process.world.state();
    let log = &state.regions[process.region].log;
    let place = |partition: PartitionId| {
        let records = &log.get(&partition)?.records;
        let tail = &records[records.len().saturating_sub(TAIL_RECORDS)..];
        let offsets: Vec<_> = tail.iter().map(|stored| stored.origin.map(|origin| origin.offset)).collect();
        let newest = tail.iter().filter_map(|stored| stored.origin).map(|origin| origin.append_time_ms).max();
        let last = last_of_tail(&offsets).last;
        Some(Place { partition, next: last.map_or(0, |last| last + 1), empty: last.is_none(), as_of_ms: newest.unwrap_or_default() })
    };
    Ok(ids.into_iter().filter(|id| id.topic.region == region).filter_map(place).collect())
}

/// See [`sink::Log::start_following`].
pub async fn start_following(process: Arc<Process>, positions: Vec<PositionRow>) -> Result<Vec<Followed>> {
    let ids = log::list_partitions(Arc::clone(&process), ()).await?;
    let mut counts: BTreeMap<_, u16> = BTreeMap::new();
    ids.iter().for_each(|id| *counts.entry(id.topic.clone()).or_default() += 1);
    let starts: Vec<_> = ids.iter().map(|id| (id.clone(), start_at(row_of(&positions, id)))).collect();
    let follower = follower(&process, &starts)?;
    *process.follower.lock().unwrap_or_else(PoisonError::into_inner) = Some(follower);
    Ok(ids.into_iter().map(|id| Followed { partitions: counts[&id.topic], id }).collect())
}

/// The follower of a sink.
pub fn followed(process: &Process) -> Result<Arc<Follower>> {
    process.follower.lock().unwrap_or_else(PoisonError::into_inner).clone().context("nothing is followed")
}

/// See [`sink::Log::poll_batch`].
pub async fn poll_batch(process: Arc<Process>, (): ()) -> Result<Polled> {
    let follower = followed(&process)?;
    Ok(Polled::Records(follower.next_batch(Arc::clone(&process.world)).await))
}

/// Tells of a block, and stores it.
pub async fn insert_block(process: Arc<Process>, block: InsertBlock) -> Result<()> {
    if process.world.traced() {
        let ids: Vec<String> = store::rows_of(&block)?.into_iter().map(|((.., id), _)| id).collect();
        process.world.tell(process.region, process.role, || format!("stores {}", ids.join(", ")));
    }
    store::insert_block(process, block).await
}

/// See [`feed::log::tail_log`].
pub async fn tail_log(process: Arc<Process>, starts: Vec<(PartitionId, StartAt)>) -> Result<Effect<(), Batch>> {
    ensure!(!starts.is_empty(), "nothing to follow");
    log::list_partitions(Arc::clone(&process), ()).await?;
    let (follower, process) = (follower(&process, &starts)?, Arc::clone(&process));
    Ok(kit::effect(move |()| {
        let (follower, process) = (Arc::clone(&follower), Arc::clone(&process));
        async move {
            let batch = follower.next_batch(Arc::clone(&process.world)).await;
            process.gate().await;
            Ok(batch)
        }
    }))
}
