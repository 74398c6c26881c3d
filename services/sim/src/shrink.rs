//! From a schedule that failed to a small one that fails in the same way.

use crate::{
    drive::{Outcome, simulate},
    plan::Plan,
    planted::Bug,
};

/// Runs at most: a story need not be the shortest one.
const RUNS_MAX: usize = 400;

struct Shrinking {
    bug: Option<Bug>,
    promise: u8,
    runs: usize,
}

/// Leaves out faults and posts, as long as the same promise is broken. Gives the schedule and its outcome, with the trace.
pub fn shrink(plan: &Plan, bug: Option<Bug>, promise: u8) -> (Plan, Outcome) {
    let mut shrinking = Shrinking { bug, promise, runs: 0 };
    let mut plan = plan.clone();
    loop {
        let before = plan.faults.len() + plan.posts.len();
        plan.faults = shrinking.without(plan.faults.clone(), |faults| Plan { faults, ..plan.clone() });
        plan.posts = shrinking.without(plan.posts.clone(), |posts| Plan { posts, ..plan.clone() });
        if plan.faults.len() + plan.posts.len() == before || shrinking.runs >= RUNS_MAX {
            break;
        }
    }
    let outcome = simulate(&plan, bug, true);
    (plan, outcome)
}

impl Shrinking {
    fn fails(&mut self, plan: &Plan) -> bool {
        self.runs += 1;
        self.runs <= RUNS_MAX && simulate(plan, self.bug, false).broken.iter().any(|broken| broken.promise == self.promise)
    }

    /// Leaves out halves, then quarters, down to single ones.
    fn without<T: Clone>(&mut self, mut parts: Vec<T>, plan_of: impl Fn(Vec<T>) -> Plan) -> Vec<T> {
        let mut size = parts.len().div_ceil(2);
        while size > 0 && !parts.is_empty() {
            let mut at = 0;
            while at < parts.len() {
                let end = (at + size).min(parts.len());
                let fewer: Vec<T> = parts[..at].iter().chain(&parts[end..]).cloned().collect();
                if self.fails(&plan_of(fewer.clone())) {
                    parts = fewer;
                } else {
                    at = end;
                }
            }
            size = if size == 1 { 0 } else { size.div_ceil(2) };
        }
        parts
    }
}
