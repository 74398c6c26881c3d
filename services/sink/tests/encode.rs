//! What goes into a block comes out of it.
#![allow(clippy::unwrap_used)]

mod common;

use bytes::Bytes;
use common::{event, partition, read_rows};
use meridian_proto::Event;
use proptest::prelude::*;
use prost::Message;
use sink::Block;

fn any_event() -> impl Strategy<Value = Event> {
    let text = || "[a-zé/ ]{1,200}";
    let optional = || proptest::option::of("[a-z/+é]{1,40}");
    let numbers = (proptest::option::of(any::<i64>()), 1..i64::MAX as u64, any::<u64>(), any::<[u8; 32]>());
    let extensions = proptest::collection::btree_map("[a-z0-9]{1,20}", ".{1,50}", 0..5);
    let texts = (text(), text(), text(), text(), text(), optional(), optional());
    (texts, numbers, extensions, proptest::collection::vec(any::<u8>(), 0..400)).prop_map(|(texts, numbers, extensions, data)| {
        let (tenant, source, id, kind, origin, subject, data_schema) = texts;
        let (time_us, commit_time, low, hash) = numbers;
        Event {
            tenant,
            source,
            id,
            r#type: kind,
            subject,
            time_us,
            data_content_type: Some("application/octet-stream".into()),
            data_schema,
            data: data.into(),
            extensions,
            origin,
            commit_id: Bytes::copy_from_slice(&(u128::from(commit_time) << 64 | u128::from(low)).to_be_bytes()),
            payload_hash: Bytes::copy_from_slice(&hash),
            trace_parent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into(),
            accepted_us: low,
            key_id: "k".into(),
        }
    })
}

proptest! {
    #[test]
    fn every_stored_field_reads_back(events in proptest::collection::vec(any_event(), 1..5)) {
        let place = partition("iad", 11);
        let mut block = Block::default();
        for (offset, event) in events.iter().enumerate() {
            block.push(&place, offset as u64, &event.encode_to_vec()).unwrap();
        }
        let rows = read_rows(&block.take().rows).unwrap();
        prop_assert_eq!(rows.len(), events.len());
        for (offset, (row, event)) in rows.iter().zip(&events).enumerate() {
            let commit_us = u128::from_be_bytes(event.commit_id[..].try_into().unwrap()) >> 64;
            prop_assert_eq!(row.time_us, event.time_us.unwrap_or(commit_us as i64));
            prop_assert_eq!(&row.event, &Event { trace_parent: String::new(), ..event.clone() });
            prop_assert_eq!((&row.log_region[..], row.log_generation, row.log_partition, row.log_offset), ("iad", 1, 11, offset as u64));
        }
    }

    #[test]
    fn damaged_bytes_never_panic_and_never_tear_a_row(event in any_event(), at in any::<usize>(), byte in any::<u8>(), cut in any::<usize>()) {
        let place = partition("iad", 0);
        let mut bytes = event.encode_to_vec();
        let at = at % bytes.len();
        bytes[at] = byte;
        bytes.truncate(cut % (bytes.len() + 1));
        let mut block = Block::default();
        let taken = block.push(&place, 5, &bytes).is_ok();
        prop_assert_eq!(block.count(), u64::from(taken));
        prop_assert_eq!(read_rows(&block.take().rows).unwrap().len(), usize::from(taken));
        if taken {
            prop_assert!(Event::decode(&bytes[..]).is_ok(), "what is stored is an event to every reader");
        }
    }
}

#[test]
fn unknown_fields_are_passed_over() {
    let mut bytes = event("iad", 1).encode_to_vec();
    bytes.extend_from_slice(b"\xfa\x01\x03abc");
    let mut block = Block::default();
    block.push(&partition("iad", 0), 0, &bytes).unwrap();
    assert_eq!(read_rows(&block.take().rows).unwrap()[0].event, event("iad", 1));
}

#[test]
fn only_content_that_says_it_is_json_has_to_be() {
    let stored = |content_type: Option<&str>, data: &'static str| {
        let event = Event { data_content_type: content_type.map(Into::into), data: data.into(), ..event("iad", 1) };
        Block::default().push(&partition("iad", 0), 0, &event.encode_to_vec()).is_ok()
    };
    for json in [None, Some("application/json"), Some("application/JSON; charset=utf-8"), Some("application/cloudevents+json")] {
        assert!(stored(json, "{}") && stored(json, "") && !stored(json, "{"), "{json:?}");
    }
    assert!(stored(Some("text/plain"), "{"));
}
