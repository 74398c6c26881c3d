//! What may be summed. The rule keeps every sum exact in decimals of 20 digits before and 18 after the point: a JSON string
//! that holds a plain decimal, or a JSON number that every reader, also one with binary floating point, takes for the same
//! decimal.

/// Digits before the point.
pub const INTEGER_DIGITS_MAX: usize = 20;
/// Digits after the point.
pub const FRACTION_DIGITS_MAX: usize = 18;
/// Significant digits of a JSON number: any decimal of 15 digits survives a double (IEEE 754-2019, section 5.12.2).
pub const NUMBER_DIGITS_MAX: usize = 15;

/// Says whether a JSON value can be summed exactly. `json` is its text.
///
/// # Errors
/// What is wrong with it, and what would be right.
pub fn check_amount(json: &str) -> Result<(), String> {
    if json.starts_with('"') {
        let text: String = serde_json::from_str(json).map_err(|_| "is not text".to_owned())?;
        return check_decimal(&text);
    }
    if !json.starts_with(|first: char| first == '-' || first.is_ascii_digit()) {
        return Err("must be a decimal: a string like \"12.50\", or a number without exponent".into());
    }
    check_decimal(json)?;
    let digits = json.bytes().filter(u8::is_ascii_digit).skip_while(|digit| *digit == b'0').count();
    if digits > NUMBER_DIGITS_MAX {
        return Err(format!("is a number of {digits} significant digits, at most {NUMBER_DIGITS_MAX} are exact: write it as a string"));
    }
    Ok(())
}

/// A plain decimal: an optional minus, digits without leading zeros, and a point with digits if there is a fraction.
fn check_decimal(text: &str) -> Result<(), String> {
    let (integer, fraction) = match text.strip_prefix('-').unwrap_or(text).split_once('.') {
        Some((integer, fraction)) => (integer, Some(fraction)),
        None => (text.strip_prefix('-').unwrap_or(text), None),
    };
    let is_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !is_digits(integer) || !fraction.is_none_or(is_digits) || (integer.len() > 1 && integer.starts_with('0')) {
        return Err(format!("{text:?} is not a plain decimal like \"12.50\" (no exponent, no leading zeros, a point before the fraction)"));
    }
    if integer.len() > INTEGER_DIGITS_MAX {
        return Err(format!("has {} digits before the point, at most {INTEGER_DIGITS_MAX} are allowed", integer.len()));
    }
    match fraction.map_or(0, str::len) {
        0..=FRACTION_DIGITS_MAX => Ok(()),
        digits => Err(format!("has {digits} digits after the point, at most {FRACTION_DIGITS_MAX} are allowed")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(json: &str, right: bool) {
        assert_eq!(check_amount(json).is_ok(), right, "{json}: {:?}", check_amount(json));
    }

    #[test]
    fn plain_decimals_in_strings_are_right() {
        for text in ["0", "-0", "7", "12.50", "-12.50", "0.1", "99999999999999999999.999999999999999999", "0.000000000000000001"] {
            check(&format!("\"{text}\""), true);
        }
        check(r#""1\u0030""#, true);
    }

    #[test]
    fn anything_else_in_a_string_is_wrong() {
        let long_fraction = format!("0.{}", "1".repeat(19));
        let long_integer = "1".repeat(21);
        for text in [
            "",
            "-",
            ".",
            "1.",
            ".5",
            "+1",
            "1e3",
            "1E3",
            "1,5",
            "1 ",
            " 1",
            "0x10",
            "NaN",
            "Infinity",
            "-Infinity",
            "007",
            "--1",
            "1.2.3",
            "١",
            &long_fraction,
            &long_integer,
        ] {
            check(&format!("\"{text}\""), false);
        }
    }

    #[test]
    fn numbers_are_right_while_a_double_is_exact() {
        for json in ["0", "-0", "1", "0.1", "-12.50", "123456789012345", "0.000000000000001", "1234567890.12345", "0.000000000000000001"] {
            check(json, true);
        }
        for json in ["1e3", "1E-3", "1234567890123456", "0.1234567890123456", "100000000000000.01", "0.0000000000000000001"] {
            check(json, false);
        }
    }

    #[test]
    fn other_json_is_wrong() {
        for json in ["null", "true", "{}", "[1]", "\"\\ud800\""] {
            check(json, false);
        }
    }
}
