//! The crates and files of the repository.

use anyhow::{Context, Result, ensure};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};
use toml::{Table, Value};

/// The repository that this crate stands in.
pub struct Workspace {
    /// Its root.
    pub root: PathBuf,
    /// Its crates, in the order of the root's `members`.
    pub crates: Vec<Crate>,
    /// Every file that is or would be in the repository, relative to the root.
    pub files: Vec<PathBuf>,
}

/// One crate.
pub struct Crate {
    /// Folder, relative to the root.
    pub folder: PathBuf,
    /// Its `Cargo.toml`.
    pub manifest: Table,
}

impl Workspace {
    /// Reads manifests and the list of files.
    ///
    /// # Errors
    /// Names the file that cannot be read.
    pub fn read() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
        let manifest = read_toml(&root.join("Cargo.toml"))?;
        let members = manifest.get("workspace").and_then(|workspace| workspace.get("members")).and_then(Value::as_array);
        let crates = members.context("Cargo.toml: no members")?.iter().filter_map(Value::as_str).map(|folder| {
            let folder = PathBuf::from(folder);
            Ok(Crate { manifest: read_toml(&root.join(&folder).join("Cargo.toml"))?, folder })
        });
        let crates = crates.collect::<Result<_>>()?;
        let files = list_files(&root)?;
        Ok(Self { root, crates, files })
    }

    /// The text of a file of the repository; `None` where it is not text.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn text(&self, file: &Path) -> Result<Option<String>> {
        let bytes = fs::read(self.root.join(file)).with_context(|| format!("read {}", file.display()))?;
        Ok(String::from_utf8(bytes).ok())
    }

    /// The Rust files below a folder.
    pub fn rust_files<'a>(&'a self, below: &'a Path) -> impl Iterator<Item = &'a Path> {
        let rust = |file: &&PathBuf| file.extension().is_some_and(|extension| extension == "rs");
        self.files.iter().filter(rust).map(PathBuf::as_path).filter(move |file| file.starts_with(below))
    }
}

impl Crate {
    /// The package's name.
    pub fn name(&self) -> &str {
        self.manifest.get("package").and_then(|package| package.get("name")).and_then(Value::as_str).unwrap_or_default()
    }

    /// (table, name, value) of every dependency, of every kind and target.
    pub fn dependencies(&self) -> Vec<(String, String, Value)> {
        let mut found = Vec::new();
        collect_dependencies("", &self.manifest, &mut found);
        found
    }
}

fn collect_dependencies(path: &str, table: &Table, found: &mut Vec<(String, String, Value)>) {
    for (key, value) in table {
        let Some(inner) = value.as_table() else { continue };
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        match key.as_str() {
            "dependencies" | "dev-dependencies" | "build-dependencies" => {
                found.extend(inner.iter().map(|(name, value)| (path.clone(), name.clone(), value.clone())));
            }
            _ => collect_dependencies(&path, inner, found),
        }
    }
}

fn read_toml(file: &Path) -> Result<Table> {
    let text = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    text.parse().with_context(|| format!("{}", file.display()))
}

fn list_files(root: &Path) -> Result<Vec<PathBuf>> {
    let git = Command::new("git").args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(root).output();
    let output = git.context("git ls-files")?;
    ensure!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    let names = output.stdout.split(|&byte| byte == 0).filter(|name| !name.is_empty());
    let files = names.map(|name| PathBuf::from(String::from_utf8_lossy(name).into_owned()));
    // A file that was deleted and not yet committed is still in git's list.
    Ok(files.filter(|file| root.join(file).is_file()).collect())
}
