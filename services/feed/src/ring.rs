//! The newest records of one partition, in memory: bounded in bytes, with a list of entries for each tenant.

use bytes::Bytes;
use meridian_proto::{Sequence, Step};
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

/// What an entry costs beside its bytes: itself, its place in its tenant's list, the allocator's share.
const ENTRY_BYTES: usize = 160;

/// How far a page may look, and how much it may bring. Counted in positions, so that a page is the same wherever it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Records looked at.
    pub records: usize,
    /// Bytes of the records looked at; the record that reaches it is the last.
    pub bytes: usize,
    /// Events brought.
    pub events: usize,
}

impl Budget {
    /// Whether nothing more may be looked at.
    pub fn is_spent(&self) -> bool {
        self.records == 0 || self.bytes == 0 || self.events == 0
    }

    /// Takes away what a scan used.
    pub fn spend(&mut self, scan: &Scan) {
        self.records = self.records.saturating_sub(scan.records);
        self.bytes = self.bytes.saturating_sub(scan.bytes);
        self.events = self.events.saturating_sub(scan.events.len());
    }
}

/// One event of a tenant, as it stands in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Origin offset.
    pub offset: u64,
    /// Append time in the origin region, milliseconds since the Unix epoch.
    pub relayed_ms: i64,
    /// Append time in this region, milliseconds since the Unix epoch.
    pub appended_ms: i64,
    /// The event's bytes.
    pub value: Bytes,
}

/// What looking at one partition gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// The tenant's events, in order of offset.
    pub events: Vec<Found>,
    /// Origin offset to go on from: past all that was looked at.
    pub next: u64,
    /// Records looked at.
    pub records: usize,
    /// Their bytes.
    pub bytes: usize,
}

#[derive(Debug)]
struct Entry {
    /// Bytes of all records before this one since the ring began.
    bytes_before: u64,
    local_offset: u64,
    relayed_ms: i64,
    appended_ms: i64,
    /// Whose event it is; `None` for watermarks and for what cannot be read.
    tenant: Option<Arc<str>>,
    /// Empty without a tenant.
    value: Bytes,
}

/// A record on its way into the ring.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// Origin offset.
    pub offset: u64,
    /// Offset in this region's log.
    pub local_offset: u64,
    /// Append time in the origin region.
    pub relayed_ms: i64,
    /// Append time in this region.
    pub appended_ms: i64,
    /// Whose event it is.
    pub tenant: Option<&'a str>,
    /// The record's bytes.
    pub value: &'a [u8],
}

/// The tail of one partition. Entries are dense: the k-th has the first one's offset plus k.
#[derive(Debug)]
pub struct Ring {
    first: u64,
    sequence: Sequence,
    entries: VecDeque<Entry>,
    by_tenant: HashMap<Arc<str>, VecDeque<u64>>,
    bytes_total: u64,
    bytes_held: usize,
    bytes_max: usize,
}

impl Ring {
    /// An empty ring that expects the record at `next`.
    pub fn starting_at(next: u64, bytes_max: usize) -> Self {
        Self {
            first: next,
            sequence: Sequence::starting_at(next),
            entries: VecDeque::new(),
            by_tenant: HashMap::new(),
            bytes_total: 0,
            bytes_held: 0,
            bytes_max,
        }
    }

    /// Offset of the oldest record held, or of the one expected.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// The offset expected next.
    pub fn end(&self) -> u64 {
        self.sequence.next()
    }

    /// Local offset to go on from, if anything is held.
    pub fn local_end(&self) -> Option<u64> {
        self.entries.back().map(|entry| entry.local_offset + 1)
    }

    /// What it costs, in bytes.
    pub fn bytes_held(&self) -> usize {
        self.bytes_held
    }

    /// Takes the record expected, drops one that was taken before, and gives back a gap without a change.
    pub fn push(&mut self, arrival: &Arrival<'_>) -> (Step, Option<Arc<str>>) {
        let step = self.sequence.step(arrival.offset);
        if step != Step::Take {
            return (step, None);
        }
        let tenant = arrival.tenant.map(|name| self.list(name, arrival.offset));
        // A slice of the batch would keep all of it alive; a copy keeps only itself.
        let value = if tenant.is_some() { Bytes::copy_from_slice(arrival.value) } else { Bytes::new() };
        self.bytes_held += ENTRY_BYTES + value.len();
        self.entries.push_back(Entry {
            bytes_before: self.bytes_total,
            local_offset: arrival.local_offset,
            relayed_ms: arrival.relayed_ms,
            appended_ms: arrival.appended_ms,
            tenant: tenant.clone(),
            value,
        });
        self.bytes_total += arrival.value.len() as u64;
        while self.bytes_held > self.bytes_max && self.entries.len() > 1 {
            self.evict();
        }
        (step, tenant)
    }

    fn list(&mut self, name: &str, offset: u64) -> Arc<str> {
        if let Some((tenant, _)) = self.by_tenant.get_key_value(name) {
            let tenant = Arc::clone(tenant);
            self.by_tenant.entry(Arc::clone(&tenant)).or_default().push_back(offset);
            return tenant;
        }
        let tenant: Arc<str> = name.into();
        self.by_tenant.insert(Arc::clone(&tenant), VecDeque::from([offset]));
        tenant
    }

    fn evict(&mut self) {
        let Some(entry) = self.entries.pop_front() else { return };
        self.first += 1;
        self.bytes_held -= ENTRY_BYTES + entry.value.len();
        let Some(tenant) = entry.tenant else { return };
        if let Some(offsets) = self.by_tenant.get_mut(&tenant) {
            offsets.pop_front();
            if offsets.is_empty() {
                self.by_tenant.remove(&tenant);
            }
        }
    }

    /// Looks at the records from `next` on for events of `tenant`; `None` when they begin before what is held.
    /// Beyond the end there is nothing, and the position stays.
    pub fn scan(&self, tenant: &str, next: u64, budget: Budget) -> Option<Scan> {
        if next < self.first {
            return None;
        }
        if next >= self.end() || budget.is_spent() {
            return Some(Scan { next, ..Scan::default() });
        }
        let start_bytes = self.bytes_before(next);
        let by_bytes = self.entries.partition_point(|entry| entry.bytes_before - start_bytes.min(entry.bytes_before) < budget.bytes as u64);
        let end = self.end().min(next.saturating_add(budget.records as u64)).min(self.first + by_bytes as u64);
        let offsets = self.by_tenant.get(tenant).map(|offsets| {
            let skip = offsets.partition_point(|offset| *offset < next);
            offsets.iter().skip(skip).copied().take_while(|offset| *offset < end)
        });
        let events: Vec<Found> = offsets.into_iter().flatten().take(budget.events).filter_map(|offset| self.found(offset)).collect();
        let next_after = match events.last() {
            Some(last) if events.len() == budget.events => last.offset + 1,
            _ => end,
        };
        let bytes = (self.bytes_before(next_after) - start_bytes) as usize;
        Some(Scan { events, next: next_after, records: (next_after - next) as usize, bytes })
    }

    fn bytes_before(&self, offset: u64) -> u64 {
        self.entries.get((offset - self.first) as usize).map_or(self.bytes_total, |entry| entry.bytes_before)
    }

    fn found(&self, offset: u64) -> Option<Found> {
        let entry = self.entries.get((offset - self.first) as usize)?;
        let Entry { relayed_ms, appended_ms, ref value, .. } = *entry;
        Some(Found { offset, relayed_ms, appended_ms, value: value.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn arrival<'a>(offset: u64, tenant: Option<&'a str>, value: &'a [u8]) -> Arrival<'a> {
        Arrival { offset, local_offset: offset + 7, relayed_ms: 1, appended_ms: 2, tenant, value }
    }

    #[test]
    fn memory_is_bounded_whatever_comes() {
        let mut ring = Ring::starting_at(0, 1 << 20);
        let value = vec![7; 500];
        for offset in 0..2_000_000 {
            let name = format!("tenant-{}", offset % 5000);
            let tenant = (offset % 3 != 0).then_some(name.as_str());
            assert_eq!(ring.push(&arrival(offset, tenant, &value)).0, Step::Take);
        }
        assert!(ring.bytes_held() <= 1 << 20);
        let listed: usize = ring.by_tenant.values().map(VecDeque::len).sum();
        assert_eq!(listed, ring.entries.iter().filter(|entry| entry.tenant.is_some()).count());
        assert!(ring.by_tenant.len() <= listed);
        assert_eq!(ring.entries.len() as u64, ring.end() - ring.first());
    }

    #[test]
    fn a_gap_is_told_and_changes_nothing() {
        let mut ring = Ring::starting_at(3, 1000);
        assert_eq!(ring.push(&arrival(2, None, b"")).0, Step::Drop);
        assert_eq!(ring.push(&arrival(3, Some("a"), b"x")).0, Step::Take);
        assert_eq!(ring.push(&arrival(3, Some("a"), b"x")).0, Step::Drop);
        assert_eq!(ring.push(&arrival(5, Some("a"), b"y")).0, Step::Gap { expected: 4 });
        assert_eq!((ring.first(), ring.end(), ring.local_end()), (3, 4, Some(11)));
    }

    proptest! {
        /// The lists and the binary search give what looking at each record would.
        #[test]
        fn a_scan_is_what_a_walk_gives(
            records in proptest::collection::vec((0u8..4, 0usize..60), 0..80),
            start in 0u64..90, budget in (0usize..50, 0usize..900, 0usize..20), bytes_max in 200usize..20_000,
        ) {
            let mut ring = Ring::starting_at(0, bytes_max);
            let values: Vec<Vec<u8>> = records.iter().map(|(_, length)| vec![1; *length]).collect();
            let names = ["a", "b", "c"];
            for (offset, ((tenant, _), value)) in records.iter().zip(&values).enumerate() {
                ring.push(&arrival(offset as u64, names.get(usize::from(*tenant)).copied(), value));
            }
            let budget = Budget { records: budget.0, bytes: budget.1, events: budget.2 };
            let Some(scan) = ring.scan("a", start, budget) else {
                prop_assert!(start < ring.first());
                return Ok(());
            };
            let (mut next, mut left, mut offsets) = (start, budget, Vec::new());
            while !left.is_spent() && (next as usize) < records.len() {
                left.records -= 1;
                left.bytes = left.bytes.saturating_sub(records[next as usize].1);
                if records[next as usize].0 == 0 {
                    left.events -= 1;
                    offsets.push(next);
                }
                next += 1;
            }
            prop_assert_eq!(scan.events.iter().map(|found| found.offset).collect::<Vec<_>>(), offsets);
            prop_assert_eq!(scan.next, next);
            prop_assert_eq!(scan.records, budget.records - left.records);
        }
    }
}
