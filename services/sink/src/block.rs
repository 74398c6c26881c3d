//! Encoding events as rows of ClickHouse's RowBinary: one growing buffer, nothing allocated per event.

use crate::{json::is_json, view::EventView};
use adapters::clickhouse::InsertBlock;
use bytes::{Bytes, BytesMut};
use meridian_proto::PartitionId;

/// The columns of a row, in the order of the encoding.
pub const COLUMNS: &str = "tenant, source, id, commit_id, hash, origin, type, subject, time_us, time_given, content_type, data_schema, \
     data, extensions, key_id, accepted_us, log_region, log_generation, log_partition, log_offset";

/// Rows gathered until they are stored.
#[derive(Debug, Default)]
pub struct Block {
    rows: BytesMut,
    count: u64,
    capacity: usize,
}

impl Block {
    /// A block whose memory is taken at once when the first row comes, so that it doesn't grow by doubling.
    pub fn with_capacity(bytes: usize) -> Self {
        Self { capacity: bytes, ..Self::default() }
    }

    /// Rows in it.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Bytes in it.
    pub fn bytes(&self) -> usize {
        self.rows.len()
    }

    /// Adds the event that stands at `offset` of a partition.
    ///
    /// # Errors
    /// Why the record is no event that can be stored, for people; nothing was added.
    pub fn push(&mut self, partition: &PartitionId, offset: u64, value: &[u8]) -> Result<(), &'static str> {
        let event = EventView::decode(value)?;
        check(&event)?;
        if self.rows.capacity() == 0 {
            self.rows.reserve(self.capacity);
        }
        // Field values are slices of `value`; lengths take at most 5 bytes each, fixed columns less than 128 together.
        self.rows.reserve(value.len() + partition.topic.region.len() + 256 + event.extensions as usize * 10);
        self.encode(&event, partition, offset);
        self.count += 1;
        Ok(())
    }

    fn encode(&mut self, event: &EventView<'_>, partition: &PartitionId, offset: u64) {
        let time_us = event.time_us.unwrap_or(event.commit_id.time().0 as i64);
        for text in [event.tenant, event.source, event.id] {
            self.text(text.as_bytes());
        }
        self.fixed(&event.commit_id.0.to_le_bytes());
        self.fixed(event.hash);
        for text in [event.origin, event.event_type, event.subject] {
            self.text(text.as_bytes());
        }
        self.fixed(&time_us.to_le_bytes());
        self.fixed(&[u8::from(event.time_us.is_some())]);
        for bytes in [event.content_type.as_bytes(), event.data_schema.as_bytes(), event.data] {
            self.text(bytes);
        }
        self.length(event.extensions);
        if event.extensions > 0 {
            for (name, value) in event.extension_attributes() {
                self.text(name.as_bytes());
                self.text(value.as_bytes());
            }
        }
        self.text(event.key_id.as_bytes());
        self.fixed(&event.accepted_us.to_le_bytes());
        self.text(partition.topic.region.as_bytes());
        self.fixed(&partition.topic.generation.to_le_bytes());
        self.fixed(&partition.partition.to_le_bytes());
        self.fixed(&offset.to_le_bytes());
    }

    fn fixed(&mut self, bytes: &[u8]) {
        self.rows.extend_from_slice(bytes);
    }

    /// Unsigned LEB128, as before every String and Map of RowBinary.
    fn length(&mut self, mut length: u64) {
        while length >= 0x80 {
            self.rows.extend_from_slice(&[length as u8 | 0x80]);
            length >>= 7;
        }
        self.rows.extend_from_slice(&[length as u8]);
    }

    fn text(&mut self, bytes: &[u8]) {
        self.length(bytes.len() as u64);
        self.rows.extend_from_slice(bytes);
    }

    /// Takes the rows out, to be stored.
    pub fn take(&mut self) -> InsertBlock {
        let (rows, count) = (std::mem::take(&mut self.rows).freeze(), std::mem::take(&mut self.count));
        InsertBlock { table: "events", columns: COLUMNS, rows, count }
    }

    /// Gives the memory of stored rows back, if nobody else holds it.
    pub fn recycle(&mut self, rows: Bytes) {
        if let Ok(mut rows) = rows.try_into_mut() {
            rows.clear();
            self.rows = rows;
        }
    }
}

fn check(event: &EventView<'_>) -> Result<(), &'static str> {
    if event.tenant.is_empty() || event.source.is_empty() || event.id.is_empty() {
        return Err("tenant, source and id must not be empty");
    }
    if event.event_type.is_empty() || event.origin.is_empty() {
        return Err("type and origin must not be empty");
    }
    if event.hash.len() != 32 {
        return Err("payload_hash: must have 32 bytes");
    }
    if event.commit_id.time().0 == 0 || i64::try_from(event.commit_id.time().0).is_err() {
        return Err("commit_id: its time is out of range");
    }
    if !event.data.is_empty() && is_json_type(event.content_type) && !is_json(event.data) {
        return Err("data: is not JSON, or is nested too deep");
    }
    Ok(())
}

/// Whether a content type promises JSON; absent means application/json (CloudEvents 1.0, JSON format, section 3.1).
fn is_json_type(content_type: &str) -> bool {
    let media = content_type.split(';').next().unwrap_or_default().trim_end();
    let ends = |end: &str| media.len() >= end.len() && media.as_bytes()[media.len() - end.len()..].eq_ignore_ascii_case(end.as_bytes());
    media.is_empty() || ends("/json") || ends("+json")
}
