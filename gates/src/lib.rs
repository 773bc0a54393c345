//! What opens doors: the central controller and the gate in front of a pod's containers.

pub mod controller;
pub mod gate;
