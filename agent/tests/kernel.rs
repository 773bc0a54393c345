//! The kernel layer against the real kernel, in network namespaces. Needs root.

mod kernel {
    pub mod attach;
}
#[path = "kernel/world.rs"]
mod world;
