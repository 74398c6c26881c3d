//! What one region holds, by identity and payload.

use super::claims::{Claims, Key};
use crate::audit::{LogAudit, RegionAudit, Tier};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// One region, with the names' numbers of the whole run.
pub struct View<'a> {
    /// The audit that it shows.
    pub audit: &'a RegionAudit,
    names: Vec<u32>,
    /// Events of each origin's log: how many records each key has.
    pub logs: BTreeMap<&'a str, HashMap<Key, u32>>,
    /// Every commit id of every log.
    pub commits: HashMap<u128, Key>,
    /// ClickHouse: rows by identity. More than one is one too many.
    pub stored: HashMap<u32, Vec<(Key, u128)>>,
    /// The consumer's.
    pub handled: HashSet<Key>,
}

impl<'a> View<'a> {
    /// Orders an audit.
    pub fn of(audit: &'a RegionAudit, claims: &mut Claims) -> Self {
        let names = claims.renumber(&audit.names);
        let mut view =
            Self { audit, names, logs: BTreeMap::new(), commits: HashMap::new(), stored: HashMap::new(), handled: HashSet::new() };
        for log in &audit.logs {
            let counts = view.logs.entry(log.origin.as_str()).or_default();
            for record in &log.records {
                let key = (view.names[record.name as usize], record.hash);
                *counts.entry(key).or_default() += 1;
                view.commits.insert(record.commit, key);
            }
        }
        for row in &audit.stored {
            let key = (view.names[row.name as usize], row.hash);
            view.stored.entry(key.0).or_default().push((key, row.commit));
        }
        view.handled = audit.handled.iter().map(|event| (view.names[event.name as usize], event.hash)).collect();
        view
    }

    /// The region's name.
    pub fn region(&self) -> &'a str {
        &self.audit.region
    }

    /// Whether a tier was read.
    pub fn read(&self, tier: Tier) -> bool {
        !self.audit.unread.iter().any(|(unread, _)| *unread == tier)
    }

    /// Events of one partition: origin offset, commit id and key, each offset once.
    pub fn positions(&self, log: &LogAudit) -> BTreeMap<u64, (u128, Key)> {
        log.records.iter().map(|record| (record.offset, (record.commit, (self.names[record.name as usize], record.hash)))).collect()
    }

    /// The tiers with whether a key is there; of the logs, those of `origins`.
    pub fn sights(&self, key: &Key, origins: &BTreeSet<&str>) -> Vec<(String, bool)> {
        let region = self.region();
        let in_log = |origin: &str| self.logs.get(origin).is_some_and(|log| log.contains_key(key));
        let logs = origins.iter().filter(|_| self.read(Tier::Log)).map(|origin| (log_tier(region, origin), in_log(origin)));
        let stored = self.stored.get(&key.0).is_some_and(|rows| rows.iter().any(|(row, _)| row == key));
        let others = [(Tier::Stored, "stored", stored), (Tier::Handled, "handled", self.handled.contains(key))];
        let others = others.into_iter().filter(|(tier, ..)| self.read(*tier)).map(|(_, name, seen)| (name.to_owned(), seen));
        logs.chain(others).map(|(tier, seen)| (format!("{region}: {tier}"), seen)).collect()
    }
}

/// Name of a log in a region.
pub fn log_tier(region: &str, origin: &str) -> String {
    if region == origin { "own log".into() } else { format!("log of {origin}") }
}
