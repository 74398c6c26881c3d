//! Rule R6: an identity is a set of payload hashes, written before the change row.

use super::{Ack, Scylla};
use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use meridian_proto::{Identity, PayloadHash};
use scylla::statement::batch::{Batch, BatchType};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Ids asked for in one statement.
const FIND_CHUNK: usize = 50;
/// Identities saved in one batch: about 300 bytes each, so that a batch stays under the engines' warning of 64 KiB.
const SAVE_CHUNK: usize = 100;
/// Statements of one call in flight at a time.
const IN_FLIGHT: usize = 8;

/// Identities with the hash to add to each.
#[derive(Clone, Debug)]
pub struct SaveIdentity {
    /// What to add.
    pub entries: Vec<(Identity, PayloadHash)>,
    /// How far the write must have come.
    pub ack: Ack,
}

/// The payload hashes known in this region for each identity, in the order of the input.
///
/// # Errors
/// When a statement fails or is not answered in time.
pub async fn find_identity(scylla: Arc<Scylla>, identities: Vec<Identity>) -> Result<Vec<Vec<PayloadHash>>> {
    let mut known = vec![Vec::new(); identities.len()];
    let mut by_source: BTreeMap<(String, String), Vec<(usize, String)>> = BTreeMap::new();
    for (index, Identity { tenant, source, id }) in identities.into_iter().enumerate() {
        by_source.entry((tenant, source)).or_default().push((index, id));
    }
    let mut chunks = Vec::new();
    for ((tenant, source), ids) in by_source {
        let find = |ids: &[(usize, String)]| find_chunk(Arc::clone(&scylla), tenant.clone(), source.clone(), ids.to_vec());
        chunks.extend(ids.chunks(FIND_CHUNK).map(find));
    }
    let found: Vec<Vec<(usize, PayloadHash)>> = stream::iter(chunks).buffer_unordered(IN_FLIGHT).try_collect().await?;
    for (index, hash) in found.into_iter().flatten() {
        known[index].push(hash);
    }
    Ok(known)
}

/// The hashes known for ids of one tenant and source, each with the index that came with the id.
async fn find_chunk(scylla: Arc<Scylla>, tenant: String, source: String, ids: Vec<(usize, String)>) -> Result<Vec<(usize, PayloadHash)>> {
    let names: BTreeSet<&str> = ids.iter().map(|(_, id)| id.as_str()).collect();
    let values = (tenant, source, Vec::from_iter(names));
    let rows = scylla.session.execute_unpaged(&scylla.statements()?.find_identity, values).await.context("find identities")?;
    let mut found = Vec::new();
    for row in rows.into_rows_result()?.rows::<(&str, &[u8])>()? {
        let (id, hash) = row?;
        let hash = PayloadHash(hash.try_into().context("a payload hash has 32 bytes")?);
        found.extend(ids.iter().filter(|(_, name)| name == id).map(|(index, _)| (*index, hash)));
    }
    Ok(found)
}

/// Adds a payload hash to each identity. Saving what is there already changes nothing but how long it is kept.
///
/// # Errors
/// When a statement fails or is not answered in time: some may have been saved.
pub async fn save_identity(scylla: Arc<Scylla>, SaveIdentity { entries, ack }: SaveIdentity) -> Result<()> {
    let save = |chunk: &[(Identity, PayloadHash)]| save_chunk(Arc::clone(&scylla), chunk.to_vec(), ack);
    let chunks: Vec<_> = entries.chunks(SAVE_CHUNK).map(save).collect();
    stream::iter(chunks).buffer_unordered(IN_FLIGHT).try_collect().await
}

async fn save_chunk(scylla: Arc<Scylla>, entries: Vec<(Identity, PayloadHash)>, ack: Ack) -> Result<()> {
    let mut statement = scylla.statements()?.save_identity.clone();
    statement.set_consistency(ack.consistency());
    let values: Vec<_> = entries
        .iter()
        .map(|(Identity { tenant, source, id }, hash)| (tenant.as_str(), source.as_str(), id.as_str(), hash.0.as_slice()))
        .collect();
    if let [single] = values.as_slice() {
        scylla.session.execute_unpaged(&statement, single).await.context("save identity")?;
        return Ok(());
    }
    let mut batch = Batch::new(BatchType::Unlogged);
    batch.set_consistency(ack.consistency());
    batch.set_is_idempotent(true);
    values.iter().for_each(|_| batch.append_statement(statement.clone()));
    scylla.session.batch(&batch, values).await.context("save identities")?;
    Ok(())
}
