//! Exact decimals: what the sums of a run are made of.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{fmt, iter::Sum, ops::Add, str::FromStr};

const SCALE: u32 = 12;
const ONE: i128 = 10_i128.pow(SCALE);

/// A decimal number with up to 12 digits after the point, exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Decimal(i128);

impl Decimal {
    /// `units` ÷ 10^`digits`; `digits` is at most 12.
    pub fn from_units(units: i64, digits: u32) -> Self {
        Self(i128::from(units) * 10_i128.pow(SCALE.saturating_sub(digits)))
    }
}

/// The text is not a decimal number with at most 12 digits after the point.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a decimal number with at most 12 digits after the point")]
pub struct NotADecimal(String);

impl FromStr for Decimal {
    type Err = NotADecimal;
    fn from_str(text: &str) -> Result<Self, NotADecimal> {
        let parse = || {
            let (negative, digits) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
            let (whole, part) = digits.split_once('.').unwrap_or((digits, "0"));
            let all_digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            if !all_digits(whole) || !all_digits(part) {
                return None;
            }
            let part = if part.len() > SCALE as usize {
                let (kept, cut) = part.split_at(SCALE as usize);
                cut.bytes().all(|b| b == b'0').then_some(kept)?
            } else {
                part
            };
            let part_value: i128 = part.parse::<i128>().ok()? * 10_i128.pow(SCALE - part.len() as u32);
            let value = whole.parse::<i128>().ok()?.checked_mul(ONE)?.checked_add(part_value)?;
            Some(Self(if negative { -value } else { value }))
        };
        parse().ok_or_else(|| NotADecimal(text.into()))
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.0.unsigned_abs() / ONE.unsigned_abs(), self.0.unsigned_abs() % ONE.unsigned_abs());
        let sign = if self.0 < 0 { "-" } else { "" };
        if part == 0 {
            return write!(f, "{sign}{whole}");
        }
        let part = format!("{part:012}");
        write!(f, "{sign}{whole}.{}", part.trim_end_matches('0'))
    }
}

impl Add for Decimal {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl Sum for Decimal {
    fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
        items.fold(Self::default(), Add::add)
    }
}

impl Serialize for Decimal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Decimal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_exactly() {
        for (text, shown) in
            [("0", "0"), ("0.1", "0.1"), ("12.3400", "12.34"), ("-0.000000000001", "-0.000000000001"), ("1.5000000000000", "1.5")]
        {
            assert_eq!(text.parse::<Decimal>().unwrap().to_string(), shown);
        }
        let tenth: Decimal = "0.1".parse().unwrap();
        assert_eq!((0..1_000_000).map(|_| tenth).sum::<Decimal>().to_string(), "100000");
        assert_eq!(Decimal::from_units(12_345, 4).to_string(), "1.2345");
    }

    #[test]
    fn refuses_what_is_not_exact() {
        for text in ["", ".", "1.", ".5", "1e3", "NaN", "1,5", "+1", "0.0000000000001", "--1", "9999999999999999999999999999999999999999"] {
            assert!(text.parse::<Decimal>().is_err(), "{text}");
        }
    }
}
