//! An event's fields, borrowed from its record: decoding allocates nothing.

use meridian_proto::CommitId;
use prost::{
    bytes::Buf,
    encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field},
};

/// The fields of `meridian.event.v1.Event` that are stored. Absent texts are empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventView<'a> {
    pub tenant: &'a str,
    pub source: &'a str,
    pub id: &'a str,
    pub event_type: &'a str,
    pub subject: &'a str,
    pub time_us: Option<i64>,
    pub content_type: &'a str,
    pub data_schema: &'a str,
    pub data: &'a [u8],
    pub origin: &'a str,
    pub commit_id: CommitId,
    pub hash: &'a [u8],
    pub accepted_us: u64,
    pub key_id: &'a str,
    pub extensions: u64,
    raw: &'a [u8],
}

const EXTENSIONS: u32 = 10;

impl<'a> EventView<'a> {
    /// Reads an event's bytes as far as the wire format goes: what is missing is empty. Unknown fields are passed over.
    pub fn decode(raw: &'a [u8]) -> Result<Self, &'static str> {
        let mut view = Self { raw, ..Self::default() };
        let mut rest = raw;
        while !rest.is_empty() {
            let (field, wire) = decode_key(&mut rest).map_err(|_| "not a protobuf message")?;
            view.field(field, wire, &mut rest)?;
        }
        Ok(view)
    }

    fn field(&mut self, field: u32, wire: WireType, rest: &mut &'a [u8]) -> Result<(), &'static str> {
        match (field, wire) {
            (1, WireType::LengthDelimited) => self.tenant = text(rest)?,
            (2, WireType::LengthDelimited) => self.source = text(rest)?,
            (3, WireType::LengthDelimited) => self.id = text(rest)?,
            (4, WireType::LengthDelimited) => self.event_type = text(rest)?,
            (5, WireType::LengthDelimited) => self.subject = text(rest)?,
            (6, WireType::SixtyFourBit) => self.time_us = Some(fixed(rest)? as i64),
            (7, WireType::LengthDelimited) => self.content_type = text(rest)?,
            (8, WireType::LengthDelimited) => self.data_schema = text(rest)?,
            (9, WireType::LengthDelimited) => self.data = span(rest)?,
            (EXTENSIONS, WireType::LengthDelimited) => {
                extension(span(rest)?)?;
                self.extensions += 1;
            }
            (11, WireType::LengthDelimited) => self.origin = text(rest)?,
            (12, WireType::LengthDelimited) => self.commit_id = CommitId::from_bytes(span(rest)?).ok_or("commit_id: must have 16 bytes")?,
            (13, WireType::LengthDelimited) => self.hash = span(rest)?,
            (14, WireType::LengthDelimited) => drop(text(rest)?),
            (15, WireType::SixtyFourBit) => self.accepted_us = fixed(rest)?,
            (16, WireType::LengthDelimited) => self.key_id = text(rest)?,
            (1..=16, _) => return Err("a field has another wire type than in event.v1"),
            _ => skip_field(wire, field, rest, DecodeContext::default()).map_err(|_| "not a protobuf message")?,
        }
        Ok(())
    }

    /// The extension attributes, in the order of the bytes.
    pub fn extension_attributes(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let mut rest = self.raw;
        std::iter::from_fn(move || {
            while !rest.is_empty() {
                let (field, wire) = decode_key(&mut rest).ok()?;
                if field == EXTENSIONS {
                    return extension(span(&mut rest).ok()?).ok();
                }
                skip_field(wire, field, &mut rest, DecodeContext::default()).ok()?;
            }
            None
        })
    }
}

fn span<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], &'static str> {
    let length = decode_varint(rest).map_err(|_| "not a protobuf message")?;
    let length = usize::try_from(length).map_err(|_| "a field is longer than its record")?;
    let (head, tail) = rest.split_at_checked(length).ok_or("a field is longer than its record")?;
    *rest = tail;
    Ok(head)
}

fn text<'a>(rest: &mut &'a [u8]) -> Result<&'a str, &'static str> {
    std::str::from_utf8(span(rest)?).map_err(|_| "a text is not UTF-8")
}

fn fixed(rest: &mut &[u8]) -> Result<u64, &'static str> {
    rest.try_get_u64_le().map_err(|_| "not a protobuf message")
}

fn extension(mut entry: &[u8]) -> Result<(&str, &str), &'static str> {
    let (mut name, mut value) = ("", "");
    while !entry.is_empty() {
        match decode_key(&mut entry).map_err(|_| "not a protobuf message")? {
            (1, WireType::LengthDelimited) => name = text(&mut entry)?,
            (2, WireType::LengthDelimited) => value = text(&mut entry)?,
            (field, wire) => skip_field(wire, field, &mut entry, DecodeContext::default()).map_err(|_| "not a protobuf message")?,
        }
    }
    Ok((name, value))
}
