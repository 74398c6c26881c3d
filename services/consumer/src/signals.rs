//! The tenants' signals, as far as NATS brings them.

use adapters::nats::{Nats, Signals, SignalsOf, subscribe_signals};
use anyhow::Result;
use std::{collections::HashMap, future::pending, sync::Arc};
use tokio::sync::{Mutex, SetOnce};

/// Subscriptions by tenant, there as soon as NATS is.
#[derive(Debug)]
pub struct Subscriptions(HashMap<String, SetOnce<Mutex<Signals>>>);

impl Subscriptions {
    /// Subscribes in the background: the consumer works by its tick until then.
    pub fn start(nats: Arc<Nats>, region: &str, tenants: &[String]) -> Arc<Self> {
        let subscriptions = Arc::new(Self(tenants.iter().map(|tenant| (tenant.clone(), SetOnce::new())).collect()));
        let (filled, region) = (Arc::clone(&subscriptions), region.to_owned());
        tokio::spawn(async move {
            nats.connected().await;
            for (tenant, place) in &filled.0 {
                let of = SignalsOf { region: region.clone(), tenant: tenant.clone() };
                match subscribe_signals(Arc::clone(&nats), of).await {
                    Ok(signals) => drop(place.set(Mutex::new(signals))),
                    Err(error) => tracing::error!(tenant, error = format!("{error:#}"), "no signals, the tick alone"),
                }
            }
        });
        subscriptions
    }
}

/// Waits for a signal to a tenant, and gives when it was sent. May be dropped at any time without losing one.
///
/// # Errors
/// Never: without signals it waits for ever.
pub async fn await_signal(subscriptions: Arc<Subscriptions>, tenant: String) -> Result<u64> {
    match subscriptions.0.get(&tenant) {
        Some(place) => Ok(place.wait().await.lock().await.next().await.signalled_us),
        None => pending().await,
    }
}
