//! A consumer that is told what to read, and how its records become ours.

use super::{
    Bounds, Kind, Record,
    client::{self, ANSWER, Quiet},
    native::{ConsumerQueue, Polled, Received},
    record::BatchBuilder,
};
use anyhow::{Context, Result, bail};
use meridian_proto::{HEADER_CONTENT_TYPE, HEADER_POSITION, Origin, PartitionId};
use rdkafka::{
    Offset, TopicPartitionList,
    config::{ClientConfig, FromClientConfigAndContext},
    consumer::{BaseConsumer, Consumer},
    error::RDKafkaErrorCode,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// The partitions that a source reads, found by what librdkafka says of a record.
pub(super) struct Table {
    pub(super) partitions: Arc<[PartitionId]>,
    topics: Vec<TopicRow>,
}

struct TopicRow {
    name: Vec<u8>,
    own: bool,
    /// Index of each partition in the table.
    indexes: BTreeMap<i32, u16>,
}

impl Table {
    pub(super) fn of(partitions: Vec<PartitionId>, own_region: &str) -> Self {
        let mut topics: Vec<TopicRow> = Vec::new();
        for (index, id) in partitions.iter().enumerate() {
            let name = id.topic.to_string().into_bytes();
            let known = topics.iter().position(|row| row.name == name).unwrap_or_else(|| {
                topics.push(TopicRow { name, own: id.topic.region == own_region, indexes: BTreeMap::new() });
                topics.len() - 1
            });
            topics[known].indexes.insert(i32::from(id.partition), index as u16);
        }
        Self { partitions: partitions.into(), topics }
    }

    /// Copies the record into the batch; false for one of another partition, left over from an earlier assignment.
    pub(super) fn take(&self, received: &Received<'_>, batch: &mut BatchBuilder) -> bool {
        let Some(row) = self.topics.iter().find(|row| row.name == received.topic()) else { return false };
        let Some(index) = row.indexes.get(&received.partition()) else { return false };
        let partition = &self.partitions[usize::from(*index)];
        batch.push(*index, &record(received, partition, row.own));
        true
    }
}

/// What a record is: origin and position are taken from the topic's name and from the mirror's header alone.
fn record<'a>(received: &'a Received<'_>, partition: &'a PartitionId, own: bool) -> Record<'a> {
    let (mut content_type, mut position, mut positions): (&[u8], &[u8], u32) = (&[], &[], 0);
    received.headers(|name, value| {
        if name == HEADER_CONTENT_TYPE.as_bytes() {
            content_type = value;
        } else if name == HEADER_POSITION.as_bytes() {
            (position, positions) = (value, positions + 1);
        }
    });
    let (local_offset, appended_ms) = (received.offset(), received.timestamp_ms());
    let content_type = std::str::from_utf8(content_type).unwrap_or("(not UTF-8)");
    // One header, of the right length: else nobody's mirror made this copy.
    let stated = (positions == 1).then(|| Origin::from_bytes(position)).flatten();
    let origin = match (own, stated) {
        (true, _) => Origin { offset: local_offset, append_time_ms: appended_ms },
        (false, Some(stated)) => stated,
        (false, None) => Origin { offset: Record::UNKNOWN_ORIGIN, append_time_ms: appended_ms },
    };
    Record {
        partition,
        local_offset,
        offset: origin.offset,
        relayed_ms: origin.append_time_ms,
        appended_ms,
        kind: Kind::of(content_type),
        content_type,
        value: received.value(),
    }
}

/// A consumer and its queue. All of it blocks: for threads that may.
pub(super) struct Source {
    // Dropped first: the consumer has to outlive its queue.
    queue: ConsumerQueue,
    consumer: BaseConsumer<Quiet>,
}

impl Source {
    pub(super) fn open(settings: &ClientConfig) -> Result<Self> {
        let consumer = BaseConsumer::from_config_and_context(settings, Quiet).context("settings of the consumer")?;
        let queue = ConsumerQueue::of(&consumer).context("the consumer has no queue")?;
        Ok(Self { queue, consumer })
    }

    /// All topics of events that exist, with their numbers of partitions.
    pub(super) fn topics(&self) -> Result<BTreeMap<String, usize>> {
        let metadata = self.consumer.fetch_metadata(None, ANSWER).context("list topics")?;
        Ok(metadata
            .topics()
            .iter()
            .filter(|topic| topic.error().is_none())
            .map(|topic| (topic.name().into(), topic.partitions().len()))
            .collect())
    }

    /// What a partition keeps.
    pub(super) fn bounds(&self, id: &PartitionId) -> Result<Bounds> {
        let asked = self.consumer.fetch_watermarks(&id.topic.to_string(), i32::from(id.partition), ANSWER);
        let (low, high) = asked.with_context(|| format!("bounds of {id}"))?;
        Ok(Bounds { low: u64::try_from(low).unwrap_or(0), high: u64::try_from(high).unwrap_or(0) })
    }

    /// Reads these partitions from these local offsets on, and no others if `alone`, else besides what is read already.
    pub(super) fn assign(&self, partitions: &[(&PartitionId, u64)], alone: bool) -> Result<()> {
        // Leaders have to be known before: a cold assignment waits half a second before it asks.
        for topic in partitions.iter().map(|(id, _)| id.topic.to_string()).collect::<BTreeSet<_>>() {
            self.consumer.fetch_metadata(Some(&topic), ANSWER).with_context(|| format!("leaders of {topic}"))?;
        }
        let mut list = TopicPartitionList::with_capacity(partitions.len());
        for (id, next) in partitions {
            let next = Offset::Offset(i64::try_from(*next).context("offset")?);
            list.add_partition_offset(&id.topic.to_string(), i32::from(id.partition), next)?;
        }
        if alone { self.consumer.assign(&list) } else { self.consumer.incremental_assign(&list) }.context("assign")
    }

    /// Reads nothing any more.
    pub(super) fn rest(&self) -> Result<()> {
        self.consumer.unassign().context("unassign")
    }

    pub(super) fn poll(&self, patience: Duration) -> Polled<'_> {
        self.queue.poll(patience)
    }
}

/// Says whether a failure ends the reading, and why.
pub(super) fn judge(code: RDKafkaErrorCode) -> Result<()> {
    if client::passes(code) {
        tracing::debug!(%code, "the log is waited for");
        return Ok(());
    }
    match code {
        RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange => {
            bail!("the log no longer holds the offset that comes next (trimmed, or the log was made anew): {code}")
        }
        code => bail!("the log cannot be read: {code}"),
    }
}
