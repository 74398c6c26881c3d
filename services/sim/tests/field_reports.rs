//! docs/field-reports.md names tests and planted bugs that exist, and every row.

use sim::Bug;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// P0 and P1 rows.
const ROWS: usize = 44;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The names of all functions below a folder.
fn functions(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            functions(&path, names);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let text = fs::read_to_string(&path).expect("a source file");
            let found = text.split("fn ").skip(1).filter_map(|rest| rest.split(['(', '<']).next());
            names.extend(found.map(str::to_owned));
        }
    }
}

#[test]
fn every_row_names_what_exists() {
    let table = fs::read_to_string(root().join("docs/field-reports.md")).expect("the table");
    let mut names = BTreeSet::new();
    ["services", "live", "proto"].iter().for_each(|folder| functions(&root().join(folder), &mut names));
    let bugs: BTreeSet<String> = Bug::ALL.iter().map(|bug| format!("{bug:?}")).collect();
    let rows: Vec<&str> = table.lines().filter(|line| line.contains(" P0 |") || line.contains(" P1 |")).collect();
    assert_eq!(rows.len(), ROWS);
    for row in rows {
        let quoted: Vec<&str> = row.split('`').skip(1).step_by(2).collect();
        for name in quoted.iter().filter(|name| name.len() > 20 && name.contains('_') && !name.contains(['/', '…', '.'])) {
            assert!(names.contains(*name), "no function {name}: {row}");
        }
        let after_bug =
            row.split("**bug").skip(1).flat_map(|rest| rest.split('|').next().unwrap_or_default().split('`').skip(1).step_by(2));
        for bug in after_bug.filter(|bug| !bug.contains('_')) {
            assert!(bugs.contains(bug), "no planted bug {bug}: {row}");
        }
    }
}
