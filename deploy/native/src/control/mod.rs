//! How a living world is steered: JSON lines over a unix socket, one request a line, one answer a line.
//!
//! A variant is `{"kill": {…}}`, one without fields `"status"`. Answers to [`Request::WaitReady`] and to requests that take long
//! are preceded by any number of [`Response::Progress`].

mod client;
mod ground;
mod launcher;
mod server;
mod state;

pub use client::Client;
pub use ground::Ground;
pub use launcher::{Ending, Event, LaunchSpec, Launcher, Shared};
pub use state::{StateDir, WorldFile, WorldRegion};

use crate::progress::Line;
use crate::world::router::{LatenessReport, LinkChange};
use crate::world::{KillMode, LinkStatus, ProcessSpec, ProcessStatus, Selection};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

/// What can be asked of a living world.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Wait until everything that the world was started with is ready. Answer: `Done` or `Error`.
    WaitReady,
    /// Regions, processes, exposed ports. Answer: `Status`.
    Status,
    /// Change settings of links. Answer: `Done`.
    Link {
        /// Which directions.
        selection: Selection,
        /// What changes.
        change: LinkChange,
    },
    /// Cut links: silence, also for what is in flight. Answer: `Done`.
    Cut(Selection),
    /// Heal cut links. Answer: `Done`.
    Heal(Selection),
    /// Kill a region. Answer: `Done`, when its processes are gone.
    Kill {
        /// Its name.
        region: String,
        /// How.
        mode: KillMode,
    },
    /// Bring a killed region back, with everything that ran in it. Answer: `Done`.
    Start {
        /// Its name.
        region: String,
        /// Answer only when it is ready again.
        wait: bool,
    },
    /// Stop processes as if they hung. Answer: `Done`.
    Pause {
        /// Region.
        region: String,
        /// Process; all when absent.
        process: Option<String>,
    },
    /// Let paused processes go on. Answer: `Done`.
    Resume {
        /// Region.
        region: String,
        /// Process; all when absent.
        process: Option<String>,
    },
    /// Start a process of one's own. Answer: `Done`, when it runs.
    Spawn {
        /// Region.
        region: String,
        /// The process.
        process: ProcessSpec,
    },
    /// End one process: SIGKILL, or SIGTERM when `polite`. Answer: `Done`, when it is gone.
    KillProcess {
        /// Region.
        region: String,
        /// Process.
        process: String,
        /// SIGTERM.
        #[serde(default)]
        polite: bool,
    },
    /// Start a process that ended, as it was started before. Answer: `Done`, when it runs.
    StartProcess {
        /// Region.
        region: String,
        /// Process.
        process: String,
    },
    /// Make a port of a region reachable from the host. Answer: `Exposed`.
    Expose {
        /// Region.
        region: String,
        /// Port at the region's address.
        port: u16,
    },
    /// Settings and counters of all links, the router's lateness. Answer: `Links`.
    Links,
    /// Measure the router's lateness anew from now on. Answer: `Done`.
    ResetLateness,
    /// The way into a region's namespaces. Answer: `Entry`.
    Entry {
        /// Region.
        region: String,
    },
    /// End the world. Answer: `Done`; the world is gone when its lock is free.
    Down,
}

/// What a world answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// Done.
    Done,
    /// It could not be done.
    Error {
        /// Why, and what to do.
        message: String,
    },
    /// Something happened on the way to the answer.
    Progress(Line),
    /// Answer to `Status`.
    Status(Status),
    /// Answer to `Links`.
    Links(Links),
    /// Answer to `Expose`.
    Exposed {
        /// Address on the host.
        address: SocketAddr,
    },
    /// Answer to `Entry`.
    Entry {
        /// Number of the region's init on the host.
        init_pid: i32,
        /// What programs in the region are told by their environment.
        environment: Vec<(String, String)>,
    },
}

/// A world as `status` shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Number of the launcher.
    pub pid: i32,
    /// How far it is.
    pub phase: Phase,
    /// Seconds since the launcher began.
    pub seconds: f64,
    /// Folder of the world: disks, logs, `secrets`. Absent while it is being prepared.
    pub folder: Option<PathBuf>,
    /// All regions.
    pub regions: Vec<RegionStatus>,
    /// Settings that this kernel did not take.
    pub remarks: Vec<String>,
}

/// How far a world is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Engines and services are starting.
    Starting,
    /// Everything that it was started with was ready once.
    Ready,
    /// It could not be started, for this reason, and is ending.
    Failed(String),
    /// It is ending.
    Ending,
}

/// A region as `status` shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RegionStatus {
    /// Name.
    pub name: String,
    /// Address inside the world.
    pub address: String,
    /// False after a kill.
    pub up: bool,
    /// Its processes.
    pub processes: Vec<ProcessStatus>,
    /// Ports usable from the host, by service.
    pub exposed: BTreeMap<String, SocketAddr>,
}

/// Answer to `links`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Links {
    /// Each direction.
    pub links: Vec<LinkStatus>,
    /// How late the router itself was since the last reset.
    pub lateness: LatenessReport,
    /// True when the router has real-time priority.
    pub realtime: bool,
    /// Packets that did not belong to the world.
    pub stray_packets: u64,
}
