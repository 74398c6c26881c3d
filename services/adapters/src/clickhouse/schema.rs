//! Applying the numbered files of `deploy/schema/clickhouse`.

use super::{ClickHouse, connect::answered};
use anyhow::{Context, Result};
use std::sync::Arc;

/// The statements of a file, without its comment lines: each ends with a semicolon at the end of a line.
pub fn statements(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("--")).collect();
    let parts = lines.join("\n");
    parts.split(";\n").map(|part| part.trim().trim_end_matches(';').to_owned()).filter(|part| !part.is_empty()).collect()
}

/// Carries out the statements of a schema file, in the client's database wherever the file says `meridian`. May be repeated.
///
/// # Errors
/// Names the statement that failed.
pub async fn execute_schema(clickhouse: Arc<ClickHouse>, text: String) -> Result<()> {
    // The database may not exist yet, so statements run from one that does.
    let client = clickhouse.write().clone().with_database("default");
    for statement in statements(&text) {
        let statement = in_database(&statement, clickhouse.database());
        let first = statement.lines().next().unwrap_or_default().to_owned();
        answered(client.query_raw(&statement).execute()).await.with_context(|| format!("schema statement {first:?}"))?;
    }
    Ok(())
}

fn in_database(statement: &str, database: &str) -> String {
    statement.replace("meridian.", &format!("{database}.")).replace("EXISTS meridian", &format!("EXISTS {database}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_falls_into_statements_without_comments() {
        let text = "-- first;\nCREATE DATABASE IF NOT EXISTS meridian;\n\n-- second\nCREATE TABLE meridian.a\n(\n    -- inside;\n    b String\n);\n";
        let found: Vec<String> = statements(text).iter().map(|statement| in_database(statement, "other")).collect();
        assert_eq!(found, ["CREATE DATABASE IF NOT EXISTS other", "CREATE TABLE other.a\n(\n    b String\n)"]);
    }
}
