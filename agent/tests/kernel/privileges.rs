//! What works with the privileges and mounts of the agent's container, and what the self-test says of others.

use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use fairlead_agent::net::kernel::{Config, Kernel};
use fairlead_agent::net::{Net, selftest};
use fairlead_crds::Ip;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;

use crate::world::{Pod, attach, in_session, kernel, on_a_node, wanted, wanted_bridge};

/// A mount namespace for the calling thread as a container has it: `/proc/sys` read-only, the node's
/// `/proc/sys/net` bound elsewhere, writable.
fn in_a_container() -> PathBuf {
    unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS).expect("a mount namespace");
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).expect("private mounts");
    let root = PathBuf::from("/mnt");
    mount(Some("tmpfs"), &root, Some("tmpfs"), MsFlags::empty(), none).expect("a tmpfs");
    let sysctls = root.join("net");
    fs::create_dir(&sysctls).expect("a mount point");
    mount(Some("/proc/sys/net"), &sysctls, none, MsFlags::MS_BIND, none).expect("a bind mount");
    mount(Some("/proc/sys"), "/proc/sys", none, MsFlags::MS_BIND, none).expect("a bind mount");
    let read_only = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    mount(none, "/proc/sys", none, read_only, none).expect("a read-only mount");
    assert!(fs::write("/proc/sys/net/ipv4/conf/lo/rp_filter", "0").is_err(), "/proc/sys is still writable");
    sysctls
}

#[test]
fn sysctls_reach_the_pod_through_a_bind_mount_where_proc_sys_is_read_only() {
    on_a_node(|| {
        let pods = [Pod::new(), Pod::new()];
        let sysctl_root = in_a_container();
        let kernel = Kernel::new(Config { sysctl_root: sysctl_root.clone(), ..Config::default() }).unwrap();
        let bridge = kernel.ensure_bridge(&wanted_bridge("br-blue")).unwrap();
        for (number, pod) in (1..).zip(&pods) {
            attach(&kernel, pod, &[wanted(&format!("u{number}"), number, bridge)]);
        }
        let read = |pod: &Pod, key: &str| {
            let path = Path::new("/proc/sys/net").join(key);
            pod.run(|| fs::read_to_string(&path).expect(key)).trim().to_owned()
        };
        for pod in &pods {
            assert_eq!(read(pod, "ipv4/conf/net1/arp_announce"), "2");
            assert_eq!(read(pod, "ipv6/conf/net1/accept_ra"), "0");
        }
        // The same path names the link of whichever namespace the thread is in.
        let file = sysctl_root.join("ipv4/conf/net1/arp_announce");
        pods[0].run(|| fs::write(&file, "1").unwrap());
        assert_eq!(read(&pods[0], "ipv4/conf/net1/arp_announce"), "1");
        assert_eq!(read(&pods[1], "ipv4/conf/net1/arp_announce"), "2");
        assert!(!file.exists(), "the node has no net1");
        assert_eq!(selftest::run(&sysctl_root, Path::new("/run")), [""; 0]);
        let complaints = selftest::run(Path::new("/proc/sys/net"), Path::new("/run"));
        assert!(complaints.len() == 1 && complaints[0].contains("--sysctl-root"), "{complaints:?}");
    });
}

#[test]
fn the_self_test_names_a_directory_of_namespaces_that_is_not_there() {
    on_a_node(|| {
        let complaints = selftest::run(Path::new("/proc/sys/net"), Path::new("/no/such/netns"));
        assert!(complaints.len() == 1 && complaints[0].contains("/no/such/netns"), "{complaints:?}");
    });
}

#[test]
fn the_self_test_passes_here() {
    on_a_node(|| assert_eq!(selftest::run(Path::new("/proc/sys/net"), Path::new("/proc")), [""; 0]));
}

#[test]
fn announcements_reach_the_neighbours() {
    on_a_node(|| {
        let kernel = kernel(&[]);
        let bridge = kernel.ensure_bridge(&wanted_bridge("br-blue")).unwrap();
        let (one, two) = (Pod::new(), Pod::new());
        let wanted = [wanted("u1", 1, bridge), wanted("u2", 2, bridge)];
        attach(&kernel, &one, &wanted[..1]);
        attach(&kernel, &two, &wanted[1..]);
        let sniffer = two.run(|| {
            let sniffer =
                socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll);
            let sniffer = sniffer.expect("a packet socket");
            setsockopt(&sniffer, sockopt::ReceiveTimeout, &TimeVal::new(2, 0)).unwrap();
            sniffer
        });
        let (mac, addresses) = (wanted[0].mac, wanted[0].addresses.iter().map(|cidr| Ip(cidr.addr())));
        let addresses: Vec<Ip> = addresses.collect();
        // A second look waits until the links work.
        assert_eq!(attach(&kernel, &one, &wanted[..1]), []);
        assert_eq!(attach(&kernel, &two, &wanted[1..]), []);
        in_session(&kernel, &one, |session| session.announce(&wanted[0].name, mac, &addresses).unwrap());

        let (mut arp, mut advertisement, mut buffer) = (false, false, [0; 2048]);
        for _ in 0..100 {
            let Ok(length) = recv(sniffer.as_raw_fd(), &mut buffer, MsgFlags::empty()) else { break };
            let frame = &buffer[..length];
            if frame.len() < 42 || frame[6..12] != mac.0 {
                continue;
            }
            arp |= frame[..6] == [0xff; 6] && frame[12..14] == [8, 6] && frame[28..32] == [10, 20, 0, 1];
            advertisement |=
                frame[12..14] == [0x86, 0xdd] && frame[20] == 58 && frame[54] == 136 && frame[61] == 0;
            if arp && advertisement {
                return;
            }
        }
        panic!("ARP {arp}, neighbour advertisement {advertisement}");
    });
}

#[test]
fn a_link_that_is_not_there_cannot_be_announced() {
    on_a_node(|| {
        let kernel = kernel(&[]);
        let pod = Pod::new();
        let announced = in_session(&kernel, &pod, |session| {
            session.announce(
                &"net1".parse().unwrap(),
                "02:00:5e:10:00:01".parse().unwrap(),
                &["10.0.0.1".parse().unwrap()],
            )
        });
        assert!(announced.is_err());
    });
}
