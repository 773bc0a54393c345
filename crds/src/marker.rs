//! The marker: what the agent writes into the alias of a pod's `lo` and the gate reads there.
//!
//! Owns the text form only. It must not read or write a link, and it decides nothing: whether a marker opens
//! a gate is the gate's business (uid *and* namespace cookie must be the gate's own).
//!
//! `fairlead/v1;state=ready;uid=<uid>;cookie=<decimal>;hash=<8 hex>` or
//! `fairlead/v1;state=waiting;uid=<uid>;reason=<text>`. Unknown keys are ignored, so later versions may add
//! some; an unknown version is not ours. In values `%`, `;` and control characters are percent-encoded.

use std::{
    fmt::{self, Write as _},
    str::FromStr,
};

/// Longest marker in bytes: the kernel's `IFALIASZ` (linux/if.h) less the terminating zero.
pub const MAX_LEN: usize = 255;

/// First field of every marker of this version.
pub const PREFIX: &str = "fairlead/v1";

/// Longest uid written, in bytes after escaping. A pod UID has 36; a longer one is cut, matches no pod, and
/// so keeps the gate closed.
const MAX_UID: usize = 128;

/// Bytes of the hash; one that is not eight hex digits is refused by the reader.
const HASH_LEN: usize = 8;

/// What the alias of `lo` says about the pod whose namespace it is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Marker {
    /// Every promised interface is up with its addresses.
    Ready {
        /// UID of the pod.
        uid: String,
        /// `SO_NETNS_COOKIE` of the namespace; a marker without one opens no gate.
        cookie: Option<u64>,
        /// Hash of what was attached: eight hex digits ([`crate::names::hash8`]).
        hash: String,
    },
    /// The pod has to wait.
    Waiting {
        /// UID of the pod.
        uid: String,
        /// Why, in one sentence; cut at the end when the marker would be longer than [`MAX_LEN`].
        reason: String,
    },
}

/// Why a text is not a marker.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MarkerError {
    /// Someone else's alias, or a version this code does not know.
    #[error("not a {PREFIX} marker")]
    NotOurs,
    /// Ours by its first field, but this key is missing, there twice, or has a bad value.
    #[error("bad or missing {0:?} in the marker")]
    Field(&'static str),
}

impl Marker {
    /// UID of the pod that the marker is about.
    pub fn uid(&self) -> &str {
        match self {
            Self::Ready { uid, .. } | Self::Waiting { uid, .. } => uid,
        }
    }
}

impl fmt::Display for Marker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let uid = escape(self.uid(), MAX_UID);
        match self {
            Self::Ready { cookie, hash, .. } => {
                write!(f, "{PREFIX};state=ready;uid={uid}")?;
                if let Some(cookie) = cookie {
                    write!(f, ";cookie={cookie}")?;
                }
                write!(f, ";hash={}", escape(hash, HASH_LEN))
            }
            Self::Waiting { reason, .. } => {
                let head = format!("{PREFIX};state=waiting;uid={uid};reason=");
                let reason = escape(reason, MAX_LEN - head.len());
                write!(f, "{head}{reason}")
            }
        }
    }
}

impl FromStr for Marker {
    type Err = MarkerError;

    fn from_str(text: &str) -> Result<Self, MarkerError> {
        let (version, rest) = text.split_once(';').ok_or(MarkerError::NotOurs)?;
        if version != PREFIX {
            return Err(MarkerError::NotOurs);
        }
        let uid = field(rest, "uid")?.filter(|uid| !uid.is_empty()).ok_or(MarkerError::Field("uid"))?;
        let uid = unescape(uid);
        match field(rest, "state")? {
            Some("ready") => Ok(Self::Ready {
                uid,
                cookie: field(rest, "cookie")?.map(parse_cookie).transpose()?,
                hash: field(rest, "hash")?.and_then(parse_hash).ok_or(MarkerError::Field("hash"))?,
            }),
            Some("waiting") => {
                Ok(Self::Waiting { uid, reason: unescape(field(rest, "reason")?.unwrap_or_default()) })
            }
            _ => Err(MarkerError::Field("state")),
        }
    }
}

/// The raw value of `key`; none if absent, an error if it is there twice.
fn field<'a>(fields: &'a str, key: &'static str) -> Result<Option<&'a str>, MarkerError> {
    let mut values =
        fields.split(';').filter_map(|f| f.split_once('=')).filter(|(k, _)| *k == key).map(|(_, v)| v);
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        _ => Err(MarkerError::Field(key)),
    }
}

fn parse_cookie(text: &str) -> Result<u64, MarkerError> {
    digits(text, 10).and_then(|text| text.parse().ok()).ok_or(MarkerError::Field("cookie"))
}

fn parse_hash(text: &str) -> Option<String> {
    digits(text, 16).filter(|text| text.len() == HASH_LEN).map(str::to_owned)
}

/// Only digits: the standard parsers also take a leading `+`.
fn digits(text: &str, radix: u32) -> Option<&str> {
    text.chars().all(|c| c.is_digit(radix)).then_some(text)
}

/// As much of `text` as fits into `room` bytes, whole characters and whole escapes only.
fn escape(text: &str, room: usize) -> String {
    let mut out = String::new();
    for c in text.chars() {
        let before = out.len();
        if c == '%' || c == ';' || c.is_control() {
            for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                // Writing to a String cannot fail.
                write!(out, "%{byte:02X}").ok();
            }
        } else {
            out.push(c);
        }
        if out.len() > room {
            out.truncate(before);
            break;
        }
    }
    out
}

/// Undoes [`escape`]; what is no escape stays as it is.
fn unescape(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        if let Some(byte) = escaped_byte(rest) {
            out.push(byte);
            rest = &rest[3..];
        } else {
            out.push(*first);
            rest = tail;
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn escaped_byte(bytes: &[u8]) -> Option<u8> {
    let [b'%', high, low, ..] = bytes else { return None };
    let digit = |b: &u8| char::from(*b).to_digit(16).and_then(|d| u8::try_from(d).ok());
    Some(digit(high)? * 16 + digit(low)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UID: &str = "5f0c2d6e-6a0b-4c56-8f0e-0d6b3b1e9a11";
    const HASH: &str = "0000beef";

    fn waiting(reason: &str) -> Marker {
        Marker::Waiting { uid: UID.into(), reason: reason.into() }
    }

    #[test]
    fn a_ready_marker_reads_as_documented() {
        let marker = Marker::Ready { uid: UID.into(), cookie: Some(4097), hash: HASH.into() };
        assert_eq!(
            marker.to_string(),
            format!("fairlead/v1;state=ready;uid={UID};cookie=4097;hash=0000beef")
        );
    }

    #[test]
    fn a_reason_stays_readable_and_on_one_line() {
        let text = waiting("no address left; 100% of \"blue\"\nis used").to_string();
        assert_eq!(
            text,
            format!(
                "fairlead/v1;state=waiting;uid={UID};reason=no address left%3B 100%25 of \"blue\"%0Ais used"
            )
        );
    }

    #[test]
    fn a_long_reason_is_cut_at_the_end() {
        let text = waiting(&"ä".repeat(300)).to_string();
        assert!((MAX_LEN - 1..=MAX_LEN).contains(&text.len()), "{} bytes", text.len());
        let Ok(Marker::Waiting { reason, .. }) = text.parse() else { panic!("{text}") };
        assert!(reason.chars().all(|c| c == 'ä'));
    }

    #[test]
    fn unknown_keys_are_ignored() {
        let text = format!("fairlead/v1;colour=red;hash=0000beef;later;uid={UID};state=ready;cookie=7");
        assert_eq!(text.parse(), Ok(Marker::Ready { uid: UID.into(), cookie: Some(7), hash: HASH.into() }));
    }

    #[test]
    fn an_unknown_version_or_another_alias_is_not_ours() {
        for text in
            ["", "fairlead/v1", "fairlead/v2;state=ready;uid=a;hash=0000beef", "uplink to rack 7", "; ;"]
        {
            assert_eq!(text.parse::<Marker>(), Err(MarkerError::NotOurs), "{text:?}");
        }
    }

    #[test]
    fn a_ready_marker_without_a_cookie_keeps_that_fact() {
        let text = format!("fairlead/v1;state=ready;uid={UID};hash=0000beef");
        assert_eq!(text.parse(), Ok(Marker::Ready { uid: UID.into(), cookie: None, hash: HASH.into() }));
    }

    #[test]
    fn a_damaged_marker_names_the_field() {
        for (fields, field) in [
            ("state=ready;uid=a;cookie=1", "hash"),
            ("state=ready;uid=a;cookie=1;hash=beef", "hash"),
            ("state=ready;uid=a;cookie=1;hash=+000beef", "hash"),
            ("state=ready;uid=a;cookie=;hash=0000beef", "cookie"),
            ("state=ready;uid=a;cookie=+1;hash=0000beef", "cookie"),
            ("state=ready;uid=a;cookie=18446744073709551616;hash=0000beef", "cookie"),
            ("state=ready;uid=a;cookie=1;cookie=2;hash=0000beef", "cookie"),
            ("state=ready;uid=;cookie=1;hash=0000beef", "uid"),
            ("state=ready;cookie=1;hash=0000beef", "uid"),
            ("state=ready;uid=a;uid=b;cookie=1;hash=0000beef", "uid"),
            ("state=open;uid=a", "state"),
            ("uid=a", "state"),
        ] {
            let text = format!("{PREFIX};{fields}");
            assert_eq!(text.parse::<Marker>(), Err(MarkerError::Field(field)), "{text}");
        }
    }

    #[test]
    fn a_percent_sign_that_escapes_nothing_stays() {
        assert_eq!(unescape("100% of 5%zz %4"), "100% of 5%zz %4");
    }

    #[test]
    fn a_reason_cannot_forge_a_ready_marker() {
        let Ok(Marker::Waiting { .. }) = waiting("x;state=ready;hash=0000beef").to_string().parse() else {
            panic!("the reason got out of its field")
        };
    }

    proptest! {
        #[test]
        fn what_is_written_ready_is_read_back(uid in "[A-Za-z0-9;%\n-]{1,40}", cookie: Option<u64>, hash in "[0-9a-f]{8}") {
            let marker = Marker::Ready { uid, cookie, hash };
            let text = marker.to_string();
            prop_assert!(text.len() <= MAX_LEN);
            prop_assert_eq!(text.parse(), Ok(marker));
        }

        #[test]
        fn what_is_written_waiting_is_read_back_or_cut_short(reason: String, repeat in 0usize..20) {
            let reason = reason.repeat(repeat);
            let text = waiting(&reason).to_string();
            prop_assert!(text.len() <= MAX_LEN);
            prop_assert!(!text.chars().any(char::is_control));
            let Ok(Marker::Waiting { uid, reason: read }) = text.parse() else { panic!("{text}") };
            prop_assert_eq!(uid, UID);
            prop_assert!(reason.starts_with(&read));
            // Cut only for want of room: one more character takes at most 12 bytes (four escaped bytes).
            prop_assert!(read == reason || text.len() + 12 > MAX_LEN);
        }

        #[test]
        fn no_text_makes_the_parser_fail_other_than_by_an_error(text: String, ours: bool) {
            let text = if ours { format!("{PREFIX};state=ready;{text}") } else { text };
            if let Ok(marker) = text.parse::<Marker>() {
                prop_assert!(marker.to_string().len() <= MAX_LEN);
            }
        }

        #[test]
        fn any_uid_however_long_gives_a_marker_that_fits(uid: String, repeat in 0usize..50) {
            let uid = uid.repeat(repeat);
            let ready = Marker::Ready { uid: uid.clone(), cookie: Some(u64::MAX), hash: uid.clone() };
            prop_assert!(ready.to_string().len() <= MAX_LEN);
            let waiting = Marker::Waiting { uid, reason: String::new() };
            prop_assert!(waiting.to_string().len() <= MAX_LEN);
        }
    }
}
