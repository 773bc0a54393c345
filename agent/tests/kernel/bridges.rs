//! Bridges and uplinks: whose they are, and what is refused.

use fairlead_agent::net::{Net, WantedBridge};
use fairlead_crds::Reason;

use crate::world::{Pod, attach, ip, kernel, on_a_node, wanted, wanted_bridge};

fn with_uplink(uplink: &str) -> WantedBridge {
    WantedBridge { uplink: Some(uplink.parse().unwrap()), ..wanted_bridge("br-blue") }
}

/// A device as a node's second interface, up.
fn add_device(name: &str) {
    ip(&format!("link add {name} type veth peer name {name}-far"));
    ip(&format!("link set {name} up"));
    ip(&format!("link set {name}-far up"));
    // To read a link makes the kernel act on its carrier; later it would do so in the middle of a test.
    ip(&format!("link show {name}"));
    ip(&format!("link show {name}-far"));
}

#[test]
fn a_bridge_of_ours_is_marked_up_and_not_part_of_the_node() {
    on_a_node(|| {
        let kernel = kernel(&[]);
        let wanted = WantedBridge { mtu: Some(1400), ..wanted_bridge("br-blue") };
        let ready = kernel.ensure_bridge(&wanted).unwrap();
        assert_eq!(ready.mtu, 1400);
        let link = ip("-d link show br-blue");
        for expected in [
            "mtu 1400",
            ",UP",
            "alias fairlead/v1;bridge",
            "group 26220",
            "stp_state 0",
            "mcast_snooping 0",
            "addrgenmode none",
        ] {
            assert!(link.contains(expected), "{expected}: {link}");
        }
        assert!(!ip("addr show br-blue").contains("inet6"));
        let read =
            |key: &str| std::fs::read_to_string(format!("/proc/sys/net/{key}")).expect(key).trim().to_owned();
        // /proc/sys/net follows the thread.
        for (key, expected) in [
            ("ipv6/conf/br-blue/disable_ipv6", "1"),
            ("ipv4/conf/br-blue/arp_ignore", "8"),
            ("ipv4/conf/br-blue/rp_filter", "1"),
            ("ipv4/conf/br-blue/forwarding", "0"),
        ] {
            assert_eq!(read(key), expected, "{key}");
        }
    });
}

#[test]
fn the_node_answers_no_pod_through_a_bridge_of_ours() {
    on_a_node(|| {
        ip("addr add 10.20.0.99/32 dev lo");
        let kernel = kernel(&[]);
        let bridge = kernel.ensure_bridge(&wanted_bridge("br-blue")).unwrap();
        let pod = Pod::new();
        attach(&kernel, &pod, &[wanted("u1", 1, bridge)]);
        attach(&kernel, &pod, &[wanted("u1", 1, bridge)]);
        assert!(!pod.pings("10.20.0.99"));
    });
}

#[test]
fn the_mac_of_a_bridge_survives_its_ports_and_its_deletion() {
    on_a_node(|| {
        let kernel = kernel(&[]);
        let mac = || ip("-o link show br-blue").split("link/ether ").nth(1).unwrap()[..17].to_owned();
        let bridge = kernel.ensure_bridge(&wanted_bridge("br-blue")).unwrap();
        let first = mac();
        attach(&kernel, &Pod::new(), &[wanted("u1", 1, bridge)]);
        assert_eq!(mac(), first);
        ip("link del br-blue");
        kernel.ensure_bridge(&wanted_bridge("br-blue")).unwrap();
        assert_eq!(mac(), first);
    });
}

#[test]
fn what_someone_changed_on_our_bridge_is_put_back() {
    on_a_node(|| {
        let kernel = kernel(&[]);
        let ready = kernel.ensure_bridge(&wanted_bridge("br-blue")).unwrap();
        for change in [
            "link set br-blue down",
            "link set br-blue mtu 1300",
            "link set br-blue address 02:00:00:00:00:01",
        ] {
            ip(change);
            assert_eq!(kernel.ensure_bridge(&wanted_bridge("br-blue")), Ok(ready), "{change}");
            let before = kernel.counters().change;
            assert_eq!(kernel.ensure_bridge(&wanted_bridge("br-blue")), Ok(ready));
            assert_eq!(kernel.counters().change, before, "{change}");
        }
    });
}

#[test]
fn a_link_that_someone_else_made_is_never_taken_for_ours() {
    on_a_node(|| {
        let kernel = kernel(&["*"]);
        ip("link add br-blue type bridge");
        let before = ip("-d link show br-blue");
        let problem = kernel.ensure_bridge(&wanted_bridge("br-blue")).unwrap_err();
        assert_eq!(problem.reason, Reason::BridgeNameTaken, "{problem}");
        kernel.remove_bridge("br-blue").unwrap();
        assert_eq!(ip("-d link show br-blue"), before);
        // Neither group nor alias alone makes it ours.
        ip("link set br-blue group 26220");
        assert!(kernel.ensure_bridge(&wanted_bridge("br-blue")).is_err());
        ip("link set br-blue group 0 alias fairlead/v1;bridge");
        assert!(kernel.ensure_bridge(&wanted_bridge("br-blue")).is_err());
        kernel.remove_bridge("br-blue").unwrap();
        ip("link show br-blue");
    });
}

#[test]
fn an_existing_bridge_gets_ports_and_nothing_else() {
    on_a_node(|| {
        let kernel = kernel(&[]);
        let existing = WantedBridge { create: false, ..wanted_bridge("br-blue") };
        assert_eq!(kernel.ensure_bridge(&existing).unwrap_err().reason, Reason::BridgeMissing);
        ip("link add br-blue type bridge");
        assert_eq!(kernel.ensure_bridge(&existing).unwrap_err().reason, Reason::BridgeMissing, "down");
        ip("link set br-blue up");
        let before = kernel.counters().change;
        let ready = kernel.ensure_bridge(&existing).unwrap();
        assert_eq!(kernel.counters().change, before);
        let (one, two) = (Pod::new(), Pod::new());
        attach(&kernel, &one, &[wanted("u1", 1, ready)]);
        attach(&kernel, &two, &[wanted("u2", 2, ready)]);
        assert_eq!(attach(&kernel, &one, &[wanted("u1", 1, ready)]), []);
        assert_eq!(attach(&kernel, &two, &[wanted("u2", 2, ready)]), []);
        assert!(one.pings("10.20.0.2"));
        kernel.remove_bridge("br-blue").unwrap();
        assert!(ip("link show master br-blue").contains("fl"), "still there, with its ports");
    });
}

#[test]
fn an_uplink_joins_the_pods_to_the_world_and_is_released_with_its_state() {
    on_a_node(|| {
        let kernel = kernel(&["up*"]);
        add_device("up1");
        let before = ip("link show up1");
        let ready = kernel.ensure_bridge(&with_uplink("up1")).unwrap();
        assert!(ip("link show up1").contains("master br-blue"));
        let changes = kernel.counters().change;
        assert_eq!(kernel.ensure_bridge(&with_uplink("up1")), Ok(ready));
        assert_eq!(kernel.counters().change, changes, "in place");

        let pod = Pod::new();
        attach(&kernel, &pod, &[wanted("u1", 1, ready)]);
        attach(&kernel, &pod, &[wanted("u1", 1, ready)]);
        ip("addr add 10.20.0.200/24 dev up1-far");
        assert!(pod.pings("10.20.0.200"), "through the uplink");

        let busy = kernel.remove_bridge("br-blue").unwrap_err().to_string();
        assert!(busy.contains("still has the ports fl"), "{busy}");
        let hosts: Vec<String> = kernel.host_links().unwrap().into_iter().map(|link| link.name).collect();
        kernel.delete_host_links(&hosts).unwrap();
        kernel.remove_bridge("br-blue").unwrap();
        assert_eq!(ip("link show up1"), before);
    });
}

#[test]
fn a_foreign_port_keeps_our_bridge_alive() {
    on_a_node(|| {
        let kernel = kernel(&["up*"]);
        add_device("up1");
        add_device("theirs");
        kernel.ensure_bridge(&with_uplink("up1")).unwrap();
        ip("link set theirs master br-blue");
        let error = kernel.remove_bridge("br-blue").unwrap_err().to_string();
        assert!(error.contains("theirs") && !error.contains("up1"), "{error}");
        assert!(ip("link show up1").contains("master br-blue"));
        ip("link set theirs nomaster");
        kernel.remove_bridge("br-blue").unwrap();
        assert!(!ip("link").contains("br-blue"));
    });
}

#[test]
fn uplinks_that_must_not_be_taken_are_refused_and_left_alone() {
    on_a_node(|| {
        let kernel = kernel(&["up*", "lo"]);
        for name in ["up1", "wan1"] {
            add_device(name);
        }
        let refused = |uplink: &str, why: &str| {
            let state =
                || ["up1", "up1-far", "wan1", "wan1-far"].map(|name| ip(&format!("link show {name}")));
            let before = state();
            let problem = kernel.ensure_bridge(&with_uplink(uplink)).unwrap_err();
            assert_eq!(state(), before, "{why}");
            problem.reason
        };
        assert_eq!(refused("wan1", "not in --devices"), Reason::DeviceNotAllowed);
        assert_eq!(refused("lo", "loopback"), Reason::DeviceNotAllowed);
        assert_eq!(refused("up9", "missing"), Reason::ParentMissing);

        ip("addr add 192.0.2.1/24 dev up1");
        assert_eq!(refused("up1", "has an IPv4 address"), Reason::ParentBusy);
        ip("addr flush dev up1");
        ip("addr add 2001:db8::1/64 dev up1");
        assert_eq!(refused("up1", "has an IPv6 address"), Reason::ParentBusy);
        ip("addr flush dev up1");
        ip("route add default dev up1");
        assert_eq!(refused("up1", "has the default route"), Reason::ParentBusy);
        ip("route del default dev up1");

        ip("link add other type bridge");
        ip("link set up1 master other");
        assert_eq!(refused("up1", "port of another bridge"), Reason::ParentBusy);
        ip("link set up1 nomaster");

        // In another namespace, where the agent cannot see it.
        let pod = Pod::new();
        ip("link add link up1 name mv1 type macvlan mode bridge");
        in_another_namespace(&pod, "mv1");
        assert_eq!(refused("up1", "macvlan in a pod"), Reason::ParentBusy);
        pod.ip("link del mv1");

        let large = WantedBridge { mtu: Some(9000), ..with_uplink("up1") };
        assert_eq!(kernel.ensure_bridge(&large).unwrap_err().reason, Reason::MtuTooLarge);
        ip("link set up1 down");
        assert_eq!(refused("up1", "down"), Reason::ParentDown);
        ip("link set up1 up");
        kernel.ensure_bridge(&with_uplink("up1")).unwrap();
    });
}

/// `ip` knows namespaces by process: one that sleeps in the pod's.
fn in_another_namespace(pod: &Pod, link: &str) {
    let mut process = pod.run(|| std::process::Command::new("sleep").arg("60").spawn().unwrap());
    ip(&format!("link set {link} netns {}", process.id()));
    process.kill().unwrap();
    process.wait().unwrap();
}

#[test]
fn a_bridge_that_was_made_half_is_completed() {
    on_a_node(|| {
        let kernel = kernel(&[]);
        kernel.ensure_bridge(&wanted_bridge("br-blue")).unwrap();
        // As after a crash between the two messages that make it.
        std::fs::write("/proc/sys/net/ipv6/conf/br-blue/disable_ipv6", "0").unwrap();
        ip("link set br-blue down");
        std::process::Command::new("ip").args(["link", "set", "br-blue", "alias", ""]).status().unwrap();
        kernel.ensure_bridge(&wanted_bridge("br-blue")).unwrap();
        let link = ip("-d link show br-blue");
        assert!(link.contains("alias fairlead/v1;bridge") && link.contains(",UP"), "{link}");
    });
}
