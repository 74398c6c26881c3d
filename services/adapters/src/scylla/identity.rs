//! Rule R6: an identity is a set of payload hashes, written before the change row.

use super::{Ack, Scylla};
use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use meridian_proto::{Identity, PayloadHash};
use scylla::statement::batch::{Batch, BatchType};
use std::{
    collections::{BTreeMap, HashMap},
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
    let mut by_source: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for Identity { tenant, source, id } in &identities {
        by_source.entry((tenant, source)).or_default().push(id);
    }
    let chunks = by_source.iter().flat_map(|(key, ids)| ids.chunks(FIND_CHUNK).map(move |ids| (*key, ids)));
    let found: Vec<HashMap<(String, String, String), Vec<PayloadHash>>> =
        stream::iter(chunks).map(|(key, ids)| find_chunk(&scylla, key, ids)).buffered(IN_FLIGHT).try_collect().await?;
    let mut known: HashMap<(String, String, String), Vec<PayloadHash>> = HashMap::new();
    for (identity, hashes) in found.into_iter().flatten() {
        known.entry(identity).or_default().extend(hashes);
    }
    let of = |Identity { tenant, source, id }: Identity| known.get(&(tenant, source, id)).cloned().unwrap_or_default();
    Ok(identities.into_iter().map(of).collect())
}

async fn find_chunk(
    scylla: &Scylla,
    (tenant, source): (&str, &str),
    ids: &[&str],
) -> Result<HashMap<(String, String, String), Vec<PayloadHash>>> {
    let statement = &scylla.statements()?.find_identity;
    let rows = scylla.session.execute_unpaged(statement, (tenant, source, ids)).await.context("find identities")?.into_rows_result()?;
    let mut known: HashMap<_, Vec<PayloadHash>> = HashMap::new();
    for row in rows.rows::<(String, &[u8])>()? {
        let (id, hash) = row?;
        let hash = PayloadHash(hash.try_into().context("a payload hash has 32 bytes")?);
        known.entry((tenant.to_owned(), source.to_owned(), id)).or_default().push(hash);
    }
    Ok(known)
}

/// Adds a payload hash to each identity. Saving what is there already changes nothing but how long it is kept.
///
/// # Errors
/// When a statement fails or is not answered in time: some may have been saved.
pub async fn save_identity(scylla: Arc<Scylla>, SaveIdentity { entries, ack }: SaveIdentity) -> Result<()> {
    stream::iter(entries.chunks(SAVE_CHUNK)).map(Ok).try_for_each_concurrent(IN_FLIGHT, |chunk| save_chunk(&scylla, chunk, ack)).await
}

async fn save_chunk(scylla: &Scylla, entries: &[(Identity, PayloadHash)], ack: Ack) -> Result<()> {
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
