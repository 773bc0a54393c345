//! The kernel in memory means the same as the real one: both are led through the same changes and
//! mishaps, and the same steps must be needed after each.

use std::path::Path;

use fairlead_agent::net::fake::Fake;
use fairlead_agent::net::{Net, Session};
use fairlead_agent::plan::{self, PodLink, WantedInterface};
use fairlead_crds::network::Route;

use crate::world::{Pod, attach, kernel, on_a_node, places, wanted, wanted_bridge};

const PATH: &str = "/run/netns/pod";

fn pass(fake: &Fake, wanted: &[WantedInterface]) -> Vec<plan::Step> {
    let mut done = Vec::new();
    let work = &mut |_, session: &mut dyn Session| {
        done = plan::attach(wanted, &session.observe(&places(wanted)).unwrap()).unwrap();
        assert!(session.apply(&done).failed.is_none(), "{done:?}");
    };
    fake.visit(Path::new(PATH), work).unwrap();
    done
}

fn edit(fake: &Fake, change: impl Fn(&mut PodLink)) {
    fake.edit_pod(Path::new(PATH), |links| links.iter_mut().for_each(change));
}

#[test]
fn the_kernel_in_memory_needs_the_same_steps_as_the_real_one() {
    on_a_node(|| {
        let (kernel, fake, pod) = (kernel(&[]), Fake::new(&[]), Pod::new());
        fake.add_namespace(PATH);
        // Takes the index that `lo` has on a real node.
        fake.add_device("lo", 65536);
        let blue = kernel.ensure_bridge(&wanted_bridge("br-blue")).unwrap();
        let red = kernel.ensure_bridge(&wanted_bridge("br-red")).unwrap();
        assert_eq!(fake.ensure_bridge(&wanted_bridge("br-blue")), Ok(blue));
        assert_eq!(fake.ensure_bridge(&wanted_bridge("br-red")), Ok(red));
        let same = |what: &str, wanted: &[WantedInterface]| {
            let text = |steps: Vec<plan::Step>| steps.iter().map(ToString::to_string).collect::<Vec<_>>();
            let real = text(attach(&kernel, &pod, wanted));
            assert_eq!(text(pass(&fake, wanted)), real, "{what}");
            assert_eq!(attach(&kernel, &pod, wanted), [], "{what}, second pass on the real one");
            assert_eq!(pass(&fake, wanted), [], "{what}, second pass in memory");
        };

        let both = wanted("u1", 1, blue);
        let only4 = WantedInterface { addresses: both.addresses[..1].to_vec(), ..both.clone() };
        let only6 =
            WantedInterface { addresses: both.addresses[1..].to_vec(), routes: vec![], ..both.clone() };
        let other = WantedInterface {
            bridge: red.index,
            mtu: 1400,
            addresses: vec!["10.20.0.1/16".parse().unwrap(), "fd00:20::1/96".parse().unwrap()],
            routes: vec![
                Route { to: "10.99.0.0/16".parse().unwrap(), via: Some("10.20.9.9".parse().unwrap()) },
                Route { to: "fd99::/64".parse().unwrap(), via: None },
            ],
            ..both.clone()
        };
        let all = [&both, &only4, &only6, &other];
        same("new", std::slice::from_ref(&both));
        for from in all {
            for to in all {
                same("from", std::slice::from_ref(from));
                same("to", std::slice::from_ref(to));
            }
        }
        for wanted in all {
            let wanted = std::slice::from_ref(wanted);
            same("before", wanted);
            pod.ip("link del net1");
            fake.edit_pod(Path::new(PATH), Vec::clear);
            same("deleted", wanted);
            pod.ip("link set net1 mtu 1300");
            edit(&fake, |link| link.mtu = 1300);
            same("other MTU", wanted);
            // With keep_addr_on_down the addresses stay; routes go.
            pod.ip("link set net1 down");
            edit(&fake, |link| {
                link.up = false;
                link.routes.clear();
            });
            same("down", wanted);
        }
    });
}
