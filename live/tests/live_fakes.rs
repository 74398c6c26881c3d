//! The simulator's fakes and the real engines through the same sequence: what a client sees must be equal.
#![allow(clippy::unwrap_used)]

use adapters::{
    clickhouse::{
        self, Aggregation, ClickHouse, ConflictRow, InsertBlock, ListConflicts, PositionRow, Positions, SaveProgress, SumMeter,
        execute_schema,
    },
    redpanda::{Batch, Bounds, LogReader, OutRecord, Publisher, ReadSpan, RedpandaConfig, TopicSettings, create_topics},
    scylla::{self, Ack, ChangeRange, ChangeRow, CommitRow, Generation, SaveIdentity, Scylla, ScyllaConfig, register_generation},
};
use kit::{Effect, bind, effect};
use live::{address, unique};
use meridian_proto::{
    CommitId, CommitTime, Event, Identity, Incarnation, KEY_FUNCTION, Origin, PARTITIONS, PartitionId, PayloadHash, Topic,
};
use prost::Message;
use sim::{
    Plan,
    plan::Role,
    world::{Process, World},
};
use std::{collections::BTreeMap, sync::Arc};

/// A process of a simulated world in which nothing goes wrong.
fn process() -> Arc<Process> {
    let plan = Plan { seed: 1, regions: 3, posts: Vec::new(), faults: Vec::new() };
    World::new(plan, None, false).start_process(0, Role::Sink)
}

struct Log {
    publish: Effect<Vec<OutRecord>, ()>,
    bounds: Effect<PartitionId, Bounds>,
    read_span: Effect<ReadSpan, Batch>,
    find_position: Effect<(PartitionId, u64), u64>,
}

/// What a client of the log sees, a line a step.
async fn use_log(log: &Log, own: &Topic, copy: &Topic) -> Vec<String> {
    let id = |topic: &Topic| PartitionId { topic: topic.clone(), partition: 0 };
    let record = |topic: &Topic, value: &'static str, origin: Option<u64>| OutRecord {
        origin: origin.map(|offset| Origin { offset, append_time_ms: 5 }),
        ..OutRecord::event(&Arc::new(id(topic)), value.into())
    };
    let mut seen = Vec::new();
    (log.publish)(vec![record(own, "a", None), record(own, "forged", Some(77)), record(own, "c", None)]).await.unwrap();
    (log.publish)(vec![record(copy, "x", Some(40)), record(copy, "stranger", None), record(copy, "y", Some(41))]).await.unwrap();
    (log.publish)(vec![record(copy, "z", Some(42))]).await.unwrap();
    for topic in [own, copy] {
        let Bounds { low, high } = (log.bounds)(id(topic)).await.unwrap();
        seen.push(format!("bounds {low}..{high}"));
        for from_local in 0..=high + 1 {
            let span = ReadSpan { partition: id(topic), from_local, records_max: 2, bytes_max: 1 << 20 };
            let read = (log.read_span)(span).await.ok();
            let told = read
                .map(|batch| batch.iter().map(|record| (record.local_offset, record.offset, record.value.to_vec())).collect::<Vec<_>>());
            seen.push(format!("from {from_local}: {told:?}"));
        }
        for wanted in [0, 2, 40, 41, 42, 43] {
            let from_local = (log.find_position)((id(topic), wanted)).await.unwrap();
            let span = ReadSpan { partition: id(topic), from_local, records_max: 10, bytes_max: 1 << 20 };
            let batch = (log.read_span)(span).await.unwrap();
            // Where a search ends among strangers is open; what a reader meets first is not.
            let first = batch.iter().find(|record| record.origin_known()).map(|record| (record.local_offset, record.offset));
            seen.push(format!("{wanted}: {first:?}"));
        }
    }
    seen
}

#[tokio::test]
async fn live_fake_log_and_real_log_look_the_same() {
    let generation = rand::random::<u32>() >> 1 | 1;
    let topic = |region: &str| Topic { region: region.into(), generation };
    let (own, copy, process) = (topic("fra"), topic("iad"), process());
    let broker = RedpandaConfig { address: address("KAFKA_ADDRESS"), client_id: "live-fakes".into() };
    let settings = |topic: &Topic| TopicSettings {
        name: topic.to_string(),
        partitions: 1,
        replication: 1,
        settings: BTreeMap::from([("message.timestamp.type".into(), "LogAppendTime".into()), ("retention.ms".into(), "3600000".into())]),
    };
    create_topics(&broker, &[settings(&own), settings(&copy)]).await.unwrap();
    [&own, &copy].iter().for_each(|topic| process.world.state().regions[0].log.create(topic));
    let (publisher, reader) = (Publisher::connect(&broker).await.unwrap(), LogReader::connect(&broker, "fra").await.unwrap());
    let real = Log {
        publish: bind(&publisher, Publisher::publish),
        bounds: bind(&reader, LogReader::bounds),
        read_span: bind(&reader, LogReader::read_span),
        find_position: bind(&reader, LogReader::find_position),
    };
    let appending = Arc::clone(&process);
    let fake = Log {
        publish: effect(move |records| {
            let process = Arc::clone(&appending);
            async move { sim::log::append(&process, records, false).await }
        }),
        bounds: bind(&process, sim::log::bounds),
        read_span: bind(&process, sim::log::read_span),
        find_position: bind(&process, sim::log::find_position),
    };
    assert_eq!(use_log(&fake, &own, &copy).await, use_log(&real, &own, &copy).await);
}

struct Store {
    insert_block: Effect<InsertBlock, ()>,
    save_positions: Effect<SaveProgress, ()>,
    load_positions: Effect<(), Positions>,
    sum_meter: Effect<SumMeter, Vec<clickhouse::Bucket>>,
    list_conflicts: Effect<ListConflicts, Vec<ConflictRow>>,
}

fn block(events: &[(&str, u64, u32)]) -> InsertBlock {
    let (topic, mut block) = (Topic { region: "fra".into(), generation: 1 }, sink::Block::default());
    for (offset, (id, commit_us, amount)) in events.iter().enumerate() {
        let commit_id = CommitId::of_row(CommitTime(*commit_us), Incarnation::from_random(9));
        let event = Event {
            tenant: "acme".into(),
            source: "/live".into(),
            id: (*id).into(),
            r#type: "order".into(),
            data: format!(r#"{{"amount":{amount}}}"#).into(),
            origin: "fra".into(),
            commit_id: commit_id.to_bytes().to_vec().into(),
            payload_hash: amount.to_be_bytes().repeat(8).into(),
            accepted_us: *commit_us,
            ..Event::default()
        };
        block.push(&PartitionId { topic: topic.clone(), partition: 0 }, offset as u64, &event.encode_to_vec()).unwrap();
    }
    block.take()
}

async fn use_store(store: &Store) -> Vec<String> {
    let mut seen = Vec::new();
    let blocks: [&[(&str, u64, u32)]; 4] = [
        &[("a", 2_000, 10), ("b", 1_000, 5)],
        &[("a", 1_500, 7)],
        &[("a", 2_000, 10), ("b", 1_000, 5)],
        &[("c", 1_000, 1), ("a", 3_000, 7)],
    ];
    for events in blocks {
        (store.insert_block)(block(events)).await.unwrap();
        let aggregation = Aggregation::Sum { property: "amount".into() };
        let question = SumMeter { tenant: "acme".into(), event_type: "order".into(), aggregation, starts_us: vec![0], end_us: i64::MAX };
        let sums = (store.sum_meter)(question).await.unwrap();
        seen.push(format!("{:?}", sums.iter().map(|bucket| (&bucket.value, bucket.events)).collect::<Vec<_>>()));
        let conflicts = (store.list_conflicts)(ListConflicts { tenant: "acme".into(), limit: 10 }).await.unwrap();
        seen.push(format!("{:?}", conflicts.iter().map(|row| (&row.id, row.commit_id, row.hash, &row.origin)).collect::<Vec<_>>()));
    }
    let own = (store.load_positions)(()).await.unwrap().store;
    for (store_id, partition, next_offset, through_us) in
        [(&own, 3, 7, 70), (&own, 3, 5, 50), (&own, 4, 1, 10), (&own, 3, 7, 71), (&"another".to_owned(), 3, 99, 99)]
    {
        let (origin, partitions) = ("fra".into(), 16);
        let row = PositionRow {
            store: store_id.clone(),
            origin,
            generation: 1,
            partition,
            partitions,
            next_offset,
            through_us,
            ..PositionRow::default()
        };
        (store.save_positions)(SaveProgress { positions: vec![row], parked: Vec::new() }).await.unwrap();
        let mut rows = (store.load_positions)(()).await.unwrap().rows;
        rows.sort_by_key(|row| row.partition);
        seen.push(format!("{:?}", rows.iter().map(|row| (row.partition, row.next_offset, row.through_us)).collect::<Vec<_>>()));
    }
    seen
}

#[tokio::test]
async fn live_fake_store_and_real_store_look_the_same() {
    let clickhouse = ClickHouse::connect(&address("CLICKHOUSE_URL"), &unique("live")).await.unwrap();
    execute_schema(Arc::clone(&clickhouse), include_str!("../../deploy/schema/clickhouse/0001_events.sql").into()).await.unwrap();
    let real = Store {
        insert_block: bind(&clickhouse, clickhouse::insert_block),
        save_positions: bind(&clickhouse, clickhouse::save_positions),
        load_positions: bind(&clickhouse, clickhouse::load_positions),
        sum_meter: bind(&clickhouse, clickhouse::sum_meter),
        list_conflicts: bind(&clickhouse, clickhouse::list_conflicts),
    };
    let process = process();
    let fake = Store {
        insert_block: bind(&process, sim::store::insert_block),
        save_positions: bind(&process, sim::store::save_positions),
        load_positions: bind(&process, sim::store::load_positions),
        sum_meter: bind(&process, sim::store::sum_meter),
        list_conflicts: bind(&process, sim::store::list_conflicts),
    };
    assert_eq!(use_store(&fake).await, use_store(&real).await);
}

struct Database {
    find_identity: Effect<Vec<Identity>, Vec<Vec<PayloadHash>>>,
    save_identity: Effect<SaveIdentity, ()>,
    commit_event: Effect<CommitRow, ()>,
    read_changes: Effect<ChangeRange, Vec<ChangeRow>>,
}

async fn use_database(database: &Database, tenant: &str, start_us: u64) -> Vec<String> {
    let identity = |id: &str| Identity { tenant: tenant.into(), source: "/live".into(), id: id.into() };
    let mut seen = Vec::new();
    for (id, byte) in [("a", 2), ("a", 1), ("b", 1), ("a", 2)] {
        let entries = vec![(identity(id), PayloadHash([byte; 32]))];
        (database.save_identity)(SaveIdentity { entries, ack: Ack::Local }).await.unwrap();
        let mut found = (database.find_identity)(vec![identity("b"), identity("a"), identity("c")]).await.unwrap();
        found.iter_mut().for_each(|hashes| hashes.sort());
        seen.push(format!("{found:?}"));
    }
    let row = |step: u64| CommitId::of_row(CommitTime(start_us + step * 4_000_000), Incarnation::from_random(step));
    // Out of order, over windows, and the fourth one in the place of the first: a second row of an id replaces it silently.
    for (step, change) in [(2, "late"), (0, "first"), (1, "second"), (2, "replaced"), (3, "last")] {
        let commit = CommitRow { generation: 1, partition: 3, row: row(step), change: change.into(), ack: Ack::Local };
        (database.commit_event)(commit).await.unwrap();
    }
    for (after, through) in [(CommitId::last_at(CommitTime(start_us - 1)), 3), (row(0), 2), (row(2), 3), (row(3), 3), (row(2), 1)] {
        let range = ChangeRange { generation: 1, partition: 3, after, through: row(through).time() };
        let rows = (database.read_changes)(range).await.unwrap();
        seen.push(format!("{:?}", rows.iter().map(|row| (row.row.time().0 - start_us, &row.change)).collect::<Vec<_>>()));
    }
    seen
}

#[tokio::test]
async fn live_fake_database_and_real_database_look_the_same() {
    let region = address("REGION");
    let config = ScyllaConfig { address: address("SCYLLA_ADDRESS"), regions: vec![region.clone()], region: region.clone() };
    let scylla = Scylla::connect(&config).await.unwrap();
    let (key_function, cluster_id, created_us) = (KEY_FUNCTION.into(), "live".into(), 1_790_000_000_000_000);
    let layout = Generation {
        region,
        generation: 1,
        partitions: PARTITIONS,
        window_ms: 10_000,
        key_function,
        cluster_id,
        host_ids: vec![],
        created_us,
    };
    register_generation(Arc::clone(&scylla), layout).await.unwrap();
    let real = Database {
        find_identity: bind(&scylla, scylla::find_identity),
        save_identity: bind(&scylla, scylla::save_identity),
        commit_event: bind(&scylla, scylla::commit_event),
        read_changes: bind(&scylla, scylla::read_changes),
    };
    let process = process();
    let fake = Database {
        find_identity: bind(&process, sim::database::find_identity),
        save_identity: bind(&process, sim::database::save_identity),
        commit_event: bind(&process, sim::database::commit_event),
        read_changes: bind(&process, sim::database::read_changes),
    };
    // Long before the world's own time: nothing else stands there.
    let (tenant, start_us) = (unique("tenant"), rand::random_range(1_000_000..1_000_000_000_u64) * 1_000_000);
    assert_eq!(use_database(&fake, &tenant, start_us).await, use_database(&real, &tenant, start_us).await);
}
