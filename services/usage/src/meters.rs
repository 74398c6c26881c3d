//! What is metered: the file of meters.

use adapters::clickhouse::Aggregation;
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::{collections::BTreeMap, path::Path};

/// One meter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meter {
    /// Its name: a-z, 0-9 and _.
    pub name: String,
    /// The type of the events that count.
    pub event_type: String,
    /// How they become one number.
    pub aggregation: Aggregation,
}

/// The meters by name, and what they all together are.
#[derive(Clone, Debug)]
pub struct Meters {
    by_name: BTreeMap<String, Meter>,
    hash: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    meter: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    event_type: String,
    aggregation: String,
    property: Option<String>,
}

impl Meters {
    /// Reads a file of meters.
    ///
    /// # Errors
    /// Names the meter that is wrong, and why.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("meters file {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("meters file {}", path.display()))
    }

    /// Reads the text of such a file.
    ///
    /// # Errors
    /// Names the meter that is wrong, and why.
    pub fn parse(text: &str) -> Result<Self> {
        let file: File = toml::from_str(text)?;
        let mut by_name = BTreeMap::new();
        for entry in file.meter {
            let name = entry.name.clone();
            let meter = meter(entry).with_context(|| format!("meter {name:?}"))?;
            ensure!(by_name.insert(name.clone(), meter).is_none(), "meter {name:?} is there twice");
        }
        let hash = hash(&by_name);
        Ok(Self { by_name, hash })
    }

    /// The meter of this name.
    pub fn get(&self, name: &str) -> Option<&Meter> {
        self.by_name.get(name)
    }

    /// The names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    /// SHA-256 over what the meters mean, whatever their order and the file's comments: equal where answers are comparable.
    pub fn hash(&self) -> &str {
        &self.hash
    }
}

fn meter(entry: Entry) -> Result<Meter> {
    let name_ok = !entry.name.is_empty() && entry.name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    ensure!(name_ok, "a name has the characters a-z, 0-9 and _");
    ensure!(!entry.event_type.is_empty(), "event_type must not be empty");
    let aggregation = match (entry.aggregation.as_str(), entry.property) {
        ("count", None) => Aggregation::Count,
        ("count", Some(_)) => bail!("a count has no property"),
        ("sum", Some(property)) if !property.is_empty() => Aggregation::Sum { property },
        ("sum", _) => bail!("a sum needs a property"),
        (other, _) => bail!("aggregation is sum or count, not {other:?}"),
    };
    Ok(Meter { name: entry.name, event_type: entry.event_type, aggregation })
}

/// Each part is preceded by its length, so that no two sets give the same input.
fn hash(meters: &BTreeMap<String, Meter>) -> String {
    let mut hash = Sha256::new();
    let mut part = |text: &str| {
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text.as_bytes());
    };
    for meter in meters.values() {
        part(&meter.name);
        part(&meter.event_type);
        match &meter.aggregation {
            Aggregation::Count => part("count"),
            Aggregation::Sum { property } => {
                part("sum");
                part(property);
            }
        }
    }
    hex::encode(hash.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deployments_file_reads() {
        let meters = Meters::parse(include_str!("../../../deploy/meters.toml")).unwrap();
        assert_eq!(meters.get("amount").unwrap().aggregation, Aggregation::Sum { property: "amount".into() });
        assert_eq!(meters.get("orders").unwrap().aggregation, Aggregation::Count);
    }

    #[test]
    fn the_hash_is_of_the_meaning() {
        let one = "[[meter]]\nname = \"a\"\nevent_type = \"t\"\naggregation = \"count\"\n";
        let two = "# two\n[[meter]]\nname = \"b\"\nevent_type = \"t\"\naggregation = \"sum\"\nproperty = \"p\"\n";
        let hash = |text: &str| Meters::parse(text).unwrap().hash().to_owned();
        assert_eq!(hash(&format!("{one}{two}")), hash(&format!("{two}{one}")));
        assert_ne!(hash(one), hash(two));
        assert_ne!(hash(two), hash(&two.replace("\"p\"", "\"q\"")));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let entry = |name: &str, rest: &str| format!("[[meter]]\nname = \"{name}\"\nevent_type = \"t\"\n{rest}\n");
        for (text, wrong) in [
            (entry("A", "aggregation = \"count\""), "a-z"),
            (entry("a", "aggregation = \"avg\""), "sum or count"),
            (entry("a", "aggregation = \"sum\""), "needs a property"),
            (entry("a", "aggregation = \"count\"\nproperty = \"p\""), "no property"),
            (entry("a", "aggregation = \"count\"\nunit = \"p\""), "unknown field"),
            (entry("a", "aggregation = \"count\"") + &entry("a", "aggregation = \"count\""), "twice"),
        ] {
            let error = format!("{:#}", Meters::parse(&text).unwrap_err());
            assert!(error.contains(wrong), "{error} does not say {wrong}");
        }
    }
}
