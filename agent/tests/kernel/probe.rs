//! Asking on a bridge who has an address.

use std::time::{Duration, Instant};

use fairlead_agent::net::kernel::{Config, Kernel};
use fairlead_agent::net::{Asked, Net, Stranger, WantedBridge};
use fairlead_crds::{IfName, Ip, Mac};

use crate::world::{Pod, attach, ip, kernel, on_a_node, wanted, wanted_bridge};

const TIME: Duration = Duration::from_millis(300);
const OWN: Mac = Mac([2, 0, 0, 0, 0, 9]);

fn asked(address: &str, own: Mac) -> Asked {
    Asked { address: address.parse().unwrap(), own }
}

fn blue() -> IfName {
    "br-blue".parse().unwrap()
}

fn who(found: &[Stranger], address: &str) -> Option<Mac> {
    let address: Ip = address.parse().unwrap();
    found.iter().find(|stranger| stranger.address == address).map(|stranger| stranger.mac)
}

#[test]
fn a_stranger_on_the_bridge_is_found_at_once_in_both_families() {
    on_a_node(|| {
        let kernel = kernel(&[]);
        let bridge = kernel.ensure_bridge(&wanted_bridge("br-blue")).unwrap();
        let stranger = Pod::new();
        let its = wanted("u1", 1, bridge);
        attach(&kernel, &stranger, std::slice::from_ref(&its));
        attach(&kernel, &stranger, std::slice::from_ref(&its));

        let start = Instant::now();
        let both = [asked("10.20.0.1", OWN), asked("fd00:20::1", OWN)];
        let found = kernel.probe(&blue(), &both, TIME).unwrap();
        assert_eq!((who(&found, "10.20.0.1"), who(&found, "fd00:20::1")), (Some(its.mac), Some(its.mac)));
        assert!(start.elapsed() < TIME, "everyone answered: {:?}", start.elapsed());

        let ours = both.map(|one| Asked { own: its.mac, ..one });
        assert_eq!(kernel.probe(&blue(), &ours, TIME).unwrap(), [], "its own answer is no stranger's");
        let mixed = [both[0], asked("10.20.0.200", OWN), asked("fd00:20::200", OWN)];
        assert_eq!(kernel.probe(&blue(), &mixed, TIME).unwrap().len(), 1, "only one of them is in use");
    });
}

#[test]
fn silence_lasts_as_long_as_asked_for_and_no_longer() {
    on_a_node(|| {
        let kernel = kernel(&[]);
        kernel.ensure_bridge(&wanted_bridge("br-blue")).unwrap();
        let start = Instant::now();
        let both = [asked("10.20.0.1", OWN), asked("fd00:20::1", OWN)];
        assert_eq!(kernel.probe(&blue(), &both, TIME).unwrap(), []);
        let elapsed = start.elapsed();
        assert!(elapsed >= TIME && elapsed < TIME * 2, "{elapsed:?}");
        ip("link del br-blue");
        assert!(kernel.probe(&blue(), &both, TIME).is_err(), "nothing can be asked without the bridge");
    });
}

#[test]
fn a_stranger_behind_the_uplink_of_another_node_is_found_and_so_is_who_asks_at_the_same_time() {
    on_a_node(|| {
        ip("link add eth1 type veth peer name wire");
        ip("link set eth1 up");
        let other = Pod::new();
        ip(&format!("link set wire netns {}", other.path.display()));
        other.ip("link set wire name eth1 up");
        let uplink = WantedBridge { uplink: Some("eth1".parse().unwrap()), ..wanted_bridge("br-blue") };
        let here = kernel(&["eth1"]);
        here.ensure_bridge(&uplink).unwrap();
        let (there, bridge) = other.run(|| {
            let config = Config { node: "node2".into(), devices: vec!["eth1".into()], ..Config::default() };
            let there = Kernel::new(config).unwrap();
            let bridge = there.ensure_bridge(&uplink).unwrap();
            (there, bridge)
        });
        let pod = Pod::new();
        let its = wanted("u7", 7, bridge);
        attach(&there, &pod, std::slice::from_ref(&its));
        attach(&there, &pod, std::slice::from_ref(&its));
        let found = here.probe(&blue(), &[asked("10.20.0.7", OWN), asked("fd00:20::7", OWN)], TIME).unwrap();
        assert_eq!((who(&found, "10.20.0.7"), who(&found, "fd00:20::7")), (Some(its.mac), Some(its.mac)));

        let both = [asked("10.20.0.8", OWN), asked("fd00:20::8", OWN)];
        let (one, two) = std::thread::scope(|scope| {
            let one = scope.spawn(|| here.probe(&blue(), &both, TIME).unwrap());
            let two = there.probe(&blue(), &both, TIME).unwrap();
            (one.join().unwrap(), two)
        });
        assert_eq!(one.len().max(two.len()), 2, "at least one of them hears the other: {one:?} {two:?}");
    });
}
