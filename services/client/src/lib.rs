//! A small client of Meridian's public interfaces: post with repeats under the same id, pull pages of the feed,
//! follow the feed, ask for usage. With a list of regions it moves on to the next one when one does not answer.
//!
//! **A post has three outcomes:** [`PostOutcome::Accepted`], [`PostOutcome::Refused`] (nothing was written) and
//! [`PostOutcome::Unknown`] (written once or not at all; safe to repeat with the same ids).
//! **A cursor is valid in every region**, so [`follow`] goes on elsewhere with the cursor that it holds.
//!
//! No driver lives here: what wakes a follower is passed in.

mod follow;
mod post;
mod pull;
mod regions;
mod usage;

pub use follow::{FollowConfig, Follower, Handled, follow};
pub use post::{PostOutcome, Receipt};
pub use pull::{FeedEvent, Hops, Page, PullError};
pub use usage::UsageQuery;

use anyhow::{Context, Result};
use regions::Regions;
use serde::Deserialize;
use std::time::Duration;

/// What a failed request says (RFC 9457). Members that a server left out are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Problem {
    /// URI reference that names the kind of problem.
    pub r#type: String,
    /// The kind, for people.
    pub title: String,
    /// HTTP status.
    pub status: u16,
    /// What is wrong this time, for people.
    pub detail: String,
    /// The field that is wrong, where there is one.
    pub field: Option<String>,
}

impl Problem {
    /// Reads a body; one that is not a problem document is kept as `detail`, cut at 300 characters.
    pub(crate) fn read(status: u16, body: &[u8]) -> Self {
        let read = serde_json::from_slice::<Self>(body).ok().filter(|problem| !problem.title.is_empty() || !problem.detail.is_empty());
        let mut problem =
            read.unwrap_or_else(|| Self { detail: String::from_utf8_lossy(body).chars().take(300).collect(), ..Self::default() });
        problem.status = status;
        problem
    }
}

/// Durability asked for with a post.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ack {
    /// What the server does by itself.
    #[default]
    Default,
    /// A quorum of the accepting region.
    Local,
    /// A quorum over the regions.
    Global,
}

/// Where the regions are and how long to try.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Base URLs of ingest (`http://host:8080`), the preferred region first.
    pub ingest_urls: Vec<String>,
    /// Base URLs of feed, the preferred region first.
    pub feed_urls: Vec<String>,
    /// Base URLs of usage, the preferred region first.
    pub usage_urls: Vec<String>,
    /// Bearer key of the tenant.
    pub key: String,
    /// Durability asked for with each post.
    pub ack: Ack,
    /// Longest wait for one connection.
    pub connect_timeout: Duration,
    /// Longest wait for one answer; a long poll may take its `wait_ms` more.
    pub attempt_timeout: Duration,
    /// Longest time for one post with all its repeats.
    pub post_deadline: Duration,
    /// Tries of one post at most, the first included.
    pub attempts_max: u32,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            ingest_urls: Vec::new(),
            feed_urls: Vec::new(),
            usage_urls: Vec::new(),
            key: String::new(),
            ack: Ack::Default,
            connect_timeout: Duration::from_secs(1),
            attempt_timeout: Duration::from_secs(3),
            post_deadline: Duration::from_secs(30),
            attempts_max: 20,
        }
    }
}

/// One tenant's client. Cheap to clone through an `Arc`; one connection pool, kept alive.
#[derive(Debug)]
pub struct Client {
    http: reqwest::Client,
    config: ClientConfig,
    feed: Regions,
    ingest: Regions,
}

impl Client {
    /// A client with a connection pool of its own.
    ///
    /// # Errors
    /// When the pool cannot be made.
    pub fn new(config: ClientConfig) -> Result<Self> {
        let http = connection_pool(config.connect_timeout)?;
        Ok(Self::with_pool(http, config))
    }

    /// A client on a pool that others use too, made by [`connection_pool`].
    pub fn with_pool(http: reqwest::Client, config: ClientConfig) -> Self {
        let (feed, ingest) = (Regions::new(config.feed_urls.len()), Regions::new(config.ingest_urls.len()));
        Self { http, config, feed, ingest }
    }

    /// The configuration.
    pub fn config(&self) -> &ClientConfig {
        &self.config
    }
}

/// A pool of kept-alive connections for any number of clients.
///
/// # Errors
/// When it cannot be made.
pub fn connection_pool(connect_timeout: Duration) -> Result<reqwest::Client> {
    reqwest::Client::builder()
        .connect_timeout(connect_timeout)
        .pool_idle_timeout(Duration::from_secs(90))
        .tcp_nodelay(true)
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .context("HTTP client")
}
