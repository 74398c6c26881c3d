//! Which events are valid, and what their payload hash covers.
#![allow(clippy::unwrap_used)]

use meridian_proto::{Event, Limits, payload_hash, validate};
use proptest::{collection::btree_map, option, prelude::*};

const NOW_US: u64 = 1_800_000_000_000_000;

/// Any valid event, with everything that ingest adds left out.
fn valid() -> impl Strategy<Value = Event> {
    let text = || "[a-zA-Z0-9 /:ü😀-]{1,20}";
    let attributes = (text(), text(), text(), text());
    let optional = (option::of(text()), option::of("[a-z]{1,8}/[a-z]{1,8}"), option::of(text()));
    let time = option::of(Limits::STANDARD.time_us_min..NOW_US as i64);
    let extensions = btree_map("[a-su-z][a-z0-9]{0,19}", text(), 0..4);
    (attributes, optional, time, extensions, prop::collection::vec(any::<u8>(), 0..50)).prop_map(
        |((tenant, source, id, kind), (subject, data_content_type, data_schema), time_us, extensions, data)| Event {
            tenant,
            source,
            id,
            r#type: kind,
            subject,
            time_us,
            data_content_type,
            data_schema,
            data: data.into(),
            extensions,
            ..Event::default()
        },
    )
}

/// A part of an event, and a way to change it.
type Change = (&'static str, fn(&mut Event));

/// Every way to change one thing that the client gave.
fn changes() -> Vec<Change> {
    fn toggle(value: &mut Option<String>) {
        *value = if value.is_some() { None } else { Some("x/y".into()) };
    }
    vec![
        ("tenant", |event| event.tenant.push('!')),
        ("source", |event| event.source.push('!')),
        ("id", |event| event.id.push('!')),
        ("type", |event| event.r#type.push('!')),
        ("subject", |event| toggle(&mut event.subject)),
        ("time", |event| event.time_us = event.time_us.map_or(Some(0), |time| (time % 2 == 0).then_some(time + 1))),
        ("datacontenttype", |event| toggle(&mut event.data_content_type)),
        ("dataschema", |event| toggle(&mut event.data_schema)),
        ("data", |event| event.data = [&event.data, b"!".as_slice()].concat().into()),
        ("extensions", |event| _ = event.extensions.insert("zzzzzzzzzzzzzzzzzzzz".into(), "!".into())),
        ("an extension's name", |event| {
            let value = event.extensions.pop_first().map_or("new".into(), |(_, value)| value);
            event.extensions.insert("zzzzzzzzzzzzzzzzzzzz".into(), value);
        }),
        ("a border between attributes", |event| {
            let moved = event.source.pop().unwrap_or('x');
            event.id.insert(0, moved);
        }),
        ("a border between data and schema", |event| event.data_schema = Some(String::from_utf8_lossy(&event.data).into_owned() + "x")),
    ]
}

/// A field, and how to set it.
type Set = (&'static str, fn(&mut Event, String));

proptest! {
    #[test]
    fn the_hash_covers_everything_that_the_client_gave(event in valid()) {
        for (what, change) in changes() {
            let mut other = event.clone();
            change(&mut other);
            prop_assume!(other != event);
            prop_assert_ne!(payload_hash(&event), payload_hash(&other), "{}", what);
        }
    }

    #[test]
    fn the_hash_covers_nothing_that_is_added_and_no_trace_context(event in valid(), noise in ".{1,20}", number in any::<u64>()) {
        let mut other = event.clone();
        other.origin = noise.clone();
        other.commit_id = noise.clone().into_bytes().into();
        other.payload_hash = noise.clone().into_bytes().into();
        other.trace_parent = noise.clone();
        other.key_id = noise.clone();
        other.accepted_us = number;
        other.extensions.insert("traceparent".into(), noise.clone());
        other.extensions.insert("tracestate".into(), noise);
        prop_assert_eq!(payload_hash(&event), payload_hash(&other));
        let [absent, named] = [None, Some("application/json".to_owned())].map(|kind| payload_hash(&Event { data_content_type: kind, ..event.clone() }));
        prop_assert_eq!(absent, named, "JSON is what an absent content type means");
    }

    #[test]
    fn a_valid_event_stays_valid_whatever_is_added(event in valid(), noise in ".{0,2000}") {
        prop_assert_eq!(validate(&event, &Limits::STANDARD, NOW_US), Ok(()));
        let added = Event { origin: noise.clone(), trace_parent: noise, ..event };
        prop_assert_eq!(validate(&added, &Limits::STANDARD, NOW_US), Ok(()));
    }

    #[test]
    fn every_field_that_is_wrong_is_named(event in valid(), control in "[\u{0}-\u{1f}\u{7f}-\u{9f}\u{fdd0}-\u{fdef}\u{fffe}]") {
        let mut long = "x".repeat(Limits::STANDARD.attribute_bytes_max);
        let at_limit = Event { id: long.clone(), ..event.clone() };
        prop_assert_eq!(validate(&at_limit, &Limits::STANDARD, NOW_US), Ok(()));
        long.push('x');
        for wrong in [String::new(), long, control] {
            let set: [Set; 7] = [
                ("tenant", |event, value| event.tenant = value),
                ("id", |event, value| event.id = value),
                ("source", |event, value| event.source = value),
                ("type", |event, value| event.r#type = value),
                ("subject", |event, value| event.subject = Some(value)),
                ("datacontenttype", |event, value| event.data_content_type = Some(value)),
                ("dataschema", |event, value| event.data_schema = Some(value)),
            ];
            for (field, set) in set {
                let mut other = event.clone();
                set(&mut other, wrong.clone());
                prop_assert_eq!(validate(&other, &Limits::STANDARD, NOW_US).map_err(|wrong| wrong.field), Err(field.to_owned()));
            }
            let mut other = event.clone();
            other.extensions.insert("ext".into(), wrong);
            prop_assert_eq!(validate(&other, &Limits::STANDARD, NOW_US).map_err(|wrong| wrong.field), Err("ext".to_owned()));
        }
    }

    #[test]
    fn time_is_taken_within_its_bounds_only(event in valid(), time in any::<i64>()) {
        let limits = Limits::STANDARD;
        let inside = (limits.time_us_min..=NOW_US as i64 + limits.time_ahead_us_max).contains(&time);
        let result = validate(&Event { time_us: Some(time), ..event }, &limits, NOW_US);
        prop_assert_eq!(result.map_err(|wrong| wrong.field), if inside { Ok(()) } else { Err("time".to_owned()) });
    }
}

#[test]
fn the_bounds_themselves() {
    let good = Event { tenant: "t".into(), id: "i".into(), source: "s".into(), r#type: "y".into(), ..Event::default() };
    let check = |event: &Event, field: Option<&str>| {
        assert_eq!(validate(event, &Limits::STANDARD, NOW_US).err().map(|wrong| wrong.field).as_deref(), field);
    };
    let data = |bytes: usize| Event { data: vec![0; bytes].into(), ..good.clone() };
    check(&data(256 * 1024), None);
    check(&data(256 * 1024 + 1), Some("data"));
    let extensions = |count: usize| Event { extensions: (0..count).map(|n| (format!("e{n}"), "v".into())).collect(), ..good.clone() };
    check(&extensions(32), None);
    check(&extensions(33), Some("extensions"));
    for name in ["", "Upper", "with_underscore", "ü", "a23456789012345678901"] {
        check(&Event { extensions: [(name.to_owned(), "v".to_owned())].into(), ..good.clone() }, Some(name));
    }
    let time = |time_us: i64| Event { time_us: Some(time_us), ..good.clone() };
    for (time_us, field) in [
        (946_684_800_000_000, None),
        (946_684_799_999_999, Some("time")),
        (NOW_US as i64 + 86_400_000_000, None),
        (NOW_US as i64 + 86_400_000_001, Some("time")),
        (i64::MIN, Some("time")),
        (i64::MAX, Some("time")),
    ] {
        check(&time(time_us), field);
    }
}
