//! What is refused, how, and that it wrote nothing.
#![allow(clippy::unwrap_used)]

mod common;

use axum::{
    body::Body,
    http::{Request, header},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use common::{BATCH, Faults, Region, STRUCTURED, batch, event};
use futures::StreamExt;
use ingest::Limits;
use std::time::Duration;

/// An event with some members replaced or added; `None` removes.
fn with(members: &[(&str, Option<&str>)]) -> String {
    let mut event =
        vec![("specversion", "\"1.0\""), ("id", "\"a\""), ("source", "\"/s\""), ("type", "\"order\""), ("data", r#"{"amount":"1"}"#)];
    for (name, value) in members {
        event.retain(|(known, _)| known != name);
        event.extend(value.map(|value| (*name, value)));
    }
    format!("{{{}}}", event.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect::<Vec<_>>().join(","))
}

/// Posts a body; nothing is written unless it is taken.
async fn check(content_type: &str, body: impl Into<Vec<u8>>, expected: u16, field: &str) {
    let region = Region::start(Faults::default(), Limits::default()).await;
    let body = body.into();
    let shown = String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned();
    let (status, answer) = region.post(content_type, body).await;
    assert_eq!((status, answer["field"].as_str().unwrap_or_default()), (expected, field), "{shown}: {answer}");
    assert_eq!(region.counted(), usize::from(expected == 202), "{shown}");
    assert_eq!(region.identities.lock().unwrap().is_empty(), expected != 202, "{shown}");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_cannot_be_read_is_400() {
    for body in [
        "",
        "x",
        "{",
        "[]",
        "7",
        "\"a\"",
        "null",
        "{}x",
        r#"{"id":1,"id":2}"#,
        r#"{"id":NaN}"#,
        r#"{"data":Infinity}"#,
        "{'id':1}",
        "\u{feff}{}",
    ] {
        check(STRUCTURED, body, 400, "").await;
    }
    check(STRUCTURED, *b"{\"id\":\"\xff\"}", 400, "").await;
    check(STRUCTURED, "[".repeat(1_000_000), 400, "").await;
    check(STRUCTURED, with(&[("data", Some(&("[".repeat(64) + &"]".repeat(64))))]), 400, "").await;
    for body in ["{}", "7", "[1", r#"[{"id":NaN}]"#] {
        check(BATCH, body, 400, "").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_wrong_field_is_422_and_named() {
    let long = format!("\"{}\"", "x".repeat(257));
    let wrong: &[(&str, Option<&str>)] = &[
        ("specversion", None),
        ("specversion", Some("\"0.3\"")),
        ("specversion", Some("1.0")),
        ("id", None),
        ("id", Some("\"\"")),
        ("id", Some("7")),
        ("id", Some("null")),
        ("id", Some(&long)),
        ("id", Some(r#""a\u0000""#)),
        ("id", Some(r#""\ud800""#)),
        ("source", None),
        ("source", Some("[]")),
        ("type", Some("{}")),
        ("subject", Some("true")),
        ("subject", Some("\"\"")),
        ("time", Some("\"yesterday\"")),
        ("time", Some("1790000000")),
        ("time", Some("\"0001-01-01T00:00:00Z\"")),
        ("time", Some("\"1899-12-31T23:59:59Z\"")),
        ("time", Some("\"1969-07-20T20:17:40Z\"")),
        ("time", Some("\"2299-01-01T00:00:00Z\"")),
        ("time", Some("\"2016-12-31T23:59:60Z\"")),
        ("datacontenttype", Some("7")),
        ("dataschema", Some(&long)),
        ("data", Some(r#"{"a":"\ud800"}"#)),
        ("data", Some(r#"{"a":1,"a":2}"#)),
        ("data_base64", Some("\"AA==\"")),
        ("meridianorigin", Some("\"x\"")),
        ("Upper", Some("\"x\"")),
        ("with_underscore", Some("\"x\"")),
        ("ext", Some("1.5")),
        ("ext", Some("2147483648")),
        ("ext", Some("[]")),
    ];
    for (name, value) in wrong {
        check(STRUCTURED, with(&[(name, *value)]), 422, name).await;
        check(BATCH, format!("[{}]", with(&[(name, *value)])), 422, &format!("[0].{name}")).await;
    }
    check(BATCH, "[7]", 422, "[0]").await;
    check(BATCH, format!("[{},{{\"id\":1,\"id\":2}}]", event("a", "1")), 422, "[1]").await;
}

#[tokio::test(start_paused = true)]
async fn what_is_summed_must_be_exact() {
    for amount in [
        "null",
        "true",
        "\"\"",
        "\"NaN\"",
        "\"1,5\"",
        "\"1e3\"",
        "1e3",
        "1234567890123456",
        "\"100000000000000000000\"",
        "0.1234567890123456789",
    ] {
        check(STRUCTURED, with(&[("data", Some(&format!("{{\"amount\":{amount}}}")))]), 422, "data.amount").await;
    }
    check(STRUCTURED, with(&[("data", None)]), 422, "data.amount").await;
    for amount in ["0", "-12.5", "\"99999999999999999999.999999999999999999\"", "0.1"] {
        check(STRUCTURED, with(&[("data", Some(&format!("{{\"amount\":{amount}}}")))]), 202, "").await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_right_is_taken() {
    let right: &[&[(&str, Option<&str>)]] = &[
        &[],
        &[("subject", Some("null")), ("time", Some("null")), ("ext", Some("null"))],
        &[("time", Some("\"2026-01-31T12:00:00+14:00\""))],
        &[("ext", Some("\"x\"")), ("flag", Some("true")), ("number", Some("-2147483648"))],
        &[("data", None), ("data_base64", Some("\"eyAiYW1vdW50IiA6IDEgfQ==\""))],
        &[("type", Some("\"note\"")), ("data", Some("null"))],
        &[("type", Some("\"note\"")), ("datacontenttype", Some("\"text/plain\"")), ("data", Some("\"text\""))],
        &[("type", Some("\"note\"")), ("datacontenttype", Some("\"image/png\"")), ("data", None), ("data_base64", Some("\"AP8=\""))],
        &[("type", Some("\"note\"")), ("traceparent", Some("\"anything\"")), ("tracestate", Some("\"x=1\""))],
    ];
    for members in right {
        check(STRUCTURED, with(members), 202, "").await;
    }
    let nested = "[".repeat(63) + &"]".repeat(63);
    check(STRUCTURED, with(&[("type", Some("\"note\"")), ("data", Some(&nested))]), 202, "").await;
    check("application/cloudevents+json; charset=UTF-8", with(&[]), 202, "").await;
}

#[tokio::test(start_paused = true)]
async fn a_payload_is_the_same_in_either_form_and_never_of_another_media_type() {
    let plain = with(&[]);
    let base64 =
        with(&[("data", None), ("data_base64", Some("\"eyAiYW1vdW50IiA6ICIxIiB9\"")), ("datacontenttype", Some("\"application/json\""))]);
    let region = Region::start(Faults::default(), Limits::default()).await;
    assert_eq!(region.post(STRUCTURED, plain).await.0, 202);
    let (status, answer) = region.post(STRUCTURED, base64).await;
    assert_eq!((status, answer["events"][0]["outcome"].as_str()), (202, Some("repeated")));
    check(STRUCTURED, with(&[("data", None), ("data_base64", Some("\"AP8=\""))]), 422, "data_base64").await;
    check(STRUCTURED, with(&[("data", None), ("data_base64", Some("\"%\""))]), 422, "data_base64").await;
    for (depth, expected) in [(64, 202), (65, 422)] {
        let base64 = format!("{:?}", BASE64_STANDARD.encode("[".repeat(depth) + &"]".repeat(depth)));
        let members = [("type", Some("\"note\"")), ("data", None), ("data_base64", Some(base64.as_str()))];
        check(STRUCTURED, with(&members), expected, if expected == 422 { "data_base64" } else { "" }).await;
    }
    check(STRUCTURED, with(&[("datacontenttype", Some("\"text/plain\"")), ("data", Some("7"))]), 422, "data").await;
}

#[tokio::test(start_paused = true)]
async fn what_is_too_large_is_413() {
    let text = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
    check(STRUCTURED, with(&[("type", Some("\"n\"")), ("data", Some(&text(256 * 1024)))]), 202, "").await;
    check(STRUCTURED, with(&[("type", Some("\"n\"")), ("data", Some(&text(256 * 1024 + 1)))]), 413, "data").await;
    check(STRUCTURED, " ".repeat(1024 * 1024 + 1), 413, "").await;
    let many = |count: usize| batch(&(0..count).map(|n| event(&n.to_string(), "1")).collect::<Vec<_>>());
    check(BATCH, many(1001), 413, "").await;
    let region = Region::start(Faults::default(), Limits::default()).await;
    assert_eq!(region.post(BATCH, many(1000)).await.0, 202);
    // Without a length told before.
    let chunks = futures::stream::repeat_with(|| Ok::<_, std::io::Error>(vec![b' '; 100_000])).take(20);
    let request = Request::post("/v1/events")
        .header(header::AUTHORIZATION, format!("Bearer {}", region.key))
        .header(header::CONTENT_TYPE, STRUCTURED)
        .body(Body::from_stream(chunks))
        .unwrap();
    assert_eq!(common::read(region.send(request).await).await.0, 413);
}

#[tokio::test(start_paused = true)]
async fn another_media_type_is_415() {
    for kind in ["", "application/json", "text/plain", "application/cloudevents+json; charset=latin1", "application/cloudevents+xml"] {
        check(kind, with(&[]), 415, "Content-Type").await;
    }
    let region = Region::start(Faults::default(), Limits::default()).await;
    let request = Request::post("/v1/events")
        .header(header::AUTHORIZATION, format!("Bearer {}", region.key))
        .header(header::CONTENT_TYPE, STRUCTURED)
        .header(header::CONTENT_ENCODING, "gzip")
        .body(Body::empty())
        .unwrap();
    assert_eq!(region.send(request).await.status(), 415);
}

#[tokio::test]
async fn only_a_known_key_is_let_in_and_a_new_one_without_a_restart() {
    let region = Region::start(Faults::default(), Limits::default()).await;
    let post = |authorization: Option<String>| {
        let request = Request::post("/v1/events").header(header::CONTENT_TYPE, STRUCTURED);
        let request = authorization.into_iter().fold(request, |request, value| request.header(header::AUTHORIZATION, value));
        request.body(Body::from(with(&[("tenant", Some("\"globex\""))]))).unwrap()
    };
    let status = async |authorization: Option<String>| region.send(post(authorization)).await.status().as_u16();
    assert_eq!(status(None).await, 401);
    for value in ["", "Bearer", "Bearer x", "Basic abc", &format!("Bearer {}x", region.key), &region.key] {
        assert_eq!(status(Some(value.into())).await, 401, "{value}");
    }
    assert_eq!(region.send(post(None)).await.headers()[header::WWW_AUTHENTICATE], "Bearer realm=\"meridian\"");
    assert_eq!(status(Some(format!("bearer {}", region.key))).await, 202);
    assert_eq!(region.events()[0][0].tenant, "acme", "the tenant comes from the key only");
    let new = api::create_key(&region.keys_file, "globex").unwrap();
    for _ in 0..50 {
        if status(Some(format!("Bearer {new}"))).await == 202 {
            assert_eq!(region.counted(), 2, "identities of two tenants");
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("the new key was not taken in 5 s");
}

#[tokio::test(start_paused = true)]
async fn other_paths_and_methods_are_problems_too() {
    let region = Region::start(Faults::default(), Limits::default()).await;
    for (method, path, expected) in [("GET", "/v1/events", 405), ("POST", "/v1/other", 404), ("GET", "/", 404)] {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        assert_eq!(common::read(region.send(request).await).await.0, expected, "{method} {path}");
    }
}

#[tokio::test(start_paused = true)]
async fn trace_context_is_kept_but_no_part_of_the_payload() {
    let region = Region::start(Faults::default(), Limits::default()).await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let post = |header: Option<&str>, members: &[(&str, Option<&str>)]| {
        let request = Request::post("/v1/events")
            .header(header::AUTHORIZATION, format!("Bearer {}", region.key))
            .header(header::CONTENT_TYPE, STRUCTURED);
        header.into_iter().fold(request, |request, value| request.header("traceparent", value)).body(Body::from(with(members))).unwrap()
    };
    let answer = region.send(post(Some(trace), &[])).await;
    assert_eq!(answer.headers()["traceparent"], trace);
    assert_eq!(answer.headers()["meridian-commit"].len(), 32);
    for (header, members) in [
        (None, &[("traceparent", Some("\"00-1\"")), ("tracestate", Some("\"a=b\""))] as &[_]),
        (Some("nonsense"), &[]),
        (Some(trace), &[("tracestate", Some("\"c=d\""))]),
    ] {
        let (status, answer) = common::read(region.send(post(header, members)).await).await;
        assert_eq!((status, answer["events"][0]["outcome"].as_str()), (202, Some("repeated")));
    }
    let kept: Vec<String> = region.events().into_iter().map(|mut row| row.remove(0).trace_parent).collect();
    assert_eq!(kept, [trace, "00-1", "", trace]);
}

#[tokio::test]
async fn the_api_describes_itself() {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi.json");
    api::docs::assert_current(&ingest::document(), &file).unwrap();
    let region = Region::start(Faults::default(), Limits::default()).await;
    for (path, kind) in [("/openapi.json", "application/json"), ("/docs", "text/html; charset=utf-8")] {
        let answer = region.send(Request::get(path).body(Body::empty()).unwrap()).await;
        assert_eq!((answer.status().as_u16(), answer.headers()["content-type"].to_str().unwrap()), (200, kind));
    }
    let document = serde_json::to_value(ingest::document()).unwrap();
    assert_eq!(document["openapi"].as_str().map(|version| &version[..3]), Some("3.1"));
    for status in ["202", "400", "401", "409", "413", "415", "422", "429", "503"] {
        assert!(document["paths"]["/v1/events"]["post"]["responses"][status].is_object(), "{status}");
    }
}
