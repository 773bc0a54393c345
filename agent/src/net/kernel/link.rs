//! A link as this crate reads it: the few of its attributes that matter, out of a netlink message.

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    AfSpecInet, AfSpecInet6, AfSpecUnspec, InetDevConf, InfoKind, LinkAttribute, LinkFlags, LinkInfo,
    LinkMessage,
};

use fairlead_crds::{Mac, names};

use crate::plan::HostLink;

/// Groups whose upper half is this are those of links of ours that are about to be deleted.
pub(super) const DOOMED: u32 = names::LINK_GROUP << 16;

/// A link.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Link {
    pub index: u32,
    pub name: String,
    pub flags: Flags,
    pub mtu: u32,
    pub mac: Option<Mac>,
    pub group: u32,
    pub controller: Option<u32>,
    pub alias: Option<String>,
    pub kind: Option<InfoKind>,
    /// `IFLA_LINK`: the other end of a veth, the parent of a macvlan.
    pub peer: Option<u32>,
    /// `IFLA_LINK_NETNSID`: the namespace that [`Self::peer`] is in, if not its own.
    pub peer_nsid: Option<i32>,
    /// None where the kernel has no IPv6 for this link.
    pub ipv6_disabled: Option<bool>,
    pub ipv4: InetDevConf,
    pub loopback: bool,
}

/// What is up about a link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Flags {
    /// Administratively.
    pub up: bool,
    /// The other end is up, too.
    pub carrier: bool,
    /// The kernel has acted on that: packets flow.
    pub running: bool,
}

impl Link {
    /// From an answer of the kernel; none if it is about something else.
    pub fn from_answer(message: RouteNetlinkMessage) -> Option<Self> {
        match message {
            RouteNetlinkMessage::NewLink(message) => Some(Self::from_message(message)),
            _ => None,
        }
    }

    pub fn from_message(message: LinkMessage) -> Self {
        let flags = message.header.flags;
        let mut link = Self {
            index: message.header.index,
            loopback: flags.contains(LinkFlags::Loopback),
            flags: Flags {
                up: flags.contains(LinkFlags::Up),
                carrier: flags.contains(LinkFlags::LowerUp),
                running: flags.contains(LinkFlags::Running),
            },
            ..Self::default()
        };
        message.attributes.into_iter().for_each(|attribute| link.take(attribute));
        link
    }

    fn take(&mut self, attribute: LinkAttribute) {
        match attribute {
            LinkAttribute::IfName(name) => self.name = name,
            LinkAttribute::Mtu(mtu) => self.mtu = mtu,
            LinkAttribute::Address(bytes) => self.mac = bytes.try_into().ok().map(Mac),
            LinkAttribute::Group(group) => self.group = group,
            LinkAttribute::Controller(index) => self.controller = Some(index).filter(|index| *index != 0),
            LinkAttribute::IfAlias(alias) => self.alias = Some(alias).filter(|alias| !alias.is_empty()),
            LinkAttribute::Link(index) => self.peer = Some(index).filter(|index| *index != 0),
            LinkAttribute::LinkNetNsId(nsid) => self.peer_nsid = Some(nsid),
            LinkAttribute::LinkInfo(infos) => infos.into_iter().for_each(|info| self.take_info(info)),
            LinkAttribute::AfSpecUnspec(families) => {
                for family in families {
                    self.take_family(family);
                }
            }
            _ => {}
        }
    }

    fn take_info(&mut self, info: LinkInfo) {
        if let LinkInfo::Kind(kind) = info {
            self.kind = Some(kind);
        }
    }

    fn take_family(&mut self, family: AfSpecUnspec) {
        match family {
            AfSpecUnspec::Inet(specs) => {
                for spec in specs {
                    if let AfSpecInet::DevConf(conf) = spec {
                        self.ipv4 = conf;
                    }
                }
            }
            AfSpecUnspec::Inet6(specs) => {
                for spec in specs {
                    if let AfSpecInet6::DevConf(conf) = spec {
                        self.ipv6_disabled = Some(conf.disable_ipv6 != 0);
                    }
                }
            }
            _ => {}
        }
    }

    /// Whether it is the host end of a pod's link: by group and name.
    pub fn is_ours(&self) -> bool {
        is_ours(self.group, &self.name)
    }

    /// Up at both ends, but the kernel has not acted on it yet (it does so in a work queue).
    pub fn is_settling(&self) -> bool {
        self.flags.up && self.flags.carrier && !self.flags.running
    }

    pub fn into_host_link(self) -> HostLink {
        HostLink {
            name: self.name,
            index: self.index,
            bridge: self.controller,
            mtu: self.mtu,
            up: self.flags.up,
            alias: self.alias,
            peer_nsid: self.peer_nsid,
            peer_index: self.peer,
        }
    }
}

/// Whether a group and name are those of a host end of ours.
pub(in super::super) fn is_ours(group: u32, name: &str) -> bool {
    (group == names::LINK_GROUP || group & 0xffff_0000 == DOOMED) && is_our_name(name)
}

/// `fl` and ten hexadecimal digits, as [`names::host_link`] makes them.
fn is_our_name(name: &str) -> bool {
    let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    name.strip_prefix(names::LINK_PREFIX).is_some_and(|rest| rest.len() == 10 && rest.bytes().all(digit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_ours_by_group_and_name_only() {
        let name = names::host_link("uid", "net1");
        assert!(is_ours(names::LINK_GROUP, &name));
        assert!(is_ours(DOOMED | 7, &name));
        assert!(!is_ours(0, &name));
        assert!(!is_ours(names::LINK_GROUP + 1, &name));
        for other in [
            "fl",
            "flannel.1",
            "fl012345678",
            "fl01234567890",
            "fl012345678g",
            "FL0123456789",
            "xx0123456789",
        ] {
            assert!(!is_ours(names::LINK_GROUP, other), "{other}");
        }
    }

    #[test]
    fn absent_and_empty_attributes_are_none() {
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfAlias(String::new()),
            LinkAttribute::Controller(0),
            LinkAttribute::Address(vec![1; 20]),
        ];
        let link = Link::from_message(message);
        assert_eq!((link.alias, link.controller, link.mac), (None, None, None));
    }
}
