//! One region: its namespace, its init, its processes.

use super::namespace::{Namespace, NamespaceSpec};
use super::orders::{Order, ProcessSpec, Report};
use super::processes::{ProcessState, Table};
use super::stages::{OUTER, THIS_PROGRAM};
use anyhow::{Context, Result, bail};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long init may take to say whether a process was started.
const START_DEADLINE: Duration = Duration::from_secs(30);

/// What of a region is there right now: behind the region's lock.
#[derive(Default)]
pub struct Running {
    /// Absent after a power loss.
    pub namespace: Option<Arc<Namespace>>,
    /// Absent when the region is down.
    pub init: Option<Init>,
}

impl Running {
    /// The namespace, which it makes when there is none; then the device to join to the WAN and the remarks.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn ensure_namespace(&mut self, spec: &NamespaceSpec) -> Result<Option<(File, Vec<String>)>> {
        if self.namespace.is_some() {
            return Ok(None);
        }
        let (namespace, device, remarks) = Namespace::open(spec)?;
        self.namespace = Some(Arc::new(namespace));
        Ok(Some((device, remarks)))
    }

    /// True while the region's init lives.
    pub fn is_up(&self) -> bool {
        self.init.as_ref().is_some_and(Init::is_alive)
    }
}

/// The launcher's hold on a region's init.
pub struct Init {
    outer: Child,
    orders: ChildStdin,
    pid: i32,
    alive: Arc<AtomicBool>,
    listener: JoinHandle<()>,
}

impl Init {
    /// Starts the region's init, whose reports go into `table`.
    ///
    /// # Errors
    /// When the kernel refuses the region's namespaces; the reason is on standard error.
    pub fn start(name: &str, world_dir: &Path, namespace: &Namespace, table: &Arc<Table>) -> Result<Self> {
        let mut command = Command::new(THIS_PROGRAM);
        command.arg0("native-region").args([OUTER, name]).arg(world_dir).stdin(Stdio::piped()).stdout(Stdio::piped());
        // On the namespace's thread: the child inherits its network, and dies with the thread that started it.
        let mut outer = namespace.run(move || command.spawn())?.context("cannot start a region's first process")?;
        let (Some(orders), Some(output)) = (outer.stdin.take(), outer.stdout.take()) else { bail!("no pipes to the region") };
        let mut output = BufReader::new(output);
        let Some(pid) = greeting(&mut output) else {
            let _ = outer.kill();
            let status = outer.wait()?;
            bail!("the init of region {name} did not start ({status}); its reason is printed above or in the launcher's log");
        };
        let alive = Arc::new(AtomicBool::new(true));
        let listener = listen(output, pid, Arc::clone(table), Arc::clone(&alive))?;
        Ok(Self { outer, orders, pid, alive, listener })
    }

    /// Number of the init as the host sees it.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    /// Starts a process and waits until it runs.
    ///
    /// # Errors
    /// When one of that name runs, or the program cannot be started.
    pub fn order_spawn(&mut self, table: &Table, spec: &ProcessSpec) -> Result<()> {
        if spec.name.is_empty() || spec.name.contains(['/', '\0']) || spec.argv.is_empty() {
            bail!("a process needs a name without slashes and a program");
        }
        if !table.begin(spec) {
            bail!("{} runs already", spec.name);
        }
        self.order(&Order::Spawn(spec.clone())).inspect_err(|_| table.all_killed())
    }

    /// Sends a signal to the group of a process.
    ///
    /// # Errors
    /// When init is gone.
    pub fn order_signal(&mut self, name: &str, signal: i32) -> Result<()> {
        self.order(&Order::Signal { name: name.into(), signal })
    }

    fn order(&mut self, order: &Order) -> Result<()> {
        let mut line = serde_json::to_vec(order)?;
        line.push(b'\n');
        self.orders.write_all(&line).context("the region's init is gone")
    }

    /// Ends every process of the region at once, and returns when they are gone.
    ///
    /// # Errors
    /// When the region cannot be waited for.
    pub fn kill(mut self) -> Result<()> {
        // The kernel kills init when outer dies, and all the others when init does. Init comes to the launcher then, which adopts
        // orphans, and is a corpse only when the last of the region is.
        self.outer.kill()?;
        self.outer.wait()?;
        let _ = waitpid(Pid::from_raw(self.pid), None);
        let _ = self.listener.join();
        Ok(())
    }
}

/// Waits for the outcome of an ordered start.
///
/// # Errors
/// When the program could not be started.
pub fn wait_started(table: &Table, name: &str) -> Result<()> {
    match table.wait(name, START_DEADLINE, |state| *state != ProcessState::Starting) {
        Some(ProcessState::Failed { error }) => bail!("{name}: {error}"),
        Some(ProcessState::Starting) | None => bail!("{name}: the region does not answer"),
        Some(_) => Ok(()),
    }
}

/// The number of init (said by outer), once init says that it is ready; they speak in either order.
fn greeting(output: &mut BufReader<ChildStdout>) -> Option<i32> {
    let (mut pid, mut ready) = (None, false);
    while pid.is_none() || !ready {
        let mut line = String::new();
        if output.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim().parse() {
            Ok(number) => pid = Some(number),
            Err(_) => ready = matches!(serde_json::from_str(&line), Ok(Report::Ready)),
        }
    }
    pid
}

fn listen(output: BufReader<ChildStdout>, pid: i32, table: Arc<Table>, alive: Arc<AtomicBool>) -> Result<JoinHandle<()>> {
    let listener = std::thread::Builder::new().name(format!("reports-{pid}")).spawn(move || {
        for line in output.lines().map_while(Result::ok) {
            if let Ok(report) = serde_json::from_str(&line) {
                table.hear(report, pid);
            }
        }
        alive.store(false, Ordering::Release);
        table.all_killed();
    })?;
    Ok(listener)
}
