//! Posting events, with repeats that cannot count twice.

use crate::{Ack, Client, Problem};
use anyhow::{Context, Result};
use bytes::Bytes;
use kit::backoff::Backoff;
use reqwest::{Response, StatusCode, header};
use serde::Deserialize;
use std::time::Duration;
use tokio::time::Instant;

/// What became of one event of an accepted post.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Receipt {
    /// The event's id.
    pub id: String,
    /// What the server did, for example `accepted` or `already_accepted`.
    #[serde(default)]
    pub outcome: String,
    /// Its commit id, 32 hexadecimal digits.
    #[serde(default)]
    pub commit_id: String,
}

/// How a post ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PostOutcome {
    /// 202: every event is there, once.
    Accepted {
        /// One a posted event, in the order of the post.
        events: Vec<Receipt>,
        /// Tries, this one included.
        attempts: u32,
        /// Base URL of the region that answered.
        url: String,
    },
    /// No try can have written anything.
    Refused {
        /// HTTP status of the last answer; 0 when no server was reached.
        status: u16,
        /// What the server said.
        problem: Problem,
        /// Tries, this one included.
        attempts: u32,
    },
    /// Some try may have written: zero times or once.
    Unknown {
        /// HTTP status of the last answer; 0 for a timeout or a broken connection.
        status: u16,
        /// The last failure, for people.
        reason: String,
        /// Tries, this one included.
        attempts: u32,
    },
}

impl PostOutcome {
    /// `ok`, `fail` or `unknown`.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Accepted { .. } => "ok",
            Self::Refused { .. } => "fail",
            Self::Unknown { .. } => "unknown",
        }
    }

    /// HTTP status of the last answer, 0 without one.
    pub fn status(&self) -> u16 {
        match self {
            Self::Accepted { .. } => StatusCode::ACCEPTED.as_u16(),
            Self::Refused { status, .. } | Self::Unknown { status, .. } => *status,
        }
    }
}

/// One try's end.
enum Try {
    Accepted(Vec<Receipt>),
    /// A 4xx that a repeat would meet again.
    Refused(Problem),
    /// Nothing was written, and a repeat may succeed (429, no connection).
    Later {
        problem: Problem,
        retry_after: Option<Duration>,
    },
    /// Perhaps written (5xx, timeout, reset).
    Unknown {
        status: u16,
        reason: String,
        retry_after: Option<Duration>,
    },
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    events: Vec<Receipt>,
}

impl Client {
    /// Posts one event (`application/cloudevents+json`) or a batch (`application/cloudevents-batch+json`). What may
    /// succeed later is repeated with the same bytes, so the same ids: jittered backoff, at least the server's
    /// `Retry-After`, next region when one does not answer, until the deadline or the last try.
    pub async fn post(&self, body: &[u8], content_type: &str) -> PostOutcome {
        let body = Bytes::copy_from_slice(body);
        let deadline = Instant::now() + self.config.post_deadline;
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
        let mut perhaps_written = false;
        let mut attempts = 0;
        loop {
            attempts += 1;
            let region = self.ingest.current();
            let Some(url) = self.config.ingest_urls.get(region) else {
                let problem = Problem { detail: "no ingest URL is configured".into(), ..Problem::default() };
                return PostOutcome::Refused { status: 0, problem, attempts };
            };
            let left = deadline.saturating_duration_since(Instant::now());
            let end = self.post_once(url, &body, content_type, left.min(self.config.attempt_timeout)).await;
            let (last, retry_after) = match end {
                Try::Accepted(events) => return PostOutcome::Accepted { events, attempts, url: url.clone() },
                Try::Refused(problem) if perhaps_written => (unknown(problem.status, problem.detail, attempts), None),
                Try::Refused(problem) => return PostOutcome::Refused { status: problem.status, problem, attempts },
                Try::Later { problem, retry_after } if perhaps_written => (unknown(problem.status, problem.detail, attempts), retry_after),
                Try::Later { problem, retry_after } => (PostOutcome::Refused { status: problem.status, problem, attempts }, retry_after),
                Try::Unknown { status, reason, retry_after } => {
                    perhaps_written = true;
                    (unknown(status, reason, attempts), retry_after)
                }
            };
            // A refusal after a try that may have written says nothing about that try, and repeating it will not either.
            let final_answer = (400..500).contains(&last.status()) && !matches!(last.status(), 408 | 429);
            let delay = backoff.next_delay().max(retry_after.unwrap_or_default());
            if final_answer || attempts >= self.config.attempts_max || Instant::now() + delay >= deadline {
                return last;
            }
            if last.status() != 429 {
                self.ingest.failed(region);
            }
            tokio::time::sleep(delay).await;
        }
    }

    /// One try, in the region of index `region` in the configured list (modulo its length), without any repeat.
    pub async fn post_to(&self, region: usize, body: &[u8], content_type: &str) -> PostOutcome {
        let Some(url) = self.config.ingest_urls.get(region % self.config.ingest_urls.len().max(1)) else {
            let problem = Problem { detail: "no ingest URL is configured".into(), ..Problem::default() };
            return PostOutcome::Refused { status: 0, problem, attempts: 1 };
        };
        match self.post_once(url, &Bytes::copy_from_slice(body), content_type, self.config.attempt_timeout).await {
            Try::Accepted(events) => PostOutcome::Accepted { events, attempts: 1, url: url.clone() },
            Try::Refused(problem) | Try::Later { problem, .. } => PostOutcome::Refused { status: problem.status, problem, attempts: 1 },
            Try::Unknown { status, reason, .. } => unknown(status, reason, 1),
        }
    }

    async fn post_once(&self, url: &str, body: &Bytes, content_type: &str, timeout: Duration) -> Try {
        let mut request = self
            .http
            .post(format!("{url}/v1/events"))
            .bearer_auth(&self.config.key)
            .header(header::CONTENT_TYPE, content_type)
            .timeout(timeout)
            .body(body.clone());
        match self.config.ack {
            Ack::Default => {}
            Ack::Local => request = request.header("Meridian-Ack", "local"),
            Ack::Global => request = request.header("Meridian-Ack", "global"),
        }
        match request.send().await {
            Ok(response) => judge(response).await,
            Err(error) if error.is_connect() || error.is_builder() => {
                let problem = Problem { detail: describe(&error), ..Problem::default() };
                Try::Later { problem, retry_after: None }
            }
            Err(error) => Try::Unknown { status: 0, reason: describe(&error), retry_after: None },
        }
    }
}

fn unknown(status: u16, reason: String, attempts: u32) -> PostOutcome {
    PostOutcome::Unknown { status, reason, attempts }
}

async fn judge(response: Response) -> Try {
    let status = response.status();
    let retry_after = retry_after(&response);
    let body = response.bytes().await;
    match (status, body) {
        (StatusCode::ACCEPTED, Ok(body)) => match read_receipts(&body) {
            Ok(events) => Try::Accepted(events),
            Err(error) => Try::Unknown { status: 202, reason: format!("{error:#}"), retry_after: None },
        },
        (StatusCode::ACCEPTED, Err(error)) => Try::Unknown { status: 202, reason: describe(&error), retry_after: None },
        (StatusCode::TOO_MANY_REQUESTS, body) => {
            Try::Later { problem: Problem::read(status.as_u16(), &body.unwrap_or_default()), retry_after }
        }
        (status, body) if status.is_client_error() && status != StatusCode::REQUEST_TIMEOUT => {
            Try::Refused(Problem::read(status.as_u16(), &body.unwrap_or_default()))
        }
        (status, body) => {
            let reason = Problem::read(status.as_u16(), &body.unwrap_or_default()).detail;
            Try::Unknown { status: status.as_u16(), reason, retry_after }
        }
    }
}

fn read_receipts(body: &[u8]) -> Result<Vec<Receipt>> {
    Ok(serde_json::from_slice::<Answer>(body).context("the answer to a post")?.events)
}

/// `Retry-After` in seconds (RFC 9110, section 10.2.3); the form with a date is not used here.
pub(crate) fn retry_after(response: &Response) -> Option<Duration> {
    let seconds = response.headers().get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse::<f64>().ok()?;
    (0.0..=3600.0).contains(&seconds).then(|| Duration::from_secs_f64(seconds))
}

/// The error with its causes, without the URL's query.
pub(crate) fn describe(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}
