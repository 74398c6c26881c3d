//! The feed over a log in memory, with paused time.

mod fake;
mod http;
mod pages;
mod tail;

use crate::{Effects, Feed, Limits, page::Page, run};
use fake::FakeLog;
use kit::{effect, health::Health, shutdown::CancellationToken};
use meridian_proto::{Cursor, CursorKey, PartitionId, Topic, partitions_of};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::time::Instant;

const KEY: &[u8] = b"thirty-two bytes of a test's key";

/// A feed that follows a fake log, and the signals that it sent.
struct Bench {
    feed: Arc<Feed>,
    signals: Arc<Mutex<Vec<(String, Instant)>>>,
    shutdown: CancellationToken,
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl Bench {
    async fn start(log: &Arc<FakeLog>, region: &str, limits: Limits) -> Self {
        Self::with(log, region, limits, |effects| effects).await
    }

    async fn with(log: &Arc<FakeLog>, region: &str, limits: Limits, change: impl FnOnce(Effects) -> Effects) -> Self {
        let signals: Arc<Mutex<Vec<(String, Instant)>>> = Arc::default();
        let sent = Arc::clone(&signals);
        let mut effects = fake::effects(log);
        effects.send_signal = effect(move |signal: adapters::nats::SendSignal| {
            sent.lock().unwrap().push((signal.tenant, Instant::now()));
            async { Ok(()) }
        });
        let shutdown = CancellationToken::new();
        let feed = Feed::new(change(effects), limits, region, CursorKey::new(KEY), shutdown.clone());
        let health = Health::of(&["log"]);
        tokio::spawn(run(Arc::clone(&feed), health.clone()));
        let bench = Self { feed, signals, shutdown };
        bench.until(|| health.complaints().is_empty()).await;
        bench.caught_up(log).await;
        bench
    }

    async fn until(&self, condition: impl Fn() -> bool) {
        for _ in 0..1000 {
            if condition() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("did not come true in 10 s");
    }

    /// Waits until the tail stands where the log ends.
    async fn caught_up(&self, log: &FakeLog) {
        let all = || log.ends().into_iter().all(|(id, end)| self.feed.tails.with(&id, |ring| ring.end() == end).unwrap_or(end == 0));
        self.until(all).await;
    }

    /// Pulls until there is no more, with these limits in turn; gives the ids and the last cursor.
    async fn pull_all(&self, tenant: &str, mut cursor: Cursor, limits: &[u32]) -> (Vec<String>, Cursor) {
        let mut ids = Vec::new();
        for limit in limits.iter().cycle() {
            let page = self.feed.page(tenant, &cursor, *limit).await.unwrap();
            assert!(page.events.len() <= *limit as usize);
            ids.extend(ids_of(&page));
            cursor = page.cursor;
            if !page.more {
                break;
            }
        }
        (ids, cursor)
    }
}

fn ids_of(page: &Page) -> Vec<String> {
    use prost::Message;
    page.events.iter().map(|(_, found)| meridian_proto::Event::decode(found.value.clone()).unwrap().id).collect()
}

fn sorted(mut ids: Vec<String>) -> Vec<String> {
    ids.sort();
    ids
}

fn partition(region: &str, partition: u16) -> PartitionId {
    PartitionId { topic: Topic { region: region.into(), generation: 1 }, partition }
}

/// A cursor at the first position of every lane of a tenant.
fn zero(tenant: &str, regions: &[&str]) -> Cursor {
    let lanes = regions.iter().flat_map(|region| partitions_of(tenant).map(|number| (partition(region, number), 0)));
    Cursor { next: lanes.collect() }
}

fn small_tail() -> Limits {
    Limits { tail_bytes_max: 0, tail_start_records: 1, ..Limits::STANDARD }
}
