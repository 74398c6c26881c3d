//! The world: regions as network namespaces, processes in them, the WAN between them.
//!
//! * **A region has one interface, whose other end is the router.** No packet leaves the world.
//! * **Nothing outlives the launcher**: see [`stages`] for regions and [`guard`] for the launcher's own children.
//! * All functions take `&self`; a world is shared in an `Arc` and may be used from any thread.

pub mod expose;
pub mod guard;
mod namespace;
mod netlink;
pub mod orders;
mod processes;
mod region;
pub mod router;
pub mod stages;
mod sys;
pub mod user;
mod wan;

pub use guard::guarded;
pub use nix::sys::signal::Signal;
pub use orders::{ExitStatus, ProcessSpec};
pub use processes::{ProcessState, ProcessStatus};
pub use wan::{LinkStatus, Selection, WanSpec, default_links};

use anyhow::{Context, Result, anyhow, bail};
use namespace::NamespaceSpec;
use processes::{Table, is_alive, usage_by_group};
use region::{Init, Running, wait_started};
use router::Router;
use serde::{Deserialize, Serialize};
use socket2::{Domain, Socket, Type};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// A region of a world.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionSpec {
    /// Its name, which resolves inside the world.
    pub name: String,
    /// 10.`index`.0.1.
    pub address: Ipv4Addr,
    /// Its number, from 1.
    pub index: u8,
}

/// What a world is made of.
#[derive(Clone, Debug)]
pub struct WorldSpec {
    /// Folder of the world's state.
    pub dir: PathBuf,
    /// At least one region.
    pub regions: Vec<RegionSpec>,
    /// The links between them.
    pub links: WanSpec,
    /// Source of the links' chances.
    pub seed: u64,
    /// Largest packet of the WAN.
    pub mtu: u32,
    /// The TUN device's node, usually /dev/net/tun.
    pub tun: PathBuf,
}

/// How a region is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum KillMode {
    /// Its processes die, its kernel lives: peers get resets at once.
    Crash,
    /// As a power loss: silence first, then everything is gone, connections too.
    Blackhole,
}

/// A living world.
pub struct World {
    spec: WorldSpec,
    router: Arc<Router>,
    carrier: Mutex<Option<JoinHandle<()>>>,
    regions: Vec<Region>,
    remarks: Mutex<Vec<String>>,
}

struct Region {
    spec: RegionSpec,
    running: Mutex<Running>,
    table: Arc<Table>,
    /// Counts its namespaces: connections into an earlier one are lost.
    lives: watch::Sender<u32>,
}

impl World {
    /// Makes all regions and joins them. The calling process adopts orphans from now on.
    ///
    /// # Errors
    /// Says what must be permitted when the kernel refuses.
    pub fn open(spec: WorldSpec) -> Result<Self> {
        nix::sys::prctl::set_child_subreaper(true)?;
        fs::create_dir_all(&spec.dir).with_context(|| format!("cannot make {}", spec.dir.display()))?;
        let spec = WorldSpec { dir: fs::canonicalize(&spec.dir)?, ..spec };
        write_names(&spec)?;
        let octets = spec.regions.iter().map(|region| region.index).collect();
        let router = Arc::new(Router::new(octets, spec.links.settings(&spec.regions), spec.seed)?);
        let carrier = Arc::clone(&router);
        let carrier = std::thread::Builder::new().name("router".into()).spawn(move || carrier.run())?;
        let region = |region: &RegionSpec| Region {
            spec: region.clone(),
            running: Mutex::default(),
            table: Arc::default(),
            lives: watch::Sender::new(0),
        };
        let regions = spec.regions.iter().map(region).collect();
        let world = Self { spec, router, carrier: Mutex::new(Some(carrier)), regions, remarks: Mutex::default() };
        for region in &world.regions {
            world.start(&region.spec.name)?;
        }
        Ok(world)
    }

    /// Folder of the world's state, absolute.
    pub fn dir(&self) -> &Path {
        &self.spec.dir
    }

    /// Folder of a region's state.
    pub fn region_dir(&self, region: &str) -> PathBuf {
        self.spec.dir.join(region)
    }

    /// Log of a process; those of its earlier runs are NAME.1.log, NAME.2.log and so on beside it.
    pub fn log_path(&self, region: &str, name: &str) -> PathBuf {
        stages::logs_dir(&self.spec.dir, region).join(format!("{name}.log"))
    }

    /// All regions, in the order of their numbers.
    pub fn regions(&self) -> &[RegionSpec] {
        &self.spec.regions
    }

    /// The region of that name.
    ///
    /// # Errors
    /// When there is none.
    pub fn region(&self, name: &str) -> Result<&RegionSpec> {
        Ok(&self.find(name)?.spec)
    }

    /// True between start and kill.
    pub fn is_up(&self, region: &str) -> bool {
        self.find(region).is_ok_and(|region| region.running().is_up())
    }

    /// Settings that this kernel did not take, each with its reason.
    pub fn remarks(&self) -> Vec<String> {
        self.remarks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Starts a process in a region, and returns when it runs.
    ///
    /// # Errors
    /// When the region is down, a process of that name runs, or the program cannot be started.
    pub fn spawn(&self, region: &str, spec: ProcessSpec) -> Result<()> {
        let region = self.find(region)?;
        region.with_init(|init| init.order_spawn(&region.table, &spec))?;
        wait_started(&region.table, &spec.name).with_context(|| format!("region {}", region.spec.name))
    }

    /// Starts a process that ended, as it was started before.
    ///
    /// # Errors
    /// As [`World::spawn`], and when it was never started.
    pub fn respawn(&self, region: &str, name: &str) -> Result<()> {
        let spec = self.find(region)?.table.spec(name).ok_or_else(|| no_process(region, name))?;
        self.spawn(region, spec)
    }

    /// Waits for the end of a process.
    ///
    /// # Errors
    /// When there is no such process, or it runs after the deadline.
    pub fn wait_exit(&self, region: &str, name: &str, deadline: Duration) -> Result<ExitStatus> {
        match self.find(region)?.table.wait(name, deadline, |state| !is_alive(state)) {
            Some(ProcessState::Exited { status }) => Ok(status),
            Some(ProcessState::Failed { error }) => bail!("{name} in {region}: {error}"),
            Some(_) => bail!("{name} in {region} still runs after {} s", deadline.as_secs()),
            None => Err(no_process(region, name)),
        }
    }

    /// How a process ended; `None` while it runs.
    pub fn exited(&self, region: &str, name: &str) -> Option<ExitStatus> {
        self.wait_exit(region, name, Duration::ZERO).ok()
    }

    /// A TCP socket (IPv4) made in a region's namespace. It may be connected on any thread.
    ///
    /// # Errors
    /// When the region has no namespace.
    pub fn socket(&self, region: &str) -> Result<Socket> {
        let namespace = self.find(region)?.running().namespace.clone().with_context(|| format!("region {region} is down"))?;
        Ok(namespace.run(|| Socket::new(Domain::IPV4, Type::STREAM, None))??)
    }

    /// A connection from a region.
    ///
    /// # Errors
    /// When the region is down or nobody answers in time.
    pub fn connect(&self, region: &str, to: SocketAddr, timeout: Duration) -> Result<TcpStream> {
        let socket = self.socket(region)?;
        socket.connect_timeout(&to.into(), timeout).with_context(|| format!("no connection from {region} to {to}"))?;
        socket.set_tcp_nodelay(true)?;
        Ok(socket.into())
    }

    /// All processes that were started in a region, with what they use.
    ///
    /// # Errors
    /// When there is no such region.
    pub fn processes(&self, region: &str) -> Result<Vec<ProcessStatus>> {
        Ok(self.find(region)?.table.statuses(&usage_by_group()))
    }

    /// Sends a signal to the whole group of a process; SIGSTOP and SIGCONT pause and resume it.
    ///
    /// # Errors
    /// When the region is down or there is no such process.
    pub fn signal(&self, region: &str, name: &str, signal: Signal) -> Result<()> {
        let found = self.find(region)?;
        if !found.table.alive().iter().any(|alive| alive == name) {
            bail!(
                "{} in {region} does not run",
                if found.table.spec(name).is_some() { name } else { return Err(no_process(region, name)) }
            );
        }
        if signal == Signal::SIGKILL {
            found.table.keep_usage(&usage_by_group(), Some(name));
        }
        found.with_init(|init| init.order_signal(name, signal as i32))?;
        match signal {
            Signal::SIGSTOP => found.table.set_paused(name, true),
            Signal::SIGCONT => found.table.set_paused(name, false),
            _ => {}
        }
        Ok(())
    }

    /// Names of the processes of a region that run.
    ///
    /// # Errors
    /// When there is no such region.
    pub fn alive(&self, region: &str) -> Result<Vec<String>> {
        Ok(self.find(region)?.table.alive())
    }

    /// Number of a region's init as the host sees it: the way into its namespaces.
    ///
    /// # Errors
    /// When the region is down.
    pub fn init_pid(&self, region: &str) -> Result<i32> {
        self.find(region)?.with_init(|init| Ok(init.pid()))
    }

    /// Tells each new namespace of a region.
    ///
    /// # Errors
    /// When there is no such region.
    pub fn lives(&self, region: &str) -> Result<watch::Receiver<u32>> {
        Ok(self.find(region)?.lives.subscribe())
    }

    /// Kills a region; its files stay. A second kill does nothing, except that `Blackhole` takes the network of a crashed region too.
    ///
    /// # Errors
    /// When there is no such region, or its processes cannot be ended.
    pub fn kill(&self, region: &str, mode: KillMode) -> Result<()> {
        let place = self.place(region)?;
        let region = &self.regions[place];
        let mut running = region.running();
        region.table.keep_usage(&usage_by_group(), None);
        if mode == KillMode::Blackhole {
            // First: its peers shall hear nothing of what follows.
            self.router.set_device(place, None);
        }
        if let Some(init) = running.init.take() {
            init.kill()?;
        }
        if mode == KillMode::Blackhole {
            running.namespace = None;
        }
        Ok(())
    }

    /// Makes a region's namespaces and init anew as far as they are missing; starts no process.
    ///
    /// # Errors
    /// When there is no such region, or the kernel refuses.
    pub fn start(&self, region: &str) -> Result<()> {
        let place = self.place(region)?;
        let region = &self.regions[place];
        let mut running = region.running();
        let spec = NamespaceSpec {
            address: region.spec.address,
            mtu: self.spec.mtu,
            tun: self.spec.tun.clone(),
            private_tun: self.spec.dir.join("tun"),
        };
        if let Some((device, remarks)) = running.ensure_namespace(&spec)? {
            *self.remarks.lock().unwrap_or_else(PoisonError::into_inner) = remarks;
            self.router.set_device(place, Some(device));
            region.lives.send_modify(|lives| *lives += 1);
        }
        if !running.is_up() {
            if let Some(dead) = running.init.take() {
                dead.kill()?;
            }
            let namespace = running.namespace.clone().context("no namespace")?;
            running.init = Some(Init::start(&region.spec.name, &self.spec.dir, &namespace, &region.table)?);
        }
        Ok(())
    }

    /// Asks all processes to end, waits up to `patience`, then ends the world.
    pub fn close(&self, patience: Duration) {
        let began = Instant::now();
        for region in &self.regions {
            for name in region.table.alive() {
                for signal in [Signal::SIGTERM, Signal::SIGCONT] {
                    let _ = self.signal(&region.spec.name, &name, signal);
                }
            }
        }
        for region in &self.regions {
            region.table.wait_all_dead(patience.saturating_sub(began.elapsed()));
        }
        for region in &self.regions {
            let _ = self.kill(&region.spec.name, KillMode::Blackhole);
        }
        self.router.stop();
        if let Some(carrier) = self.carrier.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = carrier.join();
        }
    }

    fn find(&self, name: &str) -> Result<&Region> {
        Ok(&self.regions[self.place(name)?])
    }

    fn place(&self, name: &str) -> Result<usize> {
        let names = || self.spec.regions.iter().map(|region| &*region.name).collect::<Vec<_>>().join(", ");
        self.regions.iter().position(|region| region.spec.name == name).ok_or_else(|| anyhow!("no region {name}; there are {}", names()))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.close(Duration::ZERO);
    }
}

impl Region {
    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with_init<T>(&self, work: impl FnOnce(&mut Init) -> Result<T>) -> Result<T> {
        let mut running = self.running();
        if !running.is_up() {
            bail!("region {} is down", self.spec.name);
        }
        work(running.init.as_mut().context("no init")?)
    }
}

fn no_process(region: &str, name: &str) -> anyhow::Error {
    anyhow!("no process {name} in {region}")
}

/// Files that stand for /etc/hosts and /etc/resolv.conf inside the regions.
fn write_names(spec: &WorldSpec) -> Result<()> {
    let hosts: String = spec.regions.iter().map(|region| format!("{} {}\n", region.address, region.name)).collect();
    fs::write(spec.dir.join("hosts"), format!("127.0.0.1 localhost\n{hosts}"))?;
    fs::write(spec.dir.join("resolv.conf"), "options timeout:1 attempts:1\n")?;
    Ok(())
}
