//! What a pod costs the API server, by who asks.

use std::str::FromStr;

use anyhow::Result;

use crate::{audit::Mark, cluster::Cluster};

/// Who asks the API server for something because of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// fairlead's agents
    Agent,
    /// fairlead's controllers
    Controller,
    /// The kubelets
    Kubelet,
    /// The scheduler
    Scheduler,
}

impl Client {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Agent, Self::Controller, Self::Kubelet, Self::Scheduler];

    /// As it stands in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Controller => "controller",
            Self::Kubelet => "kubelet",
            Self::Scheduler => "scheduler",
        }
    }
}

impl FromStr for Client {
    type Err = ();

    /// Reads the full name of a user.
    fn from_str(user: &str) -> Result<Self, ()> {
        match user {
            "system:serviceaccount:fairlead-system:fairlead-agent" => Ok(Self::Agent),
            "system:serviceaccount:fairlead-system:fairlead-controller" => Ok(Self::Controller),
            "system:kube-scheduler" => Ok(Self::Scheduler),
            _ if user.starts_with("system:node:") => Ok(Self::Kubelet),
            _ => Err(()),
        }
    }
}

/// How often each of [`Client::ALL`] read and wrote since the mark, whatever the answer was. Leases, which are
/// renewed without any pod, are left out, and so are watches.
pub fn requests(cluster: &Cluster, since: Mark) -> Result<Vec<(Client, [usize; 2])>> {
    let mut counts = Client::ALL.map(|client| (client, [0, 0]));
    for request in cluster.audit_since(since, |request| request.verb != "watch")? {
        let lease = request.object_ref.as_ref().is_some_and(|object| object.resource == "leases");
        let Ok(client) = request.user.username.parse::<Client>() else { continue };
        if let (false, Some((_, count))) = (lease, counts.iter_mut().find(|(one, _)| *one == client)) {
            count[usize::from(request.is_write())] += 1;
        }
    }
    Ok(counts.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_known_by_their_user() {
        assert_eq!("system:node:node1".parse(), Ok(Client::Kubelet));
        assert_eq!("system:admin".parse::<Client>(), Err(()));
    }
}
