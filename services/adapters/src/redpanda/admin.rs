//! Topics.

use super::{LogReader, RedpandaConfig};
use anyhow::{Result, bail};
use meridian_proto::PartitionId;
use serde::Deserialize;
use std::{collections::BTreeMap, sync::Arc};

/// A topic as it has to be.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct TopicSettings {
    /// Its name.
    pub name: String,
    /// Its number of partitions.
    pub partitions: u16,
    /// Settings by their names in Kafka, for example `retention.ms`.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
}

/// Creates the topics that do not exist, and checks the others. May be repeated.
///
/// # Errors
/// When the log does not answer, or a topic exists with other partitions or settings: says which, in words.
pub async fn create_topics(_config: &RedpandaConfig, _topics: &[TopicSettings]) -> Result<()> {
    bail!("not yet")
}

/// All partitions of all topics of events, in order. Topics with other names are left out.
///
/// # Errors
/// When the log does not answer in time.
pub async fn list_partitions(_reader: Arc<LogReader>, (): ()) -> Result<Vec<PartitionId>> {
    bail!("not yet")
}
