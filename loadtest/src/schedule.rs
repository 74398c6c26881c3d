//! Which request is intended when, for whom and where: a function of the plan and nothing else.

use crate::{
    generate::InvalidKind,
    plan::{Arrivals, Plan},
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use rand_distr::{Distribution, Exp};

/// What a request is meant to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// New events.
    Post,
    /// Must be refused whole.
    Invalid(InvalidKind),
    /// The same request again.
    Repeat {
        /// Number of the operation that is sent again.
        of: u32,
    },
    /// One known id with another payload.
    Conflict {
        /// Number of the operation that had the id first.
        of: u32,
        /// Which of its events.
        event: u16,
    },
}

impl Kind {
    /// As in the history.
    pub fn name(self) -> &'static str {
        match self {
            Self::Post => "post",
            Self::Invalid(_) => "invalid",
            Self::Repeat { .. } => "repeat",
            Self::Conflict { .. } => "conflict",
        }
    }
}

/// One request of the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Intended time, from the start of the load.
    pub at_us: u64,
    /// Index of the region that it is sent to.
    pub region: u8,
    /// Index of the tenant.
    pub tenant: u16,
    /// What it is meant to be.
    pub kind: Kind,
    /// A batch, also if it has one event.
    pub batch: bool,
    /// How many events.
    pub events: u16,
    /// Number of the first event within the run. A repeat has its original's.
    pub first_event: u64,
}

/// A repeat or conflict whose original is known by its place before the sort.
#[derive(Clone, Copy)]
struct Draft {
    operation: Operation,
    original: Option<usize>,
}

/// The whole schedule for `regions` regions, in order of intended time.
pub fn schedule(plan: &Plan, regions: usize) -> Vec<Operation> {
    let mut drafts = Vec::new();
    let mut next_event = 0;
    for region in 0..regions {
        let streams = [(plan.load.singles_per_s, 1, false), (plan.load.batches_per_s, plan.load.batch_events, true)];
        for (stream, (per_s, events, batch)) in streams.into_iter().enumerate() {
            let mut random = StdRng::seed_from_u64(plan.seed ^ ((region as u64 + 1) << 8 | stream as u64) << 32);
            for at_us in arrivals(plan, per_s, &mut random) {
                let operation =
                    Operation { at_us, region: region as u8, tenant: 0, kind: Kind::Post, batch, events, first_event: next_event };
                next_event += u64::from(events);
                draw(plan, regions, operation, &mut random, &mut drafts);
            }
        }
    }
    sorted(drafts)
}

fn arrivals(plan: &Plan, per_s: f64, random: &mut StdRng) -> Vec<u64> {
    let Ok(gaps) = Exp::new(per_s) else { return Vec::new() };
    if per_s <= 0.0 {
        return Vec::new();
    }
    // A phase of its own keeps the streams of several regions from meeting at the same instants.
    let mut at_s = random.random_range(0.0..1.0 / per_s);
    let mut all = Vec::with_capacity((plan.duration_s * per_s) as usize);
    while at_s < plan.duration_s {
        all.push((at_s * 1e6) as u64);
        at_s += match plan.schedule {
            Arrivals::Poisson => gaps.sample(random),
            Arrivals::Constant => 1.0 / per_s,
        };
    }
    all
}

/// Draws what the request is, and what follows from it later.
fn draw(plan: &Plan, regions: usize, mut operation: Operation, random: &mut StdRng, drafts: &mut Vec<Draft>) {
    operation.tenant = random.random_range(0..plan.tenants);
    if random.random_bool(plan.mix.invalid) {
        operation.kind = Kind::Invalid(InvalidKind::drawn(random));
        drafts.push(Draft { operation, original: None });
        return;
    }
    let original = drafts.len();
    drafts.push(Draft { operation, original: None });
    let end_us = (plan.duration_s * 1e6) as u64;
    if random.random_bool(plan.mix.repeated) {
        let at_us = operation.at_us + random.random_range(50_000..3_000_000);
        let region = if random.random_bool(0.5) { operation.region } else { random.random_range(0..regions) as u8 };
        if at_us < end_us {
            drafts.push(Draft {
                operation: Operation { at_us, region, kind: Kind::Repeat { of: 0 }, ..operation },
                original: Some(original),
            });
        }
    }
    for event in 0..operation.events {
        let at_us = operation.at_us + random.random_range(500_000..3_000_000);
        if random.random_bool(plan.mix.conflicting) && at_us < end_us {
            let first_event = operation.first_event + u64::from(event);
            let conflict = Operation { at_us, kind: Kind::Conflict { of: 0, event }, batch: false, events: 1, first_event, ..operation };
            drafts.push(Draft { operation: conflict, original: Some(original) });
        }
    }
}

fn sorted(drafts: Vec<Draft>) -> Vec<Operation> {
    let mut order: Vec<usize> = (0..drafts.len()).collect();
    order.sort_by_key(|&place| drafts[place].operation.at_us);
    let mut number = vec![0_u32; drafts.len()];
    order.iter().zip(0..).for_each(|(&place, index)| number[place] = index);
    let numbered = |place: &usize| {
        let Draft { mut operation, original } = drafts[*place];
        let of = original.map_or(0, |original| number[original]);
        operation.kind = match operation.kind {
            Kind::Repeat { .. } => Kind::Repeat { of },
            Kind::Conflict { event, .. } => Kind::Conflict { of, event },
            kind => kind,
        };
        operation
    };
    order.iter().map(numbered).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Overrides;
    use std::path::Path;

    fn plan(arrivals: &str) -> Plan {
        let text = include_str!("../plans/default.toml").replace("schedule = \"poisson\"", &format!("schedule = \"{arrivals}\""));
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("p.toml"), text).unwrap();
        Plan::read(Path::new(&dir.path().join("p.toml")), Overrides::default()).unwrap()
    }

    #[test]
    fn the_seed_decides_everything() {
        let first = plan("poisson");
        let other = Plan { seed: 2, ..first.clone() };
        assert_eq!(schedule(&first, 3), schedule(&first, 3));
        assert_ne!(schedule(&first, 3), schedule(&other, 3));
    }

    #[test]
    fn rates_and_shares_are_as_planned() {
        for arrivals in ["poisson", "constant"] {
            let plan = plan(arrivals);
            let all = schedule(&plan, 3);
            let near = |what: &str, seen: usize, expected: f64| {
                let bound = 4.0 * expected.sqrt() + 1.0;
                assert!((seen as f64 - expected).abs() < bound, "{arrivals}: {what}: {seen}, expected about {expected}");
            };
            let fresh = |operation: &&Operation| matches!(operation.kind, Kind::Post | Kind::Invalid(_));
            near("singles", all.iter().filter(fresh).filter(|o| !o.batch).count(), 20.0 * 3.0 * 90.0);
            near("batches", all.iter().filter(fresh).filter(|o| o.batch).count(), 4.0 * 3.0 * 90.0);
            near("invalid", all.iter().filter(|o| matches!(o.kind, Kind::Invalid(_))).count(), 0.01 * 24.0 * 3.0 * 90.0);
            near("repeats", all.iter().filter(|o| matches!(o.kind, Kind::Repeat { .. })).count(), 0.02 * 24.0 * 3.0 * 89.0);
            near("conflicts", all.iter().filter(|o| matches!(o.kind, Kind::Conflict { .. })).count(), 0.001 * 120.0 * 3.0 * 88.0);
            assert!(all.is_sorted_by_key(|o| o.at_us));
        }
    }

    #[test]
    fn repeats_and_conflicts_come_after_the_post_that_they_name() {
        let all = schedule(&plan("poisson"), 3);
        for operation in &all {
            match operation.kind {
                Kind::Repeat { of } => {
                    let original = all[of as usize];
                    assert_eq!(original.kind, Kind::Post);
                    assert_eq!(
                        (original.first_event, original.events, original.tenant),
                        (operation.first_event, operation.events, operation.tenant)
                    );
                    assert!(original.at_us < operation.at_us);
                }
                Kind::Conflict { of, event } => {
                    let original = all[of as usize];
                    assert_eq!(original.kind, Kind::Post);
                    assert_eq!(original.first_event + u64::from(event), operation.first_event);
                    assert_eq!((original.region, original.tenant), (operation.region, operation.tenant));
                    assert!(original.at_us < operation.at_us);
                }
                _ => {}
            }
        }
    }

    #[test]
    fn constant_arrivals_are_evenly_spaced() {
        let all = schedule(&plan("constant"), 1);
        let singles: Vec<u64> =
            all.iter().filter(|o| !o.batch && matches!(o.kind, Kind::Post | Kind::Invalid(_))).map(|o| o.at_us).collect();
        assert!(singles.windows(2).all(|pair| (pair[1] - pair[0]).abs_diff(50_000) <= 1));
    }
}
