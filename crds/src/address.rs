//! Value types that cannot hold a bad value: CIDR, IP address, MAC address, interface name.
//!
//! Each is a string on the wire and carries its own schema, so that the API server refuses a bad
//! value with the field's path before a program sees it.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Why a value is not an address, CIDR or interface name; names the value and the form expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{value:?} is not {expected}")]
pub struct ParseError {
    value: String,
    expected: &'static str,
}

impl ParseError {
    fn new(value: &str, expected: &'static str) -> Self {
        Self { value: value.to_owned(), expected }
    }
}

/// A family of addresses, named as in the fields of Services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Family {
    /// IPv4.
    #[serde(rename = "IPv4")]
    V4,
    /// IPv6.
    #[serde(rename = "IPv6")]
    V6,
}

impl Family {
    /// Both, IPv4 first.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The family of a CIDR.
    pub fn of(cidr: Cidr) -> Self {
        Self::of_address(cidr.addr())
    }

    /// The family of an address.
    pub fn of_address(address: IpAddr) -> Self {
        if address.is_ipv6() { Self::V6 } else { Self::V4 }
    }

    /// Prefix length of a single address.
    pub fn bits(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

macro_rules! string_value {
    ($name:ident, $schema:expr) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = Cow::<str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                $schema
            }
        }
    };
}

/// An address with a prefix length: a range (`10.20.0.0/16`) or an interface address (`10.20.0.5/16`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cidr(pub IpNet);

impl Cidr {
    /// The address part.
    pub fn addr(&self) -> IpAddr {
        self.0.addr()
    }

    /// Whether this is an IPv6 CIDR.
    pub fn is_ipv6(&self) -> bool {
        matches!(self.0, IpNet::V6(_))
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Cidr {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse()
            .map(Self)
            .map_err(|_| ParseError::new(text, "a CIDR such as 10.20.0.0/16 or fd00:20::/64"))
    }
}

string_value!(
    Cidr,
    json_schema!({
        "type": "string",
        "maxLength": 43,
        "x-kubernetes-validations": [{
            "rule": "isCIDR(self)",
            "message": "must be a CIDR such as 10.20.0.0/16 or fd00:20::/64"
        }]
    })
);

/// An IP address of either family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ip(pub IpAddr);

impl fmt::Display for Ip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Ip {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse()
            .map(Self)
            .map_err(|_| ParseError::new(text, "an IP address such as 10.20.0.1 or fd00:20::1"))
    }
}

string_value!(
    Ip,
    json_schema!({
        "type": "string",
        "maxLength": 39,
        "x-kubernetes-validations": [{
            "rule": "isIP(self)",
            "message": "must be an IP address such as 10.20.0.1 or fd00:20::1"
        }]
    })
);

/// A 48-bit MAC address, lower-case on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let octets = self.0.map(|octet| format!("{octet:02x}"));
        f.write_str(&octets.join(":"))
    }
}

impl FromStr for Mac {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseError::new(text, "a MAC address such as 02:00:5e:10:00:01");
        let mut octets = [0; 6];
        let mut parts = text.split(':');
        for octet in &mut octets {
            let part = parts.next().filter(|part| part.len() == 2).ok_or_else(error)?;
            *octet = u8::from_str_radix(part, 16).map_err(|_| error())?;
        }
        if parts.next().is_some() { Err(error()) } else { Ok(Self(octets)) }
    }
}

string_value!(
    Mac,
    json_schema!({ "type": "string", "maxLength": 17, "pattern": "^([0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}$" })
);

/// A network interface's name: 1 to 15 printable ASCII characters, no space, `/`, `:` or `%`, and not `.`, `..`, `all` or `default`.
///
/// Linux' `dev_valid_name` allows every byte but white space, `/` and `:`. What this leaves out breaks elsewhere:
/// `%` is a template for the kernel, and of other bytes an API server counts characters where the kernel counts bytes.
/// The schema has the same rule: what the API server stores, every program can read.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IfName(String);

/// The kernel refuses these: the first two are folders, the others are what `/proc/sys/net` has for all interfaces.
const NOT_NAMES: [&str; 4] = [".", "..", "all", "default"];

impl IfName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for IfName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for IfName {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let good = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'/' | b':' | b'%');
        if !(1..=15).contains(&text.len()) || NOT_NAMES.contains(&text) || !text.bytes().all(good) {
            return Err(ParseError::new(
                text,
                "an interface name of 1 to 15 printable ASCII characters without space, '/', ':' or '%', other than all and default",
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

string_value!(
    IfName,
    json_schema!({
        "type": "string",
        "maxLength": 15,
        "x-kubernetes-validations": [{
            "rule": "self.matches('^[!-$&-.0-9;-~]+$') && !(self in ['.', '..', 'all', 'default'])",
            "message": "must be the name of an interface: 1 to 15 printable ASCII characters, no space, '/', ':' or '%', and not ., .., all or default"
        }]
    })
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_survive_a_round_trip_through_json() {
        for text in ["\"10.20.0.5/16\"", "\"fd00::1/64\""] {
            let cidr: Cidr = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&cidr).unwrap(), text);
        }
        assert_eq!("02:AA:00:00:00:01".parse::<Mac>().unwrap().to_string(), "02:aa:00:00:00:01");
    }

    #[test]
    fn bad_values_are_refused_with_the_value_and_the_form() {
        assert_eq!(
            "1.2.3.4/33".parse::<Cidr>().unwrap_err().to_string().split(" is not ").next(),
            Some("\"1.2.3.4/33\"")
        );
        for bad in ["02:00:00:00:00", "02:00:00:00:00:00:00", "0x:00:00:00:00:00", "2:0:0:0:0:0"] {
            assert!(bad.parse::<Mac>().is_err(), "{bad}");
        }
        for bad in ["", "..", "all", "a b", "a/b", "a:b", "net%d", "br\u{fc}cke", "sixteen-letters-"] {
            assert!(bad.parse::<IfName>().is_err(), "{bad}");
        }
        assert!("Net_1.20".parse::<IfName>().is_ok());
    }
}
