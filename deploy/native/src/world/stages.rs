//! The two processes that a region consists of before anything is started in it, both stages of this same program.
//!
//! launcher → *outer* (in the region's network namespace, makes the others) → *init* (process 1 of the region) → processes.
//! **Each dies with the one before it**, and the kernel ends a process namespace with its first process: so nothing outlives the launcher.

use super::orders::{ExitStatus, Order, ProcessSpec, Report};
use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{Pid, sethostname};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// First argument of the first stage; then the region's name and the world's folder.
pub const OUTER: &str = "__outer";
/// First argument of the second stage; the same arguments.
pub const INIT: &str = "__init";

/// The program that runs: also when its file was replaced meanwhile.
pub const THIS_PROGRAM: &str = "/proc/self/exe";

/// Folder of a region's logs.
pub fn logs_dir(world_dir: &Path, region: &str) -> PathBuf {
    world_dir.join(region).join("logs")
}

/// Stage 1: enters all namespaces but the network's (which it inherits), starts stage 2, says its number, waits for its end.
///
/// # Errors
/// When the kernel refuses a namespace.
pub fn outer(region: &str, world_dir: &Path) -> Result<()> {
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    unshare(CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS | CloneFlags::CLONE_NEWIPC)
        .context("the kernel does not permit process and mount namespaces")?;
    let mut init =
        Command::new(THIS_PROGRAM).arg0("native-init").args([INIT, region]).arg(world_dir).spawn().context("cannot start init")?;
    let mut output = io::stdout();
    writeln!(output, "{}", init.id())?;
    output.flush()?;
    init.wait()?;
    Ok(())
}

type Children = Arc<Mutex<BTreeMap<i32, String>>>;

/// Stage 2: process 1 of the region. Starts what it is told on standard input, reaps everything, and exits when that input ends.
///
/// # Errors
/// When the region's file system cannot be prepared.
pub fn init(region: &str, world_dir: &Path) -> Result<()> {
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    prepare_mounts(world_dir)?;
    sethostname(region)?;
    let children = Children::default();
    report(&Report::Ready);
    let (orders, logs) = (Arc::clone(&children), logs_dir(world_dir, region));
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            obey(&line, &orders, &logs);
        }
        // The launcher is gone, or wants the region to end.
        std::process::exit(0);
    });
    loop {
        reap(&children);
    }
}

fn prepare_mounts(world_dir: &Path) -> Result<()> {
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).context("cannot make mounts private")?;
    mount(Some("proc"), "/proc", Some("proc"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC, none)
        .context("cannot mount /proc")?;
    // Names of regions resolve; any other look-up fails at once instead of waiting for a name server that cannot be reached.
    for name in ["hosts", "resolv.conf"] {
        let Ok(target) = fs::canonicalize(Path::new("/etc").join(name)) else { continue };
        mount(Some(&world_dir.join(name)), &target, none, MsFlags::MS_BIND, none)
            .with_context(|| format!("cannot replace {}", target.display()))?;
    }
    Ok(())
}

fn report(report: &Report) {
    let Ok(mut line) = serde_json::to_vec(report) else { return };
    line.push(b'\n');
    // A launcher that no longer listens is gone; the end of the orders says so too.
    let _ = io::stdout().lock().write_all(&line);
}

fn obey(line: &str, children: &Children, logs: &Path) {
    match serde_json::from_str(line) {
        Ok(Order::Spawn(spec)) => {
            // Held over the start, so that no end is reported before it.
            let mut children = locked(children);
            match start(&spec, logs) {
                Ok(inner_pid) => {
                    children.insert(inner_pid, spec.name.clone());
                    report(&Report::Started { name: spec.name, inner_pid });
                }
                Err(error) => report(&Report::Failed { name: spec.name, error: format!("{error:#}") }),
            }
        }
        Ok(Order::Signal { name, signal }) => {
            // Held, so that the number cannot go to another process meanwhile.
            let children = locked(children);
            let group = children.iter().find(|(_, child)| **child == name).map(|(pid, _)| Pid::from_raw(*pid));
            if let (Some(group), Ok(signal)) = (group, Signal::try_from(signal)) {
                let _ = killpg(group, signal);
            }
        }
        Err(error) => {
            let _ = writeln!(io::stderr(), "init does not understand an order: {error}");
        }
    }
}

fn start(spec: &ProcessSpec, logs: &Path) -> Result<i32> {
    let Some((program, arguments)) = spec.argv.split_first() else { bail!("no program") };
    let log = open_log(logs, &spec.name)?;
    let mut command = Command::new(program);
    command.args(arguments).envs(spec.env.iter().map(|(key, value)| (key, value)));
    if let Some(cwd) = &spec.cwd {
        command.current_dir(cwd);
    }
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
    let child = command.spawn().with_context(|| format!("cannot start {program}"))?;
    Ok(child.id() as i32)
}

/// Opens NAME.log; the log of the run before becomes NAME.1.log, or the next free number.
fn open_log(logs: &Path, name: &str) -> Result<File> {
    fs::create_dir_all(logs)?;
    let path = logs.join(format!("{name}.log"));
    if fs::metadata(&path).is_ok_and(|log| log.len() > 0) {
        let older = (1_u32..).map(|number| logs.join(format!("{name}.{number}.log"))).find(|older| !older.exists());
        fs::rename(&path, older.context("no free number")?)?;
    }
    File::options().create(true).append(true).open(&path).with_context(|| format!("cannot open {}", path.display()))
}

/// Waits for the end of any process of the region and takes it off the table.
fn reap(children: &Children) {
    // Looked at first, reaped under the lock: until then the number is not given to another process.
    let ended = match waitid(Id::All, WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) {
        Ok(status) => status.pid(),
        Err(Errno::ECHILD) => {
            std::thread::sleep(Duration::from_millis(50));
            None
        }
        Err(_) => None,
    };
    let Some(pid) = ended else { return };
    let mut children = locked(children);
    let status = match waitpid(pid, Some(WaitPidFlag::WNOHANG)) {
        Ok(WaitStatus::Exited(_, code)) => ExitStatus { code: Some(code), signal: None },
        Ok(WaitStatus::Signaled(_, signal, _)) => ExitStatus { code: None, signal: Some(signal as i32) },
        _ => return,
    };
    if let Some(name) = children.remove(&pid.as_raw()) {
        report(&Report::Exited { name, status });
    }
}

fn locked(children: &Children) -> MutexGuard<'_, BTreeMap<i32, String>> {
    children.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_numbered_in_the_order_of_their_runs() {
        let dir = tempfile::tempdir().unwrap();
        for run in ["first", "second", "third"] {
            write!(open_log(dir.path(), "kafka").unwrap(), "{run}").unwrap();
        }
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!((read("kafka.1.log"), read("kafka.2.log"), read("kafka.log")), ("first".into(), "second".into(), "third".into()));
    }
}
