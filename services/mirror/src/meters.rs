//! What the receiver tells about one peer.

use crate::lane::Accepted;
use meridian_proto::CommitTime;
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

pub(crate) struct Meters {
    pub connected: Gauge,
    origin: String,
    lag_seconds: Gauge,
    hop_seconds: Histogram,
    records: Counter,
    bytes: Counter,
    dropped: Counter,
    parked: Counter,
}

impl Meters {
    pub fn of(origin: &str) -> Self {
        let origin = origin.to_owned();
        Self {
            connected: gauge!("meridian_mirror_connected", "origin" => origin.clone()),
            lag_seconds: gauge!("meridian_lag_seconds", "hop" => "mirror", "origin" => origin.clone()),
            hop_seconds: histogram!("meridian_hop_seconds", "hop" => "mirror", "origin" => origin.clone()),
            records: counter!("meridian_mirror_records_total", "origin" => origin.clone()),
            bytes: counter!("meridian_mirror_bytes_total", "origin" => origin.clone()),
            dropped: counter!("meridian_mirror_dropped_total", "origin" => origin.clone()),
            parked: counter!("meridian_parked_total", "hop" => "mirror", "origin" => origin.clone()),
            origin,
        }
    }

    /// Something that a person must look at.
    pub fn alarm(&self, alarm: &'static str) {
        counter!("meridian_alarms_total", "alarm" => alarm, "hop" => "mirror", "origin" => self.origin.clone()).increment(1);
    }

    pub fn accepted(&self, accepted: &Accepted) {
        self.dropped.increment(accepted.dropped as u64);
    }

    pub fn appended(&self, records: usize, bytes: usize, parked: usize) {
        self.records.increment(records as u64);
        self.bytes.increment(bytes as u64);
        self.parked.increment(parked as u64);
    }

    /// From a batch's newest append time in the origin to its acknowledgement here.
    pub fn hop(&self, now: Option<CommitTime>, as_of_ms: i64) {
        if let Some(now) = now {
            self.hop_seconds.record(seconds_since(now, as_of_ms));
        }
    }

    /// The copy as a whole is as old as its oldest partition. Nothing is said before every partition is known.
    pub fn lag(&self, now: CommitTime, as_of_ms: impl Iterator<Item = i64>) {
        if let Some(oldest) = as_of_ms.min().filter(|&oldest| oldest > 0) {
            self.lag_seconds.set(seconds_since(now, oldest));
        }
    }
}

fn seconds_since(now: CommitTime, then_ms: i64) -> f64 {
    ((now.0 / 1000) as i64 - then_ms).max(0) as f64 / 1000.0
}
