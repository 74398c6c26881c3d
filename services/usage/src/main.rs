//! Usage's process: configuration, telemetry, connections, effects, run.

use adapters::clickhouse::{self, ClickHouse};
use anyhow::Result;
use api::Keys;
use kit::{bind, config, health, health::Health, limited, shutdown, telemetry, timed};
use std::{path::Path, sync::Arc, time::Duration};
use usage::{Config, Effects, HEALTH_PARTS, Meters, Usage};

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<()> {
    match std::env::args().nth(1).as_deref() {
        None => {}
        Some("--version") => {
            println!("usage {}", env!("CARGO_PKG_VERSION"));
            return Ok(());
        }
        Some("--help") => {
            print!("{}\n{}", include_str!("../README.md"), include_str!("../config.toml"));
            return Ok(());
        }
        Some(other) => anyhow::bail!("unknown argument {other:?}; there are --help and --version"),
    }
    let config: Config = config::load(include_str!("../config.toml"))?;
    let meters = Arc::new(Meters::read(Path::new(&config.meters_file))?);
    let (telemetry, shutdown, health) = (telemetry::start("usage")?, shutdown::on_signal()?, Health::of(&HEALTH_PARTS));
    let store = ClickHouse::new(&config.clickhouse_url, &config.clickhouse_database);
    let patience = Duration::from_millis(config.question_patience_ms);
    let effects = Effects {
        read_progress: timed("read_progress", bind(&store, clickhouse::read_progress)),
        sum_meter: timed("sum_meter", limited(config.questions_max, patience, bind(&store, clickhouse::sum_meter))),
        list_conflicts: timed("list_conflicts", limited(config.questions_max, patience, bind(&store, clickhouse::list_conflicts))),
        read_store: timed("read_store", bind(&store, clickhouse::read_store)),
    };
    let keys = Keys::watch(&config.keys_file, shutdown.clone()).await?;
    let (region, regions) = (config.region.into(), config.regions.into());
    let watched = usage::watch_store(bind(&store, clickhouse::check_settings), health.clone(), shutdown.clone());
    let routes = usage::routes(Usage { effects, meters, keys, region, regions })?.merge(health.routes(&telemetry));
    let served = health::serve(&config.listen, routes, shutdown.clone());
    let ended = tokio::try_join!(served, watched).map(|_| ());
    telemetry.flush();
    ended
}
