//! Whose event a record is, without reading all of it.

use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// Tag of `tenant` in `meridian.event.v1.Event`.
const TENANT: u32 = 1;

/// The tenant of an event; `None` for bytes that are not an event of anybody. As in any reading of protobuf the last
/// field of a number counts (Protocol Buffers, "Encoding", "Last One Wins").
pub fn tenant_of(mut bytes: &[u8]) -> Option<&str> {
    let mut tenant: &[u8] = b"";
    while !bytes.is_empty() {
        let (tag, wire_type) = decode_key(&mut bytes).ok()?;
        if tag != TENANT {
            skip_field(wire_type, tag, &mut bytes, DecodeContext::default()).ok()?;
            continue;
        }
        if wire_type != WireType::LengthDelimited {
            return None;
        }
        let length = usize::try_from(decode_varint(&mut bytes).ok()?).ok()?;
        (tenant, bytes) = bytes.split_at_checked(length)?;
    }
    std::str::from_utf8(tenant).ok().filter(|tenant| !tenant.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_proto::Event;
    use proptest::prelude::*;
    use prost::Message;

    proptest! {
        #[test]
        fn it_agrees_with_the_whole_reading(tenant in ".{0,12}", id in ".{0,12}", data in proptest::collection::vec(any::<u8>(), 0..40), flip in any::<(usize, u8)>()) {
            let event = Event { tenant: tenant.clone(), id, data: data.into(), time_us: Some(5), ..Event::default() };
            let mut bytes = event.encode_to_vec();
            prop_assert_eq!(tenant_of(&bytes), Some(tenant.as_str()).filter(|tenant| !tenant.is_empty()));
            if !bytes.is_empty() {
                let at = flip.0 % bytes.len();
                bytes[at] ^= flip.1;
            }
            if let Ok(event) = Event::decode(bytes.as_slice()) {
                prop_assert_eq!(tenant_of(&bytes).unwrap_or_default(), event.tenant);
            }
        }
    }
}
