//! The process that holds a world: makes it, steers it, and ends it whatever happens.

use super::ground::Ground;
use super::state::{Hold, StateDir, WorldFile, WorldRegion};
use super::{Phase, server};
use crate::progress::Progress;
use crate::world::expose::Exposer;
use crate::world::{KillMode, World, WorldSpec};
use anyhow::{Context, Result, anyhow, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::Duration;

/// How long processes may take to end by themselves at the end of a world.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);
/// How long those who wait for a world that failed may take to hear the reason.
const FAREWELL: Duration = Duration::from_millis(300);

/// What a launcher launches.
pub struct LaunchSpec {
    /// State folder of the world.
    pub dir: StateDir,
    /// The world.
    pub world: WorldSpec,
    /// Start from empty disks.
    pub fresh: bool,
    /// What runs in the regions.
    pub ground: Ground,
}

/// What happens to a launcher.
#[derive(Debug)]
pub enum Event {
    /// Everything is ready.
    Ready,
    /// The world could not be made or filled.
    Failed(anyhow::Error),
    /// SIGINT, SIGTERM or SIGHUP.
    Signalled(i32),
    /// Somebody asked for the end.
    Down,
    /// Whoever waited for the world went away before it was ready.
    Abandoned,
    /// The command that the world was made for has ended, with this code.
    CommandEnded(i32),
}

/// Why a launcher ends.
#[derive(Debug)]
pub enum Ending {
    /// Its command ended.
    Command(i32),
    /// A signal, or nobody waits any more.
    Interrupted,
    /// Asked for.
    Down,
}

/// Shared by the launcher's threads.
pub struct Shared {
    /// How far the world is.
    pub phase: Mutex<Phase>,
    /// What is being done.
    pub progress: Progress,
    /// Made by the filling thread.
    world: OnceLock<Arc<World>>,
    exposer: OnceLock<Exposer>,
    exposed: Mutex<BTreeMap<(String, String), SocketAddr>>,
    /// Regions that are being started right now.
    starting: Mutex<BTreeSet<String>>,
    ground: Ground,
    events: mpsc::Sender<Event>,
    dir: StateDir,
    engines: OnceLock<serde_json::Value>,
}

/// A launcher with its world.
pub struct Launcher {
    shared: Arc<Shared>,
    events: mpsc::Receiver<Event>,
    _hold: Hold,
}

impl Launcher {
    /// Takes the state folder, listens for signals and requests, and begins to make the world on a thread of its own.
    ///
    /// # Errors
    /// When a living world has the folder, or nothing can listen there.
    pub fn begin(spec: LaunchSpec, progress: Progress) -> Result<Self> {
        let LaunchSpec { dir, world, fresh, ground } = spec;
        let hold = dir.hold()?;
        dir.clean();
        let (sender, events) = mpsc::channel();
        let shared = Arc::new(Shared {
            phase: Mutex::new(Phase::Starting),
            progress,
            world: OnceLock::new(),
            exposer: OnceLock::new(),
            exposed: Mutex::default(),
            starting: Mutex::default(),
            ground,
            events: sender.clone(),
            dir: dir.clone(),
            engines: OnceLock::new(),
        });
        watch_signals(sender)?;
        server::start(&dir.socket(), &shared)?;
        let filling = Arc::clone(&shared);
        std::thread::Builder::new().name("fill".into()).spawn(move || {
            let event = filling.fill(world, fresh).map_or_else(Event::Failed, |()| Event::Ready);
            let _ = filling.events.send(event);
        })?;
        Ok(Self { shared, events, _hold: hold })
    }

    /// What the launcher's threads share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Waits for what happens next.
    ///
    /// # Errors
    /// When the world could not be made or filled.
    pub fn next(&self) -> Result<Event> {
        match self.events.recv().context("the launcher's threads are gone")? {
            Event::Failed(error) => {
                self.shared.set_phase(Phase::Failed(format!("{error:#}")));
                std::thread::sleep(FAREWELL);
                Err(error)
            }
            Event::Ready => {
                self.shared.set_phase(Phase::Ready);
                Ok(Event::Ready)
            }
            event => Ok(event),
        }
    }

    /// The same, for a while.
    pub fn next_within(&self, patience: Duration) -> Option<Event> {
        self.events.recv_timeout(patience).ok()
    }

    /// Ends the world and frees the state folder.
    pub fn end(self) {
        self.shared.set_phase(Phase::Ending);
        if let Some(world) = self.shared.world.get() {
            world.close(CLOSE_PATIENCE);
        }
        self.shared.dir.clean();
    }
}

impl Shared {
    /// The world.
    ///
    /// # Errors
    /// While it is still being prepared.
    pub fn world(&self) -> Result<&Arc<World>> {
        self.world.get().context("the world is still being prepared")
    }

    /// The way into a region: its init as the host sees it, and what programs in it are told by their environment.
    ///
    /// # Errors
    /// When the region does not exist or is down.
    pub fn entry(&self, region: &str) -> Result<(i32, Vec<(String, String)>)> {
        let world = self.world()?;
        Ok((world.init_pid(region)?, (self.ground.environment)(world, region)?))
    }

    /// How far the world is.
    pub fn phase(&self) -> Phase {
        locked(&self.phase).clone()
    }

    /// Tells the launcher.
    pub fn tell(&self, event: Event) {
        let _ = self.events.send(event);
    }

    /// Exposed ports of a region, by name of the service.
    pub fn exposed(&self, region: &str) -> BTreeMap<String, SocketAddr> {
        let exposed = locked(&self.exposed);
        exposed.iter().filter(|((of, _), _)| of == region).map(|((_, name), address)| (name.clone(), *address)).collect()
    }

    /// Makes a port of a region reachable from the host, once.
    ///
    /// # Errors
    /// When the world is still being prepared or the region does not exist.
    pub fn expose(&self, region: &str, name: &str, port: u16) -> Result<SocketAddr> {
        let key = (region.to_string(), name.to_string());
        if let Some(address) = locked(&self.exposed).get(&key) {
            return Ok(*address);
        }
        let spec = self.world()?.region(region)?;
        let exposer = self.exposer.get().context("the world is still being prepared")?;
        let address = exposer.expose(region, (spec.address, port).into(), host_port(spec.index, port))?;
        locked(&self.exposed).insert(key, address);
        self.write_world_file()?;
        Ok(address)
    }

    /// Name of the service whose port this is, if it is one that every region exposes.
    pub fn name_of_port(&self, port: u16) -> Option<String> {
        self.ground.exposed.iter().find(|(_, exposed)| *exposed == port).map(|(name, _)| name.clone())
    }

    /// Kills a region.
    ///
    /// # Errors
    /// As [`World::kill`].
    pub fn kill(&self, region: &str, mode: KillMode) -> Result<()> {
        self.world()?.kill(region, mode)?;
        self.progress.say(region, format!("killed ({mode:?})"));
        Ok(())
    }

    /// Brings a killed region back with all that ran in it.
    ///
    /// # Errors
    /// When it is up or being started, or something in it does not get ready.
    pub fn start_region(&self, region: &str) -> Result<()> {
        let world = self.world()?;
        world.region(region)?;
        if world.is_up(region) {
            bail!("region {region} is up already");
        }
        if !locked(&self.starting).insert(region.into()) {
            bail!("region {region} is being started already");
        }
        let started = world.start(region).and_then(|()| (self.ground.start_region)(world, region, &self.progress));
        locked(&self.starting).remove(region);
        started.inspect(|()| self.progress.say(region, "is back"))
    }

    fn set_phase(&self, phase: Phase) {
        *locked(&self.phase) = phase;
    }

    /// Makes the world and puts into it what it was made for.
    fn fill(&self, spec: WorldSpec, fresh: bool) -> Result<()> {
        let engines = (self.ground.prepare)(&spec, &self.progress)?;
        let _ = self.engines.set(engines);
        if fresh {
            remove_old_state(&spec)?;
        }
        let world = Arc::new(World::open(spec)?);
        self.world.set(Arc::clone(&world)).map_err(|_| anyhow!("a launcher makes one world"))?;
        let names: Vec<&str> = world.regions().iter().map(|region| &*region.name).collect();
        self.progress.say("world", format!("regions {} are joined", names.join(", ")));
        world.remarks().iter().for_each(|remark| self.progress.say("world", remark));
        self.exposer.set(Exposer::start(&world)?).map_err(|_| anyhow!("a launcher has one exposer"))?;
        for region in &names {
            for (name, port) in &self.ground.exposed {
                self.expose(region, name, *port)?;
            }
        }
        self.write_world_file()?;
        (self.ground.start_all)(&world, &self.progress)?;
        self.progress.say("world", "ready");
        Ok(())
    }

    fn write_world_file(&self) -> Result<()> {
        // Held: a world that is ending has removed its file, which must not come back.
        let phase = locked(&self.phase);
        if !matches!(*phase, Phase::Starting | Phase::Ready) {
            bail!("the world is ending");
        }
        let region = |region: &crate::world::RegionSpec| WorldRegion {
            name: region.name.clone(),
            address: region.address.to_string(),
            exposed: self.exposed(&region.name),
        };
        let file = WorldFile {
            control: self.dir.socket(),
            folder: self.world()?.dir().into(),
            secrets: crate::services::secrets(self.world()?),
            engines: self.engines.get().cloned().unwrap_or_default(),
            regions: self.world()?.regions().iter().map(region).collect(),
        };
        let path = self.dir.world_file();
        let partial = path.with_extension("json.partial");
        std::fs::write(&partial, serde_json::to_vec_pretty(&file)?)?;
        std::fs::rename(&partial, &path).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Unique for each region and each port that is exposed from the beginning.
fn host_port(region: u8, port: u16) -> u16 {
    20_000 + u16::from(region) * 1000 + port % 1000
}

/// Empties the regions' disks; keys and logs of the launcher stay.
fn remove_old_state(spec: &WorldSpec) -> Result<()> {
    for region in &spec.regions {
        let path = spec.dir.join(&region.name);
        match std::fs::remove_dir_all(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot empty {}", path.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

fn watch_signals(events: mpsc::Sender<Event>) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot listen for signals")?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in &mut signals {
            let _ = events.send(Event::Signalled(signal));
        }
    })?;
    Ok(())
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_ports_are_unique() {
        let ports: Vec<u16> =
            (1..=5).flat_map(|region| crate::services::EXPOSED.iter().map(move |(_, port)| host_port(region, *port))).collect();
        let distinct: BTreeSet<_> = ports.iter().collect();
        assert_eq!(distinct.len(), ports.len());
        assert_eq!((host_port(1, 8080), host_port(3, 9103)), (21_080, 23_103));
    }
}
