//! Records of the own log as frames for a peer. Pure.

use crate::wire::v1::{Frame, KnownContentType, Record};
use adapters::redpanda::{self, Batch, Kind};

/// Cuts a batch into frames: one partition each, in order, without holes, at most about `bytes_max` (one record may be more).
/// A hole in the log ends a frame, so the receiver sees it. Values are shared with the batch, not copied.
pub fn frames_of(batch: &Batch, bytes_max: usize) -> Vec<Frame> {
    let mut open: Vec<Option<Open>> = Vec::new();
    open.resize_with(batch.partitions().len(), || None);
    let mut frames = Vec::with_capacity(open.len());
    for (index, record) in batch.iter().enumerate() {
        let slot = &mut open[batch.partition_index(index)];
        if let Some(full) = slot.take_if(|open| open.next() != record.offset || open.bytes + record.value.len() > bytes_max) {
            frames.push(full.frame);
        }
        let current = slot.get_or_insert_with(|| Open::at(&record));
        current.bytes += record.value.len();
        current.frame.records.push(wire_record(&record, batch, index));
    }
    frames.extend(open.into_iter().flatten().map(|open| open.frame));
    frames
}

struct Open {
    frame: Frame,
    bytes: usize,
}

impl Open {
    fn at(record: &redpanda::Record<'_>) -> Self {
        let partition = u32::from(record.partition.partition);
        let frame = Frame { topic: record.partition.topic.to_string(), partition, first_offset: record.offset, ..Frame::default() };
        Self { frame, bytes: 0 }
    }

    fn next(&self) -> u64 {
        self.frame.first_offset + self.frame.records.len() as u64
    }
}

fn wire_record(record: &redpanda::Record<'_>, batch: &Batch, index: usize) -> Record {
    let (known, content_type) = match record.kind {
        Kind::Event => (KnownContentType::Event, String::new()),
        Kind::Watermark => (KnownContentType::Watermark, String::new()),
        Kind::Unknown => (KnownContentType::Unspecified, record.content_type.to_owned()),
    };
    Record { append_time_ms: record.relayed_ms, content_type, value: batch.value_bytes(index), known: known.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_proto::{CONTENT_TYPE_EVENT, PartitionId};

    fn record<'a>(partition: &'a PartitionId, offset: u64, content_type: &'a str, value: &'a [u8]) -> redpanda::Record<'a> {
        let kind = Kind::of(content_type);
        redpanda::Record { partition, local_offset: offset, offset, relayed_ms: 5, appended_ms: 6, kind, content_type, value }
    }

    /// Frames as `partition:first_offset+count`.
    fn check(offsets: &[(u16, u64)], bytes_max: usize, expected: &[&str]) {
        let partitions = [0, 1].map(|partition| PartitionId { topic: "events.iad.g1".parse().unwrap(), partition });
        let batch =
            Batch::of(offsets.iter().map(|&(p, offset)| record(&partitions[usize::from(p)], offset, CONTENT_TYPE_EVENT, b"12345678")));
        let frames = frames_of(&batch, bytes_max);
        let mut seen: Vec<_> = frames.iter().map(|f| format!("{}:{}+{}", f.partition, f.first_offset, f.records.len())).collect();
        seen.sort();
        assert_eq!(seen, expected);
    }

    #[test]
    fn frames_hold_one_partition_without_holes_within_their_size() {
        check(&[(0, 5), (1, 9), (0, 6), (1, 10)], 1000, &["0:5+2", "1:9+2"]);
        check(&[(0, 5), (0, 6), (0, 7)], 16, &["0:5+2", "0:7+1"]);
        check(&[(0, 5), (0, 6)], 1, &["0:5+1", "0:6+1"]);
        check(&[(0, 5), (0, 7)], 1000, &["0:5+1", "0:7+1"]);
        check(&[], 1000, &[]);
    }

    #[test]
    fn only_an_unknown_content_type_travels_as_text() {
        let partition = PartitionId { topic: "events.iad.g1".parse().unwrap(), partition: 0 };
        let batch = Batch::of([record(&partition, 0, CONTENT_TYPE_EVENT, b"x"), record(&partition, 1, "text/plain", b"y")]);
        let frames = frames_of(&batch, 1000);
        let texts: Vec<_> = frames[0].records.iter().map(|record| (record.known(), record.content_type.as_str())).collect();
        assert_eq!(texts, [(KnownContentType::Event, ""), (KnownContentType::Unspecified, "text/plain")]);
    }
}
