//! Records that were written long ago read as they did then.
#![allow(clippy::unwrap_used)]

use meridian_proto::{Change, CommitId, CommitTime, Event, Watermark, payload_hash};
use prost::Message;

const EVENT: &[u8] = include_bytes!("../fixtures/event.bin");
const CHANGE: &[u8] = include_bytes!("../fixtures/change.bin");
const WATERMARK: &[u8] = include_bytes!("../fixtures/watermark.bin");

/// Computed by another program than ours.
const HASH: &str = "c921f608e4de71c52a580a25edeefd0a00ed63966ed264a1a9934220cce901b8";

#[test]
fn an_event_reads_as_it_was_written() {
    let event = Event::decode(EVENT).unwrap();
    let texts = [&event.tenant, &event.source, &event.id, &event.r#type, &event.origin];
    assert_eq!(texts, ["acme", "/shop/eu", "order-1", "com.meridian.order.v1", "fra"]);
    assert_eq!(event.subject.as_deref(), Some("customer-7"));
    assert_eq!(event.time_us, Some(1_769_860_800_250_000));
    assert_eq!(event.data_content_type.as_deref(), Some("application/json"));
    assert_eq!(event.data_schema.as_deref(), Some("https://schemas.example/order"));
    assert_eq!(event.data.as_ref(), br#"{"amount":"12.50","n":1.50}"#);
    let extensions: Vec<(&str, &str)> = event.extensions.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(extensions, [("flag", "true"), ("region", "eu"), ("tracestate", "a=b")]);
    let commit_id = CommitId::from_bytes(&event.commit_id).unwrap();
    assert_eq!(commit_id.time(), CommitTime(1_769_860_800_300_000));
    assert_eq!(commit_id.row().at_index(3), commit_id);
    assert_eq!(event.trace_parent, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    assert_eq!(event.accepted_us, 1_769_860_800_299_000);
    assert_eq!(event.key_id, "");
    assert_eq!(event.payload_hash, payload_hash(&event).0.as_slice());
    assert_eq!(payload_hash(&event).to_string(), HASH);
    assert_eq!(event.encode_to_vec(), EVENT, "and is written as it was");
}

#[test]
fn a_change_holds_events_as_they_are() {
    let change = Change::decode(CHANGE).unwrap();
    assert_eq!(change.events.len(), 2);
    assert_eq!(change.events[0], EVENT);
    let minimal = Event::decode(change.events[1].clone()).unwrap();
    assert_eq!(minimal, Event { id: "minimal".into(), ..Event::default() }, "what is absent stays absent");
}

#[test]
fn a_watermark_reads_as_it_was_written() {
    let xor = (0..16).collect::<Vec<u8>>().into();
    let (from_us, through_us) = (1_769_860_800_000_000, 1_769_860_801_000_000);
    let watermark = Watermark { region: "iad".into(), generation: 7, partition: 15, from_us, through_us, rows: 300, xor };
    assert_eq!(Watermark::decode(WATERMARK).unwrap(), watermark);
    assert_eq!(watermark.encode_to_vec(), WATERMARK);
}
