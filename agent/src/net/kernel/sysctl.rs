//! Sysctls of links. Which namespace a path under the root leads to is decided by the thread that opens it,
//! also through a bind mount of another namespace's `/proc/sys/net`: always called on a thread that is in
//! the link's namespace.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::super::NetError;
use super::super::netlink::Counters;

/// Answers ARP only from the link that has the address; replies may come in another way than they went out;
/// other IPv4 addresses stay when the first one of a subnet goes.
const IPV4: [(&str, &str); 3] = [("arp_announce", "2"), ("rp_filter", "2"), ("promote_secondaries", "1")];

/// No addresses and routes from routers nobody asked for; addresses stay when the link is set down.
const IPV6: [(&str, &str); 2] = [("accept_ra", "0"), ("keep_addr_on_down", "1")];

/// The sysctls below `net`.
#[derive(Debug)]
pub(super) struct Sysctls {
    root: PathBuf,
    counters: Arc<Counters>,
}

impl Sysctls {
    pub fn new(root: PathBuf, counters: Arc<Counters>) -> Self {
        Self { root, counters }
    }

    /// Whether the kernel has IPv6.
    pub fn has_ipv6(&self) -> bool {
        self.root.join("ipv6").is_dir()
    }

    /// How many connections the kernel tracks; none where it tracks them not at all.
    pub fn connections(&self) -> usize {
        let count = fs::read_to_string(self.root.join("netfilter/nf_conntrack_count"));
        count.ok().and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }

    /// Sets what the pod's end of a link needs before it is up.
    pub fn prepare(&self, link: &str, ipv6: bool) -> Result<(), NetError> {
        for (key, value) in IPV4 {
            self.write("ipv4", link, key, value)?;
        }
        if !ipv6 {
            return self.disable_ipv6(link);
        }
        for (key, value) in IPV6 {
            self.write("ipv6", link, key, value)?;
        }
        self.write("ipv6", link, "disable_ipv6", "0")
    }

    /// A link without IPv6 in the first place (no such kernel, or an MTU below 1280) is fine.
    pub fn disable_ipv6(&self, link: &str) -> Result<(), NetError> {
        match self.write("ipv6", link, "disable_ipv6", "1") {
            Err(NetError::System { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }

    fn write(&self, family: &str, link: &str, key: &str, value: &str) -> Result<(), NetError> {
        let path = self.root.join(family).join("conf").join(link).join(key);
        self.counters.count_sysctl();
        fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|mut file| io::Write::write_all(&mut file, value.as_bytes()))
            .map_err(|source| NetError::System {
                action: format!("write {value} to {}", path.display()),
                source,
            })
    }
}
