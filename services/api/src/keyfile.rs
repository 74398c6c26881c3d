//! The files of keys. `keys.toml` holds hashes: a table a tenant, in it key id = SHA-256 in hex. `dev-keys.toml` holds
//! development keys in plain text; `cursor.key` what signs cursors.

use crate::keys::Table;
use anyhow::{Context, Result, bail, ensure};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use rand::Rng;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{
    collections::{BTreeMap, btree_map::Entry},
    fs::{self, OpenOptions},
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

/// What every key begins with, so that a leaked one is recognised: `mk_<key id>_<secret>`.
pub(crate) const KEY_PREFIX: &str = "mk_";

type Hashes = BTreeMap<String, BTreeMap<String, String>>;

#[derive(Default, Serialize, Deserialize)]
struct DevKeys {
    keys: BTreeMap<String, String>,
}

pub(crate) fn parse_hashes(text: &str) -> Result<Table> {
    let mut table = Table::new();
    for (tenant, keys) in toml::from_str::<Hashes>(text)? {
        let tenant: std::sync::Arc<str> = tenant.into();
        for (key_id, hash) in keys {
            let mut bytes = [0; 32];
            hex::decode_to_slice(&hash, &mut bytes).with_context(|| format!("key {key_id} of {tenant}: SHA-256 in hex"))?;
            if table.insert(key_id.clone(), (tenant.clone(), bytes)).is_some() {
                bail!("key id {key_id} stands there twice");
            }
        }
    }
    Ok(table)
}

/// Draws a key for a tenant, adds its hash to the file, and returns the key: it is kept nowhere else.
///
/// # Errors
/// When the name is no tenant's, or the file cannot be read or replaced.
pub fn create_key(file: &Path, tenant: &str) -> Result<String> {
    let mut hashes = read_or_default::<Hashes>(file)?;
    let key = add_key(&mut hashes, tenant)?;
    replace(file, &toml::to_string(&hashes)?)?;
    Ok(key)
}

fn add_key(hashes: &mut Hashes, tenant: &str) -> Result<String> {
    let valid = (1..=64).contains(&tenant.len()) && tenant.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    ensure!(valid, "a tenant's name has 1 to 64 characters a-z, A-Z, 0-9, '-', '_' and '.', not {tenant:?}");
    let (mut id, mut secret) = ([0; 6], [0; 32]);
    rand::rng().fill_bytes(&mut id);
    rand::rng().fill_bytes(&mut secret);
    let key_id = hex::encode(id);
    let key = format!("{KEY_PREFIX}{key_id}_{}", BASE64_URL_SAFE_NO_PAD.encode(secret));
    hashes.entry(tenant.into()).or_default().insert(key_id, hex::encode(Sha256::digest(key.as_bytes())));
    Ok(key)
}

/// Makes what a development world needs, unless it is there: keys of `tenants` tenants (`tenant-01`…), and the key that
/// signs cursors. Can be repeated: what is there stays.
///
/// # Errors
/// When a file cannot be read or written.
pub fn create_dev_secrets(dir: &Path, tenants: usize) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    let (hash_file, key_file, cursor_file) = (dir.join("keys.toml"), dir.join("dev-keys.toml"), dir.join("cursor.key"));
    let mut hashes = read_or_default::<Hashes>(&hash_file)?;
    let mut dev = read_or_default::<DevKeys>(&key_file)?;
    let known = dev.keys.len();
    for tenant in (1..=tenants).map(|number| format!("tenant-{number:02}")) {
        if let Entry::Vacant(vacant) = dev.keys.entry(tenant) {
            let key = add_key(&mut hashes, vacant.key())?;
            vacant.insert(key);
        }
    }
    if dev.keys.len() > known || !hash_file.exists() {
        replace(&hash_file, &toml::to_string(&hashes)?)?;
        replace(&key_file, &toml::to_string(&dev)?)?;
    }
    if !cursor_file.exists() {
        let mut key = [0; 32];
        rand::rng().fill_bytes(&mut key);
        replace(&cursor_file, &(hex::encode(key) + "\n"))?;
    }
    Ok(())
}

/// The development keys by tenant.
///
/// # Errors
/// When the file cannot be read.
pub fn read_dev_keys(file: &Path) -> Result<BTreeMap<String, String>> {
    let text = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    Ok(toml::from_str::<DevKeys>(&text).with_context(|| format!("keys in {}", file.display()))?.keys)
}

/// The 32 bytes that sign cursors.
///
/// # Errors
/// When the file cannot be read or holds something else.
pub fn read_cursor_key(file: &Path) -> Result<[u8; 32]> {
    let text = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    let mut key = [0; 32];
    hex::decode_to_slice(text.trim(), &mut key).with_context(|| format!("{}: 32 bytes in hex", file.display()))?;
    Ok(key)
}

fn read_or_default<T: Default + for<'de> Deserialize<'de>>(file: &Path) -> Result<T> {
    match fs::read_to_string(file) {
        Ok(text) => toml::from_str(&text).with_context(|| format!("keys in {}", file.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(T::default()),
        Err(error) => Err(error).with_context(|| format!("read {}", file.display())),
    }
}

/// Whoever reads meanwhile sees the old file or the new one, never a part.
fn replace(file: &Path, text: &str) -> Result<()> {
    let new = file.with_extension("new");
    let write = || -> Result<()> {
        let mut open = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        open.write_all(text.as_bytes())?;
        open.sync_all()?;
        Ok(fs::rename(&new, file)?)
    };
    write().with_context(|| format!("write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn development_secrets_are_made_once_and_grow() {
        let dir = tempfile::tempdir().unwrap();
        create_dev_secrets(dir.path(), 2).unwrap();
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        let before = ["keys.toml", "dev-keys.toml", "cursor.key"].map(read);
        create_dev_secrets(dir.path(), 2).unwrap();
        assert_eq!(["keys.toml", "dev-keys.toml", "cursor.key"].map(read), before);
        create_dev_secrets(dir.path(), 3).unwrap();
        let keys = read_dev_keys(&dir.path().join("dev-keys.toml")).unwrap();
        assert_eq!(keys.keys().map(String::as_str).collect::<Vec<_>>(), ["tenant-01", "tenant-02", "tenant-03"]);
        assert!(before[1].contains(&keys["tenant-01"]), "an old key stays");
        assert!(!read("keys.toml").contains(&keys["tenant-01"]), "only the hash is kept");
        assert_eq!(parse_hashes(&read("keys.toml")).unwrap().len(), 3);
        assert_ne!(read_cursor_key(&dir.path().join("cursor.key")).unwrap(), [0; 32]);
        assert_eq!(fs::metadata(dir.path().join("dev-keys.toml")).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_tenants_name_is_checked() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["", "a b", "ü", &"x".repeat(65)] {
            assert!(create_key(&dir.path().join("keys.toml"), name).is_err(), "{name}");
        }
    }
}
