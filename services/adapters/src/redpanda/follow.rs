//! Following partitions as they grow.

use super::{Batch, RedpandaConfig};
use anyhow::{Result, bail};
use meridian_proto::PartitionId;
use std::{sync::Arc, time::Duration};

/// Where a follower begins in one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartAt {
    /// The oldest record kept.
    Oldest,
    /// What is appended from now on; a partition that does not exist yet is read from its beginning.
    Latest,
    /// The first record whose origin offset is `next` or greater. In the log of the origin region itself an offset outside
    /// of what is kept is an error; in a copy, one before what is kept is.
    Offset {
        /// Origin offset to read next.
        next: u64,
        /// Local offset at which it was seen, if known. Saves the search when right; harmless when wrong.
        local_hint: Option<u64>,
    },
}

/// What to follow, and how much to gather.
#[derive(Clone, Debug)]
pub struct FollowSpec {
    /// Partitions; those that do not exist yet are waited for.
    pub partitions: Vec<(PartitionId, StartAt)>,
    /// Region whose log this is: on its own topics the position header is ignored.
    pub own_region: String,
    /// A batch is handed over when it has this many bytes,
    pub batch_bytes_max: usize,
    /// or this many records,
    pub batch_records_max: usize,
    /// or when its first record has waited for this long. Zero: what is there at once.
    pub linger: Duration,
}

/// A thread of its own that reads partitions in order and hands over batches through a bounded queue.
pub struct Follower {}

impl Follower {
    /// Starts to follow. Waits for nothing: a broker that is away is waited for by the thread.
    ///
    /// # Errors
    /// When the settings are refused or no thread can be had.
    pub fn start(_config: &RedpandaConfig, _spec: FollowSpec) -> Result<Arc<Self>> {
        bail!("not yet")
    }

    /// The next records: at least one, or none after a second without any. Safe to drop while it waits.
    ///
    /// # Errors
    /// When the follower has stopped, and why: an offset that is not kept, never a jump. It stays stopped: start a new one.
    pub async fn next_batch(self: Arc<Self>, (): ()) -> Result<Batch> {
        bail!("not yet")
    }
}
