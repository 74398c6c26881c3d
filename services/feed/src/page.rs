//! One page: what follows a cursor, for one tenant.

use crate::{
    Feed,
    log::{Look, look},
    ring::{Budget, Found},
};
use meridian_proto::{Cursor, PartitionId, partitions_of};

/// What a pull gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Events, each with the partition in which it stands: in order within a partition, partitions one after the other.
    pub events: Vec<(PartitionId, Found)>,
    /// Where the next page begins: past all that was looked at.
    pub cursor: Cursor,
    /// Whether looking stopped at a limit rather than at the end.
    pub more: bool,
}

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// History was trimmed past the cursor.
    #[error("{partition} is kept from offset {oldest} on only")]
    Trimmed {
        /// The partition.
        partition: PartitionId,
        /// Origin offset of the oldest record kept.
        oldest: u64,
    },
    /// The log does not answer, or memory does not know the log yet.
    #[error(transparent)]
    Unavailable(#[from] anyhow::Error),
}

impl Feed {
    /// The partitions of all known topics that can hold events of a tenant, in order.
    fn lanes(&self, tenant: &str) -> Vec<PartitionId> {
        let numbers = partitions_of(tenant);
        self.tails.partitions().into_iter().filter(|id| numbers.contains(&id.partition)).collect()
    }

    /// The page at `cursor`. A partition that the cursor does not name is read from its beginning; one that the cursor names
    /// and this region does not know stays in it as it is.
    ///
    /// # Errors
    /// See [`PageError`].
    pub async fn page(&self, tenant: &str, cursor: &Cursor, limit: u32) -> Result<Page, PageError> {
        let mut lanes = self.lanes(tenant);
        if lanes.is_empty() {
            return Err(anyhow::anyhow!("no topic of events is known yet").into());
        }
        // One lane must not keep the others out when it alone fills every page; the start is drawn from the cursor itself,
        // so that a page stays a function of it.
        let start = spread(&lanes, cursor) % lanes.len();
        lanes.rotate_left(start);
        let mut page = Page { events: Vec::new(), cursor: cursor.clone(), more: false };
        let mut left = Budget { records: self.limits.scan_records_max, bytes: self.limits.scan_bytes_max, events: limit as usize };
        for lane in lanes {
            if left.is_spent() {
                break;
            }
            let next = cursor.next.get(&lane).copied();
            let scan = match self.tails.scan(&lane, tenant, next, left) {
                Some(scan) => scan,
                None => match look(&self.effects, &self.places, &lane, tenant, next, left).await? {
                    Look::Scanned(scan) => scan,
                    Look::Trimmed { oldest } => return Err(PageError::Trimmed { partition: lane, oldest }),
                },
            };
            left.spend(&scan);
            if scan.records > 0 {
                page.cursor.next.insert(lane.clone(), scan.next);
            }
            page.events.extend(scan.events.into_iter().map(|found| (lane.clone(), found)));
        }
        page.more = left.is_spent();
        Ok(page)
    }

    /// A cursor at the end of what this region has now.
    ///
    /// # Errors
    /// [`PageError::Unavailable`] while the end of some partition is not known.
    pub fn latest(&self, tenant: &str) -> Result<Cursor, PageError> {
        let mut cursor = Cursor::default();
        let nothing = Budget { records: 0, bytes: 0, events: 0 };
        for lane in self.lanes(tenant) {
            match self.tails.with(&lane, |ring| ring.end()) {
                Some(end) => drop(cursor.next.insert(lane, end)),
                // Nothing was ever there: the beginning and the end are one place.
                None if self.tails.scan(&lane, tenant, None, nothing).is_some() => {}
                None => return Err(anyhow::anyhow!("the end of {lane} is not known yet").into()),
            }
        }
        Ok(cursor)
    }
}

/// A number drawn from the positions of these lanes, the same everywhere (FNV-1a, 64 bits).
fn spread(lanes: &[PartitionId], cursor: &Cursor) -> usize {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for lane in lanes {
        for byte in cursor.next.get(lane).copied().unwrap_or_default().to_be_bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    (hash >> 32) as usize
}
