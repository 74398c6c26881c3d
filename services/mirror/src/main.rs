//! Reads configuration, starts telemetry, connects, binds effects, runs.

use adapters::{
    clock::{self, HostClock},
    redpanda::{Publisher, RedpandaConfig},
};
use anyhow::{Context, Result};
use kit::{bind, health::Health, timed};
use mirror::{Config, Effects, Limits, LocalLog, local_log, wire};
use std::sync::Arc;
use tokio::{net::TcpListener, task::JoinSet};

fn main() -> Result<()> {
    if kit::config::answer_usage(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"), include_str!("../config.toml")) {
        return Ok(());
    }
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(run())
}

async fn run() -> Result<()> {
    let config = Config::load()?;
    let telemetry = kit::telemetry::start("mirror")?;
    let shutdown = kit::shutdown::on_signal()?;
    let (limits, health) = (Limits::default(), Health::of(&["log"]));
    let peers = Arc::new(wire::Peers::new(&config.region, config.peers()?, config.mirror_window_bytes, &limits)?);
    let regions: Vec<String> = peers.regions().map(Into::into).collect();
    let redpanda = RedpandaConfig { address: config.kafka_address.clone(), client_id: format!("mirror-{}", config.region) };
    let log = LocalLog::connect(redpanda, &config.region, limits.clone()).await?;
    let clock = HostClock::start();
    let effects = Effects {
        read_local_log: timed("read_local_log", bind(&log, local_log::read_local_log)),
        send_frames: bind(&Arc::new(limits.clone()), wire::send_frames),
        receive_frames: timed("receive_frames", bind(&peers, wire::receive_frames)),
        append_local_log: timed("append_local_log", bind(&log, local_log::append_local_log)),
        last_mirrored: timed("last_mirrored", bind(&log, local_log::last_mirrored)),
        park_record: timed("park_record", bind(log.publisher(), Publisher::dead_letter)),
        host_time: bind(&clock, clock::host_time),
    };
    let listener = TcpListener::bind(&config.mirror_listen).await.with_context(|| format!("listen on {}", config.mirror_listen))?;
    let mut parts = JoinSet::new();
    let admin = (config.listen.clone(), health.routes(&telemetry), shutdown.clone());
    parts.spawn(async move { kit::health::serve(&admin.0, admin.1, admin.2).await });
    parts.spawn(mirror::run(effects, limits, config.region, regions, listener, health, shutdown.clone()));
    while let Some(ended) = parts.join_next().await {
        ended??;
        shutdown.cancel();
    }
    telemetry.flush();
    Ok(())
}
