//! One schedule from its start to the judgement.

use crate::{
    clients,
    database::{Trouble, send_hints},
    log::Stored,
    plan::{Fault, HEALED_MS, Plan, REGIONS, ROLES, Role, Timed},
    planted::Bug,
    promises::{self, Broken},
    services::supervise,
    store::Store,
    world::{EPOCH_US, World},
};
use meridian_proto::{CONTENT_TYPE_EVENT, PartitionId, Topic};
use std::{borrow::Cow, sync::Arc, time::Duration};
use tokio::task::JoinSet;

/// How long after everything is healed all regions must agree.
const CONVERGES_WITHIN_MS: u64 = 60_000;

/// What came of a schedule.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The promises that were broken; none when all is well.
    pub broken: Vec<Broken>,
    /// What happened, if it was asked for.
    pub trace: String,
    /// Simulated time, milliseconds.
    pub simulated_ms: u64,
}

/// Runs a schedule on a runtime of its own, in paused time: the same schedule gives the same outcome, always.
///
/// # Panics
/// When no runtime can be made.
pub fn simulate(plan: &Plan, bug: Option<Bug>, traced: bool) -> Outcome {
    kit::backoff::seed_jitter(plan.seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime without input and output");
    runtime.block_on(run(plan.clone(), bug, traced))
}

async fn run(plan: Plan, bug: Option<Bug>, traced: bool) -> Outcome {
    let world = World::new(plan, bug, traced);
    let mut parts = JoinSet::new();
    for region in 0..world.plan.regions {
        for role in ROLES {
            parts.spawn(supervise(Arc::clone(&world), region, role));
        }
        parts.spawn(clients::question(Arc::clone(&world), region));
    }
    let mut posts = JoinSet::new();
    for post in world.plan.posts.clone() {
        posts.spawn(clients::post(Arc::clone(&world), post));
    }
    let hints = Arc::clone(&world);
    parts.spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(200)).await;
            send_hints(&mut hints.state(), hints.now_ms());
        }
    });
    for fault in world.plan.faults.clone() {
        world.until_ms(fault.at_ms).await;
        begin(&world, fault);
    }
    world.until_ms(HEALED_MS).await;
    heal(&world);
    while posts.join_next().await.is_some() {}
    let settled = converge(&world).await;
    let final_answers = clients::final_answers(&world).await;
    let broken = promises::judge(&world, settled, &final_answers);
    for one in &broken {
        world.tell(one.region, "", || format!("PROMISE {} IS BROKEN: {}", one.promise, one.what));
    }
    Outcome { broken, trace: world.take_trace(), simulated_ms: world.now_ms() }
}

/// Waits until every region claims everything that was acknowledged, and every consumer has it; says what is missing else.
async fn converge(world: &Arc<World>) -> Vec<Broken> {
    let since_ms = world.now_ms();
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let missing = promises::missing(world, EPOCH_US + since_ms * 1_000);
        if missing.is_empty() || world.now_ms() >= since_ms + CONVERGES_WITHIN_MS {
            return missing;
        }
    }
}

fn heal(world: &Arc<World>) {
    let now_ms = world.now_ms();
    let mut state = world.state();
    for place in &mut state.regions {
        place.database.trouble = Trouble::default();
        place.cut_until_ms.iter_mut().for_each(|until| *until = now_ms.min(*until));
        (place.log.down_until, place.log.appends_unknown) = (0, 0);
        (place.store.down_until, place.store.slow, place.store.inserts_unknown) = (0, (0, 0), 0);
        (place.bus_down, place.clock_refuses) = (false, false);
    }
    drop(state);
    world.tell(0, "", || "everything is healed".into());
}

fn begin(world: &Arc<World>, Timed { region, ms, fault, .. }: Timed) {
    world.tell(region, "", || described(fault, ms));
    match fault {
        Fault::Kill(role) | Fault::KillAtEffect(role, _) | Fault::Pause(role) | Fault::PauseAtEffect(role, _) => {
            let Some(process) = world.state().regions[region].processes.get(&role).cloned() else { return };
            match fault {
                Fault::Kill(_) => process.kill(ms),
                Fault::KillAtEffect(_, effects) => process.at_effect(effects, true, ms),
                Fault::PauseAtEffect(_, effects) => process.at_effect(effects, false, ms),
                _ => process.stand_still(ms),
            }
        }
        Fault::Poison => poison(world, region),
        Fault::Stray(other) => stray(world, region, other),
        Fault::BusDown | Fault::ClockRefuses => {
            let set = move |world: &World, on| {
                let place = &mut world.state().regions[region];
                match fault {
                    Fault::BusDown => place.bus_down = on,
                    _ => place.clock_refuses = on,
                }
            };
            set(world, true);
            let world = Arc::clone(world);
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(ms)).await;
                set(&world, false);
            });
        }
        _ => trouble(world, region, ms, fault),
    }
}

/// Faults of engines and links, which end by themselves.
fn trouble(world: &World, region: usize, ms: u64, fault: Fault) {
    let now_ms = world.now_ms();
    let until = now_ms + ms;
    let mut state = world.state();
    let place = &mut state.regions[region];
    let database = &mut place.database.trouble;
    match fault {
        Fault::Cut(other) => place.cut_until_ms[other] = until,
        Fault::SlowDatabase => database.slow = (now_ms + 4_000, ms),
        Fault::PausedDatabase => database.paused_until = until,
        Fault::DatabaseDown => database.down_until = until,
        Fault::AnswersLost => database.answers_lost_until = until,
        Fault::HintsNeverCome => database.hints_never_come = true,
        Fault::LogDown => place.log.down_until = until,
        Fault::AppendsUnknown(count) => place.log.appends_unknown = count,
        Fault::StoreDown => place.store.down_until = until,
        Fault::SlowStore => place.store.slow = (now_ms + 4_000, ms),
        Fault::InsertsUnknown(count) => place.store.inserts_unknown = count,
        Fault::ConsumerMoves(other) => place.consumer_pulls = other,
        Fault::StoreEmptied => {
            // Nothing is made anew without having been stopped.
            let mut next = Store::new(place.name, place.store.made + 1);
            next.down_until = now_ms + ms;
            let gone = std::mem::replace(&mut place.store, next);
            state.ledger.gone.insert((region, gone.made), gone.first_stored);
        }
        _ => {}
    }
}

fn described(fault: Fault, ms: u64) -> String {
    let name = |region: usize| REGIONS[region];
    match fault {
        Fault::Kill(role) => format!("{role} is killed, for {ms} ms"),
        Fault::KillAtEffect(role, effects) => format!("{role} will be killed {effects} steps from now, for {ms} ms"),
        Fault::Pause(role) => format!("{role} stands still for {ms} ms"),
        Fault::PauseAtEffect(role, effects) => format!("{role} will stand still {effects} steps from now, for {ms} ms"),
        Fault::Cut(other) => format!("nothing that is sent from here reaches {} for {ms} ms", name(other)),
        Fault::SlowDatabase => format!("for 4 s the database takes up to {ms} ms longer"),
        Fault::PausedDatabase => format!("the database stands still for {ms} ms"),
        Fault::DatabaseDown => format!("the database refuses for {ms} ms"),
        Fault::AnswersLost => format!("for {ms} ms the database carries out and does not answer"),
        Fault::HintsNeverCome => "the database's hints are lost from now on".into(),
        Fault::LogDown => format!("the log is away for {ms} ms"),
        Fault::AppendsUnknown(count) => format!("the next {count} appends end unknown"),
        Fault::StoreDown => format!("ClickHouse is away for {ms} ms"),
        Fault::SlowStore => format!("for 4 s ClickHouse takes up to {ms} ms longer"),
        Fault::InsertsUnknown(count) => format!("the next {count} inserts end unknown"),
        Fault::StoreEmptied => format!("ClickHouse is made anew, empty: away for {ms} ms"),
        Fault::BusDown => format!("neither hints nor signals arrive for {ms} ms"),
        Fault::Poison => "somebody puts a record into the own log that cannot be read".into(),
        Fault::Stray(other) => format!("somebody puts a record without a position into the copy of {}", name(other)),
        Fault::ConsumerMoves(other) => format!("the consumer pulls from {} from now on", name(other)),
        Fault::ClockRefuses => format!("the clocks tell no time for {ms} ms"),
    }
}

/// A partition of a region's topic, drawn.
fn some_partition(world: &World, of: usize) -> PartitionId {
    let tenant = crate::plan::TENANTS[world.state().random.below(2) as usize];
    let lanes = meridian_proto::partitions_of(tenant);
    let partition = lanes[world.state().random.below(lanes.len() as u64) as usize];
    PartitionId { topic: Topic { region: REGIONS[of].into(), generation: 1 }, partition }
}

fn junk(world: &World, content_type: &'static str) -> Stored {
    let appended_ms = (EPOCH_US / 1_000 + world.now_ms()) as i64;
    Stored { content_type: Cow::Borrowed(content_type), value: "junk".into(), origin: None, appended_ms }
}

fn poison(world: &World, region: usize) {
    let id = some_partition(world, region);
    let kind = if world.state().random.chance(50) { CONTENT_TYPE_EVENT } else { "text/plain" };
    let record = junk(world, kind);
    let mut state = world.state();
    let offset = state.regions[region].log.get(&id).map_or(0, crate::log::Partition::high);
    state.regions[region].log.put(&id, record);
    state.ledger.poison.push((region, id, offset));
    drop(state);
    world.grown[region].notify_waiters();
}

fn stray(world: &World, region: usize, of: usize) {
    let id = some_partition(world, of);
    let record = junk(world, CONTENT_TYPE_EVENT);
    world.state().regions[region].log.put(&id, record);
    world.grown[region].notify_waiters();
}

/// A process that only asks.
pub fn asker(world: &Arc<World>, region: usize) -> Arc<crate::world::Process> {
    world.start_process(region, Role::Usage)
}
