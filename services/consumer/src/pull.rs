//! Pulling pages, each tenant with its own key, over one pool of connections.

use anyhow::{Context, Result};
use client::{Client, ClientConfig, Page, PullError, connection_pool};
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

/// The tenants' clients.
#[derive(Debug)]
pub struct Clients(HashMap<String, Client>);

/// Which page.
#[derive(Clone, Debug)]
pub struct PullPage {
    /// Whose.
    pub tenant: String,
    /// Where it begins.
    pub cursor: String,
    /// Events at most.
    pub limit: u32,
}

impl Clients {
    /// A client for each tenant and key.
    ///
    /// # Errors
    /// When the pool cannot be made.
    pub fn new(keys: &BTreeMap<String, String>, feed_urls: &[String]) -> Result<Arc<Self>> {
        let config = ClientConfig { feed_urls: feed_urls.to_vec(), ..ClientConfig::default() };
        let pool = connection_pool(config.connect_timeout)?;
        let client = |key: &String| Client::with_pool(pool.clone(), ClientConfig { key: key.clone(), ..config.clone() });
        Ok(Arc::new(Self(keys.iter().map(|(tenant, key)| (tenant.clone(), client(key))).collect())))
    }
}

/// Pulls a page: from the preferred feed, or the next one that answers.
///
/// # Errors
/// When the tenant is not one of ours; that there is no page is an outcome.
pub async fn pull_page(clients: Arc<Clients>, input: PullPage) -> Result<Result<Page, PullError>> {
    let client = clients.0.get(&input.tenant).context("a tenant without a key")?;
    Ok(client.pull(&input.cursor, input.limit, 0).await)
}
