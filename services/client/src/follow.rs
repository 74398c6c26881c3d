//! Following the feed: await a wake-up or a tick, pull until nothing is left, handle, save the cursor.

use crate::{Page, PullError};
use anyhow::{Context, Result};
use kit::{Effect, backoff::Backoff};
use std::{convert::Infallible, time::Duration};
use tokio::time::{Instant, timeout};

/// How a feed is followed.
#[derive(Clone, Copy, Debug)]
pub struct FollowConfig {
    /// Events a page at most.
    pub limit: u32,
    /// Longest time without a pull: what covers lost wake-ups.
    pub tick: Duration,
    /// A cursor that moved over nothing of the tenant's is kept at most once in this time.
    pub save_idle: Duration,
}

impl Default for FollowConfig {
    fn default() -> Self {
        Self { limit: 500, tick: Duration::from_secs(1), save_idle: Duration::from_secs(10) }
    }
}

/// A page, handed over to be handled.
#[derive(Debug)]
pub struct Handled {
    /// The page.
    pub page: Page,
    /// When it was asked for because of a signal: when that was sent, microseconds since the Unix epoch.
    pub signalled_us: Option<u64>,
}

/// Everything that following a feed does to the outside world.
#[derive(Clone)]
pub struct Follower {
    /// Waits for a hint that there is something new; gives when it was sent, microseconds since the Unix epoch.
    /// Dropped and asked again at each tick.
    pub await_signal: Effect<(), u64>,
    /// Pulls the page at a cursor, with at most so many events.
    pub pull_page: Effect<(String, u32), Result<Page, PullError>>,
    /// Handles a page, whole; at least once. Handled means: would survive a crash.
    pub handle_page: Effect<Handled, ()>,
    /// Keeps a cursor, durably.
    pub save_cursor: Effect<String, ()>,
}

/// Follows a feed from `cursor` on, for ever. A page is handled before its cursor is saved, so that a crash between
/// any two steps repeats a page and never skips one.
///
/// # Errors
/// When history was trimmed past the cursor, the cursor or key is refused, or a page cannot be handled or a cursor saved.
pub async fn follow(effects: &Follower, config: FollowConfig, mut cursor: String) -> Result<Infallible> {
    let mut backoff = Backoff::default();
    let (mut signalled_us, mut saved) = (None, None::<Instant>);
    loop {
        match (effects.pull_page)((cursor.clone(), config.limit)).await.context("pull page")? {
            Ok(page) => {
                backoff.reset();
                let more = page.more;
                let next = page.cursor.clone();
                let idle = page.events.is_empty();
                if !idle {
                    (effects.handle_page)(Handled { page, signalled_us: signalled_us.take() }).await.context("handle page")?;
                }
                if next != cursor && (!idle || saved.is_none_or(|saved| saved.elapsed() >= config.save_idle)) {
                    (effects.save_cursor)(next.clone()).await.context("save cursor")?;
                    saved = Some(Instant::now());
                }
                cursor = next;
                if more {
                    continue;
                }
            }
            Err(PullError::Later { reason, retry_after }) => {
                tracing::debug!(reason, "no page; will pull again");
                tokio::time::sleep(backoff.next_delay().max(retry_after.unwrap_or_default())).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        }
        signalled_us = match timeout(config.tick, (effects.await_signal)(())).await {
            Ok(signal) => Some(signal.context("await signal")?),
            Err(_) => None,
        };
    }
}
