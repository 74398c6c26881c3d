//! HTTP in: authenticate, validate, commit, answer.
//!
//! In: CloudEvents 1.0 over HTTP, with a tenant's bearer key. Out: the events' identities, then rows of the change log of
//! this region, then a hint to the relay.
//!
//! Promised: **202 is answered only after every event's change row is durable at the level asked for, inside the
//! acknowledgement fence** (rule R1); **a 4xx wrote nothing**; **anything unknown makes the whole request 503**, and it may be
//! repeated with the same ids: each event counts once (rule R6).

pub mod amount;
pub mod cli;
mod cloudevents;
mod commit_ids;
mod config;
mod gather;
mod http;
mod meters;
mod openapi;
mod post;
mod rfc3339;
pub mod serve;

pub use cloudevents::{parse_batch, parse_structured};
pub use commit_ids::CommitIds;
pub use config::Config;
pub use http::{App, routes};
pub use meters::Meters;
pub use openapi::document;
pub use post::{Accepted, Charge, Ingest, Outcome, Post, Posted};

use adapters::scylla::{CommitRow, SaveIdentity};
use kit::Effect;
use meridian_proto::{CommitTime, Identity, PayloadHash};
use std::time::Duration;

/// Everything that ingest does to the outside world.
#[derive(Clone)]
pub struct Effects {
    /// The payload hashes known for each identity.
    pub find_identity: Effect<Vec<Identity>, Vec<Vec<PayloadHash>>>,
    /// Adds a payload hash to each identity.
    pub save_identity: Effect<SaveIdentity, ()>,
    /// Writes a row of the change log.
    pub commit_event: Effect<CommitRow, ()>,
    /// The region's clock.
    pub region_time: Effect<(), CommitTime>,
    /// Tells the relay that a partition has a new row. May be lost.
    pub hint_change: Effect<u16, ()>,
}

/// Numbers that bound ingest.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a request's body.
    pub request_bytes_max: usize,
    /// Events of a batch.
    pub batch_events_max: usize,
    /// Nesting of objects and arrays in a body.
    pub depth_max: usize,
    /// Limits of one event.
    pub event: meridian_proto::Limits,
    /// Bytes of a row of the change log; a single larger event has a row of its own.
    pub row_bytes_max: usize,
    /// Events of a row: their index is the last part of their commit id.
    pub row_events_max: usize,
    /// What may be in memory of requests not yet answered.
    pub in_flight_bytes_max: usize,
    /// L of rule R1: a row counts as acknowledged only if the answer comes within this time of its commit time.
    pub fence: Duration,
    /// After this a statement's outcome is unknown.
    pub statement_timeout: Duration,
    /// After this a request is answered 503.
    pub request_timeout: Duration,
    /// After this a hint is given up.
    pub hint_timeout: Duration,
    /// Hints on their way at a time; more are dropped.
    pub hints_max: usize,
    /// Length of a window of the change log.
    pub window: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            request_bytes_max: 1024 * 1024,
            batch_events_max: 1000,
            depth_max: api::json::DEPTH_MAX,
            event: meridian_proto::Limits::STANDARD,
            row_bytes_max: 256 * 1024,
            row_events_max: 65_535,
            in_flight_bytes_max: 32 * 1024 * 1024,
            fence: adapters::scylla::FENCE,
            statement_timeout: adapters::scylla::STATEMENT_TIMEOUT,
            request_timeout: Duration::from_secs(5),
            hint_timeout: Duration::from_millis(100),
            hints_max: 256,
            window: adapters::scylla::WINDOW,
        }
    }
}

impl Limits {
    /// Asserts the relations on which the promises rest.
    ///
    /// # Panics
    /// When one does not hold: no start is right then.
    pub fn assert_relations(&self) {
        let epsilon = Duration::from_micros(adapters::clock::EPSILON_US);
        assert!(self.statement_timeout < self.fence, "an answer that comes in time lies inside the fence");
        assert!(self.fence + epsilon < self.window, "a time is sealed before the window after next begins");
        assert!(self.statement_timeout * 3 < self.request_timeout, "a request outlives its three statements");
        assert!(self.fence * 2 < self.request_timeout, "a row that came late can be written again");
        assert!(self.row_events_max <= usize::from(u16::MAX), "an event's index fits into its commit id");
        assert!(self.event.data_bytes_max <= self.row_bytes_max, "events are of the size of rows");
        assert!(self.event.data_bytes_max * 4 / 3 < self.request_bytes_max, "the largest payload can be posted as base64");
        assert!(self.request_bytes_max * post::MEMORY_FACTOR < self.in_flight_bytes_max, "one request fits into memory");
        assert!(u32::try_from(self.in_flight_bytes_max).is_ok(), "the bound is counted in 32 bits");
    }
}
