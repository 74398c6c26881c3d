//! The analytics store's tables.

use crate::files;
use anyhow::{Context, Result};
use kit::Effect;

/// Everything the job does to the outside world.
#[derive(Clone)]
pub struct Effects {
    /// Carries out the statements of one file.
    pub execute_schema: Effect<String, ()>,
}

/// Applies every file in order, and gives their number.
///
/// # Errors
/// Names the file that failed.
pub async fn apply(Effects { execute_schema }: &Effects) -> Result<usize> {
    for (name, text) in files::CLICKHOUSE {
        execute_schema((*text).to_owned()).await.with_context(|| (*name).to_owned())?;
    }
    Ok(files::CLICKHOUSE.len())
}
