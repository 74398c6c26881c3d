//! Asking for usage.

use crate::{Client, Problem, post::describe};
use anyhow::{Result, anyhow, bail};
use serde_json::Value;

/// One question about usage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageQuery {
    /// Name of the meter.
    pub meter: String,
    /// Begin of the range (RFC 3339), included.
    pub from: String,
    /// End of the range (RFC 3339), excluded.
    pub to: String,
    /// Width of a window; empty for the server's own.
    pub window: String,
    /// IANA name of the time zone; empty for the server's own.
    pub tz: String,
}

impl Client {
    /// Asks the preferred region, then the others, and gives the first answer as it came.
    ///
    /// # Errors
    /// When no region answers, or one refuses the question.
    pub async fn usage(&self, query: &UsageQuery) -> Result<Value> {
        let mut last = anyhow!("no usage URL is configured");
        for region in 0..self.config.usage_urls.len() {
            match self.usage_of(region, query).await {
                Ok(answer) => return answer,
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Asks one region only, by its index in the configured list.
    ///
    /// # Errors
    /// The outer error when the region does not answer, the inner when it refuses the question.
    pub async fn usage_of(&self, region: usize, query: &UsageQuery) -> Result<Result<Value>> {
        let Some(url) = self.config.usage_urls.get(region) else { bail!("no usage URL with index {region} is configured") };
        let parts = [("meter", &query.meter), ("from", &query.from), ("to", &query.to), ("window", &query.window), ("tz", &query.tz)];
        let parts: Vec<_> = parts.into_iter().filter(|(_, value)| !value.is_empty()).collect();
        let request = self.http.get(format!("{url}/v1/usage")).query(&parts).bearer_auth(&self.config.key);
        let response = request.timeout(self.config.attempt_timeout).send().await.map_err(|error| anyhow!(describe(&error)))?;
        let status = response.status();
        let body = response.bytes().await.map_err(|error| anyhow!(describe(&error)))?;
        if status.is_success() {
            return Ok(Ok(serde_json::from_slice(&body)?));
        }
        let problem = Problem::read(status.as_u16(), &body);
        let error = anyhow!("usage answered {status}: {} {}", problem.title, problem.detail);
        if status.is_client_error() && status.as_u16() != 429 { Ok(Err(error)) } else { Err(error) }
    }
}
