//! The other end of the control socket, for the command line, the load tester and tests.

use super::{Links, Request, Response, StateDir, Status, WorldFile, state};
use crate::progress::Line;
use crate::world::{KillMode, Selection};
use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Speaks to a living world. Every call opens a connection of its own, so a client may be shared across threads.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// A client for the world that listens on this socket.
    ///
    /// # Errors
    /// When nobody listens there.
    pub fn open(socket: &Path) -> Result<Self> {
        let client = Self { socket: socket.into() };
        client.connect()?;
        Ok(client)
    }

    /// A client for the world of a state folder (`.meridian`).
    ///
    /// # Errors
    /// When no world is up there.
    pub fn of(dir: &StateDir) -> Result<Self> {
        Self::open(&dir.socket())
            .with_context(|| format!("no world is up in {}: start one with `native up` or `native run`", dir.path().display()))
    }

    /// A client for the world that a `world.json` (the variable `MERIDIAN_WORLD` of child commands) describes, and that description.
    ///
    /// # Errors
    /// When the file cannot be read, or that world is gone.
    pub fn of_file(file: &Path) -> Result<(Self, WorldFile)> {
        let world = WorldFile::read(file)?;
        Ok((Self::open(&world.control)?, world))
    }

    /// Asks and waits for the answer, without a deadline: a world that ends closes the connection.
    ///
    /// # Errors
    /// When the world is gone, or answers with an error.
    pub fn call(&self, request: &Request) -> Result<Response> {
        self.call_with(request, |_| {})
    }

    /// The same, and hands over what happens on the way.
    ///
    /// # Errors
    /// When the world is gone, or answers with an error.
    pub fn call_with(&self, request: &Request, mut progress: impl FnMut(&Line)) -> Result<Response> {
        let mut stream = self.connect()?;
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        stream.write_all(&line).context("the world does not listen")?;
        for answer in BufReader::new(stream).lines() {
            match serde_json::from_str(&answer.context("the world hung up")?).context("not an answer of this version of `native`")? {
                Response::Progress(line) => progress(&line),
                Response::Error { message } => bail!(message),
                answer => return Ok(answer),
            }
        }
        bail!("the world ended before it answered")
    }

    /// Regions, processes, exposed ports.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn status(&self) -> Result<Status> {
        match self.call(&Request::Status)? {
            Response::Status(status) => Ok(status),
            other => bail!("unexpected answer {other:?}"),
        }
    }

    /// Settings and counters of all links, the router's lateness.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn links(&self) -> Result<Links> {
        match self.call(&Request::Links)? {
            Response::Links(links) => Ok(links),
            other => bail!("unexpected answer {other:?}"),
        }
    }

    /// Kills a region.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn kill(&self, region: &str, mode: KillMode) -> Result<()> {
        self.call(&Request::Kill { region: region.into(), mode }).map(drop)
    }

    /// Brings a killed region back; with `wait` returns only when it is ready.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn start(&self, region: &str, wait: bool) -> Result<()> {
        self.call(&Request::Start { region: region.into(), wait }).map(drop)
    }

    /// Cuts both directions between two regions; `all` stands for every region.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn cut(&self, from: &str, to: &str) -> Result<()> {
        self.call(&Request::Cut(Selection { from: from.into(), to: to.into(), one_way: false })).map(drop)
    }

    /// Heals both directions between two regions; `all` stands for every region.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn heal(&self, from: &str, to: &str) -> Result<()> {
        self.call(&Request::Heal(Selection { from: from.into(), to: to.into(), one_way: false })).map(drop)
    }

    fn connect(&self) -> Result<UnixStream> {
        state::connect(&self.socket).with_context(|| format!("no world listens on {}", self.socket.display()))
    }
}
