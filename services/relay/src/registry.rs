//! The registry of generations, as the relay uses it.

use crate::LogLost;
use adapters::{
    clock::{self, RegionClock},
    redpanda::{RedpandaConfig, read_cluster_id},
    scylla::{self, Generation, Scylla},
};
use anyhow::Result;
use meridian_proto::{KEY_FUNCTION, PARTITIONS};
use std::sync::Arc;

/// What registering needs.
pub struct Registry {
    /// The database.
    pub scylla: Arc<Scylla>,
    /// The region.
    pub region: String,
    /// The log.
    pub redpanda: Arc<RedpandaConfig>,
    /// The region's clock.
    pub clock: Arc<RegionClock>,
}

/// The newest generation of the region; the first is registered where there is none.
///
/// # Errors
/// When database, log or clock do not answer. [`LogLost`] when the log is not the one that was registered.
pub async fn register_generation(registry: Arc<Registry>, (): ()) -> Result<Generation> {
    let Registry { scylla, region, redpanda, clock } = &*registry;
    let cluster_id = read_cluster_id(Arc::clone(redpanda), ()).await?;
    let known = scylla::read_generations(Arc::clone(scylla), region.clone()).await?;
    let generation = match known.into_iter().next_back() {
        Some(newest) => newest,
        None => {
            let first = Generation {
                region: region.clone(),
                generation: 1,
                partitions: PARTITIONS,
                window_ms: scylla::WINDOW.as_millis() as u64,
                key_function: KEY_FUNCTION.into(),
                cluster_id: cluster_id.clone(),
                host_ids: Vec::new(),
                created_us: clock::region_time(Arc::clone(clock), ()).await?.0,
            };
            scylla::register_generation(Arc::clone(scylla), first).await?
        }
    };
    if !generation.cluster_id.is_empty() && generation.cluster_id != cluster_id {
        let (registered, number) = (&generation.cluster_id, generation.generation);
        return Err(LogLost(format!("generation {number} was made in cluster {registered:?}, this is {cluster_id:?}")).into());
    }
    Ok(generation)
}
