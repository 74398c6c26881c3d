//! The services themselves, over fakes: each process is started, killed and started again.

use crate::{
    bus, database,
    effects::{bind, bind_droppable},
    log::{self, Follower},
    plan::{REGIONS, Role, TENANTS},
    planted, reads, store, wan,
    world::{Process, World},
};
use anyhow::Result;
use client::FollowConfig;
use feed::Feed;
use futures::future::{pending, try_join_all};
use ingest::Ingest;
use kit::{health::Health, shutdown::CancellationToken};
use meridian_proto::{CursorKey, Incarnation};
use std::{sync::Arc, time::Duration};

/// How long a batch is gathered: longer than on real engines, so that a world has fewer steps.
pub const LINGER: Duration = Duration::from_millis(60);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Keeps a process running, until the world ends.
pub async fn supervise(world: Arc<World>, region: usize, role: Role) {
    loop {
        let process = world.start_process(region, role);
        let asked = CancellationToken::new();
        let ended = tokio::select! {
            biased;
            () = process.killed.notified() => None,
            ended = run(Arc::clone(&process), asked.clone()) => Some(ended),
        };
        asked.cancel();
        forget(&world, region, role);
        if let Some(ended) = ended {
            let how = ended.map_or_else(|error| format!("{error:#}"), |()| "without an error".into());
            world.tell(region, role, || format!("ended by itself: {how}"));
            world.state().ledger.ended.push(format!("{} of {}: {how}", role, REGIONS[region]));
            process.kill(1_000);
        }
        tokio::time::sleep(ms(process.down_ms())).await;
        world.tell(region, role, || "is started again".into());
    }
}

/// What clients and peers find of a process that is gone.
fn forget(world: &World, region: usize, role: Role) {
    let mut state = world.state();
    let place = &mut state.regions[region];
    place.processes.remove(&role);
    match role {
        Role::Ingest(number) => drop(place.ingests.remove(&number)),
        Role::Mirror => place.sender = None,
        Role::Feed => place.feed = None,
        _ => {}
    }
}

async fn run(process: Arc<Process>, asked: CancellationToken) -> Result<()> {
    process.short().await;
    match process.role {
        Role::Ingest(number) => run_ingest(process, number).await,
        Role::Relay => relay::run(relay_effects(&process), relay_limits(), Health::default(), asked).await,
        Role::Mirror => run_mirror(process, asked).await,
        Role::Sink => sink::run(sink_effects(&process), sink_limits(), Health::default(), asked).await,
        Role::Feed => run_feed(process, asked).await,
        Role::Consumer => {
            let tenants = TENANTS.map(String::from).to_vec();
            consumer::run(consumer_effects(&process), tenants, planted::follow(process.world.bug, follow()), Health::default(), asked).await
        }
        Role::Usage => pending().await,
    }
}

async fn run_ingest(process: Arc<Process>, number: u8) -> Result<()> {
    let effects = ingest::Effects {
        find_identity: bind(&process, database::find_identity),
        save_identity: bind(&process, database::save_identity),
        commit_event: bind(&process, database::commit_event),
        region_time: bind(&process, database::region_time),
        hint_change: bind(&process, bus::hint_change),
    };
    let effects = planted::ingest(&process, effects);
    let incarnation = planted::incarnation(&process, Incarnation::from_random(process.draw(|random| random.draw())));
    let limits = planted::ingest_limits(process.world.bug, ingest::Limits::default());
    let ingest = Ingest::start(effects, limits, ingest::Meters::default(), REGIONS[process.region], 1, incarnation);
    process.world.state().regions[process.region].ingests.insert(number, ingest);
    pending().await
}

fn relay_effects(process: &Arc<Process>) -> relay::Effects {
    let effects = relay::Effects {
        read_changes: bind(process, database::read_changes),
        publish_batch: bind(process, reads::publish_batch),
        publish_watermarks: bind(process, reads::publish_watermarks),
        last_watermark: bind(process, reads::last_watermark),
        region_time: bind(process, database::region_time),
        await_hint: bind_droppable(process, bus::await_hint),
        register_generation: bind(process, database::register_generation),
    };
    planted::relay(process, effects)
}

fn relay_limits() -> relay::Limits {
    let (fence, clock_margin, seal_every) = (ms(2_000), ms(250), ms(1_500));
    relay::Limits {
        fence,
        clock_margin,
        seal_every,
        quick_span: fence + clock_margin + 2 * seal_every,
        publish_bytes_max: 1 << 20,
        event_bytes_max: 900_000,
        step_bytes: 2 << 20,
        catching_up_max: 4,
        remembered_rows_max: 1_000,
    }
}

async fn run_mirror(process: Arc<Process>, asked: CancellationToken) -> Result<()> {
    let limits = mirror::Limits { frames_waiting_max: 64, hold: (ms(1_000), ms(4_000)), ..mirror::Limits::default() };
    limits.check()?;
    let limits = Arc::new(limits);
    let effects = mirror::Effects {
        read_local_log: bind(&process, reads::read_local_log),
        send_frames: kit::bind(&limits, mirror::wire::send_frames),
        receive_frames: bind(&process, wan::receive_frames),
        append_local_log: bind(&process, reads::append_local_log),
        last_mirrored: bind(&process, reads::last_mirrored),
        park_record: bind(&process, log::dead_letter),
        host_time: bind(&process, database::host_time),
    };
    let effects = planted::mirror(&process, effects);
    let (region, regions) = (process.region, process.world.plan.regions);
    let sender = mirror::Sender::new(effects.clone(), Arc::clone(&limits), REGIONS[region].into(), asked.clone());
    process.world.state().regions[region].sender = Some(Arc::new(sender));
    let peers = (0..regions).filter(|peer| *peer != region).map(|peer| REGIONS[peer].to_owned());
    let receive = |peer| mirror::receive(effects.clone(), Arc::clone(&limits), peer, Health::default(), asked.clone());
    try_join_all(peers.map(receive)).await.map(drop)
}

fn sink_effects(process: &Arc<Process>) -> sink::Effects {
    let effects = sink::Effects {
        load_positions: bind(process, store::load_positions),
        start_following: bind(process, reads::start_following),
        poll_batch: bind_droppable(process, reads::poll_batch),
        insert_block: bind(process, reads::insert_block),
        save_positions: bind(process, store::save_positions),
        dead_letter: bind(process, log::dead_letter),
        host_time: bind(process, database::host_time),
    };
    planted::sink(process, effects)
}

fn sink_limits() -> sink::Limits {
    sink::Limits {
        rows_max: 1_000,
        bytes_max: 1 << 16,
        flush_after: ms(200),
        flush_after_few: ms(500),
        rows_few: 20,
        store_check_every: ms(3_000),
    }
}

/// The deployment's secret.
pub fn cursor_key() -> CursorKey {
    CursorKey::new(*b"simulated deployment")
}

async fn run_feed(process: Arc<Process>, asked: CancellationToken) -> Result<()> {
    let effects = feed::Effects {
        list_partitions: bind(&process, log::list_partitions),
        tail_log: bind(&process, reads::tail_log),
        log_bounds: bind(&process, log::bounds),
        read_log_page: bind(&process, log::read_span),
        find_position: bind(&process, log::find_position),
        send_signal: bind(&process, bus::send_signal),
        host_time: bind(&process, database::host_time),
    };
    let effects = planted::feed(&process, effects);
    // Small, so that pages end at every one of their bounds, and memory does not hold everything.
    let limits = feed::Limits {
        page_events_default: 10,
        page_events_max: 20,
        scan_records_max: 30,
        tail_bytes_max: 150_000,
        tail_start_records: 6,
        signal_gap: ms(100),
        ..feed::Limits::STANDARD
    };
    let feed = Feed::new(effects, limits, REGIONS[process.region], cursor_key(), asked);
    process.world.state().regions[process.region].feed = Some(Arc::clone(&feed));
    feed::run(feed, Health::default()).await
}

fn follow() -> FollowConfig {
    FollowConfig { limit: 10, tick: ms(1_000), save_idle: ms(2_000) }
}

fn consumer_effects(process: &Arc<Process>) -> consumer::Effects {
    let effects = consumer::Effects {
        await_signal: bind_droppable(process, bus::await_signal),
        pull_page: bind(process, crate::pull::pull_page),
        handle_page: bind(process, crate::pull::handle_page),
        save_cursor: bind(process, crate::pull::save_cursor),
        load_cursor: bind(process, crate::pull::load_cursor),
        host_time: bind(process, database::host_time),
    };
    planted::consumer(process, effects)
}

/// The effects of usage.
pub fn usage_effects(process: &Arc<Process>) -> usage::Effects {
    let effects = usage::Effects {
        read_progress: bind(process, store::read_progress),
        sum_meter: bind(process, store::sum_meter),
        list_conflicts: bind(process, store::list_conflicts),
        read_store: bind(process, store::read_store),
    };
    planted::usage(process, effects)
}

/// Follows the log for a process, a little late.
pub fn follower(process: &Process, starts: &[(meridian_proto::PartitionId, adapters::redpanda::StartAt)]) -> Result<Arc<Follower>> {
    Follower::start(process, starts, LINGER)
}
