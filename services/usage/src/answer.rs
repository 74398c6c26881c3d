//! Answering a question for usage.

use crate::{Completeness, Effects, Meters, Window, WindowError, completeness::completeness, time_zone_rules, windows};
use adapters::clickhouse::{Bucket, StoreRow, SumMeter};
use api::{Kind, Problem};
use jiff::{Timestamp, tz::TimeZone};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::{IntoParams, ToSchema};

/// A question.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Question {
    /// Name of a meter.
    pub meter: String,
    /// Where the time asked for begins, RFC 3339, inclusive.
    #[param(example = "2026-03-01T00:00:00Z")]
    pub from: String,
    /// Where it ends, RFC 3339, exclusive.
    #[param(example = "2026-04-01T00:00:00Z")]
    pub to: String,
    /// How long the windows are; one over everything when absent. An answer has at most 1000.
    #[serde(default)]
    #[param(inline)]
    pub window: Window,
    /// IANA name of the time zone by whose calendar windows begin; UTC when absent.
    pub tz: Option<String>,
}

/// One window's usage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UsageWindow {
    /// Inclusive, RFC 3339 with the zone's offset.
    pub from: String,
    /// Exclusive.
    pub to: String,
    /// An exact decimal.
    pub value: String,
    /// Events counted in it, each identity once.
    pub events: u64,
    /// Events among them whose value could not be read; they add nothing.
    pub skipped: u64,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Answer {
    /// The meter.
    pub meter: String,
    /// The region that answers.
    pub region: String,
    /// The IANA time zone.
    pub tz: String,
    /// All windows of the time asked for, in order; their sum is the total.
    pub windows: Vec<UsageWindow>,
    /// By origin region, how complete the windows are.
    pub complete: BTreeMap<String, Completeness>,
    /// SHA-256 of what all meters mean. Answers with the same hash, rules and engine release are comparable.
    pub meters: String,
    /// Version of the time zone rules.
    pub tz_rules: String,
    /// Release of the engine that summed.
    pub engine: String,
}

/// Answers a tenant. An event counts in the window that holds its own time, or its commit time when it gave none.
///
/// # Errors
/// A problem that names the parameter that is wrong, or 503 when the store does not answer.
pub async fn answer(
    effects: &Effects,
    meters: &Meters,
    regions: &[String],
    region: &str,
    tenant: &str,
    question: Question,
) -> Result<Answer, Problem> {
    let Some(meter) = meters.get(&question.meter) else {
        let names: Vec<&str> = meters.names().collect();
        return Err(Problem::at(Kind::Invalid, "meter", format!("there is no such meter; there are: {}", names.join(", "))));
    };
    let tz = question.tz.as_deref().unwrap_or("UTC");
    let zone = windows::zone(tz).map_err(|error| Problem::at(Kind::Invalid, "tz", error.to_string()))?;
    let (from, to) = (time("from", &question.from)?, time("to", &question.to)?);
    let edges = windows::edges(from, to, question.window, &zone).map_err(|error| {
        let field = if error == WindowError::TooMany { "window" } else { "to" };
        Problem::at(Kind::Invalid, field, error.to_string())
    })?;
    // Before the sums: what is stored later can only make them more complete than is said.
    let progress = (effects.read_progress)(()).await.map_err(unavailable)?;
    let micros: Vec<i64> = edges.iter().map(|edge| edge.as_microsecond()).collect();
    let Some((end_us, starts_us)) = micros.split_last() else { return Err(Problem::new(Kind::Internal, "no windows")) };
    let sum = SumMeter {
        tenant: tenant.into(),
        event_type: meter.event_type.clone(),
        aggregation: meter.aggregation.clone(),
        starts_us: starts_us.to_vec(),
        end_us: *end_us,
    };
    let buckets = (effects.sum_meter)(sum).await.map_err(unavailable)?;
    // After the sums: progress of a store that was made anew before them says nothing of them.
    let StoreRow { store, release } = (effects.read_store)(()).await.map_err(unavailable)?;
    if store != progress.store {
        return Err(unavailable(anyhow::anyhow!("the store {} became {store} while it answered", progress.store)));
    }
    Ok(Answer {
        meter: meter.name.clone(),
        region: region.into(),
        tz: tz.into(),
        windows: fill(&edges, &buckets, &zone),
        complete: completeness(regions, &progress),
        meters: meters.hash().into(),
        tz_rules: time_zone_rules().into(),
        engine: release,
    })
}

/// Every window, those without events too.
fn fill(edges: &[Timestamp], buckets: &[Bucket], zone: &TimeZone) -> Vec<UsageWindow> {
    let by_start: BTreeMap<i64, &Bucket> = buckets.iter().map(|bucket| (bucket.start_us, bucket)).collect();
    let text = |edge: Timestamp| edge.display_with_offset(zone.to_offset(edge)).to_string();
    let window = |pair: &[Timestamp]| {
        let bucket = by_start.get(&pair[0].as_microsecond());
        UsageWindow {
            from: text(pair[0]),
            to: text(pair[1]),
            value: bucket.map_or_else(|| "0".to_owned(), |bucket| bucket.value.clone()),
            events: bucket.map_or(0, |bucket| bucket.events),
            skipped: bucket.map_or(0, |bucket| bucket.skipped),
        }
    };
    edges.windows(2).map(window).collect()
}

/// Microseconds are what events are kept in; finer times would be rounded, so they are refused.
fn time(field: &str, text: &str) -> Result<Timestamp, Problem> {
    let refuse = |detail: &str| Problem::at(Kind::Invalid, field, detail);
    let time: Timestamp = text.parse().map_err(|_| refuse("must be an RFC 3339 time, such as 2026-03-01T00:00:00Z"))?;
    if time.as_nanosecond() % 1000 != 0 {
        return Err(refuse("is finer than microseconds"));
    }
    Ok(time)
}

pub(crate) fn unavailable(error: anyhow::Error) -> Problem {
    tracing::warn!(error = format!("{error:#}"), "the store did not answer");
    Problem::new(Kind::Unavailable, "the analytics store did not answer; repeat the question")
}
