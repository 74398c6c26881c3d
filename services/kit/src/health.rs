//! What a service says about itself: `/livez`, `/readyz`, `/metrics`.

use crate::telemetry::Telemetry;
use anyhow::{Context, Result};
use axum::{Router, http::StatusCode, routing::get};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// The parts of a service that must work before it is ready. Only parts of its own region belong here.
#[derive(Clone, Default)]
pub struct Health(Arc<Mutex<BTreeMap<&'static str, Option<String>>>>);

impl Health {
    /// Names the parts; each is unready ("starting") until told otherwise.
    pub fn of(parts: &[&'static str]) -> Self {
        let health = Self::default();
        parts.iter().for_each(|part| health.unready(part, "starting"));
        health
    }

    /// The part works.
    pub fn ready(&self, part: &'static str) {
        self.set(part, None);
    }

    /// The part does not work, and why.
    pub fn unready(&self, part: &'static str, why: impl ToString) {
        self.set(part, Some(why.to_string()));
    }

    fn set(&self, part: &'static str, why: Option<String>) {
        let Ok(mut parts) = self.0.lock() else { return };
        let before = parts.insert(part, why.clone());
        if before.as_ref() != Some(&why) {
            tracing::info!(part, why = why.as_deref().unwrap_or("ready"), "health");
        }
    }

    /// What is not ready, `part: why` a line; empty when all is.
    pub fn complaints(&self) -> Vec<String> {
        let Ok(parts) = self.0.lock() else { return vec!["health: unreadable".into()] };
        parts.iter().filter_map(|(part, why)| Some(format!("{part}: {}", why.as_ref()?))).collect()
    }

    /// The routes `/livez`, `/readyz`, `/metrics`, to be merged into a service's own.
    pub fn routes(&self, telemetry: &Telemetry) -> Router {
        let (health, telemetry) = (self.clone(), telemetry.clone());
        Router::new()
            .route("/livez", get(|| async { "alive\n" }))
            .route("/readyz", get(move || async move { health.answer() }))
            .route("/metrics", get(move || async move { telemetry.render() }))
    }

    fn answer(&self) -> (StatusCode, String) {
        match self.complaints().as_slice() {
            [] => (StatusCode::OK, "ready\n".into()),
            complaints => (StatusCode::SERVICE_UNAVAILABLE, complaints.join("\n") + "\n"),
        }
    }
}

/// Serves `routes` on `address` until asked to stop.
///
/// # Errors
/// When the address cannot be bound.
pub async fn serve(address: &str, routes: Router, shutdown: CancellationToken) -> Result<()> {
    let listener = TcpListener::bind(address).await.with_context(|| format!("listen on {address}"))?;
    axum::serve(listener, routes).with_graceful_shutdown(shutdown.cancelled_owned()).await.context("serve")
}
