//! A fixed set of seeds and a fresh one: about a minute of disasters.

use sim::{Plan, shrink, simulate};
use std::{
    hash::{BuildHasher, Hasher, RandomState},
    time::{Duration, Instant},
};

/// Seeds that are run each time.
const FIXED: u64 = 400;
/// How long fresh seeds are run.
const FRESH_FOR: Duration = Duration::from_secs(30);

fn check(seed: u64) {
    let plan = Plan::of_seed(seed);
    let outcome = simulate(&plan, None, false);
    if let Some(broken) = outcome.broken.first() {
        let (small, told) = shrink(&plan, None, broken.promise);
        let (posts, faults) = (small.posts.len(), small.faults.len());
        panic!("seed {seed} breaks promise {}: {}\n{posts} posts, {faults} faults:\n{}", broken.promise, broken.what, told.trace);
    }
}

#[test]
fn no_promise_is_broken_by_the_fixed_seeds() {
    (0..FIXED).for_each(check);
}

#[test]
fn no_promise_is_broken_by_fresh_seeds() {
    let first = RandomState::new().build_hasher().finish() >> 20;
    println!("fresh seeds from {first} on");
    let started = Instant::now();
    let count = (first..).take_while(|_| started.elapsed() < FRESH_FOR).map(check).count();
    println!("{count} fresh seeds from {first} on");
}

#[test]
fn a_seed_gives_the_same_bytes_each_time() {
    for seed in [3, 7, 1_292] {
        let trace = move || simulate(&Plan::of_seed(seed), None, true).trace;
        let (here, there) = (trace(), std::thread::spawn(trace).join());
        assert!(here.lines().count() > 100, "seed {seed} has hardly a story");
        assert_eq!(here, there.expect("a thread that ends"), "seed {seed}");
    }
}
