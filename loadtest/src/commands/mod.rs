//! The commands of the binary.

mod drill;
mod inside;
mod list;
mod rerun;
mod smoke;

use crate::plan::Overrides;
use clap::{Args, Parser, Subcommand};
use std::{path::PathBuf, process::ExitCode};

/// Open-loop load, faults, and a verdict on where every event is.
#[derive(Debug, Parser)]
#[command(name = "loadtest", version, after_help = "Exit code: 0 good, 1 bad, 2 could not judge.")]
pub struct Cli {
    /// The world under test [default: the variable MERIDIAN_WORLD, else .meridian/world.json]
    #[arg(long, global = true, value_name = "FILE")]
    world: Option<PathBuf>,
    /// What to do
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Drills: loads with faults, then audit, verdict and report
    Drill {
        /// Folder of drills
        #[arg(long, global = true, default_value = "loadtest/drills", value_name = "DIR")]
        drills: PathBuf,
        #[command(subcommand)]
        command: DrillCommand,
    },
    /// Run a plan without faults, then audit, verdict and report
    Load {
        /// For example loadtest/plans/default.toml
        plan: PathBuf,
        #[command(flatten)]
        options: LoadOptions,
    },
    /// Post a few events in one region and show each hop
    Smoke {
        /// The region [default: the first one]
        #[arg(long)]
        region: Option<String>,
    },
    /// Read a region's log and rows; runs inside the region
    Audit(AuditOptions),
    /// Draw run.json of a run again
    Report {
        /// The run's folder
        run: PathBuf,
    },
    /// Judge a run's history and audits again
    Check {
        /// The run's folder
        run: PathBuf,
        /// Read the regions of the living world anew first
        #[arg(long)]
        again: bool,
    },
}

#[derive(Debug, Subcommand)]
enum DrillCommand {
    /// Name the drills
    List {
        /// Names only
        #[arg(long)]
        names: bool,
    },
    /// Show what a drill does, and when
    Show {
        /// A name, or the path of a file
        drill: String,
        #[command(flatten)]
        options: LoadOptions,
    },
    /// Run a drill
    Run {
        /// A name, or the path of a file
        drill: String,
        #[command(flatten)]
        options: LoadOptions,
    },
    /// Draw run.json of a run again
    Report {
        /// The run's folder
        run: PathBuf,
    },
}

/// What the command line changes of a plan.
#[derive(Debug, Args)]
struct LoadOptions {
    /// Events a second of each region, instead of the plan's
    #[arg(long)]
    rate: Option<f64>,
    /// Seconds of load, instead of the plan's
    #[arg(long)]
    duration: Option<f64>,
    /// Seed, instead of the plan's
    #[arg(long)]
    seed: Option<u64>,
    /// Folder of runs
    #[arg(long, default_value = "runs", value_name = "DIR")]
    runs: PathBuf,
}

impl LoadOptions {
    fn overrides(&self) -> Overrides {
        Overrides { rate: self.rate, duration: self.duration, seed: self.seed }
    }
}

/// What an audit is about.
#[derive(Debug, Args)]
struct AuditOptions {
    /// The region that this runs in
    #[arg(long)]
    region: String,
    /// CloudEvents `source` of the run
    #[arg(long, default_value = "")]
    source: String,
    /// And all that was committed since, microseconds since the Unix epoch
    #[arg(long, default_value_t = 0)]
    since_us: u64,
    /// Where to write it
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

/// Runs the command line.
pub async fn run() -> ExitCode {
    let Cli { world, command } = Cli::parse();
    let work = async {
        match command {
            Command::Drill { drills, command } => match command {
                DrillCommand::List { names } => list::list(&drills, names),
                DrillCommand::Show { drill, options } => list::show(&list::find(&drills, &drill)?, &options),
                DrillCommand::Run { drill, options } => drill::drill(world.as_deref(), &list::find(&drills, &drill)?, &options).await,
                DrillCommand::Report { run } => rerun::report(&run),
            },
            Command::Load { plan, options } => drill::load(world.as_deref(), &plan, &options).await,
            Command::Smoke { region } => smoke::smoke(world.as_deref(), region).await,
            Command::Audit(options) => inside::audit(world.as_deref(), &options).await,
            Command::Report { run } => rerun::report(&run),
            Command::Check { run, again } => rerun::check(world.as_deref(), &run, again).await,
        }
    };
    let ended = tokio::select! {
        ended = work => ended,
        _ = tokio::signal::ctrl_c() => {
            eprintln!("loadtest: interrupted; no run was kept");
            return ExitCode::from(130);
        }
    };
    match ended {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("loadtest: {error:#}");
            ExitCode::from(2)
        }
    }
}
