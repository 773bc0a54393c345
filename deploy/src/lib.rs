//! How fairlead is installed: its image, its manifests, and what applies them to a cluster.

pub mod image;
