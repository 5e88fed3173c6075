//! A GUID as the configuration and the output have it. Principal type: [`Guid`].

use std::fmt;

use serde::{Deserialize, Deserializer};

/// A 64-bit globally (or locally) administered identifier, never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Guid(pub u64);

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d] = [48, 32, 16, 0].map(|shift| (self.0 >> shift) & 0xffff);
        write!(f, "{a:04x}:{b:04x}:{c:04x}:{d:04x}")
    }
}

impl std::str::FromStr for Guid {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.strip_prefix("0x").unwrap_or(text).replace(':', "");
        let complaint = || format!("{text:?} is not a GUID; write 16 hex digits, such as 0002:c903:0000:1234");
        if digits.len() != 16 || !digits.chars().all(|c| c.is_ascii_hexdigit()) {
            return Err(complaint());
        }
        match u64::from_str_radix(&digits, 16) {
            Ok(0) => Err("a GUID of zero means `none`; write another one".into()),
            Ok(value) => Ok(Self(value)),
            Err(_) => Err(complaint()),
        }
    }
}

impl<'de> Deserialize<'de> for Guid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guid_is_read_in_both_spellings_and_printed_in_one() {
        for text in ["0002:c903:0000:1234", "0x0002c90300001234", "0002c90300001234"] {
            assert_eq!(text.parse::<Guid>().expect(text).to_string(), "0002:c903:0000:1234");
        }
    }
}
