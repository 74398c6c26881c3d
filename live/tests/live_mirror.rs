//! The mirror, both halves over gRPC, with a real log. Two regions share one broker: what region `x` copies of `events.y.g1` stands in
//! `events.y.g2`, and the names are put back where the mirror looks.
#![allow(clippy::unwrap_used)]

use adapters::{
    clock::{self, HostClock},
    redpanda::{Batch, LogReader, OutRecord, Publisher, ReadSpan, RedpandaConfig, TopicSettings, create_topics},
};
use bytes::Bytes;
use futures::{StreamExt, future};
use kit::{bind, effect, health::Health, shutdown::CancellationToken};
use live::{address, eventually, unique};
use meridian_proto::{Origin, PartitionId, Topic};
use mirror::{
    CONTENT_TYPE_REFUSED, Effects, Limits, LocalLog, Received, local_log,
    wire::{self, Peers},
};
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{net::TcpListener, task::JoinHandle};

const PARTITIONS: u16 = 4;
const COPY_BYTES_MAX: &str = "65536";
const PATIENCE: Duration = Duration::from_secs(60);

fn broker() -> RedpandaConfig {
    RedpandaConfig { address: address("KAFKA_ADDRESS"), client_id: "live-mirror".into() }
}

fn topic(region: &str, generation: u32) -> Topic {
    Topic { region: region.into(), generation }
}

fn partition(region: &str, generation: u32, partition: u16) -> Arc<PartitionId> {
    Arc::new(PartitionId { topic: topic(region, generation), partition })
}

async fn create_logs(region: &str) {
    let settings = |name: String, partitions: u16, more: Option<(&str, &str)>| TopicSettings {
        name,
        partitions,
        replication: 1,
        settings: BTreeMap::from_iter(
            [("message.timestamp.type", "LogAppendTime"), ("retention.ms", "3600000")]
                .into_iter()
                .chain(more)
                .map(|(key, value)| (key.into(), value.into())),
        ),
    };
    let copy = settings(topic(region, 2).to_string(), PARTITIONS, Some(("max.message.bytes", COPY_BYTES_MAX)));
    let own = settings(topic(region, 1).to_string(), PARTITIONS, None);
    create_topics(&broker(), &[own, copy, settings(format!("{}.dlq", topic(region, 1)), 1, None)]).await.unwrap();
}

fn with_generation(partition: &PartitionId, generation: u32) -> PartitionId {
    PartitionId { topic: topic(&partition.topic.region, generation), partition: partition.partition }
}

/// The region's log effects, with copies in generation 2.
async fn local_effects(region: &str, peers: &Arc<Peers>, lose: &Arc<AtomicBool>) -> Effects {
    let log = LocalLog::connect(broker(), region, Limits::default()).await.unwrap();
    let (append, last, receive) =
        (bind(&log, local_log::append_local_log), bind(&log, local_log::last_mirrored), bind(peers, wire::receive_frames));
    let lose = Arc::clone(lose);
    Effects {
        read_local_log: bind(&log, local_log::read_local_log),
        send_frames: bind(&Arc::new(Limits::default()), wire::send_frames),
        receive_frames: effect(move |ask| {
            let (received, lose) = (receive(ask), Arc::clone(&lose));
            async move {
                let Received::Following(frames) = received.await? else { panic!("nothing is out of range here") };
                // Once: the next frame with records is lost on the way.
                let kept = frames.filter(move |frame| {
                    let carries = frame.as_ref().is_ok_and(|frame| !frame.records.is_empty());
                    future::ready(!(carries && lose.swap(false, Ordering::Relaxed)))
                });
                Ok(Received::Following(kept.boxed()))
            }
        }),
        append_local_log: effect(move |records: Vec<OutRecord>| {
            let copies =
                records.into_iter().map(|record| OutRecord { partition: Arc::new(with_generation(&record.partition, 2)), ..record });
            append(copies.collect())
        }),
        last_mirrored: effect(move |region| {
            let places = last(region);
            async move {
                let mut places = places.await?;
                places.retain(|place| place.partition.topic.generation == 2);
                places.iter_mut().for_each(|place| place.partition = with_generation(&place.partition, 1));
                Ok(places)
            }
        }),
        park_record: bind(log.publisher(), Publisher::dead_letter),
        host_time: bind(&HostClock::start(), clock::host_time),
    }
}

struct Mirror {
    shutdown: CancellationToken,
    task: JoinHandle<anyhow::Result<()>>,
    /// Loses one frame when set.
    lose: Arc<AtomicBool>,
}

impl Mirror {
    async fn start(region: &str, listen: SocketAddr, peer: (&str, SocketAddr)) -> Self {
        let limits = Limits::default();
        let peers = Arc::new(Peers::new(region, vec![(peer.0.into(), format!("http://{}", peer.1))], 16 << 20, &limits).unwrap());
        let regions = peers.regions().map(Into::into).collect();
        let (lose, shutdown) = (Arc::new(AtomicBool::new(false)), CancellationToken::new());
        let effects = local_effects(region, &peers, &lose).await;
        let listener = TcpListener::bind(listen).await.unwrap();
        let task = tokio::spawn(mirror::run(effects, limits, region.into(), regions, listener, Health::of(&["log"]), shutdown.clone()));
        Self { shutdown, task, lose }
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.unwrap().unwrap();
    }
}

async fn publish(publisher: &Arc<Publisher>, region: &str, values: std::ops::Range<u64>) {
    let records =
        values.map(|number| OutRecord::event(&partition(region, 1, (number % u64::from(PARTITIONS)) as u16), number.to_string().into()));
    Arc::clone(publisher).publish(records.collect()).await.unwrap();
}

async fn read_all(reader: &Arc<LogReader>, id: &PartitionId) -> anyhow::Result<Vec<Batch>> {
    let mut batches: Vec<Batch> = Vec::new();
    loop {
        let from_local = batches.last().and_then(|batch| batch.iter().next_back()).map_or(0, |record| record.local_offset + 1);
        let span = ReadSpan { partition: id.clone(), from_local, records_max: 10_000, bytes_max: 4 << 20 };
        let batch = Arc::clone(reader).read_span(span).await?;
        if batch.is_empty() {
            return Ok(batches);
        }
        batches.push(batch);
    }
}

/// Values of a partition in order, with their offsets of origin.
async fn values(reader: &Arc<LogReader>, id: &PartitionId) -> anyhow::Result<Vec<(u64, Bytes)>> {
    let batches = read_all(reader, id).await?;
    Ok(batches.iter().flat_map(|batch| batch.iter().enumerate().map(|(index, record)| (record.offset, batch.value_bytes(index)))).collect())
}

/// Whether every partition of the copy holds exactly what the origin holds: each position once, in order, the same bytes.
async fn equal(origin: &Arc<LogReader>, copy: &Arc<LogReader>, region: &str) -> anyhow::Result<bool> {
    for number in 0..PARTITIONS {
        let own = values(origin, &partition(region, 1, number)).await?;
        if own != values(copy, &partition(region, 2, number)).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

async fn count(reader: &Arc<LogReader>, region: &str, generation: u32) -> u64 {
    let mut sum = 0;
    for number in 0..PARTITIONS {
        sum += Arc::clone(reader).bounds((*partition(region, generation, number)).clone()).await.unwrap().high;
    }
    sum
}

async fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_regions_mirror_each_other_each_position_once() {
    let (a, b) = (unique("ta"), unique("tb"));
    create_logs(&a).await;
    create_logs(&b).await;
    let (at_a, at_b) = (free_address().await, free_address().await);
    let publisher = Publisher::connect(&broker()).await.unwrap();
    let (reader_a, reader_b) = (LogReader::connect(&broker(), &a).await.unwrap(), LogReader::connect(&broker(), &b).await.unwrap());
    publish(&publisher, &a, 0..5000).await;
    publish(&publisher, &b, 0..1000).await;
    // A position header on a record of the own log is somebody's invention.
    let forged =
        OutRecord { origin: Some(Origin { offset: 7, append_time_ms: 7 }), ..OutRecord::event(&partition(&a, 1, 1), "forged".into()) };
    Arc::clone(&publisher).publish(vec![forged]).await.unwrap();

    let mirror_a = Mirror::start(&a, at_a, (&b, at_b)).await;
    let mirror_b = Mirror::start(&b, at_b, (&a, at_a)).await;
    eventually("part of the copy", PATIENCE, || async { Ok(count(&reader_b, &a, 2).await > 1000) }).await.unwrap();
    mirror_b.stop().await;
    publish(&publisher, &a, 5000..10_000).await;
    let mirror_b = Mirror::start(&b, at_b, (&a, at_a)).await;
    eventually("the copy after a restart", PATIENCE, || equal(&reader_a, &reader_b, &a)).await.unwrap();

    mirror_b.lose.store(true, Ordering::Relaxed);
    publish(&publisher, &a, 10_000..10_250).await;
    eventually("a lost frame", PATIENCE, || async { Ok(!mirror_b.lose.load(Ordering::Relaxed)) }).await.unwrap();
    // A gap shows by what comes after it; the relay's watermarks come every second.
    publish(&publisher, &a, 10_250..10_500).await;
    eventually("the copy after a lost frame", PATIENCE, || equal(&reader_a, &reader_b, &a)).await.unwrap();

    eventually("the copy of the other", PATIENCE, || equal(&reader_b, &reader_a, &b)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let counts = [(&a, 1), (&a, 2), (&b, 1), (&b, 2)].map(|(region, generation)| count(&reader_a, region, generation));
    assert_eq!(future::join_all(counts).await, [10_501, 10_501, 1000, 1000], "nothing goes round");
    mirror_a.stop().await;
    mirror_b.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_too_large_for_the_copy_leaves_a_stand_in() {
    let (a, b) = (unique("ta"), unique("tb"));
    create_logs(&a).await;
    create_logs(&b).await;
    let (at_a, at_b) = (free_address().await, free_address().await);
    let publisher = Publisher::connect(&broker()).await.unwrap();
    let reader_b = LogReader::connect(&broker(), &b).await.unwrap();
    publish(&publisher, &a, 0..200).await;
    let large = OutRecord::event(&partition(&a, 1, 2), vec![b'x'; 100_000].into());
    Arc::clone(&publisher).publish(vec![large]).await.unwrap();
    publish(&publisher, &a, 200..400).await;
    let (mirror_a, mirror_b) = (Mirror::start(&a, at_a, (&b, at_b)).await, Mirror::start(&b, at_b, (&a, at_a)).await);
    eventually("the copy", PATIENCE, || async { Ok(count(&reader_b, &a, 2).await >= 401) }).await.unwrap();
    mirror_a.stop().await;
    mirror_b.stop().await;
    let batches = read_all(&reader_b, &partition(&a, 2, 2)).await.unwrap();
    let records: Vec<_> = batches.iter().flat_map(Batch::iter).collect();
    assert!(records.iter().map(|record| record.offset).eq(0..101), "dense, each once");
    assert_eq!((records[50].content_type, records[50].value.len()), (CONTENT_TYPE_REFUSED, 0));
    assert_eq!(records.iter().filter(|record| record.content_type == CONTENT_TYPE_REFUSED).count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_put_into_a_copy_is_stepped_over() {
    let (a, b) = (unique("ta"), unique("tb"));
    create_logs(&a).await;
    create_logs(&b).await;
    let (at_a, at_b) = (free_address().await, free_address().await);
    let publisher = Publisher::connect(&broker()).await.unwrap();
    let (reader_a, reader_b) = (LogReader::connect(&broker(), &a).await.unwrap(), LogReader::connect(&broker(), &b).await.unwrap());
    publish(&publisher, &a, 0..400).await;
    let mirror_a = Mirror::start(&a, at_a, (&b, at_b)).await;
    let mirror_b = Mirror::start(&b, at_b, (&a, at_a)).await;
    eventually("the copy", PATIENCE, || equal(&reader_a, &reader_b, &a)).await.unwrap();
    mirror_b.stop().await;
    let bare = OutRecord::event(&partition(&a, 2, 0), "bare".into());
    let forged = OutRecord { origin: Some(Origin { offset: 1 << 40, append_time_ms: 7 }), ..bare.clone() };
    Arc::clone(&publisher).publish(vec![forged, bare]).await.unwrap();
    publish(&publisher, &a, 400..800).await;
    let mirror_b = Mirror::start(&b, at_b, (&a, at_a)).await;
    eventually("the copy and two strangers", PATIENCE, || async { Ok(count(&reader_b, &a, 2).await >= 802) }).await.unwrap();
    mirror_a.stop().await;
    mirror_b.stop().await;
    let mut offsets: Vec<_> = values(&reader_b, &partition(&a, 2, 0)).await.unwrap().into_iter().map(|(offset, _)| offset).collect();
    offsets.retain(|&offset| offset < 1 << 40);
    assert!(offsets.into_iter().eq(0..200), "each position once, in order");
}
