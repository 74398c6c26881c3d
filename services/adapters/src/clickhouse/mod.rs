//! The analytics store: ClickHouse over HTTP. Every call has a deadline, every insert and query states its settings.

mod audit;
mod connect;
mod progress;
mod schema;
mod usage;

pub use audit::{StoredEvent, read_events};
pub use connect::{ClickHouse, InsertBlock, check_settings, insert_block};
pub use progress::{
    ParkedRow, PositionRow, Positions, Progress, SaveProgress, StoreRow, load_positions, read_progress, read_store, save_positions,
};
pub use schema::{execute_schema, statements};
pub use usage::{Aggregation, Bucket, ConflictRow, ListConflicts, SumMeter, list_conflicts, sum_meter};
