//! What the client was told, by identity and payload.

use crate::{
    audit::{HashHead, Name, Names, hash_head},
    decimal::Decimal,
    history::{History, Outcome, Record},
};
use std::collections::HashMap;

/// What is known of an identity with one payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Only ever refused, or never sent: must be nowhere.
    Absent,
    /// Refused after a try whose outcome is unknown: may be there or not, alike everywhere.
    Either,
    /// Outcome unknown to the end.
    Unknown,
    /// Answered 202: must be everywhere.
    Acknowledged,
}

/// An identity with one payload.
pub type Key = (u32, HashHead);

/// All that the client knows about a [`Key`].
#[derive(Clone, Debug)]
pub struct Claim {
    /// See [`State`].
    pub state: State,
    /// The event's amount.
    pub amount: Decimal,
    /// Region that answered, and the commit id of the answer if it named one.
    pub acks: Vec<(String, Option<u128>)>,
}

/// The whole history, by key.
pub struct Claims {
    /// Names of the history; audits add theirs.
    pub names: Names,
    /// By identity and payload.
    pub of: HashMap<Key, Claim>,
}

impl Claims {
    /// Reads a history.
    pub fn of(history: &History) -> Self {
        let mut claims = Self { names: Names::default(), of: HashMap::new() };
        for record in &history.records {
            for event in record.events.iter().filter(|event| !event.id.is_empty()) {
                let name = claims.names.number(&record.tenant, &history.head.source, &event.id);
                let fresh = || Claim { state: State::Absent, amount: event.amount, acks: Vec::new() };
                let claim = claims.of.entry((name, hash_head(&event.hash))).or_insert_with(fresh);
                claim.state = claim.state.max(state(record));
                if record.outcome == Outcome::Ok {
                    let region = record.decided_by().map(|attempt| attempt.region.clone()).unwrap_or_default();
                    claim.acks.push((region, event.commit_id));
                }
            }
        }
        claims
    }

    /// Whether an identity with this payload must or may be somewhere.
    pub fn allowed(&self, key: &Key) -> bool {
        self.of.get(key).is_some_and(|claim| claim.state > State::Absent)
    }

    /// Numbers of this audit's names.
    pub fn renumber(&mut self, names: &[Name]) -> Vec<u32> {
        names.iter().map(|name| self.names.number(&name.tenant, &name.source, &name.id)).collect()
    }
}

fn state(record: &Record) -> State {
    match record.outcome {
        Outcome::Ok => State::Acknowledged,
        Outcome::Unknown => State::Unknown,
        Outcome::Fail if record.was_unknown() => State::Either,
        Outcome::Fail | Outcome::Unsent => State::Absent,
    }
}
