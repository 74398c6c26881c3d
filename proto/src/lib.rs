//! The words that all of Meridian shares: the wire types, what makes an event valid, and the pure
//! functions over identities, commit ids, partitions, positions, watermarks and cursors.
//!
//! **This crate does no input or output, reads no clock and draws no random number.**

mod commit;
mod cursor;
mod event;
mod identity;
mod position;
mod shard;
mod watermark;

/// Generated from `event/v1/event.proto`.
#[allow(missing_docs)]
pub mod event_v1 {
    include!(concat!(env!("OUT_DIR"), "/meridian.event.v1.rs"));
}
/// Generated from `signal/v1/signal.proto`.
#[allow(missing_docs)]
pub mod signal_v1 {
    include!(concat!(env!("OUT_DIR"), "/meridian.signal.v1.rs"));
}

pub use commit::{CommitId, CommitTime, Incarnation};
pub use cursor::{Cursor, CursorError, CursorKey};
pub use event::{InvalidField, Limits, payload_hash, validate};
pub use event_v1::{Change, Event, Watermark};
pub use identity::{Identity, PayloadHash};
pub use position::{
    CONTENT_TYPE_EVENT, CONTENT_TYPE_WATERMARK, HEADER_CONTENT_TYPE, HEADER_POSITION, LogPosition, Origin, PartitionId, Sequence, Step,
    Topic,
};
pub use shard::{KEY_FUNCTION, PARTITIONS, SUBJECT_SPREAD, partition_of, partitions_of};
pub use signal_v1::Signal;
pub use watermark::{Chain, ChainStep};
