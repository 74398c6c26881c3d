//! What all parts of a simulated world share: time, regions, links, processes, the trace.

use crate::{
    database::Replica,
    ledger::Ledger,
    log::Log,
    plan::{Plan, REGIONS, Role},
    planted::Bug,
    random::Random,
    store::Store,
};
use ingest::Ingest;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};

/// When the world begins, microseconds since the Unix epoch.
pub const EPOCH_US: u64 = 1_790_000_000_000_000;

/// A simulated world.
pub struct World {
    start: Instant,
    /// What it does.
    pub plan: Plan,
    /// The rule that is broken on purpose, if one is.
    pub bug: Option<Bug>,
    /// Told when a region's log grew, by region.
    pub grown: Vec<Notify>,
    /// Told when hints or signals came, by region.
    pub told: Vec<Notify>,
    state: Mutex<State>,
}

/// What changes.
pub struct State {
    /// The regions.
    pub regions: Vec<Region>,
    /// What clients saw.
    pub ledger: Ledger,
    /// Draws what belongs to no process.
    pub random: Random,
    /// `Some` when a trace is wanted.
    trace: Option<String>,
    /// Lines of the trace so far; those beyond the bound are left out.
    serial: u64,
}

/// What a region is made of.
pub struct Region {
    /// Its name.
    pub name: &'static str,
    /// Its replica of the database.
    pub database: Replica,
    /// Its log.
    pub log: Log,
    /// Its ClickHouse.
    pub store: Store,
    /// Change hints on their way, by partition.
    pub hints: BTreeSet<u16>,
    /// Signals on their way: when each was sent, by tenant.
    pub signals: BTreeMap<String, u64>,
    /// Neither hints nor signals arrive.
    pub bus_down: bool,
    /// The clocks tell no time.
    pub clock_refuses: bool,
    /// Until when what this region sends to each other one is lost, milliseconds.
    pub cut_until_ms: Vec<u64>,
    /// The processes that run.
    pub processes: BTreeMap<Role, Arc<Process>>,
    /// Its ingests, while they run.
    pub ingests: BTreeMap<u8, Arc<Ingest>>,
    /// Its mirror's sender, while it runs.
    pub sender: Option<Arc<mirror::Sender>>,
    /// Its feed, while it runs.
    pub feed: Option<Arc<feed::Feed>>,
    /// From which region its consumer pulls.
    pub consumer_pulls: usize,
    /// What survives kills.
    pub kept: Kept,
    /// Times that processes were started.
    starts: u64,
}

/// What survives the kills of a region's processes, apart from engines.
#[derive(Default)]
pub struct Kept {
    /// Cursors by tenant.
    pub cursors: BTreeMap<String, String>,
    /// (tenant, id, payload hash, commit id) of all that was handled.
    pub handled: BTreeSet<(String, String, String, String)>,
    /// What planted bugs keep where nothing should be kept: positions beside the store,
    pub positions: BTreeMap<(String, u32, u16), adapters::clickhouse::PositionRow>,
    /// and numbers in the place of offsets.
    pub numbers: BTreeMap<(u64, meridian_proto::PartitionId), u64>,
}

/// One life of a process: from its start to its end.
pub struct Process {
    /// The world.
    pub world: Arc<World>,
    /// Its region.
    pub region: usize,
    /// What it is.
    pub role: Role,
    /// Its number among all starts in the region.
    pub number: u64,
    /// How far its clock is from the true time, microseconds.
    pub skew_us: i64,
    /// Told when it is killed.
    pub killed: Notify,
    /// What it follows of the log, if it is a sink.
    pub follower: Mutex<Option<Arc<crate::log::Follower>>>,
    /// The store and the moment of its last sum.
    last_sum: Mutex<(u32, u64)>,
    life: Mutex<Life>,
}

struct Life {
    dead: bool,
    stands_until: Instant,
    effects_left: Option<u32>,
    /// What happens when none is left: it is killed, or stands still.
    dies: bool,
    down_ms: u64,
    random: Random,
    /// The latest time told: a clock never goes back.
    last_us: u64,
}

impl World {
    /// A world in which nothing has happened.
    pub fn new(plan: Plan, bug: Option<Bug>, traced: bool) -> Arc<Self> {
        let region = |index: usize| Region {
            name: REGIONS[index],
            database: Replica::default(),
            log: Log::of_regions(plan.regions, index),
            store: Store::new(REGIONS[index], 1),
            hints: BTreeSet::new(),
            signals: BTreeMap::new(),
            bus_down: false,
            clock_refuses: false,
            cut_until_ms: vec![0; plan.regions],
            processes: BTreeMap::new(),
            ingests: BTreeMap::new(),
            sender: None,
            feed: None,
            consumer_pulls: index,
            kept: Kept::default(),
            starts: 0,
        };
        let notes = || (0..plan.regions).map(|_| Notify::new()).collect();
        let state = State {
            regions: (0..plan.regions).map(region).collect(),
            ledger: Ledger::default(),
            random: Random::of(plan.seed, "world", 0),
            trace: traced.then(String::new),
            serial: 0,
        };
        Arc::new(Self { start: Instant::now(), grown: notes(), told: notes(), plan, bug, state: Mutex::new(state) })
    }

    /// The state; nothing may be awaited while it is held.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Milliseconds since the start.
    pub fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    /// True time, microseconds since the Unix epoch.
    pub fn now_us(&self) -> u64 {
        EPOCH_US + self.start.elapsed().as_micros() as u64
    }

    /// Waits until so many milliseconds after the start.
    pub async fn until_ms(&self, ms: u64) {
        tokio::time::sleep_until(self.start + Duration::from_millis(ms)).await;
    }

    /// Writes a line into the trace, if there is one.
    pub fn tell(&self, region: usize, who: impl std::fmt::Display, what: impl FnOnce() -> String) {
        let now_ms = self.now_ms();
        let mut state = self.state();
        if let Some(trace) = &mut state.trace {
            let name = REGIONS[region];
            let _ = writeln!(trace, "{:>3}.{:03} s  {name}  {:<9}  {}", now_ms / 1000, now_ms % 1000, who.to_string(), what());
        }
    }

    /// Whether a trace is written.
    pub fn traced(&self) -> bool {
        self.state().trace.is_some()
    }

    /// The trace so far.
    pub fn take_trace(&self) -> String {
        self.state().trace.take().unwrap_or_default()
    }

    /// Starts a life of a process.
    pub fn start_process(self: &Arc<Self>, region: usize, role: Role) -> Arc<Process> {
        let mut state = self.state();
        let place = &mut state.regions[region];
        place.starts += 1;
        let number = place.starts;
        let stream = (region as u64) << 32 | number;
        let mut random = Random::of(self.plan.seed, &role.to_string(), stream);
        // Half of the clocks are right: only then two of them ever show the same microsecond.
        let skew_us = if random.chance(50) { 0 } else { random.between(0, 240) as i64 * 1_000 - 120_000 };
        let life = Life { dead: false, stands_until: self.start, effects_left: None, dies: true, down_ms: 0, random, last_us: 0 };
        let process = Arc::new(Process {
            world: Arc::clone(self),
            region,
            role,
            number,
            skew_us,
            killed: Notify::new(),
            follower: Mutex::new(None),
            last_sum: Mutex::new((0, 0)),
            life: Mutex::new(life),
        });
        place.processes.insert(role, Arc::clone(&process));
        process
    }
}

impl State {
    /// A number that rises with each call.
    pub fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// Whether what one region sends reaches the other.
    pub fn reaches(&self, from: usize, to: usize, now_ms: u64) -> bool {
        self.regions[from].cut_until_ms[to] <= now_ms
    }
}

impl Process {
    fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Draws from the process's own stream.
    pub fn draw<T>(&self, draw: impl FnOnce(&mut Random) -> T) -> T {
        draw(&mut self.life().random)
    }

    /// Waits for a few milliseconds: one of few lengths, so that instants meet.
    pub async fn short(&self) {
        let ms = self.draw(|random| random.pick(&[1, 1, 2, 3, 5, 8]));
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }

    /// Kills it: none of its effects ever returns. It is started again after `down_ms`.
    pub fn kill(&self, down_ms: u64) {
        let mut life = self.life();
        if !life.dead {
            (life.dead, life.down_ms) = (true, down_ms);
            self.killed.notify_one();
        }
    }

    /// Kills it before or after the so many-th effect from now on, or lets it stand still there.
    pub fn at_effect(&self, effects: u32, dies: bool, ms: u64) {
        let mut life = self.life();
        (life.effects_left, life.dies, life.down_ms) = (Some(effects), dies, ms);
    }

    /// Lets it stand still.
    pub fn stand_still(&self, ms: u64) {
        self.life().stands_until = Instant::now() + Duration::from_millis(ms);
    }

    /// Notes which store was summed up, and when.
    pub fn note_sum(&self, store: u32, serial: u64) {
        *self.last_sum.lock().unwrap_or_else(PoisonError::into_inner) = (store, serial);
    }

    /// Which store was summed up last, and when.
    pub fn last_sum(&self) -> (u32, u64) {
        *self.last_sum.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it was killed.
    pub fn is_dead(&self) -> bool {
        self.life().dead
    }

    /// For how long it stays down.
    pub fn down_ms(&self) -> u64 {
        self.life().down_ms
    }

    /// What its clock tells now, microseconds since the Unix epoch; never less than before.
    pub fn clock_us(&self) -> u64 {
        let now_us = self.world.now_us().saturating_add_signed(self.skew_us);
        let mut life = self.life();
        life.last_us = life.last_us.max(now_us);
        life.last_us
    }

    /// Whether it stands still now.
    pub fn stands(&self) -> bool {
        self.life().stands_until > Instant::now()
    }

    /// Before and after each effect: counts towards a planned kill. False for a dead process.
    fn counts(&self) -> bool {
        let mut life = self.life();
        if life.dead {
            return false;
        }
        let Some(left) = &mut life.effects_left else { return true };
        *left = left.saturating_sub(1);
        if *left > 0 {
            return true;
        }
        let (down_ms, dies) = (life.down_ms, life.dies);
        life.effects_left = None;
        drop(life);
        if !dies {
            self.world.tell(self.region, self.role, || "stands still between two effects".into());
            self.stand_still(down_ms);
            return true;
        }
        self.world.tell(self.region, self.role, || "is killed between two effects".into());
        self.kill(down_ms);
        false
    }

    /// Returns only to a process that lives, and not while it stands still.
    pub async fn gate(&self) {
        if !self.counts() {
            std::future::pending::<()>().await;
        }
        loop {
            let (until, dead) = {
                let life = self.life();
                (life.stands_until, life.dead)
            };
            if dead {
                std::future::pending::<()>().await;
            }
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }

    /// As [`Process::gate`], after something that must not be lost by a drop: waits for nothing.
    pub async fn gate_now(&self) {
        if !self.counts() {
            std::future::pending::<()>().await;
        }
    }
}
