//! The session, and what is asserted before it is used.

use super::STATEMENT_TIMEOUT;
use anyhow::{Context, Result, bail};
use kit::{backoff::Backoff, shutdown::CancellationToken};
use scylla::{
    client::{PoolSize, execution_profile::ExecutionProfile, session::Session, session_builder::SessionBuilder},
    policies::{host_filter::DcHostFilter, load_balancing::DefaultPolicy, retry::FallthroughRetryPolicy},
    statement::{Consistency, SerialConsistency, prepared::PreparedStatement},
};
use std::{
    collections::BTreeMap,
    fmt::Display,
    net::IpAddr,
    num::NonZeroUsize,
    sync::{Arc, RwLock},
    time::Duration,
};
use tokio::net::lookup_host;

/// Rows of a page of the change log: bounds what one page holds at about 32 MiB.
const PAGE_ROWS: i32 = 128;

/// Where the database is, and which region this is.
#[derive(Clone, Debug)]
pub struct ScyllaConfig {
    /// `host:port` of a node of the own region.
    pub address: String,
    /// The own region: the name of its datacenter.
    pub region: String,
    /// All regions.
    pub regions: Vec<String>,
}

/// A configuration with which no start is right: a person has to mend it.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The node that answers belongs to another region.
    #[error("the database at {address} is of datacenter {found:?}, not of the configured region {region:?}")]
    WrongDatacenter {
        /// Configured address.
        address: String,
        /// Configured region.
        region: String,
        /// The node's datacenter.
        found: String,
    },
    /// The layout of a generation is not the one that this program knows.
    #[error("generation {generation} of region {region} has another layout than this program: {difference}")]
    WrongLayout {
        /// Region of the generation.
        region: String,
        /// The generation.
        generation: u32,
        /// What differs.
        difference: String,
    },
}

/// A session with the database of the own region.
pub struct Scylla {
    pub(super) session: Session,
    pub(super) region: String,
    pub(super) regions: Vec<String>,
    /// Window lengths of the generations met so far: they never change.
    pub(super) windows_ms: RwLock<BTreeMap<u32, u64>>,
    statements: Option<Statements>,
}

pub(super) struct Statements {
    pub time: PreparedStatement,
    pub find_identity: PreparedStatement,
    pub save_identity: PreparedStatement,
    pub commit_event: PreparedStatement,
    pub read_changes: PreparedStatement,
    pub read_generations: PreparedStatement,
}

impl Statements {
    async fn prepare(session: &Session) -> Result<Self> {
        let prepare = async |text: &str| -> Result<PreparedStatement> {
            let mut statement = session.prepare(text).await.with_context(|| format!("prepare {text}"))?;
            statement.set_use_cached_result_metadata(true);
            statement.set_is_idempotent(true);
            statement.set_page_size(PAGE_ROWS);
            Ok(statement)
        };
        Ok(Self {
            time: prepare("SELECT now() FROM system.local").await?,
            find_identity: prepare("SELECT id, hash FROM meridian.event_identity WHERE tenant = ? AND source = ? AND id IN ?").await?,
            save_identity: prepare("INSERT INTO meridian.event_identity (tenant, source, id, hash) VALUES (?, ?, ?, ?)").await?,
            commit_event: prepare(
                "INSERT INTO meridian.changes (region, generation, partition, window, commit_id, change) VALUES (?, ?, ?, ?, ?, ?)",
            )
            .await?,
            read_changes: prepare(
                "SELECT commit_id, change FROM meridian.changes \
                 WHERE region = ? AND generation = ? AND partition = ? AND window = ? AND commit_id > ? AND commit_id <= ?",
            )
            .await?,
            read_generations: prepare(
                "SELECT generation, partitions, window_ms, key_function, cluster_id, host_ids, created_us \
                 FROM meridian.generations WHERE region = ?",
            )
            .await?,
        })
    }
}

impl Scylla {
    /// Connects, asserts that the node is of the own region, and prepares the statements.
    ///
    /// # Errors
    /// [`Refused`] (to be found with `downcast_ref`) when the configuration is wrong; anything else may pass by itself:
    /// the database does not answer yet, or has no schema yet.
    pub async fn connect(config: &ScyllaConfig) -> Result<Arc<Self>> {
        let session = open(config, STATEMENT_TIMEOUT, true).await?;
        assert_datacenter(&session, config).await?;
        let statements = Some(Statements::prepare(&session).await?);
        Ok(Arc::new(Self::of(session, config, statements)))
    }

    /// Connects for the schema job: to all regions' nodes, with time for DDL, and without prepared statements, since
    /// there may be no tables yet.
    ///
    /// # Errors
    /// As [`Scylla::connect`].
    pub async fn connect_for_schema(config: &ScyllaConfig) -> Result<Arc<Self>> {
        let session = open(config, Duration::from_secs(30), false).await?;
        assert_datacenter(&session, config).await?;
        Ok(Arc::new(Self::of(session, config, None)))
    }

    /// Tries [`Scylla::connect`] until it works; tells `complain` why not. `None` when asked to stop.
    ///
    /// # Errors
    /// [`Refused`].
    pub async fn connect_when_ready(
        config: &ScyllaConfig,
        shutdown: &CancellationToken,
        complain: impl Fn(String),
    ) -> Result<Option<Arc<Self>>> {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
        while !shutdown.is_cancelled() {
            match Self::connect(config).await {
                Ok(scylla) => return Ok(Some(scylla)),
                Err(error) if error.is::<Refused>() => return Err(error),
                Err(error) => complain(format!("{error:#}")),
            }
            tokio::select! { () = shutdown.cancelled() => {}, () = backoff.wait() => {} }
        }
        Ok(None)
    }

    fn of(session: Session, config: &ScyllaConfig, statements: Option<Statements>) -> Self {
        let (region, regions) = (config.region.clone(), config.regions.clone());
        Self { session, region, regions, windows_ms: RwLock::default(), statements }
    }

    pub(super) fn statements(&self) -> Result<&Statements> {
        self.statements.as_ref().context("this session is the schema job's")
    }
}

async fn open(config: &ScyllaConfig, timeout: Duration, own_region_only: bool) -> Result<Session> {
    let policy = DefaultPolicy::builder().prefer_datacenter(config.region.clone()).token_aware(true).permit_dc_failover(false).build();
    let profile = ExecutionProfile::builder()
        .load_balancing_policy(policy)
        .retry_policy(Arc::new(FallthroughRetryPolicy::new()))
        .speculative_execution_policy(None)
        .consistency(Consistency::LocalQuorum)
        .serial_consistency(Some(SerialConsistency::LocalSerial))
        .request_timeout(Some(timeout))
        .build();
    let builder = SessionBuilder::new()
        .known_node(&config.address)
        .default_execution_profile_handle(profile.into_handle())
        .pool_size(PoolSize::PerHost(NonZeroUsize::MIN))
        .connection_timeout(Duration::from_secs(2))
        .keepalive_interval(Duration::from_secs(2))
        .keepalive_timeout(Duration::from_secs(2))
        .cluster_metadata_refresh_interval(Duration::from_secs(10));
    let builder = if own_region_only { builder.host_filter(Arc::new(DcHostFilter::new(config.region.clone()))) } else { builder };
    // The driver tries known nodes again and again; the deadline lets the caller say meanwhile what is missing.
    let opened = tokio::time::timeout(Duration::from_secs(10), builder.build()).await;
    opened
        .context("no answer in 10 s")
        .and_then(|result| Ok(result?))
        .with_context(|| format!("connect to the database at {}", config.address))
}

/// LOCAL_QUORUM is local to the node that coordinates, so a node of another region would make every promise one about that region.
async fn assert_datacenter(session: &Session, config: &ScyllaConfig) -> Result<()> {
    let addresses: Vec<IpAddr> = lookup_host(&config.address).await.context("resolve the database's address")?.map(|at| at.ip()).collect();
    let state = session.get_cluster_state();
    let found = |found: &dyn Display| Refused::WrongDatacenter {
        address: config.address.clone(),
        region: config.region.clone(),
        found: found.to_string(),
    };
    let contact = state.get_nodes_info().iter().find(|node| addresses.contains(&node.address.ip()));
    match contact.map(|node| node.datacenter.as_deref().unwrap_or("unknown")) {
        Some(datacenter) if datacenter == config.region => {}
        Some(datacenter) => bail!(found(&datacenter)),
        None => bail!("no node of the cluster has the configured address {}", config.address),
    }
    let answer =
        session.query_unpaged("SELECT data_center FROM system.local", ()).await.context("ask for the datacenter")?.into_rows_result()?;
    let (datacenter,) = answer.single_row::<(String,)>()?;
    if datacenter != config.region {
        bail!(found(&datacenter));
    }
    Ok(())
}
