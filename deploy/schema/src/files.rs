//! The numbered files, compiled in.

use sha2::{Digest, Sha256};

include!(concat!(env!("OUT_DIR"), "/files.rs"));

/// The statements of a CQL file: comment lines left out, each ended by a semicolon at the end of a line.
pub fn statements(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("--")).collect();
    let parts = lines.join("\n") + "\n";
    parts.split(";\n").map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect()
}

/// `${replication}` for one replica set a region.
pub fn replication(regions: &[String]) -> String {
    let pairs: String = regions.iter().map(|region| format!(", '{region}': 1")).collect();
    format!("{{'class': 'NetworkTopologyStrategy'{pairs}}}")
}

/// A name for what the CQL files say: folders that hold their tables can be told from others.
pub fn digest() -> String {
    let mut hash = Sha256::new();
    for statement in CQL.iter().flat_map(|(_, text)| statements(text)) {
        hash.update((statement.len() as u64).to_be_bytes());
        hash.update(&statement);
    }
    hex::encode(hash.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_end_with_a_line() {
        let found = statements("-- a; b;\nCREATE TABLE a (b text);\n\n-- c\nCREATE TABLE d (\n    e text -- f; g\n);\n");
        assert_eq!(found, ["CREATE TABLE a (b text)", "CREATE TABLE d (\n    e text -- f; g\n)"]);
    }

    #[test]
    fn every_statement_may_be_repeated() {
        for (name, text) in CQL.iter().chain(CLICKHOUSE) {
            for statement in statements(text) {
                let repeatable = statement.contains("IF NOT EXISTS") || statement.contains("= 0");
                assert!(repeatable && !statement.starts_with("DROP"), "{name}: {statement}");
            }
        }
    }

    #[test]
    fn every_region_has_a_replica() {
        let regions = ["fra".to_owned(), "iad".to_owned()];
        assert_eq!(replication(&regions), "{'class': 'NetworkTopologyStrategy', 'fra': 1, 'iad': 1}");
    }
}
