//! How late the router itself was: without this number no latency of a run can be trusted.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Packets later than this are counted as this late.
const LATE_US_MAX: u64 = 60_000_000;

/// Time from a packet's due time to its delivery.
pub struct Lateness(Histogram<u64>);

/// A bucket of the report: packets that were less than `below_us` late (and not less than the bucket before).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatenessBucket {
    /// Upper edge in microseconds, exclusive.
    pub below_us: u64,
    /// Packets in this bucket.
    pub packets: u64,
}

/// What is told about the lateness.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatenessReport {
    /// Packets measured.
    pub packets: u64,
    /// Median in microseconds.
    pub p50_us: u64,
    /// 99th percentile in microseconds.
    pub p99_us: u64,
    /// Worst in microseconds.
    pub max_us: u64,
    /// By powers of two.
    pub buckets: Vec<LatenessBucket>,
}

impl Default for Lateness {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, LATE_US_MAX, 3).expect("the bounds are constants"))
    }
}

impl Lateness {
    /// Counts one packet.
    pub fn record(&mut self, late_us: u64) {
        self.0.saturating_record(late_us);
    }

    /// Forgets everything: a measured phase begins.
    pub fn reset(&mut self) {
        self.0.reset();
    }

    /// The numbers so far.
    pub fn report(&self) -> LatenessReport {
        LatenessReport {
            packets: self.0.len(),
            p50_us: self.0.value_at_quantile(0.5),
            p99_us: self.0.value_at_quantile(0.99),
            max_us: self.0.max(),
            buckets: self.buckets(),
        }
    }

    fn buckets(&self) -> Vec<LatenessBucket> {
        let mut from_us = 0;
        let mut buckets = Vec::new();
        for below_us in (0..=26).map(|power| 1_u64 << power) {
            let packets = self.0.count_between(from_us, below_us - 1);
            if packets > 0 {
                buckets.push(LatenessBucket { below_us, packets });
            }
            from_us = below_us;
        }
        buckets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_and_buckets() {
        let mut lateness = Lateness::default();
        (0..98).for_each(|_| lateness.record(40));
        lateness.record(300);
        lateness.record(9000);
        let report = lateness.report();
        assert_eq!((report.packets, report.p50_us, report.p99_us), (100, 40, 300));
        assert!((9000..9010).contains(&report.max_us));
        let buckets: Vec<_> = report.buckets.iter().map(|bucket| (bucket.below_us, bucket.packets)).collect();
        assert_eq!(buckets, [(64, 98), (512, 1), (16_384, 1)]);
        lateness.reset();
        assert_eq!(lateness.report().packets, 0);
    }
}
