//! Which log this is.

use super::{
    RedpandaConfig,
    client::{self, ANSWER},
};
use anyhow::{Context, Result};
use rdkafka::{admin::AdminClient, client::DefaultClientContext, config::FromClientConfig};
use std::sync::Arc;

/// The log's own name of its cluster: drawn when it is made, so that a log that was made anew has another.
///
/// # Errors
/// When it does not answer in time.
pub async fn read_cluster_id(config: Arc<RedpandaConfig>, (): ()) -> Result<String> {
    let ask = move || -> Result<String> {
        let client: AdminClient<DefaultClientContext> = AdminClient::from_config(&client::base(&config)).context("settings")?;
        client.inner().fetch_cluster_id(ANSWER).context("the log does not name its cluster")
    };
    tokio::task::spawn_blocking(ask).await.context("read the cluster's name")?
}
