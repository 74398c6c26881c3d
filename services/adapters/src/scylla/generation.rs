//! The registry of generations: layout is schema, never configuration.

use super::{Refused, Scylla};
use anyhow::{Context, Result, bail};
use meridian_proto::{KEY_FUNCTION, PARTITIONS};
use scylla::statement::{Consistency, Statement};
use std::sync::Arc;

/// The layout of one generation of a region's change log and log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generation {
    /// The region.
    pub region: String,
    /// New whenever the log is made new or is found to have lost acknowledged records.
    pub generation: u32,
    /// Partitions of the change log and the log.
    pub partitions: u16,
    /// Length of a window of the change log.
    pub window_ms: u64,
    /// Name of the function from tenant and subject to partition: [`meridian_proto::KEY_FUNCTION`].
    pub key_function: String,
    /// The log's own name of its cluster.
    pub cluster_id: String,
    /// Host ids of the region's database nodes.
    pub host_ids: Vec<String>,
    /// When it was made, microseconds since the Unix epoch. No change row of it is older.
    pub created_us: u64,
}

impl Generation {
    /// Says whether this program can work with the layout.
    ///
    /// # Errors
    /// [`Refused::WrongLayout`].
    pub fn assert_known_layout(&self) -> Result<(), Refused> {
        let difference = if self.partitions != PARTITIONS {
            format!("{} partitions, not {PARTITIONS}", self.partitions)
        } else if self.key_function != KEY_FUNCTION {
            format!("key function {:?}, not {KEY_FUNCTION:?}", self.key_function)
        } else if self.window_ms == 0 {
            "a window of 0 ms".into()
        } else {
            return Ok(());
        };
        Err(Refused::WrongLayout { region: self.region.clone(), generation: self.generation, difference })
    }
}

/// Writes a generation, unless the region has it already; says what stands in the registry afterwards.
///
/// # Errors
/// When a statement fails.
pub async fn register_generation(scylla: Arc<Scylla>, new: Generation) -> Result<Generation> {
    let known = read_generations(Arc::clone(&scylla), new.region.clone()).await?;
    if let Some(known) = known.into_iter().find(|known| known.generation == new.generation) {
        return Ok(known);
    }
    let mut insert = Statement::new(
        "INSERT INTO meridian.generations (region, generation, partitions, window_ms, key_function, cluster_id, host_ids, created_us) \
         VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
    );
    insert.set_consistency(Consistency::Quorum);
    let values = (
        new.region.as_str(),
        i32::try_from(new.generation)?,
        i32::from(new.partitions),
        i64::try_from(new.window_ms)?,
        new.key_function.as_str(),
        new.cluster_id.as_str(),
        &new.host_ids,
        i64::try_from(new.created_us)?,
    );
    scylla.session.query_unpaged(insert, values).await.context("register generation")?;
    Ok(new)
}

/// The generations of a region, oldest first.
///
/// # Errors
/// When the statement fails, or a row holds what no generation can have.
pub async fn read_generations(scylla: Arc<Scylla>, region: String) -> Result<Vec<Generation>> {
    scylla.generations_of(&region).await
}

/// The newest generation of the own region, whose layout this program knows.
///
/// # Errors
/// [`Refused`] when it does not know the layout; otherwise when nothing is registered yet or the statement fails.
pub async fn latest_generation(scylla: Arc<Scylla>, (): ()) -> Result<Generation> {
    let known = scylla.generations_of(&scylla.region).await?;
    let latest = known.into_iter().next_back().with_context(|| format!("no generation of region {} is registered yet", scylla.region))?;
    latest.assert_known_layout()?;
    Ok(latest)
}

type Row = (i32, Option<i32>, Option<i64>, Option<String>, Option<String>, Option<Vec<String>>, Option<i64>);

impl Scylla {
    async fn generations_of(&self, region: &str) -> Result<Vec<Generation>> {
        let answer = match self.statements() {
            Ok(statements) => self.session.execute_unpaged(&statements.read_generations, (region,)).await,
            Err(_) => {
                let text = "SELECT generation, partitions, window_ms, key_function, cluster_id, host_ids, created_us \
                            FROM meridian.generations WHERE region = ?";
                self.session.query_unpaged(text, (region,)).await
            }
        };
        let rows = answer.context("read generations")?.into_rows_result()?;
        rows.rows::<Row>()?.map(|row| generation(region, row?)).collect()
    }

    /// The window length of a generation of the own region.
    pub(super) async fn window_ms(&self, generation: u32) -> Result<u64> {
        let known = |windows: &std::collections::BTreeMap<u32, u64>| windows.get(&generation).copied();
        if let Some(window_ms) = self.windows_ms.read().ok().and_then(|windows| known(&windows)) {
            return Ok(window_ms);
        }
        let registered = self.generations_of(&self.region).await?;
        let Some(found) = registered.iter().find(|registered| registered.generation == generation) else {
            bail!("generation {generation} of region {} is not registered", self.region);
        };
        found.assert_known_layout()?;
        if let Ok(mut windows) = self.windows_ms.write() {
            windows.insert(generation, found.window_ms);
        }
        Ok(found.window_ms)
    }
}

fn generation(
    region: &str,
    (generation, partitions, window_ms, key_function, cluster_id, host_ids, created_us): Row,
) -> Result<Generation> {
    Ok(Generation {
        region: region.into(),
        generation: generation.try_into()?,
        partitions: partitions.context("partitions")?.try_into()?,
        window_ms: window_ms.context("window_ms")?.try_into()?,
        key_function: key_function.context("key_function")?,
        cluster_id: cluster_id.unwrap_or_default(),
        host_ids: host_ids.unwrap_or_default(),
        created_us: created_us.context("created_us")?.try_into()?,
    })
}
