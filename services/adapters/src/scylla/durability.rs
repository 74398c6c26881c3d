//! What the database says about its own durability.

use super::Scylla;
use anyhow::{Context, Result, bail};
use std::sync::Arc;

/// Settings and times that promises stand on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Durability {
    /// The node's release.
    pub release: String,
    /// `batch`, `group` or `periodic`: whether an answer waits for the disk.
    pub commitlog_sync: String,
    /// For how long hints are kept for an absent node, seconds.
    pub hint_window_s: u64,
    /// The tables of the keyspace.
    pub tables: Vec<TableTimes>,
}

/// Times of one table, in seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableTimes {
    /// Its name.
    pub name: String,
    /// `gc_grace_seconds`.
    pub gc_grace_s: u64,
    /// `default_time_to_live`; 0 for ever.
    pub ttl_s: u64,
}

/// Reads what holds in the own region's node, and the keyspace's tables.
///
/// # Errors
/// When a statement fails, or the node does not name its settings.
pub async fn read_durability(scylla: Arc<Scylla>, (): ()) -> Result<Durability> {
    let release = scylla.session.query_unpaged("SELECT release_version FROM system.local", ()).await?.into_rows_result()?;
    let (release,) = release.single_row::<(String,)>()?;
    let text = "SELECT table_name, gc_grace_seconds, default_time_to_live FROM system_schema.tables WHERE keyspace_name = 'meridian'";
    let rows = scylla.session.query_unpaged(text, ()).await.context("read the tables")?.into_rows_result()?;
    let tables = rows.rows::<(String, i32, i32)>()?.map(|row| {
        let (name, gc_grace, ttl) = row?;
        Ok(TableTimes { name, gc_grace_s: gc_grace.try_into()?, ttl_s: ttl.try_into()? })
    });
    let tables = tables.collect::<Result<Vec<_>>>()?;
    let hint_window = setting(&scylla, &["max_hint_window", "max_hint_window_in_ms"]).await?;
    Ok(Durability {
        release,
        commitlog_sync: setting(&scylla, &["commitlog_sync"]).await?,
        hint_window_s: seconds(&hint_window).with_context(|| format!("hint window {hint_window:?}"))?,
        tables,
    })
}

/// The first of `names` that the node knows: Cassandra shows its settings in one table, ScyllaDB in another.
async fn setting(scylla: &Scylla, names: &[&str]) -> Result<String> {
    for table in ["system_views.settings", "system.config"] {
        for name in names {
            let text = format!("SELECT value FROM {table} WHERE name = ?");
            let Ok(answer) = scylla.session.query_unpaged(text, (name,)).await else { continue };
            if let Some((Some(value),)) = answer.into_rows_result()?.maybe_first_row::<(Option<String>,)>()? {
                return Ok(value.trim_matches('"').to_owned());
            }
        }
    }
    bail!("the node does not say its {}", names[0])
}

/// `3h`, `90m`, `30s`, `10800000ms`; a bare number is milliseconds.
fn seconds(text: &str) -> Option<u64> {
    let digits = text.len() - text.trim_start_matches(|letter: char| letter.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    match unit {
        "" | "ms" => Some(number / 1000),
        "s" => Some(number),
        "m" => Some(number * 60),
        "h" => Some(number * 3600),
        "d" => Some(number * 86_400),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::seconds;

    #[test]
    fn times_are_read_in_all_units() {
        assert_eq!(["3h", "180m", "10800s", "10800000ms", "10800000"].map(seconds), [Some(10_800); 5]);
        assert_eq!(["", "h", "3 weeks"].map(seconds), [None; 3]);
    }
}
