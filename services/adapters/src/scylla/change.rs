//! Rule R5: the change log. Windows are storage buckets only.

use super::{Ack, Scylla};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use meridian_proto::{CommitId, CommitTime};
use scylla::response::PagingState;
use std::{ops::ControlFlow, sync::Arc};

/// Windows that one read may cross: a day of windows of 10 s.
const WINDOWS_MAX: u64 = 8640;
/// Windows read at a time.
const IN_FLIGHT: usize = 4;

/// One row of the change log, to be written.
#[derive(Clone, Debug)]
pub struct CommitRow {
    /// Generation of the own region.
    pub generation: u32,
    /// Partition of the row's events.
    pub partition: u16,
    /// The row's commit id.
    pub row: CommitId,
    /// Bytes of a `meridian.event.v1.Change`.
    pub change: Bytes,
    /// How far the write must have come.
    pub ack: Ack,
}

/// Rows of the change log of the own region with `after` < commit id and commit time ≤ `through`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeRange {
    /// Generation of the own region.
    pub generation: u32,
    /// The partition.
    pub partition: u16,
    /// Not included.
    pub after: CommitId,
    /// Included.
    pub through: CommitTime,
}

/// One row of the change log, as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeRow {
    /// The row's commit id.
    pub row: CommitId,
    /// Bytes of a `meridian.event.v1.Change`.
    pub change: Bytes,
}

fn window_of(time: CommitTime, window_ms: u64) -> u64 {
    time.0 / (window_ms * 1000)
}

/// Writes one row.
///
/// # Errors
/// When it fails or is not answered in time: the row may be there.
pub async fn commit_event(scylla: Arc<Scylla>, CommitRow { generation, partition, row, change, ack }: CommitRow) -> Result<()> {
    let window = window_of(row.time(), scylla.window_ms(generation).await?);
    let mut statement = scylla.statements()?.commit_event.clone();
    statement.set_consistency(ack.consistency());
    let key = (scylla.region.as_str(), i32::try_from(generation)?, i32::from(partition), i64::try_from(window)?);
    let id = row.to_bytes();
    scylla.session.execute_unpaged(&statement, (key.0, key.1, key.2, key.3, id.as_slice(), change)).await.context("commit event")?;
    Ok(())
}

/// Reads a range in order of commit id, over windows and pages, at LOCAL_QUORUM.
///
/// # Errors
/// When a statement fails or is not answered in time, or the range crosses more than a day: read it piece by piece.
pub async fn read_changes(scylla: Arc<Scylla>, range: ChangeRange) -> Result<Vec<ChangeRow>> {
    if range.after >= CommitId::last_at(range.through) {
        return Ok(Vec::new());
    }
    let window_ms = scylla.window_ms(range.generation).await?;
    let (first, last) = (window_of(range.after.time(), window_ms), window_of(range.through, window_ms));
    ensure!(last - first < WINDOWS_MAX, "the range crosses {} windows, at most {WINDOWS_MAX} are read at once", last - first + 1);
    let read = |window| read_window(Arc::clone(&scylla), range, window);
    let windows: Vec<Vec<ChangeRow>> = stream::iter(first..=last).map(read).buffered(IN_FLIGHT).try_collect().await?;
    Ok(windows.into_iter().flatten().collect())
}

async fn read_window(scylla: Arc<Scylla>, range: ChangeRange, window: u64) -> Result<Vec<ChangeRow>> {
    let statement = &scylla.statements()?.read_changes;
    let (after, through) = (range.after.to_bytes(), CommitId::last_at(range.through).to_bytes());
    let key = (scylla.region.as_str(), i32::try_from(range.generation)?, i32::from(range.partition), i64::try_from(window)?);
    let (mut rows, mut paging) = (Vec::new(), PagingState::start());
    loop {
        let values = (key.0, key.1, key.2, key.3, after.as_slice(), through.as_slice());
        let (page, next) = scylla.session.execute_single_page(statement, values, paging).await.context("read changes")?;
        for row in page.into_rows_result()?.rows::<(&[u8], Bytes)>()? {
            let (id, change) = row?;
            rows.push(ChangeRow { row: CommitId::from_bytes(id).context("a commit id has 16 bytes")?, change });
        }
        match next.into_paging_control_flow() {
            ControlFlow::Break(()) => return Ok(rows),
            ControlFlow::Continue(state) => paging = state,
        }
    }
}
