//! The feed and its consumer on a real log and a real NATS.

#![allow(clippy::unwrap_used)]

use adapters::{
    clock::{self, HostClock},
    nats::{self, Nats, NatsConfig, SignalsOf, subscribe_signals},
    redpanda::{Batch, LogReader, OutRecord, Publisher, ReadSpan, Record, RedpandaConfig, TopicSettings, create_topics, list_partitions},
};
use anyhow::{Context, Result};
use client::{Client, ClientConfig, FollowConfig, Page};
use consumer::{Clients, Line, State, Subscriptions};
use feed::{Effects, Feed, Limits, http, log};
use kit::{Effect, bind, effect, health::Health, shutdown::CancellationToken};
use live::{address, eventually, unique};
use meridian_proto::{CommitId, CommitTime, CursorKey, Event, Incarnation, Origin, PARTITIONS, PartitionId, Topic, partition_of};
use prost::Message;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tokio::net::{TcpListener, TcpStream};

const SECRET: &[u8] = b"thirty-two bytes of a live test.";

fn broker() -> RedpandaConfig {
    RedpandaConfig { address: address("KAFKA_ADDRESS"), client_id: "live-feed".into() }
}

/// A topic of events with all its partitions, and who writes it.
struct Origins {
    topic: Topic,
    publisher: Arc<Publisher>,
    next: Mutex<BTreeMap<u16, u64>>,
}

impl Origins {
    async fn create(region: &str) -> Result<Self> {
        let topic = Topic { region: region.into(), generation: 1 };
        let settings = [("message.timestamp.type", "LogAppendTime")].map(|(name, value)| (name.into(), value.into()));
        let topics = [TopicSettings { name: topic.to_string(), partitions: PARTITIONS, replication: 1, settings: settings.into() }];
        create_topics(&broker(), &topics).await?;
        Ok(Self { topic, publisher: Publisher::connect(&broker()).await?, next: Mutex::default() })
    }

    fn partition(&self, partition: u16) -> Arc<PartitionId> {
        Arc::new(PartitionId { topic: self.topic.clone(), partition })
    }

    fn record(&self, tenant: &str, id: &str) -> OutRecord {
        let now = clock_now();
        let event = Event {
            tenant: tenant.into(),
            source: "/live".into(),
            id: id.into(),
            r#type: "t".into(),
            subject: Some(id.into()),
            data: format!("{{\"id\":\"{id}\"}}").into(),
            origin: self.topic.region.clone(),
            commit_id: CommitId::of_row(CommitTime(now), Incarnation::from_random(1)).to_bytes().to_vec().into(),
            payload_hash: vec![7; 32].into(),
            accepted_us: now,
            ..Event::default()
        };
        OutRecord::event(&self.partition(partition_of(tenant, Some(id))), event.encode_to_vec().into())
    }

    async fn post(&self, tenant: &str, ids: &[String]) -> Result<()> {
        self.publish(ids.iter().map(|id| self.record(tenant, id)).collect()).await
    }

    async fn publish(&self, records: Vec<OutRecord>) -> Result<()> {
        records.iter().for_each(|record| *self.next.lock().unwrap().entry(record.partition.partition).or_default() += 1);
        Arc::clone(&self.publisher).publish(records).await
    }
}

fn clock_now() -> u64 {
    HostClock::start().now().0
}

/// One region's feed, served over HTTP. `names` says which topic of the broker stands for which topic of events: a copy that
/// another region would have under the same name has to have another one on the same broker.
struct Site {
    url: String,
    feed: Arc<Feed>,
    shutdown: CancellationToken,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

fn renamed(names: &BTreeMap<Topic, Topic>, id: PartitionId) -> PartitionId {
    PartitionId { topic: names.get(&id.topic).cloned().unwrap_or(id.topic), partition: id.partition }
}

fn renamed_batch(names: &BTreeMap<Topic, Topic>, batch: &Batch) -> Batch {
    let partitions: Vec<PartitionId> = batch.iter().map(|record| renamed(names, record.partition.clone())).collect();
    Batch::of(batch.iter().zip(&partitions).map(|(record, partition)| Record { partition, ..record }))
}

async fn effects(region: &str, names: &BTreeMap<Topic, Topic>, nats_url: &str) -> Result<Effects> {
    let reader = LogReader::connect(&broker(), region).await?;
    let nats = Nats::start(&NatsConfig { url: nats_url.into(), region: region.into(), client_id: "live-feed".into() }).await?;
    let log = Arc::new(log::Log { config: broker(), own_region: region.into(), reader: Arc::clone(&reader) });
    let inverse: BTreeMap<Topic, Topic> = names.iter().map(|(stored, shown)| (shown.clone(), stored.clone())).collect();
    let (shown, stored) = (Arc::new(names.clone()), Arc::new(inverse));
    let list = bind(&reader, list_partitions);
    let (tail, bounds) = (bind(&log, log::tail_log), bind(&reader, LogReader::bounds));
    let (read, find) = (bind(&log, log::read_log_page), bind(&reader, LogReader::find_position));
    let to_stored = move |id: PartitionId| renamed(&stored, id);
    let (of_tail, of_bounds, of_read, of_find) = (to_stored.clone(), to_stored.clone(), to_stored.clone(), to_stored);
    let (in_list, in_tail, in_read) = (Arc::clone(&shown), Arc::clone(&shown), shown);
    Ok(Effects {
        list_partitions: effect(move |()| {
            let (all, names) = (list(()), Arc::clone(&in_list));
            async move { Ok(all.await?.into_iter().filter(|id| names.contains_key(&id.topic)).map(|id| renamed(&names, id)).collect()) }
        }),
        tail_log: effect(move |starts: Vec<_>| {
            let next = tail(starts.into_iter().map(|(id, start)| (of_tail(id), start)).collect());
            let names = Arc::clone(&in_tail);
            async move {
                let next = next.await?;
                let next: Effect<(), Batch> = effect(move |()| {
                    let (batch, names) = (next(()), Arc::clone(&names));
                    async move { Ok(renamed_batch(&names, &batch.await?)) }
                });
                Ok(next)
            }
        }),
        log_bounds: effect(move |id| bounds(of_bounds(id))),
        read_log_page: effect(move |span: ReadSpan| {
            let (batch, names) = (read(ReadSpan { partition: of_read(span.partition), ..span }), Arc::clone(&in_read));
            async move { Ok(renamed_batch(&names, &batch.await?)) }
        }),
        find_position: effect(move |(id, offset)| find((of_find(id), offset))),
        send_signal: bind(&nats, nats::send_signal),
        host_time: bind(&HostClock::start(), clock::host_time),
    })
}

impl Site {
    async fn start(region: &str, names: &BTreeMap<Topic, Topic>, nats_url: &str, limits: Limits, keys: &Keyring) -> Result<Self> {
        let shutdown = CancellationToken::new();
        let effects = effects(region, names, nats_url).await?;
        let feed = Feed::new(effects, limits, region, CursorKey::new(SECRET), shutdown.clone());
        let health = Health::of(&["log"]);
        tokio::spawn(feed::run(Arc::clone(&feed), health.clone()));
        let keys = api::Keys::watch(keys.dir.path().join("keys.toml"), shutdown.clone()).await?;
        let routes = http::routes(http::Shared { feed: Arc::clone(&feed), keys })?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        tokio::spawn(async move { axum::serve(listener, routes).await });
        eventually("the feed is ready", Duration::from_secs(20), || async { Ok(health.complaints().is_empty()) }).await?;
        Ok(Self { url, feed, shutdown })
    }

    fn client(&self, key: &str) -> Result<Client> {
        Client::new(ClientConfig { feed_urls: vec![self.url.clone()], key: key.into(), ..ClientConfig::default() })
    }
}

struct Keyring {
    dir: tempfile::TempDir,
    by_tenant: BTreeMap<String, String>,
}

fn keys(tenants: &[String]) -> Result<Keyring> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("keys.toml");
    let by_tenant = tenants.iter().map(|tenant| Ok((tenant.clone(), api::create_key(&file, tenant)?))).collect::<Result<_>>()?;
    Ok(Keyring { dir, by_tenant })
}

fn own(topic: &Topic) -> BTreeMap<Topic, Topic> {
    BTreeMap::from([(topic.clone(), topic.clone())])
}

fn ids(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}-{number:05}")).collect()
}

async fn pull_all(
    mut pull: impl AsyncFnMut(&str, u32) -> Result<Page>,
    mut cursor: String,
    limits: &[u32],
) -> Result<(Vec<String>, String)> {
    let mut pulled = Vec::new();
    for limit in limits.iter().cycle() {
        let page = pull(&cursor, *limit).await?;
        pulled.extend(page.events.iter().map(|event| event.id.clone()));
        cursor = page.cursor;
        if !page.more {
            break;
        }
    }
    Ok((pulled, cursor))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_from_the_log_and_from_memory_are_what_was_appended() -> Result<()> {
    let origins = Origins::create(&unique("f")).await?;
    let tenants: Vec<String> = (0..3).map(|_| unique("tenant")).collect();
    let keys = keys(&tenants)?;
    let (before, after) = (ids("before", 1500), ids("after", 1500));
    for tenant in &tenants {
        origins.post(tenant, &before).await?;
    }
    let region = &origins.topic.region;
    let site = Site::start(region, &own(&origins.topic), &address("NATS_URL"), Limits::STANDARD, &keys).await?;
    let small = Limits { tail_bytes_max: 0, tail_start_records: 1, ..Limits::STANDARD };
    let plain = Site::start(region, &own(&origins.topic), &address("NATS_URL"), small, &keys).await?;
    for tenant in &tenants {
        origins.post(tenant, &after).await?;
    }
    let want: BTreeSet<&String> = before.iter().chain(&after).collect();
    for (tenant, limits) in tenants.iter().zip([vec![1000], vec![7, 100, 33], vec![500, 1]]) {
        let (client, other) = (site.client(&keys.by_tenant[tenant])?, plain.client(&keys.by_tenant[tenant])?);
        let deadline = Duration::from_secs(10);
        eventually("memory has everything", deadline, || async {
            Ok(pull_all(async |c, _| Ok(client.pull(c, 1000, 0).await?), String::new(), &[0]).await?.0.len() == 3000)
        })
        .await?;
        let same = async |cursor: &str, limit: u32| {
            let (page, again) = (client.pull(cursor, limit, 0).await?, other.pull(cursor, limit, 0).await?);
            let listed = |page: &Page| page.events.iter().map(|event| event.json.get().to_owned()).collect::<Vec<_>>();
            assert_eq!((listed(&page), &page.cursor), (listed(&again), &again.cursor), "memory and log give the same page");
            Ok(page)
        };
        let (pulled, _) = pull_all(same, String::new(), &limits).await?;
        assert_eq!(pulled.len(), want.len());
        assert_eq!(pulled.iter().collect::<BTreeSet<_>>(), want);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cursor_goes_on_in_another_region_whose_copy_has_other_offsets() -> Result<()> {
    let origins = Origins::create(&unique("f")).await?;
    let copies = Origins::create(&unique("c")).await?;
    let tenant = unique("tenant");
    let keys = keys(std::slice::from_ref(&tenant))?;
    let posted = ids("event", 600);
    let site = Site::start(&origins.topic.region, &own(&origins.topic), &address("NATS_URL"), Limits::STANDARD, &keys).await?;
    // What somebody else put into the copy, then every position in order, some of them twice.
    let junk = |partition| OutRecord { content_type: "text/plain".into(), ..OutRecord::event(&copies.partition(partition), "junk".into()) };
    copies
        .publish((0..PARTITIONS).flat_map(|partition| std::iter::repeat_n(partition, 5 + usize::from(partition))).map(junk).collect())
        .await?;
    let mut offsets: BTreeMap<u16, u64> = BTreeMap::new();
    for chunk in posted.chunks(50) {
        let records: Vec<OutRecord> = chunk.iter().map(|id| origins.record(&tenant, id)).collect();
        let stamped: Vec<OutRecord> = records
            .iter()
            .map(|record| {
                let offset = offsets.entry(record.partition.partition).or_default();
                let origin = Origin { offset: *offset, append_time_ms: 1_700_000_000_000 };
                *offset += 1;
                OutRecord { origin: Some(origin), partition: copies.partition(record.partition.partition), ..record.clone() }
            })
            .collect();
        origins.publish(records).await?;
        copies.publish(stamped.clone()).await?;
        copies.publish(stamped.into_iter().take(20).collect()).await?;
    }
    let names = BTreeMap::from([(copies.topic.clone(), origins.topic.clone())]);
    let small = Limits { tail_bytes_max: 0, tail_start_records: 1, ..Limits::STANDARD };
    let elsewhere = Site::start(&unique("r"), &names, &address("NATS_URL"), small, &keys).await?;
    let key = &keys.by_tenant[&tenant];
    let clients = [site.client(key)?, elsewhere.client(key)?];
    let mut turn = 0;
    let pull = async |cursor: &str, _| {
        turn += 1;
        Ok(clients[turn % 2].pull(cursor, 17, 2000).await?)
    };
    let (pulled, _) = pull_all(pull, String::new(), &[17]).await?;
    assert_eq!(pulled.len(), posted.len(), "each position once, wherever it was pulled");
    assert_eq!(pulled.iter().collect::<BTreeSet<_>>(), posted.iter().collect());
    assert!(elsewhere.feed.page(&tenant, &Default::default(), 1).await.is_ok());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_and_a_long_poll_come_at_once() -> Result<()> {
    let origins = Origins::create(&unique("f")).await?;
    let tenant = unique("a tenant.>*");
    let keys = keys(&[unique("tenant")])?;
    let polled = keys.by_tenant.keys().next().context("a tenant")?.clone();
    let region = origins.topic.region.clone();
    let site = Site::start(&region, &own(&origins.topic), &address("NATS_URL"), Limits::STANDARD, &keys).await?;
    let listener = Nats::connect(&NatsConfig { url: address("NATS_URL"), region: region.clone(), client_id: "live".into() }).await?;
    let mut signals = subscribe_signals(Arc::clone(&listener), SignalsOf { region: region.clone(), tenant: tenant.clone() }).await?;
    let client = site.client(&keys.by_tenant[&polled])?;
    let cursor = client.pull("", 1, 0).await?.cursor;
    let mut waits = Vec::new();
    for number in 0..20 {
        let posted = Instant::now();
        let id = [number.to_string()];
        let (signal, sent) = tokio::join!(tokio::time::timeout(Duration::from_secs(5), signals.next()), origins.post(&tenant, &id));
        sent?;
        assert_eq!(signal?.region, region);
        waits.push(posted.elapsed());
    }
    waits.sort();
    println!("append to signal: p50 {:?}, max {:?}", waits[10], waits[19]);
    let posted = Instant::now();
    let one = ["polled".to_owned()];
    let late = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        origins.post(&polled, &one).await
    };
    let (page, sent) = tokio::join!(client.pull(&cursor, 10, 20_000), late);
    sent?;
    assert_eq!(page?.events[0].id, "polled");
    assert!(posted.elapsed() < Duration::from_secs(5), "{:?}", posted.elapsed());
    Ok(())
}

/// NATS behind a door that can be shut: connections break, new ones are refused.
struct Door {
    url: String,
    open: tokio::sync::watch::Sender<bool>,
}

async fn door(to: String) -> Result<Door> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("nats://{}", listener.local_addr()?);
    let (open, seen) = tokio::sync::watch::channel(true);
    tokio::spawn(async move {
        while let Ok((mut inside, _)) = listener.accept().await {
            let (mut seen, to) = (seen.clone(), to.clone());
            tokio::spawn(async move {
                if *seen.borrow() {
                    let mut outside = TcpStream::connect(to).await?;
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut inside, &mut outside) => {}
                        _ = seen.wait_for(|open| !open) => {}
                    }
                }
                anyhow::Ok(())
            });
        }
    });
    Ok(Door { url, open })
}

fn handled(dir: &std::path::Path) -> Result<Vec<Line>> {
    let text = std::fs::read_to_string(dir.join("handled.ndjson")).unwrap_or_default();
    text.lines().filter(|line| line.ends_with('}')).map(|line| Ok(serde_json::from_str(line)?)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tick_covers_what_nats_loses_and_signals_come_back_with_it() -> Result<()> {
    let origins = Origins::create(&unique("f")).await?;
    let region = origins.topic.region.clone();
    let tenants: Vec<String> = (0..5).map(|_| unique("tenant")).collect();
    let keys = keys(&tenants)?;
    let door = door(address("NATS_URL").replace("nats://", "")).await?;
    let site = Site::start(&region, &own(&origins.topic), &door.url, Limits::STANDARD, &keys).await?;
    let nats = Nats::start(&NatsConfig { url: door.url.clone(), region: region.clone(), client_id: "live-consumer".into() }).await?;
    let state_dir = tempfile::tempdir()?;
    let state = State::open(state_dir.path())?;
    let effects = consumer::Effects {
        await_signal: bind(&Subscriptions::start(Arc::clone(&nats), &region, &tenants), consumer::await_signal),
        pull_page: bind(&Clients::new(&keys.by_tenant, std::slice::from_ref(&site.url))?, consumer::pull_page),
        handle_page: bind(&state, consumer::handle_page),
        save_cursor: bind(&state, consumer::save_cursor),
        load_cursor: bind(&state, consumer::load_cursor),
        host_time: bind(&HostClock::start(), clock::host_time),
    };
    let shutdown = CancellationToken::new();
    tokio::spawn(consumer::run(effects, tenants.clone(), FollowConfig::default(), Health::default(), shutdown.clone()));
    let count = || async { anyhow::Ok(handled(state_dir.path())?.len()) };
    let all = |what: &'static str, want: usize, deadline| eventually(what, deadline, move || async move { Ok(count().await? == want) });
    tokio::time::sleep(Duration::from_millis(500)).await;
    for tenant in &tenants {
        origins.post(tenant, &ids("with", 10)).await?;
    }
    all("handled with signals", 50, Duration::from_secs(5)).await?;
    let seen = handled(state_dir.path())?;
    assert!(seen.iter().any(|line| line.signalled_us > 0), "a signal woke a consumer: {:?}", &seen[..3]);
    door.open.send_replace(false);
    eventually("NATS is gone", Duration::from_secs(10), || async { Ok(!nats.is_connected()) }).await?;
    let posted = Instant::now();
    origins.post(&tenants[0], &ids("without", 3)).await?;
    all("handled without NATS", 53, Duration::from_secs(3)).await?;
    println!("handled without signals after {:?}", posted.elapsed());
    door.open.send_replace(true);
    eventually("NATS is back", Duration::from_secs(10), || async { Ok(nats.is_connected()) }).await?;
    eventually("signals are back", Duration::from_secs(20), || async {
        origins.post(&tenants[1], &[unique("again")]).await?;
        tokio::time::sleep(Duration::from_millis(300)).await;
        Ok(handled(state_dir.path())?.last().is_some_and(|line| line.signalled_us > 0))
    })
    .await?;
    shutdown.cancel();
    Ok(())
}
