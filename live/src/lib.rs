//! What the live tests share: where this region's engines are, names that no other run uses, and waiting for a condition.
//!
//! Run with `make test`, which starts the engines and runs these tests inside a region. **Without engines they fail;
//! nothing is skipped silently.**

use anyhow::{Context, Result, bail};
use std::{future::Future, time::Duration};
use tokio::time::Instant;

/// An address that the launcher gives, `MERIDIAN_<NAME>`.
///
/// # Panics
/// When it isn't set: the test was started outside a region.
pub fn address(name: &str) -> String {
    let variable = format!("MERIDIAN_{name}");
    kit::config::variable(&variable).unwrap_or_else(|| panic!("{variable} is not set: run the live tests with `make test`"))
}

/// A name that no other test and no other run uses: letters and digits, at most 16.
pub fn unique(prefix: &str) -> String {
    format!("{prefix}{:08x}", rand::random::<u32>())
}

/// Polls `condition` every 20 ms until it holds.
///
/// # Errors
/// When it does not hold within `deadline`, with the last error if there was one.
pub async fn eventually<Fut>(what: &str, deadline: Duration, mut condition: impl FnMut() -> Fut) -> Result<()>
where
    Fut: Future<Output = Result<bool>>,
{
    let started = Instant::now();
    loop {
        let last = condition().await;
        if matches!(last, Ok(true)) {
            return Ok(());
        }
        if started.elapsed() > deadline {
            last.with_context(|| format!("{what}: not within {deadline:?}"))?;
            bail!("{what}: not within {deadline:?}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
