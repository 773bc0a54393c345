//! The rules of the kinds that programs write.

use serde_json::{Value, json};

use super::row::{Row, rule, set};

/// The rules of an IPBlock. Its name depends on the rest, so each example sets both.
pub fn ip_block(space: &str) -> Vec<Row> {
    let claim = |space: &str, cidr: &str, name: &str| {
        [set("/spec/space", space), set("/spec/cidr", cidr), set("/metadata/name", name)]
    };
    let v6 = "must be <space>-<the address as 32 hexadecimal digits>-<prefix length>: the name of a block is the claim";
    let v4 = "must be lab-10-20-0-16-28: the name of a block is the claim";
    vec![
        rule("the name of an IPv4 block is its claim")
            .accepts(claim("lab", "10.20.0.16/28", "lab-10-20-0-16-28"))
            .accepts(claim("a-1", "10.20.0.1/32", "a-1-10-20-0-1-32"))
            .refuses(claim("lab", "10.20.0.16/28", "lab-10-20-0-32-28"), "metadata.name", v4)
            .refuses(claim("lab", "10.20.0.16/28", "lab-10-20-0-16-29"), "metadata.name", v4)
            .refuses(claim("lab", "10.20.0.16/28", "other-10-20-0-16-28"), "metadata.name", v4),
        rule("the name of an IPv6 block is its claim")
            .accepts(claim("lab", "fd00:20::10/124", "lab-fd000020000000000000000000000010-124"))
            .accepts(claim("a-1", "fd00:20::1/128", "a-1-fd000020000000000000000000000001-128"))
            .refuses(
                claim("lab", "fd00:20::10/124", "lab-fd000020000000000000000000000020-124"),
                "metadata.name",
                v6,
            )
            .refuses(
                claim("lab", "fd00:20::10/124", "lab-fd000020000000000000000000000010-123"),
                "metadata.name",
                v6,
            )
            .refuses(
                claim("lab", "fd00:20::10/124", "lab-fd00002000000000000000000000001-124"),
                "metadata.name",
                v6,
            )
            .refuses(
                claim("lab", "fd00:20::10/124", "other-fd000020000000000000000000000010-124"),
                "metadata.name",
                v6,
            )
            .refuses(claim("lab", "fd00:20::10/124", "x"), "metadata.name", v6),
        rule("a block is a network address")
            .accepts(claim("lab", "10.20.0.0/24", "lab-10-20-0-0-24"))
            .refuses(
                claim("lab", "10.20.0.1/24", "lab-10-20-0-1-24"),
                "spec.cidr",
                "must be a network address",
            )
            .refuses(
                claim("lab", "FD00:20::/124", "lab-fd000020000000000000000000000000-124"),
                "spec.cidr",
                "must be a network address in its shortest form, such as 10.20.0.0/16 or fd00:20::/64",
            ),
        rule("only a reserved address can be nobody's")
            .accepts([single(), name(space), claimed(), set("/spec/nodeName", "")])
            .refuses(
                [set("/spec/nodeName", "")],
                "spec.nodeName",
                "must name the node: only a reserved address can be without one",
            ),
        rule("a holder is that of a reserved address")
            .accepts([single(), name(space), claimed(), held("2", 1)])
            .refuses([held("2", 1)], "spec.holder", "only a reserved address has a holder")
            .refuses(
                [single(), name(space), claimed()],
                "spec.holder",
                "a reserved address that a node owns has a holder",
            ),
        rule("a reserved address is a block of its own")
            .accepts([single(), name(space), claimed(), held("2", 1)])
            .refuses(
                [claimed(), held("2", 1)],
                "spec.cidr",
                "a reserved address is a block of its own: /32, or /128 for IPv6",
            ),
    ]
}

/// A reserved address that nobody has held yet.
pub fn reserved(space: &str) -> [Value; 4] {
    [single(), name(space), claimed(), set("/spec/nodeName", "")]
}

fn name(space: &str) -> Value {
    set("/metadata/name", format!("{space}-10-20-0-7-32"))
}

fn single() -> Value {
    set("/spec/cidr", "10.20.0.7/32")
}

fn claimed() -> Value {
    set("/spec/claim", json!({ "pod": "default/web-0" }))
}

/// Gives a turn to a pod.
pub fn held(pod_uid: &str, turn: i64) -> Value {
    set("/spec/holder", json!({ "podUID": pod_uid, "turn": turn }))
}

/// The rules of Admission.
pub fn admission() -> Vec<Row> {
    vec![rule("there is one Admission").accepts([]).refuses(
        [set("/metadata/name", "other")],
        "metadata.name",
        "must be default: there is one Admission",
    )]
}
