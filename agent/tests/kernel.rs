//! The kernel layer against the real kernel, in network namespaces. Needs root.

mod kernel {
    pub mod attach;
    pub mod bridges;
    pub mod host;
    pub mod privileges;
}
#[path = "kernel/world.rs"]
mod world;
