//! Cursors: signed vectors of positions, valid in every region.

use crate::{PartitionId, Topic};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::collections::BTreeMap;

/// Secret of a deployment, the same in all its regions, with which cursors are signed.
#[derive(Clone)]
pub struct CursorKey(Vec<u8>);

impl CursorKey {
    /// Takes the secret's bytes.
    pub fn new(secret: impl Into<Vec<u8>>) -> Self {
        Self(secret.into())
    }
}

/// Where a tenant's consumer stands: for each partition the origin offset to read next.
/// A partition that is not named is read from its beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Offsets to read next.
    pub next: BTreeMap<PartitionId, u64>,
}

/// Why a text is not a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CursorError {
    /// Not one of ours: damaged, forged, of another tenant or of another deployment.
    #[error("the cursor is not one that this service gave to this tenant")]
    Forged,
}

const SIGNATURE_BYTES: usize = 16;

impl Cursor {
    fn signature(tenant: &str, body: &[u8], key: &CursorKey) -> Option<Hmac<Sha256>> {
        let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(&key.0).ok()?;
        mac.update(&(tenant.len() as u64).to_be_bytes());
        mac.update(tenant.as_bytes());
        mac.update(body);
        Some(mac)
    }

    /// The text that a client keeps: base64url of the positions as text, preceded by a truncated HMAC-SHA-256
    /// over tenant and positions (RFC 2104, section 5: truncation to half).
    pub fn encode(&self, tenant: &str, key: &CursorKey) -> String {
        let positions: Vec<String> =
            self.next.iter().map(|(id, next)| format!("{}.{}.{}.{next}", id.topic.region, id.topic.generation, id.partition)).collect();
        let body = positions.join(" ").into_bytes();
        let tag = Self::signature(tenant, &body, key).map(|mac| mac.finalize().into_bytes()).unwrap_or_default();
        let mut bytes = tag[..SIGNATURE_BYTES].to_vec();
        bytes.extend_from_slice(&body);
        BASE64_URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Reads what [`Cursor::encode`] gave for the same tenant and key.
    ///
    /// # Errors
    /// [`CursorError::Forged`] for anything else.
    pub fn decode(text: &str, tenant: &str, key: &CursorKey) -> Result<Self, CursorError> {
        Self::read(text, tenant, key).ok_or(CursorError::Forged)
    }

    fn read(text: &str, tenant: &str, key: &CursorKey) -> Option<Self> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).ok()?;
        let (tag, body) = bytes.split_at_checked(SIGNATURE_BYTES)?;
        Self::signature(tenant, body, key)?.verify_truncated_left(tag).ok()?;
        let body = std::str::from_utf8(body).ok()?;
        let mut next = BTreeMap::new();
        for position in body.split(' ').filter(|text| !text.is_empty()) {
            let fields: Vec<&str> = position.split('.').collect();
            let [region, generation, partition, offset] = fields.as_slice() else { return None };
            let topic = Topic { region: (*region).into(), generation: generation.parse().ok()? };
            next.insert(PartitionId { topic, partition: partition.parse().ok()? }, offset.parse().ok()?);
        }
        Some(Self { next })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cursor(positions: &[(u32, u16, u64)]) -> Cursor {
        let next = positions.iter().map(|(generation, partition, offset)| {
            (PartitionId { topic: Topic { region: "fra".into(), generation: *generation }, partition: *partition }, *offset)
        });
        Cursor { next: next.collect() }
    }

    proptest! {
        #[test]
        fn only_the_same_tenant_and_key_read_it_back(positions in proptest::collection::vec(any::<(u32, u16, u64)>(), 0..20), flip in any::<usize>()) {
            let key = CursorKey::new(*b"a secret of the deployment");
            let cursor = cursor(&positions);
            let text = cursor.encode("acme", &key);
            prop_assert_eq!(Cursor::decode(&text, "acme", &key), Ok(cursor));
            prop_assert_eq!(Cursor::decode(&text, "globex", &key), Err(CursorError::Forged));
            prop_assert_eq!(Cursor::decode(&text, "acme", &CursorKey::new(*b"another")), Err(CursorError::Forged));
            let mut bytes = BASE64_URL_SAFE_NO_PAD.decode(&text).unwrap();
            let at = flip % bytes.len();
            bytes[at] ^= 1;
            prop_assert_eq!(Cursor::decode(&BASE64_URL_SAFE_NO_PAD.encode(bytes), "acme", &key), Err(CursorError::Forged));
        }
    }
}
