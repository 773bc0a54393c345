//! How fairlead is installed: its image, its manifests, and what applies them to a cluster.

pub mod cluster;
pub mod image;
pub mod install;
pub mod manifests;
pub mod progress;
pub mod uninstall;
