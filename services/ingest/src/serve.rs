//! From a configuration to a service that answers.

use crate::{App, Effects, Ingest, Limits, Meters};
use adapters::{
    clock::{self, RegionClock},
    nats::{self, Nats},
    scylla::{self, DatabaseTime, Generation, Refused, Scylla},
};
use anyhow::Result;
use kit::{backoff::Backoff, bind, effect, health::Health, shutdown::CancellationToken, timed};
use meridian_proto::{CommitTime, Incarnation};
use rand::RngExt;
use std::{sync::Arc, time::Duration};

/// Parts that must work before ingest is ready.
pub const PARTS: [&str; 2] = ["database", "region clock"];

/// The effects, bound to their adapters.
pub fn effects(scylla: &Arc<Scylla>, nats: &Arc<Nats>, clock: &Arc<RegionClock>) -> Effects {
    Effects {
        find_identity: timed("find_identity", bind(scylla, scylla::find_identity)),
        save_identity: timed("save_identity", bind(scylla, scylla::save_identity)),
        commit_event: timed("commit_event", bind(scylla, scylla::commit_event)),
        // Three times a request, without input or output: a span would cost more than the call.
        region_time: bind(clock, clock::region_time),
        hint_change: timed("hint_change", bind(nats, nats::send_change_hint)),
    }
}

/// Connects, then lets `app` commit; from then on readiness follows the region clock, which follows the database.
///
/// # Errors
/// When the configuration can never work.
pub async fn begin(config: &crate::Config, limits: Limits, app: &App, health: &Health, shutdown: &CancellationToken) -> Result<()> {
    let meters = Meters::read(&config.meters_file)?;
    let nats = Nats::start(&config.nats()).await?;
    let complain = |why: String| health.unready(PARTS[0], why);
    let Some(scylla) = Scylla::connect_when_ready(&config.scylla(), shutdown, complain).await? else { return Ok(()) };
    let Some(generation) = wait_for_generation(&scylla, health, shutdown).await? else { return Ok(()) };
    health.ready(PARTS[0]);
    let database_time = noted(health.clone(), timed("database_time", bind(&scylla, scylla::database_time)));
    let clock = RegionClock::start(database_time, shutdown.clone());
    let effects = effects(&scylla, &nats, &clock);
    let incarnation = Incarnation::from_random(rand::rng().random());
    app.begin(Ingest::start(effects.clone(), limits, meters, &config.region, generation.generation, incarnation));
    tracing::info!(generation = generation.generation, "ready to commit");
    watch(&effects.region_time, health, shutdown).await;
    Ok(())
}

/// The database is asked once a second for its time: what it answers tells whether it is there.
fn noted(health: Health, database_time: kit::Effect<(), DatabaseTime>) -> kit::Effect<(), DatabaseTime> {
    effect(move |()| {
        let (health, asked) = (health.clone(), database_time(()));
        async move {
            let answer = asked.await;
            match &answer {
                Ok(_) => health.ready(PARTS[0]),
                Err(error) => health.unready(PARTS[0], format!("{error:#}")),
            }
            answer
        }
    })
}

async fn wait_for_generation(scylla: &Arc<Scylla>, health: &Health, shutdown: &CancellationToken) -> Result<Option<Generation>> {
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
    while !shutdown.is_cancelled() {
        match scylla::latest_generation(Arc::clone(scylla), ()).await {
            Ok(generation) => return Ok(Some(generation)),
            Err(error) if error.is::<Refused>() => return Err(error),
            Err(error) => health.unready(PARTS[0], format!("{error:#}")),
        }
        tokio::select! { () = shutdown.cancelled() => {}, () = backoff.wait() => {} }
    }
    Ok(None)
}

async fn watch(region_time: &kit::Effect<(), CommitTime>, health: &Health, shutdown: &CancellationToken) {
    while !shutdown.is_cancelled() {
        match region_time(()).await {
            Ok(_) => health.ready(PARTS[1]),
            Err(error) => health.unready(PARTS[1], error),
        }
        tokio::select! { () = shutdown.cancelled() => {}, () = tokio::time::sleep(Duration::from_millis(200)) => {} }
    }
}
