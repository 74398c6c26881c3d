//! The log's topics.

use adapters::redpanda::TopicSettings;
use anyhow::{Context, Result};
use kit::Effect;
use meridian_proto::Topic;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Everything the job does to the outside world.
#[derive(Clone)]
pub struct Effects {
    /// Makes the topics that are missing, and checks the others.
    pub create_topics: Effect<Vec<TopicSettings>, ()>,
}

/// `topics.toml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layout {
    /// The first generation.
    pub generation: FirstGeneration,
    /// Topics of events.
    pub events: Kind,
    /// Topics of what could not be read, stored or sent.
    pub dead_letters: Kind,
}

/// What belongs to a generation beside its topics' partitions.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FirstGeneration {
    /// Its number.
    pub number: u32,
    /// Length of a window of the change log, milliseconds.
    pub window_ms: u64,
}

/// What topics of one kind have in common.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kind {
    /// Partitions of each.
    pub partitions: u16,
    /// Their settings, by Kafka's names.
    pub settings: BTreeMap<String, String>,
}

impl Layout {
    /// Reads the file that was compiled in.
    ///
    /// # Errors
    /// Names the key that is wrong.
    pub fn load() -> Result<Self> {
        toml::from_str(include_str!("../../topics/topics.toml")).context("topics.toml")
    }

    /// The topics of every region's log: for each region the topic of its events, and that one's dead letters.
    pub fn topics(&self, regions: &[String]) -> Vec<TopicSettings> {
        let topic = |name: String, kind: &Kind| TopicSettings {
            name,
            partitions: kind.partitions,
            replication: 1,
            settings: kind.settings.clone(),
        };
        let events = |region: &String| Topic { region: region.clone(), generation: self.generation.number }.to_string();
        let names: Vec<String> = regions.iter().map(events).collect();
        names.into_iter().flat_map(|name| [topic(format!("{name}.dlq"), &self.dead_letters), topic(name, &self.events)]).collect()
    }

    /// How long the log keeps an event, milliseconds.
    ///
    /// # Errors
    /// When the file does not say.
    pub fn retention_ms(&self) -> Result<u64> {
        self.events.settings.get("retention.ms").context("retention.ms")?.parse().context("retention.ms")
    }
}

/// Makes the topics of all regions in the own region's log, and gives their number.
///
/// # Errors
/// When the log does not answer, or a topic is there with another layout.
pub async fn apply(Effects { create_topics }: &Effects, layout: &Layout, regions: &[String]) -> Result<usize> {
    let topics = layout.topics(regions);
    let count = topics.len();
    create_topics(topics).await?;
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_proto::PARTITIONS;

    #[test]
    fn the_layout_is_the_one_that_the_services_know() {
        let layout = Layout::load().unwrap();
        assert_eq!(layout.events.partitions, PARTITIONS);
        assert_eq!(layout.events.settings["message.timestamp.type"], "LogAppendTime");
        let names: Vec<String> = layout.topics(&["fra".into(), "iad".into()]).into_iter().map(|topic| topic.name).collect();
        assert_eq!(names, ["events.fra.g1.dlq", "events.fra.g1", "events.iad.g1.dlq", "events.iad.g1"]);
    }
}
