//! Limits on JSON from outside, and its compact form.

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::{borrow::Cow, collections::HashSet, fmt};

/// How deep objects and arrays may be nested in a request.
pub const DEPTH_MAX: usize = 64;

/// Whether objects and arrays are nested deeper than `max`. Looks at brackets outside of strings only, so it can be asked
/// before anything is parsed.
pub fn is_deeper_than(max: usize, text: &str) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > max {
            return true;
        }
    }
    false
}

/// The same JSON without the white space between its parts. Numbers, strings and the order of members stay as they were
/// written. The text must be valid.
pub fn compact(text: &str) -> Vec<u8> {
    let (mut out, mut in_string, mut escaped) = (Vec::with_capacity(text.len()), false, false);
    for byte in text.bytes() {
        match byte {
            b' ' | b'\t' | b'\n' | b'\r' if !in_string => continue,
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ => {}
        }
        out.push(byte);
    }
    out
}

/// Says whether a text is JSON that every reader understands alike (RFC 7493, I-JSON, as to names and strings): valid,
/// each name once in its object, no lone surrogates.
///
/// # Errors
/// What is wrong, and where.
pub fn check(text: &str) -> Result<(), serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    Strict::deserialize(&mut deserializer)?;
    deserializer.end()
}

/// Any JSON value, looked at and forgotten.
struct Strict;

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Strict;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }
    fn visit_bool<E>(self, _: bool) -> Result<Strict, E> {
        Ok(Strict)
    }
    fn visit_i64<E>(self, _: i64) -> Result<Strict, E> {
        Ok(Strict)
    }
    fn visit_u64<E>(self, _: u64) -> Result<Strict, E> {
        Ok(Strict)
    }
    fn visit_f64<E>(self, _: f64) -> Result<Strict, E> {
        Ok(Strict)
    }
    fn visit_str<E>(self, _: &str) -> Result<Strict, E> {
        Ok(Strict)
    }
    fn visit_unit<E>(self) -> Result<Strict, E> {
        Ok(Strict)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Strict, A::Error> {
        while items.next_element::<Strict>()?.is_some() {}
        Ok(Strict)
    }
    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Strict, A::Error> {
        let mut seen = HashSet::new();
        while let Some(name) = members.next_key::<Name<'de>>()? {
            members.next_value::<Strict>()?;
            if let Some(name) = seen.replace(name.0) {
                return Err(A::Error::custom(format!("member {name:?} stands twice in one object")));
            }
        }
        Ok(Strict)
    }
}

/// A member's name, borrowed where it has no escapes.
pub struct Name<'a>(pub Cow<'a, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameVisitor;
        impl<'de> Visitor<'de> for NameVisitor {
            type Value = Name<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }
            fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Borrowed(name)))
            }
            fn visit_str<E>(self, name: &str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Owned(name.into())))
            }
        }
        deserializer.deserialize_str(NameVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_is_counted_outside_of_strings() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(!is_deeper_than(64, &nested(64)));
        assert!(is_deeper_than(64, &nested(65)));
        assert!(is_deeper_than(64, &"[".repeat(1_000_000)));
        assert!(!is_deeper_than(1, r#"["[[[[\"[[[", 1]"#));
        assert!(!is_deeper_than(1, "[[]".trim_end_matches("[]")));
    }

    #[test]
    fn compact_text_keeps_numbers_strings_and_order() {
        let text = " { \"b\" : 1.50 ,\n\t\"a\\\" \" : [ 1E+2 , \"x  y\\\\\" ] , \"c\":12345678901234567890.000000000000000001 } ";
        let want = r#"{"b":1.50,"a\" ":[1E+2,"x  y\\"],"c":12345678901234567890.000000000000000001}"#;
        assert_eq!(String::from_utf8(compact(text)).unwrap(), want);
    }

    #[test]
    fn what_readers_understand_differently_is_refused() {
        for (text, right) in [
            (r#"{"a":{"b":[1,-0,1e999,true,null,"\ud83d\ude00"]},"b":{"b":1}}"#, true),
            ("0", true),
            ("", false),
            ("01", false),
            ("NaN", false),
            ("-Infinity", false),
            (r#"{"a":1,"\u0061":2}"#, false),
            (r#"{"a":[{"b":1,"b":1}]}"#, false),
            (r#""\ud800""#, false),
            (r#"{"a":1}}"#, false),
            (r#"{"a":1,}"#, false),
            ("'a'", false),
        ] {
            assert_eq!(check(text).is_ok(), right, "{text}");
        }
    }
}
