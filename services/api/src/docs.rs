//! `/openapi.json`, and `/docs`: one page without anything from elsewhere.

use anyhow::{Context, Result, ensure};
use axum::{
    Router,
    http::header,
    response::{Html, IntoResponse},
    routing::get,
};
use std::path::Path;
use utoipa::openapi::OpenApi;

const PAGE: &str = include_str!("docs.html");
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'";

/// The document as it is served and checked in.
///
/// # Errors
/// When it cannot be written as JSON.
pub fn document(api: &OpenApi) -> Result<String> {
    Ok(serde_json::to_string_pretty(api).context("OpenAPI document")? + "\n")
}

/// The routes `/openapi.json` and `/docs`, to be merged into a service's own.
///
/// # Errors
/// When the document cannot be written as JSON.
pub fn routes(api: &OpenApi) -> Result<Router> {
    let json: bytes::Bytes = document(api)?.into();
    let page = || async { ([(header::CONTENT_SECURITY_POLICY, POLICY)], Html(PAGE)) };
    let openapi = move || async move { ([(header::CONTENT_TYPE, "application/json")], json).into_response() };
    Ok(Router::new().route("/openapi.json", get(openapi)).route("/docs", get(page)))
}

/// For a service's test: the checked-in document is the one that is served. With `MERIDIAN_BLESS=1` it is written anew.
///
/// # Errors
/// When the two differ.
pub fn assert_current(api: &OpenApi, file: &Path) -> Result<()> {
    let served = document(api)?;
    if kit::config::variable("MERIDIAN_BLESS").is_some() {
        std::fs::write(file, &served)?;
    }
    let kept = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    ensure!(kept == served, "{} is not current: run the test again with MERIDIAN_BLESS=1", file.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_loads_nothing_from_elsewhere() {
        assert!(!PAGE.contains("http://") && !PAGE.contains("https://") && !PAGE.contains("src="));
    }
}
