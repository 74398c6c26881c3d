//! Pulling pages of the feed.

use crate::{Client, Problem, post::describe, post::retry_after};
use reqwest::StatusCode;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::time::Duration;

/// One page. A page is a function of cursor and limit: repeating the pull gives it again.
#[derive(Debug, Deserialize)]
pub struct Page {
    /// The events, each with its whole text.
    pub events: Vec<FeedEvent>,
    /// Where the next page begins: to be kept once this page is handled. It moves also with an empty page.
    pub cursor: String,
    /// Whether the next page can be asked for at once.
    pub more: bool,
}

/// When an event passed each hop, as far as the feed that served it knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Hops {
    /// Accepted by ingest, microseconds since the Unix epoch.
    pub accepted_us: u64,
    /// Appended to the log of its origin, milliseconds since the Unix epoch.
    pub relayed_ms: i64,
    /// Appended to the copy in the region of this feed; the same as `relayed_ms` where that is the origin.
    pub mirrored_ms: i64,
}

/// One CloudEvent of a page.
#[derive(Clone, Debug)]
pub struct FeedEvent {
    /// CloudEvents `id`.
    pub id: String,
    /// CloudEvents `source`; with `id` (and the tenant) the identity by which repeats are recognised.
    pub source: String,
    /// Commit id, 32 hexadecimal digits: the order of a key is the order of these.
    pub commit_id: String,
    /// Payload hash, 64 hexadecimal digits.
    pub hash: String,
    /// Region that accepted the event.
    pub origin: String,
    /// When it passed each hop.
    pub hops: Hops,
    /// The whole event in the JSON format of CloudEvents 1.0.
    pub json: Box<RawValue>,
}

#[derive(Deserialize)]
struct Named {
    id: String,
    source: String,
    meridiancommitid: String,
    meridianhash: String,
    meridianorigin: String,
    #[serde(default)]
    hops: Hops,
}

impl<'de> Deserialize<'de> for FeedEvent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = Box::<RawValue>::deserialize(deserializer)?;
        let named: Named = serde_json::from_str(json.get()).map_err(serde::de::Error::custom)?;
        let Named { id, source, meridiancommitid: commit_id, meridianhash: hash, meridianorigin: origin, hops } = named;
        Ok(Self { id, source, commit_id, hash, origin, hops, json })
    }
}

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// 410: history was trimmed past the cursor. Whoever goes on from the oldest position has missed events.
    #[error("history was trimmed past the cursor: {}", .0.detail)]
    Trimmed(Problem),
    /// Another 4xx: asking again gives the same.
    #[error("the feed refused with {}: {} {}", .0.status, .0.title, .0.detail)]
    Refused(Problem),
    /// No region answered, or all are busy: ask again later, not before the time given.
    #[error("no feed answered: {reason}")]
    Later {
        /// The last failure, for people.
        reason: String,
        /// What the server asked for.
        retry_after: Option<Duration>,
    },
}

impl Client {
    /// Pulls one page: from the region that answered last, else from the next ones in order. An empty cursor is the
    /// beginning of what is kept.
    ///
    /// # Errors
    /// See [`PullError`].
    pub async fn pull(&self, cursor: &str, limit: u32, wait_ms: u32) -> Result<Page, PullError> {
        let mut last = PullError::Later { reason: "no feed URL is configured".into(), retry_after: None };
        for _ in 0..self.feed.count() {
            let region = self.feed.current();
            match self.pull_from(region, cursor, limit, wait_ms).await {
                Err(error @ PullError::Later { .. }) => {
                    self.feed.failed(region);
                    last = error;
                }
                end => return end,
            }
        }
        Err(last)
    }

    /// Pulls one page from one region only, by its index in the configured list.
    ///
    /// # Errors
    /// See [`PullError`].
    pub async fn pull_from(&self, region: usize, cursor: &str, limit: u32, wait_ms: u32) -> Result<Page, PullError> {
        let later = |reason: String| PullError::Later { reason, retry_after: None };
        let Some(url) = self.config.feed_urls.get(region) else { return Err(later(format!("no feed URL with index {region}"))) };
        let mut query = vec![("limit", limit.to_string())];
        if !cursor.is_empty() {
            query.push(("cursor", cursor.to_owned()));
        }
        if wait_ms > 0 {
            query.push(("wait_ms", wait_ms.to_string()));
        }
        let timeout = self.config.attempt_timeout + Duration::from_millis(wait_ms.into());
        let request = self.http.get(format!("{url}/v1/feed")).query(&query).bearer_auth(&self.config.key).timeout(timeout);
        let response = request.send().await.map_err(|error| later(describe(&error)))?;
        let status = response.status();
        let retry_after = retry_after(&response);
        let body = response.bytes().await.map_err(|error| later(describe(&error)))?;
        if status.is_success() {
            return serde_json::from_slice(&body).map_err(|error| later(format!("a page that cannot be read: {error}")));
        }
        let problem = Problem::read(status.as_u16(), &body);
        Err(match status {
            StatusCode::GONE => PullError::Trimmed(problem),
            StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => PullError::Later { reason: problem.detail, retry_after },
            status if status.is_client_error() => PullError::Refused(problem),
            _ => PullError::Later { reason: format!("{status}: {}", problem.detail), retry_after },
        })
    }
}
