//! Who asks.

use crate::{Keys, Kind, Problem};
use axum::{
    extract::{FromRef, FromRequestParts},
    http::{header, request::Parts},
};
use std::sync::Arc;

/// The tenant of a request: from its bearer key (RFC 6750, section 2.1), never from anything else in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant(pub Arc<str>);

impl<S: Send + Sync> FromRequestParts<S> for Tenant
where
    Arc<Keys>: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let refuse = |detail: &str| Problem::at(Kind::Unauthorized, "Authorization", detail);
        let mut headers = parts.headers.get_all(header::AUTHORIZATION).iter();
        let (Some(header), None) = (headers.next(), headers.next()) else {
            return Err(refuse("the request needs one header \"Authorization: Bearer <key>\""));
        };
        let text = header.to_str().map_err(|_| refuse("the header is not text"))?;
        let key = match text.split_once(' ') {
            Some((scheme, key)) if scheme.eq_ignore_ascii_case("bearer") => key.trim(),
            _ => return Err(refuse("the scheme is Bearer")),
        };
        Arc::<Keys>::from_ref(state).tenant_of(key).map(Self).ok_or_else(|| refuse("the key is not known"))
    }
}
