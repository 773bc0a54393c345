//! A real Kubernetes cluster on this machine, from Go modules: no container engine, no image registry.
//!
//! ```text
//! build, images  ->  Cluster::up  ->  control_plane + node (per node: netns, mounts, containerd, kubelet)
//!                                     every process in a cgroup of the cluster  ->  teardown
//! ```
//! It knows nothing of what is installed on it but for [`fairlead`]. Nothing is skipped silently: what cannot
//! be done is an error that says what is missing and how to install it.

pub mod audit;
pub mod build;
pub mod cgroup;
pub mod cluster;
pub mod control_plane;
pub mod diagnose;
pub mod fairlead;
pub mod images;
pub mod kubectl;
pub mod layout;
pub mod measure;
pub mod netns;
pub mod node;
pub mod pki;
pub mod prereq;
pub mod process;
pub mod progress;
pub mod show;
pub mod teardown;
pub mod wait;

pub use cluster::{Cluster, Options};
pub use layout::Layout;
