//! The public interface.

use super::{Bench, FakeLog, small_tail};
use crate::{
    Limits,
    http::{Shared, api, routes},
};
use api::{Keys, create_key};
use axum::{Router, body::Body, http::Request};
use kit::{delayed, shutdown::CancellationToken};
use serde_json::Value;
use std::{path::Path, sync::Arc, time::Duration};
use tokio::time::{Instant, sleep};
use tower::ServiceExt;

struct Site {
    bench: Bench,
    routes: Router,
    keys: [String; 2],
    _dir: tempfile::TempDir,
}

impl Site {
    async fn over(bench: Bench) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("keys.toml");
        let keys = ["acme", "globex"].map(|tenant| create_key(&file, tenant).unwrap());
        let watched = Keys::watch(&file, CancellationToken::new()).await.unwrap();
        let routes = routes(Shared { feed: Arc::clone(&bench.feed), keys: watched }).unwrap();
        Self { bench, routes, keys, _dir: dir }
    }

    async fn get(&self, key: usize, query: &str) -> (u16, Value) {
        let (status, _, body) = self.ask(&self.keys[key], query).await;
        (status, body)
    }

    async fn ask(&self, key: &str, query: &str) -> (u16, Option<String>, Value) {
        let request =
            Request::get(format!("/v1/feed?{query}")).header("Authorization", format!("Bearer {key}")).body(Body::empty()).unwrap();
        let response = self.routes.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let retry_after = response.headers().get("Retry-After").map(|value| value.to_str().unwrap().to_owned());
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, retry_after, serde_json::from_slice(&body).unwrap())
    }
}

#[tokio::test(start_paused = true)]
async fn a_cursor_is_its_tenants_and_nobody_elses() {
    let log = FakeLog::of(&["fra"]);
    log.post("fra", "acme", "1");
    let site = Site::over(Bench::start(&log, "fra", Limits::STANDARD).await).await;
    let (status, page) = site.get(0, "limit=5").await;
    assert_eq!((status, page["events"].as_array().unwrap().len(), &page["more"]), (200, 1, &Value::Bool(false)));
    assert_eq!(page["events"][0]["id"], "1");
    let cursor = page["cursor"].as_str().unwrap();
    assert_eq!(site.get(0, &format!("cursor={cursor}")).await.0, 200);
    let (status, problem) = site.get(1, &format!("cursor={cursor}")).await;
    assert_eq!((status, problem["field"].as_str()), (400, Some("cursor")));
    for query in
        ["cursor=forged", "limit=0", "limit=1001", "limit=x", "wait_ms=30001", "start=middle", &format!("cursor={}", "A".repeat(20_000))]
    {
        let (status, problem) = site.get(0, query).await;
        assert_eq!((status, problem["status"].as_u64()), (400, Some(400)), "{query}");
    }
    assert_eq!(site.ask("mk_nobody_x", "").await.0, 401);
}

#[tokio::test(start_paused = true)]
async fn a_long_poll_ends_with_the_event_or_with_its_time() {
    let log = FakeLog::of(&["fra"]);
    let site = Arc::new(Site::over(Bench::start(&log, "fra", Limits::STANDARD).await).await);
    let started = Instant::now();
    let (status, page) = site.get(0, "wait_ms=3000").await;
    assert_eq!((status, started.elapsed().as_millis()), (200, 3000));
    let poll = tokio::spawn({
        let (site, cursor) = (Arc::clone(&site), page["cursor"].as_str().unwrap().to_owned());
        async move { (site.get(0, &format!("wait_ms=30000&cursor={cursor}")).await.1, Instant::now()) }
    });
    sleep(Duration::from_secs(5)).await;
    log.post("fra", "globex", "not mine");
    sleep(Duration::from_secs(5)).await;
    let posted = Instant::now();
    log.post("fra", "acme", "mine");
    let (page, ended) = poll.await.unwrap();
    assert_eq!(page["events"][0]["id"], "mine");
    assert!(ended - posted < Duration::from_millis(5));
    site.bench.shutdown.cancel();
    let asked = Instant::now();
    assert_eq!(site.get(1, "wait_ms=30000&start=oldest").await.0, 200);
    let cursor = site.get(1, "start=latest").await.1["cursor"].as_str().unwrap().to_owned();
    assert_eq!(site.get(1, &format!("wait_ms=30000&cursor={cursor}")).await.0, 200);
    assert!(asked.elapsed() < Duration::from_secs(1), "a feed that stops keeps nobody waiting");
}

#[tokio::test(start_paused = true)]
async fn latest_begins_after_what_is_there() {
    let log = FakeLog::of(&["fra", "iad"]);
    (0..50).for_each(|number| log.post("fra", "acme", &number.to_string()));
    let site = Site::over(Bench::start(&log, "fra", Limits::STANDARD).await).await;
    let (_, page) = site.get(0, "start=latest").await;
    assert_eq!(page["events"].as_array().unwrap().len(), 0);
    log.post("iad", "acme", "later");
    log.post("fra", "acme", "later too");
    site.bench.caught_up(&log).await;
    let (_, page) = site.get(0, &format!("cursor={}", page["cursor"].as_str().unwrap())).await;
    let ids: Vec<&str> = page["events"].as_array().unwrap().iter().map(|event| event["id"].as_str().unwrap()).collect();
    assert_eq!(super::sorted(ids.into_iter().map(Into::into).collect()), ["later", "later too"]);
}

#[tokio::test(start_paused = true)]
async fn trimmed_history_is_410_with_a_cursor_that_goes_on() {
    let log = FakeLog::of(&["fra"]);
    (0..200).for_each(|number| log.post("fra", "acme", &number.to_string()));
    let site = Site::over(Bench::start(&log, "fra", small_tail()).await).await;
    let mut cursor = site.get(0, "limit=1").await.1["cursor"].as_str().unwrap().to_owned();
    log.trim(30);
    let mut told = 0;
    let page = loop {
        let (status, body) = site.get(0, &format!("limit=1000&cursor={cursor}")).await;
        cursor = body["cursor"].as_str().unwrap().to_owned();
        if status == 200 {
            break body;
        }
        assert_eq!((status, body["oldest"]["offset"].as_u64(), body["oldest"]["topic"].as_str()), (410, Some(30), Some("events.fra.g1")));
        told += 1;
    };
    assert_eq!(told, 1, "only the partition that the cursor names was promised");
    assert_eq!(page["events"].as_array().unwrap().len(), 200 - 4 * 30);
}

#[tokio::test(start_paused = true)]
async fn too_much_at_once_is_429_with_retry_after() {
    let log = FakeLog::of(&["fra"]);
    (0..50).for_each(|number| log.post("fra", "acme", &number.to_string()));
    let bench = Bench::with(
        &log,
        "fra",
        Limits { pages_at_once_max: 2, turn_patience: Duration::from_millis(200), ..small_tail() },
        |mut effects| {
            effects.log_bounds = delayed(Duration::from_millis(500), effects.log_bounds);
            effects
        },
    )
    .await;
    let site = Arc::new(Site::over(bench).await);
    let ask = |query: &'static str| {
        let site = Arc::clone(&site);
        tokio::spawn(async move { site.ask(&site.keys[0], query).await })
    };
    let answers = futures::future::join_all((0..6).map(|_| ask("limit=5"))).await;
    let refused: Vec<_> = answers.into_iter().map(Result::unwrap).filter(|(status, ..)| *status == 429).collect();
    assert_eq!(refused.len(), 4);
    assert!(refused.iter().all(|(_, retry_after, _)| retry_after.as_deref() == Some("1")));
}

#[test]
fn the_checked_in_document_is_current() {
    api::docs::assert_current(&api(), &Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi.json")).unwrap();
}
