//! The sink between a real log and a real ClickHouse. `MERIDIAN_BACKLOG` sets how many events wait for it (200 000).
#![allow(clippy::unwrap_used)]

use adapters::{
    clickhouse::{self, ClickHouse, execute_schema, load_positions, read_progress},
    clock::{self, HostClock},
    redpanda::{LogReader, OutRecord, Publisher, RedpandaConfig, TopicSettings, create_topics},
};
use anyhow::Result;
use bytes::Bytes;
use kit::{bind, health::Health, shutdown::CancellationToken};
use live::{address, eventually, unique};
use meridian_proto::{CommitId, CommitTime, Event, Incarnation, PartitionId, Topic, Watermark};
use prost::Message;
use sink::{Config, Effects, HEALTH_PARTS, Log};
use std::{borrow::Cow, collections::BTreeMap, sync::Arc, time::Duration};
use tokio::time::Instant;

const SCHEMA: &str = include_str!("../../deploy/schema/clickhouse/0001_events.sql");
const PARTITIONS: u16 = 4;

/// One test at a time: memory and CPU time are the process's.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// A topic and a database that no other test has.
struct World {
    region: String,
    redpanda: RedpandaConfig,
    publisher: Arc<Publisher>,
    store: Arc<ClickHouse>,
    config: Config,
}

impl World {
    async fn of_its_own() -> Result<Self> {
        let region = unique("s");
        let redpanda = RedpandaConfig { address: address("KAFKA_ADDRESS"), client_id: "live-tests".into() };
        let settings = BTreeMap::from([("message.timestamp.type".to_owned(), "LogAppendTime".to_owned())]);
        let topic = |name, partitions| TopicSettings { name, partitions, replication: 1, settings: settings.clone() };
        let name = format!("events.{region}.g1");
        create_topics(&redpanda, &[topic(name.clone(), PARTITIONS), topic(format!("{name}.dlq"), 1)]).await?;
        let store = ClickHouse::connect(&address("CLICKHOUSE_URL"), &unique("live")).await?;
        execute_schema(Arc::clone(&store), SCHEMA.into()).await?;
        let defaults: Config = kit::config::defaults(include_str!("../../services/sink/config.toml"))?;
        let config = Config { region: region.clone(), regions: vec![region.clone()], kafka_address: redpanda.address.clone(), ..defaults };
        Ok(Self { publisher: Publisher::connect(&redpanda).await?, region, redpanda, store, config })
    }

    fn place(&self, partition: u16) -> Arc<PartitionId> {
        Arc::new(PartitionId { topic: Topic { region: self.region.clone(), generation: 1 }, partition })
    }

    async fn append(&self, events: std::ops::Range<u64>) -> Result<()> {
        let places: Vec<Arc<PartitionId>> = (0..PARTITIONS).map(|partition| self.place(partition)).collect();
        for start in events.clone().step_by(10_000) {
            let numbers = start..(start + 10_000).min(events.end);
            let record =
                |n: u64| OutRecord::event(&places[(n % u64::from(PARTITIONS)) as usize], event(&self.region, n).encode_to_vec().into());
            Arc::clone(&self.publisher).publish(numbers.map(record).collect()).await?;
        }
        Ok(())
    }

    async fn append_watermarks(&self, from_us: u64, through_us: u64) -> Result<()> {
        let watermark = |partition: u16| {
            let (region, partition) = (self.region.clone(), u32::from(partition));
            Watermark { region, generation: 1, partition, from_us, through_us, ..Watermark::default() }.encode_to_vec()
        };
        let records = (0..PARTITIONS).map(|partition| OutRecord::watermark(&self.place(partition), watermark(partition).into())).collect();
        Arc::clone(&self.publisher).publish(records).await
    }

    async fn start(&self, health: &Health) -> Result<tokio::task::JoinHandle<Result<()>>> {
        let log = Log::connect(self.config.log()).await?;
        let effects = Effects {
            load_positions: bind(&self.store, clickhouse::load_positions),
            start_following: bind(&log, Log::start_following),
            poll_batch: bind(&log, Log::poll_batch),
            insert_block: bind(&self.store, clickhouse::insert_block),
            save_positions: bind(&self.store, clickhouse::save_positions),
            dead_letter: bind(&self.publisher, Publisher::dead_letter),
            host_time: bind(&HostClock::start(), clock::host_time),
        };
        Ok(tokio::spawn(sink::run(effects, self.config.limits(), health.clone(), CancellationToken::new())))
    }

    async fn sql(&self, statement: &str) -> Result<String> {
        let url = format!("{}/?database={}", address("CLICKHOUSE_URL"), self.store.database());
        let response = reqwest::Client::new().post(url).body(statement.to_owned()).send().await?.error_for_status()?;
        Ok(response.text().await?.trim().to_owned())
    }

    async fn stored(&self) -> Result<u64> {
        Ok(self.sql("SELECT uniqExact(id) FROM events").await?.parse()?)
    }

    /// Waits until the positions stand at the end of the log.
    async fn drained(&self, records: u64, deadline: Duration) -> Result<()> {
        let at_end = || async {
            let rows = load_positions(Arc::clone(&self.store), ()).await?.rows;
            Ok(rows.iter().map(|row| row.next_offset).sum::<u64>() == records)
        };
        eventually("the log is drained", deadline, at_end).await
    }
}

fn event(region: &str, number: u64) -> Event {
    Event {
        tenant: format!("tenant-{:02}", number % 20),
        source: "/live".into(),
        id: format!("{number}"),
        r#type: "order".into(),
        data: format!(r#"{{"amount":"0.1","pad":"{}"}}"#, "x".repeat(100)).into(),
        origin: region.into(),
        commit_id: Bytes::copy_from_slice(&CommitId::of_row(CommitTime(1_000 + number), Incarnation::from_random(4)).to_bytes()),
        payload_hash: Bytes::from_static(&[3; 32]),
        accepted_us: 1_000 + number,
        ..Event::default()
    }
}

/// Memory and CPU time of this process: MiB resident, seconds.
fn used() -> (f64, f64) {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: f64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    let ticks: f64 = fields[11..13].iter().map(|field| field.parse::<f64>().unwrap()).sum();
    (pages * 4096.0 / f64::from(1 << 20), ticks / 100.0)
}

/// Number 59 of the catalogue of field reports; 6 and 57 on the way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backlog_drains_exactly_within_bounded_memory() -> Result<()> {
    let _alone = ALONE.lock().await;
    let events: u64 = kit::config::variable("MERIDIAN_BACKLOG").map_or(Ok(200_000), |text| text.parse())?;
    let world = World::of_its_own().await?;
    let unknown =
        |value: &'static [u8]| OutRecord { content_type: Cow::Borrowed("text/plain"), ..OutRecord::event(&world.place(1), value.into()) };
    world.append(0..events / 2).await?;
    Arc::clone(&world.publisher).publish(vec![unknown(b"poison"), OutRecord::event(&world.place(1), Bytes::new())]).await?;
    world.append(events / 2..events).await?;
    world.append_watermarks(10, 20).await?;
    let ((memory, cpu), started) = (used(), Instant::now());
    let health = Health::of(&HEALTH_PARTS);
    let sink = world.start(&health).await?;
    let drained = CancellationToken::new();
    let peak = tokio::spawn(peak_memory(drained.clone()));
    world.drained(events + 2 + u64::from(PARTITIONS), Duration::from_secs(30 + events / 10_000)).await?;
    let took = started.elapsed().as_secs_f64();
    drained.cancel();
    let (growth, cpu) = (peak.await? - memory, used().1 - cpu);
    println!(
        "{events} events in {took:.1} s: {:.0}/s, {:.2} µs CPU an event, {growth:.0} MiB more memory",
        events as f64 / took,
        cpu / events as f64 * 1e6
    );
    assert!(growth <= 64.0, "the process grew by {growth:.0} MiB");
    assert_eq!(world.stored().await?, events);
    assert_eq!(health.complaints(), Vec::<String>::new());
    let progress = read_progress(Arc::clone(&world.store), ()).await?;
    assert_eq!(progress.parked, [(world.region.clone(), 2)]);
    assert!(progress.rows.iter().all(|row| (row.since_us, row.through_us, row.partitions) == (10, 20, PARTITIONS)));
    sink.abort();
    Ok(())
}

async fn peak_memory(until: CancellationToken) -> f64 {
    let mut peak = 0_f64;
    while !until.is_cancelled() {
        peak = peak.max(used().0);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    peak
}

/// Numbers 1, 2, 5, 8 and 40.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_and_killed_under_load_it_states_nothing_that_is_not_stored() -> Result<()> {
    let _alone = ALONE.lock().await;
    let world = World::of_its_own().await?;
    let (first, second) = (Health::of(&HEALTH_PARTS), Health::of(&HEALTH_PARTS));
    let beside = world.start(&second).await?;
    for round in 0..8_u64 {
        let sink = world.start(&first).await?;
        world.append(round * 5_000..(round + 1) * 5_000).await?;
        world.append_watermarks(round * 10, (round + 1) * 10).await?;
        if round % 3 == 1 {
            world.sql("RENAME TABLE conflicts TO away").await?;
            tokio::time::sleep(Duration::from_millis(1500)).await;
            let stored = world.stored().await?;
            let stated: u64 = load_positions_unchecked(&world).await?;
            assert!(stated <= stored + (round + 1) * u64::from(PARTITIONS), "{stated} stated, {stored} stored");
            world.sql("RENAME TABLE away TO conflicts").await?;
        }
        tokio::time::sleep(Duration::from_millis(rand::random_range(0..700))).await;
        sink.abort();
    }
    world.drained(40_000 + 8 * u64::from(PARTITIONS), Duration::from_secs(30)).await?;
    assert_eq!(world.stored().await?, 40_000);
    assert_eq!(world.sql("SELECT count(), sum(toDecimal64(JSONExtractString(data, 'amount'), 1)) FROM events FINAL").await?, "40000\t4000");
    let rows = read_progress(Arc::clone(&world.store), ()).await?.rows;
    assert!(rows.iter().all(|row| (row.since_us, row.through_us, row.gap_through_us) == (0, 80, 0)), "{rows:?}");
    beside.abort();
    Ok(())
}

/// Positions while a table is away, when the sink's own reading refuses to go on.
async fn load_positions_unchecked(world: &World) -> Result<u64> {
    Ok(world.sql("SELECT sum(next_offset) FROM positions FINAL").await?.parse()?)
}

/// Number 15 and the aim of latency: one event after silence is counted within the flush period.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_event_after_silence_is_stored_within_the_flush_period() -> Result<()> {
    let _alone = ALONE.lock().await;
    let world = World::of_its_own().await?;
    let sink = world.start(&Health::of(&HEALTH_PARTS)).await?;
    world.append(0..1).await?;
    world.drained(1, Duration::from_secs(10)).await?;
    for number in 1..6 {
        tokio::time::sleep(Duration::from_millis(1500)).await;
        world.append(number..number + 1).await?;
        let started = Instant::now();
        world.drained(number + 1, Duration::from_secs(5)).await?;
        println!("stored and stated after {:.0} ms", started.elapsed().as_secs_f64() * 1e3);
    }
    let letters = LogReader::connect(&world.redpanda, &world.region).await?;
    assert_eq!(letters.bounds(PartitionId::clone(&world.place(1))).await?.low, 0);
    sink.abort();
    Ok(())
}
