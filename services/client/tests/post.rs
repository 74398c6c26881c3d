//! Outcomes of a post, against a server that answers as it is told.

#![allow(clippy::unwrap_used)]

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::post,
};
use client::{Ack, Client, ClientConfig, PostOutcome};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{net::TcpListener, time::Instant};

/// What the server does with the next request.
#[derive(Clone, Copy, Debug)]
enum Act {
    Accept,
    Status(u16),
    Hang,
}

#[derive(Clone, Default)]
struct Server {
    acts: Arc<Mutex<VecDeque<Act>>>,
    bodies: Arc<Mutex<Vec<(Bytes, Instant)>>>,
}

impl Server {
    async fn start(acts: &[Act]) -> (Self, String) {
        let server = Self { acts: Arc::new(Mutex::new(acts.iter().copied().collect())), ..Self::default() };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let routes = Router::new().route("/v1/events", post(answer)).with_state(server.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        (server, url)
    }

    fn bodies(&self) -> usize {
        self.bodies.lock().unwrap().len()
    }
}

async fn answer(State(server): State<Server>, headers: HeaderMap, body: Bytes) -> Response {
    assert_eq!(headers["authorization"], "Bearer key");
    assert_eq!(headers["meridian-ack"], "global");
    server.bodies.lock().unwrap().push((body, Instant::now()));
    let act = server.acts.lock().unwrap().pop_front().unwrap_or(Act::Accept);
    match act {
        Act::Accept => {
            let text = r#"{"events":[{"id":"1","outcome":"committed","commit_id":"0000000000000000000000000000000a"}]}"#;
            (StatusCode::ACCEPTED, text).into_response()
        }
        Act::Status(status) => {
            let text = format!(r#"{{"type":"urn:x","title":"No","status":{status},"detail":"told to","field":"data"}}"#);
            (StatusCode::from_u16(status).unwrap(), [("Retry-After", "1")], text).into_response()
        }
        Act::Hang => {
            tokio::time::sleep(Duration::from_secs(600)).await;
            StatusCode::OK.into_response()
        }
    }
}

async fn check(first: &[Act], second: &[Act]) -> (PostOutcome, usize, usize) {
    let (one, one_url) = Server::start(first).await;
    let (two, two_url) = Server::start(second).await;
    let config = ClientConfig {
        ingest_urls: vec![one_url, two_url],
        key: "key".into(),
        ack: Ack::Global,
        attempt_timeout: Duration::from_millis(300),
        attempts_max: 4,
        ..ClientConfig::default()
    };
    let outcome = Client::new(config).unwrap().post(b"{}", "application/cloudevents+json").await;
    (outcome, one.bodies(), two.bodies())
}

#[tokio::test]
async fn accepted_at_once() {
    let (outcome, first, second) = check(&[Act::Accept], &[]).await;
    let PostOutcome::Accepted { events, attempts: 1, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!((events[0].id.as_str(), events[0].commit_id.ends_with('a'), first, second), ("1", true, 1, 0));
}

#[tokio::test]
async fn a_refusal_is_not_repeated_and_names_the_field() {
    for status in [400, 401, 409, 413, 415, 422] {
        let (outcome, first, second) = check(&[Act::Status(status)], &[]).await;
        let PostOutcome::Refused { status: told, problem, attempts: 1 } = outcome else { panic!("{outcome:?}") };
        assert_eq!((told, problem.field.as_deref(), first, second), (status, Some("data"), 1, 0));
    }
}

#[tokio::test]
async fn overload_is_repeated_in_the_same_region_not_before_it_asks_for() {
    let (server, url) = Server::start(&[Act::Status(429), Act::Accept]).await;
    let config = ClientConfig { ingest_urls: vec![url], key: "key".into(), ack: Ack::Global, ..ClientConfig::default() };
    let outcome = Client::new(config).unwrap().post(b"same", "application/cloudevents+json").await;
    assert!(matches!(outcome, PostOutcome::Accepted { attempts: 2, .. }), "{outcome:?}");
    let bodies = server.bodies.lock().unwrap();
    assert_eq!((&bodies[0].0[..], &bodies[1].0[..]), (&b"same"[..], &b"same"[..]));
    assert!(bodies[1].1 - bodies[0].1 >= Duration::from_secs(1));
}

#[tokio::test]
async fn an_unknown_end_is_repeated_in_the_next_region() {
    let (outcome, first, second) = check(&[Act::Hang], &[Act::Accept]).await;
    assert!(matches!(outcome, PostOutcome::Accepted { attempts: 2, .. }), "{outcome:?}");
    assert_eq!((first, second), (1, 1));
}

#[tokio::test]
async fn what_may_be_written_stays_unknown_whatever_comes_after() {
    let (outcome, ..) = check(&[Act::Status(503)], &[Act::Status(409)]).await;
    assert!(matches!(outcome, PostOutcome::Unknown { status: 409, .. }), "{outcome:?}");
    let (outcome, ..) = check(&[Act::Hang; 4], &[Act::Hang; 4]).await;
    assert!(matches!(outcome, PostOutcome::Unknown { status: 0, attempts: 4, .. }), "{outcome:?}");
}

#[tokio::test]
async fn no_connection_means_that_nothing_was_written() {
    let config = ClientConfig {
        ingest_urls: vec!["http://127.0.0.1:1".into()],
        post_deadline: Duration::from_millis(400),
        ..ClientConfig::default()
    };
    let started = Instant::now();
    let outcome = Client::new(config).unwrap().post(b"{}", "application/cloudevents+json").await;
    assert!(matches!(outcome, PostOutcome::Refused { status: 0, .. }), "{outcome:?}");
    assert!(started.elapsed() < Duration::from_secs(1));
}
