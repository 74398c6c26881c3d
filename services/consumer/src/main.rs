//! Reads configuration, starts telemetry, connects, binds effects, runs.

use adapters::{
    clock::{self, HostClock},
    nats::{Nats, NatsConfig},
};
use anyhow::Result;
use client::FollowConfig;
use consumer::{Clients, Config, Effects, State, Subscriptions, await_signal, handle_page, load_cursor, pull_page, save_cursor};
use kit::{bind, health::Health, timed};
use std::path::Path;
use tokio::task::JoinSet;

fn main() -> Result<()> {
    if kit::config::answer_usage(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"), include_str!("../config.toml")) {
        return Ok(());
    }
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(run())
}

async fn run() -> Result<()> {
    let config: Config = kit::config::load(include_str!("../config.toml"))?;
    let telemetry = kit::telemetry::start("consumer")?;
    let shutdown = kit::shutdown::on_signal()?;
    let health = Health::of(&["feed"]);
    let keys = config.keys()?;
    let tenants: Vec<String> = keys.keys().cloned().collect();
    let client_id = format!("consumer-{}", config.region);
    let nats = Nats::start(&NatsConfig { url: config.nats_url.clone(), region: config.region.clone(), client_id }).await?;
    let subscriptions = Subscriptions::start(nats, &config.region, &tenants);
    let clients = Clients::new(&keys, &config.feed_urls)?;
    let state = State::open(Path::new(&config.state_dir))?;
    let effects = Effects {
        await_signal: bind(&subscriptions, await_signal),
        pull_page: timed("pull_page", bind(&clients, pull_page)),
        handle_page: timed("handle_page", bind(&state, handle_page)),
        save_cursor: timed("save_cursor", bind(&state, save_cursor)),
        load_cursor: timed("load_cursor", bind(&state, load_cursor)),
        host_time: bind(&HostClock::start(), clock::host_time),
    };
    let (listen, routes, stop) = (config.listen.clone(), health.routes(&telemetry), shutdown.clone());
    let mut parts = JoinSet::new();
    parts.spawn(async move { kit::health::serve(&listen, routes, stop).await });
    parts.spawn(consumer::run(effects, tenants, FollowConfig::default(), health, shutdown.clone()));
    while let Some(ended) = parts.join_next().await {
        ended??;
        shutdown.cancel();
    }
    telemetry.flush();
    Ok(())
}
