//! The marker on `lo` of the calling thread's network namespace: read, and judged. Shared by gate and guard.
//!
//! Reads only, without credentials or capabilities. It must not use an async runtime.

mod cookie;
mod lo;
mod netlink;
mod verdict;

pub use self::{
    cookie::own_cookie,
    lo::{LinkEvents, LoError, Seen, observe},
    verdict::{Verdict, Wait, judge},
};
