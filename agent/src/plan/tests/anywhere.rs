//! From whatever state a pod is in, one pass reaches what is wanted.

use std::path::Path;

use proptest::prelude::*;
use proptest::sample::subsequence;

use super::*;

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
            links.iter_mut().filter(|link| link.name != "eth0").skip(at).take(1).for_each(change);
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
                let mut wanted = WantedInterface { mtu, ..interface(number, bridges[bridge]) };
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
                    wanted.addresses.iter().any(|address| address.is_ipv6() == route.to.is_ipv6())
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
        for mishap in &mishaps {
            strike(&fake, mishap);
        }
        let eth0 = |path| observe(&fake, path).links.into_iter().find(|link| link.name == "eth0");
        let foreign_before = (eth0(OLD), eth0(POD));

        fake.visit(Path::new(POD), &mut |_, _| ()).unwrap();
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
        fake.visit(Path::new(POD), &mut |_, session| {
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
