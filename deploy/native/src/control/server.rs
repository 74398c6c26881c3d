//! The launcher's end of the control socket: one thread a connection, one answer a request.

use super::launcher::{Event, Shared};
use super::state;
use super::{Links, Phase, RegionStatus, Request, Response, Status};
use crate::world::{ProcessState, Signal, World};
use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Longest request.
const REQUEST_BYTES_MAX: u64 = 64 << 10;
/// How often a waiting connection looks for what is new.
const LOOK: Duration = Duration::from_millis(100);
/// How long a killed process may take to be gone.
const KILL_DEADLINE: Duration = Duration::from_secs(30);

/// Listens on the socket until the process ends.
///
/// # Errors
/// When nothing can listen there.
pub fn start(socket: &Path, shared: &Arc<Shared>) -> Result<()> {
    let listener = state::listen(socket)?;
    let shared = Arc::clone(shared);
    std::thread::Builder::new().name("control".into()).spawn(move || {
        for stream in listener.incoming().flatten() {
            let shared = Arc::clone(&shared);
            // A client that hangs up early wants no answer; a thread that cannot be had closes the connection.
            let _ = std::thread::Builder::new().name("control".into()).spawn(move || drop(serve(stream, &shared)));
        }
    })?;
    Ok(())
}

fn serve(stream: UnixStream, shared: &Arc<Shared>) -> Result<()> {
    let mut output = stream.try_clone()?;
    let mut input = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if input.by_ref().take(REQUEST_BYTES_MAX).read_line(&mut line)? == 0 {
            return Ok(());
        }
        let answer = match serde_json::from_str(&line).context("not a request of this version of `native`") {
            Ok(request) => answer(request, shared, &mut output),
            Err(error) => Err(error),
        };
        say(&mut output, &answer.unwrap_or_else(|error| Response::Error { message: format!("{error:#}") }))?;
    }
}

fn say(output: &mut UnixStream, response: &Response) -> Result<()> {
    let mut line = serde_json::to_vec(response)?;
    line.push(b'\n');
    Ok(output.write_all(&line)?)
}

fn answer(request: Request, shared: &Arc<Shared>, output: &mut UnixStream) -> Result<Response> {
    match request {
        Request::WaitReady => return wait_ready(shared, output),
        Request::Status => return Ok(Response::Status(status(shared)?)),
        Request::Link { selection, change } => shared.world()?.set_links(&selection, &change)?,
        Request::Cut(selection) => shared.world()?.cut(&selection)?,
        Request::Heal(selection) => shared.world()?.heal(&selection)?,
        Request::Kill { region, mode } => shared.kill(&region, mode)?,
        Request::Start { region, wait } => start_region(shared, region, wait, output)?,
        Request::Pause { region, process } => signal(shared.world()?, &region, process.as_deref(), Signal::SIGSTOP)?,
        Request::Resume { region, process } => signal(shared.world()?, &region, process.as_deref(), Signal::SIGCONT)?,
        Request::Spawn { region, process } => shared.world()?.spawn(&region, process)?,
        Request::KillProcess { region, process, polite } => kill_process(shared.world()?, &region, &process, polite)?,
        Request::StartProcess { region, process } => shared.world()?.respawn(&region, &process)?,
        Request::Expose { region, port } => {
            return Ok(Response::Exposed { address: shared.expose(&region, &port_name(shared, port), port)? });
        }
        Request::Links => return Ok(Response::Links(links(shared.world()?))),
        Request::ResetLateness => shared.world()?.reset_lateness(),
        Request::Entry { region } => {
            let (init_pid, environment) = shared.entry(&region)?;
            return Ok(Response::Entry { init_pid, environment });
        }
        Request::Down => shared.tell(Event::Down),
    }
    Ok(Response::Done)
}

/// Tells what happens until the world is ready or has failed.
fn wait_ready(shared: &Shared, output: &mut UnixStream) -> Result<Response> {
    let mut told = 0;
    loop {
        let phase = shared.phase();
        for line in shared.progress.since(told, LOOK) {
            told += 1;
            say(output, &Response::Progress(line))?;
        }
        match phase {
            Phase::Starting => {}
            Phase::Ready => return Ok(Response::Done),
            Phase::Failed(reason) => bail!(reason),
            Phase::Ending => bail!("the world is ending"),
        }
    }
}

fn start_region(shared: &Arc<Shared>, region: String, wait: bool, output: &mut UnixStream) -> Result<()> {
    let mut told = shared.progress.since(0, Duration::ZERO).len();
    let starting = Arc::clone(shared);
    shared.world()?.region(&region)?;
    if shared.world()?.is_up(&region) {
        bail!("region {region} is up already");
    }
    let name = region.clone();
    let start = move || {
        let started = starting.start_region(&name);
        if let Err(error) = &started {
            starting.progress.say(&name, format!("did not come back: {error:#}"));
        }
        started
    };
    let work = std::thread::Builder::new().name(format!("start-{region}")).spawn(start)?;
    while wait && !work.is_finished() {
        for line in shared.progress.since(told, LOOK) {
            told += 1;
            say(output, &Response::Progress(line))?;
        }
    }
    if wait { work.join().unwrap_or_else(|_| bail!("the start of {region} panicked")) } else { Ok(()) }
}

fn signal(world: &World, region: &str, process: Option<&str>, signal: Signal) -> Result<()> {
    match process {
        Some(process) => world.signal(region, process, signal),
        None => world.alive(region)?.iter().try_for_each(|process| world.signal(region, process, signal)),
    }
}

fn kill_process(world: &World, region: &str, process: &str, polite: bool) -> Result<()> {
    world.signal(region, process, if polite { Signal::SIGTERM } else { Signal::SIGKILL })?;
    if polite && world.processes(region)?.iter().any(|status| status.name == process && status.state == ProcessState::Paused) {
        world.signal(region, process, Signal::SIGCONT)?;
    }
    world.wait_exit(region, process, KILL_DEADLINE).map(drop)
}

fn port_name(shared: &Shared, port: u16) -> String {
    shared.name_of_port(port).unwrap_or_else(|| port.to_string())
}

fn status(shared: &Shared) -> Result<Status> {
    let region = |world: &World, name: &str, address: String| -> Result<RegionStatus> {
        Ok(RegionStatus {
            name: name.into(),
            address,
            up: world.is_up(name),
            processes: world.processes(name)?,
            exposed: shared.exposed(name),
        })
    };
    let (folder, regions, remarks) = match shared.world() {
        Ok(world) => {
            let regions = world.regions().iter().map(|spec| region(world, &spec.name, spec.address.to_string())).collect::<Result<_>>()?;
            (Some(world.dir().into()), regions, world.remarks())
        }
        Err(_) => (None, Vec::new(), Vec::new()),
    };
    Ok(Status { pid: std::process::id() as i32, phase: shared.phase(), seconds: shared.progress.seconds(), folder, regions, remarks })
}

fn links(world: &World) -> Links {
    Links { links: world.links(), lateness: world.lateness(), realtime: world.is_router_realtime(), stray_packets: world.stray_packets() }
}
