//! The one function that makes an event valid, and the hash of what a client gave.

use crate::{Event, PayloadHash};
use sha2::{Digest, Sha256};

/// Limits of one event.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of `data`.
    pub data_bytes_max: usize,
    /// Bytes of any one attribute's value.
    pub attribute_bytes_max: usize,
    /// Extension attributes.
    pub extensions_max: usize,
    /// Oldest `time` taken, microseconds since the Unix epoch.
    pub time_us_min: i64,
    /// How far `time` may lie ahead of the region clock, microseconds.
    pub time_ahead_us_max: i64,
}

impl Limits {
    /// What every region enforces. Times run from 2000-01-01 to a day from now.
    pub const STANDARD: Self = Self {
        data_bytes_max: 256 * 1024,
        attribute_bytes_max: 256,
        extensions_max: 32,
        time_us_min: 946_684_800_000_000,
        time_ahead_us_max: 86_400_000_000,
    };
}

/// Names the field that is wrong, and what it should have been.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct InvalidField {
    /// CloudEvents name of the attribute.
    pub field: String,
    /// What is wrong and what is right, for people.
    pub reason: String,
}

fn invalid(field: &str, reason: impl Into<String>) -> InvalidField {
    InvalidField { field: field.into(), reason: reason.into() }
}

fn attribute(field: &str, value: &str, limits: &Limits) -> Result<(), InvalidField> {
    if value.is_empty() {
        return Err(invalid(field, "must not be empty"));
    }
    if value.len() > limits.attribute_bytes_max {
        return Err(invalid(field, format!("has {} bytes, at most {} are allowed", value.len(), limits.attribute_bytes_max)));
    }
    // CloudEvents 1.0, section 3.1 "Type system": strings hold no control characters and no noncharacters.
    let forbidden = |c: char| c.is_control() || (c as u32 & 0xfffe) == 0xfffe || ('\u{fdd0}'..='\u{fdef}').contains(&c);
    match value.chars().find(|c| forbidden(*c)) {
        Some(c) => Err(invalid(field, format!("holds the forbidden character U+{:04X}", c as u32))),
        None => Ok(()),
    }
}

/// Says whether the client's part of an event is valid: every attribute and the payload, each within its limit.
///
/// `now_us` is the region time in microseconds since the Unix epoch. What ingest adds (origin, commit id,
/// hash, accepted time) is not looked at.
///
/// # Errors
/// The first field that is wrong.
pub fn validate(event: &Event, limits: &Limits, now_us: u64) -> Result<(), InvalidField> {
    attribute("tenant", &event.tenant, limits)?;
    attribute("id", &event.id, limits)?;
    attribute("source", &event.source, limits)?;
    attribute("type", &event.r#type, limits)?;
    let optional = [("subject", &event.subject), ("datacontenttype", &event.data_content_type), ("dataschema", &event.data_schema)];
    for (field, value) in optional {
        value.as_deref().map_or(Ok(()), |value| attribute(field, value, limits))?;
    }
    if event.extensions.len() > limits.extensions_max {
        return Err(invalid(
            "extensions",
            format!("{} extension attributes, at most {} are allowed", event.extensions.len(), limits.extensions_max),
        ));
    }
    for (name, value) in &event.extensions {
        // CloudEvents 1.0, section 3.1 "Attribute naming convention".
        if name.is_empty() || name.len() > 20 || !name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()) {
            return Err(invalid(name, "an extension attribute's name has 1 to 20 characters a-z and 0-9"));
        }
        attribute(name, value, limits)?;
    }
    if event.data.len() > limits.data_bytes_max {
        return Err(invalid("data", format!("has {} bytes, at most {} are allowed", event.data.len(), limits.data_bytes_max)));
    }
    let Some(time) = event.time_us else { return Ok(()) };
    if time < limits.time_us_min {
        return Err(invalid("time", "lies before 2000-01-01T00:00:00Z, the oldest time that is kept"));
    }
    if time > i64::try_from(now_us).unwrap_or(i64::MAX).saturating_add(limits.time_ahead_us_max) {
        return Err(invalid("time", "lies more than a day ahead of the region's clock"));
    }
    Ok(())
}

/// SHA-256 over what the client gave: attributes and data after decoding. Neither the trace context nor
/// anything that ingest adds is covered, and the content type of JSON counts as absent, so that a retry in
/// another mode, region or trace has the same hash. Each part is preceded by its length (8 bytes, big endian;
/// all ones when absent), so that no two events give the same input.
pub fn payload_hash(event: &Event) -> PayloadHash {
    let mut hash = Sha256::new();
    let mut part = |bytes: Option<&[u8]>| {
        hash.update(bytes.map_or(u64::MAX, |bytes| bytes.len() as u64).to_be_bytes());
        hash.update(bytes.unwrap_or_default());
    };
    part(Some(event.tenant.as_bytes()));
    part(Some(event.source.as_bytes()));
    part(Some(event.id.as_bytes()));
    part(Some(event.r#type.as_bytes()));
    part(event.subject.as_deref().map(str::as_bytes));
    part(event.time_us.map(i64::to_be_bytes).as_ref().map(|bytes| bytes.as_slice()));
    part(event.data_content_type.as_deref().filter(|kind| *kind != "application/json").map(str::as_bytes));
    part(event.data_schema.as_deref().map(str::as_bytes));
    part(Some(&event.data));
    let trace_context = |name: &str| matches!(name, "traceparent" | "tracestate");
    for (name, value) in event.extensions.iter().filter(|(name, _)| !trace_context(name)) {
        part(Some(name.as_bytes()));
        part(Some(value.as_bytes()));
    }
    PayloadHash(hash.finalize().into())
}
