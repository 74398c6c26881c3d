//! A tenant's conflicts: identities that were posted with several payloads.

use crate::{Effects, answer::unavailable, completeness::text};
use adapters::clickhouse::{ConflictRow, ListConflicts};
use api::Problem;
use meridian_proto::CommitId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How many identities an answer holds at most.
const LIMIT: u32 = 1000;

/// One payload of an identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Payload {
    /// Least commit id of this payload.
    pub commit_id: String,
    /// Its time, RFC 3339.
    pub committed: String,
    /// Payload hash, hexadecimal SHA-256.
    pub hash: String,
    /// Region in which it was committed.
    pub origin: String,
    /// CloudEvents `type`.
    #[serde(rename = "type")]
    pub event_type: String,
}

/// An identity with several payloads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Conflict {
    /// CloudEvents `source`.
    pub source: String,
    /// CloudEvents `id`.
    pub id: String,
    /// The payload that counts: the one with the least commit id.
    pub counted: Payload,
    /// The others; they add nothing.
    pub ignored: Vec<Payload>,
}

/// A tenant's conflicts, in order of source and id: the same in every region that holds the same events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Conflicts {
    /// At most 1000.
    pub conflicts: Vec<Conflict>,
    /// Whether there are more.
    pub more: bool,
}

/// Answers a tenant.
///
/// # Errors
/// 503 when the store does not answer.
pub async fn conflicts(effects: &Effects, tenant: &str) -> Result<Conflicts, Problem> {
    let question = ListConflicts { tenant: tenant.into(), limit: LIMIT + 1 };
    let rows = (effects.list_conflicts)(question).await.map_err(unavailable)?;
    let mut conflicts: Vec<Conflict> = rows.chunk_by(|a, b| (&a.source, &a.id) == (&b.source, &b.id)).filter_map(conflict).collect();
    let more = conflicts.len() > LIMIT as usize;
    conflicts.truncate(LIMIT as usize);
    Ok(Conflicts { conflicts, more })
}

fn conflict(rows: &[ConflictRow]) -> Option<Conflict> {
    let (first, others) = rows.split_first()?;
    Some(Conflict {
        source: first.source.clone(),
        id: first.id.clone(),
        counted: payload(first),
        ignored: others.iter().map(payload).collect(),
    })
}

fn payload(row: &ConflictRow) -> Payload {
    let commit_id = CommitId(row.commit_id);
    Payload {
        commit_id: commit_id.to_string(),
        committed: text(commit_id.time().0),
        hash: hex::encode(row.hash),
        origin: row.origin.clone(),
        event_type: row.event_type.clone(),
    }
}
