//! Signals, coalesced by tenant: the first goes out at once, the next ones at most once in a while.

use crate::Effects;
use adapters::nats::SendSignal;
use anyhow::Result;
use kit::seldom::Seldom;
use meridian_proto::Signal;
use std::{
    collections::{BTreeSet, VecDeque},
    convert::Infallible,
    mem::take,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

/// Tenants that are to be told; a set, so its size is that of the tenants, not of their events.
#[derive(Debug, Default)]
pub struct Signals {
    asked: Mutex<BTreeSet<Arc<str>>>,
    changed: Notify,
    told: Seldom,
}

impl Signals {
    /// Asks for a signal to each of these tenants.
    pub fn ask(&self, tenants: BTreeSet<Arc<str>>) {
        if tenants.is_empty() {
            return;
        }
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).extend(tenants);
        self.changed.notify_one();
    }

    /// Sends what is asked for, for ever: to one tenant at most once in `gap`.
    ///
    /// # Errors
    /// Never; the type says that it doesn't end.
    pub async fn send(&self, effects: &Effects, region: &str, gap: Duration) -> Result<Infallible> {
        // Tenants told less than `gap` ago, in order of time.
        let mut resting: VecDeque<(Instant, Arc<str>)> = VecDeque::new();
        let mut rests: BTreeSet<Arc<str>> = BTreeSet::new();
        let mut later: BTreeSet<Arc<str>> = BTreeSet::new();
        loop {
            let mut due: Vec<Arc<str>> = Vec::new();
            while let Some((_, tenant)) = resting.pop_front_if(|(until, _)| *until <= Instant::now()) {
                rests.remove(&tenant);
                due.extend(later.take(&tenant));
            }
            for tenant in take(&mut *self.asked.lock().unwrap_or_else(PoisonError::into_inner)) {
                match rests.contains(&tenant) {
                    true => drop(later.insert(tenant)),
                    false if due.contains(&tenant) => {}
                    false => due.push(tenant),
                }
            }
            for tenant in due {
                self.send_one(effects, region, &tenant).await;
                resting.push_back((Instant::now() + gap, Arc::clone(&tenant)));
                rests.insert(tenant);
            }
            match resting.front() {
                Some((until, _)) => tokio::select! {
                    biased;
                    () = sleep_until(*until) => {}
                    () = self.changed.notified() => {}
                },
                None => self.changed.notified().await,
            }
        }
    }

    /// A signal that cannot be sent is not sent later: the receiver's tick covers it.
    async fn send_one(&self, effects: &Effects, region: &str, tenant: &str) {
        let signalled_us = (effects.host_time)(()).await.map_or(0, |time| time.0);
        let signal = Signal { region: region.to_owned(), signalled_us };
        let result = (effects.send_signal)(SendSignal { tenant: tenant.to_owned(), signal }).await;
        if let Err(error) = result
            && let Some(withheld) = self.told.due()
        {
            tracing::warn!(error = format!("{error:#}"), withheld, "signals are not sent");
        }
    }
}
