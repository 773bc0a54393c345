//! What the kernel in memory does, and when it fails.

use super::*;

const ONE: &str = "/run/netns/one";
const TWO: &str = "/run/netns/two";

fn wanted(uplink: Option<&str>) -> WantedBridge {
    let uplink = uplink.map(|uplink| uplink.parse().unwrap());
    WantedBridge { name: "br-blue".parse().unwrap(), create: true, uplink, mtu: None }
}

fn create(bridge: u32) -> Step {
    Step::CreateVeth {
        host: "fl0123456789".into(),
        bridge,
        link: "net1".parse().unwrap(),
        mac: Mac([2; 6]),
        mtu: 1500,
        alias: "alias".into(),
    }
}

fn apply(fake: &Fake, path: &str, steps: &[Step]) -> Report {
    let mut report = Report::default();
    fake.visit(Path::new(path), &mut |_, session| report = session.apply(steps)).unwrap();
    report
}

fn open(fake: &Fake, path: &str) -> Result<Namespace, NetError> {
    let mut found = None;
    fake.visit(Path::new(path), &mut |namespace, _| found = Some(namespace))?;
    Ok(found.unwrap())
}

#[test]
fn a_namespace_that_goes_takes_its_pairs_along_and_frees_its_id() {
    let fake = Fake::new(&[]);
    let bridge = fake.ensure_bridge(&wanted(None)).unwrap().index;
    let (first, second) = (fake.add_namespace(ONE), fake.add_namespace(TWO));
    assert_ne!(first, second);
    assert!(apply(&fake, ONE, &[create(bridge)]).failed.is_none());
    assert_eq!(open(&fake, TWO).unwrap().nsid, 1);
    fake.remove_namespace(Path::new(ONE));
    assert_eq!(fake.host_links().unwrap(), []);
    assert_eq!(fake.world().nsids(), [1]);
    assert!(matches!(open(&fake, ONE), Err(NetError::NamespaceGone(_))));
    fake.add_namespace(ONE);
    assert_eq!(open(&fake, ONE).unwrap().nsid, 0, "the lowest free id, as Linux does");
}

#[test]
fn a_hidden_namespace_still_has_its_links() {
    let fake = Fake::new(&[]);
    let bridge = fake.ensure_bridge(&wanted(None)).unwrap().index;
    fake.add_namespace(ONE);
    apply(&fake, ONE, &[create(bridge)]);
    fake.hide_namespace(Path::new(ONE));
    assert!(open(&fake, ONE).is_err());
    assert_eq!((fake.host_links().unwrap().len(), fake.world().nsids().len()), (1, 1));
    fake.delete_host_links(&["fl0123456789".to_owned()]).unwrap();
    assert_eq!(fake.host_links().unwrap(), []);
}

#[test]
fn a_work_in_a_namespace_that_went_meanwhile_fails() {
    let fake = Fake::new(&[]);
    fake.add_namespace(ONE);
    let work = &mut |_, session: &mut dyn Session| {
        fake.remove_namespace(Path::new(ONE));
        assert!(session.observe(&[]).is_err());
    };
    fake.visit(Path::new(ONE), work).unwrap();
}

#[test]
fn a_session_sees_what_it_asks_for_and_of_others_only_that_they_are_there() {
    let fake = Fake::new(&[]);
    fake.add_namespace(ONE);
    let bridge = fake.ensure_bridge(&wanted(None)).unwrap().index;
    apply(&fake, ONE, &[create(bridge)]);
    fake.edit_pod(Path::new(ONE), |links| {
        let other = |name: &str, index| PodLink {
            name: name.into(),
            index,
            addresses: vec!["192.0.2.1/32".parse().unwrap()],
            ..links[0].clone()
        };
        let others = [other("eth0", 7), other("eth1", 8)];
        links.extend(others);
    });
    let seen = |places: &[Place<'_>]| {
        let mut seen = Vec::new();
        fake.visit(Path::new(ONE), &mut |_, session| seen = session.observe(places).unwrap().links).unwrap();
        seen.into_iter().map(|link| (link.name, link.addresses.len())).collect::<Vec<_>>()
    };
    let place = |host, link| Place { host, link };
    assert_eq!(seen(&[]), []);
    assert_eq!(seen(&[place("fl0123456789", None)]), [("net1".to_owned(), 0)]);
    assert_eq!(seen(&[place("flffffffffff", Some("eth0"))]), [("eth0".to_owned(), 0)]);
}

#[test]
fn the_chosen_step_fails_once_and_has_no_effect() {
    let fake = Fake::new(&[]);
    fake.add_namespace(ONE);
    let marker = |text: &str| Step::SetMarker { marker: text.into() };
    fake.fail_after(1);
    let report = apply(&fake, ONE, &[marker("a"), marker("b"), marker("c")]);
    assert_eq!(report.done, 1);
    assert_eq!(report.failed.map(|(step, _)| step), Some(marker("b")));
    assert_eq!(fake.look(Path::new(ONE)).unwrap().marker.as_deref(), Some("a"));
    assert!(apply(&fake, ONE, &[marker("d")]).failed.is_none());
}

#[test]
fn bridges_follow_the_rules_of_the_real_ones() {
    let fake = Fake::new(&["eth*"]);
    fake.add_device("eth1", 9000);
    fake.add_device("wan1", 1500);
    let refused = fake.ensure_bridge(&wanted(Some("wan1"))).unwrap_err();
    assert_eq!(refused.reason, fairlead_crds::Reason::DeviceNotAllowed);
    let ready = fake.ensure_bridge(&wanted(Some("eth1"))).unwrap();
    assert_eq!(ready.mtu, 9000);
    let changes = fake.changes();
    assert_eq!(fake.ensure_bridge(&wanted(Some("eth1"))), Ok(ready));
    assert_eq!(fake.changes(), changes, "in place");
    fake.add_namespace(ONE);
    apply(&fake, ONE, &[create(ready.index)]);
    assert!(fake.remove_bridge("br-blue").is_err(), "still has a pod's link");
    fake.remove_namespace(Path::new(ONE));
    fake.remove_bridge("br-blue").unwrap();
    assert!(fake.ensure_bridge(&wanted(Some("eth1"))).is_ok(), "the uplink is free again");
}

#[test]
fn an_announcement_is_remembered() {
    let fake = Fake::new(&[]);
    fake.add_namespace(ONE);
    let bridge = fake.ensure_bridge(&wanted(None)).unwrap().index;
    apply(&fake, ONE, &[create(bridge)]);
    fake.visit(Path::new(ONE), &mut |_, session| {
        session.announce(&"net1".parse().unwrap(), Mac([2; 6]), &[]).unwrap();
        assert!(session.announce(&"net2".parse().unwrap(), Mac([2; 6]), &[]).is_err());
    })
    .unwrap();
    assert_eq!(fake.announcements().len(), 1);
}
