//! What the requests of a schedule say: bodies, hashes and amounts, again from the seed alone.

use crate::{
    decimal::Decimal,
    plan::Plan,
    schedule::{Kind, Operation},
};
use bytes::Bytes;
use meridian_proto::{Event, payload_hash};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use serde_json::{Value, json};

/// What is wrong with a request that must be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidKind {
    /// No `id`.
    MissingId,
    /// `source` is empty.
    EmptySource,
    /// No `type`.
    MissingType,
    /// `time` is not a time.
    BadTime,
    /// `time` lies before all that is kept.
    OldTime,
    /// `subject` is longer than 256 bytes.
    LongAttribute,
    /// `type` holds a control character.
    ControlCharacter,
    /// `specversion` is not 1.0.
    WrongVersion,
    /// The metered property is not a decimal number.
    BadAmount,
    /// The body ends early.
    BrokenJson,
    /// The content type is not one of CloudEvents'.
    WrongContentType,
    /// The bearer key is nobody's.
    UnknownKey,
}

impl InvalidKind {
    const ALL: [Self; 12] = [
        Self::MissingId,
        Self::EmptySource,
        Self::MissingType,
        Self::BadTime,
        Self::OldTime,
        Self::LongAttribute,
        Self::ControlCharacter,
        Self::WrongVersion,
        Self::BadAmount,
        Self::BrokenJson,
        Self::WrongContentType,
        Self::UnknownKey,
    ];

    /// One of them, all alike likely.
    pub fn drawn(random: &mut impl rand::Rng) -> Self {
        Self::ALL[random.random_range(0..Self::ALL.len())]
    }

    /// Damages one event of a request.
    fn damage(self, event: &mut Value) {
        let Some(fields) = event.as_object_mut() else { return };
        match self {
            Self::MissingId => drop(fields.shift_remove("id")),
            Self::MissingType => drop(fields.shift_remove("type")),
            Self::EmptySource => fields["source"] = "".into(),
            Self::BadTime => fields["time"] = "yesterday".into(),
            Self::OldTime => fields["time"] = "1899-12-31T23:59:59Z".into(),
            Self::LongAttribute => fields["subject"] = "x".repeat(257).into(),
            Self::ControlCharacter => fields["type"] = "bell\u{7}".into(),
            Self::WrongVersion => fields["specversion"] = "0.3".into(),
            Self::BadAmount => fields["data"]["amount"] = "1,5".into(),
            Self::BrokenJson | Self::WrongContentType | Self::UnknownKey => {}
        }
    }
}

/// One event of a request, as the history keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// CloudEvents `id`; empty if the request leaves it out.
    pub id: String,
    /// Hash of what is given.
    pub hash: [u8; 32],
    /// The `amount` of its data.
    pub amount: Decimal,
}

/// A request, ready to be sent.
#[derive(Clone, Debug)]
pub struct Request {
    /// Media type.
    pub content_type: &'static str,
    /// Sent with a key that is nobody's.
    pub unknown_key: bool,
    /// JSON.
    pub body: Bytes,
    /// Its events, in order.
    pub events: Vec<Made>,
}

/// Makes the requests of one run.
pub struct Generator {
    plan: Plan,
    tenants: Vec<String>,
    source: String,
    start_us: u64,
}

/// CloudEvents JSON, one event.
pub const ONE: &str = "application/cloudevents+json";
/// CloudEvents JSON, a batch.
pub const BATCH: &str = "application/cloudevents-batch+json";

impl Generator {
    /// For a run that starts at `start_us` (microseconds since the Unix epoch) and whose events have `source`.
    pub fn new(plan: Plan, source: String, start_us: u64) -> Self {
        let tenants = (1..=plan.tenants).map(|number| format!("tenant-{number:02}")).collect();
        Self { plan, tenants, source, start_us }
    }

    /// Names of the tenants, by index.
    pub fn tenants(&self) -> &[String] {
        &self.tenants
    }

    /// When the run starts, microseconds since the Unix epoch.
    pub fn start_us(&self) -> u64 {
        self.start_us
    }

    /// CloudEvents `source` of every event.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The request of `operation`, which is one of `schedule`.
    pub fn request(&self, operation: &Operation, schedule: &[Operation]) -> Request {
        let original = match operation.kind {
            Kind::Repeat { of } | Kind::Conflict { of, .. } => &schedule[of as usize],
            Kind::Post | Kind::Invalid(_) => operation,
        };
        let other_payload = matches!(operation.kind, Kind::Conflict { .. });
        let numbers = operation.first_event..operation.first_event + u64::from(operation.events);
        let (mut values, mut events): (Vec<Value>, Vec<Made>) =
            numbers.map(|number| self.event(number, original.tenant, original.at_us, other_payload)).unzip();
        let mut content_type = if operation.batch { BATCH } else { ONE };
        let mut unknown_key = false;
        if let Kind::Invalid(kind) = operation.kind {
            let place = operation.first_event as usize % values.len();
            kind.damage(&mut values[place]);
            if kind == InvalidKind::MissingId {
                events[place].id.clear();
            }
            unknown_key = kind == InvalidKind::UnknownKey;
            if kind == InvalidKind::WrongContentType {
                content_type = "text/plain";
            }
        }
        let body = if operation.batch { Value::Array(values) } else { values.swap_remove(0) };
        let mut body = body.to_string().into_bytes();
        if operation.kind == Kind::Invalid(InvalidKind::BrokenJson) {
            body.truncate(body.len() - 3);
        }
        Request { content_type, unknown_key, body: body.into(), events }
    }

    fn event(&self, number: u64, tenant: u16, at_us: u64, other_payload: bool) -> (Value, Made) {
        let mut random = SmallRng::seed_from_u64(self.plan.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number);
        let units = random.random_range(1..1_000_000_i64) + if other_payload { 1_000_000 } else { 0 };
        let subject = format!("subject-{:02}", random.random_range(0..self.plan.event.subjects));
        let id = format!("e{number:07}");
        let data = self.data(units, &mut random);
        let time_us = (self.start_us + at_us) as i64;
        let time = jiff::Timestamp::from_microsecond(time_us).map(|time| format!("{time:.6}")).unwrap_or_default();
        let made = Event {
            tenant: self.tenants[usize::from(tenant)].clone(),
            source: self.source.clone(),
            id: id.clone(),
            r#type: self.plan.event.r#type.clone(),
            subject: Some(subject.clone()),
            time_us: Some(time_us),
            data: data.to_string().into_bytes().into(),
            ..Event::default()
        };
        let value = json!({
            "specversion": "1.0", "id": id, "source": self.source, "type": self.plan.event.r#type,
            "subject": subject, "time": time, "data": data,
        });
        let hash = payload_hash(&made).0;
        (value, Made { id, hash, amount: Decimal::from_units(units, 4) })
    }

    fn data(&self, units: i64, random: &mut SmallRng) -> Value {
        let amount = format!("{}.{:04}", units / 10_000, units % 10_000);
        let frame = json!({ "amount": amount, "pad": "" }).to_string().len();
        let pad: String = (frame..self.plan.event.bytes).map(|_| char::from(b'a' + random.random_range(0..26_u8))).collect();
        json!({ "amount": amount, "pad": pad })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::schedule;
    use std::collections::HashSet;

    fn generator() -> (Generator, Vec<Operation>) {
        let plan: Plan = toml::from_str(include_str!("../plans/default.toml")).unwrap();
        let schedule = schedule(&plan, 3);
        (Generator::new(plan, "/loadtest/test".into(), 1_700_000_000_000_000), schedule)
    }

    #[test]
    fn repeats_say_the_same_and_conflicts_something_else() {
        let (generator, schedule) = generator();
        let mut checked = HashSet::new();
        for operation in &schedule {
            let request = generator.request(operation, &schedule);
            match operation.kind {
                Kind::Repeat { of } => {
                    assert_eq!(request.body, generator.request(&schedule[of as usize], &schedule).body);
                }
                Kind::Conflict { of, event } => {
                    let original = &generator.request(&schedule[of as usize], &schedule).events[usize::from(event)];
                    assert_eq!(original.id, request.events[0].id);
                    assert_ne!(original.hash, request.events[0].hash);
                    assert_ne!(original.amount, request.events[0].amount);
                }
                Kind::Post => assert_eq!(request.events.len(), usize::from(operation.events)),
                Kind::Invalid(_) => {}
            }
            checked.insert(operation.kind.name());
        }
        assert_eq!(checked.len(), 4);
    }

    #[test]
    fn data_has_the_planned_size_and_the_stated_amount() {
        let (generator, schedule) = generator();
        let operation = schedule.iter().find(|operation| operation.kind == Kind::Post && !operation.batch).unwrap();
        let request = generator.request(operation, &schedule);
        let value: Value = serde_json::from_slice(&request.body).unwrap();
        assert_eq!(value["data"].to_string().len(), 200);
        assert_eq!(value["data"]["amount"].as_str().unwrap().parse::<Decimal>().unwrap(), request.events[0].amount);
        assert!(value["time"].as_str().unwrap().ends_with('Z'));
    }

    #[test]
    fn each_kind_of_damage_changes_the_request() {
        let (generator, schedule) = generator();
        let operation = *schedule.iter().find(|operation| operation.kind == Kind::Post && operation.batch).unwrap();
        let sound = generator.request(&operation, &schedule);
        for kind in InvalidKind::ALL {
            let damaged = generator.request(&Operation { kind: Kind::Invalid(kind), ..operation }, &schedule);
            let changed = damaged.body != sound.body || damaged.content_type != sound.content_type || damaged.unknown_key;
            assert!(changed, "{kind:?}");
        }
    }
}
