//! What opens doors: the central controller, the gate in front of a pod's containers, and the guard in the runtime;
//! and the audit of them.

pub mod audit;
pub mod controller;
pub mod gate;
pub mod guard;
pub mod marker;
mod stop;
