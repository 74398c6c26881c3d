//! The log: Redpanda, or anything that speaks Kafka's protocol.
//!
//! Functions with the shape `(Arc<Context>, input)` are methods, to be bound as `kit::bind(&publisher, Publisher::publish)`.
//! **No allocation of ours happens per record, only per batch; no future either.**

mod admin;
mod client;
mod cluster;
mod follow;
mod native;
mod publish;
mod read;
mod record;
mod search;
mod source;

pub use admin::{TopicSettings, create_topics, list_partitions};
pub use cluster::read_cluster_id;
pub use follow::{FollowSpec, Follower, StartAt};
pub use publish::{DeadLetter, OutRecord, Publisher, refusal};
pub use read::{Bounds, LogReader, ReadSpan};
pub use record::{Batch, Kind, Record};

/// Where the log is, and who asks.
#[derive(Clone, Debug)]
pub struct RedpandaConfig {
    /// `host:port` of a broker.
    pub address: String,
    /// Name under which the broker's logs show this client.
    pub client_id: String,
}
