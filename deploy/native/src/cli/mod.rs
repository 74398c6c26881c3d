//! The command line of `native`.

mod arguments;
mod enter;
mod launch;
mod logs;
mod metrics;
mod status;
mod steer;
mod units;

use crate::control::StateDir;
use crate::world::{guard, stages};
use anyhow::Result;
use arguments::{Cli, Command};
use clap::Parser;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

/// Runs the command line of this process, or the stage of a world that this process is.
pub fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let result = stage(&arguments).unwrap_or_else(|| dispatch(Cli::parse()));
    match result {
        Ok(code) => ExitCode::from(code as u8),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The stages have words of their own, which nobody types. They come before anything that might start a thread.
fn stage(arguments: &[OsString]) -> Option<Result<i32>> {
    let (stage, rest) = arguments.split_first()?;
    let region = || {
        (
            rest.first().and_then(|name| name.to_str()).unwrap_or_default(),
            Path::new(rest.get(1).map_or("", |dir| dir.to_str().unwrap_or_default())),
        )
    };
    let done = |()| 0;
    Some(match stage.to_str()? {
        stages::OUTER => stages::outer(region().0, region().1).map(done),
        stages::INIT => stages::init(region().0, region().1).map(done),
        guard::GUARD => guard::guard(rest),
        guard::LEASH => guard::leash(rest).map(done),
        launch::BACKGROUND => launch::background(rest),
        _ => return None,
    })
}

fn dispatch(cli: Cli) -> Result<i32> {
    let dir = cli.dir.as_deref().map_or_else(StateDir::usual, StateDir::at)?;
    match cli.command {
        Command::Up { world, fresh } => launch::up(&dir, &world, fresh),
        Command::Run { world, inside, command } => launch::run(&dir, world, inside, &command),
        Command::Fetch => launch::fetch(),
        Command::Status { json } => status::status(&dir, json),
        Command::Down => steer::down(&dir),
        Command::Link { from, to, one_way, change } => steer::link(&dir, from, to, one_way, change),
        Command::Cut { from, to, one_way } => steer::cut(&dir, from, to, one_way),
        Command::Heal { from, to } => steer::heal(&dir, from, to),
        Command::Links { json, reset } => steer::links(&dir, json, reset),
        Command::Kill { region, mode } => steer::kill(&dir, &region, mode),
        Command::Start { region, no_wait } => steer::start(&dir, &region, no_wait),
        Command::Pause { region, name } => steer::pause(&dir, region, name),
        Command::Resume { region, name } => steer::resume(&dir, region, name),
        Command::KillProcess { region, name, polite } => steer::kill_process(&dir, region, name, polite),
        Command::StartProcess { region, name } => steer::start_process(&dir, region, name),
        Command::Expose { region, port } => steer::expose(&dir, region, port),
        Command::Logs { region, name, follow, lines } => logs::logs(&dir, &region, name.as_deref(), follow, lines),
        Command::Exec { region, command } => enter::exec(&dir, region, &command),
    }
}
