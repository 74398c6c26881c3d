//! Records of the log, a batch at a time in one arena.

use bytes::Bytes;
use meridian_proto::{CONTENT_TYPE_EVENT, CONTENT_TYPE_WATERMARK, PartitionId};
use std::sync::Arc;

/// What a record says it is, by its `content-type` header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// [`CONTENT_TYPE_EVENT`].
    Event,
    /// [`CONTENT_TYPE_WATERMARK`].
    Watermark,
    /// Anything else, or no content type at all.
    Unknown,
}

impl Kind {
    /// The kind that a `content-type` stands for.
    pub fn of(content_type: &str) -> Self {
        match content_type {
            CONTENT_TYPE_EVENT => Self::Event,
            CONTENT_TYPE_WATERMARK => Self::Watermark,
            _ => Self::Unknown,
        }
    }
}

/// One record of the log, borrowed from its [`Batch`].
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Where it was read.
    pub partition: &'a PartitionId,
    /// Offset in this region's log.
    pub local_offset: u64,
    /// Offset in the region that wrote it first. In that region's own log it is the local offset, whatever a header says;
    /// elsewhere the mirror's header states it. [`Record::UNKNOWN_ORIGIN`] when the header is missing, twice there or malformed.
    pub offset: u64,
    /// Append time in the origin region, milliseconds since the Unix epoch; the local one when the origin is unknown.
    pub relayed_ms: i64,
    /// Append time in this region's log, milliseconds since the Unix epoch.
    pub appended_ms: i64,
    /// What the content type stands for.
    pub kind: Kind,
    /// The `content-type` header; empty when there is none.
    pub content_type: &'a str,
    /// The record's bytes.
    pub value: &'a [u8],
}

impl Record<'_> {
    /// The offset of a copy that does not say where it stood in its origin. A [`meridian_proto::Sequence`] takes it for a gap,
    /// so a reader that does not look stops rather than skips.
    pub const UNKNOWN_ORIGIN: u64 = u64::MAX;

    /// False for a record on another region's topic without one valid position header: nobody's mirror put it there.
    pub fn origin_known(&self) -> bool {
        self.offset != Self::UNKNOWN_ORIGIN
    }
}

#[derive(Clone, Copy, Debug)]
struct Meta {
    local_offset: u64,
    offset: u64,
    relayed_ms: i64,
    appended_ms: i64,
    value: (u32, u32),
    content_type: (u32, u32),
    partition: u16,
    kind: Kind,
}

/// Records in the order in which they were read: one allocation for their bytes, one for what is known about them.
/// Cloning shares both.
#[derive(Clone, Debug)]
pub struct Batch {
    partitions: Arc<[PartitionId]>,
    arena: Bytes,
    metas: Arc<[Meta]>,
}

impl Batch {
    /// A batch without records.
    pub fn empty() -> Self {
        Self { partitions: Arc::new([]), arena: Bytes::new(), metas: Arc::new([]) }
    }

    /// A batch of these records, for tests and fakes; `value`s, offsets and times are taken as given.
    pub fn of<'a>(records: impl IntoIterator<Item = Record<'a>>) -> Self {
        let mut partitions: Vec<PartitionId> = Vec::new();
        let mut builder = BatchBuilder::default();
        for record in records {
            let known = partitions.iter().position(|partition| partition == record.partition);
            let index = known.unwrap_or_else(|| {
                partitions.push(record.partition.clone());
                partitions.len() - 1
            });
            builder.push(index as u16, &record);
        }
        builder.take(&partitions.into())
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.metas.len()
    }

    /// Whether there is no record.
    pub fn is_empty(&self) -> bool {
        self.metas.is_empty()
    }

    /// Bytes of all records.
    pub fn bytes(&self) -> usize {
        self.arena.len()
    }

    /// The table that [`Batch::partition_index`] points into; the same for all batches of a follower.
    pub fn partitions(&self) -> &Arc<[PartitionId]> {
        &self.partitions
    }

    /// Which of [`Batch::partitions`] record `index` stands in.
    pub fn partition_index(&self, index: usize) -> usize {
        usize::from(self.metas[index].partition)
    }

    /// Record `index`, if there are as many.
    pub fn get(&self, index: usize) -> Option<Record<'_>> {
        self.metas.get(index).map(|meta| self.record(meta))
    }

    /// All records in the order of reading.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Record<'_>> + DoubleEndedIterator {
        self.metas.iter().map(|meta| self.record(meta))
    }

    /// The bytes of record `index`, shared with the batch: nothing is copied, and the batch's bytes live as long.
    ///
    /// # Panics
    /// When there are fewer records.
    pub fn value_bytes(&self, index: usize) -> Bytes {
        let (start, end) = self.metas[index].value;
        self.arena.slice(start as usize..end as usize)
    }

    fn record(&self, meta: &Meta) -> Record<'_> {
        let content_type = match meta.kind {
            Kind::Event => CONTENT_TYPE_EVENT,
            Kind::Watermark => CONTENT_TYPE_WATERMARK,
            Kind::Unknown => std::str::from_utf8(self.span(meta.content_type)).unwrap_or("(not UTF-8)"),
        };
        Record {
            partition: &self.partitions[usize::from(meta.partition)],
            local_offset: meta.local_offset,
            offset: meta.offset,
            relayed_ms: meta.relayed_ms,
            appended_ms: meta.appended_ms,
            kind: meta.kind,
            content_type,
            value: self.span(meta.value),
        }
    }

    fn span(&self, (start, end): (u32, u32)) -> &[u8] {
        &self.arena[start as usize..end as usize]
    }
}

/// Gathers records into buffers that are kept from batch to batch, and gives them away as exact copies:
/// two allocations a batch, none a record, and no slack that a long-lived slice would keep alive.
#[derive(Debug, Default)]
pub(super) struct BatchBuilder {
    arena: Vec<u8>,
    metas: Vec<Meta>,
}

impl BatchBuilder {
    pub(super) fn len(&self) -> usize {
        self.metas.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.arena.len()
    }

    /// Copies a record in; `record.partition` is not looked at.
    pub(super) fn push(&mut self, partition: u16, record: &Record<'_>) {
        let content_type = match record.kind {
            Kind::Unknown => self.copy(record.content_type.as_bytes()),
            Kind::Event | Kind::Watermark => (0, 0),
        };
        let value = self.copy(record.value);
        self.metas.push(Meta {
            local_offset: record.local_offset,
            offset: record.offset,
            relayed_ms: record.relayed_ms,
            appended_ms: record.appended_ms,
            value,
            content_type,
            partition,
            kind: record.kind,
        });
    }

    fn copy(&mut self, bytes: &[u8]) -> (u32, u32) {
        let start = self.arena.len() as u32;
        self.arena.extend_from_slice(bytes);
        (start, self.arena.len() as u32)
    }

    pub(super) fn take(&mut self, partitions: &Arc<[PartitionId]>) -> Batch {
        let (arena, metas) = (Bytes::copy_from_slice(&self.arena), Arc::from(self.metas.as_slice()));
        self.clear();
        Batch { partitions: Arc::clone(partitions), arena, metas }
    }

    pub(super) fn clear(&mut self) {
        self.arena.clear();
        self.metas.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_proto::{Sequence, Step, Topic};

    #[test]
    fn a_batch_gives_back_what_went_in() {
        let partition = PartitionId { topic: Topic { region: "iad".into(), generation: 1 }, partition: 3 };
        let given = |offset, content_type: &'static str, value: &'static [u8]| Record {
            partition: &partition,
            local_offset: offset + 1,
            offset,
            relayed_ms: 5,
            appended_ms: 7,
            kind: Kind::of(content_type),
            content_type,
            value,
        };
        let records = [
            given(10, CONTENT_TYPE_EVENT, b"one"),
            given(11, "text/plain", b""),
            given(Record::UNKNOWN_ORIGIN, CONTENT_TYPE_WATERMARK, b"three"),
        ];
        let batch = Batch::of(records);
        assert_eq!(batch.len(), 3);
        for (record, back) in records.iter().zip(batch.iter()) {
            assert_eq!(format!("{record:?}"), format!("{back:?}"));
        }
        assert_eq!(batch.value_bytes(2), "three");
        let unknown = batch.get(2).unwrap();
        assert!(!unknown.origin_known());
        assert_eq!(Sequence::starting_at(12).step(unknown.offset), Step::Gap { expected: 12 });
    }
}
