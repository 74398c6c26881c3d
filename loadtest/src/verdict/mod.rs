//! The verdict: a function of what the client was told and of what stands where, and of nothing else.

mod claims;
mod judge;
mod view;

#[cfg(test)]
mod tests;

pub use judge::judge;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Examples kept of each kind.
pub const EXAMPLES_MAX: usize = 10;

/// What is wrong after convergence, in numbers of events. Good means that all but `duplicated_in_log` are 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// All numbers below are 0, but for `duplicated_in_log`; and everything was read.
    pub good: bool,
    /// Answered 202, yet absent at a tier of a region.
    pub lost: u64,
    /// Contributes more than once to a sum.
    pub counted_twice: u64,
    /// Refused or never sent, yet present at a tier of a region.
    pub phantom: u64,
    /// Tiers of regions whose set or sum differs from what it must be.
    pub divergent: u64,
    /// Outcome unknown to the end.
    pub unresolved: u64,
    /// Identities under which two payloads were accepted.
    pub conflicts: u64,
    /// Answers that must not be given: a wrong event accepted, a right one refused.
    pub wrong_answers: u64,
    /// Records of an event beyond the first; allowed, counted.
    pub duplicated_in_log: u64,
    /// Why there is no judgement; empty when there is one.
    pub not_judged: Vec<String>,
    /// By the kind's name, up to ten each.
    pub examples: BTreeMap<String, Vec<Example>>,
    /// Each tier of each region.
    pub tiers: Vec<TierLine>,
    /// Events acknowledged, by identity and payload.
    pub acknowledged: u64,
    /// Exact sum of the amounts that must be counted.
    pub sum: String,
}

/// One event that is not where it should be, or is where it should not be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Example {
    /// Tenant.
    pub tenant: String,
    /// CloudEvents `source`.
    pub source: String,
    /// CloudEvents `id`.
    pub id: String,
    /// What is known about it.
    pub what: String,
    /// Tiers of regions where it was seen.
    pub seen: Vec<String>,
    /// Tiers of regions where it was not.
    pub not_seen: Vec<String>,
}

/// A tier of a region, against what it must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierLine {
    /// Region.
    pub region: String,
    /// Tier.
    pub tier: String,
    /// Events there.
    pub events: u64,
    /// Events that must be there.
    pub expected: u64,
    /// Sum of amounts, where the tier has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sum: Option<String>,
    /// What differs, in words; empty when nothing does.
    pub differs: Vec<String>,
}

impl Verdict {
    /// The kinds that must be 0, by name.
    pub fn counts(&self) -> [(&'static str, u64); 7] {
        [
            ("lost", self.lost),
            ("counted_twice", self.counted_twice),
            ("phantom", self.phantom),
            ("divergent", self.divergent),
            ("unresolved", self.unresolved),
            ("conflicts", self.conflicts),
            ("wrong_answers", self.wrong_answers),
        ]
    }

    /// Adds reasons why the run proves less than it should.
    pub fn doubt(&mut self, reasons: impl IntoIterator<Item = String>) {
        self.not_judged.extend(reasons);
        self.good = self.exit_code() == 0;
    }

    /// 0 good, 1 bad, 2 could not judge.
    pub fn exit_code(&self) -> u8 {
        let bad = self.counts().iter().any(|(_, count)| *count > 0);
        match (bad, self.not_judged.is_empty()) {
            (true, _) => 1,
            (false, true) => 0,
            (false, false) => 2,
        }
    }

    /// In words, for a person.
    pub fn words(&self) -> String {
        let bad: Vec<String> = self
            .counts()
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| format!("{count} {}", name.replace('_', " ")))
            .collect();
        match (self.not_judged.is_empty(), bad.is_empty()) {
            (true, true) => format!("GOOD: {} acknowledged events are everywhere once, sums are equal ({})", self.acknowledged, self.sum),
            (true, false) => format!("BAD: {}", bad.join(", ")),
            (false, true) => format!("COULD NOT JUDGE: {}", self.not_judged.join("; ")),
            (false, false) => format!("BAD: {}; beyond that not judged: {}", bad.join(", "), self.not_judged.join("; ")),
        }
    }
}
