//! `GET /v1/feed`: a tenant's page, at once or as soon as there is something.

use crate::{
    Feed,
    cloudevent::CloudEvent,
    page::{Page, PageError},
};
use anyhow::Result;
use api::{Keys, Kind, Problem, ProblemBody, Tenant, docs};
use axum::{
    Router,
    extract::{FromRef, Query, State, rejection::QueryRejection},
    http::header,
    response::{IntoResponse, Response},
    routing::get,
};
use meridian_proto::Cursor;
use serde::{Deserialize, Serialize};
use std::{pin::pin, sync::Arc, time::Duration};
use tokio::time::{Instant, timeout, timeout_at};
use utoipa::{IntoParams, OpenApi, ToSchema};

/// Bytes of a cursor's text at most: some 400 partitions.
const CURSOR_BYTES_MAX: usize = 16 * 1024;

/// What the routes need.
#[derive(Clone)]
pub struct Shared {
    /// The feed.
    pub feed: Arc<Feed>,
    /// The tenants' keys.
    pub keys: Arc<Keys>,
}

impl FromRef<Shared> for Arc<Keys> {
    fn from_ref(shared: &Shared) -> Self {
        Arc::clone(&shared.keys)
    }
}

/// Where a page begins, and how much of it is wanted.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct FeedQuery {
    /// The `cursor` of the page before, from any region. Without one: see `start`.
    pub cursor: Option<String>,
    /// Events at most, 1 to 1000; 100 when not given.
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
    /// How long to wait for an event when there is none, in milliseconds, at most 30000; 0 when not given.
    #[param(maximum = 30000)]
    pub wait_ms: Option<u32>,
    /// Without a cursor: `oldest` (when not given) begins with the oldest event kept, `latest` after the newest one.
    pub start: Option<String>,
}

/// A page. Pulling again with the same cursor and limit gives it again, in every region.
#[derive(Serialize, ToSchema)]
pub struct FeedPage {
    /// CloudEvents 1.0 in their JSON format, with `meridiancommitid`, `meridianhash`, `meridianorigin`, `meridianaccepted` and,
    /// under `hops`, when each hop was passed. An event may come again: its identity is `source` and `id`.
    #[schema(value_type = Vec<Object>)]
    events: Vec<CloudEvent>,
    /// Where the next page begins. Keep it once the page is handled; it moves also when there are no events.
    cursor: String,
    /// Whether the next page can be pulled at once.
    more: bool,
}

/// 410: history was trimmed past the cursor.
#[derive(Serialize, ToSchema)]
pub struct Trimmed {
    #[serde(flatten)]
    problem: ProblemBody,
    /// The oldest position kept in the partition concerned.
    oldest: Position,
    /// A cursor that goes on there. What lay between is missed for good.
    cursor: String,
}

/// A place in the log.
#[derive(Serialize, ToSchema)]
pub struct Position {
    /// `events.<region>.g<generation>`.
    topic: String,
    /// Number of the partition.
    partition: u16,
    /// Offset in the region that wrote the topic.
    offset: u64,
}

#[derive(OpenApi)]
#[openapi(
    paths(pull),
    components(schemas(FeedPage, Trimmed, Position, ProblemBody)),
    info(title = "Meridian feed", description = "A tenant's events, page by page, in every region.", license(name = "Apache-2.0"))
)]
struct Api;

/// The OpenAPI document.
pub fn api() -> utoipa::openapi::OpenApi {
    use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
    let mut api = Api::openapi();
    let components = api.components.get_or_insert_default();
    components.add_security_scheme("bearer", SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)));
    api
}

/// The public routes, `/openapi.json` and `/docs` among them.
///
/// # Errors
/// When the OpenAPI document cannot be written.
pub fn routes(shared: Shared) -> Result<Router> {
    Ok(Router::new().route("/v1/feed", get(pull)).with_state(shared).merge(docs::routes(&api())?))
}

/// Pulls a page
#[utoipa::path(
    get,
    path = "/v1/feed",
    params(FeedQuery),
    security(("bearer" = [])),
    responses(
        (status = 200, description = "A page, perhaps without events", body = FeedPage),
        (status = 400, description = "The cursor is not one of ours, or a parameter is wrong", body = ProblemBody, content_type = "application/problem+json"),
        (status = 401, description = "No key, or one that is not known", body = ProblemBody, content_type = "application/problem+json"),
        (status = 410, description = "History was trimmed past the cursor", body = Trimmed, content_type = "application/problem+json"),
        (status = 429, description = "Too much at once: see Retry-After", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "The log does not answer: see Retry-After", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
async fn pull(State(shared): State<Shared>, Tenant(tenant): Tenant, query: Result<Query<FeedQuery>, QueryRejection>) -> Response {
    let answer = match query {
        Ok(Query(query)) => shared.feed.answer(&tenant, query).await,
        Err(error) => Err(Problem::new(Kind::Malformed, error.body_text()).into_response()),
    };
    let response = answer.unwrap_or_else(|refusal| refusal);
    metrics::counter!("meridian_feed_requests_total", "status" => response.status().as_u16().to_string()).increment(1);
    response
}

fn within(field: &str, given: Option<u32>, default: u32, min: u32, max: u32) -> Result<u32, Problem> {
    let value = given.unwrap_or(default);
    let wrong = || Problem::at(Kind::Malformed, field, format!("{field} is {value}, and may be {min} to {max}"));
    (min..=max).contains(&value).then_some(value).ok_or_else(wrong)
}

impl Feed {
    async fn answer(&self, tenant: &str, query: FeedQuery) -> Result<Response, Response> {
        let limits = &self.limits;
        let limit =
            within("limit", query.limit, limits.page_events_default, 1, limits.page_events_max).map_err(IntoResponse::into_response)?;
        let wait_ms = within("wait_ms", query.wait_ms, 0, 0, limits.wait_ms_max).map_err(IntoResponse::into_response)?;
        let (cursor, wait_ms) = match (query.cursor.as_deref().unwrap_or_default(), query.start.as_deref()) {
            ("", None | Some("oldest")) => (Cursor::default(), wait_ms),
            ("", Some("latest")) => {
                let cursor = self.latest(tenant).map_err(|error| self.refusal(tenant, &Cursor::default(), error))?;
                let page = Page { events: Vec::new(), cursor, more: false };
                return Ok(self.written(tenant, page));
            }
            ("", Some(_)) => return Err(Problem::at(Kind::Malformed, "start", "start is oldest or latest").into_response()),
            (text, _) => (self.read_cursor(tenant, text).map_err(IntoResponse::into_response)?, wait_ms),
        };
        let page = self.page_or_wait(tenant, &cursor, limit, Duration::from_millis(wait_ms.into())).await?;
        Ok(self.written(tenant, page))
    }

    fn read_cursor(&self, tenant: &str, text: &str) -> Result<Cursor, Problem> {
        if text.len() > CURSOR_BYTES_MAX {
            return Err(Problem::at(Kind::Malformed, "cursor", "the cursor is longer than any that this service gives"));
        }
        Cursor::decode(text, tenant, &self.cursor_key).map_err(|error| Problem::at(Kind::Malformed, "cursor", error.to_string()))
    }

    /// The page at the cursor; if it has no event, the page there as soon as it has one, or as it is when the time is over.
    async fn page_or_wait(&self, tenant: &str, cursor: &Cursor, limit: u32, wait: Duration) -> Result<Page, Response> {
        let refused = |detail: &str| Problem::new(Kind::Overloaded, detail).into_response();
        let deadline = Instant::now() + wait;
        if wait.is_zero() {
            return self.page_in_turn(tenant, cursor, limit).await;
        }
        let place = self.waiters.enter(tenant).ok_or_else(|| refused("too many requests wait for events"))?;
        loop {
            // Listens before it looks, so that nothing comes unnoticed between the two.
            let mut told = pin!(place.notify.notified());
            told.as_mut().enable();
            let page = self.page_in_turn(tenant, cursor, limit).await?;
            if !page.events.is_empty() || page.more {
                return Ok(page);
            }
            tokio::select! {
                () = self.shutdown.cancelled() => return Ok(page),
                told = timeout_at(deadline, told) => if told.is_err() { return Ok(page) },
            }
        }
    }

    async fn page_in_turn(&self, tenant: &str, cursor: &Cursor, limit: u32) -> Result<Page, Response> {
        let refused = || Problem::new(Kind::Overloaded, "too many pages are read at a time").into_response();
        let _queued = self.queue.try_acquire().map_err(|_| refused())?;
        let turn = timeout(self.limits.turn_patience, self.turns.acquire()).await;
        let Ok(Ok(_turn)) = turn else { return Err(refused()) };
        match timeout(self.limits.page_timeout, self.page(tenant, cursor, limit)).await {
            Ok(page) => page.map_err(|error| self.refusal(tenant, cursor, error)),
            Err(_) => Err(Problem::new(Kind::Unavailable, "the log did not answer in time").into_response()),
        }
    }

    fn refusal(&self, tenant: &str, cursor: &Cursor, error: PageError) -> Response {
        let (partition, oldest) = match error {
            PageError::Trimmed { partition, oldest } => (partition, oldest),
            PageError::Unavailable(error) => {
                if let Some(withheld) = self.told.due() {
                    tracing::warn!(error = format!("{error:#}"), withheld, "a page could not be read");
                }
                return Problem::new(Kind::Unavailable, "the log cannot be read at the moment; the cursor stays valid").into_response();
            }
        };
        let problem = Problem::at(Kind::Gone, "cursor", format!("{partition} is kept from offset {oldest} on only")).body();
        let mut next = cursor.clone();
        next.next.insert(partition.clone(), oldest);
        let position = Position { topic: partition.topic.to_string(), partition: partition.partition, offset: oldest };
        let body = Trimmed { problem, oldest: position, cursor: next.encode(tenant, &self.cursor_key) };
        let text = serde_json::to_string(&body).unwrap_or_default();
        (Kind::Gone.status(), [(header::CONTENT_TYPE, "application/problem+json")], text).into_response()
    }

    fn written(&self, tenant: &str, page: Page) -> Response {
        let events: Vec<_> = page.events.iter().filter_map(|(_, found)| CloudEvent::read(found, tenant)).collect();
        metrics::counter!("meridian_feed_events_total").increment(events.len() as u64);
        let body = FeedPage { events, cursor: page.cursor.encode(tenant, &self.cursor_key), more: page.more };
        match serde_json::to_vec(&body) {
            Ok(json) => ([(header::CONTENT_TYPE, "application/json")], json).into_response(),
            Err(error) => Problem::new(Kind::Internal, error.to_string()).into_response(),
        }
    }
}
