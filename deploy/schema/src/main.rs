//! The command `schema`.

use adapters::{
    clickhouse::{self, ClickHouse},
    clock::{self, HostClock},
    redpanda::{self, RedpandaConfig},
    scylla::{self, Scylla, ScyllaConfig},
};
use anyhow::Result;
use clap::{Parser, ValueEnum};
use kit::{backoff::Backoff, bind, effect};
use schema::{check, clickhouse as store, cql, files, generation, topics};
use serde::Deserialize;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

const CONNECT_PATIENCE: Duration = Duration::from_secs(60);

/// Applies the schema of one region's engines, or of the database that all regions share. May be repeated.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    job: Job,
}

#[derive(Clone, Copy, ValueEnum)]
enum Job {
    /// Keyspace and tables of the database, once for all regions.
    Cql,
    /// Tables of the own region's analytics store.
    Clickhouse,
    /// Topics of the own region's log.
    Topics,
    /// Registers the first generation of the own region's log.
    Generation,
    /// Reads back what durability and retention stand on.
    Check,
    /// Prints a name for what the CQL files say; needs no engine.
    Digest,
}

#[derive(Deserialize)]
struct Config {
    region: String,
    #[serde(deserialize_with = "kit::config::list")]
    regions: Vec<String>,
    scylla_address: String,
    kafka_address: String,
    clickhouse_url: String,
    clickhouse_database: String,
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<()> {
    let Arguments { job } = Arguments::parse();
    let config: Config = kit::config::load(include_str!("../config.toml"))?;
    for line in run(job, &config).await? {
        println!("{line}");
    }
    Ok(())
}

async fn run(job: Job, config: &Config) -> Result<Vec<String>> {
    let (layout, regions) = (topics::Layout::load()?, &config.regions);
    let log = RedpandaConfig { address: config.kafka_address.clone(), client_id: "schema".into() };
    let create_topics = {
        let log = log.clone();
        effect(move |wanted: Vec<redpanda::TopicSettings>| {
            let log = log.clone();
            async move { redpanda::create_topics(&log, &wanted).await }
        })
    };
    let clickhouse = ClickHouse::new(&config.clickhouse_url, &config.clickhouse_database);
    Ok(match job {
        Job::Digest => vec![files::digest()],
        Job::Cql => {
            let scylla = connect(config).await?;
            let effects =
                cql::Effects { view_cluster: bind(&scylla, scylla::view_cluster), execute_ddl: bind(&scylla, scylla::execute_ddl) };
            vec![format!("{} statements", cql::apply(&effects, regions).await?)]
        }
        Job::Clickhouse => {
            let effects = store::Effects { execute_schema: bind(&clickhouse, clickhouse::execute_schema) };
            vec![format!("{} files", store::apply(&effects).await?)]
        }
        Job::Topics => vec![format!("{} topics", topics::apply(&topics::Effects { create_topics }, &layout, regions).await?)],
        Job::Generation => {
            let scylla = connect(config).await?;
            let effects = generation::Effects {
                view_cluster: bind(&scylla, scylla::view_cluster),
                read_cluster_id: bind(&Arc::new(log), redpanda::read_cluster_id),
                host_time: bind(&HostClock::start(), clock::host_time),
                register_generation: bind(&scylla, scylla::register_generation),
            };
            let row = generation::register(&effects, &layout, &config.region).await?;
            vec![format!("generation {} of {}: log cluster {}", row.generation, row.region, row.cluster_id)]
        }
        Job::Check => {
            let scylla = connect(config).await?;
            let effects = check::Effects {
                read_durability: bind(&scylla, scylla::read_durability),
                create_topics,
                check_settings: bind(&clickhouse, clickhouse::check_settings),
            };
            let lines = check::check(&effects, &layout, regions).await?;
            lines.into_iter().map(|line| format!("check: {line}")).collect()
        }
    })
}

/// A node that has just started may refuse for a moment.
async fn connect(config: &Config) -> Result<Arc<Scylla>> {
    let place = ScyllaConfig { address: config.scylla_address.clone(), region: config.region.clone(), regions: config.regions.clone() };
    let (started, mut backoff) = (Instant::now(), Backoff::new(Duration::from_millis(100), Duration::from_secs(2)));
    loop {
        match Scylla::connect_for_schema(&place).await {
            Ok(scylla) => return Ok(scylla),
            Err(error) if started.elapsed() > CONNECT_PATIENCE || error.is::<scylla::Refused>() => return Err(error),
            Err(_) => backoff.wait().await,
        }
    }
}
