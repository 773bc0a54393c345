//! The fairlead agent: attaches networks to the pods of its node.
//!
//! ```text
//!  sources                      state           decide (pure)                       edges
//!  pods, Networks, blocks  --\                  intent : pod + networks -> wanted
//!  sandboxes (CRI)         ----> view, by UID   ipam   : wanted + blocks -> addresses  -> record (API, before the kernel)
//!  netlink notifications   --/                  plan   : wanted vs observed -> steps   -> net    (kernel)
//!                                               status : report -> PodNetwork status   -> record (API)
//! ```
//! `intent`, `ipam`, `plan`, `status` and `capacity` import neither `kube::Client`, `tokio` nor netlink;
//! time, randomness and the node's name are arguments.

pub mod admin;
pub mod api;
pub mod args;
pub mod audit;
pub mod blocks;
pub mod bridges;
pub mod bring;
pub mod capacity;
pub mod clock;
pub mod events;
pub mod handover;
pub mod hold;
pub mod host_events;
pub mod intent;
pub mod ipam;
pub mod lease;
pub mod maintain;
pub mod metrics;
pub mod model;
pub mod net;
pub mod node_network;
pub mod nri;
pub mod plan;
pub mod queue;
pub mod reconcile;
pub mod record;
pub mod repair;
pub mod reserved;
pub mod run;
pub mod sandbox;
pub mod sources;
pub mod startup;
pub mod status;
pub mod telemetry;
pub mod view;
pub mod wire;
pub mod work;
