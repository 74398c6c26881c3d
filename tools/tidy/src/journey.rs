//! Names in docs/journey.md, and whether the code has them.

use crate::{Workspace, names};
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};

/// `module::name` in backticks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Line in the page.
    pub line: usize,
    /// As written.
    pub text: String,
}

/// Every text in backticks that is a path of identifiers, outside of indented blocks.
pub fn references(page: &str) -> Vec<Reference> {
    let prose = page.lines().enumerate().filter(|(_, line)| !line.starts_with("    "));
    let spans = prose.flat_map(|(index, line)| line.split('`').skip(1).step_by(2).map(move |span| (index + 1, span)));
    spans.filter(|(_, span)| is_path(span)).map(|(line, span)| Reference { line, text: span.into() }).collect()
}

fn is_path(span: &str) -> bool {
    let identifier = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    span.contains("::") && span.split("::").all(identifier)
}

/// The names that each crate, each module and each type's file gives.
pub struct Words(BTreeMap<String, BTreeSet<String>>);

impl Words {
    /// Reads all crates.
    ///
    /// # Errors
    /// Names the file that is not Rust.
    pub fn of(workspace: &Workspace) -> Result<Self> {
        let mut words: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for krate in &workspace.crates {
            for file in workspace.rust_files(&krate.folder.join("src")) {
                let text = workspace.text(file)?.unwrap_or_default();
                let given = names(&text).with_context(|| format!("{}", file.display()))?;
                let below = file.strip_prefix(krate.folder.join("src")).unwrap_or(file).with_extension("");
                let modules = below.iter().filter_map(|part| part.to_str()).filter(|part| !["lib", "main", "mod"].contains(part));
                let rooms: Vec<String> = modules.map(Into::into).chain([krate.name().replace('-', "_")]).collect();
                // A module is a name of its crate; a type is a room of its own.
                words.entry(krate.name().replace('-', "_")).or_default().extend(rooms.iter().cloned());
                let types: Vec<String> = given.iter().filter(|name| name.starts_with(char::is_uppercase)).cloned().collect();
                for room in rooms.into_iter().chain(types) {
                    words.entry(room).or_default().extend(given.iter().cloned());
                }
            }
        }
        Ok(Self(words))
    }

    /// The part of a reference that the code does not have, if any.
    pub fn missing(&self, reference: &str) -> Option<String> {
        let parts: Vec<&str> = reference.split("::").collect();
        let pair = parts.windows(2).find(|pair| !self.0.get(pair[0]).is_some_and(|names| names.contains(pair[1])))?;
        Some(match self.0.contains_key(pair[0]) {
            true => format!("{} has no {}", pair[0], pair[1]),
            false => format!("there is no crate, module or type {}", pair[0]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_paths_in_backticks() {
        let page = "First `a::b` and `c`, `d e`.\n\n    `x::y` in a block\n| `f` | `g::h::i` | x::z |\n";
        let found: Vec<_> = references(page).into_iter().map(|reference| (reference.line, reference.text)).collect();
        assert_eq!(found, [(1, "a::b".into()), (4, "g::h::i".into())]);
    }

    #[test]
    fn what_the_code_lacks_is_named() {
        let words = Words([("a", "b"), ("b", "c")].map(|(room, name)| (room.into(), BTreeSet::from([name.into()]))).into());
        assert_eq!(words.missing("a::b::c"), None);
        assert_eq!(words.missing("a::c").unwrap(), "a has no c");
        assert_eq!(words.missing("z::c").unwrap(), "there is no crate, module or type z");
    }
}
