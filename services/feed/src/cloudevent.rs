//! An event of the log as JSON (CloudEvents 1.0, JSON event format), with what Meridian knows about it.

use crate::ring::Found;
use base64::{Engine, prelude::BASE64_STANDARD};
use meridian_proto::Event;
use prost::Message;
use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::value::RawValue;

/// Attributes that are ours; an extension of the same name is left out.
const RESERVED: [&str; 5] = ["hops", "meridianaccepted", "meridiancommitid", "meridianhash", "meridianorigin"];

/// One event of a page.
#[derive(Debug)]
pub struct CloudEvent {
    event: Event,
    relayed_ms: i64,
    appended_ms: i64,
}

/// When an event passed each hop.
#[derive(Serialize)]
struct Hops {
    accepted_us: u64,
    relayed_ms: i64,
    mirrored_ms: i64,
}

impl CloudEvent {
    /// Reads a record; `None` for what cannot be read, or is another's: such a record is passed over, and the sink parks it.
    pub fn read(found: &Found, tenant: &str) -> Option<Self> {
        let event = Event::decode(found.value.clone()).ok().filter(|event| event.tenant == tenant)?;
        Some(Self { event, relayed_ms: found.relayed_ms, appended_ms: found.appended_ms })
    }
}

/// RFC 3339 in UTC, to the microsecond.
fn time(us: i64) -> Option<String> {
    jiff::Timestamp::from_microsecond(us).ok().map(|time| time.to_string())
}

fn is_json(content_type: Option<&str>) -> bool {
    let Some(content_type) = content_type else { return true };
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || essence == "text/json" || essence.ends_with("+json")
}

impl Serialize for CloudEvent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let event = &self.event;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("specversion", "1.0")?;
        map.serialize_entry("id", &event.id)?;
        map.serialize_entry("source", &event.source)?;
        map.serialize_entry("type", &event.r#type)?;
        let optional = [
            ("subject", event.subject.clone()),
            ("time", event.time_us.and_then(time)),
            ("datacontenttype", event.data_content_type.clone()),
            ("dataschema", event.data_schema.clone()),
            ("traceparent", Some(event.trace_parent.clone()).filter(|_| !event.extensions.contains_key("traceparent"))),
        ];
        for (name, value) in optional.iter().filter_map(|(name, value)| Some((name, value.as_ref().filter(|value| !value.is_empty())?))) {
            map.serialize_entry(name, value)?;
        }
        for (name, value) in event.extensions.iter().filter(|(name, _)| !RESERVED.contains(&name.as_str())) {
            map.serialize_entry(name, value)?;
        }
        map.serialize_entry("meridiancommitid", &hex::encode(&event.commit_id))?;
        map.serialize_entry("meridianhash", &hex::encode(&event.payload_hash))?;
        map.serialize_entry("meridianorigin", &event.origin)?;
        if let Some(accepted) = i64::try_from(event.accepted_us).ok().and_then(time) {
            map.serialize_entry("meridianaccepted", &accepted)?;
        }
        let hops = Hops { accepted_us: event.accepted_us, relayed_ms: self.relayed_ms, mirrored_ms: self.appended_ms };
        map.serialize_entry("hops", &hops)?;
        if !event.data.is_empty() {
            // What calls itself JSON and is not must not break the page around it.
            let json = is_json(event.data_content_type.as_deref()).then(|| serde_json::from_slice::<&RawValue>(&event.data).ok());
            match json.flatten() {
                Some(json) => map.serialize_entry("data", json)?,
                None => map.serialize_entry("data_base64", &BASE64_STANDARD.encode(&event.data))?,
            }
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(event: &Event) -> String {
        let found = Found { offset: 3, relayed_ms: 20, appended_ms: 30, value: event.encode_to_vec().into() };
        serde_json::to_string(&CloudEvent::read(&found, "acme").unwrap()).unwrap()
    }

    fn event() -> Event {
        Event {
            tenant: "acme".into(),
            source: "/s".into(),
            id: "1".into(),
            r#type: "t".into(),
            origin: "fra".into(),
            commit_id: vec![0xab; 16].into(),
            payload_hash: vec![1; 32].into(),
            accepted_us: 1_700_000_000_123_456,
            ..Event::default()
        }
    }

    #[test]
    fn an_event_keeps_what_its_client_gave() {
        let given = Event {
            subject: Some("x".into()),
            time_us: Some(1_700_000_000_000_000),
            data: r#"{"b":1.50,"a":12345678901234567890.1}"#.into(),
            extensions: [("tier".into(), "gold".into()), ("hops".into(), "9".into())].into(),
            ..event()
        };
        let want = concat!(
            r#"{"specversion":"1.0","id":"1","source":"/s","type":"t","subject":"x","time":"2023-11-14T22:13:20Z","tier":"gold","#,
            r#""meridiancommitid":"abababababababababababababababab","#,
            r#""meridianhash":"0101010101010101010101010101010101010101010101010101010101010101","meridianorigin":"fra","#,
            r#""meridianaccepted":"2023-11-14T22:13:20.123456Z","hops":{"accepted_us":1700000000123456,"relayed_ms":20,"mirrored_ms":30},"#,
            r#""data":{"b":1.50,"a":12345678901234567890.1}}"#
        );
        assert_eq!(json(&given), want);
    }

    #[test]
    fn data_that_is_not_json_travels_in_base64() {
        let with = |kind: Option<&str>, data: &'static [u8]| {
            json(&Event { data_content_type: kind.map(Into::into), data: data.into(), ..event() })
        };
        assert!(with(Some("text/plain"), b"hi").ends_with(r#""data_base64":"aGk="}"#));
        assert!(with(None, b"{broken").ends_with(r#""data_base64":"e2Jyb2tlbg=="}"#));
        assert!(with(Some("application/vnd.x+json; charset=utf-8"), b"[1]").ends_with(r#""data":[1]}"#));
        assert!(!with(None, b"").contains("data"));
        let deep: &[u8] = &[b"[".repeat(10_000), b"]".repeat(10_000)].concat();
        serde_json::from_str::<&RawValue>(&with(None, Box::leak(deep.to_vec().into_boxed_slice()))).unwrap();
    }

    #[test]
    fn another_tenants_event_is_never_shown() {
        let found = Found { offset: 0, relayed_ms: 0, appended_ms: 0, value: event().encode_to_vec().into() };
        assert!(CloudEvent::read(&found, "globex").is_none());
        assert!(CloudEvent::read(&Found { value: "junk".into(), ..found }, "acme").is_none());
    }
}
