//! A clean end: SIGINT or SIGTERM asks every part of a service to stop, with a deadline.

use anyhow::Result;
use std::{future::Future, time::Duration};
use tokio::signal::unix::{SignalKind, signal};
pub use tokio_util::sync::CancellationToken;

/// How long a service may take to stop before it is ended all the same.
pub const GRACE: Duration = Duration::from_secs(10);

/// A token that is cancelled at the first SIGINT or SIGTERM.
///
/// # Errors
/// When the signal handlers cannot be set.
pub fn on_signal() -> Result<CancellationToken> {
    let token = CancellationToken::new();
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let asked = token.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        tracing::info!("asked to stop");
        asked.cancel();
        tokio::time::sleep(GRACE).await;
        tracing::error!("did not stop in time");
        std::process::exit(1);
    });
    Ok(token)
}

/// Runs `work` until it ends or `shutdown` is asked for; work that is asked to stop is dropped at its next await.
///
/// # Errors
/// The work's own.
pub async fn until<T>(shutdown: &CancellationToken, work: impl Future<Output = Result<T>>) -> Result<Option<T>> {
    tokio::select! {
        biased;
        () = shutdown.cancelled() => Ok(None),
        result = work => result.map(Some),
    }
}
