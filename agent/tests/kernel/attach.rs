//! Pairs: how they are born, repaired and cut.

use fairlead_agent::net::Net;
use fairlead_agent::plan::{self, Conflict, Step, WantedInterface};
use fairlead_crds::marker::MAX_LEN;
use fairlead_crds::names;

use crate::world::{Pod, attach, in_session, ip, kernel, on_a_node, open, places, wanted, wanted_bridge};

#[test]
fn addresses_are_usable_at_once_in_both_families() {
    on_a_node(|| {
        let kernel = kernel(&[]);
        let bridge = kernel.ensure_bridge(&wanted_bridge("br-blue")).unwrap();
        let (one, two) = (Pod::new(), Pod::new());
        let wanted = [wanted("u1", 1, bridge), wanted("u2", 2, bridge)];
        attach(&kernel, &one, &wanted[..1]);
        attach(&kernel, &two, &wanted[1..]);
        // The agent looks again before it lets the pod go on; that look waits for the kernel's carrier work.
        assert_eq!(attach(&kernel, &one, &wanted[..1]), []);
        assert_eq!(attach(&kernel, &two, &wanted[1..]), []);
        assert!(one.pings("10.20.0.2"), "IPv4");
        assert!(two.pings("fd00:20::1"), "IPv6");
    });
}

#[test]
fn a_pair_is_born_right() {
    on_a_node(|| {
        let kernel = kernel(&[]);
        let bridge = kernel.ensure_bridge(&wanted_bridge("br-blue")).unwrap();
        let pod = Pod::new();
        let wanted = WantedInterface { mtu: 1400, ..wanted("u1", 1, bridge) };
        attach(&kernel, &pod, std::slice::from_ref(&wanted));

        let link = pod.ip("-d link show net1");
        for expected in ["mtu 1400", "02:00:5e:10:00:01", ",UP,", &format!("group {}", names::LINK_GROUP)] {
            assert!(link.contains(expected), "{expected}: {link}");
        }
        let addresses = pod.ip("-d addr show net1");
        for expected in ["inet 10.20.0.1/24 brd 10.20.0.255", "inet6 fd00:20::1/64 scope global nodad"] {
            assert!(addresses.contains(expected), "{expected}: {addresses}");
        }
        assert!(!addresses.contains("tentative scope global"), "{addresses}");
        assert!(
            pod.ip("route").contains("10.99.0.0/16 via 10.20.0.254 dev net1 proto 241"),
            "{}",
            pod.ip("route")
        );

        let host = ip(&format!("-d link show {}", wanted.host));
        for expected in ["mtu 1400", "master br-blue", ",UP,", &format!("alias {}", wanted.alias)] {
            assert!(host.contains(expected), "{expected}: {host}");
        }
        assert!(
            !ip(&format!("addr show {}", wanted.host)).contains("inet6"),
            "no link-local address on the host end"
        );
    });
}

#[test]
fn a_second_pass_changes_nothing() {
    on_a_node(|| {
        let kernel = kernel(&[]);
        let bridge = kernel.ensure_bridge(&wanted_bridge("br-blue")).unwrap();
        let pod = Pod::new();
        let wanted = [wanted("u1", 1, bridge)];
        attach(&kernel, &pod, &wanted);
        let before = kernel.counters();
        assert_eq!(kernel.ensure_bridge(&wanted_bridge("br-blue")).unwrap(), bridge);
        assert_eq!(attach(&kernel, &pod, &wanted), []);
        let after = kernel.counters();
        assert_eq!((after.change, after.sysctl), (before.change, before.sysctl));
        assert!(after.observe > before.observe);
    });
}

#[test]
fn sysctls_are_set_in_the_pod() {
    on_a_node(|| {
        let kernel = kernel(&[]);
        let bridge = kernel.ensure_bridge(&wanted_bridge("br-blue")).unwrap();
        let pod = Pod::new();
        attach(&kernel, &pod, &[wanted("u1", 1, bridge)]);
        let read = |key: &str| {
            let path = format!("/proc/sys/net/{key}");
            pod.run(|| std::fs::read_to_string(&path).expect(&path)).trim().to_owned()
        };
        for (key, expected) in [
            ("ipv6/conf/net1/accept_ra", "0"),
            ("ipv6/conf/net1/disable_ipv6", "0"),
            ("ipv6/conf/net1/keep_addr_on_down", "1"),
            ("ipv4/conf/net1/arp_announce", "2"),
            ("ipv4/conf/net1/rp_filter", "2"),
        ] {
            assert_eq!(read(key), expected, "{key}");
        }

        let only4 = wanted("u4", 4, bridge);
        let only4 = WantedInterface {
            name: "net4".parse().unwrap(),
            addresses: vec![only4.addresses[0]],
            routes: vec![],
            ..only4
        };
        attach(&kernel, &pod, &[only4]);
        assert_eq!(read("ipv6/conf/net4/disable_ipv6"), "1");
    });
}

#[test]
fn the_old_pair_is_cut_when_a_new_sandbox_takes_its_name() {
    on_a_node(|| {
        let kernel = kernel(&[]);
        let bridge = kernel.ensure_bridge(&wanted_bridge("br-blue")).unwrap();
        let (old, new) = (Pod::new(), Pod::new());
        let wanted = [wanted("u1", 1, bridge)];
        attach(&kernel, &old, &wanted);
        let steps = attach(&kernel, &new, &wanted);
        assert!(matches!(steps[0], Step::DeleteHostLink { .. }), "{steps:?}");
        assert!(!old.ip("link").contains("net1"));
        assert!(new.ip("addr show net1").contains("10.20.0.1/24"));
        assert_eq!(kernel.host_links().unwrap().len(), 1);
    });
}

#[test]
fn links_of_others_are_a_conflict_and_never_touched() {
    on_a_node(|| {
        let kernel = kernel(&[]);
        let bridge = kernel.ensure_bridge(&wanted_bridge("br-blue")).unwrap();
        let pod = Pod::new();
        pod.ip("link add eth0 type veth peer name other");
        pod.ip("link add net1 type bridge");
        let before = pod.ip("-d link");
        let wanted = wanted("u1", 1, bridge);
        // The first open gives the namespace its id.
        open(&kernel, &pod.path).unwrap();
        let changes = kernel.counters().change;
        for name in ["net1", "eth0", "other"] {
            let wanted = WantedInterface { name: name.parse().unwrap(), ..wanted.clone() };
            let conflict = in_session(&kernel, &pod, |session| {
                let wanted = std::slice::from_ref(&wanted);
                plan::attach(wanted, &session.observe(&places(wanted)).unwrap())
            });
            assert_eq!(conflict, Err(Conflict::NameTaken(name.parse().unwrap())));
        }
        assert_eq!((kernel.counters().change, pod.ip("-d link")), (changes, before));
        let free = WantedInterface { name: "net2".parse().unwrap(), ..wanted };
        attach(&kernel, &pod, &[free]);
        assert!(pod.ip("addr show net2").contains("10.20.0.1/24"));
    });
}

#[test]
fn what_a_container_broke_is_repaired() {
    on_a_node(|| {
        let kernel = kernel(&[]);
        let bridge = kernel.ensure_bridge(&wanted_bridge("br-blue")).unwrap();
        let (pod, other) = (Pod::new(), Pod::new());
        let wanted = [wanted("u1", 1, bridge)];
        attach(&kernel, &pod, &wanted);
        for _ in 0..2 {
            attach(&kernel, &other, &[self::wanted("u2", 2, bridge)]);
        }
        let host = &wanted[0].host;
        for broken in [
            "link del net1",
            "link set net1 down",
            "link set net1 mtu 1300",
            "link set net1 address 02:11:11:11:11:11",
            "addr flush dev net1",
            "route flush proto 241",
            "-6 addr flush dev net1",
            "addr del 10.20.0.1/24 dev net1",
        ] {
            pod.ip(broken);
            assert_ne!(attach(&kernel, &pod, &wanted), [], "{broken}");
            assert_eq!(attach(&kernel, &pod, &wanted), [], "{broken}, second pass");
            assert!(pod.pings("10.20.0.2") && pod.pings("fd00:20::2"), "{broken}");
        }
        pod.ip("link set net1 down");
        pod.ip("link set net1 name wrong");
        assert_ne!(attach(&kernel, &pod, &wanted), []);
        assert_eq!(attach(&kernel, &pod, &wanted), [], "renamed, second pass");
        for broken in ["nomaster", "down", "mtu 1400", "alias x", "address 02:11:11:11:11:11"] {
            ip(&format!("link set {host} {broken}"));
            attach(&kernel, &pod, &wanted);
            assert_eq!(attach(&kernel, &pod, &wanted), [], "{broken}, second pass");
            assert!(pod.pings("10.20.0.2"), "{broken}");
        }
    });
}

#[test]
fn another_network_behind_the_same_name_moves_the_link() {
    on_a_node(|| {
        let kernel = kernel(&[]);
        let blue = kernel.ensure_bridge(&wanted_bridge("br-blue")).unwrap();
        let red = kernel.ensure_bridge(&wanted_bridge("br-red")).unwrap();
        let pod = Pod::new();
        let first = wanted("u1", 1, blue);
        attach(&kernel, &pod, std::slice::from_ref(&first));
        pod.ip("addr add 192.0.2.1/32 dev net1");
        let second = [WantedInterface {
            bridge: red.index,
            addresses: vec!["10.30.0.1/24".parse().unwrap(), "fd00:20::1/96".parse().unwrap()],
            routes: vec![fairlead_crds::network::Route {
                to: "10.99.0.0/16".parse().unwrap(),
                via: Some("10.30.0.254".parse().unwrap()),
            }],
            ..first
        }];
        attach(&kernel, &pod, &second);
        assert_eq!(attach(&kernel, &pod, &second), [], "second pass");
        let addresses = pod.ip("addr show net1");
        assert!(!addresses.contains("10.20.0.1"), "{addresses}");
        assert!(addresses.contains("fd00:20::1/96") && addresses.contains("192.0.2.1/32"), "{addresses}");
        assert!(pod.ip("route").contains("10.99.0.0/16 via 10.30.0.254"), "{}", pod.ip("route"));
        assert!(ip("link show master br-red").contains("fl"), "moved");
        assert_eq!(ip("link show master br-blue"), "");
    });
}

#[test]
fn ipv6_comes_to_a_link_that_had_none() {
    on_a_node(|| {
        let kernel = kernel(&[]);
        let bridge = kernel.ensure_bridge(&wanted_bridge("br-blue")).unwrap();
        let pod = Pod::new();
        let both = wanted("u1", 1, bridge);
        let only4 = WantedInterface { addresses: vec![both.addresses[0]], ..both.clone() };
        attach(&kernel, &pod, &[only4]);
        attach(&kernel, &pod, std::slice::from_ref(&both));
        assert_eq!(attach(&kernel, &pod, &[both]), [], "second pass");
        assert!(pod.ip("addr show net1").contains("fd00:20::1/64"));
    });
}

#[test]
fn the_marker_on_lo_has_room_for_its_longest_text() {
    on_a_node(|| {
        let kernel = kernel(&[]);
        let pod = Pod::new();
        for marker in ["m".repeat(MAX_LEN), "fairlead/v1;state=waiting;uid=u;reason=ä".to_owned()] {
            let observed = in_session(&kernel, &pod, |session| {
                let report = session.apply(&[Step::SetMarker { marker: marker.clone() }]);
                assert!(report.failed.is_none(), "{:?}", report.failed);
                session.observe(&[]).unwrap()
            });
            assert_eq!(observed.marker, Some(marker));
            assert_eq!(observed.links, [], "lo is not among the links");
        }
    });
}

#[test]
fn a_marker_that_is_no_text_does_not_blind_the_agent() {
    on_a_node(|| {
        let kernel = kernel(&[]);
        let pod = Pod::new();
        pod.run(|| {
            use std::os::unix::ffi::OsStrExt;
            let bytes = std::ffi::OsStr::from_bytes(b"\xff\xfe");
            let done =
                std::process::Command::new("ip").args(["link", "set", "lo", "alias"]).arg(bytes).status();
            assert!(done.expect("ip").success());
        });
        let marker = in_session(&kernel, &pod, |session| {
            assert_eq!(session.observe(&[]).unwrap().marker, None);
            session.apply(&[Step::SetMarker { marker: "m".into() }]);
            session.observe(&[]).unwrap().marker
        });
        assert_eq!(marker.as_deref(), Some("m"));
    });
}

#[test]
fn a_refused_step_is_named_with_the_kernels_words_and_the_rest_is_not_tried() {
    on_a_node(|| {
        let kernel = kernel(&[]);
        let bridge = kernel.ensure_bridge(&wanted_bridge("br-blue")).unwrap();
        let pod = Pod::new();
        attach(&kernel, &pod, &[wanted("u1", 1, bridge)]);
        let link: fairlead_crds::IfName = "net1".parse().unwrap();
        let route = |via: &str| fairlead_crds::network::Route {
            to: "10.98.0.0/16".parse().unwrap(),
            via: Some(via.parse().unwrap()),
        };
        let steps = [
            Step::LinkUp { link: link.clone() },
            Step::AddRoute { link: link.clone(), route: route("172.16.0.1") },
            Step::DeleteAddress { link: link.clone(), address: "10.20.0.1/24".parse().unwrap() },
            Step::AddRoute { link, route: route("10.20.0.254") },
        ];
        let report = in_session(&kernel, &pod, |session| session.apply(&steps));
        assert_eq!(report.done, 1);
        let (step, error) = report.failed.expect("the gateway is not reachable");
        assert_eq!(step, steps[1]);
        let text = error.to_string();
        assert!(text.contains("10.98.0.0/16") && text.contains("Nexthop has invalid gateway"), "{text}");
        assert!(!pod.ip("route").contains("10.98") && pod.ip("addr show net1").contains("10.20.0.1/24"));
    });
}

#[test]
fn pods_are_attached_side_by_side() {
    on_a_node(|| {
        let kernel = kernel(&[]);
        let bridge = kernel.ensure_bridge(&wanted_bridge("br-blue")).unwrap();
        let pods: Vec<Pod> = (0..16).map(|_| Pod::new()).collect();
        std::thread::scope(|scope| {
            for (number, pod) in (1..).zip(&pods) {
                let kernel = &kernel;
                scope.spawn(move || {
                    let wanted = [wanted(&format!("u{number}"), number, bridge)];
                    attach(kernel, pod, &wanted);
                    assert_eq!(attach(kernel, pod, &wanted), []);
                });
            }
        });
        assert_eq!(kernel.host_links().unwrap().len(), 16);
        assert!(pods[0].pings("10.20.0.16"));
    });
}
