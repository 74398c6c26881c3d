//! What a launcher puts into a bare world, as functions held in fields: engines and services, or nothing.

use crate::progress::Progress;
use crate::world::{World, WorldSpec};
use crate::{engines, services};
use anyhow::{Context, Result};
use std::sync::{Arc, OnceLock};

/// Before a world exists; returns what `world.json` says about the engines.
type Prepare = Box<dyn Fn(&WorldSpec, &Progress) -> Result<serde_json::Value> + Send + Sync>;
/// Everything in all regions, ready.
type StartAll = Box<dyn Fn(&Arc<World>, &Progress) -> Result<()> + Send + Sync>;
/// Everything in one region that comes back, ready; other regions may be down.
type StartRegion = Box<dyn Fn(&Arc<World>, &str, &Progress) -> Result<()> + Send + Sync>;
/// What programs in a region are told by their environment.
type Environment = Box<dyn Fn(&World, &str) -> Result<Vec<(String, String)>> + Send + Sync>;

/// What runs in the regions.
pub struct Ground {
    /// Ports of every region that the host can reach.
    pub exposed: Vec<(String, u16)>,
    /// See [`Prepare`].
    pub prepare: Prepare,
    /// See [`StartAll`].
    pub start_all: StartAll,
    /// See [`StartRegion`].
    pub start_region: StartRegion,
    /// See [`Environment`].
    pub environment: Environment,
}

impl Ground {
    /// Nothing: bare regions, for tests of the world itself and for commands that bring their own programs.
    pub fn bare() -> Self {
        Self {
            exposed: Vec::new(),
            prepare: Box::new(|_, _| Ok(serde_json::Value::Null)),
            start_all: Box::new(|_, _| Ok(())),
            start_region: Box::new(|_, _, _| Ok(())),
            environment: Box::new(|_, _| Ok(Vec::new())),
        }
    }

    /// The engines, and on them the services of these names: all when the list is empty, none when it is absent.
    pub fn engines(services: Option<Vec<String>>) -> Self {
        let fetched: Arc<OnceLock<engines::Engines>> = Arc::default();
        let (prepared, all, one) = (Arc::clone(&fetched), Arc::clone(&fetched), fetched);
        let (services_all, services_one) = (services.clone(), services);
        Self {
            exposed: services::EXPOSED.iter().map(|(name, port)| ((*name).into(), *port)).collect(),
            prepare: Box::new(move |spec, progress| {
                let engines = engines::fetch(progress)?;
                engines::prepare(&engines, spec, progress)?;
                let description = serde_json::to_value(engines::describe(&engines))?;
                prepared.set(engines).ok().context("a world is prepared once")?;
                Ok(description)
            }),
            start_all: Box::new(move |world, progress| {
                if services_all.is_some() {
                    services::prepare(world)?;
                }
                engines::start_all(world, all.get().context("not prepared")?, progress)?;
                let regions: Vec<&str> = world.regions().iter().map(|region| &*region.name).collect();
                start_services(world, &regions, services_all.as_deref(), progress)
            }),
            start_region: Box::new(move |world, region, progress| {
                engines::start_region(world, one.get().context("not prepared")?, region, progress)?;
                start_services(world, &[region], services_one.as_deref(), progress)
            }),
            environment: Box::new(services::environment),
        }
    }
}

fn start_services(world: &Arc<World>, regions: &[&str], only: Option<&[String]>, progress: &Progress) -> Result<()> {
    let Some(only) = only else { return Ok(()) };
    for region in regions {
        services::start(world, region, only)?;
    }
    std::thread::scope(|scope| {
        let waits: Vec<_> = regions.iter().map(|region| scope.spawn(|| services::wait_ready(world, region, only, progress))).collect();
        waits.into_iter().try_for_each(|wait| wait.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a wait for services panicked"))))
    })
}
