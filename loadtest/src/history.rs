//! Every operation of a run, with what was sent when and what came of it.

use crate::decimal::Decimal;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::{
    fs::File,
    io::{BufRead, BufReader, BufWriter, Write},
    path::Path,
};

/// What a client knows about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// 2xx: there exactly once.
    Ok,
    /// 4xx: this request wrote nothing.
    Fail,
    /// Timeout, reset or 5xx: zero or one, never two.
    Unknown,
    /// Never sent: must not be there.
    Unsent,
}

/// One try of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Region that it was sent to.
    pub region: String,
    /// Microseconds since the Unix epoch.
    pub sent_us: u64,
    /// When the answer was read, or the try given up.
    pub answered_us: u64,
    /// HTTP status; absent without an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// What it says.
    pub outcome: Outcome,
    /// Why there is no answer, or what a refusal said, in short.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// One event of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventRecord {
    /// CloudEvents `id`; empty if the request left it out on purpose.
    pub id: String,
    /// Hash of what was given.
    #[serde(with = "hex::serde")]
    pub hash: [u8; 32],
    /// Its `amount`.
    pub amount: Decimal,
    /// From the answer.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "commit_hex")]
    pub commit_id: Option<u128>,
}

/// One operation: a request with all its tries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its number in the schedule.
    pub operation: u32,
    /// post, invalid, repeat, conflict.
    pub kind: String,
    /// What is wrong with an invalid one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// Who posts.
    pub tenant: String,
    /// Region of the first try.
    pub region: String,
    /// When it should have been sent, microseconds since the Unix epoch.
    pub intended_us: u64,
    /// In order.
    pub attempts: Vec<Attempt>,
    /// What is known in the end.
    pub outcome: Outcome,
    /// Its events, in order.
    pub events: Vec<EventRecord>,
}

impl Record {
    /// The try that decided.
    pub fn decided_by(&self) -> Option<&Attempt> {
        self.attempts.last().filter(|attempt| matches!(attempt.outcome, Outcome::Ok | Outcome::Fail))
    }

    /// Some try has an unknown outcome, whatever came later.
    pub fn was_unknown(&self) -> bool {
        self.attempts.iter().any(|attempt| attempt.outcome == Outcome::Unknown)
    }
}

/// A whole run, seen from the client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// What all records share.
    pub head: Head,
    /// In order of intended time.
    pub records: Vec<Record>,
}

/// First line of a history.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// Format of the lines.
    pub schema: String,
    /// CloudEvents `source` of every event.
    pub source: String,
    /// When the load began, microseconds since the Unix epoch.
    pub start_us: u64,
    /// When the schedule ends, microseconds since the Unix epoch.
    pub end_us: u64,
    /// What is intended before is not part of the percentiles.
    pub measured_from_us: u64,
    /// Regions of the world.
    pub regions: Vec<String>,
    /// Tenants that post.
    pub tenants: Vec<String>,
    /// Regions whose processes were ended during the run.
    pub restarted: Vec<String>,
}

/// The version that this code writes and reads.
pub const SCHEMA: &str = "meridian.history/1";

impl History {
    /// Writes it, one JSON object a line.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let file = File::create(path).with_context(|| path.display().to_string())?;
        let mut out = BufWriter::new(file);
        serde_json::to_writer(&mut out, &self.head)?;
        out.write_all(b"\n")?;
        for record in &self.records {
            serde_json::to_writer(&mut out, record)?;
            out.write_all(b"\n")?;
        }
        out.flush().context("write the history")
    }

    /// Reads what [`History::write`] wrote.
    ///
    /// # Errors
    /// Names the line that cannot be read.
    pub fn read(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| path.display().to_string())?;
        let mut lines = BufReader::new(file).lines();
        let first = lines.next().context("an empty history")??;
        let head: Head = serde_json::from_str(&first).context("line 1")?;
        ensure!(head.schema == SCHEMA, "a history of format {:?}, this program reads {SCHEMA:?}", head.schema);
        let records = lines
            .zip(2..)
            .map(|(line, number)| serde_json::from_str(&line?).with_context(|| format!("{}: line {number}", path.display())))
            .collect::<Result<_>>()?;
        Ok(Self { head, records })
    }

    /// The greatest commit time that any answer names, by region that answered.
    pub fn last_commit_us(&self) -> Vec<(String, u64)> {
        let last_in = |region: &String| {
            let answered_there = |record: &&Record| record.decided_by().is_some_and(|attempt| attempt.region == *region);
            let commits = self.records.iter().filter(answered_there).flat_map(|record| &record.events);
            commits.filter_map(|event| event.commit_id).map(|commit| (commit >> 64) as u64).max()
        };
        self.head.regions.iter().filter_map(|region| Some((region.clone(), last_in(region)?))).collect()
    }
}

mod commit_hex {
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub fn serialize<S: Serializer>(commit: &Option<u128>, serializer: S) -> Result<S::Ok, S::Error> {
        match commit {
            Some(commit) => serializer.serialize_str(&format!("{commit:032x}")),
            None => serializer.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u128>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| u128::from_str_radix(&text, 16).map_err(de::Error::custom)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_reads_back() {
        let event = |commit_id| EventRecord { id: "e1".into(), hash: [7; 32], amount: Decimal::from_units(15, 1), commit_id };
        let attempt = |outcome, status| Attempt { region: "fra".into(), sent_us: 2, answered_us: 3, status, outcome, note: String::new() };
        let record = |outcome, commit| Record {
            operation: 1,
            kind: "post".into(),
            detail: String::new(),
            tenant: "tenant-01".into(),
            region: "fra".into(),
            intended_us: 1,
            attempts: vec![attempt(Outcome::Unknown, None), attempt(outcome, Some(202))],
            outcome,
            events: vec![event(commit)],
        };
        let head = Head { schema: SCHEMA.into(), regions: vec!["fra".into(), "iad".into()], ..Head::default() };
        let history = History { head, records: vec![record(Outcome::Ok, Some(9 << 64)), record(Outcome::Fail, None)] };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history.ndjson");
        history.write(&path).unwrap();
        assert_eq!(History::read(&path).unwrap(), history);
        assert_eq!(history.last_commit_us(), [("fra".to_owned(), 9)]);
    }
}
