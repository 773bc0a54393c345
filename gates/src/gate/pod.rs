//! Who the gate waits for: the pod's names, given by the downward API.

use std::{env, ffi::OsString};

use fairlead_crds::names;

/// The pod of this gate. A name that is not set is empty: the gate waits anyway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// UID; empty matches no marker.
    pub uid: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Node it is bound to.
    pub node: String,
}

impl Pod {
    /// From the environment of this process.
    pub fn from_env() -> Self {
        Self::from_vars(|name| env::var_os(name))
    }

    fn from_vars(var: impl Fn(&str) -> Option<OsString>) -> Self {
        let text = |name| var(name).unwrap_or_default().to_string_lossy().trim().to_owned();
        Self {
            uid: text(names::ENV_POD_UID),
            namespace: text(names::ENV_POD_NAMESPACE),
            name: text(names::ENV_POD_NAME),
            node: text(names::ENV_NODE_NAME),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_set_is_empty() {
        let pod = Pod::from_vars(|name| (name == "FAIRLEAD_POD_UID").then(|| "u1".into()));
        assert_eq!(
            pod,
            Pod { uid: "u1".into(), namespace: String::new(), name: String::new(), node: String::new() }
        );
    }
}
