//! The routes.

use crate::{
    Answer, Conflicts, Effects, Meters,
    answer::{Question, answer},
    conflicts::conflicts,
};
use anyhow::Result;
use api::{Keys, Kind, Problem, ProblemBody, Tenant};
use axum::{
    Json, Router,
    extract::{FromRef, Query, State, rejection::QueryRejection},
    routing::get,
};
use std::sync::Arc;
use utoipa::{
    Modify, OpenApi,
    openapi::{
        OpenApi as Document,
        security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
    },
};

/// What the routes answer from.
#[derive(Clone)]
pub struct Usage {
    /// The outside world.
    pub effects: Effects,
    /// The meters.
    pub meters: Arc<Meters>,
    /// The tenants' keys.
    pub keys: Arc<Keys>,
    /// Region that answers.
    pub region: Arc<str>,
    /// Regions whose events are counted, and whose completeness is stated.
    pub regions: Arc<[String]>,
}

impl FromRef<Usage> for Arc<Keys> {
    fn from_ref(usage: &Usage) -> Self {
        Arc::clone(&usage.keys)
    }
}

/// `/v1/usage`, `/v1/conflicts`, `/openapi.json`, `/docs`.
///
/// # Errors
/// When the API's document cannot be written.
pub fn routes(usage: Usage) -> Result<Router> {
    let ours = Router::new().route("/v1/usage", get(get_usage)).route("/v1/conflicts", get(get_conflicts)).with_state(usage);
    Ok(ours.merge(api::docs::routes(&openapi())?))
}

/// The API's document, as it is served and checked in.
pub fn openapi() -> Document {
    ApiDocument::openapi()
}

#[derive(OpenApi)]
#[openapi(
    info(title = "Meridian usage", description = "Metered usage, with its completeness.", license(name = "Apache-2.0", identifier = "Apache-2.0")),
    paths(get_usage, get_conflicts),
    components(schemas(ProblemBody)),
    modifiers(&BearerKey),
    security(("key" = []))
)]
struct ApiDocument;

struct BearerKey;

impl Modify for BearerKey {
    fn modify(&self, document: &mut Document) {
        let key = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
        document.components.get_or_insert_default().add_security_scheme("key", key);
    }
}

/// A tenant's usage of a meter, by window, each identity counted once.
#[utoipa::path(
    get,
    path = "/v1/usage",
    params(Question),
    responses(
        (status = 200, description = "Exact sums and how complete they are.", body = Answer),
        (status = 401, description = "No key that is known.", body = ProblemBody, content_type = "application/problem+json"),
        (status = 422, description = "A parameter is wrong.", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "The store did not answer; repeat the question.", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
async fn get_usage(
    State(usage): State<Usage>,
    Tenant(tenant): Tenant,
    question: Result<Query<Question>, QueryRejection>,
) -> Result<Json<Answer>, Problem> {
    let Query(question) = question.map_err(|refused| Problem::new(Kind::Invalid, refused.body_text()))?;
    answer(&usage.effects, &usage.meters, &usage.regions, &usage.region, &tenant, question).await.map(Json)
}

/// A tenant's identities that were posted with several payloads.
#[utoipa::path(
    get,
    path = "/v1/conflicts",
    responses(
        (status = 200, description = "In order of source and id.", body = Conflicts),
        (status = 401, description = "No key that is known.", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "The store did not answer; repeat the question.", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
async fn get_conflicts(State(usage): State<Usage>, Tenant(tenant): Tenant) -> Result<Json<Conflicts>, Problem> {
    conflicts(&usage.effects, &tenant).await.map(Json)
}
