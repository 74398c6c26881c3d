//! What the public HTTP APIs share: tenants' keys, problem documents, JSON limits and the documentation page.
//!
//! **A tenant comes from the bearer key and from nowhere else.** A key is kept only as its SHA-256; the file of hashes is
//! read again when it changes, without a restart.

pub mod docs;
pub mod json;
mod keyfile;
mod keys;
mod problem;
mod tenant;

pub use keyfile::{create_dev_secrets, create_key, read_cursor_key, read_dev_keys};
pub use keys::Keys;
pub use problem::{Kind, Problem, ProblemBody};
pub use tenant::Tenant;
