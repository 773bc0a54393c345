//! A span of time as admins write it: `130s`, `5m`, `1h30m`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration as StdDuration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A span of time, 1 ms to 24 h, as a string of numbers with the units `h`, `m`, `s`, `ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Duration(pub StdDuration);

/// Why a text is not a [`Duration`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a duration such as 130s, 5m or 1h30m, at most 24h")]
pub struct ParseDurationError(String);

const UNITS: [(&str, u64); 4] = [("ms", 1), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)];
const MAX_MS: u64 = 24 * 3_600_000;

impl Duration {
    /// A span of whole seconds.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(StdDuration::from_secs(seconds))
    }
}

impl FromStr for Duration {
    type Err = ParseDurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_ms(text)
            .filter(|ms| (1..=MAX_MS).contains(ms))
            .map(|ms| Self(StdDuration::from_millis(ms)))
            .ok_or_else(|| ParseDurationError(text.to_owned()))
    }
}

fn parse_ms(text: &str) -> Option<u64> {
    let mut rest = text;
    let mut total = 0u64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest[..digits].parse().ok()?;
        let (unit, factor) = UNITS.iter().find(|(unit, _)| rest[digits..].starts_with(unit))?;
        total = total.checked_add(number.checked_mul(*factor)?)?;
        rest = &rest[digits + unit.len()..];
    }
    Some(total)
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis();
        if ms.is_multiple_of(1000) { write!(f, "{}s", ms / 1000) } else { write!(f, "{ms}ms") }
    }
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Cow::<str>::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Duration {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "maxLength": 16,
            // The number of digits is bounded, or the conversion overflows and says so in its own words.
            "x-kubernetes-validations": [{
                "rule": "self.matches('^([0-9]{1,6}[hms]|[0-9]{1,8}ms)+$') && duration(self) >= duration('1ms') && duration(self) <= duration('24h')",
                "message": "must be a duration such as 130s, 5m or 1h30m, at least 1ms and at most 24h"
            }]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_in_the_units_admins_write() {
        for (text, seconds) in [("130s", 130), ("5m", 300), ("1h30m", 5400)] {
            assert_eq!(text.parse::<Duration>().unwrap(), Duration::from_secs(seconds), "{text}");
        }
        assert_eq!("300ms".parse::<Duration>().unwrap().to_string(), "300ms");
    }

    #[test]
    fn a_duration_without_unit_or_out_of_bounds_is_refused() {
        for text in ["", "130", "s", "1d", "0s", "25h", "-1s", "99999999999999999999s"] {
            assert!(text.parse::<Duration>().is_err(), "{text}");
        }
    }
}
