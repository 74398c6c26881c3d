//! Topics and positions: the same in every region, whatever the offsets of the local copies are.

use std::{fmt, str::FromStr};

/// Header that tells what a record is.
pub const HEADER_CONTENT_TYPE: &str = "content-type";
/// Header of a mirrored copy: [`Origin`]. Stripped from anything that another party put there.
pub const HEADER_POSITION: &str = "meridian-position";
/// `content-type` of an [`crate::Event`].
pub const CONTENT_TYPE_EVENT: &str = "application/vnd.meridian.event.v1+protobuf";
/// `content-type` of a [`crate::Watermark`].
pub const CONTENT_TYPE_WATERMARK: &str = "application/vnd.meridian.watermark.v1+protobuf";

/// A topic of events: `events.<region>.g<generation>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Topic {
    /// Region whose relay writes it.
    pub region: String,
    /// New whenever the log is made new or is found to have lost acknowledged records.
    pub generation: u32,
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "events.{}.g{}", self.region, self.generation)
    }
}

/// The text is not the name of a topic of events.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not the name of a topic of events (events.<region>.g<generation>)")]
pub struct NotATopic(String);

impl FromStr for Topic {
    type Err = NotATopic;
    fn from_str(text: &str) -> Result<Self, NotATopic> {
        let parse = || {
            let (region, generation) = text.strip_prefix("events.")?.rsplit_once(".g")?;
            let region_ok = (2..=16).contains(&region.len()) && region.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
            let generation_ok = generation.bytes().all(|b| b.is_ascii_digit()) && !generation.starts_with('0');
            (region_ok && generation_ok).then_some(())?;
            Some(Self { region: region.into(), generation: generation.parse().ok()? })
        };
        parse().ok_or_else(|| NotATopic(text.into()))
    }
}

/// One partition of one topic of events.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionId {
    /// The topic.
    pub topic: Topic,
    /// The partition.
    pub partition: u16,
}

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.partition)
    }
}

/// A record's place in the log: (topic, partition, origin offset). Equal in every region.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogPosition {
    /// Topic and partition.
    pub partition: PartitionId,
    /// Offset in the region that wrote the topic first.
    pub offset: u64,
}

/// What a mirror stamps on a copy, as the value of [`HEADER_POSITION`]: 16 bytes, both numbers big endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Offset of the record in the region that wrote it first.
    pub offset: u64,
    /// Append time there, milliseconds since the Unix epoch.
    pub append_time_ms: i64,
}

impl Origin {
    /// The header's bytes.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.offset.to_be_bytes());
        bytes[8..].copy_from_slice(&self.append_time_ms.to_be_bytes());
        bytes
    }

    /// Reads the header's bytes; `None` for any other length.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: [u8; 16] = bytes.try_into().ok()?;
        let [offset, time] = [0, 8].map(|start| std::array::from_fn(|k| bytes[start + k]));
        Some(Self { offset: u64::from_be_bytes(offset), append_time_ms: i64::from_be_bytes(time) })
    }
}

/// What a reader at some place does with the next record it meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is the one expected.
    Take,
    /// It was taken before.
    Drop,
    /// Records between are missing: stop loudly.
    Gap {
        /// The offset that should have come.
        expected: u64,
    },
}

/// A reader's place in one partition. Origin offsets are dense (no transactions, no compaction), so
/// at n the reader takes n, drops what is below, and stops above.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sequence {
    next: u64,
}

impl Sequence {
    /// A reader that expects `next`.
    pub fn starting_at(next: u64) -> Self {
        Self { next }
    }

    /// The offset expected next.
    pub fn next(self) -> u64 {
        self.next
    }

    /// Judges the record at `offset`, and moves past it if it is the one expected.
    pub fn step(&mut self, offset: u64) -> Step {
        match offset.cmp(&self.next) {
            std::cmp::Ordering::Equal => {
                self.next += 1;
                Step::Take
            }
            std::cmp::Ordering::Less => Step::Drop,
            std::cmp::Ordering::Greater => Step::Gap { expected: self.next },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_takes_each_offset_once_and_never_jumps() {
        let mut sequence = Sequence::starting_at(5);
        let steps = [4, 5, 5, 6, 8, 7].map(|offset| sequence.step(offset));
        assert_eq!(steps, [Step::Drop, Step::Take, Step::Drop, Step::Take, Step::Gap { expected: 7 }, Step::Take]);
    }

    #[test]
    fn topic_names_read_back_and_nothing_else_does() {
        let topic = Topic { region: "iad".into(), generation: 7 };
        assert_eq!(topic.to_string(), "events.iad.g7");
        assert_eq!("events.iad.g7".parse::<Topic>().unwrap(), topic);
        for text in [
            "events.iad.g0",
            "events.iad.g07",
            "events.iad",
            "events..g1",
            "events.iad.g1.dlq",
            "events.IAD.g1",
            "events.iad.g",
            "events.iad.g-1",
        ] {
            assert!(text.parse::<Topic>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_position_header_reads_back() {
        let origin = Origin { offset: u64::MAX - 1, append_time_ms: -3 };
        assert_eq!(Origin::from_bytes(&origin.to_bytes()), Some(origin));
        assert_eq!(Origin::from_bytes(&[0; 15]), None);
    }
}
