//! CloudEvents 1.0 in JSON, structured and batch: from text to [`Event`].
//!
//! Nothing is interpreted that need not be: payloads stay text, with their numbers and the order of their members.

use crate::{Limits, rfc3339::parse_time};
use api::{
    Kind, Problem,
    json::{self, Name},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use meridian_proto::Event;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::{error::Category, value::RawValue};
use std::{borrow::Cow, fmt};

type Member<'a> = (Cow<'a, str>, &'a RawValue);

/// The members of a JSON object, in order; each name at most once.
struct Members<'a>(Vec<Member<'a>>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;
        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = Members<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members: Vec<Member<'de>> = Vec::new();
                while let Some(Name(name)) = map.next_key()? {
                    if members.iter().any(|(known, _)| *known == name) {
                        return Err(A::Error::custom(format!("member {name:?} stands twice")));
                    }
                    if members.len() == MEMBERS_MAX {
                        return Err(A::Error::custom(format!("more than {MEMBERS_MAX} members")));
                    }
                    members.push((name, map.next_value()?));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(MembersVisitor)
    }
}

/// More than any valid event has; keeps the search for duplicates short.
const MEMBERS_MAX: usize = 1000;

/// The top-level members of a JSON object; `None` for anything else.
pub(crate) fn members_of(text: &str) -> Option<Vec<(Cow<'_, str>, &RawValue)>> {
    serde_json::from_str::<Members<'_>>(text).ok().map(|members| members.0)
}

fn unreadable(error: &serde_json::Error, field: &str) -> Problem {
    match error.classify() {
        Category::Data if field.is_empty() => Problem::new(Kind::Malformed, error.to_string()),
        Category::Data => Problem::at(Kind::Invalid, field, error.to_string()),
        _ => Problem::new(Kind::Malformed, format!("not JSON: {error}")),
    }
}

fn check_depth(text: &str, limits: &Limits) -> Result<(), Problem> {
    if json::is_deeper_than(limits.depth_max, text) {
        return Err(Problem::new(Kind::Malformed, format!("objects and arrays are nested deeper than {}", limits.depth_max)));
    }
    Ok(())
}

/// Reads a body of `application/cloudevents+json`: one event.
///
/// # Errors
/// 400 when it is no JSON object, 413 when the payload is too large, 422 naming the field that is wrong.
pub fn parse_structured(text: &str, limits: &Limits) -> Result<Vec<Event>, Problem> {
    check_depth(text, limits)?;
    let members: Members<'_> = serde_json::from_str(text).map_err(|error| unreadable(&error, ""))?;
    Ok(vec![event_of(members, "", limits)?])
}

/// Reads a body of `application/cloudevents-batch+json`: an array of events. Field names of errors begin with the index.
///
/// # Errors
/// As [`parse_structured`], and 413 when there are too many events.
pub fn parse_batch(text: &str, limits: &Limits) -> Result<Vec<Event>, Problem> {
    check_depth(text, limits)?;
    let items: Vec<&RawValue> = serde_json::from_str(text).map_err(|error| unreadable(&error, ""))?;
    if items.len() > limits.batch_events_max {
        let detail = format!("{} events, at most {} are taken at once", items.len(), limits.batch_events_max);
        return Err(Problem::new(Kind::TooLarge, detail));
    }
    let parse = |(index, item): (usize, &&RawValue)| {
        let place = format!("[{index}]");
        let members = serde_json::from_str(item.get()).map_err(|error| unreadable(&error, &place))?;
        event_of(members, &format!("{place}."), limits)
    };
    items.iter().enumerate().map(parse).collect()
}

/// What is known of one event while its members are read.
struct Draft<'a> {
    event: Event,
    spec_version: Option<String>,
    data: Option<&'a RawValue>,
    data_base64: Option<String>,
}

fn event_of(members: Members<'_>, prefix: &str, limits: &Limits) -> Result<Event, Problem> {
    let mut draft = Draft { event: Event::default(), spec_version: None, data: None, data_base64: None };
    for (name, value) in members.0 {
        let wrong = |reason: String| Problem::at(Kind::Invalid, format!("{prefix}{name}"), reason);
        take_member(&mut draft, &name, value).map_err(wrong)?;
    }
    let at = |field: &str, reason: String| Problem::at(Kind::Invalid, format!("{prefix}{field}"), reason);
    match draft.spec_version.as_deref() {
        Some("1.0") => {}
        Some(other) => return Err(at("specversion", format!("{other:?} is not known, \"1.0\" is"))),
        None => return Err(at("specversion", "must be there, and be \"1.0\"".into())),
    }
    let Draft { mut event, data, data_base64, .. } = draft;
    for (field, value) in [("id", &event.id), ("source", &event.source), ("type", &event.r#type)] {
        if value.is_empty() {
            return Err(at(field, "must be there, and not be empty".into()));
        }
    }
    let field = if data_base64.is_some() { "data_base64" } else { "data" };
    event.data = payload(event.data_content_type.as_deref(), data, data_base64, limits).map_err(|reason| at(field, reason))?.into();
    if event.data.len() > limits.event.data_bytes_max {
        let detail = format!("has {} bytes, at most {} are allowed", event.data.len(), limits.event.data_bytes_max);
        return Err(Problem::at(Kind::TooLarge, format!("{prefix}{field}"), detail));
    }
    Ok(event)
}

fn take_member<'a>(draft: &mut Draft<'a>, name: &str, value: &'a RawValue) -> Result<(), String> {
    if name == "data" {
        // A payload of JSON null is a payload (CloudEvents JSON format, section 3.1).
        draft.data = Some(value);
        return Ok(());
    }
    if value.get() == "null" {
        // CloudEvents JSON format, section 2.2: null and absent are the same.
        return Ok(());
    }
    let event = &mut draft.event;
    match name {
        "specversion" => draft.spec_version = Some(text_of(value)?),
        "id" => event.id = text_of(value)?,
        "source" => event.source = text_of(value)?,
        "type" => event.r#type = text_of(value)?,
        "subject" => event.subject = Some(text_of(value)?),
        "time" => event.time_us = Some(parse_time(&text_of(value)?)?),
        "datacontenttype" => event.data_content_type = Some(text_of(value)?),
        "dataschema" => event.data_schema = Some(text_of(value)?),
        "data_base64" => draft.data_base64 = Some(text_of(value)?),
        // CloudEvents extension "Distributed tracing": no part of what the event is.
        "traceparent" => event.trace_parent = text_of(value)?,
        _ if name.starts_with("meridian") => return Err("names that begin with \"meridian\" are kept for what is added here".into()),
        _ => {
            event.extensions.insert(name.into(), extension_of(value)?);
        }
    }
    Ok(())
}

fn text_of(value: &RawValue) -> Result<String, String> {
    serde_json::from_str(value.get()).map_err(|_| "must be a string of valid characters".into())
}

/// The canonical text of an attribute (CloudEvents 1.0, section 3.1): string, boolean or 32-bit integer.
fn extension_of(value: &RawValue) -> Result<String, String> {
    let text = value.get();
    match text.as_bytes().first() {
        Some(b'"') => text_of(value),
        Some(b't' | b'f') => Ok(text.into()),
        _ => text.parse::<i32>().map(|number| number.to_string()).map_err(|_| "must be a string, a boolean or a 32-bit integer".into()),
    }
}

/// Whether a media type declares JSON (CloudEvents JSON format, section 3.1). Absent reads as application/json.
fn is_json(content_type: Option<&str>) -> bool {
    let Some(content_type) = content_type else { return true };
    let media = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    media.ends_with("/json") || media.ends_with("+json")
}

/// The payload's bytes: the same for the same payload, whichever way it came.
fn payload(content_type: Option<&str>, data: Option<&RawValue>, data_base64: Option<String>, limits: &Limits) -> Result<Vec<u8>, String> {
    let compact = |text: &str| json::check(text).map(|()| json::compact(text)).map_err(|error| error.to_string());
    match (data, data_base64) {
        (None, None) => Ok(Vec::new()),
        (Some(_), Some(_)) => Err("stands beside data: only one of the two may be there".into()),
        (Some(data), None) if is_json(content_type) => compact(data.get()),
        (Some(data), None) if data.get().starts_with('"') => text_of(data).map(String::into_bytes),
        (Some(_), None) => Err("must be a string, since datacontenttype is not JSON".into()),
        (None, Some(base64)) => {
            let bytes = BASE64_STANDARD.decode(&base64).map_err(|error| format!("is not base64: {error}"))?;
            if !is_json(content_type) {
                return Ok(bytes);
            }
            let text = std::str::from_utf8(&bytes).map_err(|error| format!("datacontenttype says JSON, but: {error}"))?;
            if json::is_deeper_than(limits.depth_max, text) {
                return Err(format!("is nested deeper than {}", limits.depth_max));
            }
            compact(text).map_err(|error| format!("datacontenttype says JSON, but: {error}"))
        }
    }
}
