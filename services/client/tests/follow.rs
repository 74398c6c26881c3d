//! Following a feed, with every step failing at every place.

#![allow(clippy::unwrap_used)]

use anyhow::{Result, bail};
use client::{FollowConfig, Follower, Page, PullError, follow};
use kit::effect;
use proptest::prelude::*;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::time::{Instant, sleep, timeout};

/// A feed of numbered events: a cursor is the next number.
#[derive(Default)]
struct World {
    events: u64,
    pulls: Vec<Instant>,
    handled: Vec<u64>,
    saved: u64,
    /// Numbers of the calls that fail, counted over all effects.
    fails: Vec<u64>,
    calls: u64,
    signals: u64,
}

impl World {
    fn call(&mut self) -> Result<()> {
        self.calls += 1;
        if self.fails.contains(&self.calls) {
            bail!("killed at call {}", self.calls);
        }
        Ok(())
    }

    fn pull(&mut self, cursor: &str, limit: u32) -> Result<Result<Page, PullError>> {
        self.call()?;
        self.pulls.push(Instant::now());
        let from: u64 = cursor.parse().unwrap_or_default();
        let to = self.events.min(from + u64::from(limit));
        let event = |id: u64| {
            format!(
                r#"{{"id":"{id}","source":"/s","meridiancommitid":"0","meridianhash":"0","meridianorigin":"fra","hops":{{"relayed_ms":1}}}}"#
            )
        };
        let events: Vec<String> = (from..to).map(event).collect();
        let page = format!(r#"{{"events":[{}],"cursor":"{to}","more":{}}}"#, events.join(","), to < self.events);
        Ok(Ok(serde_json::from_str(&page)?))
    }
}

fn follower(world: &Arc<Mutex<World>>) -> Follower {
    let of = || Arc::clone(world);
    let (signalled, pulled, handled, saved) = (of(), of(), of(), of());
    Follower {
        await_signal: effect(move |()| {
            let world = Arc::clone(&signalled);
            async move {
                loop {
                    let left = world.lock().unwrap().signals.checked_sub(1);
                    if let Some(left) = left {
                        world.lock().unwrap().signals = left;
                        return Ok(7);
                    }
                    sleep(Duration::from_millis(1)).await;
                }
            }
        }),
        pull_page: effect(move |(cursor, limit): (String, u32)| {
            let page = pulled.lock().unwrap().pull(&cursor, limit);
            async { page }
        }),
        handle_page: effect(move |page: client::Handled| {
            let mut world = handled.lock().unwrap();
            let result = world.call();
            if result.is_ok() {
                world.handled.extend(page.page.events.iter().map(|event| event.id.parse::<u64>().unwrap()));
            }
            async { result }
        }),
        save_cursor: effect(move |cursor: String| {
            let mut world = saved.lock().unwrap();
            // A kill may come before the cursor is saved, or right after it.
            let result = world.call();
            if result.is_ok() {
                world.saved = cursor.parse().unwrap();
            }
            async { result }
        }),
    }
}

proptest! {
    #[test]
    fn a_kill_between_any_two_steps_repeats_and_never_skips(fails in proptest::collection::vec(1u64..60, 0..12), events in 0u64..60, limit in 1u32..9) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let world = Arc::new(Mutex::new(World { events, fails, ..World::default() }));
            let effects = follower(&world);
            let config = FollowConfig { limit, ..FollowConfig::default() };
            loop {
                let saved = world.lock().unwrap().saved.to_string();
                if timeout(Duration::from_secs(5), follow(&effects, config, saved)).await.is_err() {
                    break;
                }
            }
            let mut handled = world.lock().unwrap().handled.clone();
            // Each restart goes back to a place that was handled, so in order of first sight nothing is missing.
            handled.sort_unstable();
            handled.dedup();
            assert_eq!(handled, (0..events).collect::<Vec<_>>());
        });
    }
}

#[tokio::test(start_paused = true)]
async fn a_signal_wakes_at_once_and_without_one_the_tick_does() {
    let world = Arc::new(Mutex::new(World { events: 1, ..World::default() }));
    let effects = follower(&world);
    let started = Instant::now();
    let script = async {
        sleep(Duration::from_millis(300)).await;
        world.lock().unwrap().events = 2;
        world.lock().unwrap().signals = 1;
        sleep(Duration::from_millis(5)).await;
        assert_eq!(world.lock().unwrap().handled, [0, 1], "the signal woke it");
        world.lock().unwrap().events = 3;
        sleep(Duration::from_millis(1001)).await;
        assert_eq!(world.lock().unwrap().handled, [0, 1, 2], "the tick found it");
    };
    tokio::select! {
        result = follow(&effects, FollowConfig::default(), String::new()) => panic!("{result:?}"),
        () = script => {}
    }
    let pulls: Vec<u128> = world.lock().unwrap().pulls.iter().map(|at| (*at - started).as_millis()).collect();
    assert!(pulls.len() <= 3, "{pulls:?}");
}
