//! The functions that break a rule.

use crate::{database, log, pull, reads, services::cursor_key, store, world::Process};
use adapters::{
    clickhouse::{InsertBlock, Positions, Progress, SaveProgress},
    redpanda::{Batch, OutRecord, Record},
    scylla::{ChangeRange, ChangeRow},
};
use anyhow::Result;
use client::{Page, PullError};
use consumer::PullPage;
use meridian_proto::{CommitTime, Cursor, Event, PartitionId};
use mirror::Appended;
use prost::Message;
use sink::Polled;
use std::{collections::BTreeMap, sync::Arc, time::Duration};

pub async fn region_time_ahead(process: Arc<Process>, (): ()) -> Result<CommitTime> {
    let now = database::region_time(process, ()).await?;
    Ok(CommitTime(now.0 + 1_500_000))
}

pub async fn read_changes_before_the_bound(process: Arc<Process>, range: ChangeRange) -> Result<Vec<ChangeRow>> {
    // Reading took so long, and the bound was taken after it.
    database::read_changes_of_before(process, range, Duration::from_millis(1_900)).await
}

pub async fn append_and_go_on(process: Arc<Process>, records: Vec<OutRecord>) -> Result<Appended> {
    _ = log::append(&process, records, false).await;
    Ok(Appended::All)
}

pub async fn append_again(process: Arc<Process>, records: Vec<OutRecord>) -> Result<Appended> {
    while log::append(&process, records.clone(), false).await.is_err() {}
    Ok(Appended::All)
}

pub async fn load_kept_positions(process: Arc<Process>, (): ()) -> Result<Positions> {
    let mut found = store::load_positions(Arc::clone(&process), ()).await?;
    let state = process.world.state();
    found.rows = state.regions[process.region].kept.positions.values().cloned().collect();
    found.rows.iter_mut().for_each(|row| row.store.clone_from(&found.store));
    Ok(found)
}

pub async fn save_and_keep_positions(process: Arc<Process>, mut progress: SaveProgress) -> Result<()> {
    {
        let mut state = process.world.state();
        let place = &mut state.regions[process.region];
        for row in &mut progress.positions {
            row.store.clone_from(&place.store.id);
            place.kept.positions.insert((row.origin.clone(), row.generation, row.partition), row.clone());
        }
    }
    store::save_positions(process, progress).await
}

/// Takes a batch, then waits: dropped while it does, the batch is gone. What comes next is numbered as if nothing was.
pub async fn poll_and_jump(process: Arc<Process>, (): ()) -> Result<Polled> {
    let follower = reads::followed(&process)?;
    let batch = follower.next_batch(Arc::clone(&process.world)).await;
    process.short().await;
    Ok(Polled::Records(renumbered(&process, &batch)))
}

fn renumbered(process: &Process, batch: &Batch) -> Batch {
    let mut state = process.world.state();
    let numbers = &mut state.regions[process.region].kept.numbers;
    let number = |record: Record<'_>| {
        let next = numbers.entry((process.number, record.partition.clone())).or_insert(record.offset);
        let offset = *next;
        *next += 1;
        (record.origin_known(), offset)
    };
    let offsets: Vec<(bool, u64)> = batch.iter().map(number).collect();
    Batch::of(batch.iter().zip(offsets).map(|(record, (known, offset))| if known { Record { offset, ..record } } else { record }))
}

pub async fn insert_last_wins(process: Arc<Process>, block: InsertBlock) -> Result<()> {
    store::insert(process, block, true).await
}

/// Answers at once, and stores a while later, unless the process is killed or the store is away until then.
pub async fn insert_later(process: Arc<Process>, block: InsertBlock) -> Result<()> {
    let rows = store::rows_of(&block)?;
    let after_ms = process.draw(|random| random.between(200, 1_500));
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(after_ms)).await;
        let away = process.world.state().regions[process.region].store.down_until > process.world.now_ms();
        if !process.is_dead() && !away {
            store::put_rows(&process.world, process.region, rows, false);
        }
    });
    Ok(())
}

/// Saves where each partition stands as soon as its records are handed over.
pub async fn poll_and_commit(process: Arc<Process>, (): ()) -> Result<Polled> {
    let follower = reads::followed(&process)?;
    let batch = follower.next_batch(Arc::clone(&process.world)).await;
    let mut state = process.world.state();
    let store = &mut state.regions[process.region].store;
    let mut rows = store.own_positions();
    for row in &mut rows {
        let mine = |record: &Record<'_>| {
            record.origin_known()
                && record.partition.topic.region == row.origin
                && record.partition.topic.generation == row.generation
                && record.partition.partition == row.partition
        };
        if let Some(last) = batch.iter().rfind(mine).map(|record| (record.offset, record.local_offset)) {
            (row.next_offset, row.local_offset) = (last.0 + 1, last.1 + 1);
        }
    }
    store.save(SaveProgress { positions: rows, parked: Vec::new() });
    drop(state);
    Ok(Polled::Records(batch))
}

pub async fn read_progress_of_those_there(process: Arc<Process>, (): ()) -> Result<Progress> {
    let mut progress = store::read_progress(process, ()).await?;
    progress.rows.retain(|row| row.through_us > 0);
    let mut counts: BTreeMap<(String, u32), u16> = BTreeMap::new();
    progress.rows.iter().for_each(|row| *counts.entry((row.origin.clone(), row.generation)).or_default() += 1);
    progress.rows.iter_mut().for_each(|row| row.partitions = counts[&(row.origin.clone(), row.generation)]);
    Ok(progress)
}

pub async fn pull_and_stay(process: Arc<Process>, pull: PullPage) -> Result<Result<Page, PullError>> {
    let before = pull.cursor.clone();
    let mut pulled = pull::pull_page(process, pull).await?;
    if let Ok(page) = &mut pulled
        && page.events.is_empty()
    {
        page.cursor = before;
    }
    Ok(pulled)
}

/// A page whose cursor counts the records of this region's copies.
pub async fn pull_by_local_offset(process: Arc<Process>, pull: PullPage) -> Result<Result<Page, PullError>> {
    own_page(process, pull, |_, from, high| from..high).await
}

/// A page that begins at most so many records before the end.
pub async fn pull_and_jump(process: Arc<Process>, pull: PullPage) -> Result<Result<Page, PullError>> {
    own_page(process, pull, |_, from, high| from.max(high.saturating_sub(6))..high).await
}

async fn own_page(
    process: Arc<Process>,
    PullPage { tenant, cursor, .. }: PullPage,
    span: fn(&PartitionId, u64, u64) -> std::ops::Range<u64>,
) -> Result<Result<Page, PullError>> {
    process.short().await;
    let mut at = if cursor.is_empty() { Cursor::default() } else { Cursor::decode(&cursor, &tenant, &cursor_key())? };
    let region = pull::regions_asked(&process).first().copied().unwrap_or(process.region);
    let mut found = Vec::new();
    let state = process.world.state();
    let log = &state.regions[region].log;
    for id in log.ids() {
        let Some(partition) = log.get(&id) else { continue };
        let from = at.next.get(&id).copied().unwrap_or_default().min(partition.high());
        let span = span(&id, from, partition.high());
        at.next.insert(id, span.end);
        let records = partition.records.iter().skip(span.start as usize).take((span.end - span.start.min(span.end)) as usize);
        let mine = records.filter_map(|stored| Event::decode(stored.value.clone()).ok()).filter(|event| event.tenant == tenant);
        found.extend(mine.filter_map(pull::feed_event));
    }
    Ok(Ok(Page { events: found, cursor: at.encode(&tenant, &cursor_key()), more: false }))
}
