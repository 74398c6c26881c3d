//! Folders of the cache that other clones use too: whole or absent, checked before use, made by one process at a time.

use anyhow::{Context, Result, bail};
use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};
use sha2::{Digest, Sha256};
use std::{
    fmt::Write as _,
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};
use walkdir::WalkDir;

/// The list of checksums inside an entry: `sha256sum`'s own format.
pub const SUMS: &str = "SHA256SUMS";
/// Sizes and times at the last full check: while they stand, no file is read again.
const SEEN: &str = ".seen";

/// Makes the entry `name` unless it is there, whole. `make` is given an empty folder to fill, and another one to work in; the entry appears
/// in one step when it is done, and a try that was killed is swept away by the next. `waiting` is called when another process makes it just now.
///
/// # Errors
/// Those of `make`; a file that is no longer what was fetched.
pub fn entry(cache: &Path, name: &str, waiting: impl FnOnce(), make: impl FnOnce(&Path, &Path) -> Result<()>) -> Result<PathBuf> {
    let folder = cache.join(name);
    if folder.is_dir() {
        return verify(&folder).map(|()| folder);
    }
    fs::create_dir_all(cache).with_context(|| format!("create {}", cache.display()))?;
    let _lock = lock(&cache.join(format!(".{name}.lock")), waiting)?;
    if folder.is_dir() {
        return verify(&folder).map(|()| folder);
    }
    let partial = cache.join(format!(".{name}.partial"));
    remove(&partial)?;
    let (files, work) = (partial.join("files"), partial.join("work"));
    fs::create_dir_all(&files)?;
    fs::create_dir(&work)?;
    let made = make(&files, &work).and_then(|()| {
        fs::write(files.join(SUMS), sums_of(&files)?)?;
        fs::write(files.join(SEEN), seen(&files)?)?;
        fs::rename(&files, &folder).with_context(|| format!("put {} in place", folder.display()))
    });
    remove(&partial)?;
    made.map(|()| folder)
}

/// Whether the entry is there.
pub fn has(cache: &Path, name: &str) -> bool {
    cache.join(name).is_dir()
}

fn lock(path: &Path, waiting: impl FnOnce()) -> Result<Flock<File>> {
    let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    let file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => return Ok(lock),
        Err((file, Errno::EWOULDBLOCK)) => file,
        Err((_, error)) => return Err(error).with_context(|| format!("lock {}", path.display())),
    };
    waiting();
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error).with_context(|| format!("lock {}", path.display()))
}

/// Removes a folder that may be absent.
///
/// # Errors
/// When something of it stays.
pub fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error).with_context(|| format!("remove {}", folder.display())),
        _ => Ok(()),
    }
}

/// Checks every file of an entry against its list; by size and time alone where these are as they were at the last check.
fn verify(folder: &Path) -> Result<()> {
    let stamp = seen(folder)?;
    if fs::read_to_string(folder.join(SEEN)).is_ok_and(|before| before == stamp) {
        return Ok(());
    }
    let recorded = fs::read_to_string(folder.join(SUMS)).with_context(|| format!("{} has no list of checksums", folder.display()))?;
    let found = sums_of(folder)?;
    if let Some(line) = recorded.lines().find(|line| !found.lines().any(|other| other == *line)) {
        let file = line.split("  ").nth(1).unwrap_or(line);
        bail!("{}/{file} is not what was fetched: remove {} and fetch again", folder.display(), folder.display());
    }
    // Another check may write the same at the same time.
    fs::write(folder.join(SEEN), stamp).context("note the check")
}

fn files(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut files = Vec::new();
    for entry in WalkDir::new(folder).follow_links(false) {
        let entry = entry?;
        let name = entry.path().strip_prefix(folder)?.to_string_lossy().into_owned();
        // Python writes its compiled files when it likes.
        if entry.file_type().is_file() && ![SUMS, SEEN].contains(&&*name) && !name.ends_with(".pyc") {
            files.push((name, entry.into_path()));
        }
    }
    files.sort();
    Ok(files)
}

fn seen(folder: &Path) -> Result<String> {
    let mut text = String::new();
    for (name, path) in files(folder)? {
        let metadata = fs::metadata(&path)?;
        writeln!(text, "{} {}.{:09} {name}", metadata.size(), metadata.mtime(), metadata.mtime_nsec())?;
    }
    Ok(text)
}

/// `sha256sum` of every file under `folder`, ordered by name.
///
/// # Errors
/// When a file cannot be read.
pub fn sums_of(folder: &Path) -> Result<String> {
    let mut text = String::new();
    for (name, path) in files(folder)? {
        writeln!(text, "{}  {name}", hash_file(&path)?)?;
    }
    Ok(text)
}

fn hash_file(path: &Path) -> Result<String> {
    let mut file = File::open(path).with_context(|| format!("read {}", path.display()))?;
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex::encode(hash.finalize())),
            read => hash.update(&buffer[..read]),
        }
    }
}

/// SHA-256 of some texts, in hexadecimal.
pub fn hash_of<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hex::encode(hash.finalize())
}

/// Copies a folder with all below it, except the named children.
///
/// # Errors
/// When a file cannot be copied.
pub fn copy(from: &Path, to: &Path, except: &[&str]) -> Result<()> {
    for entry in
        WalkDir::new(from).into_iter().filter_entry(|entry| entry.depth() != 1 || !except.iter().any(|name| entry.file_name() == *name))
    {
        let entry = entry?;
        let target = to.join(entry.path().strip_prefix(from)?);
        if entry.file_type().is_dir() {
            fs::create_dir_all(&target)?;
        } else {
            fs::copy(entry.path(), &target).with_context(|| format!("copy {}", entry.path().display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(cache: &Path) -> Result<PathBuf> {
        entry(cache, "engine-1", || (), |folder, _| Ok(fs::write(folder.join("a.jar"), "content")?))
    }

    #[test]
    fn an_entry_is_made_once_and_checked() {
        let cache = tempfile::tempdir().unwrap();
        let folder = made(cache.path()).unwrap();
        entry(cache.path(), "engine-1", || (), |_, _| panic!("made twice")).unwrap();
        fs::write(folder.join("a.jar"), "CONTENT.").unwrap();
        let error = made(cache.path()).unwrap_err().to_string();
        assert!(error.contains("a.jar is not what was fetched"), "{error}");
    }

    #[test]
    fn a_failed_entry_leaves_nothing() {
        let cache = tempfile::tempdir().unwrap();
        entry(
            cache.path(),
            "engine-1",
            || (),
            |folder, _| {
                fs::write(folder.join("half"), "")?;
                bail!("no network")
            },
        )
        .unwrap_err();
        assert!(!cache.path().join("engine-1").exists() && !cache.path().join(".engine-1.partial").exists());
        made(cache.path()).unwrap();
    }
}
