//! A region whose database is in memory and fails on demand, under paused time.
#![allow(dead_code, clippy::unwrap_used)]

use adapters::scylla::{CommitRow, SaveIdentity};
use api::Keys;
use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Request, Response},
};
use ingest::{App, Effects, Ingest, Limits, Meters, routes};
use kit::{Effect, effect, shutdown::CancellationToken};
use meridian_proto::{Change, CommitId, CommitTime, Event, Identity, Incarnation, PayloadHash};
use prost::Message;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::time::Instant;
use tower::ServiceExt;

/// What goes wrong with one call.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Fault {
    #[default]
    None,
    /// Fails, and was not carried out.
    Lost,
    /// Carried out, but the answer was lost: the driver's time ran out.
    Unanswered,
    /// Carried out, answered after this time.
    Late(Duration),
}

/// What goes wrong with each next call.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    pub find: Vec<Fault>,
    pub save: Vec<Fault>,
    pub commit: Vec<Fault>,
    pub clock_stale: bool,
    /// While the first row was written the process stood still: its clock went on, its timers did not.
    pub stopped: Duration,
}

pub struct Region {
    pub routes: Router,
    pub key: String,
    pub keys_file: std::path::PathBuf,
    pub identities: Arc<Mutex<BTreeMap<Identity, BTreeSet<PayloadHash>>>>,
    pub rows: Arc<Mutex<Vec<CommitRow>>>,
    pub hints: Arc<Mutex<Vec<u16>>>,
    _dir: tempfile::TempDir,
}

pub const START_US: u64 = 1_790_000_000_000_000;

pub const METERS: &str = r#"
    [[meter]]
    name = "amount"
    event_type = "order"
    aggregation = "sum"
    property = "amount"
"#;

fn faulty<In: Send + 'static, Out: Send + 'static>(faults: Vec<Fault>, inner: Effect<In, Out>) -> Effect<In, Out> {
    let faults = Mutex::new(VecDeque::from(faults));
    effect(move |input: In| {
        let fault = faults.lock().unwrap().pop_front().unwrap_or_default();
        let inner = Arc::clone(&inner);
        async move {
            match fault {
                Fault::None => inner(input).await,
                Fault::Lost => anyhow::bail!("connection refused"),
                Fault::Unanswered => {
                    inner(input).await?;
                    tokio::time::sleep(adapters::scylla::STATEMENT_TIMEOUT).await;
                    anyhow::bail!("timeout")
                }
                Fault::Late(by) => {
                    let output = inner(input).await;
                    tokio::time::sleep(by).await;
                    output
                }
            }
        }
    })
}

impl Region {
    pub async fn start(faults: Faults, limits: Limits) -> Self {
        let identities: Arc<Mutex<BTreeMap<Identity, BTreeSet<PayloadHash>>>> = Arc::default();
        let rows: Arc<Mutex<Vec<CommitRow>>> = Arc::default();
        let hints: Arc<Mutex<Vec<u16>>> = Arc::default();
        let (known, saved, written, hinted) = (identities.clone(), identities.clone(), rows.clone(), hints.clone());
        let begin = Instant::now();
        let find = effect(move |wanted: Vec<Identity>| {
            let known = known.lock().unwrap();
            let found = wanted.iter().map(|id| known.get(id).into_iter().flatten().copied().collect()).collect();
            async move { Ok(found) }
        });
        let save = effect(move |SaveIdentity { entries, .. }: SaveIdentity| {
            let mut saved = saved.lock().unwrap();
            entries.into_iter().for_each(|(id, hash)| _ = saved.entry(id).or_default().insert(hash));
            async { Ok(()) }
        });
        let commit = effect(move |row: CommitRow| {
            written.lock().unwrap().push(row);
            async {
                tokio::time::sleep(Duration::from_millis(2)).await;
                Ok(())
            }
        });
        let (stale, stopped, after_stop) = (faults.clock_stale, faults.stopped, rows.clone());
        let effects = Effects {
            find_identity: faulty(faults.find, find),
            save_identity: faulty(faults.save, save),
            commit_event: faulty(faults.commit, commit),
            region_time: effect(move |()| {
                let gone = if after_stop.lock().unwrap().is_empty() { Duration::ZERO } else { stopped };
                async move {
                    anyhow::ensure!(!stale, "region clock: stale");
                    Ok(CommitTime(START_US + (begin.elapsed() + gone).as_micros() as u64))
                }
            }),
            hint_change: effect(move |partition| {
                hinted.lock().unwrap().push(partition);
                async { Ok(()) }
            }),
        };
        let dir = tempfile::tempdir().unwrap();
        let keys_file = dir.path().join("keys.toml");
        let key = api::create_key(&keys_file, "acme").unwrap();
        let app = App::new(Keys::watch(&keys_file, CancellationToken::new()).await.unwrap(), limits);
        app.begin(Ingest::start(effects, limits, Meters::parse(METERS).unwrap(), "fra", 1, Incarnation::from_random(42)));
        Self { routes: routes(app).unwrap(), key, keys_file, identities, rows, hints, _dir: dir }
    }

    pub async fn send(&self, request: Request<Body>) -> Response<Body> {
        self.routes.clone().oneshot(request).await.unwrap()
    }

    /// Posts with the tenant's key, and reads the answer.
    pub async fn post(&self, content_type: &str, body: impl Into<Vec<u8>>) -> (u16, Value) {
        let body: Vec<u8> = body.into();
        let request = Request::post("/v1/events")
            .header("authorization", format!("Bearer {}", self.key))
            .header("content-type", content_type)
            .header("content-length", body.len())
            .body(Body::from(body))
            .unwrap();
        read(self.send(request).await).await
    }

    /// The events in the change log, by row.
    pub fn events(&self) -> Vec<Vec<Event>> {
        let rows = self.rows.lock().unwrap();
        let events = |row: &CommitRow| {
            let change = Change::decode(row.change.clone()).unwrap();
            let events: Vec<Event> = change.events.into_iter().map(|bytes| Event::decode(bytes).unwrap()).collect();
            for (index, event) in events.iter().enumerate() {
                assert_eq!(CommitId::from_bytes(&event.commit_id), Some(row.row.at_index(index as u16)));
                assert_eq!(meridian_proto::partition_of(&event.tenant, event.subject.as_deref()), row.partition);
            }
            events
        };
        rows.iter().map(events).collect()
    }

    /// How many events count: identities with a row in the change log.
    pub fn counted(&self) -> usize {
        let identity = |event: Event| (event.tenant, event.source, event.id);
        self.events().into_iter().flatten().map(identity).collect::<BTreeSet<_>>().len()
    }
}

pub async fn read(response: Response<Body>) -> (u16, Value) {
    let status = response.status().as_u16();
    if status >= 400 {
        assert_eq!(response.headers()["content-type"], "application/problem+json");
        assert_eq!(response.headers().contains_key("retry-after"), matches!(status, 429 | 503), "{status}");
    }
    let body = to_bytes(response.into_body(), 10_000_000).await.unwrap();
    let value: Value = serde_json::from_slice(&body).unwrap();
    if status >= 400 {
        assert_eq!(value["status"], status);
    }
    (status, value)
}

pub const STRUCTURED: &str = "application/cloudevents+json";
pub const BATCH: &str = "application/cloudevents-batch+json";

pub fn event(id: &str, data: &str) -> String {
    format!(r#"{{"specversion":"1.0","id":"{id}","source":"/shop","type":"note","subject":"s","data":{data}}}"#)
}

pub fn batch(events: &[String]) -> String {
    format!("[{}]", events.join(","))
}
