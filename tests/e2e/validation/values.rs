//! Rules that stand wherever a certain kind of value does, tried at every one of those places.

use fairlead_crds::{IfName, duration::Duration};
use serde_json::{Value, json};

/// The beginning of a message, and values that it is said of.
pub fn value_rules() -> Vec<(&'static str, Vec<Value>)> {
    let requirement =
        |operator: &str, values: Value| json!({ "key": "a", "operator": operator, "values": values });
    vec![
        (
            "must be a CIDR such as",
            strings(&["10.0.0.0", "10.0.0.0/33", "10.0.0.0/08", "blue", "::ffff:10.0.0.0/120"]),
        ),
        (
            "must be an IP address such as",
            strings(&["10.0.0", "10.0.0.0/8", "010.0.0.1", "fd00::g", "fe80::1%eth0"]),
        ),
        (
            "must be the name of an interface",
            strings(&["", "a b", "a/b", "a:b", "net%d", ".", "..", "all", "default", "br\u{fc}cke"]),
        ),
        (
            "must be a duration such as",
            strings(&["", "130", "s", "1d", "-1s", "1.5s", "0s", "25h", "999999999999999s"]),
        ),
        ("must be a label's key", strings(&["a b", "a/b/c", "-a"])),
        ("has a key that no label can have", vec![json!({ "a b": "c" }), json!({ "": "c" })]),
        ("has a value that no label can have", vec![json!({ "a": "b c" }), json!({ "a": "-" })]),
        (
            "values is required with In and NotIn",
            vec![
                json!({ "key": "a", "operator": "In" }),
                requirement("NotIn", json!([])),
                requirement("Exists", json!(["b"])),
                requirement("DoesNotExist", json!(["b"])),
            ],
        ),
    ]
}

fn strings(values: &[&str]) -> Vec<Value> {
    values.iter().map(|value| json!(value)).collect()
}

/// Values at the edge of what a type allows, for one place of a Network.
pub struct Odd {
    /// The place.
    pub path: &'static str,
    /// Whether our programs can read the value, where nothing else decides whether the server accepts it.
    pub reads: Option<fn(&str) -> bool>,
    /// The values.
    pub texts: &'static [&'static str],
}

/// Values that somebody's parser may take, and another's not.
pub const ODD: [Odd; 4] = [
    Odd {
        path: "/spec/ipam/ranges/0/cidr",
        reads: None,
        texts: &[
            "10.0.0.0/8",
            "10.0.0.0/+8",
            "10.0.0.0/008",
            "10.0.0.0 /8",
            "010.0.0.0/8",
            "0x0a.0.0.0/8",
            "10/8",
            "10.0.0.0/8\n",
            "fd00::/64",
            "FD00::/64",
            "fd00:0::/64",
            "fd00::10.0.0.0/120",
            "fd00::%eth0/64",
            "[fd00::]/64",
            "::/64",
            "/8",
            "",
        ],
    },
    Odd {
        path: "/spec/ipam/ranges/0/gateway",
        reads: None,
        texts: &[
            "10.20.0.1",
            "10.20.0.01",
            "10.20.1",
            "::ffff:10.20.0.1",
            "10.20.0.1 ",
            "fd00::1",
            "fd00::0.0.0.1",
            "fd00::1%1",
            "FD00::1",
            "",
            "1",
            "0",
        ],
    },
    Odd {
        path: "/spec/attach/0/interface",
        reads: Some(|text| text.parse::<IfName>().is_ok()),
        texts: &[
            "net1",
            "Net-1.20_x",
            "a+b@c~#",
            "a\u{7f}",
            "a\u{1}",
            "a\u{b}",
            "a\u{a0}b",
            "\u{e9}",
            "\u{1f41f}",
            "a%",
            "-",
            "...",
            "sixteen-letters-",
            "fifteen-letters",
            "'\"\\",
            "a\tb",
            "",
        ],
    },
    Odd {
        path: "/spec/ipam/quarantine",
        reads: Some(|text| text.parse::<Duration>().is_ok()),
        texts: &[
            "130s",
            "1h30m",
            "30m1h",
            "24h",
            "24h1ms",
            "86400s",
            "86400000ms",
            "1ms",
            "0h1ms",
            "0s",
            "1m1m",
            "5",
            "5M",
            "1us",
            " 5s",
            "+5s",
            "1e3s",
            "999999h",
            "99999999ms",
            "999999h999999h",
            "\u{663}s",
            "",
        ],
    },
];
