//! Every planted bug is found, within so many seeds, and by a promise that its rule stands for.

use sim::{Bug, Plan, simulate};

/// Schedules that a planted bug may survive.
const SEEDS_MAX: u64 = 2_000;

/// The seed that finds the bug, the promise it breaks there, and how.
fn found(bug: Bug) -> Option<(u64, u8, String)> {
    (0..SEEDS_MAX).find_map(|seed| {
        let outcome = simulate(&Plan::of_seed(seed), Some(bug), false);
        outcome.broken.into_iter().next().map(|broken| (seed, broken.promise, broken.what))
    })
}

#[test]
fn every_planted_bug_is_found() {
    let mut missed = Vec::new();
    for bug in Bug::ALL {
        match found(*bug) {
            Some((seed, promise, what)) => {
                println!("{bug:?}: seed {seed}, promise {promise}: {what}");
                let sound = simulate(&Plan::of_seed(seed), None, false);
                assert!(sound.broken.is_empty(), "seed {seed} fails without {bug:?} too: {:?}", sound.broken);
            }
            None => missed.push(*bug),
        }
    }
    assert!(missed.is_empty(), "not found within {SEEDS_MAX} seeds: {missed:?}");
}

#[test]
fn a_failing_schedule_is_cut_down_to_a_story() {
    let bug = Bug::IdentityLastWriteWins;
    let (seed, promise, _) = found(bug).expect("a seed that finds it");
    let plan = Plan::of_seed(seed);
    let (small, told) = sim::shrink(&plan, Some(bug), promise);
    assert!(small.posts.len() <= 4 && small.faults.len() <= 2, "{} posts, {} faults", small.posts.len(), small.faults.len());
    assert!(told.trace.contains("PROMISE"), "{}", told.trace);
}
