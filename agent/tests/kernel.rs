//! The kernel layer against the real kernel, in network namespaces. Needs root.

#![expect(clippy::expect_used, clippy::unwrap_used, reason = "what fails here is a failed test")]

mod kernel {
    pub mod attach;
    pub mod bridges;
    pub mod forget;
    pub mod host;
    pub mod privileges;
    pub mod probe;
    pub mod same;
}
#[path = "kernel/world.rs"]
mod world;
