//! Children of the launcher on the host, or from the host into a region, that must not outlive it: each runs under a guard.
//!
//! launcher → *guard* (adopts every orphan below it) → *leash* → command. **When the launcher ends, or the command, or the guard is told
//! to, every descendant of the guard is ended**, however it detached itself.

use super::orders::ExitStatus;
use super::processes::descendants;
use super::stages::THIS_PROGRAM;
use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpid, getppid};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

/// First argument of the guard; then the launcher's number, the number of a region's init or 0, and the command.
pub const GUARD: &str = "__guard";
/// First argument of the leash; then the number of a region's init or 0, and the command.
pub const LEASH: &str = "__leash";

/// Sent to the guard by the kernel when the thread that started it ends.
const LAUNCHER_GONE: Signal = Signal::SIGUSR2;
/// How long the command may take to end after a polite request.
const POLITE_WAIT: Duration = Duration::from_secs(10);

/// A command on the host that ends, with all its descendants, when the launcher does.
///
/// **Wait for it on the thread that spawned it**: the kernel tells the end of that thread, not that of the process.
pub fn guarded(program: impl AsRef<OsStr>) -> Command {
    guard_command(0, program.as_ref())
}

/// The same, inside all namespaces of the region whose init this is.
pub fn guarded_inside(init_pid: i32, program: impl AsRef<OsStr>) -> Command {
    guard_command(init_pid, program.as_ref())
}

fn guard_command(init_pid: i32, program: &OsStr) -> Command {
    let mut command = Command::new(THIS_PROGRAM);
    command.arg0("native-guard").args([GUARD, &getpid().to_string(), &init_pid.to_string()]).arg(program);
    command
}

/// The guard's life: `launcher init command…`. Returns the exit code to end with.
///
/// # Errors
/// When the arguments are wrong or the command cannot be started.
pub fn guard(arguments: &[OsString]) -> Result<i32> {
    let [launcher, init, command @ ..] = arguments else { bail!("a guard needs a launcher, an init and a command") };
    let number = |text: &OsString| text.to_str().and_then(|text| text.parse::<i32>().ok()).context("not a number");
    prctl::set_pdeathsig(LAUNCHER_GONE)?;
    if getppid().as_raw() != number(launcher)? {
        // It ended before the line above.
        return Ok(1);
    }
    supervise(number(init)?, &[], command)
}

/// Runs a command (inside a region, unless `init_pid` is 0) until its end, and ends what it leaves behind; the exit code for a shell.
///
/// What it leaves behind in a region is adopted by the region's init, and ends with the region.
///
/// **Needs a process of one thread**: signals are taken by waiting for them, and namespaces are entered.
///
/// # Errors
/// When a namespace cannot be entered or the command cannot be started.
pub fn supervise(init_pid: i32, environment: &[(String, String)], command: &[OsString]) -> Result<i32> {
    prctl::set_child_subreaper(true)?;
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGCHLD, Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, LAUNCHER_GONE] {
        signals.add(signal);
    }
    signals.thread_block()?;
    // Only children go into the process namespace. This process stays with the host's /proc, whose numbers it goes by.
    enter(init_pid, &[("user", CloneFlags::CLONE_NEWUSER), ("pid", CloneFlags::CLONE_NEWPID)])?;
    let child = Command::new(THIS_PROGRAM)
        .args([LEASH, &init_pid.to_string()])
        .args(command)
        .envs(environment.iter().map(|(key, value)| (key, value)))
        .spawn()
        .context("cannot start a process")?;
    let status = attend(&signals, Pid::from_raw(child.id() as i32))?;
    end_descendants();
    Ok(status.shell_code())
}

/// Waits for the child's end; hands polite requests on, and makes them impolite after a while.
fn attend(signals: &SigSet, child: Pid) -> Result<ExitStatus> {
    loop {
        match signals.wait()? {
            Signal::SIGCHLD => {
                if let Some(status) = reap(child) {
                    return Ok(status);
                }
            }
            // A terminal sends it to the command as well.
            Signal::SIGINT => {}
            LAUNCHER_GONE => return Ok(ExitStatus::KILLED),
            signal => {
                let _ = kill(child, signal);
                return Ok(wait_politely(child));
            }
        }
    }
}

fn wait_politely(child: Pid) -> ExitStatus {
    let (began, launcher) = (Instant::now(), getppid());
    loop {
        if let Some(status) = reap(child) {
            return status;
        }
        if began.elapsed() > POLITE_WAIT || getppid() != launcher {
            return ExitStatus::KILLED;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Reaps all that has ended; how `child` ended, when it did.
fn reap(child: Pid) -> Option<ExitStatus> {
    let mut ended = None;
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) if pid == child => ended = Some(ExitStatus { code: Some(code), signal: None }),
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == child => {
                ended = Some(ExitStatus { code: None, signal: Some(signal as i32) })
            }
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return ended,
            Ok(_) | Err(_) => {}
        }
    }
}

/// Kills and reaps until there are no descendants: those whose parent died are adopted here, so none gets away.
fn end_descendants() {
    loop {
        let family = descendants(getpid().as_raw());
        for pid in &family {
            let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
        }
        if reap_all_dead() || family.is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn reap_all_dead() -> bool {
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => return false,
            Err(Errno::ECHILD) => return true,
            Ok(_) | Err(_) => {}
        }
    }
}

/// The leash: `init command…`. Becomes the command, inside the region, with the usual signals, and dies with the guard.
///
/// # Errors
/// When a namespace cannot be entered or the command cannot be started; otherwise it does not return.
pub fn leash(arguments: &[OsString]) -> Result<()> {
    let [init, program, arguments @ ..] = arguments else { bail!("no command") };
    let here = std::env::current_dir().context("no working folder")?;
    let init_pid = init.to_str().and_then(|text| text.parse().ok()).context("not a number")?;
    // Of the mounts last: they bring another /proc and working folder.
    let kinds = [
        ("net", CloneFlags::CLONE_NEWNET),
        ("uts", CloneFlags::CLONE_NEWUTS),
        ("ipc", CloneFlags::CLONE_NEWIPC),
        ("mnt", CloneFlags::CLONE_NEWNS),
    ];
    enter(init_pid, &kinds)?;
    std::env::set_current_dir(&here).with_context(|| format!("{} does not exist in the region", here.display()))?;
    // Last: a change of namespaces forgets it.
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    SigSet::empty().thread_set_mask()?;
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("cannot start {}", program.display()))
}

/// Moves this process into namespaces of the region whose init this is; nowhere for 0.
fn enter(init_pid: i32, kinds: &[(&str, CloneFlags)]) -> Result<()> {
    if init_pid == 0 {
        return Ok(());
    }
    let path = |kind: &str| format!("/proc/{init_pid}/ns/{kind}");
    // One's own user namespace cannot be entered again.
    let foreign = |kind: &str| kind != "user" || fs::read_link("/proc/self/ns/user").ok() != fs::read_link(path(kind)).ok();
    for (kind, flag) in kinds.iter().filter(|(kind, _)| foreign(kind)) {
        let namespace = File::open(path(kind)).with_context(|| format!("cannot see the region's {kind} namespace"))?;
        setns(namespace.as_fd(), *flag).with_context(|| format!("cannot enter the region's {kind} namespace"))?;
    }
    Ok(())
}
