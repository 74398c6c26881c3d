//! The sink's process: configuration, telemetry, connections, effects, run.

use adapters::{
    clickhouse::{self, ClickHouse},
    clock::{self, HostClock},
    redpanda::Publisher,
};
use anyhow::Result;
use kit::{bind, config, health, health::Health, shutdown, telemetry, timed};
use sink::{Config, Effects, HEALTH_PARTS, Log};

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<()> {
    match std::env::args().nth(1).as_deref() {
        None => {}
        Some("--version") => {
            println!("sink {}", env!("CARGO_PKG_VERSION"));
            return Ok(());
        }
        Some("--help") => {
            print!("{}\n{}", include_str!("../README.md"), include_str!("../config.toml"));
            return Ok(());
        }
        Some(other) => anyhow::bail!("unknown argument {other:?}; there are --help and --version"),
    }
    let config: Config = config::load(include_str!("../config.toml"))?;
    let (telemetry, shutdown, health) = (telemetry::start("sink")?, shutdown::on_signal()?, Health::of(&HEALTH_PARTS));
    let routes = health.routes(&telemetry);
    let store = ClickHouse::new(&config.clickhouse_url, &config.clickhouse_database);
    let publisher = Publisher::connect(&config.redpanda()).await?;
    let log = Log::connect(config.log()).await?;
    let effects = Effects {
        load_positions: timed("load_positions", bind(&store, clickhouse::load_positions)),
        start_following: timed("start_following", bind(&log, Log::start_following)),
        poll_batch: bind(&log, Log::poll_batch),
        insert_block: timed("insert_block", bind(&store, clickhouse::insert_block)),
        save_positions: timed("save_positions", bind(&store, clickhouse::save_positions)),
        dead_letter: timed("dead_letter", bind(&publisher, Publisher::dead_letter)),
        host_time: bind(&HostClock::start(), clock::host_time),
    };
    let admin = health::serve(&config.listen, routes, shutdown.clone());
    let run = sink::run(effects, config.limits(), health, shutdown.clone());
    let ended = tokio::try_join!(admin, run).map(|_| ());
    telemetry.flush();
    ended
}
