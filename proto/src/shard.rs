//! Which partition an event goes to. Shard = partition: one number for the change log and the log.
//!
//! The function belongs to the generation, never to configuration: it may change only with a new one.

use sha2::{Digest, Sha256};

/// Partitions of the change log and of every events topic of the first generation's layout.
pub const PARTITIONS: u16 = 16;

/// Over how many of them the subjects of one tenant spread.
pub const SUBJECT_SPREAD: u16 = 4;

/// Name of [`partition_of`] in the registry of generations.
pub const KEY_FUNCTION: &str = "sha256-tenant-16-subject-4";

fn hash(text: &str) -> u64 {
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().take(8).fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn partition_at(tenant_hash: u64, lane: u16) -> u16 {
    ((tenant_hash % u64::from(PARTITIONS)) as u16 + lane) % PARTITIONS
}

/// The partition of an event: hash(tenant), spread by hash(subject). An absent subject is one subject of its own.
pub fn partition_of(tenant: &str, subject: Option<&str>) -> u16 {
    let lane = subject.map_or(0, |subject| (hash(subject) % u64::from(SUBJECT_SPREAD)) as u16);
    partition_at(hash(tenant), lane)
}

/// All partitions that can hold events of a tenant.
pub fn partitions_of(tenant: &str) -> [u16; SUBJECT_SPREAD as usize] {
    let tenant_hash = hash(tenant);
    std::array::from_fn(|lane| partition_at(tenant_hash, lane as u16))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_subject_falls_into_the_tenants_partitions(tenant in ".{0,20}", subject in proptest::option::of(".{0,20}")) {
            let partition = partition_of(&tenant, subject.as_deref());
            prop_assert!(partition < PARTITIONS);
            prop_assert!(partitions_of(&tenant).contains(&partition));
        }
    }

    /// Layout is schema: a change of these values loses nothing only with a new generation.
    #[test]
    fn the_function_of_the_first_generation_is_frozen() {
        let seen: Vec<u16> = [("acme", None), ("acme", Some("order-1")), ("globex", Some("order-1")), ("", Some(""))]
            .map(|(tenant, subject)| partition_of(tenant, subject))
            .to_vec();
        assert_eq!(seen, FROZEN);
    }
    const FROZEN: [u16; 4] = [0, 0, 7, 4];
}
