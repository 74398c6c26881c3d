//! Compiles the numbered files of `cql/` and `clickhouse/` in, in their order.

use std::{env, error::Error, fmt::Write as _, fs, path::Path};

#[allow(clippy::disallowed_methods)]
fn main() -> Result<(), Box<dyn Error>> {
    let (root, out) = (env::var("CARGO_MANIFEST_DIR")?, env::var("OUT_DIR")?);
    let mut code = String::new();
    for (constant, folder, extension) in [("CQL", "cql", "cql"), ("CLICKHOUSE", "clickhouse", "sql")] {
        let folder = Path::new(&root).join(folder);
        println!("cargo::rerun-if-changed={}", folder.display());
        let entries = fs::read_dir(&folder)?.collect::<Result<Vec<_>, _>>()?;
        let mut files: Vec<_> =
            entries.iter().map(fs::DirEntry::path).filter(|path| path.extension().is_some_and(|it| it == extension)).collect();
        files.sort();
        writeln!(code, "/// Names and texts of the numbered files of `{}`.", folder.file_name().unwrap_or_default().display())?;
        writeln!(code, "pub const {constant}: &[(&str, &str)] = &[")?;
        for file in files {
            writeln!(code, "    ({:?}, include_str!({:?})),", file.file_name().unwrap_or_default().display().to_string(), file)?;
        }
        writeln!(code, "];")?;
    }
    fs::write(Path::new(&out).join("files.rs"), code)?;
    Ok(())
}
