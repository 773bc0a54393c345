//! What the node's kernel forgets of an address that is free again.

use std::net::UdpSocket;
use std::process::Command;

use fairlead_agent::net::Net;
use fairlead_crds::IfName;

use crate::world::{ip, kernel, on_a_node, wanted_bridge};

fn blue() -> IfName {
    "br-blue".parse().unwrap()
}

#[test]
fn a_neighbour_is_forgotten_unless_it_was_put_down_for_good() {
    on_a_node(|| {
        let kernel = kernel(&[]);
        kernel.ensure_bridge(&wanted_bridge("br-blue")).unwrap();
        ip("addr add 10.20.0.254/24 dev br-blue");
        for (address, state) in
            [("10.20.0.5", "reachable"), ("10.20.0.6", "permanent"), ("10.20.0.7", "reachable")]
        {
            ip(&format!("neigh add {address} lladdr 02:00:00:00:00:01 dev br-blue nud {state}"));
        }
        for address in ["10.20.0.5", "10.20.0.6", "10.20.0.99", "fd00:20::99"] {
            kernel.forget(&[(blue(), address.parse().unwrap())]).unwrap();
        }
        let left = ip("neigh show dev br-blue");
        assert!(!left.contains("10.20.0.5"), "{left}");
        assert!(left.contains("10.20.0.6") && left.contains("10.20.0.7"), "others stay: {left}");
        kernel.forget(&[("br-gone".parse().unwrap(), "10.20.0.7".parse().unwrap())]).unwrap();
    });
}

/// Connections of this node's namespace, from and to itself, which is enough to be tracked.
fn connect(address: &str) {
    let family = if address.contains(':') { "-6" } else { "-4" };
    let arguments = ["ping", family, "-c", "1", "-W", "1", address];
    assert!(Command::new("busybox").args(arguments).output().expect("busybox").status.success(), "{address}");
}

fn tracked() -> String {
    std::fs::read_to_string("/proc/thread-self/net/nf_conntrack").unwrap_or_default()
}

#[test]
fn connections_are_forgotten_in_either_direction_and_others_stay() {
    on_a_node(|| {
        let kernel = kernel(&[]);
        kernel.ensure_bridge(&wanted_bridge("br-blue")).unwrap();
        for address in ["10.20.0.5/32", "10.20.0.6/32", "fd00:20::5/128", "fd00:20::6/128"] {
            ip(&format!("addr add {address} dev lo"));
        }
        let rules = "add table inet t; add chain inet t c { type filter hook output priority 0; }; add rule inet t c ct state new counter";
        let nft = Command::new("nft").arg(rules).output().expect("nft (Debian: nftables)");
        assert!(nft.status.success(), "{}", String::from_utf8_lossy(&nft.stderr));
        kernel.forget(&[(blue(), "10.20.0.5".parse().unwrap())]).unwrap();
        let all = ["10.20.0.5", "10.20.0.6", "fd00:20::5", "fd00:20::6"];
        all.iter().for_each(|address| connect(address));
        let full = |address: &str| match address.parse::<std::net::IpAddr>().unwrap() {
            std::net::IpAddr::V4(address) => format!("={address} "),
            std::net::IpAddr::V6(address) => {
                let groups = address.segments().map(|segment| format!("{segment:04x}"));
                format!("={} ", groups.join(":"))
            }
        };
        assert!(all.iter().all(|address| tracked().contains(&full(address))), "{}", tracked());
        let free = ["10.20.0.5", "10.20.0.7", "fd00:20::5", "fd00:20::7"];
        kernel.forget(&free.map(|address| (blue(), address.parse().unwrap()))).unwrap();
        for address in ["10.20.0.5", "fd00:20::5"] {
            assert!(!tracked().contains(&full(address)), "{address}: {}", tracked());
        }
        let stay = |all: &[&str]| {
            all.iter()
                .for_each(|address| assert!(tracked().contains(&full(address)), "{address}: {}", tracked()));
        };
        stay(&["10.20.0.6", "fd00:20::6"]);
        // So many that the kernel is asked for those of an address only.
        let socket = UdpSocket::bind("10.20.0.6:0").unwrap();
        for port in 1..=9000 {
            // Refused where the answer to one before has arrived.
            socket.send_to(b"x", ("10.20.0.6", port)).ok();
        }
        connect("10.20.0.5");
        stay(&["10.20.0.5"]);
        kernel.forget(&[(blue(), "10.20.0.5".parse().unwrap())]).unwrap();
        let left = tracked();
        assert!(
            left.lines().count() > 8192,
            "{} connections are too few for this test",
            left.lines().count()
        );
        assert!(!left.contains(&full("10.20.0.5")), "it was not forgotten");
        stay(&["10.20.0.6", "fd00:20::6"]);
    });
}
