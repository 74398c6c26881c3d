//! Times as CloudEvents has them: RFC 3339, section 5.6.

use jiff::Timestamp;

/// Microseconds since the Unix epoch. A finer fraction is cut off, so that a time never moves into the next window.
///
/// # Errors
/// What is wrong with the text.
pub fn parse_time(text: &str) -> Result<i64, &'static str> {
    let wrong = "must be a time of RFC 3339, such as 2026-01-31T12:00:00.5Z or 2026-01-31T12:00:00+01:00";
    let bytes = text.as_bytes();
    let shape = b"dddd-dd-ddTdd:dd:dd";
    let fits = |kind: &u8, byte: &u8| match kind {
        b'd' => byte.is_ascii_digit(),
        b'T' => matches!(byte, b'T' | b't'),
        other => other == byte,
    };
    if bytes.len() < shape.len() || !shape.iter().zip(bytes).all(|(kind, byte)| fits(kind, byte)) {
        return Err(wrong);
    }
    if &text[17..19] == "60" {
        return Err("names a leap second, which has no place on the time line that is used here");
    }
    let rest = &text[shape.len()..];
    let zone = match rest.strip_prefix('.') {
        Some(fraction) => {
            let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
            if !(1..=9).contains(&digits) {
                return Err("has a fraction of no or more than 9 digits");
            }
            &fraction[digits..]
        }
        None => rest,
    };
    if !is_zone(zone) {
        return Err(wrong);
    }
    let time: Timestamp = text.to_ascii_uppercase().parse().map_err(|_| "is not a time that exists")?;
    // Floor: before 1970 a cut towards zero would be a later time.
    Ok(i64::try_from(time.as_nanosecond().div_euclid(1000)).unwrap_or(i64::MIN))
}

fn is_zone(zone: &str) -> bool {
    match zone.as_bytes() {
        [b'Z' | b'z'] => true,
        [b'+' | b'-', h1, h2, b':', m1, m2] => {
            let number =
                |tens: &u8, ones: &u8| (tens.is_ascii_digit() && ones.is_ascii_digit()).then(|| (tens - b'0') * 10 + (ones - b'0'));
            number(h1, h2).is_some_and(|hours| hours < 24) && number(m1, m2).is_some_and(|minutes| minutes < 60)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_exact_to_the_microsecond() {
        for (text, want) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("1970-01-01T00:00:00.000001999Z", Some(1)),
            ("1969-12-31T23:59:59.999999999Z", Some(-1)),
            ("2026-01-31T12:00:00+14:00", Some(1_769_810_400_000_000)),
            ("2026-01-31t12:00:00.25z", Some(1_769_860_800_250_000)),
            ("0001-01-01T00:00:00Z", Some(-62_135_596_800_000_000)),
            ("2024-02-29T00:00:00-00:00", Some(1_709_164_800_000_000)),
        ] {
            assert_eq!(parse_time(text).ok(), want, "{text}");
        }
    }

    #[test]
    fn what_rfc_3339_does_not_have_is_refused() {
        for text in [
            "",
            "2026-01-31",
            "2026-01-31T12:00Z",
            "2026-01-31 12:00:00Z",
            "2026-01-31T12:00:00",
            "2026-01-31T12:00:00.Z",
            "2026-01-31T12:00:00,5Z",
            "2026-01-31T12:00:00.1234567890Z",
            "2026-01-31T12:00:00+0100",
            "2026-01-31T12:00:00+24:00",
            "2026-01-31T12:00:00Z[UTC]",
            "2026-02-30T12:00:00Z",
            "2026-13-01T12:00:00Z",
            "2026-01-31T24:00:00Z",
            "2016-12-31T23:59:60Z",
            "+2026-01-31T12:00:00Z",
            "２026-01-31T12:00:00Z",
            "1769810400",
        ] {
            assert!(parse_time(text).is_err(), "{text}");
        }
    }
}
