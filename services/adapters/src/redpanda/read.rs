//! Random reads of the log.

use super::{Batch, RedpandaConfig};
use anyhow::{Result, bail};
use meridian_proto::PartitionId;
use std::sync::Arc;

/// What a partition keeps, in local offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The oldest record kept; equal to `high` when there is none.
    pub low: u64,
    /// One past the newest.
    pub high: u64,
}

/// A read from one place on.
#[derive(Clone, Debug)]
pub struct ReadSpan {
    /// Where.
    pub partition: PartitionId,
    /// Local offset of the first record wanted.
    pub from_local: u64,
    /// At most this many records.
    pub records_max: usize,
    /// At most about this many bytes: the record that reaches it is the last.
    pub bytes_max: usize,
}

/// A few pooled consumers for reads here and there. A read that goes on where an earlier one ended is cheapest.
pub struct LogReader {}

impl LogReader {
    /// Makes the pool; waits for no broker. `own_region` is the region whose log this is.
    ///
    /// # Errors
    /// When the settings are refused.
    pub async fn connect(_config: &RedpandaConfig, _own_region: &str) -> Result<Arc<Self>> {
        bail!("not yet")
    }

    /// What the partition keeps.
    ///
    /// # Errors
    /// When the partition does not exist or the log does not answer in time.
    pub async fn bounds(self: Arc<Self>, _partition: PartitionId) -> Result<Bounds> {
        bail!("not yet")
    }

    /// Records from a local offset on, up to the end of the log as it is now, without waiting for more. At the end: an empty batch.
    ///
    /// # Errors
    /// When the offset is not kept (any more), or the log does not answer in time.
    pub async fn read_span(self: Arc<Self>, _span: ReadSpan) -> Result<Batch> {
        bail!("not yet")
    }

    /// Local offset of the first record whose origin offset is the given one or greater; the end of the log when there is none.
    /// In the origin region's own log it is the same number.
    ///
    /// # Errors
    /// As for [`LogReader::read_span`].
    pub async fn find_position(self: Arc<Self>, (_partition, _offset): (PartitionId, u64)) -> Result<u64> {
        bail!("not yet")
    }

    /// The newest record, as a batch of one; empty when the partition keeps none.
    ///
    /// # Errors
    /// As for [`LogReader::read_span`].
    pub async fn last_record(self: Arc<Self>, _partition: PartitionId) -> Result<Batch> {
        bail!("not yet")
    }
}
