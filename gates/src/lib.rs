//! What opens doors: the central controller and the gate in front of a pod's containers; and the audit of both.

pub mod audit;
pub mod controller;
pub mod gate;
