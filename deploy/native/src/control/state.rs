//! The state folder of a checkout's world (`.meridian`): who holds it, where to speak to it, what it offers.

use super::Status;
use crate::world::RegionSpec;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest path that a unix socket's address holds (unix(7)).
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// `world.json`: what a program beside the world needs to know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorldFile {
    /// The control socket.
    pub control: PathBuf,
    /// Folder of the world: a folder for each region with its disks and logs.
    pub folder: PathBuf,
    /// Folder of development keys and the cursor key.
    pub secrets: PathBuf,
    /// Engines with version and durability.
    #[serde(default)]
    pub engines: serde_json::Value,
    /// All regions.
    pub regions: Vec<WorldRegion>,
}

/// A region in `world.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorldRegion {
    /// Name.
    pub name: String,
    /// Address inside the world.
    pub address: String,
    /// Ports usable from the host, by service.
    pub exposed: BTreeMap<String, SocketAddr>,
}

impl WorldFile {
    /// Reads the file.
    ///
    /// # Errors
    /// When it does not exist or is not one.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("{} does not describe a world", path.display()))
    }

    /// Takes over the exposed ports of a living world.
    pub fn with_exposed(mut self, status: &Status) -> Self {
        for region in &mut self.regions {
            if let Some(status) = status.regions.iter().find(|status| status.name == region.name) {
                region.exposed.clone_from(&status.exposed);
            }
        }
        self
    }
}

/// The folder itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateDir(PathBuf);

/// Held by the launcher while its world lives; the kernel lets it go with the process.
#[derive(Debug)]
pub struct Hold(#[allow(dead_code)] File);

impl StateDir {
    /// The folder at this path, which need not exist.
    ///
    /// # Errors
    /// When there is no working folder.
    pub fn at(path: &Path) -> Result<Self> {
        Ok(Self(std::path::absolute(path)?))
    }

    /// `.meridian` in the checkout around the working folder, or in the working folder itself outside of one.
    ///
    /// # Errors
    /// When there is no working folder.
    pub fn usual() -> Result<Self> {
        let here = std::env::current_dir()?;
        let checkout = here.ancestors().find(|folder| folder.join("deploy/native/Cargo.toml").is_file());
        Ok(Self(checkout.unwrap_or(&here).join(".meridian")))
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The control socket.
    pub fn socket(&self) -> PathBuf {
        self.0.join("control.sock")
    }

    /// `world.json`.
    pub fn world_file(&self) -> PathBuf {
        self.0.join("world.json")
    }

    /// Folder of a world that is made for one command.
    pub fn passing(&self) -> PathBuf {
        self.0.join("run")
    }

    /// Folder of a world of these regions that comes back with its disks. Each set of regions has one of its own: engines keep their peers' addresses
    /// on disk, and wait for them.
    pub fn lasting(&self, regions: &[RegionSpec]) -> PathBuf {
        let names: Vec<&str> = regions.iter().map(|region| &*region.name).collect();
        self.0.join(names.join("-"))
    }

    /// Log of a launcher in the background.
    pub fn launcher_log(&self) -> PathBuf {
        self.0.join("launcher.log")
    }

    /// Takes the folder for a world.
    ///
    /// # Errors
    /// When a living world has it: names its launcher and what to do.
    pub fn hold(&self) -> Result<Hold> {
        fs::create_dir_all(&self.0).with_context(|| format!("cannot make {}", self.0.display()))?;
        let mut file = self.lock_file()?;
        match file.try_lock() {
            Ok(()) => {
                file.set_len(0)?;
                write!(file, "{}", std::process::id())?;
                Ok(Hold(file))
            }
            Err(TryLockError::WouldBlock) => bail!(
                "a world is up already in {} (launcher {}): look at it with `native status`, end it with `native down`",
                self.0.display(),
                holder(&mut file).map_or_else(|| "unknown".into(), |pid| pid.to_string())
            ),
            Err(TryLockError::Error(error)) => Err(error).context("cannot lock the state folder"),
        }
    }

    /// The launcher that holds the folder, if one does.
    pub fn holder(&self) -> Option<i32> {
        let mut file = File::options().read(true).write(true).open(self.0.join("lock")).ok()?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => holder(&mut file).or(Some(0)),
            _ => None,
        }
    }

    /// Waits until no launcher holds the folder; false after the deadline.
    pub fn wait_free(&self, deadline: Duration) -> bool {
        let began = Instant::now();
        while self.holder().is_some() {
            if began.elapsed() > deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }

    /// Removes what only a living world has.
    pub fn clean(&self) {
        for path in [self.socket(), self.world_file()] {
            let _ = fs::remove_file(path);
        }
    }

    fn lock_file(&self) -> Result<File> {
        let path = self.0.join("lock");
        File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))
    }
}

fn holder(file: &mut File) -> Option<i32> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// Listens on a socket file, replacing one that a dead launcher left.
///
/// # Errors
/// When the kernel refuses.
pub fn listen(socket: &Path) -> Result<UnixListener> {
    let _ = fs::remove_file(socket);
    through_short_path(socket, |path| UnixListener::bind(path)).with_context(|| format!("cannot listen on {}", socket.display()))
}

/// Connects to a socket file.
///
/// # Errors
/// When nobody listens.
pub fn connect(socket: &Path) -> io::Result<UnixStream> {
    through_short_path(socket, |path| UnixStream::connect(path))
}

/// A socket's address holds only a short path: a deep one goes through the folder's descriptor.
fn through_short_path<T>(socket: &Path, open: impl Fn(&Path) -> io::Result<T>) -> io::Result<T> {
    if socket.as_os_str().len() <= SOCKET_PATH_BYTES_MAX {
        return open(socket);
    }
    let (Some(folder), Some(name)) = (socket.parent(), socket.file_name()) else { return open(socket) };
    let folder = File::open(folder)?;
    open(&Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_one_world() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::at(dir.path()).unwrap();
        assert_eq!(state.holder(), None);
        let hold = state.hold().unwrap();
        let error = state.hold().unwrap_err().to_string();
        assert!(error.contains(&std::process::id().to_string()) && error.contains("native down"), "{error}");
        assert_eq!(state.holder(), Some(std::process::id() as i32));
        drop(hold);
        assert!(state.wait_free(Duration::ZERO));
    }

    #[test]
    fn a_deep_folder_has_a_socket_too() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("x".repeat(120));
        fs::create_dir_all(&deep).unwrap();
        let socket = deep.join("control.sock");
        let listener = listen(&socket).unwrap();
        connect(&socket).unwrap();
        drop(listener);
        listen(&socket).unwrap();
    }
}
