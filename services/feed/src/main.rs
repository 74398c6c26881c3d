//! Reads configuration, starts telemetry, connects, binds effects, runs.

use adapters::{
    clock::{self, HostClock},
    nats::{self, Nats, NatsConfig},
    redpanda::{self, LogReader, RedpandaConfig},
};
use anyhow::Result;
use feed::{Config, Effects, Feed, Limits, http, log};
use kit::{bind, health::Health, timed};
use meridian_proto::CursorKey;
use std::{path::Path, sync::Arc};
use tokio::task::JoinSet;

fn main() -> Result<()> {
    if kit::config::answer_usage(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"), include_str!("../config.toml")) {
        return Ok(());
    }
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(run())
}

async fn run() -> Result<()> {
    let config: Config = kit::config::load(include_str!("../config.toml"))?;
    let telemetry = kit::telemetry::start("feed")?;
    let shutdown = kit::shutdown::on_signal()?;
    let health = Health::of(&["log", "nats"]);
    let client_id = format!("feed-{}", config.region);
    let redpanda = RedpandaConfig { address: config.kafka_address.clone(), client_id: client_id.clone() };
    let reader = LogReader::connect(&redpanda, &config.region).await?;
    let nats = Nats::start(&NatsConfig { url: config.nats_url.clone(), region: config.region.clone(), client_id }).await?;
    let clock = HostClock::start();
    let log = Arc::new(log::Log { config: redpanda, own_region: config.region.clone(), reader: Arc::clone(&reader) });
    let effects = Effects {
        list_partitions: timed("list_partitions", log::of_regions(bind(&reader, redpanda::list_partitions), config.regions.clone())),
        tail_log: timed("tail_log", bind(&log, log::tail_log)),
        log_bounds: timed("log_bounds", bind(&reader, LogReader::bounds)),
        read_log_page: timed("read_log_page", bind(&log, log::read_log_page)),
        find_position: timed("find_position", bind(&reader, LogReader::find_position)),
        send_signal: timed("send_signal", bind(&nats, nats::send_signal)),
        host_time: bind(&clock, clock::host_time),
    };
    let keys = api::Keys::watch(&config.keys_file, shutdown.clone()).await?;
    let cursor_key = CursorKey::new(api::read_cursor_key(Path::new(&config.cursor_key_file))?);
    let feed = Feed::new(effects, Limits::STANDARD, &config.region, cursor_key, shutdown.clone());
    let routes = http::routes(http::Shared { feed: Arc::clone(&feed), keys })?.merge(health.routes(&telemetry));
    let (listen, stop, connected) = (config.listen.clone(), shutdown.clone(), health.clone());
    let mut parts = JoinSet::new();
    parts.spawn(async move { kit::health::serve(&listen, routes, stop).await });
    parts.spawn(feed::run(feed, health));
    // Pages don't need NATS, so its going away later does not make the feed unready.
    tokio::spawn(async move {
        nats.connected().await;
        connected.ready("nats");
    });
    while let Some(ended) = parts.join_next().await {
        ended??;
        shutdown.cancel();
    }
    telemetry.flush();
    Ok(())
}
