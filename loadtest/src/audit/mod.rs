//! What stands where after a run: every tier of every region, by id.

pub mod collect;
pub mod log_check;
pub mod outside;

use crate::decimal::Decimal;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::{collections::HashMap, fs, path::Path};

/// First bytes of a dump.
const MAGIC: &[u8] = b"meridian.audit/1\n";

/// (tenant, source, id).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Name {
    /// Tenant.
    pub tenant: String,
    /// CloudEvents `source`.
    pub source: String,
    /// CloudEvents `id`.
    pub id: String,
}

/// First half of a payload hash: enough to tell payloads apart.
pub type HashHead = [u8; 16];

/// The first half of a whole hash; shorter ones are filled with zeros.
pub fn hash_head(hash: &[u8]) -> HashHead {
    let mut head = HashHead::default();
    hash.iter().take(head.len()).zip(&mut head).for_each(|(byte, place)| *place = *byte);
    head
}

/// An event in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogRecord {
    /// Index in [`RegionAudit::names`].
    pub name: u32,
    /// Payload hash.
    pub hash: HashHead,
    /// Commit id.
    pub commit: u128,
    /// Offset in its origin's log.
    pub offset: u64,
    /// When ingest had read it, microseconds since the Unix epoch.
    pub accepted_us: u64,
    /// Append time in its origin, milliseconds since the Unix epoch.
    pub relayed_ms: i64,
    /// Append time here, milliseconds since the Unix epoch.
    pub appended_ms: i64,
}

/// One partition of one topic of events, as a region has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogAudit {
    /// Region whose relay writes the topic.
    pub origin: String,
    /// Generation of the topic.
    pub generation: u32,
    /// Partition.
    pub partition: u16,
    /// Events, in the order of the local log.
    pub records: Vec<LogRecord>,
    /// Origin offsets that stand there more than once.
    pub repeated_positions: Vec<u64>,
    /// Commit ids that came after a watermark had sealed their time: harmless only if they were never acknowledged.
    pub late: Vec<u128>,
    /// What is wrong with it by itself, in words: gaps, order, watermarks that don't hold, records that cannot be read.
    pub faults: Vec<String>,
}

/// A row of ClickHouse's `events`, read as sums are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredRow {
    /// Index in [`RegionAudit::names`].
    pub name: u32,
    /// Payload hash.
    pub hash: HashHead,
    /// Commit id.
    pub commit: u128,
    /// When the sink stated that it is stored, microseconds since the Unix epoch; 0 if that is not known (any more).
    pub stored_us: u64,
}

/// What a region's usage answers for a tenant and the run's time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantUsage {
    /// Tenant.
    pub tenant: String,
    /// The summing meter.
    pub sum: Decimal,
    /// The counting meter.
    pub count: u64,
}

/// An event that the region's consumer handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handled {
    /// Index in [`RegionAudit::names`].
    pub name: u32,
    /// Payload hash.
    pub hash: HashHead,
    /// Commit id.
    pub commit: u128,
    /// When the signal was sent that made the consumer pull; 0 if it pulled by its tick.
    pub signalled_us: u64,
    /// When the page was there.
    pub pulled_us: u64,
}

/// One region after a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionAudit {
    /// Its name.
    pub region: String,
    /// Whom the rows are about.
    pub names: Vec<Name>,
    /// Every partition of every topic of events.
    pub logs: Vec<LogAudit>,
    /// ClickHouse.
    pub stored: Vec<StoredRow>,
    /// Usage by tenant.
    pub usage: Vec<TenantUsage>,
    /// The consumer.
    pub handled: Vec<Handled>,
    /// Tiers that could not be read, and why: what is not read is not judged.
    pub unread: Vec<(Tier, String)>,
}

/// Where an event must be, in every region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Tier {
    /// The log: the region's own topics and the copies of the others'.
    Log,
    /// Rows of ClickHouse.
    Stored,
    /// The answer of usage.
    Usage,
    /// What the consumer handled.
    Handled,
}

impl RegionAudit {
    /// Writes it as one compact file.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let bytes = postcard::to_extend(self, MAGIC.to_vec()).context("encode the audit")?;
        fs::write(path, bytes).with_context(|| path.display().to_string())
    }

    /// Reads what [`RegionAudit::write`] wrote.
    ///
    /// # Errors
    /// When it is not such a file.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = fs::read(path).with_context(|| path.display().to_string())?;
        let body = bytes.strip_prefix(MAGIC);
        ensure!(body.is_some(), "{} is not an audit of this version", path.display());
        postcard::from_bytes(body.unwrap_or_default()).with_context(|| format!("{} is damaged", path.display()))
    }
}

/// Gives each name one number.
#[derive(Debug, Default)]
pub struct Names {
    list: Vec<Name>,
    numbers: HashMap<Name, u32>,
}

impl Names {
    /// Goes on from names that have their numbers.
    pub fn of(list: Vec<Name>) -> Self {
        let numbers = list.iter().cloned().zip(0..).collect();
        Self { list, numbers }
    }

    /// The number of a name, a new one if it was not seen before.
    pub fn number(&mut self, tenant: &str, source: &str, id: &str) -> u32 {
        let name = Name { tenant: tenant.into(), source: source.into(), id: id.into() };
        if let Some(number) = self.numbers.get(&name) {
            return *number;
        }
        let number = self.list.len() as u32;
        self.list.push(name.clone());
        self.numbers.insert(name, number);
        number
    }

    /// The names by number.
    pub fn into_list(self) -> Vec<Name> {
        self.list
    }
}

/// Which events an audit is about: those of the run's source, and whatever else was committed since it began.
#[derive(Clone, Debug)]
pub struct Scope {
    /// CloudEvents `source` of the run.
    pub source: String,
    /// Microseconds since the Unix epoch.
    pub since_us: u64,
}

impl Scope {
    /// Whether an event is in it.
    pub fn holds(&self, source: &str, commit: u128) -> bool {
        source == self.source || (commit >> 64) as u64 >= self.since_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dump_reads_back_and_damage_is_seen() {
        let mut names = Names::default();
        assert_eq!([names.number("t", "s", "a"), names.number("t", "s", "b"), names.number("t", "s", "a")], [0, 1, 0]);
        let stored = vec![StoredRow { name: 1, hash: hash_head(&[3; 32]), commit: u128::MAX - 5, stored_us: 3 }];
        let audit = RegionAudit { region: "fra".into(), names: names.into_list(), stored, ..RegionAudit::default() };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fra.audit");
        audit.write(&path).unwrap();
        assert_eq!(RegionAudit::read(&path).unwrap(), audit);
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        assert!(RegionAudit::read(&path).is_err());
        fs::write(&path, b"something else").unwrap();
        assert!(RegionAudit::read(&path).is_err());
    }

    #[test]
    fn the_scope_holds_the_run_and_what_came_after_it_began() {
        let scope = Scope { source: "/loadtest/x".into(), since_us: 100 };
        assert!(scope.holds("/loadtest/x", 5 << 64) && scope.holds("/other", 100 << 64) && !scope.holds("/other", 99 << 64));
    }
}
