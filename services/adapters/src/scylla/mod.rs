//! What must accept writes in any region at any time: ScyllaDB, or anything that speaks CQL.
//!
//! **Never another datacenter**: the session holds connections to nodes of its own region only, and a start at a node of
//! another one is refused. **No driver retries and no speculative execution**: an answer that does not come in
//! [`STATEMENT_TIMEOUT`] is unknown, and what to do then is for the services to say.

mod change;
mod connect;
mod durability;
mod generation;
mod identity;
mod schema;

pub use change::{ChangeRange, ChangeRow, CommitRow, commit_event, read_changes};
pub use connect::{Refused, Scylla, ScyllaConfig};
pub use durability::{Durability, TableTimes, read_durability};
pub use generation::{Generation, latest_generation, read_generations, register_generation};
pub use identity::{SaveIdentity, find_identity, save_identity};
pub use schema::{ClusterView, execute_ddl, view_cluster};

use anyhow::{Context, Result};
use scylla::statement::Consistency;
use scylla::value::CqlTimeuuid;
use std::{sync::Arc, time::Duration};

/// After this a statement's outcome is unknown. Less than the acknowledgement fence.
pub const STATEMENT_TIMEOUT: Duration = Duration::from_millis(1500);

/// L of rule R1: ingest counts no row that is acknowledged later than this after its commit time, and the relay seals no earlier.
pub const FENCE: Duration = Duration::from_secs(2);

/// Window of the change log of a new generation: a storage bucket.
pub const WINDOW: Duration = Duration::from_secs(10);

/// How far a write must have come before it counts as done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Ack {
    /// A quorum of the own region.
    #[default]
    Local,
    /// A quorum over the regions.
    Global,
}

impl Ack {
    fn consistency(self) -> Consistency {
        match self {
            Self::Local => Consistency::LocalQuorum,
            Self::Global => Consistency::Quorum,
        }
    }
}

/// What the clock of the answering node shows, microseconds since the Unix epoch (whole milliseconds on Cassandra).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatabaseTime(pub u64);

/// 100 ns ticks from the epoch of version 1 UUIDs (1582-10-15) to the Unix epoch: RFC 9562, section 5.1.
const UUID_EPOCH_TICKS: u64 = 0x01b2_1dd2_1381_4000;

/// Reads the clock of a node of the own region.
///
/// # Errors
/// When no answer comes in time.
pub async fn database_time(scylla: Arc<Scylla>, (): ()) -> Result<DatabaseTime> {
    let rows =
        scylla.session.execute_unpaged(&scylla.statements()?.time, ()).await.context("read the database's clock")?.into_rows_result()?;
    let (now,) = rows.single_row::<(CqlTimeuuid,)>()?;
    let ticks = uuid_ticks(now.as_bytes());
    Ok(DatabaseTime(ticks.saturating_sub(UUID_EPOCH_TICKS) / 10))
}

/// The 60-bit timestamp of a version 1 UUID: RFC 9562, section 5.1.
fn uuid_ticks(uuid: &[u8; 16]) -> u64 {
    let number = |bytes: &[u8]| bytes.iter().fold(0, |value: u64, byte| value << 8 | u64::from(*byte));
    (number(&uuid[6..8]) & 0x0fff) << 48 | number(&uuid[4..6]) << 32 | number(&uuid[0..4])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 9562, appendix A.1: 2022-02-22T19:22:22Z.
    #[test]
    fn the_time_within_a_uuid_is_read() {
        let uuid = [0xc2, 0x32, 0xab, 0x00, 0x94, 0x14, 0x11, 0xec, 0xb3, 0xc8, 0x9f, 0x6b, 0xde, 0xce, 0xd8, 0x46];
        assert_eq!((uuid_ticks(&uuid) - UUID_EPOCH_TICKS) / 10, 1_645_557_742_000_000);
    }
}
