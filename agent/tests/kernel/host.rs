//! The node's side: namespaces and their ids, host links, events.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use fairlead_agent::net::{HostEvent, Net, NetError, netns};
use fairlead_agent::plan::WantedInterface;
use fairlead_crds::names;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::world::{Pod, attach, ip, kernel, on_a_node, open, wanted, wanted_bridge};

/// Ids of all namespaces that have one as seen from this thread's, as iproute2 lists them.
fn nsids() -> BTreeSet<i32> {
    let listed = Command::new("ip").args(["netns", "list-id"]).output().unwrap();
    let text = String::from_utf8(listed.stdout).unwrap();
    let id = |line: &str| line.strip_prefix("nsid ")?.split_whitespace().next()?.parse().ok();
    text.lines().filter_map(id).collect()
}

#[test]
fn a_namespace_has_one_cookie_and_one_id() {
    on_a_node(|| {
        let kernel = kernel(&[]);
        let (one, two) = (Pod::new(), Pod::new());
        let first = open(&kernel, &one.path).unwrap();
        let again = open(&kernel, &one.path).unwrap();
        let other = open(&kernel, &two.path).unwrap();
        assert_eq!((first.cookie, first.nsid), (again.cookie, again.nsid));
        assert_ne!(first.cookie, other.cookie);
        assert_ne!(first.nsid, other.nsid);
        assert_eq!(first.cookie, one.run(|| netns::own_cookie().unwrap()));
        assert_eq!(nsids(), BTreeSet::from([first.nsid, other.nsid]));
    });
}

#[test]
fn the_id_of_a_namespace_goes_with_it_and_does_not_keep_it_alive() {
    on_a_node(|| {
        let kernel = kernel(&[]);
        let pod = Pod::new();
        let (path, nsid) = (pod.path.clone(), open(&kernel, &pod.path).unwrap().nsid);
        drop(pod);
        assert!(matches!(open(&kernel, &path), Err(NetError::NamespaceGone(_))));
        let gone = || !nsids().contains(&nsid);
        assert!((0..200).any(|_| gone() || {
            std::thread::sleep(Duration::from_millis(10));
            false
        }));
    });
}

#[test]
fn a_path_that_is_not_a_namespace_any_more_is_gone() {
    on_a_node(|| {
        let kernel = kernel(&[]);
        let missing = open(&kernel, Path::new("/run/netns/fairlead no such")).unwrap_err();
        assert!(matches!(missing, NetError::NamespaceGone(_)), "{missing}");
        // What an unmount leaves behind.
        let file = std::env::temp_dir().join(format!("fairlead-empty-{}", std::process::id()));
        std::fs::File::create(&file).unwrap();
        let unmounted = open(&kernel, &file).unwrap_err();
        std::fs::remove_file(&file).unwrap();
        assert!(matches!(unmounted, NetError::NamespaceGone(_)), "{unmounted}");
    });
}

#[test]
fn the_nodes_own_namespace_is_never_taken_for_a_pods() {
    on_a_node(|| {
        let error = open(&kernel(&[]), Path::new("/proc/thread-self/ns/net")).unwrap_err();
        assert!(matches!(error, NetError::NotOurs(_)), "{error}");
    });
}

#[test]
fn host_links_go_by_name_with_their_other_ends_and_only_if_ours() {
    on_a_node(|| {
        let kernel = kernel(&[]);
        let bridge = kernel.ensure_bridge(&wanted_bridge("br-blue")).unwrap();
        let pods: Vec<Pod> = (0..4).map(|_| Pod::new()).collect();
        let mut hosts = Vec::new();
        for (number, pod) in (1..).zip(&pods) {
            let wanted = wanted(&format!("u{number}"), number, bridge);
            attach(&kernel, pod, std::slice::from_ref(&wanted));
            hosts.push(wanted.host);
        }
        // Our group without our name, our name without our group: neither is ours.
        ip("link add flannel.1 group 26220 type bridge");
        ip("link add fl00000000aa type bridge");

        kernel.delete_host_links(&[hosts[0].clone()]).unwrap();
        assert!(!pods[0].ip("link").contains("net1"), "the other end is gone when the call returns");
        let rest = [&hosts[..], &["flffffffffff".to_owned()]].concat();
        kernel.delete_host_links(&rest).unwrap();
        assert!(pods.iter().all(|pod| !pod.ip("link").contains("net1")));
        assert_eq!(kernel.host_links().unwrap(), []);
        kernel.delete_host_links(&rest).unwrap();

        for foreign in ["fl00000000aa", "flannel.1", "br-blue", "lo"] {
            for names in [vec![foreign.to_owned()], vec![foreign.to_owned(), hosts[0].clone()]] {
                let refused = kernel.delete_host_links(&names);
                assert!(matches!(&refused, Err(NetError::NotOurs(name)) if name == foreign), "{refused:?}");
            }
            ip(&format!("link show {foreign}"));
        }
    });
}

#[test]
fn a_sweep_that_was_cut_off_is_still_recognised() {
    on_a_node(|| {
        let kernel = kernel(&[]);
        let bridge = kernel.ensure_bridge(&wanted_bridge("br-blue")).unwrap();
        let pod = Pod::new();
        let wanted: WantedInterface = wanted("u1", 1, bridge);
        attach(&kernel, &pod, std::slice::from_ref(&wanted));
        // As after a crash between marking for the sweep and sweeping.
        ip(&format!("link set {} group {}", wanted.host, (names::LINK_GROUP << 16) + 5));
        assert_eq!(kernel.host_links().unwrap().len(), 1);
        kernel.delete_host_links(&[wanted.host]).unwrap();
        assert_eq!(kernel.host_links().unwrap(), []);
    });
}

#[test]
fn a_vanished_namespace_takes_its_host_end_along() {
    on_a_node(|| {
        let kernel = kernel(&[]);
        let bridge = kernel.ensure_bridge(&wanted_bridge("br-blue")).unwrap();
        let pod = Pod::new();
        attach(&kernel, &pod, &[wanted("u1", 1, bridge)]);
        drop(pod);
        let gone = || kernel.host_links().unwrap().is_empty();
        assert!((0..200).any(|_| gone() || {
            std::thread::sleep(Duration::from_millis(10));
            false
        }));
    });
}

#[test]
fn the_monitor_tells_of_ours_and_of_others() {
    on_a_node(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let kernel = kernel(&[]);
        let bridge = kernel.ensure_bridge(&wanted_bridge("br-blue")).unwrap();
        let pod = Pod::new();
        let wanted = wanted("u1", 1, bridge);
        attach(&kernel, &pod, std::slice::from_ref(&wanted));
        runtime.block_on(async {
            let (sender, mut events) = mpsc::channel(16);
            let stop = CancellationToken::new();
            let running = tokio::spawn(kernel.monitor().unwrap().run(sender, stop.clone()));
            ip("link add other type bridge");
            pod.ip("link del net1");
            let mut seen = Vec::new();
            let deleted = HostEvent::Link { name: wanted.host, deleted: true };
            while seen.last() != Some(&deleted) {
                let event = tokio::time::timeout(Duration::from_secs(5), events.recv()).await;
                seen.push(event.expect("within five seconds").expect("an event"));
            }
            assert!(seen.contains(&HostEvent::Other { name: "other".into() }), "{seen:?}");
            stop.cancel();
            running.await.unwrap().unwrap();
        });
    });
}

#[test]
fn a_slow_listener_learns_that_it_lost_events() {
    on_a_node(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let kernel = kernel(&[]);
        runtime.block_on(async {
            let (sender, mut events) = mpsc::channel(1);
            let stop = CancellationToken::new();
            let monitor = kernel.monitor().unwrap();
            // Each change is about 1.5 kB; the buffer holds 8 MB at most.
            let script = "link set lo mtu 1500\nlink set lo mtu 1501\n".repeat(10_000);
            let file = std::env::temp_dir().join(format!("fairlead-batch-{}", std::process::id()));
            std::fs::write(&file, script).unwrap();
            ip(&format!("-batch {}", file.display()));
            std::fs::remove_file(&file).unwrap();
            let running = tokio::spawn(monitor.run(sender, stop.clone()));
            let mut lost = false;
            while let Ok(Some(event)) = tokio::time::timeout(Duration::from_millis(500), events.recv()).await
            {
                lost |= event == HostEvent::Lost;
            }
            assert!(lost);
            stop.cancel();
            running.await.unwrap().unwrap();
        });
    });
}
