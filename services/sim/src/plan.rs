//! A schedule: who posts what and when, and what goes wrong. Drawn from a seed, or cut down from one that failed.

use crate::random::Random;
use std::fmt;

/// Names of the regions, as many as a schedule has.
pub const REGIONS: [&str; 5] = ["fra", "iad", "sin", "gru", "syd"];
/// Tenants.
pub const TENANTS: [&str; 2] = ["acme", "globex"];
/// Ingest processes of a region.
pub const INGESTS: u8 = 2;
/// When everything is healed, milliseconds after the start.
pub const HEALED_MS: u64 = 30_000;
/// Events of a schedule.
const EVENTS: u64 = 50;
/// Faults of a schedule at least.
const FAULTS: u64 = 5;

/// One post of one event. A caller repeats it until it is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Post {
    /// When.
    pub at_ms: u64,
    /// Where first.
    pub region: usize,
    /// At which of the region's ingest processes.
    pub ingest: u8,
    /// Whose.
    pub tenant: usize,
    /// CloudEvents `id` is `order-<id>`.
    pub id: u32,
    /// The amount in it: with another one it is another payload.
    pub amount: u32,
    /// Its subject.
    pub subject: u8,
    /// `ack=global`.
    pub global: bool,
    /// Whether repeats go to the next region.
    pub roams: bool,
}

/// A process of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// One of the ingests.
    Ingest(u8),
    /// The relay.
    Relay,
    /// The mirror.
    Mirror,
    /// The sink.
    Sink,
    /// The feed.
    Feed,
    /// The consumer.
    Consumer,
    /// Usage.
    Usage,
}

/// The processes of a region that are killed.
pub const ROLES: [Role; 7] = [Role::Ingest(0), Role::Ingest(1), Role::Relay, Role::Mirror, Role::Sink, Role::Feed, Role::Consumer];

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ingest(number) => write!(f, "ingest-{number}"),
            Self::Relay => f.write_str("relay"),
            Self::Mirror => f.write_str("mirror"),
            Self::Sink => f.write_str("sink"),
            Self::Feed => f.write_str("feed"),
            Self::Consumer => f.write_str("consumer"),
            Self::Usage => f.write_str("usage"),
        }
    }
}

/// What goes wrong, in one region unless another one is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The process is killed, and started again after `ms`.
    Kill(Role),
    /// The process is killed before or after the so many-th effect from now on, and started again after `ms`.
    KillAtEffect(Role, u32),
    /// The process stands still for `ms`.
    Pause(Role),
    /// The process stands still for `ms`, before or after the so many-th effect from now on.
    PauseAtEffect(Role, u32),
    /// What this region sends does not reach the other one.
    Cut(usize),
    /// Statements take up to `ms` longer, for 4 s.
    SlowDatabase,
    /// Statements of the next `ms` are carried out only afterwards.
    PausedDatabase,
    /// The database refuses.
    DatabaseDown,
    /// Statements are carried out, their answers are lost.
    AnswersLost,
    /// Hints for a region that was cut off are never sent: only a repair brings what it lacks.
    HintsNeverCome,
    /// The log refuses.
    LogDown,
    /// The next appends end unknown, with none, some or all of their records appended.
    AppendsUnknown(u32),
    /// ClickHouse refuses.
    StoreDown,
    /// Its answers take up to `ms` longer, for 4 s.
    SlowStore,
    /// The next inserts end unknown, with none, some or all of their rows stored.
    InsertsUnknown(u32),
    /// ClickHouse is made anew, empty.
    StoreEmptied,
    /// Neither hints nor signals arrive.
    BusDown,
    /// A record that cannot be read is put into the own log.
    Poison,
    /// A record without a position is put into the copy of the other region's log.
    Stray(usize),
    /// The region's consumer pulls from the other region from now on.
    ConsumerMoves(usize),
    /// The region's clocks tell no time.
    ClockRefuses,
}

/// A fault with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timed {
    /// When.
    pub at_ms: u64,
    /// Where.
    pub region: usize,
    /// How long, where that says something.
    pub ms: u64,
    /// What.
    pub fault: Fault,
}

/// A schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The seed of everything that the schedule leaves open: latencies, orders, outcomes.
    pub seed: u64,
    /// How many regions.
    pub regions: usize,
    /// In order of time.
    pub posts: Vec<Post>,
    /// In order of time.
    pub faults: Vec<Timed>,
}

impl Plan {
    /// The schedule of a seed.
    pub fn of_seed(seed: u64) -> Self {
        let mut random = Random::of(seed, "plan", 0);
        let regions = if random.chance(80) { 3 } else { 4 };
        let mut posts = Vec::new();
        while (posts.len() as u64) < EVENTS {
            add_posts(&mut random, regions, &mut posts);
        }
        posts.sort_by_key(|post| post.at_ms);
        let count = random.between(FAULTS, FAULTS + 3);
        let mut faults: Vec<Timed> = (0..count).map(|_| fault(&mut random, regions)).collect();
        faults.sort_by_key(|fault| fault.at_ms);
        Self { seed, regions, posts, faults }
    }
}

/// One event, and sometimes what makes it interesting: a twin at the same instant, a repeat, another payload.
fn add_posts(random: &mut Random, regions: usize, posts: &mut Vec<Post>) {
    let id = posts.len() as u32;
    let post = Post {
        at_ms: random.between(1_500, HEALED_MS - 2_000),
        region: random.below(regions as u64) as usize,
        ingest: random.below(u64::from(INGESTS)) as u8,
        tenant: random.below(TENANTS.len() as u64) as usize,
        id,
        amount: random.between(1, 1_000) as u32,
        subject: random.below(3) as u8,
        global: random.chance(15),
        roams: random.chance(25),
    };
    let other = (post.region + random.between(1, regions as u64 - 1) as usize) % regions;
    let twin = Post { id: id + 1_000, ingest: (post.ingest + 1) % INGESTS, amount: post.amount + 1, ..post.clone() };
    let later = post.at_ms + random.between(50, 6_000);
    match random.below(10) {
        // Two ingests write the same partition at the same time.
        0 | 1 => posts.push(twin),
        // The same event again: there, or elsewhere.
        2 => posts.push(Post { at_ms: later, region: random.pick(&[post.region, other]), ..post.clone() }),
        // Another payload, afterwards or at the same time elsewhere.
        3 => posts.push(Post { at_ms: later, amount: post.amount + 2, ..post.clone() }),
        4 => posts.push(Post { at_ms: post.at_ms + random.below(60), region: other, amount: post.amount + 3, ..post.clone() }),
        _ => {}
    }
    posts.push(post);
}

fn fault(random: &mut Random, regions: usize) -> Timed {
    let region = random.below(regions as u64) as usize;
    let other = (region + random.between(1, regions as u64 - 1) as usize) % regions;
    let role = random.pick(&ROLES);
    let writer = random.pick(&[Role::Ingest(0), Role::Ingest(1), Role::Relay, Role::Sink]);
    let (fault, ms) = match random.below(32) {
        0 | 1 => (Fault::Kill(role), random.between(100, 5_000)),
        2..=5 => (Fault::KillAtEffect(role, random.between(1, 60) as u32), random.between(100, 3_000)),
        6 | 7 => (Fault::Pause(writer), random.between(500, 4_500)),
        8 | 9 => (Fault::Cut(other), random.between(500, 9_000)),
        10 | 11 => (Fault::SlowDatabase, random.between(300, 2_600)),
        12 => (Fault::PausedDatabase, random.between(500, 4_000)),
        13 => (Fault::DatabaseDown, random.between(500, 5_000)),
        14 => (Fault::AnswersLost, random.between(300, 3_000)),
        15 => (Fault::LogDown, random.between(300, 5_000)),
        16 | 17 => (Fault::AppendsUnknown(random.between(1, 12) as u32), 0),
        18 => (Fault::StoreDown, random.between(500, 8_000)),
        19 => (Fault::SlowStore, random.between(300, 3_000)),
        20 => (Fault::InsertsUnknown(random.between(1, 6) as u32), 0),
        21 => (Fault::StoreEmptied, random.between(500, 3_000)),
        22 => (Fault::BusDown, random.between(1_000, 15_000)),
        23 => (random.pick(&[Fault::Poison, Fault::Stray(other)]), 0),
        24 => (Fault::ConsumerMoves(other), 0),
        25..=27 => {
            let ingest = random.pick(&[Role::Ingest(0), Role::Ingest(1)]);
            (Fault::PauseAtEffect(ingest, random.between(1, 40) as u32), random.between(2_000, 4_600))
        }
        28 => (Fault::SlowStore, random.between(300, 3_000)),
        29 => (Fault::Stray(other), 0),
        30 => (Fault::ConsumerMoves(other), 0),
        _ => (random.pick(&[Fault::ClockRefuses, Fault::HintsNeverCome]), random.between(500, 4_000)),
    };
    Timed { at_ms: random.between(1_000, HEALED_MS - 4_000), region, ms, fault }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_is_large_enough_and_repeats() {
        for seed in 0..200 {
            let plan = Plan::of_seed(seed);
            assert!(plan.regions >= 3 && plan.posts.len() >= 50 && plan.faults.len() >= 5);
            assert!(plan.posts.iter().all(|post| post.at_ms < HEALED_MS + 6_000 && post.region < plan.regions));
            assert_eq!(plan, Plan::of_seed(seed));
        }
    }
}
