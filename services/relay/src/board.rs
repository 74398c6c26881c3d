//! What the lanes share: hints for them, and how far each has come.

use crate::Limits;
use adapters::scylla::Generation;
use anyhow::Result;
use futures::future::BoxFuture;
use kit::{Effect, backoff::Backoff, health::Health};
use meridian_proto::CommitTime;
use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::{Notify, Semaphore};

/// How often lag is told.
const REPORT_EVERY: Duration = Duration::from_secs(1);

pub(crate) struct Board {
    hints: Vec<Notify>,
    sealed_us: Vec<AtomicU64>,
    hold_back_us: u64,
    pub(crate) catching_up: Semaphore,
    health: Health,
    pub(crate) meters: Meters,
}

/// Metrics of the relay.
pub(crate) struct Meters {
    pub(crate) events: metrics::Counter,
    pub(crate) late_rows: metrics::Counter,
    pub(crate) dead_letters: metrics::Counter,
    pub(crate) hop_seconds: metrics::Histogram,
    lag_seconds: metrics::Gauge,
}

impl Board {
    pub(crate) fn new(generation: &Generation, limits: &Limits, health: Health) -> Self {
        let partitions = 0..generation.partitions;
        let labels = [("origin", generation.region.clone()), ("hop", "relay".into())];
        Self {
            hints: partitions.clone().map(|_| Notify::new()).collect(),
            sealed_us: partitions.map(|_| AtomicU64::new(generation.created_us)).collect(),
            hold_back_us: limits.hold_back().as_micros() as u64,
            catching_up: Semaphore::new(limits.catching_up_max),
            health,
            meters: Meters {
                events: metrics::counter!("meridian_relayed_events_total"),
                late_rows: metrics::counter!("meridian_relay_late_rows_total"),
                dead_letters: metrics::counter!("meridian_dead_letters", "service" => "relay"),
                hop_seconds: metrics::histogram!("meridian_hop_seconds", &labels),
                lag_seconds: metrics::gauge!("meridian_lag_seconds", &labels),
            },
        }
    }

    /// Waits until a hint names the partition; at once if one did since the last call.
    pub(crate) async fn hint(&self, partition: u16) {
        self.hints[usize::from(partition)].notified().await;
    }

    pub(crate) fn sealed(&self, partition: u16, through: CommitTime) {
        self.sealed_us[usize::from(partition)].store(through.0, Ordering::Relaxed);
    }

    /// Tells the health of a part, and passes on.
    pub(crate) fn told<T>(&self, part: &'static str, result: Result<T>) -> Result<T> {
        match &result {
            Ok(_) => self.health.ready(part),
            Err(error) => self.health.unready(part, format!("{error:#}")),
        }
        result
    }
}

/// Passes hints on to the lanes. Without them the lanes' own tick does.
pub(crate) fn take_hints(board: Arc<Board>, await_hint: Effect<(), BTreeSet<u16>>) -> BoxFuture<'static, Result<()>> {
    Box::pin(async move {
        let mut backoff = Backoff::default();
        loop {
            match await_hint(()).await {
                Ok(partitions) => {
                    backoff.reset();
                    let known = partitions.iter().filter_map(|partition| board.hints.get(usize::from(*partition)));
                    known.for_each(Notify::notify_one);
                }
                Err(error) => {
                    tracing::debug!(error = format!("{error:#}"), "no hints");
                    backoff.wait().await;
                }
            }
        }
    })
}

/// Tells how far the lane that is furthest behind stays behind what could be sealed.
pub(crate) fn report(board: Arc<Board>, region_time: Effect<(), CommitTime>) -> BoxFuture<'static, Result<()>> {
    Box::pin(async move {
        loop {
            tokio::time::sleep(REPORT_EVERY).await;
            let Ok(now) = region_time(()).await else { continue };
            let sealed = board.sealed_us.iter().map(|sealed| sealed.load(Ordering::Relaxed)).min().unwrap_or(now.0);
            let lag_us = now.since(CommitTime(sealed)).saturating_sub(board.hold_back_us);
            board.meters.lag_seconds.set(lag_us as f64 / 1e6);
        }
    })
}
