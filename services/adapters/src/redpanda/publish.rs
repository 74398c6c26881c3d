//! Appending to the log.

use super::{
    RedpandaConfig, client,
    native::{self, Outgoing},
};
use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use meridian_proto::{CONTENT_TYPE_EVENT, CONTENT_TYPE_WATERMARK, LogPosition, Origin, PartitionId, Topic};
use rdkafka::{
    ClientContext,
    config::{FromClientConfigAndContext, RDKafkaLogLevel},
    error::{KafkaError, RDKafkaErrorCode},
    producer::{DeliveryResult, NoCustomPartitioner, Producer, ProducerContext, PurgeConfig, ThreadedProducer},
};
use std::{
    borrow::Cow,
    ffi::{CStr, CString},
    sync::{
        Arc, Mutex, OnceLock, RwLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};

/// How long records may wait to be acknowledged: longer than a broker takes to come back.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the reports of records that were given up may take.
const REPORTS: Duration = Duration::from_secs(5);
/// How long a record waits for the first one after it.
const LINGER_MS: u64 = 1;
/// How often a full queue is tried again.
const FULL_QUEUE: Duration = Duration::from_millis(2);

const CONTENT_TYPE: &CStr = c"content-type";
const POSITION: &CStr = c"meridian-position";

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
    /// Where it stands in the log, as origin position; what has no offset yet (a row of the change log) has 0.
    pub position: LogPosition,
    /// Why, for people.
    pub reason: String,
    /// Its content type.
    pub content_type: String,
    /// Its bytes.
    pub value: Bytes,
}

/// An idempotent producer that is made anew after any failure.
///
/// What was appended of each partition is always a prefix of what was given: a failure empties the producer as a whole,
/// so no later record overtakes one that was given up.
pub struct Publisher {
    config: RedpandaConfig,
    current: Mutex<Arc<Generation>>,
    topics: Mutex<Vec<(Topic, Arc<CStr>)>>,
}

impl Publisher {
    /// Makes the producer; waits for no broker.
    ///
    /// # Errors
    /// When the settings are refused.
    pub async fn connect(config: &RedpandaConfig) -> Result<Arc<Self>> {
        let current = Mutex::new(Arc::new(Generation::open(config)?));
        Ok(Arc::new(Self { config: config.clone(), current, topics: Mutex::default() }))
    }

    /// Appends the records, keeping their order in each partition, and waits until all are acknowledged, for 30 s at most.
    ///
    /// # Errors
    /// "Unknown": of each partition's records a prefix was appended, possibly all, possibly none. Repeat, or read the log.
    pub async fn publish(self: Arc<Self>, records: Vec<OutRecord>) -> Result<()> {
        let mut topics: Vec<(&Topic, Arc<CStr>)> = Vec::new();
        let mut positions: Vec<[u8; 16]> = Vec::with_capacity(records.iter().filter(|record| record.origin.is_some()).count());
        for record in &records {
            if !topics.iter().any(|(topic, _)| **topic == record.partition.topic) {
                topics.push((&record.partition.topic, self.topic_name(&record.partition.topic)?));
            }
            positions.extend(record.origin.map(Origin::to_bytes));
        }
        let mut position = positions.iter();
        let outgoing = records.iter().map(|record| {
            let topic = topics.iter().find(|(topic, _)| **topic == record.partition.topic).map_or(c"", |(_, name)| name);
            let stamp = record.origin.and_then(|_| position.next()).map(|bytes| (POSITION, bytes.as_slice()));
            let content_type = Some((CONTENT_TYPE, record.content_type.as_bytes()));
            Outgoing {
                topic,
                partition: i32::from(record.partition.partition),
                value: &record.value,
                headers: [content_type, stamp, None, None],
            }
        });
        let outgoing: Vec<_> = outgoing.collect();
        self.append(&outgoing).await
    }

    /// Appends to `<topic>.dlq`, with headers `content-type`, `reason` and `origin` (`<topic>/<partition>@<offset>`), acknowledged.
    ///
    /// # Errors
    /// As for [`Publisher::publish`].
    pub async fn dead_letter(self: Arc<Self>, letter: DeadLetter) -> Result<()> {
        let LogPosition { partition, offset } = &letter.position;
        let topic = CString::new(format!("{}.dlq", partition.topic))?;
        let origin = format!("{partition}@{offset}");
        let headers = [
            Some((CONTENT_TYPE, letter.content_type.as_bytes())),
            Some((c"reason", letter.reason.as_bytes())),
            Some((c"origin", origin.as_bytes())),
            None,
        ];
        self.append(&[Outgoing { topic: &topic, partition: 0, value: &letter.value, headers }]).await.context("dead letter")
    }

    fn topic_name(&self, topic: &Topic) -> Result<Arc<CStr>> {
        let Ok(mut names) = self.topics.lock() else { bail!("the publisher is broken") };
        if let Some((_, name)) = names.iter().find(|(known, _)| known == topic) {
            return Ok(Arc::clone(name));
        }
        let name: Arc<CStr> = CString::new(topic.to_string())?.into();
        names.push((topic.clone(), Arc::clone(&name)));
        Ok(name)
    }

    async fn append(&self, records: &[Outgoing<'_>]) -> Result<()> {
        let generation = match self.current.lock() {
            Ok(current) => Arc::clone(&current),
            Err(_) => bail!("the publisher is broken"),
        };
        let deadline = Instant::now() + PATIENCE;
        let reports = Arc::new(Reports::default());
        let queued = generation.queue(records, &reports, deadline).await;
        reports.arrived();
        let in_time = tokio::time::timeout_at(deadline, reports.all()).await.is_ok();
        let failure = reports.failure.get().copied();
        let failed = match (queued, failure, in_time) {
            (Ok(()), None, true) => return Ok(()),
            (Err(error), ..) => error,
            (_, Some(code), _) => anyhow::Error::new(code).context("not acknowledged"),
            (_, None, false) => anyhow!("not acknowledged within {} s", PATIENCE.as_secs()),
        };
        self.renew(&generation).await?;
        // Every record has a fate before the caller goes on: nothing of this call is appended later.
        let _ = tokio::time::timeout(REPORTS, reports.all()).await;
        Err(failed.context("it is unknown how much was appended"))
    }

    /// Gives up what a producer holds, and puts another in its place.
    async fn renew(&self, failed: &Arc<Generation>) -> Result<()> {
        failed.retire();
        let fresh = Arc::new(Generation::open(&self.config)?);
        let old = {
            let Ok(mut current) = self.current.lock() else { bail!("the publisher is broken") };
            Arc::ptr_eq(&current, failed).then(|| std::mem::replace(&mut *current, fresh))
        };
        if old.is_some() {
            tracing::warn!("the producer was made anew");
            metrics::counter!("meridian_log_producers_renewed_total").increment(1);
        }
        Ok(())
    }
}

/// Why the log will never take (one of) the records that [`Publisher::publish`] failed on; `None` when it may pass.
pub fn refusal(error: &anyhow::Error) -> Option<String> {
    use RDKafkaErrorCode::{InvalidRecord, MessageBatchTooLarge, MessageSizeTooLarge};
    let code = *error.downcast_ref::<RDKafkaErrorCode>()?;
    matches!(code, MessageSizeTooLarge | MessageBatchTooLarge | InvalidRecord).then(|| code.to_string())
}

/// One producer, until it fails.
struct Generation {
    producer: Option<ThreadedProducer<Delivery>>,
    /// True when nothing may be queued any more. Records are queued under the shared lock, retiring takes the other.
    retired: RwLock<bool>,
}

impl Generation {
    fn open(config: &RedpandaConfig) -> Result<Self> {
        let settings = client::producer(config, LINGER_MS);
        let producer = ThreadedProducer::from_config_and_context(&settings, Delivery).context("settings of the producer")?;
        Ok(Self { producer: Some(producer), retired: RwLock::new(false) })
    }

    /// Queues all records; waits where the queue is full.
    async fn queue(&self, records: &[Outgoing<'_>], reports: &Arc<Reports>, deadline: Instant) -> Result<()> {
        let mut rest = records;
        loop {
            rest = self.queue_some(rest, reports)?;
            if rest.is_empty() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                bail!("the queue of the producer stayed full for {} s", PATIENCE.as_secs());
            }
            tokio::time::sleep(FULL_QUEUE).await;
        }
    }

    /// Queues records until the queue is full; gives back the rest.
    fn queue_some<'r, 'v>(&self, records: &'r [Outgoing<'v>], reports: &Arc<Reports>) -> Result<&'r [Outgoing<'v>]> {
        let (Ok(retired), Some(producer)) = (self.retired.read(), &self.producer) else { bail!("the producer is broken") };
        if *retired {
            bail!("the producer was given up meanwhile");
        }
        let client = producer.client().native_ptr();
        for (index, record) in records.iter().enumerate() {
            reports.expected.fetch_add(1, Ordering::Relaxed);
            match native::produce(client, record, reports) {
                Ok(()) => {}
                Err(code) => {
                    reports.expected.fetch_sub(1, Ordering::Relaxed);
                    if code == RDKafkaErrorCode::QueueFull {
                        return Ok(&records[index..]);
                    }
                    return Err(code).with_context(|| format!("{}/{}", record.topic.to_string_lossy(), record.partition));
                }
            }
        }
        Ok(&[])
    }

    fn retire(&self) {
        if let (Ok(mut retired), Some(producer)) = (self.retired.write(), &self.producer) {
            *retired = true;
            producer.purge(PurgeConfig::default().queue().inflight());
        }
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        // Ending a producer waits for its threads.
        let producer = self.producer.take();
        let ended = std::thread::Builder::new().name("producer end".into()).spawn(move || drop(producer));
        if let Err(error) = ended {
            tracing::warn!(%error, "a producer was ended in place");
        }
    }
}

/// The delivery reports of one call: one completion, whatever the number of records.
struct Reports {
    /// Records queued and not reported yet, and one for the caller while it queues.
    expected: AtomicUsize,
    failure: OnceLock<RDKafkaErrorCode>,
    done: Notify,
}

impl Default for Reports {
    fn default() -> Self {
        Self { expected: AtomicUsize::new(1), failure: OnceLock::new(), done: Notify::new() }
    }
}

impl Reports {
    fn arrived(&self) {
        if self.expected.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.done.notify_one();
        }
    }

    async fn all(&self) {
        while self.expected.load(Ordering::Acquire) > 0 {
            self.done.notified().await;
        }
    }
}

/// Takes delivery reports on the producer's own thread.
struct Delivery;

impl ClientContext for Delivery {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        tracing::debug!(target: "librdkafka", ?level, facility, "{text}");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(target: "librdkafka", %error, "{reason}");
    }
}

impl ProducerContext<NoCustomPartitioner> for Delivery {
    type DeliveryOpaque = Arc<Reports>;

    fn delivery(&self, result: &DeliveryResult<'_>, reports: Arc<Reports>) {
        if let Err((error, _)) = result {
            let _ = reports.failure.set(error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail));
        }
        reports.arrived();
    }
}
