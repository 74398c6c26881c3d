//! The tenants' keys in memory.

use crate::keyfile::{KEY_PREFIX, parse_hashes};
use anyhow::{Context, Result};
use arc_swap::ArcSwap;
use kit::shutdown::CancellationToken;
use sha2::{Digest, Sha256};
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use subtle::ConstantTimeEq;

/// How often the file is looked at.
const POLL_EVERY: Duration = Duration::from_secs(1);

/// A known key: whose it is, and its SHA-256.
pub(crate) type Table = HashMap<String, (Arc<str>, [u8; 32])>;

/// The keys that are valid now.
#[derive(Debug)]
pub struct Keys {
    path: PathBuf,
    table: ArcSwap<Table>,
}

impl Keys {
    /// Reads the file of hashes, and reads it again whenever it changes, until asked to stop. A file that cannot be read
    /// later on changes nothing but the log.
    ///
    /// # Errors
    /// When the file cannot be read at first.
    pub async fn watch(path: impl AsRef<Path>, shutdown: CancellationToken) -> Result<Arc<Self>> {
        let path = path.as_ref().to_owned();
        let mark = Self::mark(&path).await;
        let keys = Arc::new(Self { table: ArcSwap::from_pointee(Self::read(&path).await?), path });
        tokio::spawn(Arc::clone(&keys).follow(mark, shutdown));
        Ok(keys)
    }

    async fn follow(self: Arc<Self>, mut mark: Option<Mark>, shutdown: CancellationToken) {
        while !shutdown.is_cancelled() {
            tokio::select! { () = shutdown.cancelled() => return, () = tokio::time::sleep(POLL_EVERY) => {} }
            let seen = Self::mark(&self.path).await;
            if seen == mark {
                continue;
            }
            mark = seen;
            match Self::read(&self.path).await {
                Ok(table) => {
                    tracing::info!(keys = table.len(), "keys were read again");
                    self.table.store(Arc::new(table));
                }
                Err(error) => tracing::error!(error = format!("{error:#}"), "keys stay as they were"),
            }
        }
    }

    async fn read(path: &Path) -> Result<Table> {
        let text = tokio::fs::read_to_string(path).await.with_context(|| format!("read keys from {}", path.display()))?;
        parse_hashes(&text).with_context(|| format!("keys in {}", path.display()))
    }

    async fn mark(path: &Path) -> Option<Mark> {
        let metadata = tokio::fs::metadata(path).await.ok()?;
        Some((metadata.modified().ok()?, metadata.len(), std::os::unix::fs::MetadataExt::ino(&metadata)))
    }

    /// Whose key this is. What is compared, and in constant time, are hashes.
    pub fn tenant_of(&self, key: &str) -> Option<Arc<str>> {
        let (key_id, _) = key.strip_prefix(KEY_PREFIX)?.split_once('_')?;
        let table = self.table.load();
        let (tenant, hash) = table.get(key_id)?;
        let given: [u8; 32] = Sha256::digest(key.as_bytes()).into();
        bool::from(given.ct_eq(hash)).then(|| Arc::clone(tenant))
    }
}

/// Time, length and inode: a replaced file differs in one of them.
type Mark = (std::time::SystemTime, u64, u64);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::create_key;

    #[tokio::test]
    async fn a_new_key_works_without_a_restart_and_a_removed_one_stops() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("keys.toml");
        let first = create_key(&file, "acme").unwrap();
        let shutdown = CancellationToken::new();
        let keys = Keys::watch(&file, shutdown.clone()).await.unwrap();
        assert_eq!(keys.tenant_of(&first).as_deref(), Some("acme"));
        let second = create_key(&file, "globex").unwrap();
        assert_eq!(keys.tenant_of(&second), None);
        until(|| keys.tenant_of(&second).as_deref() == Some("globex")).await;
        std::fs::write(&file, "broken = [").unwrap();
        tokio::time::sleep(POLL_EVERY * 2).await;
        assert_eq!(keys.tenant_of(&first).as_deref(), Some("acme"), "a broken file changes nothing");
        std::fs::write(&file, "").unwrap();
        until(|| keys.tenant_of(&first).is_none()).await;
        shutdown.cancel();
    }

    async fn until(condition: impl Fn() -> bool) {
        for _ in 0..50 {
            if condition() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("did not come true in 5 s");
    }

    #[tokio::test]
    async fn a_key_with_one_wrong_byte_is_nobodys() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("keys.toml");
        let key = create_key(&file, "acme").unwrap();
        let keys = Keys::watch(&file, CancellationToken::new()).await.unwrap();
        for at in 0..key.len() {
            let mut wrong = key.clone().into_bytes();
            wrong[at] = if wrong[at] == b'x' { b'y' } else { b'x' };
            assert_eq!(keys.tenant_of(std::str::from_utf8(&wrong).unwrap()), None, "byte {at}");
        }
        assert_eq!(keys.tenant_of(""), None);
    }
}
