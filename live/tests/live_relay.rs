//! The relay between a real change log and a real log.
#![allow(clippy::unwrap_used)]

use adapters::{
    clock::{RegionClock, region_time},
    nats::{Nats, NatsConfig, await_change_hint, send_change_hint, subscribe_change_hints},
    redpanda::{Kind, LogReader, Publisher, ReadSpan, RedpandaConfig, TopicSettings, create_topics},
    scylla::{Ack, CommitRow, Generation, Scylla, ScyllaConfig, commit_event, database_time, read_changes, register_generation},
};
use bytes::Bytes;
use kit::{bind, effect, health::Health, shutdown::CancellationToken};
use live::address;
use meridian_proto::{
    Chain, ChainStep, Change, CommitId, CommitTime, Event, Incarnation, KEY_FUNCTION, PARTITIONS, PartitionId, Topic, Watermark,
};
use prost::Message;
use relay::{Config, Effects, log};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::time::Instant;

const PARTITION: u16 = 5;

struct World {
    scylla: Arc<Scylla>,
    clock: Arc<RegionClock>,
    publisher: Arc<Publisher>,
    reader: Arc<LogReader>,
    nats: Arc<Nats>,
    generation: Generation,
}

impl World {
    /// A generation of its own, so that tests share engines.
    async fn of_its_own() -> Self {
        let region = address("REGION");
        let scylla = ScyllaConfig { address: address("SCYLLA_ADDRESS"), regions: vec![region.clone()], region: region.clone() };
        let scylla = Scylla::connect(&scylla).await.unwrap();
        let clock = RegionClock::start(bind(&scylla, database_time), CancellationToken::new());
        let told = || async { region_time(Arc::clone(&clock), ()).await.map(|_| true) };
        live::eventually("the clock tells the time", Duration::from_secs(10), told).await.unwrap();
        let created = region_time(Arc::clone(&clock), ()).await.unwrap();
        let redpanda = RedpandaConfig { address: address("KAFKA_ADDRESS"), client_id: "live-tests".into() };
        let layout = Generation {
            region: region.clone(),
            generation: rand::random_range(1_000_000..2_000_000_000),
            partitions: PARTITIONS,
            window_ms: 10_000,
            key_function: KEY_FUNCTION.into(),
            cluster_id: String::new(),
            host_ids: Vec::new(),
            created_us: created.0,
        };
        let generation = register_generation(Arc::clone(&scylla), layout).await.unwrap();
        let topic = Topic { region: region.clone(), generation: generation.generation }.to_string();
        let settings = BTreeMap::from([("message.timestamp.type".into(), "LogAppendTime".into())]);
        create_topics(&redpanda, &[TopicSettings { name: topic, partitions: PARTITIONS, replication: 1, settings }]).await.unwrap();
        let nats = NatsConfig { url: address("NATS_URL"), region: region.clone(), client_id: "live-tests".into() };
        Self {
            scylla,
            clock,
            publisher: Publisher::connect(&redpanda).await.unwrap(),
            reader: LogReader::connect(&redpanda, &region).await.unwrap(),
            nats: Nats::connect(&nats).await.unwrap(),
            generation,
        }
    }

    fn id(&self) -> PartitionId {
        let topic = Topic { region: self.generation.region.clone(), generation: self.generation.generation };
        PartitionId { topic, partition: PARTITION }
    }

    async fn effects(&self) -> Effects {
        let hints = subscribe_change_hints(Arc::clone(&self.nats), self.generation.region.clone()).await.unwrap();
        let hints = Arc::new(tokio::sync::Mutex::new(hints));
        let generation = self.generation.clone();
        Effects {
            read_changes: bind(&self.scylla, read_changes),
            publish_batch: bind(&self.publisher, log::publish_batch),
            publish_watermarks: bind(&self.publisher, Publisher::publish),
            last_watermark: bind(&self.reader, log::last_watermark),
            region_time: bind(&self.clock, region_time),
            await_hint: bind(&hints, await_change_hint),
            register_generation: effect(move |()| {
                let generation = generation.clone();
                async move { Ok(generation) }
            }),
        }
    }

    /// Runs a relay for as long as `work` takes.
    async fn relaying<T>(&self, work: impl Future<Output = T>) -> T {
        let shutdown = CancellationToken::new();
        let config: Config = kit::config::defaults(include_str!("../../services/relay/config.toml")).unwrap();
        let running = tokio::spawn(relay::run(self.effects().await, config.limits(), Health::default(), shutdown.clone()));
        let done = work.await;
        shutdown.cancel();
        running.await.unwrap().unwrap();
        done
    }

    /// Commits a row of `events` events as ingest does, with its hint.
    async fn commit(&self, incarnation: Incarnation, events: u16) -> Vec<(CommitId, Bytes)> {
        let row = CommitId::of_row(region_time(Arc::clone(&self.clock), ()).await.unwrap(), incarnation);
        let event = |index| {
            let id = row.at_index(index);
            let event =
                Event { id: id.to_string(), commit_id: id.to_bytes().to_vec().into(), data: vec![7; 200].into(), ..Event::default() };
            (id, Bytes::from(event.encode_to_vec()))
        };
        let made: Vec<(CommitId, Bytes)> = (0..events).map(event).collect();
        let change = Change { events: made.iter().map(|(_, bytes)| bytes.clone()).collect() }.encode_to_vec().into();
        let generation = self.generation.generation;
        let commit = CommitRow { generation, partition: PARTITION, row, change, ack: Ack::Local };
        commit_event(Arc::clone(&self.scylla), commit).await.unwrap();
        let _ = send_change_hint(Arc::clone(&self.nats), PARTITION).await;
        made
    }

    /// The partition's whole log: kinds and bytes in order.
    async fn whole_log(&self) -> Vec<(Kind, Bytes)> {
        let (mut found, mut from_local) = (Vec::new(), 0);
        loop {
            let span = ReadSpan { partition: self.id(), from_local, records_max: 10_000, bytes_max: 1 << 24 };
            let batch = Arc::clone(&self.reader).read_span(span).await.unwrap();
            if batch.is_empty() {
                return found;
            }
            from_local += batch.len() as u64;
            found.extend(batch.iter().enumerate().map(|(index, record)| (record.kind, batch.value_bytes(index))));
        }
    }

    async fn sealed(&self) -> CommitTime {
        let found = log::last_watermark(Arc::clone(&self.reader), self.id()).await.unwrap();
        found.through.unwrap_or_default()
    }
}

/// Every event stands in the log as it was made, and before the first watermark that covers it; watermarks chain.
fn assert_promises(log: &[(Kind, Bytes)], made: &[(CommitId, Bytes)]) {
    let mut chain: Option<Chain> = None;
    for (index, (_, bytes)) in log.iter().enumerate().filter(|(_, (kind, _))| *kind == Kind::Watermark) {
        let watermark = Watermark::decode(bytes.clone()).unwrap();
        let (from, through) = (CommitTime(watermark.from_us), CommitTime(watermark.through_us));
        let chain = chain.get_or_insert(Chain::starting_with(from, from));
        assert_ne!(chain.advance(from, through), ChainStep::Gap);
        let covered = made.iter().filter(|(id, _)| id.time() > from && id.time() <= through);
        let (mut rows, mut xor) = (0, 0);
        for (id, event) in covered {
            assert!(log[..index].iter().any(|(kind, bytes)| *kind == Kind::Event && bytes == event), "{id} stands before its watermark");
            (rows, xor) = (rows + 1, xor ^ id.0);
        }
        assert_eq!((watermark.rows, &watermark.xor[..]), (rows, &xor.to_be_bytes()[..]));
    }
    let sealed = chain.unwrap().through;
    assert!(made.iter().all(|(id, _)| id.time() <= sealed));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_reach_the_log_once_and_a_relay_goes_on_where_the_log_says() {
    let world = World::of_its_own().await;
    let incarnation = Incarnation::from_random(rand::random());
    let mut made = Vec::new();
    let mut took = world
        .relaying(async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let mut took = Vec::new();
            for round in 0..60 {
                let started = Instant::now();
                made.extend(world.commit(incarnation, 1 + round % 5).await);
                let written = started.elapsed();
                while (world.whole_log().await.iter().filter(|(kind, _)| *kind == Kind::Event).count()) < made.len() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                took.push((started.elapsed() - written, written));
            }
            took
        })
        .await;
    took.sort();
    println!(
        "commit to log, seen by reading it again and again: median {:?}, worst {:?} (row written {:?})",
        took[30].0, took[59].0, took[30].1
    );
    // The relay was stopped with rows that are published and not sealed. The next one finds them, and what came meanwhile.
    made.extend(world.commit(incarnation, 3).await);
    let last = made.last().unwrap().0.time();
    world
        .relaying(async {
            while world.sealed().await < last {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        })
        .await;
    let log = world.whole_log().await;
    assert_promises(&log, &made);
    assert_eq!(log.iter().filter(|(kind, _)| *kind == Kind::Event).count(), made.len(), "no event stands there twice");
}
