//! The API over fakes of the store.
#![allow(clippy::unwrap_used)]

use adapters::clickhouse::{Bucket, ConflictRow, PositionRow, Progress, StoreRow};
use anyhow::{Result, bail};
use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Request, StatusCode},
};
use kit::{effect, recorded, shutdown::CancellationToken, unused};
use serde_json::{Value, json};
use std::{
    path::Path,
    sync::{Arc, Mutex},
};
use tower::ServiceExt;
use usage::{Effects, Meters, Usage, openapi, routes};

const MONTH: &str = "meter=amount&from=2026-03-28T23:00:00Z&to=2026-03-30T22:00:00Z&window=day&tz=Europe/Budapest";

fn fakes() -> Effects {
    Effects {
        read_progress: effect(|()| async {
            let row = PositionRow {
                origin: "fra".into(),
                generation: 1,
                partitions: 1,
                since_us: 5,
                through_us: 1_774_000_000_000_000,
                ..PositionRow::default()
            };
            Ok(Progress { store: "one".into(), rows: vec![row], parked: vec![("iad".into(), 2)] })
        }),
        sum_meter: effect(|_| async { Ok(vec![Bucket { start_us: 1_774_738_800_000_000, value: "0.3".into(), events: 2, skipped: 1 }]) }),
        list_conflicts: unused("list_conflicts"),
        read_store: effect(|()| async { Ok(StoreRow { store: "one".into(), release: "26.9.2.1".into() }) }),
    }
}

/// A service over these effects, and the key of tenant `acme`.
async fn service(effects: Effects) -> Result<(Router, String)> {
    let dir = tempfile::tempdir()?;
    api::create_dev_secrets(dir.path(), 1)?;
    let keys = api::Keys::watch(dir.path().join("keys.toml"), CancellationToken::new()).await?;
    let key = api::read_dev_keys(&dir.path().join("dev-keys.toml"))?.into_iter().next().map(|(_, key)| key).unwrap_or_default();
    let meters = Arc::new(Meters::parse(include_str!("../../../deploy/meters.toml"))?);
    let regions = Arc::from(["fra".to_owned(), "iad".to_owned()]);
    Ok((routes(Usage { effects, meters, keys, region: "fra".into(), regions })?, key))
}

async fn get(service: &Router, key: &str, path: &str) -> Result<(StatusCode, Value)> {
    let request = Request::get(path).header("Authorization", format!("Bearer {key}")).body(Body::empty())?;
    let response = service.clone().oneshot(request).await?;
    let status = response.status();
    Ok((status, serde_json::from_slice(&to_bytes(response.into_body(), 1 << 20).await?)?))
}

#[tokio::test]
async fn an_answer_has_every_window_and_says_how_complete_it_is() -> Result<()> {
    let (service, key) = service(fakes()).await?;
    let (status, answer) = get(&service, &key, &format!("/v1/usage?{MONTH}")).await?;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(
        answer["windows"],
        json!([
            {"from": "2026-03-29T00:00:00+01:00", "to": "2026-03-30T00:00:00+02:00", "value": "0.3", "events": 2, "skipped": 1},
            {"from": "2026-03-30T00:00:00+02:00", "to": "2026-03-31T00:00:00+02:00", "value": "0", "events": 0, "skipped": 0},
        ])
    );
    assert_eq!(
        answer["complete"],
        json!({
            "fra": {"since": "1970-01-01T00:00:00.000005Z", "through": "2026-03-20T09:46:40.000000Z", "gaps": [], "parked": 0},
            "iad": {"since": null, "through": null, "gaps": [], "parked": 2},
        })
    );
    assert_eq!((&answer["engine"], &answer["tz_rules"]), (&json!("26.9.2.1"), &json!(usage::time_zone_rules())));
    Ok(())
}

#[tokio::test]
async fn completeness_is_read_before_the_sums() -> Result<()> {
    let calls: Arc<Mutex<Vec<&'static str>>> = Arc::default();
    let (fakes, first, second) = (fakes(), Arc::clone(&calls), Arc::clone(&calls));
    let (progress, sums) = (Arc::clone(&fakes.read_progress), Arc::clone(&fakes.sum_meter));
    let effects = Effects {
        read_progress: Arc::new(move |input| {
            first.lock().unwrap().push("read_progress");
            progress(input)
        }),
        sum_meter: Arc::new(move |input| {
            second.lock().unwrap().push("sum_meter");
            sums(input)
        }),
        ..fakes
    };
    let (service, key) = service(effects).await?;
    assert_eq!(get(&service, &key, &format!("/v1/usage?{MONTH}")).await?.0, 200);
    assert_eq!(*calls.lock().unwrap(), ["read_progress", "sum_meter"]);
    Ok(())
}

#[tokio::test]
async fn the_tenant_is_the_keys_and_nobody_elses() -> Result<()> {
    let fakes = fakes();
    let (sum_meter, asked) = recorded(Arc::clone(&fakes.sum_meter));
    let (service, key) = service(Effects { sum_meter, ..fakes }).await?;
    assert_eq!(get(&service, &key, &format!("/v1/usage?{MONTH}")).await?.0, 200);
    assert_eq!(asked.lock().unwrap()[0].tenant, "tenant-01");
    assert_eq!(get(&service, "mk_wrong_key", &format!("/v1/usage?{MONTH}")).await?.0, 401);
    assert_eq!(get(&service, &key, &format!("/v1/usage?{MONTH}&tenant=tenant-02")).await?.0, 422, "a parameter that is not known");
    Ok(())
}

#[tokio::test]
async fn what_is_wrong_is_named() -> Result<()> {
    let (service, key) = service(fakes()).await?;
    let range = "from=2026-03-01T00:00:00Z&to=2026-04-01T00:00:00Z";
    for (query, field) in [
        (format!("meter=nothing&{range}"), json!("meter")),
        (format!("meter=amount&{range}&tz=Mars/Base"), json!("tz")),
        ("meter=amount&from=yesterday&to=2026-04-01T00:00:00Z".into(), json!("from")),
        ("meter=amount&from=2026-03-01T00:00:00.0000001Z&to=2026-04-01T00:00:00Z".into(), json!("from")),
        ("meter=amount&from=2026-03-01T00:00:00Z&to=2026-03-01T00:00:00Z".into(), json!("to")),
        ("meter=amount&from=2020-03-01T00:00:00Z&to=2026-03-01T00:00:00Z&window=hour".into(), json!("window")),
        (format!("meter=amount&{range}&window=minute"), Value::Null),
        (range.to_owned(), Value::Null),
    ] {
        let (status, problem) = get(&service, &key, &format!("/v1/usage?{query}")).await?;
        assert_eq!((status, &problem["field"]), (StatusCode::UNPROCESSABLE_ENTITY, &field), "{query}: {problem}");
    }
    Ok(())
}

#[tokio::test]
async fn a_store_made_anew_between_progress_and_sums_is_503_and_no_claim() -> Result<()> {
    let another = effect(|()| async { Ok(StoreRow { store: "another".into(), release: "26.9.2.1".into() }) });
    let (service, key) = service(Effects { read_store: another, ..fakes() }).await?;
    let (status, answer) = get(&service, &key, &format!("/v1/usage?{MONTH}")).await?;
    assert_eq!((status, &answer["complete"]), (StatusCode::SERVICE_UNAVAILABLE, &Value::Null), "{answer}");
    Ok(())
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_503_and_no_number() -> Result<()> {
    let effects = Effects { sum_meter: effect(|_| async { bail!("connection refused at a secret place") }), ..fakes() };
    let (service, key) = service(effects).await?;
    let (status, problem) = get(&service, &key, &format!("/v1/usage?{MONTH}")).await?;
    assert_eq!(status, 503);
    assert!(!problem.to_string().contains("secret"));
    Ok(())
}

#[tokio::test]
async fn conflicts_name_the_payload_that_counts() -> Result<()> {
    let row = |id: &str, commit_id, hash| ConflictRow {
        source: "/s".into(),
        id: id.into(),
        hash: [hash; 32],
        commit_id,
        origin: "fra".into(),
        event_type: "t".into(),
    };
    let rows = vec![row("a", 1 << 64, 1), row("a", 2 << 64, 2), row("b", 3 << 64, 3), row("b", 4 << 64, 4), row("b", 5 << 64, 5)];
    let effects = Effects {
        list_conflicts: effect(move |_| {
            let rows = rows.clone();
            async move { Ok(rows) }
        }),
        ..fakes()
    };
    let (service, key) = service(effects).await?;
    let (status, answer) = get(&service, &key, "/v1/conflicts").await?;
    assert_eq!((status, &answer["more"]), (StatusCode::OK, &json!(false)));
    let ids: Vec<(&Value, &Value, usize)> = answer["conflicts"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|found| (&found["id"], &found["counted"]["committed"], found["ignored"].as_array().map_or(0, Vec::len)))
        .collect();
    assert_eq!(ids, [(&json!("a"), &json!("1970-01-01T00:00:00.000001Z"), 1), (&json!("b"), &json!("1970-01-01T00:00:00.000003Z"), 2)]);
    Ok(())
}

#[test]
fn the_checked_in_document_is_current() -> Result<()> {
    api::docs::assert_current(&openapi(), &Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi.json"))
}
