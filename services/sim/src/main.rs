//! Runs schedules, and tells the story of the first one that fails.

use clap::Parser;
use sim::{Bug, Outcome, Plan, shrink, simulate};
use std::{process::ExitCode, time::Instant};

/// Simulates datacenter disasters.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// How many schedules to run.
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Run this one alone, and print its trace.
    #[arg(long)]
    seed: Option<u64>,
    /// Break this rule on purpose: a name of the list that `--bugs` prints.
    #[arg(long)]
    bug: Option<String>,
    /// List the rules that can be broken on purpose.
    #[arg(long)]
    bugs: bool,
    /// Print the story of a failing schedule as it is, without leaving anything out.
    #[arg(long)]
    whole: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.bugs {
        Bug::ALL.iter().for_each(|bug| println!("{bug:?}: {}", bug.rule()));
        return ExitCode::SUCCESS;
    }
    let bug = match &arguments.bug {
        None => None,
        Some(name) => match Bug::ALL.iter().find(|bug| format!("{bug:?}") == *name) {
            Some(bug) => Some(*bug),
            None => {
                eprintln!("sim: there is no bug {name:?}; see sim --bugs");
                return ExitCode::from(2);
            }
        },
    };
    match arguments.seed {
        Some(seed) => one(seed, bug),
        None => many(&arguments, bug),
    }
}

fn one(seed: u64, bug: Option<Bug>) -> ExitCode {
    let outcome = simulate(&Plan::of_seed(seed), bug, true);
    print!("{}", outcome.trace);
    println!("seed {seed}: {} promises broken", outcome.broken.len());
    if outcome.broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn many(arguments: &Arguments, bug: Option<Bug>) -> ExitCode {
    let (started, seeds) = (Instant::now(), arguments.first..arguments.first + arguments.seeds);
    for (count, seed) in seeds.enumerate() {
        let plan = Plan::of_seed(seed);
        let outcome = simulate(&plan, bug, false);
        if let Some(broken) = outcome.broken.first() {
            rate(count as u64 + 1, started);
            println!("seed {seed} breaks promise {}: {}", broken.promise, broken.what);
            let (small, told) =
                if arguments.whole { (plan.clone(), simulate(&plan, bug, true)) } else { shrink(&plan, bug, broken.promise) };
            story(&plan, &small, &told);
            return ExitCode::FAILURE;
        }
        if (count + 1) % 1_000 == 0 {
            rate(count as u64 + 1, started);
        }
    }
    rate(arguments.seeds, started);
    println!("no promise was broken, seeds {} to {}", arguments.first, arguments.first + arguments.seeds.saturating_sub(1));
    ExitCode::SUCCESS
}

fn rate(count: u64, started: Instant) {
    let seconds = started.elapsed().as_secs_f64();
    let rate = count as f64 / seconds.max(1e-9);
    println!("{count} schedules in {seconds:.1} s: {rate:.1} a second, {:.0} a minute", rate * 60.0);
}

fn story(plan: &Plan, small: &Plan, told: &Outcome) {
    println!("Of {} posts and {} faults these were enough:", plan.posts.len(), plan.faults.len());
    println!("{} posts and {} faults, {} regions.\n", small.posts.len(), small.faults.len(), small.regions);
    print!("{}", told.trace);
}
