//! Two regions over a real gRPC connection on loopback, each with a log in memory.
#![allow(clippy::unwrap_used)]

mod fakes;

use anyhow::Result;
use fakes::{Log, effects, eventually, partition};
use kit::{health::Health, shutdown::CancellationToken};
use meridian_proto::{CONTENT_TYPE_EVENT, Origin, PartitionId};
use mirror::{
    Effects, Limits,
    wire::{self, Peers},
};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::{net::TcpListener, task::JoinHandle};

struct Region {
    shutdown: CancellationToken,
    task: JoinHandle<Result<()>>,
}

impl Region {
    /// A mirror of `region` that listens on `address` and copies from `peer`.
    async fn start(log: &Arc<Log>, region: &str, address: SocketAddr, peer: (&str, SocketAddr)) -> Self {
        let limits = Limits::default();
        let peers = vec![(peer.0.to_owned(), format!("http://{}", peer.1))];
        let peers = Arc::new(Peers::new(region, peers, 16 << 20, &limits).unwrap());
        let regions = peers.regions().map(Into::into).collect();
        let effects = Effects {
            send_frames: kit::bind(&Arc::new(limits.clone()), wire::send_frames),
            receive_frames: kit::bind(&peers, wire::receive_frames),
            ..effects(log)
        };
        let listener = TcpListener::bind(address).await.unwrap();
        let shutdown = CancellationToken::new();
        let run = mirror::run(effects, limits, region.into(), regions, listener, Health::of(&["log"]), shutdown.clone());
        Self { shutdown, task: tokio::spawn(run) }
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.unwrap().unwrap();
    }
}

async fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

fn holds_once(log: &Log, partition: &PartitionId, count: u64) -> bool {
    log.origins(partition) == (0..count).collect::<Vec<_>>()
}

#[tokio::test]
async fn two_regions_copy_each_other_once_and_nothing_goes_round() {
    let partitions: Vec<_> = (0..4).flat_map(|number| ["fra", "iad"].map(|region| partition(region, number))).collect();
    let (fra, iad) = (Log::with(&partitions), Log::with(&partitions));
    let (at_fra, at_iad) = (free_address().await, free_address().await);
    for number in 0..4 {
        fra.put_events(&partition("fra", number), 0..2000);
        iad.put_events(&partition("iad", number), 0..2000);
    }
    // A record of the own log that claims to come from elsewhere travels as what it is: the next record of this log.
    fra.put(&partition("fra", 0), CONTENT_TYPE_EVENT, b"forged", Some(Origin { offset: 77, append_time_ms: 5 }));
    let first = Region::start(&fra, "fra", at_fra, ("iad", at_iad)).await;
    let second = Region::start(&iad, "iad", at_iad, ("fra", at_fra)).await;
    eventually("both copies", 20, || {
        holds_once(&iad, &partition("fra", 0), 2001)
            && (1..4).all(|number| holds_once(&iad, &partition("fra", number), 2000))
            && (0..4).all(|number| holds_once(&fra, &partition("iad", number), 2000))
    })
    .await;
    assert_eq!(iad.records(&partition("fra", 0))[2000].value, "forged");
    // One of them goes and comes back while the other one's log grows.
    second.stop().await;
    fra.put_events(&partition("fra", 1), 2000..3000);
    let second = Region::start(&iad, "iad", at_iad, ("fra", at_fra)).await;
    iad.put_events(&partition("iad", 1), 2000..3000);
    eventually("both copies again", 20, || holds_once(&iad, &partition("fra", 1), 3000) && holds_once(&fra, &partition("iad", 1), 3000))
        .await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let count = |log: &Log| partitions.iter().map(|partition| log.records(partition).len()).sum::<usize>();
    assert_eq!((count(&fra), count(&iad)), (18_001, 18_001), "nothing was added after the copies were whole");
    first.stop().await;
    second.stop().await;
}

#[tokio::test]
async fn a_copy_beyond_its_origin_is_refused_over_the_wire() {
    let partitions = [partition("fra", 0), partition("fra", 1), partition("iad", 0)];
    let (fra, iad) = (Log::with(&partitions), Log::with(&partitions));
    let (at_fra, at_iad) = (free_address().await, free_address().await);
    fra.put_events(&partition("fra", 0), 0..10);
    fra.put_events(&partition("fra", 1), 0..10);
    for offset in 0..50 {
        iad.put(&partition("fra", 0), CONTENT_TYPE_EVENT, b"x", Some(Origin { offset, append_time_ms: 1 }));
    }
    let first = Region::start(&fra, "fra", at_fra, ("iad", at_iad)).await;
    let second = Region::start(&iad, "iad", at_iad, ("fra", at_fra)).await;
    eventually("the other partition", 20, || holds_once(&iad, &partition("fra", 1), 10)).await;
    assert_eq!(iad.records(&partition("fra", 0)).len(), 50);
    first.stop().await;
    second.stop().await;
}
