//! What can be typed.

use super::units::{bits_a_second, bytes, duration_us, share};
use crate::world::KillMode;
use crate::world::router::LinkChange;
use clap::{Args, Parser, Subcommand};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::PathBuf;

const AFTER_HELP: &str = "\
Examples:
  native run -- target/release/loadtest drill run log-down    a world for the life of one command
  native up                                           a world in the background; then:
  native status
  native cut fra iad                                  silence between two regions, until: native heal
  native link fra sin --latency 200ms --loss 1%
  native kill iad --mode blackhole                    silence, then gone; bring it back: native start iad
  native exec fra -- curl http://iad:8080/livez       inside a region
  native down";

/// Regions without a container engine: one network namespace a region, a WAN router between them, real engines inside.
#[derive(Debug, Parser)]
#[command(name = "native", version, after_help = AFTER_HELP)]
pub struct Cli {
    /// Folder of the world's state [default: .meridian of the checkout, else of the working folder]
    #[arg(long, global = true, value_name = "DIR", env = "MERIDIAN_DIR")]
    pub dir: Option<PathBuf>,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a world in the background and wait until everything in it is ready
    Up {
        #[command(flatten)]
        world: WorldArguments,
        /// Start from empty disks instead of those of the last world of these regions
        #[arg(long)]
        fresh: bool,
    },
    /// Run a command with a world of its own on empty disks, which ends with it; the exit code is the command's
    #[command(
        after_help = "The command finds the world through the variable MERIDIAN_WORLD, the path of its world.json. It starts when everything is ready. \
                            Ctrl-C stops it, then the world; the exit code is 130."
    )]
    Run {
        #[command(flatten)]
        world: WorldArguments,
        /// Run the command inside this region
        #[arg(long, value_name = "REGION")]
        inside: Option<String>,
        /// The command
        #[arg(last = true, required = true, value_name = "CMD")]
        command: Vec<OsString>,
    },
    /// Show regions, processes, ports usable from the host, and how far each service lags
    Status {
        /// As JSON, without the services' lag
        #[arg(long)]
        json: bool,
    },
    /// End the world of the background
    Down,
    /// Change the links between two regions
    Link {
        /// A region, or `all`
        from: String,
        /// A region, or `all`
        to: String,
        /// Only from the first to the second
        #[arg(long)]
        one_way: bool,
        #[command(flatten)]
        change: LinkArguments,
    },
    /// Cut two regions off from each other: silence, also for what is in flight
    Cut {
        /// A region, or `all`
        from: String,
        /// A region, or `all`
        to: String,
        /// Only from the first to the second
        #[arg(long)]
        one_way: bool,
    },
    /// Heal cut links: all of them when no regions are named
    Heal {
        /// A region, or `all`
        #[arg(requires = "to")]
        from: Option<String>,
        /// A region, or `all`
        to: Option<String>,
    },
    /// Show settings and counters of all links, and how late the router itself was
    Links {
        /// As JSON
        #[arg(long)]
        json: bool,
        /// Measure the lateness anew from now on
        #[arg(long)]
        reset: bool,
    },
    /// Kill a whole region; its disks stay
    Kill {
        /// The region
        region: String,
        /// crash: processes die, peers get resets; blackhole: peers hear nothing
        #[arg(long, value_enum, default_value_t = KillMode::Crash)]
        mode: KillMode,
    },
    /// Bring a killed region back, and wait until it is ready
    Start {
        /// The region
        region: String,
        /// Return at once
        #[arg(long)]
        no_wait: bool,
    },
    /// Freeze a process of a region, or all of them
    Pause {
        /// The region
        region: String,
        /// The process
        name: Option<String>,
    },
    /// Let frozen processes go on
    Resume {
        /// The region
        region: String,
        /// The process
        name: Option<String>,
    },
    /// End one process at once
    KillProcess {
        /// The region
        region: String,
        /// The process
        name: String,
        /// Ask it to end (SIGTERM) instead
        #[arg(long)]
        polite: bool,
    },
    /// Start a process that ended, as it was started before
    StartProcess {
        /// The region
        region: String,
        /// The process
        name: String,
    },
    /// Print the logs of a region
    Logs {
        /// The region
        region: String,
        /// The process; all when absent
        name: Option<String>,
        /// Go on as the logs grow
        #[arg(short, long)]
        follow: bool,
        /// Lines of each log to begin with
        #[arg(short = 'n', long, default_value_t = 50)]
        lines: usize,
    },
    /// Run a command inside a region; the exit code is the command's
    Exec {
        /// The region
        region: String,
        /// The command
        #[arg(last = true, required = true, value_name = "CMD")]
        command: Vec<OsString>,
    },
    /// Make a port of a region reachable on the host's 127.0.0.1, for the life of the world
    Expose {
        /// The region
        region: String,
        /// The port at the region's address
        port: u16,
    },
    /// Fetch the engines into the user's cache, so that later starts need no network
    Fetch,
}

/// The world to make.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct WorldArguments {
    /// How many regions, in this order: fra, iad, sin, syd, gru
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=5))]
    pub regions: u8,
    /// Start the engines, but no service
    #[arg(long, conflicts_with = "services")]
    pub engines_only: bool,
    /// Start these services only
    #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
    pub services: Vec<String>,
    /// Start neither engines nor services
    #[arg(long, conflicts_with_all = ["engines_only", "services"])]
    pub bare: bool,
    /// Source of the links' chances: the same traffic meets the same losses
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
    /// Largest packet between regions
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u32).range(576..=65_000))]
    pub mtu: u32,
    /// Node of the TUN device, if the usual one is closed to this user
    #[arg(long, value_name = "PATH", env = "MERIDIAN_TUN", default_value = "/dev/net/tun")]
    pub tun: PathBuf,
}

/// What changes on a link.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = true)]
pub struct LinkArguments {
    /// One-way delay, such as 80ms
    #[arg(long, value_parser = duration_us, value_name = "TIME")]
    pub latency: Option<u64>,
    /// The delay varies by up to this, to either side
    #[arg(long, value_parser = duration_us, value_name = "TIME")]
    pub jitter: Option<u64>,
    /// Packets lost, such as 1%
    #[arg(long, value_parser = share, value_name = "PERCENT")]
    pub loss: Option<f64>,
    /// Packets that arrive twice, such as 1%
    #[arg(long, value_parser = share, value_name = "PERCENT")]
    pub duplicate: Option<f64>,
    /// Bandwidth, such as 100mbit; `unlimited`
    #[arg(long, value_parser = bits_a_second, value_name = "RATE")]
    pub rate: Option<u64>,
    /// What may wait for the bandwidth, such as 256KiB
    #[arg(long, value_parser = bytes, value_name = "BYTES")]
    pub queue: Option<u64>,
}

impl From<LinkArguments> for LinkChange {
    fn from(arguments: LinkArguments) -> Self {
        Self {
            latency_us: arguments.latency,
            jitter_us: arguments.jitter,
            loss: arguments.loss,
            duplicate: arguments.duplicate,
            rate_bits: arguments.rate,
            queue_bytes: arguments.queue,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
