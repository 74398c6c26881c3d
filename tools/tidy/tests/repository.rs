//! The rules that the repository holds itself to. A failure names file and line.
#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};
use tidy::{Words, Workspace, bindings, effect_fields, forbidden, long_functions, references};

const FUNCTION_LINES_MAX: usize = 70;
const FILE_LINES_MAX: usize = 500;
const MAIN_LINES_MAX: usize = 70;
const DRIVERS: [&str; 4] = ["scylla", "rdkafka", "clickhouse", "async-nats"];
/// Crates of `services/` that are no services: they have no process, hence no configuration.
const LIBRARIES: [&str; 5] = ["kit", "adapters", "api", "client", "sim"];

fn workspace() -> Workspace {
    Workspace::read().unwrap()
}

/// Fails with all complaints, one a line.
fn settle(rule: &str, complaints: Vec<String>) {
    assert!(complaints.is_empty(), "{rule}:\n{}\n", complaints.join("\n"));
}

#[test]
fn functions_fit_a_screen_and_files_500_lines() {
    let workspace = workspace();
    let mut complaints = Vec::new();
    for file in workspace.rust_files(Path::new("")) {
        let text = workspace.text(file).unwrap().unwrap();
        let lines = text.lines().count();
        if lines > FILE_LINES_MAX {
            complaints.push(format!("{}:{FILE_LINES_MAX}: the file has {lines} lines", file.display()));
        }
        let long = long_functions(&text, FUNCTION_LINES_MAX).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        complaints.extend(long.into_iter().map(|(line, name, lines)| format!("{}:{line}: {name} has {lines} lines", file.display())));
    }
    settle("functions have at most 70 lines, files 500", complaints);
}

#[test]
fn drivers_are_known_to_adapters_alone() {
    let workspace = workspace();
    let others = workspace.crates.iter().filter(|krate| krate.name() != "adapters");
    let complaints = others.flat_map(|krate| {
        let drivers = krate.dependencies().into_iter().filter(|(_, name, _)| DRIVERS.contains(&name.as_str()));
        drivers.map(|(table, name, _)| format!("{}/Cargo.toml: [{table}] {name}", krate.folder.display()))
    });
    settle("drivers are dependencies of `adapters` only", complaints.collect());
}

#[test]
fn versions_stand_in_the_workspace_table_alone() {
    let workspace = workspace();
    let complaints = workspace.crates.iter().flat_map(|krate| {
        let own = krate.dependencies().into_iter().filter(|(_, _, value)| value.get("workspace").and_then(|on| on.as_bool()) != Some(true));
        own.map(|(table, name, _)| format!("{}/Cargo.toml: [{table}] {name}: write `{name}.workspace = true`", krate.folder.display()))
    });
    settle("a crate names a dependency, the root's table says which", complaints.collect());
}

#[test]
fn every_crate_has_the_files_of_its_kind() {
    let workspace = workspace();
    let has = |file: &PathBuf| workspace.files.contains(file);
    let mut complaints = Vec::new();
    for krate in &workspace.crates {
        let service = krate.folder.starts_with("services") && !LIBRARIES.contains(&krate.name());
        let wanted: &[&str] = if service { &["README.md", "config.toml", "src/lib.rs", "src/main.rs"] } else { &["src/lib.rs"] };
        let missing = wanted.iter().map(|file| krate.folder.join(file)).filter(|file| !has(file));
        complaints.extend(missing.map(|file| format!("{} is missing", file.display())));
        let folder = krate.folder.file_name().unwrap().to_str().unwrap();
        if krate.name() != folder && krate.name() != format!("meridian-{folder}") {
            complaints.push(format!("{}/Cargo.toml: the package is called {}", krate.folder.display(), krate.name()));
        }
        let main = krate.folder.join("src/main.rs");
        let lines = if service && has(&main) { workspace.text(&main).unwrap().unwrap().lines().count() } else { 0 };
        if lines > MAIN_LINES_MAX {
            complaints.push(format!("{}:{MAIN_LINES_MAX}: main.rs has {lines} lines, at most {MAIN_LINES_MAX}", main.display()));
        }
    }
    settle("every crate has the files of its kind", complaints);
}

#[test]
fn every_effect_has_a_function_and_a_row_in_the_journey() {
    let workspace = workspace();
    let journey = workspace.text(Path::new("docs/journey.md")).unwrap().unwrap();
    let rows: BTreeSet<&str> = journey.lines().filter(|line| line.starts_with('|')).filter_map(|line| line.split('`').nth(1)).collect();
    let (mut complaints, mut effects) = (Vec::new(), 0);
    for krate in workspace.crates.iter().filter(|krate| krate.folder.starts_with("services")) {
        let (src, lib) = (krate.folder.join("src"), krate.folder.join("src/lib.rs"));
        let fields = effect_fields(&workspace.text(&lib).unwrap().unwrap()).unwrap();
        effects += fields.len();
        let bound = match fields.is_empty() {
            true => BTreeSet::new(),
            false => workspace.rust_files(&src).flat_map(|file| bound_fields(&workspace, file)).collect(),
        };
        for (line, field) in fields {
            let at = format!("{}:{line}", lib.display());
            if !bound.contains(&field) {
                complaints.push(format!("{at}: no literal of {} has `{field}: … bind(…, module::function)`", src.display()));
            }
            if !rows.contains(field.as_str()) {
                complaints.push(format!("{at}: `{field}` has no row in docs/journey.md"));
            }
        }
    }
    assert!(effects > 20, "only {effects} effects were found: the test looks in the wrong place");
    settle("every effect has a function bound by name and a row in docs/journey.md", complaints);
}

/// Fields of `Effects` literals to which a function is bound by its name.
fn bound_fields(workspace: &Workspace, file: &Path) -> Vec<String> {
    let found = bindings(&workspace.text(file).unwrap().unwrap()).unwrap();
    found.into_iter().filter(|binding| binding.function.is_some()).map(|binding| binding.field).collect()
}

#[test]
fn every_name_in_the_journey_exists() {
    let workspace = workspace();
    let journey = workspace.text(Path::new("docs/journey.md")).unwrap().unwrap();
    let words = Words::of(&workspace).unwrap();
    let found = references(&journey);
    assert!(found.len() > 20, "only {} names were found: the test looks in the wrong place", found.len());
    let missing = found.iter().filter_map(|reference| Some((reference, words.missing(&reference.text)?)));
    let complaints = missing.map(|(reference, why)| format!("docs/journey.md:{}: `{}`: {why}", reference.line, reference.text));
    settle("every name in the journey exists", complaints.collect());
}

#[test]
fn no_text_names_a_machine_or_a_registry() {
    let workspace = workspace();
    let mut complaints = Vec::new();
    // Cargo writes where packages come from.
    for file in workspace.files.iter().filter(|file| file.as_path() != Path::new("Cargo.lock")) {
        let Some(text) = workspace.text(file).unwrap() else { continue };
        let found = text.lines().enumerate().filter_map(|(index, line)| Some((index + 1, forbidden(line)?)));
        complaints.extend(found.map(|(line, what)| format!("{}:{line}: {what}", file.display())));
    }
    settle("no text names a machine's folder or a registry's host", complaints);
}
