//! The log as the sink reads it: all partitions of the regions' topics, with a new generation picked up when it appears.

use crate::{Followed, Polled, row_of, start_at};
use adapters::{
    clickhouse::PositionRow,
    redpanda::{FollowSpec, Follower, LogReader, RedpandaConfig, StartAt, list_partitions},
};
use anyhow::{Context, Result, ensure};
use meridian_proto::PartitionId;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::time::Instant;

const LIST_EVERY: Duration = Duration::from_secs(30);

/// What to read, and how much at once.
#[derive(Clone, Debug)]
pub struct LogConfig {
    /// Where the log is.
    pub redpanda: RedpandaConfig,
    /// Region whose log this is.
    pub region: String,
    /// Regions whose topics are read.
    pub regions: Vec<String>,
    /// A batch's size.
    pub batch_bytes_max: usize,
    /// See `batch_bytes_max`.
    pub batch_records_max: usize,
    /// How long a batch may wait to grow.
    pub linger: Duration,
    /// See [`FollowSpec`].
    pub held_back: Duration,
}

/// This region's log.
pub struct Log {
    config: LogConfig,
    reader: Arc<LogReader>,
    state: Mutex<State>,
}

struct State {
    follower: Option<Arc<Follower>>,
    followed: Vec<Followed>,
    listed: Instant,
}

impl Log {
    /// Prepares to read; waits for no broker.
    ///
    /// # Errors
    /// When the settings are refused.
    pub async fn connect(config: LogConfig) -> Result<Arc<Self>> {
        let reader = LogReader::connect(&config.redpanda, &config.region).await?;
        let state = State { follower: None, followed: Vec::new(), listed: Instant::now() };
        Ok(Arc::new(Self { config, reader, state: Mutex::new(state) }))
    }

    async fn list(&self) -> Result<Vec<Followed>> {
        let listed = list_partitions(Arc::clone(&self.reader), ()).await.context("list partitions")?;
        Ok(of_regions(&listed, &self.config.regions))
    }

    /// Begins to follow behind these positions, in place of what was followed before.
    ///
    /// # Errors
    /// When the log does not answer, or a region's topic is not there yet.
    pub async fn start_following(self: Arc<Self>, positions: Vec<PositionRow>) -> Result<Vec<Followed>> {
        let followed = self.list().await?;
        for region in &self.config.regions {
            ensure!(
                followed.iter().any(|followed| followed.id.topic.region == *region),
                "the log has no topic of events of region {region}"
            );
        }
        let starts: Vec<(PartitionId, StartAt)> =
            followed.iter().map(|followed| (followed.id.clone(), start_at(row_of(&positions, &followed.id)))).collect();
        self.state.lock().map_err(|_| anyhow::anyhow!("poisoned lock"))?.follower = None;
        let spec = FollowSpec {
            partitions: starts,
            own_region: self.config.region.clone(),
            batch_bytes_max: self.config.batch_bytes_max,
            batch_records_max: self.config.batch_records_max,
            linger: self.config.linger,
            held_back: self.config.held_back,
        };
        let follower = Follower::start(&self.config.redpanda, spec)?;
        let state = State { follower: Some(follower), followed: followed.clone(), listed: Instant::now() };
        *self.state.lock().map_err(|_| anyhow::anyhow!("poisoned lock"))? = state;
        Ok(followed)
    }

    /// The next records.
    ///
    /// # Errors
    /// When the log cannot be followed any more, and why.
    pub async fn poll_batch(self: Arc<Self>, (): ()) -> Result<Polled> {
        let (follower, list) = {
            let mut state = self.state.lock().map_err(|_| anyhow::anyhow!("poisoned lock"))?;
            let list = state.listed.elapsed() >= LIST_EVERY;
            if list {
                state.listed = Instant::now();
            }
            (state.follower.clone().context("nothing is followed")?, list.then(|| state.followed.clone()))
        };
        if let Some(followed) = list
            && let Ok(listed) = self.list().await
            && listed != followed
        {
            return Ok(Polled::TopicsChanged);
        }
        Ok(Polled::Records(follower.next_batch(()).await?))
    }
}

/// The partitions of the regions' topics, each with how many its topic has.
fn of_regions(listed: &[PartitionId], regions: &[String]) -> Vec<Followed> {
    let mut counts = BTreeMap::new();
    for id in listed {
        *counts.entry(&id.topic).or_insert(0_u16) += 1;
    }
    let ours = listed.iter().filter(|id| regions.contains(&id.topic.region));
    ours.map(|id| Followed { id: id.clone(), partitions: counts[&id.topic] }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_proto::Topic;

    #[test]
    fn later_generations_are_followed_and_other_regions_are_not() {
        let id = |region: &str, generation, partition| PartitionId { topic: Topic { region: region.into(), generation }, partition };
        let listed = [id("fra", 1, 0), id("fra", 1, 1), id("fra", 2, 0), id("iad", 1, 0), id("syd", 1, 0)];
        let followed = of_regions(&listed, &["fra".into(), "iad".into()]);
        let seen: Vec<(String, u16)> = followed.iter().map(|followed| (followed.id.to_string(), followed.partitions)).collect();
        let expected = [("events.fra.g1/0", 2), ("events.fra.g1/1", 2), ("events.fra.g2/0", 1), ("events.iad.g1/0", 1)];
        assert_eq!(seen, expected.map(|(name, partitions)| (name.to_owned(), partitions)));
    }
}
