//! The consumer's loops over a feed in memory, with its real state on disk.

#![allow(clippy::unwrap_used)]

use anyhow::bail;
use client::{FollowConfig, Page};
use consumer::{Effects, Line, PullPage, State, handle_page, load_cursor, save_cursor};
use kit::{bind, effect, health::Health, shutdown::CancellationToken, unused};
use meridian_proto::CommitTime;
use std::{
    collections::BTreeMap,
    io::Write,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

const EVENTS: u64 = 300;
const TENANTS: u64 = 20;

fn page(tenant: &str, cursor: &str, limit: u32) -> anyhow::Result<Page> {
    let from: u64 = cursor.parse().unwrap_or_default();
    let to = EVENTS.min(from + u64::from(limit));
    let event = |id: u64| {
        format!(
            r#"{{"id":"{id}","source":"/{tenant}","meridiancommitid":"{:032x}","meridianhash":"ab","meridianorigin":"fra","hops":{{"accepted_us":5,"relayed_ms":1,"mirrored_ms":2}}}}"#,
            (77_u128) << 64
        )
    };
    let events: Vec<String> = (from..to).map(event).collect();
    Ok(serde_json::from_str(&format!(r#"{{"events":[{}],"cursor":"{to}","more":{}}}"#, events.join(","), to < EVENTS))?)
}

fn effects(state: &Arc<State>, calls: &Arc<AtomicU64>) -> Effects {
    // Every eleventh step fails after it was carried out, as a kill right behind it would look.
    let broken = |calls: &Arc<AtomicU64>| calls.fetch_add(1, Ordering::Relaxed) % 11 == 10;
    let (handle, handled) = (bind(state, handle_page), Arc::clone(calls));
    let (save, saved) = (bind(state, save_cursor), Arc::clone(calls));
    Effects {
        await_signal: effect(|_| std::future::pending()),
        pull_page: effect(|input: PullPage| async move { Ok(Ok(page(&input.tenant, &input.cursor, input.limit)?)) }),
        handle_page: effect(move |input| {
            let (done, breaks) = (handle(input), broken(&handled));
            async move {
                done.await?;
                if breaks {
                    bail!("killed after handling");
                }
                Ok(())
            }
        }),
        save_cursor: effect(move |input| {
            let (done, breaks) = (save(input), broken(&saved));
            async move {
                if breaks {
                    bail!("killed before saving");
                }
                done.await
            }
        }),
        load_cursor: bind(state, load_cursor),
        host_time: effect(|()| async { Ok(CommitTime(9_000)) }),
    }
}

/// Work that was under way may hold the folder for a moment longer.
async fn reopen(dir: &Path) -> Arc<State> {
    for _ in 0..200 {
        if let Ok(state) = State::open(dir) {
            return state;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the folder was not given back");
}

fn read(dir: &Path) -> BTreeMap<(String, String, String), u64> {
    let mut seen = BTreeMap::new();
    for line in std::fs::read_to_string(dir.join("handled.ndjson")).unwrap().lines() {
        let line: Line = serde_json::from_str(line).unwrap();
        assert_eq!((line.accepted_us, line.committed_us, line.relayed_ms, line.mirrored_ms, line.pulled_us), (5, 77, 1, 2, 9000));
        *seen.entry((line.tenant, line.source, line.id)).or_default() += 1;
    }
    seen
}

#[tokio::test]
async fn twenty_tenants_see_everything_at_least_once_and_repeats_are_recognised() {
    let dir = tempfile::tempdir().unwrap();
    let calls = Arc::default();
    let tenants: Vec<String> = (1..=TENANTS).map(|number| format!("tenant-{number:02}")).collect();
    let config = FollowConfig { limit: 40, ..FollowConfig::default() };
    let mut seen = BTreeMap::new();
    for _ in 0..60 {
        if seen.len() as u64 == TENANTS * EVENTS {
            break;
        }
        let state = reopen(dir.path()).await;
        let shutdown = CancellationToken::new();
        let run = consumer::run(effects(&state, &calls), tenants.clone(), config, Health::default(), shutdown.clone());
        let stop = async {
            tokio::time::sleep(Duration::from_millis(700)).await;
            shutdown.cancel();
        };
        let (ended, ()) = tokio::join!(run, stop);
        ended.unwrap();
        drop(state);
        // A kill may leave half a line behind.
        let mut file = std::fs::OpenOptions::new().append(true).open(dir.path().join("handled.ndjson")).unwrap();
        file.write_all(b"{\"tenant\":\"te").unwrap();
        drop(reopen(dir.path()).await);
        seen = read(dir.path());
    }
    assert_eq!(seen.len() as u64, TENANTS * EVENTS);
    assert!(seen.values().any(|times| *times > 1), "the failures did repeat something");
}

#[tokio::test]
async fn nothing_is_used_that_a_tenant_without_events_does_not_need() {
    let dir = tempfile::tempdir().unwrap();
    let state = State::open(dir.path()).unwrap();
    let mut effects = effects(&state, &Arc::default());
    effects.handle_page = unused("handle_page");
    effects.save_cursor = unused("save_cursor");
    effects.pull_page = effect(|input: PullPage| async move {
        Ok(Ok(serde_json::from_str(&format!(r#"{{"events":[],"cursor":"{}","more":false}}"#, input.cursor))?))
    });
    let shutdown = CancellationToken::new();
    let run = consumer::run(effects, vec!["a".into()], FollowConfig::default(), Health::default(), shutdown.clone());
    let stop = async {
        tokio::time::sleep(Duration::from_millis(1500)).await;
        shutdown.cancel();
    };
    tokio::join!(run, stop).0.unwrap();
}
