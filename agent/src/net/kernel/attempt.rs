//! Tries what the agent needs of the kernel, in a namespace that ends with the attempt.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};

use fairlead_crds::Mac;

use super::super::netlink::{Counters, Socket};
use super::super::{NetError, netns};
use super::request;
use super::sysctl::Sysctls;
use netlink_packet_route::RouteNetlinkMessage;

const BRIDGE: &str = "probe-br";
const VETH: &str = "probe-veth";
const DEADLINE: Duration = Duration::from_secs(2);

/// What does not work, each as one sentence.
pub(in super::super) fn run(sysctl_root: &Path) -> Vec<String> {
    match netns::run_in_new(|| in_new_namespace(sysctl_root)) {
        Ok(Ok(missing)) => missing,
        Ok(Err(error)) | Err(error) => {
            vec![format!("{error}: the agent needs network namespaces and rtnetlink")]
        }
    }
}

fn in_new_namespace(sysctl_root: &Path) -> Result<Vec<String>, NetError> {
    let counters = Arc::new(Counters::default());
    let mut socket = Socket::open(Arc::clone(&counters), DEADLINE)?;
    let mut missing = Vec::new();
    let mut make = |message, what: &str| {
        if let Err(refusal) = socket.change(message, NLM_F_CREATE | NLM_F_EXCL) {
            missing.push(format!("{}: the kernel needs {what}", refusal.during("make a link")));
        }
    };
    make(request::create_bridge(BRIDGE, Mac([2, 0, 0, 0, 0, 1]), 1500), "CONFIG_BRIDGE (module bridge)");
    make(veth(), "CONFIG_VETH (module veth)");
    // The link is in the new namespace only: what is written leads there, or the file does not exist.
    if missing.is_empty()
        && let Err(error) = Sysctls::new(sysctl_root.to_owned(), counters).prepare(VETH, false)
    {
        let text =
            format!("{error}: mount the node's /proc/sys/net writable, and name it with --sysctl-root");
        missing.push(text);
    }
    Ok(missing)
}

fn veth() -> RouteNetlinkMessage {
    let mut message = LinkMessage::default();
    message.attributes = vec![
        LinkAttribute::IfName(VETH.into()),
        LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Veth)]),
    ];
    RouteNetlinkMessage::NewLink(message)
}
