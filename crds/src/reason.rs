//! Every condition type and every reason, with what it means and what to do: the one table that code and docs share.

macro_rules! table {
    ($(#[$doc:meta])* $name:ident { $($variant:ident: $means:literal, $todo:literal;)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $(#[doc = $means] $variant,)+
        }

        impl $name {
            /// All of them, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name as it stands in an object.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant),)+ }
            }

            /// What it means, in one sentence.
            pub fn means(self) -> &'static str {
                match self { $(Self::$variant => $means,)+ }
            }

            /// What a person should do about it.
            pub fn todo(self) -> &'static str {
                match self { $(Self::$variant => $todo,)+ }
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

pub(crate) use table;

table! {
    /// Types of conditions.
    ConditionType {
        Ready: "PodNetwork: every interface the pod asks for is up with its addresses. NodeNetwork: the agent can attach pods.", "Read the reason and the message.";
        Held: "PodNetwork: the pod's containers waited for its interfaces.", "False is normal for pods created before the installation and for networks added to a running pod.";
        RequestMismatch: "PodNetwork: the addresses the pod holds differ from what the scheduler was asked for.", "Usually a network added to or removed from a running pod; nothing to do unless the node runs out of addresses.";
        HoldStrict: "NodeNetwork: no container of a pod held by the runtime starts here while the plugin that holds it is missing.", "False: see the reason; pods held by the runtime are not sent to this node.";
        Accepted: "Network: the controller admitted it and agents act on it.", "Read the reason and the message.";
        InUse: "Network: pods or blocks still need it, so it cannot go away yet.", "Delete the pods that use it; the message counts them.";
        Draining: "Network: a range was removed or narrowed, and its addresses are still in use; it is absent otherwise.", "Delete the pods that the message names, or take the range back into the Network.";
    }
}

table! {
    /// Reasons of conditions and events.
    Reason {
        Attached: "Every interface is up with its addresses.", "Nothing.";
        Waiting: "Addresses are held; the pod's sandbox does not exist yet.", "Look at the pod's own events: images, volumes and the primary network come first.";
        Attaching: "The interfaces are being attached.", "Nothing, unless it lasts.";
        AttachFailed: "The kernel or the runtime refused a step; it is tried again.", "Read the message: it names the step and the kernel's words.";
        InvalidRequest: "The annotation fairlead.dev/networks cannot be read.", "Correct the annotation; the message points at the place.";
        NetworkNotFound: "A network the pod asks for does not exist.", "Create the Network or correct the annotation; the pod goes on by itself.";
        NetworkNotAccepted: "A network the pod asks for is not accepted.", "See `kubectl get fnet`; the pod goes on by itself once it is accepted.";
        NetworkTerminating: "A network the pod asks for is being deleted.", "Ask for another network, or wait and create it again.";
        NoStrictNode: "The pod is held by the container runtime, and no ready node can do that strictly.", "See `kubectl get nnet`: make nodes nri-strict, or set the Network's hold to Gate and create the pod again.";
        NetworkNotOnNode: "A network the pod asks for does not exist on the pod's node.", "Check the Network's nodeSelector against the node's labels; delete the pod so that it is scheduled again.";
        NamespaceNotAllowed: "The network does not allow the pod's namespace.", "Change the Network's allowedNamespaces or the namespace's labels.";
        InterfaceNameTaken: "The interface name is in use in the pod by something else.", "Ask for another name; eth0 and lo are never ours.";
        NoAddresses: "The network has no free address for this node.", "Delete pods that use the network, or add a range to it.";
        QuarantinedUntil: "All free addresses are in quarantine; the message says until when.", "Wait, or add a range.";
        BlockLimit: "All addresses that the node may have are in use: it owns as many blocks as ipam.maxBlocksPerNode allows.", "Delete pods of the network on the node, raise ipam.maxBlocksPerNode, or let the pod run on another node.";
        HotplugNoCapacity: "A network was added to a running pod, but all of the node's addresses are promised to the scheduler.", "Set the Network's ipam.hotplugReserve, delete pods on the node, or add a range.";
        AddressInUse: "Something that fairlead did not attach answered for an address before the pod used it; the pod gets another one.", "Find the device with the MAC that the message names, or exclude the address from the range. It is tried again after ten minutes.";
        StaticNotAllowed: "The pod asks for an address or hardware address by value, and the network does not allow it.", "Set the Network's allowStatic, or remove ips and mac from the annotation.";
        AddressRefused: "The network cannot give the address or hardware address that the pod asks for by value.", "Read the message: it names the range and the way out.";
        AddressTaken: "The reserved address that the pod asks for is another's.", "Delete the pod that the message names, or ask for another address.";
        NoReservedAddress: "The network's reserved ranges have no free address for the pod.", "Delete an IPBlock whose claim is not needed any more, or add a range with use: Reserved.";
        AwaitingAddress: "The pod's reserved address is being granted, or its last holder is not proven gone yet.", "Wait; if the message names a node that is lost, see the operations guide on dead nodes.";
        RecordRefused: "The API server refused the record, so nothing was attached.", "Read the message; usually a policy or a quota.";
        BlockLost: "An address of the pod lies in a block that this node does not own any more.", "The node was away for long; delete the pod to give it another address.";
        BridgeNameTaken: "The bridge's name belongs to a link that fairlead did not make.", "Choose another bridge name, or set bridge.manage to Existing if it is a bridge.";
        BridgeMissing: "The bridge does not exist on the node, and bridge.manage is Existing.", "Create the bridge on the node.";
        DeviceNotAllowed: "The uplink is not matched by the agent's flag --devices.", "Add a glob for the device to the flag, after making sure it is not the node's own uplink.";
        ParentMissing: "The uplink does not exist on the node.", "Check the device's name, or the Network's nodeSelector.";
        ParentDown: "The uplink is down; fairlead never sets it up.", "Set it up on the node, and see why it is down.";
        ParentBusy: "The uplink is already used in another way.", "Use another device, or remove the other use.";
        MtuTooLarge: "The network's MTU is larger than its uplink's.", "Lower spec.mtu or raise the uplink's MTU.";
        HostNetwork: "The pod uses the node's own network.", "Remove hostNetwork or the annotation.";
        UnsupportedRuntime: "Interfaces added to a sandbox of this runtime are invisible to its containers.", "Use a runtime that shares the node's kernel.";
        Contested: "Something keeps changing what fairlead made; it is not repaired any more for a while.", "Find who changes it; the message names what changed.";
        Repaired: "Something had changed or deleted what fairlead made; it was put back.", "Find who changes it if it happens again.";
        RequestDiffers: "The pod holds another number of attachments than it asked the scheduler for.", "Nothing, unless it was not meant.";
        Gate: "The gate held the pod's containers.", "Nothing.";
        Nri: "Plugins of the container runtime held the pod's containers.", "Nothing.";
        StartedUnheld: "A container of the pod ran before its interfaces were up: no plugin of the container runtime held it.", "See why the agent was away; make the node strict. The networks' `unheld` decides what happens to the pod.";
        AdmittedWithoutGate: "The pod was created without the gate or another hold, so its containers did not wait.", "Recreate the pod if its containers must find their interfaces when they start.";
        Accepted: "The network is admitted.", "Nothing.";
        DriverNotYetSupported: "This version does not have the driver.", "Use the bridge driver, or another version.";
        FieldNotYetSupported: "This version does not have a field that is set.", "Remove the field that the message names, or use another version.";
        RangeOverlap: "A range overlaps that of an older network in the same space.", "Change the range or the space; the message names the other network.";
        TooManyNetworks: "There are more networks or attach rules than the admission policy can carry.", "Remove some: at most 256 of each.";
        StillUsed: "Pods or blocks still need the network.", "Delete the pods that use it; the message counts them.";
        Unused: "Nothing needs the network.", "Nothing.";
        RangeInUse: "Pods still hold addresses of a range that was removed, or nodes still own blocks of it.", "Delete the pods that the message names, or take the range back into the Network.";
        DefaultValidator: "The runtime's default validator refuses containers whose required plugin is missing.", "Nothing.";
        GuardPreinstalled: "The runtime itself starts the guard, before the first pod of a boot.", "Nothing.";
        MissingPluginOpens: "The guard is connected, but while it is away the runtime lets every container through.", "Enable the runtime's default validator, or install the guard in the runtime's plugin folder.";
        StrictnessUnknown: "The guard is connected, but no container was created since, so the runtime has not shown its validators yet.", "Nothing; the next container on the node shows it.";
        NoGuard: "The guard is not connected to the runtime.", "Enable NRI in the runtime (containerd 2 has it on by default), and see the log of the container guard.";
        AgentReady: "The agent can attach pods.", "Nothing.";
        InterfaceAddRejected: "A pod of the node's own network asked for a network.", "Remove hostNetwork or the annotation.";
        NetworkIsland: "Pods of one network run on several nodes, but the network does not reach between nodes.", "Give the network an uplink, or keep its pods on one node.";
        PodWaits: "A pod waits for its networks; the message says why.", "See the reason in the message.";
    }
}

impl Reason {
    /// Whether waiting alone can help: addresses, devices and objects come and go; a wrong request does not.
    pub fn is_transient(self) -> bool {
        !matches!(self, Self::InvalidRequest | Self::HostNetwork | Self::UnsupportedRuntime)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_name_stands_once_and_every_text_is_a_sentence() {
        let names: BTreeSet<_> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
        assert_eq!(names.len(), Reason::ALL.len());
        for reason in Reason::ALL {
            assert!(reason.means().ends_with('.') && reason.todo().ends_with('.'), "{reason}");
        }
    }
}
