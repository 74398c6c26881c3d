//! ingest: read configuration, start telemetry, connect, bind, run.

use anyhow::Result;
use api::Keys;
use clap::Parser;
use ingest::{App, Config, Limits, cli::Arguments, routes, serve};
use kit::{
    health::{self, Health},
    shutdown, telemetry,
};

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<()> {
    if Arguments::parse().carry_out()? {
        return Ok(());
    }
    let config = Config::load()?;
    let limits = Limits { in_flight_bytes_max: config.in_flight_bytes_max, ..Limits::default() };
    limits.assert_relations();
    let telemetry = telemetry::start("ingest")?;
    let shutdown = shutdown::on_signal()?;
    let health = Health::of(&serve::PARTS);
    let keys = Keys::watch(&config.keys_file, shutdown.clone()).await?;
    let app = App::new(keys, limits);
    let served = health::serve(&config.listen, routes(app.clone())?.merge(health.routes(&telemetry)), shutdown.clone());
    let begun = async {
        let result = serve::begin(&config, limits, &app, &health, &shutdown).await;
        // Ends the server as well, be it asked for or not.
        shutdown.cancel();
        result
    };
    let (served, begun) = tokio::join!(served, begun);
    telemetry.flush();
    begun.and(served)
}
