//! What is read from outside of a region: its usage, through the public interface, and its consumer's file.

use super::{Handled, Names, RegionAudit, Scope, TenantUsage, Tier, hash_head};
use crate::{decimal::Decimal, history::Head, world::World};
use anyhow::{Context, Result};
use client::{Client, ClientConfig, UsageQuery, connection_pool};
use serde::Deserialize;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufRead, BufReader, Read},
    path::Path,
    time::Duration,
};

/// Longest wait for one answer of usage.
const ANSWER: Duration = Duration::from_secs(10);

/// Asks every region for usage.
pub struct Usage {
    clients: BTreeMap<String, Client>,
    meter: String,
    regions: Vec<String>,
}

/// How far each origin's events are known to be complete, microseconds since the Unix epoch; 0 is unknown.
pub type Complete = BTreeMap<String, u64>;

impl Usage {
    /// For the tenants of a run.
    ///
    /// # Errors
    /// When the world has no key for one of them, or exposes no usage.
    pub fn on(world: &World, tenants: &[String], meter: &str) -> Result<Self> {
        let pool = connection_pool(Duration::from_secs(1))?;
        let (urls, keys) = (world.urls("usage")?, world.keys()?);
        let client = |tenant: &String| {
            let key = keys.get(tenant).with_context(|| format!("the world has no key for {tenant}"))?.clone();
            let config = ClientConfig { usage_urls: urls.clone(), key, attempt_timeout: ANSWER, ..ClientConfig::default() };
            Ok((tenant.clone(), Client::with_pool(pool.clone(), config)))
        };
        Ok(Self { clients: tenants.iter().map(client).collect::<Result<_>>()?, meter: meter.into(), regions: world.region_names() })
    }

    /// The answer for one tenant, as it came.
    ///
    /// # Errors
    /// When the region does not answer.
    pub async fn ask(&self, region: &str, tenant: &str, head: &Head) -> Result<Value> {
        let client = self.clients.get(tenant).with_context(|| format!("no key for {tenant}"))?;
        // The events' own times lie between start and end of the load.
        let query =
            UsageQuery { meter: self.meter.clone(), from: rfc3339(head.start_us), to: rfc3339(head.end_us + 1), ..UsageQuery::default() };
        let region = self.regions.iter().position(|known| known == region).with_context(|| format!("no region {region}"))?;
        client.usage_of(region, &query).await?
    }

    /// How complete a region's answers are.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn complete(&self, region: &str, head: &Head) -> Result<Complete> {
        let tenant = head.tenants.first().context("no tenants")?;
        complete(&self.ask(region, tenant, head).await?)
    }

    /// What a region counts for each tenant of the run.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn by_tenant(&self, region: &str, head: &Head) -> Result<Vec<TenantUsage>> {
        let mut all = Vec::new();
        for tenant in &head.tenants {
            let (sum, count) = total(&self.ask(region, tenant, head).await?)?;
            all.push(TenantUsage { tenant: tenant.clone(), sum, count });
        }
        all.retain(|usage| usage.count > 0 || usage.sum != Decimal::default());
        Ok(all)
    }
}

fn rfc3339(us: u64) -> String {
    jiff::Timestamp::from_microsecond(us as i64).map(|time| format!("{time:.6}")).unwrap_or_default()
}

#[derive(Deserialize)]
struct Answer {
    windows: Vec<Window>,
    complete: BTreeMap<String, Completeness>,
}

#[derive(Deserialize)]
struct Window {
    value: Decimal,
    events: u64,
}

#[derive(Deserialize)]
struct Completeness {
    through: Option<jiff::Timestamp>,
}

fn read(answer: &Value) -> Result<Answer> {
    Answer::deserialize(answer).with_context(|| format!("not an answer of usage: {answer}"))
}

/// Sum and number of events over all windows of an answer.
fn total(answer: &Value) -> Result<(Decimal, u64)> {
    let windows = read(answer)?.windows;
    Ok((windows.iter().map(|window| window.value).sum(), windows.iter().map(|window| window.events).sum()))
}

/// For each origin the time through which everything acknowledged there is in the answer.
fn complete(answer: &Value) -> Result<Complete> {
    let us = |through: Option<jiff::Timestamp>| through.and_then(|time| u64::try_from(time.as_microsecond()).ok()).unwrap_or_default();
    Ok(read(answer)?.complete.into_iter().map(|(origin, entry)| (origin, us(entry.through))).collect())
}

#[derive(Deserialize)]
struct Line {
    tenant: String,
    source: String,
    id: String,
    hash: String,
    commit_id: String,
    #[serde(default)]
    signalled_us: u64,
    pulled_us: u64,
}

/// Adds usage and the consumer's file to an audit whose engines were read. A tier that cannot be read is named.
pub async fn add(audit: &mut RegionAudit, world: &World, usage: &Usage, head: &Head) {
    match usage.by_tenant(&audit.region, head).await {
        Ok(usage) => audit.usage = usage,
        Err(error) => audit.unread.push((Tier::Usage, format!("{error:#}"))),
    }
    let path = world.region_folder(&audit.region).join("consumer/handled.ndjson");
    let scope = Scope { source: head.source.clone(), since_us: head.start_us };
    let mut names = Names::of(std::mem::take(&mut audit.names));
    match handled(&path, &scope, &mut names) {
        Ok(events) => audit.handled = events,
        Err(error) => audit.unread.push((Tier::Handled, format!("{error:#}"))),
    }
    audit.names = names.into_list();
}

/// Reads a consumer's file. A last line without its end is a write that was cut off: it does not count.
fn handled(path: &Path, scope: &Scope, names: &mut Names) -> Result<Vec<Handled>> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    read_handled(file, scope, names).with_context(|| path.display().to_string())
}

fn read_handled(file: impl Read, scope: &Scope, names: &mut Names) -> Result<Vec<Handled>> {
    let mut reader = BufReader::new(file);
    let mut events = Vec::new();
    let mut text = Vec::new();
    for number in 1.. {
        text.clear();
        reader.read_until(b'\n', &mut text)?;
        if text.last() != Some(&b'\n') {
            break;
        }
        let line: Line = serde_json::from_slice(&text).with_context(|| format!("line {number}"))?;
        let commit = u128::from_str_radix(&line.commit_id, 16).with_context(|| format!("line {number}: commit id"))?;
        if !scope.holds(&line.source, commit) {
            continue;
        }
        let hash = hex::decode(&line.hash).with_context(|| format!("line {number}: hash"))?;
        events.push(Handled {
            name: names.number(&line.tenant, &line.source, &line.id),
            hash: hash_head(&hash),
            commit,
            signalled_us: line.signalled_us,
            pulled_us: line.pulled_us,
        });
    }
    Ok(events)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_torn_last_line_is_left_out_and_a_damaged_one_is_an_error() {
        let line = |id: &str| {
            let (hash, commit) = ("ab".repeat(32), format!("{:032x}", 200_u128 << 64));
            json!({"tenant": "t", "source": "/run", "id": id, "hash": hash, "commit_id": commit, "pulled_us": 5, "signalled_us": 4, "new": 1}).to_string()
        };
        let scope = Scope { source: "/run".into(), since_us: 100 };
        let text = format!("{}\n{}\n{}", line("a"), line("b"), &line("c")[..20]);
        let mut names = Names::default();
        let events = read_handled(text.as_bytes(), &scope, &mut names).unwrap();
        assert_eq!(events.len(), 2);
        assert_eq!((events[1].name, events[1].pulled_us, events[1].hash[0]), (1, 5, 0xab));
        let damaged = format!("{}\n{}\n", &line("c")[..20], line("a"));
        assert!(read_handled(damaged.as_bytes(), &scope, &mut names).is_err());
    }

    #[test]
    fn answers_of_usage_are_read_exactly() {
        let answer = json!({
            "windows": [{"value": "0.1", "events": 2}, {"value": "0.2", "events": 3}],
            "complete": {"fra": {"through": "2026-01-01T00:00:00.5Z", "gaps": []}, "iad": {"through": null}},
        });
        let (sum, count) = total(&answer).unwrap();
        assert_eq!((sum.to_string().as_str(), count), ("0.3", 5));
        let complete = complete(&answer).unwrap();
        assert_eq!((complete["fra"], complete["iad"]), (1_767_225_600_500_000, 0));
        assert!(total(&json!({})).is_err() && super::complete(&json!({"windows": [], "complete": true})).is_err());
    }
}
