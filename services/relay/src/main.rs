//! The relay's process: configuration, telemetry, connections, effects, run.

use adapters::{
    clock::{self, RegionClock},
    nats::{self, Nats},
    redpanda::{LogReader, Publisher},
    scylla::{self, Scylla},
};
use anyhow::Result;
use kit::{bind, config, health, health::Health, shutdown, telemetry, timed};
use relay::{Config, Effects, HEALTH_PARTS, log, registry, registry::Registry};
use std::sync::Arc;

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<()> {
    match std::env::args().nth(1).as_deref() {
        None => {}
        Some("--version") => {
            println!("relay {}", env!("CARGO_PKG_VERSION"));
            return Ok(());
        }
        Some("--help") => {
            print!("{}\n{}", include_str!("../README.md"), include_str!("../config.toml"));
            return Ok(());
        }
        Some(other) => anyhow::bail!("unknown argument {other:?}; there are --help and --version"),
    }
    let config: Config = config::load(include_str!("../config.toml"))?;
    let (telemetry, shutdown, health) = (telemetry::start("relay")?, shutdown::on_signal()?, Health::of(&HEALTH_PARTS));
    let (listen, routes, asked) = (config.listen.clone(), health.routes(&telemetry), shutdown.clone());
    let admin = tokio::spawn(async move { health::serve(&listen, routes, asked).await });
    let complain = |why: String| health.unready("database", why);
    let Some(scylla) = Scylla::connect_when_ready(&config.scylla(), &shutdown, complain).await? else { return Ok(()) };
    let clock = RegionClock::start(bind(&scylla, scylla::database_time), shutdown.clone());
    let (publisher, reader) =
        (Publisher::connect(&config.redpanda()).await?, LogReader::connect(&config.redpanda(), &config.region).await?);
    let nats = Nats::start(&config.nats()).await?;
    let hints = Arc::new(tokio::sync::Mutex::new(nats::subscribe_change_hints(nats, config.region.clone()).await?));
    let redpanda = Arc::new(config.redpanda());
    let registry = Arc::new(Registry { scylla: Arc::clone(&scylla), region: config.region.clone(), redpanda, clock: Arc::clone(&clock) });
    let effects = Effects {
        read_changes: timed("read_changes", bind(&scylla, scylla::read_changes)),
        publish_batch: timed("publish_batch", bind(&publisher, log::publish_batch)),
        publish_watermarks: timed("publish_watermarks", bind(&publisher, Publisher::publish)),
        last_watermark: timed("last_watermark", bind(&reader, log::last_watermark)),
        region_time: bind(&clock, clock::region_time),
        await_hint: bind(&hints, nats::await_change_hint),
        register_generation: timed("register_generation", bind(&registry, registry::register_generation)),
    };
    let run = relay::run(effects, config.limits(), health, shutdown.clone());
    let ended = tokio::select! {
        ended = run => ended,
        ended = admin => ended?,
    };
    telemetry.flush();
    ended
}
