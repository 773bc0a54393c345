//! Well-known names. A name that a manifest, a policy or a user types is a constant here.

use sha2::{Digest, Sha256};

/// API group of all kinds.
pub const GROUP: &str = "fairlead.dev";
/// API version of all kinds.
pub const API_VERSION: &str = "v1alpha1";
/// Namespace of the installation.
pub const INSTALL_NAMESPACE: &str = "fairlead-system";
/// Name of the agent's `DaemonSet` and service account.
pub const AGENT: &str = "fairlead-agent";
/// Name of the controller's Deployment, service account and leader Lease.
pub const CONTROLLER: &str = "fairlead-controller";
/// Name of the injected first init container.
pub const GATE_CONTAINER: &str = "fairlead-gate";
/// Name of the one [`crate::Admission`] object.
pub const ADMISSION: &str = "default";

/// Pod annotation: the networks a pod asks for.
pub const NETWORKS_ANNOTATION: &str = "fairlead.dev/networks";
/// Pod annotation: the snapshot of what the selectors gave at creation.
pub const SELECTED_ANNOTATION: &str = "fairlead.dev/selected";
/// Pod annotation: how the pod was admitted to be held. Absent for a pod with a gate; [`HOLD_NRI`] for one whose
/// containers the runtime's plugins hold. Written by the admission policies only, and never changed.
pub const HOLD_ANNOTATION: &str = "fairlead.dev/hold";
/// The value of [`HOLD_ANNOTATION`] for a pod that the runtime's plugins hold.
pub const HOLD_NRI: &str = "nri";
/// Pod annotation: when the interfaces of a pod that the runtime's plugins hold were attached, RFC 3339 with milliseconds.
/// Written with the pod's condition, so that the kubelet takes note of it at once.
pub const ATTACHED_AT_ANNOTATION: &str = "fairlead.dev/attached-at";
/// Pod annotation by which containerd's default validator refuses containers while the named NRI plugins are not
/// connected: a JSON list of their names. `<key>/container.<name>` and `<key>/pod` come before it.
pub const REQUIRED_PLUGINS_ANNOTATION: &str = "required-plugins.noderesource.dev";
/// Node label: how the node can hold pods; [`HOLD_NRI_STRICT`], [`HOLD_NRI`] or [`HOLD_GATE`].
pub const HOLD_LABEL: &str = "fairlead.dev/hold";
/// The value of [`HOLD_LABEL`] on a node where a missing plugin cannot let a pod through.
pub const HOLD_NRI_STRICT: &str = "nri-strict";
/// The value of [`HOLD_LABEL`] on a node that holds pods by their gate only.
pub const HOLD_GATE: &str = "gate";
/// Name under which the guard registers with the runtime; required by pods that it holds.
pub const GUARD_PLUGIN: &str = "fairlead-guard";
/// Name under which the agent registers with the runtime.
pub const AGENT_PLUGIN: &str = "fairlead-agent";
/// `NodeNetwork` annotation: an admin asserts that the node cannot reach the network any more.
pub const FENCED_ANNOTATION: &str = "fairlead.dev/fenced";
/// Annotation of an agent's Lease: when it stopped, with nothing of it under way.
pub const STOPPED_ANNOTATION: &str = "fairlead.dev/stopped";
/// Annotation of an agent's Lease: UID of the pod of an agent on the same node that is to take its place.
pub const PREFERRED_HOLDER_ANNOTATION: &str = "fairlead.dev/preferred-holder";
/// Annotation of a record: when an agent took it over from one that did not stop in order.
pub const TAKEN_OVER_ANNOTATION: &str = "fairlead.dev/taken-over";
/// Namespace label: pods of this namespace may be selected without asking.
pub const ATTACH_LABEL: &str = "fairlead.dev/attach";
/// The value of [`ATTACH_LABEL`] that switches selection on.
pub const ATTACH_ENABLED: &str = "enabled";
/// `PodNetwork` label: the pod's name, truncated with a hash where it is too long for a label.
pub const POD_LABEL: &str = "fairlead.dev/pod";
/// `PodNetwork` and `IPBlock` label: the node, so that `kubectl get -l` works without field selectors.
pub const NODE_LABEL: &str = "fairlead.dev/node";

/// `PodNetwork` label: containers of the pod ran before its interfaces were up, and a network wants such pods evicted.
/// Set by the agent; the controller evicts.
pub const EVICT_LABEL: &str = "fairlead.dev/evict";
/// The value of [`EVICT_LABEL`].
pub const EVICT_UNHELD: &str = "unheld";

/// Pod condition and readiness gate.
pub const NETWORK_READY: &str = "fairlead.dev/network-ready";
/// Pod scheduling gate for what does not depend on the node.
pub const SCHEDULING_GATE: &str = "fairlead.dev/scheduling";
/// Prefix of the extended resource of a network; see [`resource`].
pub const RESOURCE_PREFIX: &str = "fairlead.dev/net-";
/// Default prefix of the taint key of an exhausted network; see [`taint_key`].
pub const TAINT_PREFIX: &str = "ip-exhausted.fairlead.dev/";

/// Default key of the taint of a node whose agent cannot attach pods yet.
pub const AGENT_NOT_READY_TAINT: &str = "fairlead.dev/agent-not-ready";
/// Value of every such taint that the controller sets: by it the taint is ours, whatever its key.
pub const AGENT_NOT_READY_MARK: &str = "agent-not-ready.fairlead.dev";

/// Finalizer of a `Network` while something uses it.
pub const NETWORK_FINALIZER: &str = "fairlead.dev/in-use";
/// Finalizer of a `PodNetwork` until its addresses are proven free.
pub const POD_NETWORK_FINALIZER: &str = "fairlead.dev/release";
/// Finalizer of an `IPBlock` while a node owns it.
pub const BLOCK_FINALIZER: &str = "fairlead.dev/owned";

/// Value of every taint of an exhausted network: by it a taint is ours, whatever the prefix of its key.
pub const TAINT_MARK: &str = "ip-exhausted.fairlead.dev";

/// The abstract socket in the node's network namespace that the agent at work holds.
pub const AGENT_SOCKET: &str = "fairlead-agent";
/// Link group of every link fairlead makes (`IFLA_GROUP`); "fl" in ASCII.
pub const LINK_GROUP: u32 = 0x666c;
/// Route protocol of every route fairlead makes (`RTPROT_*`); above the registered ones.
pub const ROUTE_PROTOCOL: u8 = 0xf1;
/// Prefix of every host link fairlead makes.
pub const LINK_PREFIX: &str = "fl";

/// Environment of the gate: UID of its pod.
pub const ENV_POD_UID: &str = "FAIRLEAD_POD_UID";
/// Environment of the gate: name of its pod.
pub const ENV_POD_NAME: &str = "FAIRLEAD_POD_NAME";
/// Environment of the gate: namespace of its pod.
pub const ENV_POD_NAMESPACE: &str = "FAIRLEAD_POD_NAMESPACE";
/// Environment of the gate: node of its pod.
pub const ENV_NODE_NAME: &str = "FAIRLEAD_NODE_NAME";

/// Longest name of a Network, so that every name made from it fits its place.
pub const NETWORK_NAME_MAX: usize = 40;
const LABEL_MAX: usize = 63;
const OBJECT_NAME_MAX: usize = 253;

/// The extended resource that counts a network's attachments on a node.
pub fn resource(network: &str) -> String {
    format!("{RESOURCE_PREFIX}{network}")
}

/// The taint key of an exhausted network, under the given prefix ([`TAINT_PREFIX`] unless configured).
pub fn taint_key(prefix: &str, network: &str) -> String {
    format!("{prefix}{network}")
}

/// Whether a taint is that of an exhausted network: it carries our value, or its key is of our domain.
pub fn is_our_taint(key: &str, value: Option<&str>) -> bool {
    value == Some(TAINT_MARK) || key.starts_with(TAINT_PREFIX)
}

/// Whether a taint is that of a node whose agent cannot attach pods yet: it carries our value, or our key.
pub fn is_startup_taint(key: &str, value: Option<&str>) -> bool {
    value == Some(AGENT_NOT_READY_MARK) || key == AGENT_NOT_READY_TAINT
}

/// The first eight hexadecimal digits of the SHA-256 of `parts`, separated so that `["a","bc"]` and `["ab","c"]` differ.
pub fn hash8(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    let digest = hash.finalize();
    format!("{:08x}", u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]))
}

/// The name of a pod's record: `<pod>-<8 hex of the UID>`, the pod's name truncated with a hash where it is too long.
pub fn pod_network(pod: &str, uid: &str) -> String {
    let suffix: String = uid.chars().filter(char::is_ascii_hexdigit).take(8).collect();
    format!("{}-{suffix}", truncate(pod, OBJECT_NAME_MAX - 9))
}

/// The value of [`POD_LABEL`] for a pod's name.
pub fn pod_label(pod: &str) -> String {
    truncate(pod, LABEL_MAX)
}

/// The host end of a pod's link: `fl` and ten hexadecimal digits, deterministic in the pod's UID and interface.
pub fn host_link(uid: &str, interface: &str) -> String {
    let mut hash = hash8(&["link", uid, interface]);
    hash.push_str(&hash8(&["link2", uid, interface])[..2]);
    format!("{LINK_PREFIX}{hash}")
}

fn truncate(name: &str, max: usize) -> String {
    if name.len() <= max {
        return name.to_owned();
    }
    let kept: String = name.chars().take(max - 9).collect();
    format!("{}-{}", kept.trim_end_matches(['-', '.']), hash8(&[name]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_named_after_the_pod_and_its_uid() {
        assert_eq!(pod_network("web-0", "0f3c2a11-9d1e-4c3b-8f00-000000000000"), "web-0-0f3c2a11");
    }

    #[test]
    fn a_long_pod_name_is_cut_with_a_hash_and_stays_distinct() {
        let (one, two) = ("a".repeat(253), format!("{}b", "a".repeat(252)));
        assert_ne!(pod_network(&one, "0f3c2a11"), pod_network(&two, "0f3c2a11"));
        assert!(pod_network(&one, "0f3c2a11").len() <= 253);
        assert_eq!(pod_label(&one).len(), 63);
    }

    #[test]
    fn a_host_link_fits_an_interface_name_and_differs_by_interface() {
        assert_eq!(host_link("u", "net1").len(), 12);
        assert_ne!(host_link("u", "net1"), host_link("u", "net2"));
    }
}
