//! Reading back what durability and retention stand on.

use crate::topics::{self, Layout};
use adapters::{redpanda::TopicSettings, scylla::Durability};
use anyhow::{Context, Result, bail, ensure};
use kit::Effect;

/// Everything the job does to the outside world.
#[derive(Clone)]
pub struct Effects {
    /// The database's commit log, hint window and tables.
    pub read_durability: Effect<(), Durability>,
    /// Makes the topics that are missing, and checks the others.
    pub create_topics: Effect<Vec<TopicSettings>, ()>,
    /// Whether the analytics store counts by identity.
    pub check_settings: Effect<(), ()>,
}

/// Reads back and compares; gives one line for each thing that holds.
///
/// # Errors
/// Says what does not hold.
pub async fn check(effects: &Effects, layout: &Layout, regions: &[String]) -> Result<Vec<String>> {
    let Effects { read_durability, create_topics, check_settings } = effects;
    let durability = read_durability(()).await.context("database")?;
    let mut lines = database(&durability, layout.retention_ms()? / 1000)?;
    let count = topics::apply(&topics::Effects { create_topics: create_topics.clone() }, layout, regions).await.context("log")?;
    let settings = &layout.events.settings;
    lines.push(format!("{count} topics: {}, retention {}", settings["message.timestamp.type"], days(layout.retention_ms()? / 1000)));
    check_settings(()).await.context("analytics store")?;
    lines.push("analytics store: deduplicates by identity and nothing else".into());
    Ok(lines)
}

/// The change log's table.
const CHANGES: &str = "changes";

fn database(found: &Durability, retention_s: u64) -> Result<Vec<String>> {
    let Durability { release, commitlog_sync, hint_window_s, tables } = found;
    // `periodic` answers before the write is on disk, and loses it at a kill.
    ensure!(["batch", "group"].contains(&&**commitlog_sync), "commitlog_sync is {commitlog_sync}: acknowledged rows are lost at a kill");
    for table in tables {
        let (name, grace) = (&table.name, table.gc_grace_s);
        ensure!(grace >= *hint_window_s, "table {name}: gc_grace_seconds {grace} is less than the hint window of {hint_window_s} s");
    }
    let Some(changes) = tables.iter().find(|table| table.name == CHANGES) else { bail!("there is no table {CHANGES}") };
    let ttl_s = changes.ttl_s;
    ensure!(retention_s < ttl_s, "the log keeps events for {retention_s} s, the change log for {ttl_s} s only: it must be longer");
    Ok(vec![
        format!(
            "database {release}: commit log {commitlog_sync}, hint window {} h <= gc_grace of {} tables",
            hint_window_s / 3600,
            tables.len()
        ),
        format!("retention: log {} < change log {}", days(retention_s), days(ttl_s)),
    ])
}

fn days(seconds: u64) -> String {
    format!("{} d", seconds / 86_400)
}

#[cfg(test)]
mod tests {
    use super::*;
    use adapters::scylla::TableTimes;

    fn check(commitlog_sync: &str, gc_grace_s: u64, ttl_s: u64) -> Result<Vec<String>> {
        let tables = vec![TableTimes { name: CHANGES.into(), gc_grace_s, ttl_s }];
        let found = Durability { release: "5.0.9".into(), commitlog_sync: commitlog_sync.into(), hint_window_s: 10_800, tables };
        database(&found, 604_800)
    }

    #[test]
    fn what_loses_rows_is_refused() {
        assert_eq!(check("batch", 21_600, 1_209_600).unwrap()[1], "retention: log 7 d < change log 14 d");
        for (wrong, said) in [
            (check("periodic", 21_600, 1_209_600), "lost at a kill"),
            (check("batch", 0, 1_209_600), "less than the hint window"),
            (check("batch", 21_600, 604_800), "must be longer"),
        ] {
            let error = wrong.unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
