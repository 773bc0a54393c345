use std::path::Path;

use proptest::prelude::*;
use proptest::sample::subsequence;

use fairlead_crds::names;

use super::*;
use crate::net::fake::Fake;
use crate::net::{Net, WantedBridge};

const POD: &str = "/run/netns/pod";
const OLD: &str = "/run/netns/old";

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

fn route(to: &str, via: Option<&str>) -> Route {
    Route {
        to: cidr(to),
        via: via.map(|via| via.parse().unwrap()),
    }
}

fn interface(number: u8, bridge: u32) -> WantedInterface {
    let name = format!("net{number}");
    WantedInterface {
        host: names::host_link("uid", &name),
        mac: Mac([2, 0, 0, 0, 0, number]),
        mtu: 1500,
        bridge,
        addresses: vec![
            cidr(&format!("10.{number}.0.5/16")),
            cidr(&format!("fd00:{number}::5/64")),
        ],
        routes: vec![
            route(
                &format!("10.{}.0.0/16", number + 100),
                Some(&format!("10.{number}.0.1")),
            ),
            route(&format!("fd01:{number}::/64"), Some(&format!("fd00:{number}::1"))),
        ],
        alias: format!("fairlead/v1;uid=uid;interface={name}"),
        name: name.parse().unwrap(),
    }
}

fn bridge(fake: &Fake, name: &str) -> u32 {
    let wanted = WantedBridge {
        name: name.parse().unwrap(),
        create: true,
        uplink: None,
        mtu: None,
    };
    fake.ensure_bridge(&wanted).unwrap().index
}

/// A node with two pods' namespaces and two bridges.
fn node() -> (Fake, u32, u32) {
    let fake = Fake::new(&[]);
    for path in [OLD, POD] {
        fake.add_namespace(path);
        fake.open(Path::new(path)).unwrap();
    }
    let (one, two) = (bridge(&fake, "br-one"), bridge(&fake, "br-two"));
    (fake, one, two)
}

fn observe(fake: &Fake, path: &str) -> Observed {
    fake.look(Path::new(path)).unwrap()
}

/// Observe, plan, apply once. What was done.
fn run(fake: &Fake, path: &str, wanted: &[WantedInterface]) -> Result<Vec<Step>, Conflict> {
    let steps = attach(wanted, &observe(fake, path))?;
    let namespace = fake.open(Path::new(path)).unwrap();
    fake.enter(&namespace, &mut |session| {
        let report = session.apply(&steps);
        assert!(report.failed.is_none(), "{:?} of {steps:#?}", report.failed);
    })
    .unwrap();
    Ok(steps)
}

fn edit(fake: &Fake, name: &str, edit: impl Fn(&mut PodLink)) {
    fake.edit_pod(Path::new(POD), |links| {
        links.iter_mut().filter(|link| link.name == name).for_each(edit);
    });
}

fn text(steps: &[Step]) -> Vec<String> {
    steps.iter().map(ToString::to_string).collect()
}

/// Attaches, disturbs with `disturb`, attaches again, checks that nothing is left to do. The second's steps.
fn repaired(disturb: impl FnOnce(&Fake, &mut Vec<WantedInterface>)) -> Vec<String> {
    let (fake, one, _) = node();
    let mut wanted = vec![interface(1, one)];
    run(&fake, POD, &wanted).unwrap();
    disturb(&fake, &mut wanted);
    let steps = run(&fake, POD, &wanted).unwrap();
    assert_eq!(attach(&wanted, &observe(&fake, POD)), Ok(vec![]));
    text(&steps)
}

#[test]
fn a_new_interface_is_made_in_the_order_the_kernel_needs() {
    let (fake, one, _) = node();
    let steps = run(&fake, POD, &[interface(1, one)]).unwrap();
    let host = names::host_link("uid", "net1");
    assert_eq!(
        text(&steps),
        [
            &format!("create net1 (02:00:00:00:00:01, mtu 1500) with {host} in bridge {one}"),
            "set sysctls of net1 (ipv6 on)",
            "set net1 up",
            "add 10.1.0.5/16 to net1",
            "add fd00:1::5/64 to net1",
            "add route to 10.101.0.0/16 through net1",
            "add route to fd01:1::/64 through net1",
        ]
    );
}

#[test]
fn without_ipv6_addresses_ipv6_is_off() {
    let (fake, one, _) = node();
    let wanted = WantedInterface {
        addresses: vec![cidr("10.1.0.5/16")],
        routes: vec![],
        ..interface(1, one)
    };
    let steps = run(&fake, POD, &[wanted]).unwrap();
    assert_eq!(steps[1].to_string(), "set sysctls of net1 (ipv6 off)");
}

#[test]
fn nothing_is_done_when_everything_is_in_place() {
    assert_eq!(repaired(|_, _| {}), [""; 0]);
}

#[test]
fn what_was_taken_away_comes_back() {
    let steps = repaired(|fake, _| edit(fake, "net1", |link| link.addresses.clear()));
    assert_eq!(steps, ["add 10.1.0.5/16 to net1", "add fd00:1::5/64 to net1"]);
    let steps = repaired(|fake, _| edit(fake, "net1", |link| link.routes.truncate(1)));
    assert_eq!(steps, ["add route to fd01:1::/64 through net1"]);
    let steps = repaired(|fake, _| edit(fake, "net1", |link| link.mtu = 1400));
    assert_eq!(steps, ["set mtu of net1 to 1500"]);
}

#[test]
fn a_link_that_was_set_down_is_brought_up_with_its_routes() {
    let steps = repaired(|fake, _| {
        edit(fake, "net1", |link| {
            link.up = false;
            link.routes.clear();
        });
    });
    assert_eq!(
        steps,
        [
            "set sysctls of net1 (ipv6 on)",
            "set net1 up",
            "add route to 10.101.0.0/16 through net1",
            "add route to fd01:1::/64 through net1"
        ]
    );
}

#[test]
fn a_pair_that_was_deleted_or_altered_beyond_repair_is_made_anew() {
    let host = names::host_link("uid", "net1");
    let made = repaired(|fake, _| fake.edit_pod(Path::new(POD), Vec::clear));
    assert!(made[0].starts_with("create net1"), "{made:?}");
    for alter in [
        |link: &mut PodLink| link.name = "renamed".into(),
        |link: &mut PodLink| link.mac = Some(Mac([2; 6])),
    ] {
        let steps = repaired(|fake, _| edit(fake, "net1", alter));
        assert_eq!(steps[0], format!("delete {host}"));
        assert!(steps[1].starts_with("create net1"), "{steps:?}");
    }
}

#[test]
fn a_host_end_out_of_its_bridge_down_or_unmarked_is_put_back() {
    let disturbances: [fn(&mut HostLink); 3] = [
        |link| link.bridge = None,
        |link| link.up = false,
        |link| link.alias = None,
    ];
    for disturb in disturbances {
        let steps = repaired(|fake, _| fake.edit_host(|links| links.iter_mut().for_each(disturb)));
        assert_eq!(steps.len(), 1, "{steps:?}");
        assert!(steps[0].starts_with("put fl"), "{steps:?}");
    }
}

#[test]
fn another_network_behind_the_same_name_replaces_addresses_and_bridge() {
    let mut bridges = (0, 0);
    let steps = repaired(|fake, wanted| {
        bridges = (bridge(fake, "br-one"), bridge(fake, "br-two"));
        wanted[0].bridge = bridges.1;
        wanted[0].addresses = vec![cidr("10.9.0.5/16"), cidr("fd00:1::5/96")];
        wanted[0].routes = vec![route("10.101.0.0/16", Some("10.9.0.1"))];
    });
    let host = names::host_link("uid", "net1");
    assert_eq!(
        steps,
        [
            &format!("put {host} into bridge {}", bridges.1),
            "delete route to 10.101.0.0/16 through net1",
            "delete route to fd01:1::/64 through net1",
            "delete fd00:1::5/64 from net1",
            "add 10.9.0.5/16 to net1",
            "add fd00:1::5/96 to net1",
            "delete 10.1.0.5/16 from net1",
            "add route to 10.101.0.0/16 through net1",
        ]
    );
}

#[test]
fn ipv6_comes_to_a_link_that_had_none() {
    let (fake, one, _) = node();
    let only4 = WantedInterface {
        addresses: vec![cidr("10.1.0.5/16")],
        routes: vec![],
        ..interface(1, one)
    };
    run(&fake, POD, std::slice::from_ref(&only4)).unwrap();
    let both = WantedInterface {
        addresses: interface(1, one).addresses,
        ..only4
    };
    let steps = run(&fake, POD, &[both]).unwrap();
    assert_eq!(
        text(&steps),
        ["set sysctls of net1 (ipv6 on)", "add fd00:1::5/64 to net1"]
    );
}

#[test]
fn addresses_that_the_pod_itself_added_stay() {
    let steps = repaired(|fake, _| edit(fake, "net1", |link| link.addresses.push(cidr("192.0.2.1/32"))));
    assert_eq!(steps, [""; 0]);
}

#[test]
fn the_old_sandbox_is_cut_before_the_new_one_gets_its_link() {
    let (fake, one, _) = node();
    let wanted = [interface(1, one)];
    run(&fake, OLD, &wanted).unwrap();
    let steps = run(&fake, POD, &wanted).unwrap();
    assert!(
        matches!(
            &steps[..2],
            [Step::DeleteHostLink { .. }, Step::CreateVeth { .. }]
        ),
        "{steps:?}"
    );
    assert_eq!(observe(&fake, OLD).links, []);
    assert_eq!(attach(&wanted, &observe(&fake, POD)), Ok(vec![]));
}

#[test]
fn two_links_that_swapped_names_are_both_cut_before_either_is_made() {
    let (fake, one, _) = node();
    let wanted = [interface(1, one), interface(2, one)];
    run(&fake, POD, &wanted).unwrap();
    fake.edit_pod(Path::new(POD), |links| {
        let (first, second) = (links[0].name.clone(), links[1].name.clone());
        (links[0].name, links[1].name) = (second, first);
    });
    let steps = run(&fake, POD, &wanted).unwrap();
    assert!(
        matches!(
            &steps[..2],
            [Step::DeleteHostLink { .. }, Step::DeleteHostLink { .. }]
        ),
        "{steps:?}"
    );
    assert_eq!(attach(&wanted, &observe(&fake, POD)), Ok(vec![]));
}

#[test]
fn a_name_held_by_a_link_of_ours_that_is_not_wanted_any_more_is_freed() {
    let (fake, one, _) = node();
    run(&fake, POD, &[interface(1, one)]).unwrap();
    edit(&fake, "net1", |link| link.name = "net2".into());
    let wanted = [interface(2, one)];
    run(&fake, POD, &wanted).unwrap();
    assert_eq!(observe(&fake, POD).links.len(), 1);
    assert_eq!(attach(&wanted, &observe(&fake, POD)), Ok(vec![]));
}

#[test]
fn a_foreign_link_is_a_conflict_and_is_not_touched() {
    let (fake, one, _) = node();
    fake.edit_pod(Path::new(POD), |links| links.push(foreign("net1", 9)));
    let before = observe(&fake, POD);
    let conflict = run(&fake, POD, &[interface(1, one)]).unwrap_err();
    assert_eq!(conflict, Conflict::NameTaken("net1".parse().unwrap()));
    assert_eq!(conflict.reason(), Reason::InterfaceNameTaken);
    assert_eq!(observe(&fake, POD), before);
}

#[test]
fn an_index_that_means_another_link_in_another_namespace_makes_nothing_ours() {
    let (fake, one, _) = node();
    let wanted = [interface(1, one)];
    run(&fake, OLD, &wanted).unwrap();
    let index = observe(&fake, OLD).links[0].index;
    // The pod's own link has the index that our link has in the old namespace, and its name.
    fake.edit_pod(Path::new(POD), |links| links.push(foreign("net1", index)));
    assert!(run(&fake, POD, &wanted).is_err());
}

#[test]
fn lo_and_eth0_are_never_ours_even_if_nobody_has_the_name() {
    let (fake, one, _) = node();
    for name in ["lo", "eth0"] {
        let wanted = WantedInterface {
            name: name.parse().unwrap(),
            ..interface(1, one)
        };
        assert!(run(&fake, POD, &[wanted]).is_err(), "{name}");
    }
}

#[test]
fn two_interfaces_of_one_name_do_not_take_turns() {
    let (fake, one, _) = node();
    let first = interface(1, one);
    run(&fake, POD, std::slice::from_ref(&first)).unwrap();
    let second = WantedInterface {
        name: first.name.clone(),
        ..interface(2, one)
    };
    assert!(attach(&[first, second], &observe(&fake, POD)).is_err());
}

fn foreign(name: &str, index: u32) -> PodLink {
    PodLink {
        name: name.to_owned(),
        index,
        mac: Some(Mac([0x0a, 0, 0, 0, 0, 1])),
        mtu: 1500,
        up: true,
        ipv6: true,
        addresses: vec![cidr("10.244.1.7/24")],
        ours: vec![],
        routes: vec![],
    }
}

/// Something happens to a pod between two passes.
#[derive(Debug, Clone)]
enum Mishap {
    Down(usize),
    Rename(usize, usize),
    Mac(usize),
    Mtu(usize),
    Addresses(usize),
    Routes(usize),
    Delete(usize),
    NoIpv6(usize),
    HostDown(usize),
    Released(usize),
    Unmarked(usize),
    Extra(usize),
    Sandbox,
}

fn mishap() -> impl Strategy<Value = Mishap> {
    let at = 0..3_usize;
    prop_oneof![
        at.clone().prop_map(Mishap::Down),
        (at.clone(), 0..6_usize).prop_map(|(at, name)| Mishap::Rename(at, name)),
        at.clone().prop_map(Mishap::Mac),
        at.clone().prop_map(Mishap::Mtu),
        at.clone().prop_map(Mishap::Addresses),
        at.clone().prop_map(Mishap::Routes),
        at.clone().prop_map(Mishap::Delete),
        at.clone().prop_map(Mishap::NoIpv6),
        at.clone().prop_map(Mishap::HostDown),
        at.clone().prop_map(Mishap::Released),
        at.clone().prop_map(Mishap::Unmarked),
        at.prop_map(Mishap::Extra),
        Just(Mishap::Sandbox),
    ]
}

/// Mishaps hit links of ours only: what is foreign must stay as it is.
fn strike(fake: &Fake, mishap: &Mishap) {
    let links = |change: &dyn Fn(&mut Vec<PodLink>)| fake.edit_pod(Path::new(POD), |links| change(links));
    let ours = |at: usize, change: &dyn Fn(&mut PodLink)| {
        links(&|links| {
            links
                .iter_mut()
                .filter(|link| link.name != "eth0")
                .skip(at)
                .take(1)
                .for_each(change)
        });
    };
    let hosts = |at: usize, change: &dyn Fn(&mut HostLink)| {
        fake.edit_host(|links| links.iter_mut().skip(at).take(1).for_each(change));
    };
    match mishap.clone() {
        Mishap::Down(at) => ours(at, &|link| {
            link.up = false;
            link.routes.clear();
        }),
        Mishap::Rename(at, name) => {
            let name = format!("net{name}");
            links(&|links| {
                if !links.iter().any(|link| link.name == name) {
                    links
                        .iter_mut()
                        .filter(|link| link.name != "eth0")
                        .skip(at)
                        .take(1)
                        .for_each(|link| link.name = name.clone());
                }
            });
        }
        Mishap::Mac(at) => ours(at, &|link| link.mac = None),
        Mishap::Mtu(at) => ours(at, &|link| link.mtu = 1280),
        Mishap::Addresses(at) => ours(at, &|link| {
            link.addresses.truncate(1);
            link.ours.truncate(1);
        }),
        Mishap::Routes(at) => ours(at, &|link| link.routes.truncate(1)),
        Mishap::Delete(at) => links(&|links| {
            let mut seen = 0..;
            links.retain(|link| link.name == "eth0" || seen.next() != Some(at));
        }),
        Mishap::NoIpv6(at) => ours(at, &|link| {
            link.ipv6 = false;
            link.addresses.retain(|address| !address.is_ipv6());
            link.ours.retain(|address| !address.is_ipv6());
            link.routes.retain(|route| !route.to.is_ipv6());
        }),
        Mishap::HostDown(at) => hosts(at, &|link| link.up = false),
        Mishap::Released(at) => hosts(at, &|link| link.bridge = None),
        Mishap::Unmarked(at) => hosts(at, &|link| link.alias = None),
        Mishap::Extra(at) => ours(at, &|link| link.addresses.push(cidr("192.0.2.9/32"))),
        Mishap::Sandbox => {
            fake.remove_namespace(Path::new(POD));
            fake.add_namespace(POD);
            fake.edit_pod(Path::new(POD), |links| links.push(foreign("eth0", 2)));
        }
    }
}

fn wanted(bridges: [u32; 2]) -> impl Strategy<Value = Vec<WantedInterface>> {
    let any_interface = move |number: u8| {
        let (addresses, routes) = (0..4_usize, subsequence(vec![0, 1], 0..=2));
        (addresses, routes, 0..2_usize, prop_oneof![Just(1500), Just(1450)]).prop_map(
            move |(kind, kept, bridge, mtu)| {
                let mut wanted = WantedInterface {
                    mtu,
                    ..interface(number, bridges[bridge])
                };
                match kind {
                    0 => {}
                    1 => wanted.addresses.truncate(1),
                    2 => wanted.addresses = vec![wanted.addresses[1]],
                    _ => {
                        let other = [format!("10.{number}.0.5/24"), format!("fd00:{number}::5/96")];
                        wanted.addresses = other.iter().map(|text| cidr(text)).collect();
                    }
                }
                let routes = kept.into_iter().map(|at| wanted.routes[at].clone());
                let has = |route: &Route| {
                    wanted
                        .addresses
                        .iter()
                        .any(|address| address.is_ipv6() == route.to.is_ipv6())
                };
                wanted.routes = routes.filter(has).collect();
                wanted
            },
        )
    };
    subsequence(vec![1, 2, 3], 0..=3)
        .prop_flat_map(move |numbers| numbers.into_iter().map(any_interface).collect::<Vec<_>>())
}

proptest! {
    /// From whatever state mishaps and earlier wishes left, one pass reaches what is wanted; a second one has
    /// nothing to do; what is not ours is as it was.
    #[test]
    fn one_pass_reaches_what_is_wanted_from_anywhere(
        before in wanted([1, 2]),
        mishaps in prop::collection::vec(mishap(), 0..6),
        after in wanted([1, 2]),
        in_the_old_sandbox: bool,
    ) {
        let (fake, one, two) = node();
        prop_assert_eq!((one, two), (1, 2));
        for path in [OLD, POD] {
            fake.edit_pod(Path::new(path), |links| links.push(foreign("eth0", 2)));
        }
        run(&fake, if in_the_old_sandbox { OLD } else { POD }, &before).unwrap();
        mishaps.iter().for_each(|mishap| strike(&fake, mishap));
        let eth0 = |path| observe(&fake, path).links.into_iter().find(|link| link.name == "eth0");
        let foreign_before = (eth0(OLD), eth0(POD));

        fake.open(Path::new(POD)).unwrap();
        // Routes of links that are not wanted any more go with their links, which is not this plan's business.
        let unwanted: Vec<String> = before.iter().map(|old| old.host.clone()).filter(|host| !after.iter().any(|new| new.host == *host)).collect();
        fake.delete_host_links(&unwanted).unwrap();
        run(&fake, POD, &after).unwrap();

        prop_assert_eq!(attach(&after, &observe(&fake, POD)), Ok(vec![]), "a second pass");
        let now = observe(&fake, POD);
        for wanted in &after {
            let link = now.links.iter().find(|link| link.name == wanted.name.as_str()).expect("the link");
            prop_assert!(link.up && link.mac == Some(wanted.mac) && link.mtu == wanted.mtu);
            prop_assert!(wanted.addresses.iter().all(|address| link.addresses.contains(address)));
            prop_assert!(link.ours.iter().all(|address| wanted.addresses.contains(address)));
            prop_assert_eq!(sorted(&link.routes), sorted(&wanted.routes));
            let host = now.host.iter().find(|host| host.name == wanted.host).expect("the host end");
            prop_assert!(host.up && host.bridge == Some(wanted.bridge) && host.mtu == wanted.mtu);
        }
        prop_assert_eq!((eth0(OLD), eth0(POD)), foreign_before);
    }

    /// A pass may be cut off after any step: the next one reaches the same end.
    #[test]
    fn a_pass_that_fails_anywhere_is_completed_by_the_next(after in wanted([1, 2]), steps in 0..30_usize) {
        let (fake, ..) = node();
        fake.fail_after(steps);
        let plan = attach(&after, &observe(&fake, POD)).unwrap();
        let namespace = fake.open(Path::new(POD)).unwrap();
        fake.enter(&namespace, &mut |session| {
            let report = session.apply(&plan);
            assert_eq!(report.done, plan.len().min(steps));
            assert_eq!(report.failed.is_some(), steps < plan.len());
        }).unwrap();
        fake.fail_after(usize::MAX);
        run(&fake, POD, &after).unwrap();
        prop_assert_eq!(attach(&after, &observe(&fake, POD)), Ok(vec![]));
    }
}

fn sorted(routes: &[Route]) -> Vec<String> {
    let mut routes: Vec<_> = routes.iter().map(|route| format!("{route:?}")).collect();
    routes.sort();
    routes
}
