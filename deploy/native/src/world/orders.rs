//! What the launcher and a region's init say to each other: one JSON object a line.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Launcher to init, on init's standard input. Its end is an order too: end the region.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Start a process.
    Spawn(ProcessSpec),
    /// Send a signal to the process group of a process.
    Signal {
        /// Name of the process.
        name: String,
        /// Number of the signal.
        signal: i32,
    },
}

/// Init to launcher, on init's standard output.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// The region's init runs.
    Ready,
    /// A process runs.
    Started {
        /// Name of the process.
        name: String,
        /// Its number inside the region.
        inner_pid: i32,
    },
    /// A process could not be started.
    Failed {
        /// Name of the process.
        name: String,
        /// Why.
        error: String,
    },
    /// A process has ended.
    Exited {
        /// Name of the process.
        name: String,
        /// How.
        status: ExitStatus,
    },
}

/// A process to run in a region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessSpec {
    /// Its name in the region: of its log file too.
    pub name: String,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Environment on top of the launcher's own.
    pub env: Vec<(String, String)>,
    /// Working folder; the launcher's own when absent.
    pub cwd: Option<PathBuf>,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitStatus {
    /// Exit code, when it exited by itself.
    pub code: Option<i32>,
    /// Signal, when one ended it.
    pub signal: Option<i32>,
}

impl ExitStatus {
    /// Ended by SIGKILL, as everything in a killed region is.
    pub const KILLED: Self = Self { code: None, signal: Some(9) };

    /// True for exit code 0.
    pub fn success(self) -> bool {
        self.code == Some(0)
    }

    /// The code a shell would show: 128 + signal when one ended it.
    pub fn shell_code(self) -> i32 {
        self.code.unwrap_or_else(|| 128 + self.signal.unwrap_or(0))
    }
}

impl std::fmt::Display for ExitStatus {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.code, self.signal) {
            (Some(code), _) => write!(formatter, "exit code {code}"),
            (None, Some(signal)) => write!(formatter, "signal {signal}"),
            (None, None) => write!(formatter, "ended"),
        }
    }
}
