//! How clients of the log are set up.

use super::RedpandaConfig;
use rdkafka::{
    ClientContext,
    config::{ClientConfig, RDKafkaLogLevel},
    consumer::ConsumerContext,
    error::{KafkaError, RDKafkaErrorCode},
};
use std::time::Duration;

/// How long one question to the log may take.
pub(super) const ANSWER: Duration = Duration::from_secs(5);

/// Bytes that one consumer may have fetched ahead.
const PREFETCH_KIB: &str = "8192";

/// What a broker that may hold records back answers with at once.
const GOOD_DEAL_BYTES: &str = "65536";

/// Records that a consumer for reads here and there may have fetched ahead.
pub(super) const READ_AHEAD: u64 = 4096;

/// Puts librdkafka's own lines where they can be asked for: the services say in their own words what matters.
pub(super) struct Quiet;

impl ClientContext for Quiet {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        tracing::debug!(target: "librdkafka", ?level, facility, "{text}");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(target: "librdkafka", %error, "{reason}");
    }
}

impl ConsumerContext for Quiet {}

pub(super) fn base(config: &RedpandaConfig) -> ClientConfig {
    let mut client = ClientConfig::new();
    client
        .set("bootstrap.servers", &config.address)
        .set("client.id", &config.client_id)
        .set("broker.address.family", "v4")
        .set("broker.address.ttl", "1000")
        .set("reconnect.backoff.ms", "50")
        .set("reconnect.backoff.max.ms", "500")
        .set("retry.backoff.ms", "50")
        .set("retry.backoff.max.ms", "500")
        // A broker that went silent is given up, and asked again on a new connection, after this long.
        .set("socket.timeout.ms", "5000")
        .set("socket.connection.setup.timeout.ms", "2000")
        .set("socket.nagle.disable", "true")
        .set("socket.keepalive.enable", "true")
        .set("allow.auto.create.topics", "false")
        .set_log_level(RDKafkaLogLevel::Warning);
    client
}

/// A consumer that is told what to read, joins no group and never decides itself where to go on.
pub(super) fn consumer(config: &RedpandaConfig) -> ClientConfig {
    let mut client = base(config);
    client
        // Asked for by `assign`; no group is joined and nothing is committed under this name.
        .set("group.id", "meridian")
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("auto.offset.reset", "error")
        .set("isolation.level", "read_uncommitted")
        .set("check.crcs", "true")
        // The broker answers as soon as there is one byte; a partition that fell asleep on a full queue is woken soon.
        .set("fetch.min.bytes", "1")
        .set("fetch.wait.max.ms", "500")
        .set("fetch.error.backoff.ms", "50")
        .set("fetch.queue.backoff.ms", "10")
        // What is read ahead is bounded in bytes and records, whatever the backlog.
        .set("fetch.max.bytes", "4194304")
        .set("fetch.message.max.bytes", "1048576")
        .set("queued.max.messages.kbytes", PREFETCH_KIB)
        .set("queued.min.messages", "10000");
    client
}

/// A consumer that follows the end of the log.
pub(super) fn follower(config: &RedpandaConfig, held_back: Duration) -> ClientConfig {
    let mut client = consumer(config);
    if !held_back.is_zero() {
        client.set("fetch.min.bytes", GOOD_DEAL_BYTES).set("fetch.wait.max.ms", held_back.as_millis().to_string());
    }
    client
}

/// A consumer for reads here and there: one that is sent elsewhere has to wait for its last fetch, so fetches wait little,
/// and little is fetched ahead.
pub(super) fn reader(config: &RedpandaConfig) -> ClientConfig {
    let mut client = consumer(config);
    client.set("fetch.wait.max.ms", "5").set("fetch.queue.backoff.ms", "50").set("queued.min.messages", READ_AHEAD.to_string());
    client
}

/// An idempotent producer. It has no time limit of its own: the caller's deadline empties it as a whole, so that no record
/// is ever appended after an earlier one of its partition was given up.
pub(super) fn producer(config: &RedpandaConfig, linger_ms: u64) -> ClientConfig {
    let mut client = base(config);
    client
        .set("acks", "all")
        .set("enable.idempotence", "true")
        .set("enable.gapless.guarantee", "true")
        .set("message.timeout.ms", "0")
        // How long a topic that is not known may stay so before its records are refused.
        .set("topic.metadata.propagation.max.ms", "10000")
        .set("request.timeout.ms", "5000")
        .set("linger.ms", linger_ms.to_string())
        .set("batch.size", "524288")
        .set("queue.buffering.max.messages", "100000")
        .set("queue.buffering.max.kbytes", "32768");
    client
}

/// Whether the trouble goes away by itself once the log is there again.
pub(super) fn passes(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(
        code,
        Code::BrokerTransportFailure
            | Code::AllBrokersDown
            | Code::Resolve
            | Code::OperationTimedOut
            | Code::MessageTimedOut
            | Code::RequestTimedOut
            | Code::NetworkException
            | Code::UnknownTopic
            | Code::UnknownPartition
            | Code::UnknownTopicOrPartition
            | Code::LeaderNotAvailable
            | Code::NotLeaderForPartition
            | Code::BrokerNotAvailable
            | Code::ReplicaNotAvailable
            | Code::OffsetNotAvailable
            | Code::FencedLeaderEpoch
            | Code::UnknownLeaderEpoch
            | Code::KafkaStorageError
            | Code::WaitingForCoordinator
            | Code::CoordinatorNotAvailable
            | Code::NotCoordinator
            | Code::CoordinatorLoadInProgress
            | Code::Unknown
    )
}
