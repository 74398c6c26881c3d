//! Topics.

use super::{
    LogReader, RedpandaConfig,
    client::{self, ANSWER},
};
use anyhow::{Context, Result, anyhow, bail};
use meridian_proto::{PartitionId, Topic};
use rdkafka::{
    admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication},
    client::DefaultClientContext,
    config::FromClientConfig,
    error::RDKafkaErrorCode,
};
use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// How long a new topic may take until it can be written to.
const CREATION: Duration = Duration::from_secs(15);

/// A topic as it has to be.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct TopicSettings {
    /// Its name.
    pub name: String,
    /// Its number of partitions.
    pub partitions: u16,
    /// On how many brokers of the region each record is kept.
    #[serde(default = "one")]
    pub replication: u16,
    /// Settings by their names in Kafka, for example `retention.ms`.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
}

fn one() -> u16 {
    1
}

/// Creates the topics that do not exist, and checks the others. May be repeated.
///
/// # Errors
/// When the log does not answer, or a topic exists with other partitions or settings: says which, in words.
pub async fn create_topics(config: &RedpandaConfig, topics: &[TopicSettings]) -> Result<()> {
    let client: Arc<AdminClient<DefaultClientContext>> = Arc::new(AdminClient::from_config(&client::base(config)).context("settings")?);
    let existing = partitions_of_all(&client).await?;
    let missing = topics.iter().filter(|topic| !existing.contains_key(&topic.name)).map(|topic| {
        let new = NewTopic::new(&topic.name, i32::from(topic.partitions), TopicReplication::Fixed(i32::from(topic.replication)));
        topic.settings.iter().fold(new, |new, (name, value)| new.set(name, value))
    });
    let missing: Vec<NewTopic<'_>> = missing.collect();
    if !missing.is_empty() {
        let options = AdminOptions::new().operation_timeout(Some(CREATION)).request_timeout(Some(CREATION));
        for created in client.create_topics(&missing, &options).await.context("create topics")? {
            match created {
                // Another run may have been faster: what it made is checked below.
                Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
                Err((name, code)) => bail!("create topic {name}: {code}"),
            }
        }
    }
    check_until_there(&client, topics).await
}

/// A topic may take a moment until all can see it.
async fn check_until_there(client: &Arc<AdminClient<DefaultClientContext>>, topics: &[TopicSettings]) -> Result<()> {
    let deadline = tokio::time::Instant::now() + CREATION;
    loop {
        let existing = partitions_of_all(client).await?;
        if topics.iter().all(|topic| existing.contains_key(&topic.name)) {
            let partitions = topics.iter().filter_map(|topic| {
                let found = *existing.get(&topic.name)?;
                let other = found != usize::from(topic.partitions);
                other.then(|| format!("topic {} has {found} partitions, {} are wanted", topic.name, topic.partitions))
            });
            let mut wrong: Vec<String> = partitions.collect();
            wrong.extend(wrong_settings(client, topics).await?);
            return if wrong.is_empty() { Ok(()) } else { Err(anyhow!("{}", wrong.join("; "))) };
        }
        if tokio::time::Instant::now() >= deadline {
            bail!("new topics did not appear within {} s", CREATION.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn wrong_settings(client: &AdminClient<DefaultClientContext>, topics: &[TopicSettings]) -> Result<Vec<String>> {
    let resources: Vec<ResourceSpecifier<'_>> = topics.iter().map(|topic| ResourceSpecifier::Topic(&topic.name)).collect();
    let described =
        client.describe_configs(&resources, &AdminOptions::new().request_timeout(Some(ANSWER))).await.context("read settings")?;
    let mut wrong = Vec::new();
    for (topic, found) in topics.iter().zip(described) {
        let found = found.map_err(|code| anyhow!("settings of topic {}: {code}", topic.name))?;
        for (name, wanted) in &topic.settings {
            let value = found.get(name).and_then(|entry| entry.value.as_deref());
            if value != Some(wanted) {
                wrong.push(format!("topic {} has {name} = {}, {wanted} is wanted", topic.name, value.unwrap_or("nothing")));
            }
        }
    }
    Ok(wrong)
}

async fn partitions_of_all(client: &Arc<AdminClient<DefaultClientContext>>) -> Result<BTreeMap<String, usize>> {
    let client = Arc::clone(client);
    let ask = move || -> Result<BTreeMap<String, usize>> {
        let metadata = client.inner().fetch_metadata(None, ANSWER).context("list topics")?;
        let known = metadata.topics().iter().filter(|topic| topic.error().is_none() && !topic.partitions().is_empty());
        Ok(known.map(|topic| (topic.name().to_owned(), topic.partitions().len())).collect())
    };
    tokio::task::spawn_blocking(ask).await.context("list topics")?
}

/// All partitions of all topics of events, in order. Topics with other names are left out.
///
/// # Errors
/// When the log does not answer in time.
pub async fn list_partitions(reader: Arc<LogReader>, (): ()) -> Result<Vec<PartitionId>> {
    let mut found = BTreeSet::new();
    for (name, partitions) in reader.topics().await? {
        let Ok(topic) = name.parse::<Topic>() else { continue };
        found.extend((0..u16::try_from(partitions)?).map(|partition| PartitionId { topic: topic.clone(), partition }));
    }
    Ok(found.into_iter().collect())
}
