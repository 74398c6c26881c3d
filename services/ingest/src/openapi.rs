//! The API as OpenAPI 3.1. `openapi.json` beside `Cargo.toml` is this document; a test holds them equal.

use crate::post::Posted;
use api::ProblemBody;
use serde::{Deserialize, Serialize};
use utoipa::{
    OpenApi, ToSchema,
    openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
};

/// One event: CloudEvents 1.0, JSON format. Further members are extension attributes: names of 1 to 20 characters a-z and
/// 0-9, values strings, booleans or 32-bit integers. Every attribute has at most 256 bytes.
#[derive(Serialize, Deserialize, ToSchema)]
#[allow(dead_code)]
pub struct CloudEvent {
    /// `1.0`
    specversion: String,
    /// With `source` (and the key's tenant) the event's identity: repeated with the same payload, it counts once.
    id: String,
    /// Where it comes from: a URI reference.
    source: String,
    /// What happened. Meters count by it.
    r#type: String,
    /// What it is about. Events of one subject keep their order.
    subject: Option<String>,
    /// When it happened: RFC 3339, from 2000-01-01 to a day from now. Absent reads as the commit time.
    time: Option<String>,
    /// Media type of the payload. Absent reads as application/json.
    datacontenttype: Option<String>,
    /// URI of the payload's schema.
    dataschema: Option<String>,
    /// The payload: any JSON, or a string when `datacontenttype` is not JSON; at most 256 KiB. Properties that are summed by
    /// a meter are strings with a plain decimal (20 digits before, 18 after the point) or numbers of at most 15 digits
    /// without exponent.
    #[schema(value_type = Option<Object>)]
    data: Option<serde_json::Value>,
    /// The payload as base64, instead of `data`.
    data_base64: Option<String>,
}

/// What became of one event.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct AcceptedBody {
    /// The event's `id`.
    pub id: String,
    /// `committed`: it was not known before. `repeated`: it was, with the same payload, and counts once.
    #[schema(example = "committed")]
    pub outcome: String,
    /// Orders the events of a subject: 32 hexadecimal digits.
    pub commit_id: String,
}

/// Every event of the request is durable.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = Posted)]
pub struct PostedBody {
    /// In the order of the request.
    pub events: Vec<AcceptedBody>,
}

impl PostedBody {
    pub(crate) fn of(posted: &Posted) -> Self {
        let body = |event: &crate::Accepted| AcceptedBody {
            id: event.id.clone(),
            outcome: event.outcome.name().into(),
            commit_id: event.commit_id.to_string(),
        };
        Self { events: posted.events.iter().map(body).collect() }
    }
}

/// Post events
///
/// Takes one event (`application/cloudevents+json`) or a batch of at most 1000 (`application/cloudevents-batch+json`), at most
/// 1 MiB, nested at most 64 deep. A request is taken whole or not at all: a 4xx wrote nothing. After 503, or no answer, repeat
/// it with the same ids: each event counts once.
#[utoipa::path(
    post,
    path = "/v1/events",
    params(
        ("Meridian-Ack" = Option<String>, Header, description = "How far the write must have come: `local` (default), a quorum of this region; `global`, a quorum over the regions"),
        ("traceparent" = Option<String>, Header, description = "W3C trace context; kept with events that have none of their own"),
    ),
    request_body(content((CloudEvent = "application/cloudevents+json"), (Vec<CloudEvent> = "application/cloudevents-batch+json"))),
    responses(
        (status = 202, description = "Every event is durable at the level asked for.", body = PostedBody, headers(
            ("Meridian-Commit" = String, description = "The greatest commit id of the answer"),
            ("traceparent" = String, description = "As given"),
        )),
        (status = 400, description = "Not JSON, too deep, not UTF-8, or a wrong header.", body = ProblemBody, content_type = "application/problem+json"),
        (status = 401, description = "No key, or none that is known.", body = ProblemBody, content_type = "application/problem+json"),
        (status = 408, description = "The body did not come in time.", body = ProblemBody, content_type = "application/problem+json"),
        (status = 409, description = "An id is known with another payload; `conflicts` lists all such ids.", body = ProblemBody, content_type = "application/problem+json"),
        (status = 413, description = "The body, the batch or a payload is too large.", body = ProblemBody, content_type = "application/problem+json"),
        (status = 415, description = "Another media type, character set or content encoding.", body = ProblemBody, content_type = "application/problem+json"),
        (status = 422, description = "A field is wrong; `field` names it.", body = ProblemBody, content_type = "application/problem+json"),
        (status = 429, description = "Too much is under way; nothing was written.", body = ProblemBody, content_type = "application/problem+json",
            headers(("Retry-After" = u32, description = "Seconds"))),
        (status = 503, description = "Not known whether the events were taken: repeat with the same ids.", body = ProblemBody, content_type = "application/problem+json",
            headers(("Retry-After" = u32, description = "Seconds"))),
    ),
    security(("key" = []))
)]
#[allow(dead_code)]
fn post_events() {}

#[derive(OpenApi)]
#[openapi(
    info(title = "Meridian ingest", description = "Takes events. 202 means durable; each event counts once, however often it is posted."),
    paths(post_events),
    components(schemas(CloudEvent, PostedBody, AcceptedBody, ProblemBody))
)]
struct Api;

/// The document.
pub fn document() -> utoipa::openapi::OpenApi {
    let mut document = Api::openapi();
    let scheme = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some("A tenant's key")).build());
    document.components.get_or_insert_default().add_security_scheme("key", scheme);
    document
}
