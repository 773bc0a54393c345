//! The plan, against the kernel in memory.

mod anywhere;

use std::path::Path;

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
    Route { to: cidr(to), via: via.map(|via| via.parse().unwrap()) }
}

fn interface(number: u8, bridge: u32) -> WantedInterface {
    let name = format!("net{number}");
    WantedInterface {
        host: names::host_link("uid", &name),
        mac: Mac([2, 0, 0, 0, 0, number]),
        mtu: 1500,
        bridge,
        addresses: vec![cidr(&format!("10.{number}.0.5/16")), cidr(&format!("fd00:{number}::5/64"))],
        routes: vec![
            route(&format!("10.{}.0.0/16", number + 100), Some(&format!("10.{number}.0.1"))),
            route(&format!("fd01:{number}::/64"), Some(&format!("fd00:{number}::1"))),
        ],
        alias: format!("fairlead/v1;uid=uid;interface={name}"),
        name: name.parse().unwrap(),
    }
}

fn bridge(fake: &Fake, name: &str) -> u32 {
    let wanted = WantedBridge { name: name.parse().unwrap(), create: true, uplink: None, mtu: None };
    fake.ensure_bridge(&wanted).unwrap().index
}

/// A node with two pods' namespaces and two bridges.
fn node() -> (Fake, u32, u32) {
    let fake = Fake::new(&[]);
    for path in [OLD, POD] {
        fake.add_namespace(path);
        fake.visit(Path::new(path), &mut |_, _| ()).unwrap();
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
    fake.visit(Path::new(path), &mut |_, session| {
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
    let wanted =
        WantedInterface { addresses: vec![cidr("10.1.0.5/16")], routes: vec![], ..interface(1, one) };
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
    for alter in
        [|link: &mut PodLink| link.name = "renamed".into(), |link: &mut PodLink| link.mac = Some(Mac([2; 6]))]
    {
        let steps = repaired(|fake, _| edit(fake, "net1", alter));
        assert_eq!(steps[0], format!("delete {host}"));
        assert!(steps[1].starts_with("create net1"), "{steps:?}");
    }
}

#[test]
fn a_host_end_out_of_its_bridge_down_or_unmarked_is_put_back() {
    let disturbances: [fn(&mut HostLink); 3] =
        [|link| link.bridge = None, |link| link.up = false, |link| link.alias = None];
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
    let only4 = WantedInterface { addresses: vec![cidr("10.1.0.5/16")], routes: vec![], ..interface(1, one) };
    run(&fake, POD, std::slice::from_ref(&only4)).unwrap();
    let both = WantedInterface { addresses: interface(1, one).addresses, ..only4 };
    let steps = run(&fake, POD, &[both]).unwrap();
    assert_eq!(text(&steps), ["set sysctls of net1 (ipv6 on)", "add fd00:1::5/64 to net1"]);
}

#[test]
fn a_link_that_is_down_when_its_network_loses_ipv6_comes_up_without() {
    let (fake, one, _) = node();
    let only6 =
        WantedInterface { addresses: vec![cidr("fd00:1::5/64")], routes: vec![], ..interface(1, one) };
    run(&fake, POD, std::slice::from_ref(&only6)).unwrap();
    edit(&fake, "net1", |link| link.up = false);
    let only4 = WantedInterface { addresses: vec![cidr("10.1.0.5/16")], ..only6 };
    let steps = run(&fake, POD, &[only4]).unwrap();
    assert_eq!(
        text(&steps),
        [
            "delete fd00:1::5/64 from net1",
            "set sysctls of net1 (ipv6 off)",
            "set net1 up",
            "add 10.1.0.5/16 to net1",
        ]
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
    assert!(matches!(&steps[..2], [Step::DeleteHostLink { .. }, Step::CreateVeth { .. }]), "{steps:?}");
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
    assert!(matches!(&steps[..2], [Step::DeleteHostLink { .. }, Step::DeleteHostLink { .. }]), "{steps:?}");
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
fn a_conflict_of_one_interface_does_not_hold_back_the_others() {
    let (fake, one, _) = node();
    fake.edit_pod(Path::new(POD), |links| links.push(foreign("net1", 9)));
    let wanted = [interface(1, one), interface(2, one)];
    let (steps, conflicts) = attach_free(&wanted, &observe(&fake, POD));
    assert_eq!(conflicts, [Conflict::NameTaken("net1".parse().unwrap())]);
    assert_eq!(Ok(steps), attach(&wanted[1..], &observe(&fake, POD)));
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
        let wanted = WantedInterface { name: name.parse().unwrap(), ..interface(1, one) };
        assert!(run(&fake, POD, &[wanted]).is_err(), "{name}");
    }
}

#[test]
fn two_interfaces_of_one_name_do_not_take_turns() {
    let (fake, one, _) = node();
    let first = interface(1, one);
    run(&fake, POD, std::slice::from_ref(&first)).unwrap();
    let second = WantedInterface { name: first.name.clone(), ..interface(2, one) };
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
