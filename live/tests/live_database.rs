//! The database adapter against a real node, at `MERIDIAN_SCYLLA_ADDRESS`. Tests share the node: each has a generation and
//! a tenant of its own.
#![allow(clippy::unwrap_used)]

use adapters::{
    clock::{HostClock, RegionClock, region_time},
    scylla::{
        Ack, ChangeRange, CommitRow, Generation, Refused, SaveIdentity, Scylla, ScyllaConfig, commit_event, database_time, find_identity,
        read_changes, read_generations, register_generation, save_identity,
    },
};
use kit::{bind, shutdown::CancellationToken};
use live::{address, eventually, unique};
use meridian_proto::{CommitId, CommitTime, Identity, Incarnation, KEY_FUNCTION, PARTITIONS, PayloadHash};
use std::{sync::Arc, time::Duration};

fn config() -> ScyllaConfig {
    let region = address("REGION");
    ScyllaConfig { address: address("SCYLLA_ADDRESS"), regions: vec![region.clone()], region }
}

async fn connect() -> Arc<Scylla> {
    Scylla::connect(&config()).await.unwrap()
}

fn layout(generation: u32) -> Generation {
    Generation {
        region: config().region,
        generation,
        partitions: PARTITIONS,
        window_ms: 10_000,
        key_function: KEY_FUNCTION.into(),
        cluster_id: "live".into(),
        host_ids: vec!["b".into(), "a".into()],
        created_us: 1_790_000_000_000_000,
    }
}

/// Above what any world's log reaches.
fn any_generation() -> u32 {
    rand::random_range(1_000_000..2_000_000_000)
}

/// Tests must not leave a generation that ingest would take for the newest: each is of a layout's own region name.
async fn register_elsewhere(scylla: &Arc<Scylla>, change: impl Fn(&mut Generation)) -> Generation {
    let mut new = Generation { region: unique("r"), ..layout(any_generation()) };
    change(&mut new);
    register_generation(Arc::clone(scylla), new).await.unwrap()
}

#[tokio::test]
async fn identities_are_sets_of_hashes() {
    let (scylla, tenant) = (connect().await, unique("tenant"));
    let identity = |source: &str, id: usize| Identity { tenant: tenant.clone(), source: source.into(), id: id.to_string() };
    let hash = |byte: u8| PayloadHash([byte; 32]);
    let all: Vec<Identity> = (0..130).flat_map(|id| [identity("/a", id), identity("/b", id)]).collect();
    let none = find_identity(Arc::clone(&scylla), all.clone()).await.unwrap();
    assert!(none.len() == 260 && none.iter().all(Vec::is_empty));
    for (ack, byte, every) in [(Ack::Local, 1, 2), (Ack::Global, 2, 3), (Ack::Local, 2, 3)] {
        let entries = all.iter().step_by(every).map(|identity| (identity.clone(), hash(byte))).collect();
        save_identity(Arc::clone(&scylla), SaveIdentity { entries, ack }).await.unwrap();
    }
    let asked: Vec<Identity> = all.iter().cloned().chain([all[0].clone()]).collect();
    for (index, found) in find_identity(Arc::clone(&scylla), asked).await.unwrap().into_iter().enumerate() {
        let index = index % 260;
        let want: Vec<PayloadHash> = [(1, 2), (2, 3)].iter().filter(|(_, every)| index % every == 0).map(|(byte, _)| hash(*byte)).collect();
        assert_eq!(found, want, "{index}");
    }
    let single = SaveIdentity { entries: vec![(identity("/b", 0), hash(9))], ack: Ack::Local };
    save_identity(Arc::clone(&scylla), single).await.unwrap();
    let found =
        find_identity(Arc::clone(&scylla), vec![identity("/b", 0), Identity { tenant: unique("other"), ..identity("/a", 0) }]).await;
    assert_eq!(found.unwrap(), [vec![hash(9)], vec![]]);
}

#[tokio::test]
async fn changes_are_read_in_order_over_windows_and_pages() {
    let scylla = connect().await;
    // Rows of the world's own first generation, long before its time: nothing else stands there.
    let generation = 1;
    register_generation(Arc::clone(&scylla), layout(generation)).await.unwrap();
    let start_us = rand::random_range(1_000_000..1_000_000_000_u64) * 1_000_000;
    let incarnation = Incarnation::from_random(rand::random());
    let id = |n: u64| CommitId::of_row(CommitTime(start_us + n * 100_000), incarnation);
    // 100 ms apart: 400 rows cross four or five windows; and 300 of one microsecond, more than two pages of a window.
    let mut ids: Vec<CommitId> = (0..400).map(id).collect();
    ids.extend((0..300).map(|n| CommitId::of_row(CommitTime(start_us + 35_000_000), Incarnation::from_random(n))));
    for (index, row) in ids.iter().enumerate() {
        let ack = if index % 2 == 0 { Ack::Local } else { Ack::Global };
        let change = row.to_string().into();
        commit_event(Arc::clone(&scylla), CommitRow { generation, partition: 3, row: *row, change, ack }).await.unwrap();
    }
    ids.sort_unstable();
    let read = async |partition: u16, after: CommitId, through: CommitTime| {
        let range = ChangeRange { generation, partition, after, through };
        let rows = read_changes(Arc::clone(&scylla), range).await.unwrap();
        rows.iter().for_each(|row| assert_eq!(row.change, row.row.to_string()));
        rows.into_iter().map(|row| row.row).collect::<Vec<_>>()
    };
    let (before, end) = (CommitId::last_at(CommitTime(start_us - 1)), CommitTime(start_us + 60_000_000));
    assert_eq!(read(3, before, end).await, ids);
    assert_eq!(read(3, ids[0], ids[699].time()).await, ids[1..], "after is excluded, through included");
    assert_eq!(read(3, id(9), id(10).time()).await, [id(10)]);
    assert!(read(3, ids[699], end).await.is_empty() && read(4, before, end).await.is_empty());
    assert!(read(3, id(10), id(9).time()).await.is_empty(), "an empty range");
    let wide = ChangeRange { generation, partition: 3, after: CommitId::default(), through: end };
    assert!(read_changes(Arc::clone(&scylla), wide).await.unwrap_err().to_string().contains("windows"));
    let unknown = ChangeRange { generation: any_generation(), partition: 3, after: before, through: end };
    assert!(read_changes(Arc::clone(&scylla), unknown).await.unwrap_err().to_string().contains("not registered"));
}

#[tokio::test]
async fn a_generation_is_registered_once_and_its_layout_checked() {
    let scylla = connect().await;
    let first = register_elsewhere(&scylla, |_| ()).await;
    let again = Generation { cluster_id: "other".into(), ..first.clone() };
    assert_eq!(register_generation(Arc::clone(&scylla), again).await.unwrap().cluster_id, "live", "what stands there stays");
    let mut known = read_generations(Arc::clone(&scylla), first.region.clone()).await.unwrap();
    known[0].host_ids.sort();
    assert_eq!(known[0].host_ids, ["a", "b"]);
    assert_eq!((known.len(), known[0].generation, known[0].created_us), (1, first.generation, first.created_us));
    first.assert_known_layout().unwrap();
    let other = register_elsewhere(&scylla, |generation| generation.partitions = 32).await;
    assert!(matches!(other.assert_known_layout(), Err(Refused::WrongLayout { .. })));
}

#[tokio::test]
async fn a_node_of_another_region_is_refused() {
    let wrong = ScyllaConfig { region: "nowhere".into(), ..config() };
    let error = Scylla::connect(&wrong).await.err().expect("refused");
    assert!(error.is::<Refused>(), "{error:#}");
    let absent = ScyllaConfig { address: "127.0.0.1:1".into(), ..config() };
    let error = Scylla::connect(&absent).await.err().expect("nothing is there");
    assert!(!error.is::<Refused>(), "may pass by itself: {error:#}");
}

#[tokio::test]
async fn the_region_clock_follows_the_databases() {
    let (scylla, host, shutdown) = (connect().await, HostClock::start(), CancellationToken::new());
    let shown = database_time(Arc::clone(&scylla), ()).await.unwrap();
    assert!(host.now().0.abs_diff(shown.0) < 2_000_000, "node and test share a host");
    let clock = RegionClock::start(bind(&scylla, database_time), shutdown.clone());
    let read = async || Ok(region_time(Arc::clone(&clock), ()).await.is_ok());
    eventually("an anchor", Duration::from_secs(5), read).await.unwrap();
    let told = region_time(Arc::clone(&clock), ()).await.unwrap();
    assert!(host.now().0.abs_diff(told.0) < 250_000);
    shutdown.cancel();
}
