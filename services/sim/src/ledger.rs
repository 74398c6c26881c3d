//! What clients saw: every attempt of every post, and every answer to a question.

use std::collections::BTreeMap;
use usage::Completeness;

/// How one attempt ended for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// 202, with the commit time in the answer's commit id.
    Accepted {
        /// Microseconds since the Unix epoch.
        committed_us: u64,
    },
    /// 409.
    Conflict,
    /// Another 4xx.
    Refused,
    /// 5xx, reset or no answer.
    Unknown,
}

/// One attempt.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// Tenant.
    pub tenant: &'static str,
    /// CloudEvents `id`.
    pub id: String,
    /// The amount posted: another one is another payload.
    pub amount: u64,
    /// Region asked.
    pub region: usize,
    /// When it began and ended, milliseconds.
    pub from_ms: u64,
    /// See `from_ms`.
    pub to_ms: u64,
    /// How it ended.
    pub seen: Seen,
}

/// What an answer claimed, and what it was made of.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Region that answered.
    pub region: usize,
    /// Tenant that asked.
    pub tenant: &'static str,
    /// Which store was summed up, and when by serial number.
    pub summed: (u32, u64),
    /// When it was answered, milliseconds.
    pub at_ms: u64,
    /// By origin.
    pub complete: BTreeMap<String, Completeness>,
}

/// All that clients saw.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Attempts, in order of their ends.
    pub attempts: Vec<Attempt>,
    /// Answers.
    pub claims: Vec<Claim>,
    /// What was first stored when, of stores that are gone: by region and number.
    pub gone: BTreeMap<(usize, u32), BTreeMap<crate::store::Key, u64>>,
    /// Records that cannot be read: region, partition and offset of each.
    pub poison: Vec<(usize, meridian_proto::PartitionId, u64)>,
    /// Processes that ended by themselves.
    pub ended: Vec<String>,
}

impl Ledger {
    /// Attempts that were acknowledged.
    pub fn acknowledged(&self) -> impl Iterator<Item = (&Attempt, u64)> {
        self.attempts.iter().filter_map(|attempt| match attempt.seen {
            Seen::Accepted { committed_us } => Some((attempt, committed_us)),
            _ => None,
        })
    }
}
