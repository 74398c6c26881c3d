//! The registry row of the own region's first generation.

use crate::topics::Layout;
use adapters::scylla::{ClusterView, Generation};
use anyhow::{Result, ensure};
use kit::Effect;
use meridian_proto::{CommitTime, KEY_FUNCTION};

/// Everything the job does to the outside world.
#[derive(Clone)]
pub struct Effects {
    /// Names the database's nodes of the own region.
    pub view_cluster: Effect<(), ClusterView>,
    /// The log's own name of its cluster: another one after each new beginning.
    pub read_cluster_id: Effect<(), String>,
    /// The time now.
    pub host_time: Effect<(), CommitTime>,
    /// Writes the row unless it is there; gives what is there.
    pub register_generation: Effect<Generation, Generation>,
}

/// Registers the first generation of `region`, and gives the row.
///
/// # Errors
/// When another log has been registered: this one has been made anew, and needs a new generation.
pub async fn register(effects: &Effects, layout: &Layout, region: &str) -> Result<Generation> {
    let Effects { view_cluster, read_cluster_id, host_time, register_generation } = effects;
    let cluster_id = read_cluster_id(()).await?;
    let new = Generation {
        region: region.into(),
        generation: layout.generation.number,
        partitions: layout.events.partitions,
        window_ms: layout.generation.window_ms,
        key_function: KEY_FUNCTION.into(),
        cluster_id: cluster_id.clone(),
        host_ids: view_cluster(()).await?.own_host_ids,
        created_us: host_time(()).await?.0,
    };
    let row = register_generation(new).await?;
    ensure!(
        row.cluster_id == cluster_id,
        "the log of {region} is cluster {cluster_id}, but generation {} was registered with cluster {}: the log has been made anew. \
         New generations are not automatic yet; see docs/unproven.md",
        row.generation,
        row.cluster_id
    );
    Ok(row)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kit::effect;

    async fn check(registered: &'static str, actual: &'static str) -> Result<Generation> {
        let effects = Effects {
            view_cluster: effect(|()| async { Ok(ClusterView::default()) }),
            read_cluster_id: effect(move |()| async move { Ok(actual.to_owned()) }),
            host_time: effect(|()| async { Ok(CommitTime(7)) }),
            register_generation: effect(move |new| async move { Ok(Generation { cluster_id: registered.into(), ..new }) }),
        };
        register(&effects, &Layout::load()?, "iad").await
    }

    #[tokio::test]
    async fn a_log_made_anew_is_refused() {
        let row = check("a", "a").await.unwrap();
        assert_eq!((row.generation, row.partitions, row.window_ms, row.created_us), (1, 16, 10_000, 7));
        let error = check("a", "b").await.unwrap_err().to_string();
        assert!(error.contains("made anew"), "{error}");
    }
}
