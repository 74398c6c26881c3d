//! Commands that make a world: `up` in the background, `run` for the life of a command.

use super::arguments::WorldArguments;
use super::status;
use crate::control::{Client, Ending, Event, Ground, LaunchSpec, Launcher, Request, StateDir};
use crate::progress::{Line, Progress};
use crate::world::{RegionSpec, Signal, WorldSpec, default_links, guard, guarded, stages, user};
use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use nix::sys::signal::kill;
use nix::unistd::{Pid, setsid};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::File;
use std::io::{IsTerminal, Read, Write, stderr, stdin};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// First argument of a launcher in the background; then the state folder and the world as JSON.
pub const BACKGROUND: &str = "__background";
/// Names of the regions, in the order of their numbers.
const REGIONS: [&str; 5] = ["fra", "iad", "sin", "syd", "gru"];
/// Exit code after SIGINT (what a shell shows).
const INTERRUPTED: i32 = 130;
/// How long the background may take to listen.
const LISTEN_DEADLINE: Duration = Duration::from_secs(10);
/// How long a command may take to end when it is asked to; its guard kills it before.
const COMMAND_DEADLINE: Duration = Duration::from_secs(15);
const LOG_TAIL_LINES: usize = 25;
/// What a world starts from.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Disks {
    /// Empty disks, which the next such world empties: they can still be looked at.
    Passing,
    /// The disks that the last world of these regions left.
    Kept,
    /// The same, emptied.
    Emptied,
}

/// Said by `up` to its background when it waits no longer, because all is ready.
const DETACH: &[u8] = b"detach\n";

pub fn fetch() -> Result<i32> {
    crate::engines::fetch(&Progress::default())?;
    Ok(0)
}

/// Runs a command with a world of its own.
pub fn run(dir: &StateDir, arguments: WorldArguments, inside: Option<String>, command: &[OsString]) -> Result<i32> {
    user::become_root()?;
    let launcher = Launcher::begin(launch_spec(dir, arguments, Disks::Passing), Progress::default())?;
    let result = attend(&launcher, |launcher| Ok(Some(start_command(launcher, dir, inside.as_deref(), command)?)));
    launcher.end();
    match result? {
        Ending::Command(code) => Ok(code),
        Ending::Interrupted => Ok(INTERRUPTED),
        Ending::Down => bail!("the world was ended by `native down`"),
    }
}

/// The launcher of a background world.
pub fn background(arguments: &[OsString]) -> Result<i32> {
    let [dir, world] = arguments else { bail!("a background launcher needs a folder and a world") };
    // A new session: a terminal's Ctrl-C is not for it.
    let _ = setsid();
    user::become_root()?;
    let (arguments, disks) = serde_json::from_str(&world.to_string_lossy())?;
    let launcher = Launcher::begin(launch_spec(&StateDir::at(Path::new(dir))?, arguments, disks), Progress::default())?;
    let shared = Arc::clone(launcher.shared());
    std::thread::Builder::new().name("starter".into()).spawn(move || {
        let mut said = Vec::new();
        if stdin().take(DETACH.len() as u64).read_to_end(&mut said).is_err() || said != DETACH {
            shared.tell(Event::Abandoned);
        }
    })?;
    let result = attend(&launcher, |_| Ok(None));
    launcher.end();
    result.map(|ending| if matches!(ending, Ending::Interrupted) { INTERRUPTED } else { 0 })
}

/// Follows a world from its beginning to the reason of its end.
fn attend(launcher: &Launcher, begin: impl FnOnce(&Launcher) -> Result<Option<Pid>>) -> Result<Ending> {
    let mut begin = Some(begin);
    let mut command = None;
    let ending = loop {
        match launcher.next()? {
            Event::Ready => {
                if let Some(begin) = begin.take() {
                    command = begin(launcher)?;
                }
            }
            Event::CommandEnded(code) => return Ok(Ending::Command(code)),
            Event::Signalled(_) | Event::Abandoned => break Ending::Interrupted,
            Event::Down => break Ending::Down,
            Event::Failed(error) => return Err(error),
        }
    };
    if let Some(command) = command {
        stop_command(launcher, command);
    }
    Ok(ending)
}

/// Starts the command under a guard, on this thread: the guard ends it when this thread ends.
fn start_command(launcher: &Launcher, dir: &StateDir, inside: Option<&str>, command: &[OsString]) -> Result<Pid> {
    let shared = Arc::clone(launcher.shared());
    let Some((program, arguments)) = command.split_first() else { bail!("no command") };
    let mut guard = match inside {
        Some(region) => {
            let (init_pid, environment) = shared.entry(region)?;
            let mut guard = guard::guarded_inside(init_pid, program);
            guard.envs(environment);
            guard
        }
        None => guarded(program),
    };
    let mut child = guard.args(arguments).env("MERIDIAN_WORLD", dir.world_file()).spawn().context("cannot start a guard")?;
    let pid = Pid::from_raw(child.id() as i32);
    std::thread::Builder::new().name("command".into()).spawn(move || {
        let code = child.wait().ok().and_then(|status| status.code()).unwrap_or(1);
        shared.tell(Event::CommandEnded(code));
    })?;
    Ok(pid)
}

fn stop_command(launcher: &Launcher, command: Pid) {
    let _ = kill(command, Signal::SIGTERM);
    let began = Instant::now();
    while began.elapsed() < COMMAND_DEADLINE {
        match launcher.next_within(COMMAND_DEADLINE) {
            // Asked a second time: no more patience.
            Some(Event::Signalled(_)) => break,
            Some(Event::CommandEnded(_)) | None => return,
            Some(_) => {}
        }
    }
    let _ = kill(command, Signal::SIGKILL);
}

fn launch_spec(dir: &StateDir, arguments: WorldArguments, disks: Disks) -> LaunchSpec {
    let WorldArguments { regions, engines_only, services, bare, seed, mtu, tun } = arguments;
    let region = |(name, index): (&&str, u8)| RegionSpec { name: (*name).into(), address: Ipv4Addr::new(10, index, 0, 1), index };
    let regions: Vec<RegionSpec> = REGIONS.iter().zip(1..=regions).map(region).collect();
    let (folder, fresh) = match disks {
        Disks::Passing => (dir.passing(), true),
        Disks::Emptied => (dir.lasting(&regions), true),
        Disks::Kept => (dir.lasting(&regions), false),
    };
    let world = WorldSpec { dir: folder, regions, links: default_links(), seed, mtu, tun };
    let ground = if bare { Ground::bare() } else { Ground::engines((!engines_only).then_some(services)) };
    LaunchSpec { dir: dir.clone(), world, fresh, ground }
}

/// Starts a background world and follows it until it is ready.
pub fn up(dir: &StateDir, arguments: &WorldArguments, fresh: bool) -> Result<i32> {
    let disks = if fresh { Disks::Emptied } else { Disks::Kept };
    // Looked at first for a clear answer; the background takes it for good.
    drop(dir.hold()?);
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    let log = File::create(dir.launcher_log()).with_context(|| format!("cannot write {}", dir.launcher_log().display()))?;
    let mut background = Command::new(stages::THIS_PROGRAM)
        .arg(BACKGROUND)
        .arg(dir.path())
        .arg(serde_json::to_string(&(arguments, disks))?)
        .stdin(Stdio::piped())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("cannot start the background launcher")?;
    let result = follow(dir, &mut background, &interrupted);
    match result {
        Ok(true) => {
            background.stdin.take().context("no way to the background")?.write_all(DETACH)?;
            status::print(&Client::of(dir)?.status()?);
            println!("end it with `native down`; its log is {}", dir.launcher_log().display());
            Ok(0)
        }
        Ok(false) => {
            eprintln!("interrupted: ending the world");
            end(&mut background)?;
            Ok(INTERRUPTED)
        }
        Err(error) => {
            end(&mut background)?;
            eprintln!("the last lines of {}:\n{}", dir.launcher_log().display(), tail(&dir.launcher_log()));
            Err(error)
        }
    }
}

/// True when the world is ready, false when the user wants no more.
fn follow(dir: &StateDir, background: &mut Child, interrupted: &AtomicBool) -> Result<bool> {
    let client = connect(dir, background, interrupted)?;
    let Some(client) = client else { return Ok(false) };
    let show = Show::default();
    let (done, outcome) = mpsc::channel();
    let shown = show.clone();
    std::thread::Builder::new().name("follow".into()).spawn(move || {
        let outcome = client.call_with(&Request::WaitReady, |line| shown.line(line));
        let _ = done.send(outcome);
    })?;
    loop {
        match outcome.recv_timeout(Duration::from_millis(100)) {
            Ok(outcome) => {
                show.finish();
                return outcome.map(|_| true);
            }
            Err(mpsc::RecvTimeoutError::Timeout) if interrupted.load(Ordering::Relaxed) => {
                show.finish();
                return Ok(false);
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => bail!("the follower is gone"),
        }
    }
}

fn connect(dir: &StateDir, background: &mut Child, interrupted: &AtomicBool) -> Result<Option<Client>> {
    let began = Instant::now();
    loop {
        if let Ok(client) = Client::of(dir) {
            return Ok(Some(client));
        }
        if interrupted.load(Ordering::Relaxed) {
            return Ok(None);
        }
        if let Some(status) = background.try_wait()? {
            bail!("the launcher ended ({status}) before it listened");
        }
        if began.elapsed() > LISTEN_DEADLINE {
            bail!("the launcher does not listen");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn end(background: &mut Child) -> Result<()> {
    let _ = kill(Pid::from_raw(background.id() as i32), Signal::SIGTERM);
    background.wait()?;
    Ok(())
}

fn tail(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    // Its last words are the error, which is shown below them.
    let lines = &lines[..lines.iter().rposition(|line| line.starts_with("error: ")).unwrap_or(lines.len())];
    lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].iter().map(|line| format!("  {line}\n")).collect()
}

/// Progress of somebody else on this terminal: lines, and a sign of life below them when a person watches.
#[derive(Clone)]
struct Show(ProgressBar);

impl Default for Show {
    fn default() -> Self {
        if !stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let spinner = ProgressBar::new_spinner()
            .with_style(ProgressStyle::with_template("{spinner} {elapsed} {msg}").unwrap_or_else(|_| ProgressStyle::default_spinner()));
        spinner.set_message("starting the world");
        spinner.enable_steady_tick(Duration::from_millis(100));
        Self(spinner)
    }
}

impl Show {
    fn line(&self, line: &Line) {
        if self.0.is_hidden() {
            eprintln!("{line}");
        } else {
            self.0.println(line.to_string());
        }
    }

    fn finish(&self) {
        self.0.finish_and_clear();
    }
}
