//! Which properties are summed, and so must be exact: read from the file of meters.

use crate::{amount::check_amount, cloudevents::members_of};
use anyhow::{Context, Result, bail, ensure};
use api::{Kind, Problem};
use meridian_proto::Event;
use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// The summed properties by event type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meters(BTreeMap<String, BTreeSet<String>>);

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    meter: Vec<Meter>,
}

#[derive(Deserialize)]
struct Meter {
    name: String,
    event_type: String,
    aggregation: String,
    property: Option<String>,
}

impl Meters {
    /// Reads the file.
    ///
    /// # Errors
    /// When it cannot be read, or names an aggregation that is not known.
    pub fn read(file: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(file).with_context(|| format!("read meters from {}", file.display()))?;
        Self::parse(&text).with_context(|| format!("meters in {}", file.display()))
    }

    /// Reads the file's text.
    ///
    /// # Errors
    /// As [`Meters::read`].
    pub fn parse(text: &str) -> Result<Self> {
        let mut meters = Self::default();
        for meter in toml::from_str::<File>(text)?.meter {
            match (meter.aggregation.as_str(), meter.property) {
                ("count", _) => {}
                ("sum", Some(property)) => {
                    ensure!(!property.is_empty(), "meter {:?}: the property has no name", meter.name);
                    meters.0.entry(meter.event_type).or_default().insert(property);
                }
                ("sum", None) => bail!("meter {:?}: a sum needs a property", meter.name),
                (other, _) => bail!("meter {:?}: aggregation {other:?} is not known (sum, count)", meter.name),
            }
        }
        Ok(meters)
    }

    /// Says whether what is summed of an event can be summed exactly. `prefix` stands before the field's name.
    ///
    /// # Errors
    /// 422, naming `data.<property>`.
    pub fn check(&self, event: &Event, prefix: &str) -> Result<(), Problem> {
        let Some(properties) = self.0.get(&event.r#type) else { return Ok(()) };
        let members = std::str::from_utf8(&event.data).ok().and_then(members_of).unwrap_or_default();
        for property in properties {
            let field = || format!("{prefix}data.{property}");
            let Some((_, value)) = members.iter().find(|(name, _)| name == property) else {
                return Err(Problem::at(
                    Kind::Invalid,
                    field(),
                    format!("must be there: it is summed for events of type {:?}", event.r#type),
                ));
            };
            check_amount(value.get()).map_err(|reason| Problem::at(Kind::Invalid, field(), reason))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
        [[meter]]
        name = "amount"
        event_type = "order"
        aggregation = "sum"
        property = "amount"
        [[meter]]
        name = "orders"
        event_type = "order"
        aggregation = "count"
    "#;

    fn check(kind: &str, data: &str, field: Option<&str>) {
        let event = Event { r#type: kind.into(), data: data.to_owned().into(), ..Event::default() };
        let found = Meters::parse(FILE).unwrap().check(&event, "[2].");
        assert_eq!(found.err().and_then(|problem| problem.field).as_deref(), field, "{kind} {data}");
    }

    #[test]
    fn only_what_is_summed_must_be_exact() {
        check("order", r#"{"note":"x","amount":"12.50"}"#, None);
        check("order", r#"{"amount":3}"#, None);
        check("other", "nonsense", None);
        for data in ["", "null", "7", "{}", r#"{"amount":null}"#, r#"{"amount":1e3}"#, r#"{"Amount":1}"#, r#"{"a":{"amount":1}}"#] {
            check("order", data, Some("[2].data.amount"));
        }
    }

    #[test]
    fn a_wrong_file_is_refused() {
        for (aggregation, property) in [("avg", "property = \"a\""), ("sum", ""), ("sum", "property = \"\"")] {
            let text = format!("[[meter]]\nname = \"m\"\nevent_type = \"t\"\naggregation = {aggregation:?}\n{property}");
            assert!(Meters::parse(&text).is_err(), "{text}");
        }
    }
}
