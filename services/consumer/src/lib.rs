//! The reference consumer: await a signal or a tick, pull, handle, save the cursor.
//!
//! In: signals of this region's feed (may be lost), pages of any region's feed. Out: one line an event in `handled.ndjson`,
//! a cursor file a tenant. Promised: **a page is handled before its cursor is saved**, so what was seen may be seen again and
//! nothing is skipped, across kills and across regions.

mod pull;
mod signals;
mod state;

pub use pull::{Clients, PullPage, pull_page};
pub use signals::{Subscriptions, await_signal};
pub use state::{HandlePage, Line, SaveCursor, State, handle_page, load_cursor, save_cursor};

use anyhow::{Result, anyhow};
use client::{FollowConfig, Follower, Page, PullError, follow};
use kit::{Effect, backoff::Backoff, effect, health::Health, shutdown::CancellationToken};
use meridian_proto::CommitTime;
use serde::Deserialize;
use std::{collections::BTreeMap, convert::Infallible, time::Duration};
use tokio::{task::JoinSet, time::Instant};

/// Everything the consumer does to the outside world.
#[derive(Clone)]
pub struct Effects {
    /// Waits for a signal to a tenant, and gives when it was sent, microseconds since the Unix epoch.
    pub await_signal: Effect<String, u64>,
    /// Pulls the page at a tenant's cursor.
    pub pull_page: Effect<PullPage, Result<Page, PullError>>,
    /// Appends a page's events to what was handled.
    pub handle_page: Effect<HandlePage, ()>,
    /// Replaces a tenant's cursor.
    pub save_cursor: Effect<SaveCursor, ()>,
    /// Reads a tenant's cursor; empty when there is none yet.
    pub load_cursor: Effect<String, String>,
    /// The host's clock.
    pub host_time: Effect<(), CommitTime>,
}

/// Configuration, flat: see config.toml.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    /// This region.
    pub region: String,
    /// URL of this region's NATS.
    pub nats_url: String,
    /// Base URLs of feeds, the preferred one first.
    #[serde(deserialize_with = "kit::config::list")]
    pub feed_urls: Vec<String>,
    /// File of the tenants and their keys.
    pub dev_keys_file: String,
    /// Folder of cursors and of what was handled.
    pub state_dir: String,
    /// Address of the admin routes.
    pub listen: String,
}

#[derive(Deserialize)]
struct DevKeys {
    keys: BTreeMap<String, String>,
}

impl Config {
    /// The tenants and their keys.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn keys(&self) -> Result<BTreeMap<String, String>> {
        let text = std::fs::read_to_string(&self.dev_keys_file).map_err(|error| anyhow!("read {}: {error}", self.dev_keys_file))?;
        Ok(toml::from_str::<DevKeys>(&text)?.keys)
    }
}

/// Longest wait before a tenant's loop is taken up again.
const RESTART_MAX: Duration = Duration::from_secs(10);

/// Runs one loop for each tenant until asked to stop.
///
/// # Errors
/// When a loop panics.
pub async fn run(effects: Effects, tenants: Vec<String>, config: FollowConfig, health: Health, shutdown: CancellationToken) -> Result<()> {
    let mut loops = JoinSet::new();
    for tenant in tenants {
        let (effects, health) = (effects.clone(), health.clone());
        loops.spawn(async move { consume(&effects, &tenant, config, &health).await });
    }
    let all = async {
        while let Some(ended) = loops.join_next().await {
            ended?;
        }
        Ok(())
    };
    kit::shutdown::until(&shutdown, all).await.map(|_| ())
}

/// Follows one tenant's feed for ever; whatever fails is taken up again from the cursor that was saved.
async fn consume(effects: &Effects, tenant: &str, config: FollowConfig, health: &Health) -> Infallible {
    let mut backoff = Backoff::new(Duration::from_millis(200), RESTART_MAX);
    let follower = follower(effects, tenant, health);
    loop {
        let started = Instant::now();
        let end = async { follow(&follower, config, (effects.load_cursor)(tenant.to_owned()).await?).await };
        let Err(error) = end.await;
        if let Some(PullError::Trimmed(_)) = error.downcast_ref() {
            metrics::counter!("meridian_alarms_total", "alarm" => "trimmed").increment(1);
        }
        tracing::error!(tenant, error = format!("{error:#}"), "the tenant's loop ended; it will be taken up again");
        if started.elapsed() > RESTART_MAX {
            backoff.reset();
        }
        backoff.wait().await;
    }
}

fn follower(effects: &Effects, tenant: &str, health: &Health) -> Follower {
    let (await_signal, pull_page, handle_page, save_cursor) =
        (effects.await_signal.clone(), effects.pull_page.clone(), effects.handle_page.clone(), effects.save_cursor.clone());
    let host_time = effects.host_time.clone();
    let name = || tenant.to_owned();
    let (to_wait, to_pull, to_handle, to_save, health) = (name(), name(), name(), name(), health.clone());
    Follower {
        await_signal: effect(move |()| await_signal(to_wait.clone())),
        pull_page: effect(move |(cursor, limit)| {
            let (page, health) = (pull_page(PullPage { tenant: to_pull.clone(), cursor, limit }), health.clone());
            async move {
                let page = page.await;
                match &page {
                    Ok(Err(PullError::Later { reason, .. })) => health.unready("feed", reason),
                    _ => health.ready("feed"),
                }
                page
            }
        }),
        handle_page: effect(move |handled: client::Handled| {
            let (host_time, handle_page, tenant) = (host_time.clone(), handle_page.clone(), to_handle.clone());
            async move {
                let pulled_us = host_time(()).await?.0;
                handle_page(HandlePage { tenant, page: handled.page, signalled_us: handled.signalled_us, pulled_us }).await
            }
        }),
        save_cursor: effect(move |cursor| save_cursor(SaveCursor { tenant: to_save.clone(), cursor })),
    }
}
