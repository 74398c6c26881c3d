//! What the schema job does: one client, one statement after another, only while all nodes agree.

use super::Scylla;
use anyhow::{Context, Result};
use std::{collections::BTreeMap, sync::Arc};

/// Who is in the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterView {
    /// Connected nodes by region; a region whose node is known but not connected has 0.
    pub connected: BTreeMap<String, usize>,
    /// Host ids of the own region's nodes.
    pub own_host_ids: Vec<String>,
    /// Whether all of them have one version of the schema.
    pub schema_agreed: bool,
    /// Whether each configured region has a connected node, and the schema is agreed: only then may DDL be applied.
    pub complete: bool,
}

/// Carries out one DDL statement and waits until all nodes agree on the schema.
///
/// # Errors
/// When it is refused, not answered in time, or no agreement is reached.
pub async fn execute_ddl(scylla: Arc<Scylla>, statement: String) -> Result<()> {
    scylla.session.query_unpaged(statement.as_str(), ()).await.with_context(|| format!("execute {statement}"))?;
    scylla.session.await_schema_agreement().await.context("schema agreement")?;
    Ok(())
}

/// Looks at the cluster anew. For a session of [`Scylla::connect_for_schema`]; others see their own region only.
///
/// # Errors
/// When the nodes' list cannot be read.
pub async fn view_cluster(scylla: Arc<Scylla>, (): ()) -> Result<ClusterView> {
    scylla.session.refresh_metadata().await.context("read the cluster's nodes")?;
    let schema_agreed = matches!(scylla.session.check_schema_agreement().await, Ok(Some(_)));
    let mut view = ClusterView { schema_agreed, ..ClusterView::default() };
    for node in scylla.session.get_cluster_state().get_nodes_info() {
        let datacenter = node.datacenter.clone().unwrap_or_default();
        if datacenter == scylla.region {
            view.own_host_ids.push(node.host_id.to_string());
        }
        *view.connected.entry(datacenter).or_default() += usize::from(node.is_connected());
    }
    let connected = |region: &String| view.connected.get(region).is_some_and(|nodes| *nodes > 0);
    view.complete = schema_agreed && scylla.regions.iter().all(connected);
    Ok(view)
}
