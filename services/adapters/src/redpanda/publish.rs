//! Appending to the log.

use super::RedpandaConfig;
use anyhow::{Result, bail};
use bytes::Bytes;
use meridian_proto::{CONTENT_TYPE_EVENT, CONTENT_TYPE_WATERMARK, LogPosition, Origin, PartitionId};
use std::{borrow::Cow, sync::Arc};

/// A record to append.
#[derive(Clone, Debug)]
pub struct OutRecord {
    /// Where to. Shared, so that a record costs no allocation.
    pub partition: Arc<PartitionId>,
    /// The `content-type` header.
    pub content_type: Cow<'static, str>,
    /// The record's bytes.
    pub value: Bytes,
    /// On a copy: its place in the region that wrote it first.
    pub origin: Option<Origin>,
}

impl OutRecord {
    /// An event of this region.
    pub fn event(partition: &Arc<PartitionId>, value: Bytes) -> Self {
        Self { partition: Arc::clone(partition), content_type: Cow::Borrowed(CONTENT_TYPE_EVENT), value, origin: None }
    }

    /// A watermark of this region.
    pub fn watermark(partition: &Arc<PartitionId>, value: Bytes) -> Self {
        Self { partition: Arc::clone(partition), content_type: Cow::Borrowed(CONTENT_TYPE_WATERMARK), value, origin: None }
    }
}

/// What could not be read, stored or sent.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    /// Where it stands in the log, as origin position.
    pub position: LogPosition,
    /// Why, for people.
    pub reason: String,
    /// Its content type.
    pub content_type: String,
    /// Its bytes.
    pub value: Bytes,
}

/// An idempotent producer that is made anew after a fatal error.
pub struct Publisher {}

impl Publisher {
    /// Makes the producer; waits for no broker.
    ///
    /// # Errors
    /// When the settings are refused.
    pub async fn connect(_config: &RedpandaConfig) -> Result<Arc<Self>> {
        bail!("not yet")
    }

    /// Appends the records, keeping their order in each partition, and waits until all are acknowledged, for 30 s at most.
    ///
    /// # Errors
    /// "Unknown": of each partition's records a prefix was appended, possibly all, possibly none. Repeat, or read the log.
    pub async fn publish(self: Arc<Self>, _records: Vec<OutRecord>) -> Result<()> {
        bail!("not yet")
    }

    /// Appends to `<topic>.dlq`, with headers `reason`, `origin-topic`, `origin-partition` and `origin-offset`, acknowledged.
    ///
    /// # Errors
    /// As for [`Publisher::publish`].
    pub async fn dead_letter(self: Arc<Self>, _letter: DeadLetter) -> Result<()> {
        bail!("not yet")
    }
}
