//! Whether bytes are a JSON text (RFC 8259), in one pass that allocates nothing.

/// Nesting beyond which a text is refused. Ingest takes 64: what it took is never refused here.
const DEPTH_MAX: u32 = 128;

/// Says whether `bytes` are one JSON value, nested at most 128 deep. Texts must be UTF-8; lone surrogates in escapes are let through.
pub fn is_json(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok() && Scanner { bytes, at: 0 }.document().is_some()
}

struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Scanner<'_> {
    fn document(&mut self) -> Option<()> {
        // Bit k: whether the container at depth k is an object.
        let (mut objects, mut depth) = (0_u128, 0_u32);
        loop {
            let opened = self.value_start()?;
            if let Some(object) = opened {
                depth += 1;
                (depth <= DEPTH_MAX).then_some(())?;
                objects = objects << 1 | u128::from(object);
                let empty = self.peek()? == if object { b'}' } else { b']' };
                if !empty {
                    self.member(object)?;
                    continue;
                }
            }
            // After a value: close containers until one goes on.
            loop {
                if depth == 0 {
                    return (self.peek().is_none() && self.at == self.bytes.len()).then_some(());
                }
                let object = objects & 1 == 1;
                let next = self.peek()?;
                self.at += 1;
                if next == b',' {
                    self.member(object)?;
                    break;
                }
                (next == if object { b'}' } else { b']' }).then_some(())?;
                objects >>= 1;
                depth -= 1;
            }
        }
    }

    /// Passes over whitespace; the byte after it.
    fn peek(&mut self) -> Option<u8> {
        while let Some(byte) = self.bytes.get(self.at) {
            if !matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                return Some(*byte);
            }
            self.at += 1;
        }
        None
    }

    /// In an object, the name and colon before a value.
    fn member(&mut self, object: bool) -> Option<()> {
        if object {
            (self.peek()? == b'"').then_some(())?;
            self.string()?;
            (self.peek()? == b':').then_some(())?;
            self.at += 1;
        }
        Some(())
    }

    /// Passes over a scalar (`None` within), or opens a container (whether it is an object).
    fn value_start(&mut self) -> Option<Option<bool>> {
        match self.peek()? {
            b'{' => self.open(true),
            b'[' => self.open(false),
            b'"' => self.string().map(|()| None),
            b't' => self.word(b"true"),
            b'f' => self.word(b"false"),
            b'n' => self.word(b"null"),
            _ => self.number().map(|()| None),
        }
    }

    fn open(&mut self, object: bool) -> Option<Option<bool>> {
        self.at += 1;
        Some(Some(object))
    }

    fn word(&mut self, word: &[u8]) -> Option<Option<bool>> {
        self.bytes[self.at..].starts_with(word).then_some(())?;
        self.at += word.len();
        Some(None)
    }

    fn string(&mut self) -> Option<()> {
        self.at += 1;
        loop {
            let byte = *self.bytes.get(self.at)?;
            self.at += 1;
            match byte {
                b'"' => return Some(()),
                b'\\' => self.escape()?,
                0..0x20 => return None,
                _ => {}
            }
        }
    }

    fn escape(&mut self) -> Option<()> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        match byte {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(()),
            b'u' => {
                let digits = self.bytes.get(self.at..self.at + 4)?;
                self.at += 4;
                digits.iter().all(u8::is_ascii_hexdigit).then_some(())
            }
            _ => None,
        }
    }

    fn digits(&mut self) -> Option<()> {
        let start = self.at;
        while self.bytes.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
        (self.at > start).then_some(())
    }

    fn takes(&mut self, bytes: &[u8]) -> bool {
        let found = self.bytes.get(self.at).is_some_and(|byte| bytes.contains(byte));
        self.at += usize::from(found);
        found
    }

    fn number(&mut self) -> Option<()> {
        self.takes(b"-");
        if !self.takes(b"0") {
            self.digits()?;
        }
        if self.takes(b".") {
            self.digits()?;
        }
        if self.takes(b"eE") {
            self.takes(b"+-");
            self.digits()?;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::value::RawValue;

    fn reference(text: &[u8]) -> bool {
        std::str::from_utf8(text).is_ok_and(|text| serde_json::from_str::<&RawValue>(text).is_ok())
    }

    #[test]
    fn it_agrees_with_the_library_on_the_corners() {
        let texts = [
            "",
            " ",
            "1",
            "-",
            "-0",
            "01",
            "1.",
            ".5",
            "1e",
            "1e+",
            "1E-2",
            "0x1",
            "NaN",
            "Infinity",
            "+1",
            "\"\"",
            "\"\\u12\"",
            "\"\\u12aF\"",
            "\"\\x\"",
            "\"a\nb\"",
            "[]",
            "[1,]",
            "[,1]",
            "[1 2]",
            "{}",
            "{\"a\":1}",
            "{\"a\":1,}",
            "{a:1}",
            "{\"a\" 1}",
            "{\"a\":}",
            "[}",
            "{]",
            "[[]",
            "]",
            "true",
            "tru",
            "truee",
            "nulls",
            " [ { \"a\" : [ null , true ] } ] ",
            "{} {}",
            "[1],",
            "\"",
            "\"\\",
            "{\"a\":\"b\"}x",
        ];
        for text in texts {
            assert_eq!(is_json(text.as_bytes()), reference(text.as_bytes()), "{text:?}");
        }
        assert!(!is_json(b"\"\xff\""));
    }

    #[test]
    fn deep_nesting_is_refused_without_recursion() {
        let nested = |depth| "[".repeat(depth) + &"]".repeat(depth);
        assert!(is_json(nested(128).as_bytes()));
        assert!(!is_json(nested(129).as_bytes()));
        assert!(!is_json(nested(10_000).as_bytes()));
    }

    proptest! {
        #[test]
        fn it_agrees_with_the_library(text in r#"[\[\]{},:"0-9a\\\-.etrufalsn ]{0,12}"#) {
            prop_assert_eq!(is_json(text.as_bytes()), reference(text.as_bytes()));
        }

        #[test]
        fn it_takes_all_json(text in r#"(\{"a":(-?[0-9]|"[a-z]*"|\[(1|\{\})(,true)*\])(,"b":null)*\})"#, cut in 0_usize..40) {
            prop_assert!(is_json(text.as_bytes()) || !reference(text.as_bytes()));
            let cut = &text.as_bytes()[..cut.min(text.len())];
            prop_assert_eq!(is_json(cut), reference(cut));
        }
    }
}
