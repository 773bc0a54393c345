//! Bugs on purpose: tests of the test. They are made around the agent, in what it talks to, never in it.

/// One bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// Records are said to be written and are not: as if the agent went to the kernel first.
    SkipWriteAhead,
    /// Quarantines never reach the block: as if the agent forgot to write them.
    SkipQuarantine,
    /// A block goes back although an address of it is in use.
    HandBackUsed,
    /// A claim of a block that another node has succeeds.
    ClaimTaken,
    /// Links are said to be cut and are not.
    KeepLinks,
    /// A write is carried out whatever version of the object it was meant for, also a minute late.
    IgnoreVersions,
}
