//! The central controller: one leader, which admits Networks, tells the scheduler what nodes can promise, says why
//! pods wait, and clears up after nodes that are gone.
//!
//! ```text
//!  watches                 view            decide (pure)                          drivers (effects)
//!  Networks, blocks --\                    ranges, users, admit, compile, hold -> networks
//!  Nodes, NodeNetworks -->  slim copies -> resource, taint, startup, node_patch -> nodes
//!  unscheduled pods  --/                   scheduling, waits -------------------> pods
//!                                          grant -------------------------------> reserved
//!                                          lost --------------------------------> lost_nodes, uninstall
//! ```
//! A driver looks at everything again after each change and writes only what differs. All writes go through
//! [`api::Caller`], which refuses them when the leader's term is not fresh. Nothing here is on the path of a pod.

pub mod accept;
pub mod admit;
pub mod api;
pub mod args;
pub mod cache;
pub mod compile;
pub mod election;
pub mod events;
pub mod grant;
pub mod hold;
pub mod http;
pub mod island;
pub mod leader;
pub mod lost;
pub mod lost_nodes;
pub mod metrics;
pub mod model;
mod networks;
pub mod node_patch;
mod nodes;
pub mod occupancy;
mod pods;
pub mod probe;
pub mod ranges;
mod remains;
mod reserved;
pub mod resource;
mod run;
pub mod scheduling;
pub mod settle;
pub mod space;
pub mod startup;
pub mod taint;
mod unheld;
mod uninstall;
mod users;
pub mod view;
pub mod waits;
pub mod wanted;

pub use args::{Args, Command};
pub use run::run;
