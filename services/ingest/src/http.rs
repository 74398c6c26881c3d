//! POST /v1/events: from HTTP to [`Post`] and back.

use crate::{
    Ingest, Limits,
    cloudevents::{parse_batch, parse_structured},
    openapi,
    post::{Charge, Post, Posted},
};
use adapters::scylla::Ack;
use anyhow::Result;
use api::{Keys, Kind, Problem, Tenant};
use axum::{
    Router,
    body::Body,
    extract::{FromRef, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::post,
};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use std::sync::{Arc, OnceLock};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout_at},
};
use tower_http::catch_panic::CatchPanicLayer;

/// `application/cloudevents+json`
pub(crate) const STRUCTURED: &str = "application/cloudevents+json";
/// `application/cloudevents-batch+json`
pub(crate) const BATCH: &str = "application/cloudevents-batch+json";

const HEADER_ACK: HeaderName = HeaderName::from_static("meridian-ack");
const HEADER_COMMIT: HeaderName = HeaderName::from_static("meridian-commit");
const HEADER_TRACE: HeaderName = HeaderName::from_static("traceparent");

/// What requests are answered with. Answers 503 until [`App::begin`].
#[derive(Clone)]
pub struct App {
    keys: Arc<Keys>,
    limits: Limits,
    memory: Arc<Semaphore>,
    ingest: Arc<OnceLock<Arc<Ingest>>>,
}

impl App {
    /// Knows who may ask, but cannot commit yet.
    pub fn new(keys: Arc<Keys>, limits: Limits) -> Self {
        Self { keys, limits, memory: Arc::new(Semaphore::new(limits.in_flight_bytes_max)), ingest: Arc::default() }
    }

    /// From now on events are committed.
    pub fn begin(&self, ingest: Arc<Ingest>) {
        let _ = self.ingest.set(ingest);
    }
}

impl FromRef<App> for Arc<Keys> {
    fn from_ref(app: &App) -> Self {
        Arc::clone(&app.keys)
    }
}

/// The public routes.
///
/// # Errors
/// When the OpenAPI document cannot be made.
pub fn routes(app: App) -> Result<Router> {
    let nothing = || async { Problem::new(Kind::NotFound, "POST /v1/events is here, described at /docs") };
    let wrong_method = || async { Problem::new(Kind::MethodNotAllowed, "events are posted") };
    let panicked = |_| Problem::new(Kind::Internal, "a fault of the service; whether the events were taken is not known").into_response();
    Ok(Router::new()
        .route("/v1/events", post(post_events))
        .method_not_allowed_fallback(wrong_method)
        .fallback(nothing)
        .layer(CatchPanicLayer::custom(panicked))
        .with_state(app)
        .merge(api::docs::routes(&openapi::document())?))
}

/// Adds to the count of events by outcome.
pub(crate) fn count_events(outcome: &'static str, events: usize) {
    metrics::counter!("meridian_ingest_events_total", "outcome" => outcome).increment(events as u64);
}

async fn post_events(State(app): State<App>, tenant: Result<Tenant, Problem>, request: Request) -> Response {
    let deadline = Instant::now() + app.limits.request_timeout;
    let read = async {
        let Tenant(tenant) = tenant?;
        read_post(&app, tenant, request, deadline).await
    };
    let post = match read.await {
        Ok(post) => post,
        Err(problem) => {
            count_events(problem.kind.name(), 1);
            return problem.into_response();
        }
    };
    let trace_parent = post.trace_parent.clone();
    let Some(ingest) = app.ingest.get() else {
        return Problem::new(Kind::Unavailable, "starting: nothing of this request was written").into_response();
    };
    // A task of its own: a client that goes away in the middle changes nothing for events that share a row with its own.
    match ingest.post_events(post).await {
        Ok(posted) => answer(&posted, &trace_parent),
        Err(problem) => problem.into_response(),
    }
}

async fn read_post(app: &App, tenant: Arc<str>, request: Request, deadline: Instant) -> Result<Post, Problem> {
    let (parts, body) = request.into_parts();
    let batch = is_batch(&parts.headers)?;
    let ack = ack_of(&parts.headers)?;
    let trace_parent = trace_parent_of(&parts.headers);
    let (body, charge) = read_body(app, &parts.headers, body, deadline).await?;
    let text = std::str::from_utf8(&body).map_err(|error| Problem::new(Kind::Malformed, format!("the body is not UTF-8: {error}")))?;
    let events = if batch { parse_batch(text, &app.limits) } else { parse_structured(text, &app.limits) }?;
    Ok(Post { tenant, events, batch, ack, trace_parent, deadline, charge: Arc::new(charge) })
}

fn is_batch(headers: &HeaderMap) -> Result<bool, Problem> {
    let refuse = |field: &str, detail: String| Problem::at(Kind::UnsupportedMediaType, field, detail);
    if let Some(encoding) = headers.get(header::CONTENT_ENCODING).filter(|encoding| *encoding != "identity") {
        return Err(refuse("Content-Encoding", format!("{encoding:?} is not taken: send the body as it is")));
    }
    let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut parts = given.split(';').map(|part| part.trim().to_ascii_lowercase());
    let media = parts.next().unwrap_or_default();
    let foreign_charset =
        parts.any(|parameter| parameter.strip_prefix("charset=").is_some_and(|charset| charset.trim_matches('"') != "utf-8"));
    match media.as_str() {
        _ if foreign_charset => Err(refuse("Content-Type", format!("{given:?}: the character set is utf-8"))),
        STRUCTURED => Ok(false),
        BATCH => Ok(true),
        _ => Err(refuse("Content-Type", format!("{given:?} is not taken: {STRUCTURED} or {BATCH} is"))),
    }
}

fn ack_of(headers: &HeaderMap) -> Result<Ack, Problem> {
    match headers.get(HEADER_ACK).map(HeaderValue::as_bytes) {
        None | Some(b"local") => Ok(Ack::Local),
        Some(b"global") => Ok(Ack::Global),
        Some(_) => Err(Problem::at(Kind::Malformed, "Meridian-Ack", "is local (default) or global")),
    }
}

/// W3C Trace Context, section 3.2.2: version 00. Anything else is as none.
fn trace_parent_of(headers: &HeaderMap) -> String {
    let shape = |text: &&str| {
        let parts: Vec<&str> = text.split('-').collect();
        let lens = parts.iter().map(|part| part.len()).collect::<Vec<_>>();
        lens == [2, 32, 16, 2] && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f' | b'-'))
    };
    headers.get(HEADER_TRACE).and_then(|value| value.to_str().ok()).filter(shape).unwrap_or_default().into()
}

/// Reads the body, not before there is memory for it.
async fn read_body(app: &App, headers: &HeaderMap, body: Body, deadline: Instant) -> Result<(Bytes, Charge), Problem> {
    let max = app.limits.request_bytes_max;
    let too_large = || Problem::new(Kind::TooLarge, format!("the body has more than {max} bytes"));
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()).and_then(|text| text.parse::<usize>().ok());
    if announced.is_some_and(|announced| announced > max) {
        return Err(too_large());
    }
    let charge = Charge::take(&app.memory, announced.unwrap_or(max));
    let charge = charge.ok_or_else(|| Problem::new(Kind::Overloaded, "too much is under way: nothing of this request was written"))?;
    let read = async {
        let (mut chunks, mut bytes) = (body.into_data_stream(), BytesMut::with_capacity(announced.unwrap_or_default()));
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|error| Problem::new(Kind::Malformed, format!("the body broke off: {error}")))?;
            if bytes.len() + chunk.len() > max {
                return Err(too_large());
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes.freeze())
    };
    let bytes = timeout_at(deadline, read).await.map_err(|_| Problem::new(Kind::TooSlow, "the body did not come in time"))??;
    Ok((bytes, charge))
}

fn answer(posted: &Posted, trace_parent: &str) -> Response {
    let body = openapi::PostedBody::of(posted);
    let mut response = (StatusCode::ACCEPTED, axum::Json(body)).into_response();
    let headers = response.headers_mut();
    let greatest = posted.events.iter().map(|event| event.commit_id).max();
    if let Some(value) = greatest.and_then(|id| HeaderValue::from_str(&id.to_string()).ok()) {
        headers.insert(HEADER_COMMIT, value);
    }
    if let Some(value) = HeaderValue::from_str(trace_parent).ok().filter(|value| !value.is_empty()) {
        headers.insert(HEADER_TRACE, value);
    }
    response
}
