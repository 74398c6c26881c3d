//! Quantities as a person types them.

/// A time in microseconds: `80ms`, `1.5s`, `200us`; a bare number is milliseconds.
pub fn duration_us(text: &str) -> Result<u64, String> {
    let micros = quantity(text, &[("us", 1.0), ("µs", 1.0), ("ms", 1e3), ("s", 1e6)], 1e3).filter(|micros| *micros <= 3.6e9);
    micros.map(|micros| micros as u64).ok_or_else(|| format!("{text:?} is not a time of at most an hour, such as 80ms"))
}

/// A share of 0 to 1: `1%`, or `0.01`.
pub fn share(text: &str) -> Result<f64, String> {
    let share = quantity(text, &[("%", 0.01)], 1.0).filter(|share| *share <= 1.0);
    share.ok_or_else(|| format!("{text:?} is not a share, such as 1% or 0.01"))
}

/// Bits a second: `100mbit`, `1gbit`, `64kbit`; `unlimited` is 0.
pub fn bits_a_second(text: &str) -> Result<u64, String> {
    if text == "unlimited" {
        return Ok(0);
    }
    let bits = quantity(text, &[("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9), ("bit", 1.0)], 1.0);
    bits.map(|bits| bits as u64).ok_or_else(|| format!("{text:?} is not a bandwidth, such as 100mbit"))
}

/// Bytes: `256KiB`, `1MiB`, `64kB`.
pub fn bytes(text: &str) -> Result<u64, String> {
    let bytes = quantity(text, &[("KiB", 1024.0), ("MiB", 1_048_576.0), ("kB", 1e3), ("MB", 1e6), ("B", 1.0)], 1.0);
    bytes.map(|bytes| bytes as u64).ok_or_else(|| format!("{text:?} is not a size, such as 256KiB"))
}

/// A number with the first unit that ends the text.
fn quantity(text: &str, units: &[(&str, f64)], bare: f64) -> Option<f64> {
    let unit = units.iter().find_map(|(unit, factor)| text.strip_suffix(unit).map(|number| (number, *factor)));
    let (number, factor) = unit.unwrap_or((text, bare));
    let number: f64 = number.trim().parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_as_typed() {
        assert_eq!(duration_us("80ms"), Ok(80_000));
        assert_eq!(duration_us("1.5s"), Ok(1_500_000));
        assert_eq!(duration_us("200us"), Ok(200));
        assert_eq!(duration_us("7"), Ok(7000));
        assert_eq!(share("1%"), Ok(0.01));
        assert_eq!(share("0.25"), Ok(0.25));
        assert_eq!(bits_a_second("100mbit"), Ok(100_000_000));
        assert_eq!(bits_a_second("unlimited"), Ok(0));
        assert_eq!(bytes("256KiB"), Ok(262_144));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "ms", "-1ms", "2h", "inf", "NaN"] {
            assert!(duration_us(text).is_err(), "{text}");
        }
        assert!(share("101%").is_err() && share("2").is_err() && bits_a_second("fast").is_err());
    }
}
