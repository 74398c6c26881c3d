//! One partition on its way into the local log: what was received, what is being appended. Pure.

use crate::{
    Place,
    wire::v1::{Frame, KnownContentType, Record},
};
use adapters::redpanda::{DeadLetter, OutRecord};
use bytes::Bytes;
use meridian_proto::{CONTENT_TYPE_EVENT, CONTENT_TYPE_WATERMARK, LogPosition, Origin, PartitionId, Sequence, Step};
use std::{
    borrow::Cow,
    collections::{HashMap, VecDeque},
    ops::RangeInclusive,
    sync::Arc,
};

/// Content type of the empty record that stands where the local log refused one: its position stays taken, its reader parks it.
pub const CONTENT_TYPE_REFUSED: &str = "application/vnd.meridian.refused.v1";

/// What the local log refused so far.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// Positions refused on their own, and why.
    pub reasons: HashMap<LogPosition, String>,
    /// An append of several was refused: up to this offset its partition's records go one by one, until the bad one is found.
    pub one_by_one_through: HashMap<PartitionId, u64>,
}

impl Refusals {
    /// Notes a refusal; false when it was the stand-in that was refused.
    pub fn note(&mut self, partition: &PartitionId, offsets: RangeInclusive<u64>, reason: String) -> bool {
        if offsets.start() < offsets.end() {
            self.one_by_one_through.insert(partition.clone(), *offsets.end());
            return true;
        }
        self.reasons.insert(LogPosition { partition: partition.clone(), offset: *offsets.start() }, reason).is_none()
    }

    /// Forgets what is in the log by now.
    pub fn passed(&mut self, partition: &PartitionId, through: u64) {
        if !self.reasons.is_empty() || !self.one_by_one_through.is_empty() {
            self.reasons.retain(|position, _| position.partition != *partition || position.offset > through);
            self.one_by_one_through.retain(|held, last| held != partition || *last > through);
        }
    }

    fn records_max(&self, partition: &PartitionId, next: u64, records_max: usize) -> usize {
        match self.one_by_one_through.get(partition) {
            Some(through) if next <= *through => 1,
            _ => records_max,
        }
    }
}

/// A record is missing: the next one lies above the one expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    pub expected: u64,
    pub found: u64,
}

/// What one frame brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Accepted {
    pub taken: usize,
    pub dropped: usize,
    pub bytes: usize,
    pub gap: Option<Gap>,
}

/// What goes to the local log next, of one partition, in order.
#[derive(Clone, Debug)]
pub(crate) struct Append {
    /// Dead letters that must be acknowledged first.
    pub letters: Vec<DeadLetter>,
    pub records: Vec<OutRecord>,
    pub bytes: usize,
    pub offsets: RangeInclusive<u64>,
    /// Append time of the last record in the origin.
    pub as_of_ms: i64,
}

/// The state of one partition during one session.
pub(crate) struct Lane {
    pub partition: Arc<PartitionId>,
    topic: String,
    sequence: Sequence,
    queue: VecDeque<OutRecord>,
    /// There is never a second append under way, which is what keeps the order.
    in_flight: bool,
    as_of_ms: i64,
}

impl Lane {
    pub fn new(place: Place) -> Self {
        Self {
            topic: place.partition.topic.to_string(),
            partition: Arc::new(place.partition),
            sequence: Sequence::starting_at(place.next),
            queue: VecDeque::new(),
            in_flight: false,
            as_of_ms: place.as_of_ms,
        }
    }

    pub fn is_of(&self, frame: &Frame) -> bool {
        u32::from(self.partition.partition) == frame.partition && self.topic == frame.topic
    }

    /// Takes what is new of a frame, drops what was there before, refuses to jump. What precedes a gap is taken.
    pub fn accept(&mut self, frame: Frame) -> Accepted {
        let mut accepted = Accepted::default();
        for (offset, record) in (frame.first_offset..).zip(frame.records) {
            match self.sequence.step(offset) {
                Step::Take => {
                    accepted.taken += 1;
                    accepted.bytes += record.value.len();
                    self.queue.push_back(copy_of(&self.partition, offset, record));
                }
                Step::Drop => accepted.dropped += 1,
                Step::Gap { expected } => {
                    accepted.gap = Some(Gap { expected, found: offset });
                    break;
                }
            }
        }
        accepted
    }

    /// The next records to append, unless some are under way or none are there.
    pub fn take_append(&mut self, records_max: usize, bytes_max: usize, refusals: &Refusals) -> Option<Append> {
        let first = self.queue.front()?.origin?.offset;
        if self.in_flight {
            return None;
        }
        let records_max = refusals.records_max(&self.partition, first, records_max);
        let (mut count, mut bytes) = (0, 0);
        for record in self.queue.iter().take(records_max) {
            if count > 0 && bytes + record.value.len() > bytes_max {
                break;
            }
            count += 1;
            bytes += record.value.len();
        }
        let mut records: Vec<OutRecord> = self.queue.drain(..count).collect();
        self.in_flight = true;
        let last = records.last().and_then(|record| record.origin)?;
        let letters = stand_in(&mut records, &refusals.reasons);
        Some(Append { letters, records, bytes, offsets: first..=last.offset, as_of_ms: last.append_time_ms })
    }

    /// The append is in the local log.
    pub fn appended(&mut self, as_of_ms: i64) {
        self.in_flight = false;
        self.as_of_ms = self.as_of_ms.max(as_of_ms);
    }

    /// The origin had nothing more at this time.
    pub fn caught_up(&mut self, now_ms: i64) {
        if !self.in_flight && self.queue.is_empty() {
            self.as_of_ms = self.as_of_ms.max(now_ms);
        }
    }

    /// Everything that the origin's log had up to this time is in the local one, milliseconds since the Unix epoch; 0: unknown.
    pub fn as_of_ms(&self) -> i64 {
        self.as_of_ms
    }
}

/// Of the record's own headers only the content type is carried: a reserved name that somebody put there stays behind.
fn copy_of(partition: &Arc<PartitionId>, offset: u64, record: Record) -> OutRecord {
    let content_type = match record.known() {
        KnownContentType::Event => Cow::Borrowed(CONTENT_TYPE_EVENT),
        KnownContentType::Watermark => Cow::Borrowed(CONTENT_TYPE_WATERMARK),
        KnownContentType::Unspecified => Cow::Owned(record.content_type),
    };
    let origin = Some(Origin { offset, append_time_ms: record.append_time_ms });
    OutRecord { partition: Arc::clone(partition), content_type, value: record.value, origin }
}

fn stand_in(records: &mut [OutRecord], refused: &HashMap<LogPosition, String>) -> Vec<DeadLetter> {
    let mut letters = Vec::new();
    if refused.is_empty() {
        return letters;
    }
    for record in records {
        let Some(origin) = record.origin else { continue };
        let position = LogPosition { partition: (*record.partition).clone(), offset: origin.offset };
        let Some(reason) = refused.get(&position) else { continue };
        let content_type = std::mem::replace(&mut record.content_type, Cow::Borrowed(CONTENT_TYPE_REFUSED));
        let value = std::mem::replace(&mut record.value, Bytes::new());
        letters.push(DeadLetter { position, reason: reason.clone(), content_type: content_type.into_owned(), value });
    }
    letters
}
