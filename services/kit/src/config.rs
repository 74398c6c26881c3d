//! The one reader of configuration: commented defaults compiled in, overridden by the environment by name.

use anyhow::{Context, Result};
use figment::{
    Figment,
    providers::{Env, Format, Toml},
};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};

/// Reads the configuration of a service: `defaults` (its `config.toml`), then `MERIDIAN_<KEY>` for every key.
///
/// Keys are flat. A list is written with commas (`fra,iad`), in the file too: see [`list`].
///
/// # Errors
/// Names the key that is wrong and where it was set.
pub fn load<T: DeserializeOwned>(defaults: &str) -> Result<T> {
    Figment::from(Toml::string(defaults)).merge(Env::prefixed("MERIDIAN_")).extract().context("configuration")
}

/// Reads the defaults alone: for tests.
///
/// # Errors
/// Names the key that is wrong.
pub fn defaults<T: DeserializeOwned>(defaults: &str) -> Result<T> {
    Figment::from(Toml::string(defaults)).extract().context("configuration")
}

/// For `#[serde(deserialize_with = "kit::config::list")]`: a text with commas as a list; empty text, empty list.
///
/// # Errors
/// When the value is not a text.
pub fn list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let text = String::deserialize(deserializer)?;
    Ok(text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(Into::into).collect())
}

/// Answers `--help` and `--version`, and refuses any other argument: a service has no others. False when there are none.
#[allow(clippy::disallowed_methods)]
pub fn answer_usage(name: &str, version: &str, defaults: &str) -> bool {
    match std::env::args().nth(1).as_deref() {
        None => return false,
        Some("--version" | "-V") => println!("{name} {version}"),
        Some("--help" | "-h") => {
            println!("{name} {version}\n\nRuns until SIGTERM. Configuration: environment variables MERIDIAN_<KEY>.\n\n{defaults}");
        }
        Some(other) => {
            eprintln!("{name}: {other:?} is not understood; see {name} --help");
            std::process::exit(2);
        }
    }
    true
}

/// One environment variable outside the services' own names, such as those of OpenTelemetry's specification.
#[allow(clippy::disallowed_methods)]
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
