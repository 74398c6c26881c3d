//! Where the sink stands in one partition: its sequence of offsets and its chain of watermarks.

use crate::Followed;
use adapters::{
    clickhouse::{ParkedRow, PositionRow},
    redpanda::{Record, StartAt},
};
use meridian_proto::{Chain, ChainStep, CommitTime, PartitionId, Sequence, Step, Watermark};

/// Where to begin in a partition of which the store says `row`. A partition of which nothing was read is read from the oldest record kept.
pub fn start_at(row: Option<&PositionRow>) -> StartAt {
    match row {
        Some(row) if row.next_offset > 0 => StartAt::Offset { next: row.next_offset, local_hint: Some(row.local_offset) },
        _ => StartAt::Oldest,
    }
}

/// The row of a partition, if the store has one.
pub fn row_of<'a>(rows: &'a [PositionRow], id: &PartitionId) -> Option<&'a PositionRow> {
    rows.iter().find(|row| row.origin == id.topic.region && row.generation == id.topic.generation && row.partition == id.partition)
}

/// One partition's state.
#[derive(Debug)]
pub struct Lane {
    pub id: PartitionId,
    partitions: u16,
    /// `None` until the first record: then it tells where the log begins.
    sequence: Option<Sequence>,
    local_offset: u64,
    /// Records before the first one read had been trimmed from the log: the first watermark may speak of them.
    trimmed: bool,
    chain: Option<Chain>,
    gap: Option<(u64, u64)>,
    /// Why nothing more is read from here.
    pub stopped: Option<String>,
    /// Whether the store doesn't know yet where this lane stands.
    pub moved: bool,
}

impl Lane {
    /// The state that the store holds, or that of a partition which has not been read.
    pub fn resume(Followed { id, partitions }: Followed, row: Option<&PositionRow>) -> Self {
        let known = row.filter(|row| row.next_offset > 0);
        let chain = known.filter(|row| row.through_us > 0);
        let gap = known.filter(|row| row.gap_through_us > 0);
        Self {
            id,
            partitions,
            sequence: known.map(|row| Sequence::starting_at(row.next_offset)),
            local_offset: known.map_or(0, |row| row.local_offset),
            trimmed: known.is_some_and(|row| row.through_us == 0 && row.since_us > 0),
            chain: chain.map(|row| Chain::starting_with(CommitTime(row.since_us), CommitTime(row.through_us))),
            gap: gap.map(|row| (row.gap_from_us, row.gap_through_us)),
            stopped: None,
            // The store has to know of every partition: one that it doesn't know of makes an answer incomplete.
            moved: row.is_none_or(|row| row.partitions != partitions),
        }
    }

    /// Judges the record's offset; only the next one in sequence is taken. A gap stops the lane for good.
    pub fn takes(&mut self, record: &Record<'_>) -> bool {
        if self.stopped.is_some() {
            return false;
        }
        let sequence = match &mut self.sequence {
            Some(sequence) => sequence,
            None => {
                self.trimmed = record.offset > 0;
                self.sequence.insert(Sequence::starting_at(record.offset))
            }
        };
        match sequence.step(record.offset) {
            Step::Take => {
                self.local_offset = record.local_offset + 1;
                self.moved = true;
                true
            }
            Step::Drop => false,
            Step::Gap { expected } => {
                let why = format!("{}: offset {expected} should have come, {} came: records are missing", self.id, record.offset);
                tracing::error!(partition = %self.id, expected, found = record.offset, "records are missing from the log: this partition stops");
                self.stopped = Some(why);
                false
            }
        }
    }

    /// Takes a watermark that stands here.
    ///
    /// # Errors
    /// Why it is none of this partition.
    pub fn advance(&mut self, watermark: &Watermark) -> Result<(), &'static str> {
        let topic = &self.id.topic;
        let (from, through) = (CommitTime(watermark.from_us), CommitTime(watermark.through_us));
        if watermark.region != topic.region
            || watermark.generation != topic.generation
            || watermark.partition != u32::from(self.id.partition)
        {
            return Err("a watermark of another partition");
        }
        if from > through || through.0 == 0 || i64::try_from(through.0).is_err() {
            return Err("a watermark whose interval is none");
        }
        let Some(chain) = &mut self.chain else {
            // After a trimmed beginning the first watermark only says where knowledge begins.
            self.chain = Some(Chain::starting_with(if self.trimmed { through } else { from }, through));
            return Ok(());
        };
        match chain.advance(from, through) {
            ChainStep::Advanced => self.gap = self.gap.filter(|(_, gap_through)| *gap_through > chain.through.0),
            ChainStep::Known => {}
            ChainStep::Gap => {
                if self.gap.is_none() {
                    tracing::error!(partition = %self.id, stands = chain.through.0, from = from.0, "watermarks do not chain: completeness stands still");
                    self.gap = Some((chain.through.0, from.0));
                }
            }
        }
        Ok(())
    }

    /// What the store is to know of this lane.
    pub fn row(&self, store: &str, stored_at: i64) -> PositionRow {
        let (gap_from_us, gap_through_us) = self.gap.unwrap_or_default();
        let next_offset = self.sequence.map_or(0, Sequence::next);
        // Before the first watermark, `since` 1 keeps the fact that the beginning was trimmed.
        let (since_us, through_us) = self.chain.map_or((u64::from(self.trimmed), 0), |chain| (chain.since.0, chain.through.0));
        PositionRow {
            store: store.into(),
            origin: self.id.topic.region.clone(),
            generation: self.id.topic.generation,
            partition: self.id.partition,
            partitions: self.partitions,
            next_offset,
            local_offset: self.local_offset,
            since_us,
            through_us,
            gap_from_us,
            gap_through_us,
            stored_at,
        }
    }

    /// The row of a record that could not be read.
    pub fn parked(&self, offset: u64, reason: String) -> ParkedRow {
        let topic = &self.id.topic;
        let (partition, partitions) = (self.id.partition, self.partitions);
        ParkedRow {
            origin: topic.region.clone(),
            generation: topic.generation,
            partition,
            offset,
            partitions,
            state: 0,
            reason,
            stored_at: 0,
        }
    }

    /// How far the chain reaches.
    pub fn through(&self) -> Option<CommitTime> {
        self.chain.map(|chain| chain.through)
    }

    /// Whether an interval is not covered.
    pub fn has_gap(&self) -> bool {
        self.gap.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_proto::Topic;

    fn id() -> PartitionId {
        PartitionId { topic: Topic { region: "iad".into(), generation: 1 }, partition: 3 }
    }

    fn lane(row: Option<&PositionRow>) -> Lane {
        Lane::resume(Followed { id: id(), partitions: 16 }, row)
    }

    fn mark(from_us: u64, through_us: u64) -> Watermark {
        Watermark { region: "iad".into(), generation: 1, partition: 3, from_us, through_us, ..Watermark::default() }
    }

    fn takes(lane: &mut Lane, offset: u64) -> bool {
        let partition = id();
        lane.takes(&Record {
            partition: &partition,
            local_offset: offset,
            offset,
            relayed_ms: 0,
            appended_ms: 0,
            kind: adapters::redpanda::Kind::Event,
            content_type: "",
            value: b"",
        })
    }

    #[test]
    fn a_gap_of_offsets_stops_the_lane_for_good() {
        let mut lane = lane(None);
        assert_eq!([0, 1, 1, 0, 3, 2, 3].map(|offset| takes(&mut lane, offset)), [true, true, false, false, false, false, false]);
        assert!(lane.stopped.as_ref().unwrap().contains("offset 2 should have come, 3 came"));
        assert_eq!(lane.row("s", 0).next_offset, 2);
    }

    #[test]
    fn a_gap_of_watermarks_stands_still_until_covered() {
        let mut lane = lane(None);
        assert!(takes(&mut lane, 0));
        for (watermark, since, through, gap) in [
            (mark(10, 20), 10, 20, (0, 0)),
            (mark(20, 30), 10, 30, (0, 0)),
            (mark(31, 40), 10, 30, (30, 31)),
            (mark(40, 50), 10, 30, (30, 31)),
            (mark(25, 45), 10, 45, (0, 0)),
        ] {
            lane.advance(&watermark).unwrap();
            let row = lane.row("s", 0);
            assert_eq!((row.since_us, row.through_us, (row.gap_from_us, row.gap_through_us)), (since, through, gap));
        }
    }

    #[test]
    fn a_trimmed_beginning_is_not_claimed_by_the_first_watermark() {
        let mut first = lane(None);
        assert!(takes(&mut first, 7));
        let mut resumed = lane(Some(&first.row("s", 0)));
        for lane in [&mut first, &mut resumed] {
            lane.advance(&mark(10, 20)).unwrap();
            assert_eq!((lane.row("s", 0).since_us, lane.row("s", 0).through_us), (20, 20));
        }
    }

    #[test]
    fn what_is_saved_is_what_is_resumed() {
        let mut first = lane(None);
        for offset in 0..5 {
            assert!(takes(&mut first, offset));
        }
        first.advance(&mark(10, 20)).unwrap();
        first.advance(&mark(30, 40)).unwrap();
        let row = first.row("s", 9);
        let mut second = lane(Some(&row));
        assert!(!second.moved);
        assert_eq!(second.row("s", 9), row);
        assert_eq!(start_at(Some(&row)), StartAt::Offset { next: 5, local_hint: Some(5) });
        assert!(!takes(&mut second, 4) && takes(&mut second, 5));
    }

    #[test]
    fn a_watermark_of_another_partition_says_nothing_here() {
        let mut lane = lane(None);
        let others = [
            Watermark { partition: 4, ..mark(1, 2) },
            Watermark { generation: 2, ..mark(1, 2) },
            Watermark { region: "fra".into(), ..mark(1, 2) },
        ];
        for watermark in others.iter().chain([&mark(5, 4), &mark(0, 0), &mark(1, u64::MAX)]) {
            lane.advance(watermark).unwrap_err();
        }
        assert_eq!(lane.through(), None);
    }
}
