//! RFC 9457 problem documents.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::ToSchema;

/// What kind of problem: the last part of `type`, and the status that goes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// 400: the request cannot be read at all.
    Malformed,
    /// 401: no key, or none that is known.
    Unauthorized,
    /// 404: there is nothing here.
    NotFound,
    /// 405: the path is right, the method is not.
    MethodNotAllowed,
    /// 408: the request's body did not come in time.
    TooSlow,
    /// 409: the identity is known with another payload.
    Conflict,
    /// 410: what was asked for was kept no longer.
    Gone,
    /// 413: the request or a part of it is too large.
    TooLarge,
    /// 415: a media type that is not taken.
    UnsupportedMediaType,
    /// 422: a field is wrong.
    Invalid,
    /// 429: too much at once; nothing of the request was carried out.
    Overloaded,
    /// 500: a fault of ours.
    Internal,
    /// 503: it may or may not have been carried out; repeat it with the same ids.
    Unavailable,
}

impl Kind {
    fn parts(self) -> (u16, &'static str, &'static str) {
        match self {
            Self::Malformed => (400, "malformed", "The request cannot be read"),
            Self::Unauthorized => (401, "unauthorized", "A valid bearer key is needed"),
            Self::NotFound => (404, "not-found", "There is nothing here"),
            Self::MethodNotAllowed => (405, "method-not-allowed", "This method is not taken here"),
            Self::TooSlow => (408, "too-slow", "The request did not come in time"),
            Self::Conflict => (409, "conflict", "The identity is known with another payload"),
            Self::Gone => (410, "gone", "This was kept no longer"),
            Self::TooLarge => (413, "too-large", "The request is too large"),
            Self::UnsupportedMediaType => (415, "unsupported-media-type", "This media type is not taken"),
            Self::Invalid => (422, "invalid", "A field is wrong"),
            Self::Overloaded => (429, "overloaded", "Too much at once"),
            Self::Internal => (500, "internal", "A fault of the service"),
            Self::Unavailable => (503, "unavailable", "The outcome is unknown"),
        }
    }

    /// The HTTP status.
    pub fn status(self) -> StatusCode {
        StatusCode::from_u16(self.parts().0).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// One word for logs and metrics.
    pub fn name(self) -> &'static str {
        self.parts().1
    }
}

/// The members of a problem document (RFC 9457, section 3.1, and our extensions).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Problem)]
pub struct ProblemBody {
    /// `urn:meridian:problem:` and the kind of problem.
    #[serde(rename = "type")]
    pub kind: String,
    /// The kind of problem in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What is wrong here, and what would be right.
    pub detail: String,
    /// The field that is wrong, such as `[3].data.amount`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub field: Option<String>,
    /// Ids of the events that are known with another payload.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub conflicts: Vec<String>,
}

/// An answer that is not the one hoped for. Becomes `application/problem+json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What kind.
    pub kind: Kind,
    /// What is wrong here, and what would be right.
    pub detail: String,
    /// The field that is wrong.
    pub field: Option<String>,
    /// Ids of the events that are known with another payload.
    pub conflicts: Vec<String>,
    /// When to try again: always given with 429 and 503.
    pub retry_after: Option<Duration>,
}

impl Problem {
    /// A problem of this kind. 429 and 503 get `Retry-After: 1`.
    pub fn new(kind: Kind, detail: impl Into<String>) -> Self {
        let retry_after = matches!(kind, Kind::Overloaded | Kind::Unavailable).then_some(Duration::from_secs(1));
        Self { kind, detail: detail.into(), field: None, conflicts: Vec::new(), retry_after }
    }

    /// A problem of one field.
    pub fn at(kind: Kind, field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..Self::new(kind, detail) }
    }

    /// The document.
    pub fn body(&self) -> ProblemBody {
        let (status, kind, title) = self.kind.parts();
        ProblemBody {
            kind: format!("urn:meridian:problem:{kind}"),
            title: title.into(),
            status,
            detail: self.detail.clone(),
            field: self.field.clone(),
            conflicts: self.conflicts.clone(),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = serde_json::to_string(&self.body()).unwrap_or_default();
        let mut response = (self.kind.status(), [(header::CONTENT_TYPE, "application/problem+json")], body).into_response();
        let headers = response.headers_mut();
        if let Some(retry_after) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(retry_after.as_secs().max(1)));
        }
        if self.kind == Kind::Unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"meridian\""));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_names_the_field_and_when_to_try_again() {
        let response = Problem::at(Kind::Unavailable, "[0].id", "no answer").into_response();
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/problem+json");
        let body = Problem::at(Kind::Invalid, "time", "too early").body();
        let text = r#"{"type":"urn:meridian:problem:invalid","title":"A field is wrong","status":422,"detail":"too early","field":"time"}"#;
        assert_eq!(serde_json::to_string(&body).unwrap(), text);
    }
}
