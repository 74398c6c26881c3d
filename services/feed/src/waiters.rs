//! Long polls that wait for a tenant's next event.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::Notify;

/// Who waits, by tenant. Bounded: in all, and for each tenant.
#[derive(Debug)]
pub struct Waiters {
    waiting: Mutex<HashMap<String, (Arc<Notify>, usize)>>,
    all_max: usize,
    tenant_max: usize,
}

/// A place among those that wait; given back when dropped.
pub struct Place<'a> {
    waiters: &'a Waiters,
    tenant: String,
    /// Told at the tenant's next event.
    pub notify: Arc<Notify>,
}

impl Waiters {
    /// Nobody waits yet.
    pub fn new(all_max: usize, tenant_max: usize) -> Self {
        Self { waiting: Mutex::default(), all_max, tenant_max }
    }

    /// A place to wait for a tenant's events; `None` when too many wait already.
    pub fn enter(&self, tenant: &str) -> Option<Place<'_>> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = waiting.values().map(|(_, count)| count).sum();
        if all >= self.all_max || waiting.get(tenant).is_some_and(|(_, count)| *count >= self.tenant_max) {
            return None;
        }
        let (notify, count) = waiting.entry(tenant.to_owned()).or_default();
        *count += 1;
        Some(Place { waiters: self, tenant: tenant.to_owned(), notify: Arc::clone(notify) })
    }

    /// Wakes those that wait for events of these tenants.
    pub fn wake(&self, tenants: &BTreeSet<Arc<str>>) {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        for (notify, _) in tenants.iter().filter_map(|tenant| waiting.get(&**tenant)) {
            notify.notify_waiters();
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut waiting = self.waiters.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, count)) = waiting.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                waiting.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_and_given_back() {
        let waiters = Waiters::new(3, 2);
        let first = waiters.enter("a");
        let second = waiters.enter("a");
        assert!(first.is_some() && second.is_some() && waiters.enter("a").is_none());
        let third = waiters.enter("b");
        assert!(third.is_some() && waiters.enter("c").is_none());
        drop(first);
        assert!(waiters.enter("c").is_some());
        drop((second, third));
        assert!(waiters.waiting.lock().unwrap().is_empty());
    }
}
