//! In which order a node tries the blocks of a range, so that a thousand nodes rarely try the same one. Pure.
//!
//! Double hashing: where a node starts and how far it steps both depend on its name, so nodes that meet once do not
//! follow each other from block to block.

use std::time::Duration;

use fairlead_crds::names;

/// Longest time between a lost race and the next try.
const LONGEST: Duration = Duration::from_millis(800);

/// The order of one node in one range.
#[derive(Debug, Clone, Copy)]
pub struct Order {
    count: u64,
    start: u64,
    stride: u64,
}

impl Order {
    /// The order of the named node among `count` blocks.
    pub fn new(node: &str, count: u64) -> Self {
        let hash =
            |part: &str| u64::from_str_radix(&names::hash8(&["grid", part, node]), 16).unwrap_or_default();
        let start = (hash("high") << 32 | hash("start")) % count.max(1);
        // The count is a power of two, so an odd step visits every block once.
        Self { count, start, stride: (hash("far") << 32 | hash("stride")) | 1 }
    }

    /// The block to try after so many others. Every block once in `count` steps.
    pub fn at(self, step: u64) -> u64 {
        self.start.wrapping_add(step.wrapping_mul(self.stride)) % self.count.max(1)
    }
}

/// How long to wait after that many lost races in a row: nodes that lost together come back apart.
pub fn pause(node: &str, lost: u32) -> Duration {
    let window = Duration::from_millis(25).saturating_mul(1 << lost.min(5)).min(LONGEST);
    let hash =
        u32::from_str_radix(&names::hash8(&["pause", node, &lost.to_string()]), 16).unwrap_or_default();
    window.mul_f64(f64::from(hash) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashSet};

    use super::*;

    #[test]
    fn every_block_of_a_range_is_visited_once() {
        for count in [1u64, 2, 4, 256] {
            for node in ["node1", "node2"] {
                let order = Order::new(node, count);
                let visited: BTreeSet<u64> = (0..count).map(|step| order.at(step)).collect();
                assert_eq!(visited.len() as u64, count);
            }
        }
    }

    #[test]
    fn a_range_of_any_size_has_an_order() {
        for count in [0, 1 << 60, u64::MAX] {
            assert!((0..70_000).all(|step| Order::new("node1", count).at(step) < count.max(1)));
        }
    }

    #[test]
    fn nodes_that_lost_together_come_back_apart_and_soon() {
        let pauses: BTreeSet<Duration> = (0..100).map(|n| pause(&format!("node{n}"), 3)).collect();
        assert!(pauses.len() > 90);
        assert!((0..40).all(|lost| pause("node1", lost) <= LONGEST));
        assert!((0..100).all(|n| pause(&format!("node{n}"), 0) <= Duration::from_millis(25)));
    }

    /// Every node claims `each` blocks, all of them at the same time: in every round each sends one request, and of
    /// those for one block one wins. Gives the lost races of every node.
    fn storm(nodes: usize, each: usize, count: u64) -> Vec<u64> {
        let orders: Vec<Order> = (0..nodes).map(|n| Order::new(&format!("node-{n}"), count)).collect();
        let (mut taken, mut steps) = (HashSet::new(), vec![0u64; nodes]);
        let (mut owned, mut lost) = (vec![0usize; nodes], vec![0u64; nodes]);
        while owned.iter().any(|owned| *owned < each) {
            for node in 0..nodes {
                if owned[node] == each || steps[node] >= count {
                    owned[node] = each;
                    continue;
                }
                let block = orders[node].at(steps[node]);
                steps[node] += 1;
                if taken.insert(block) {
                    owned[node] += 1;
                } else {
                    lost[node] += 1;
                }
            }
        }
        lost
    }

    /// Mean of the lost races per claim and the worst node's.
    fn conflicts(nodes: usize, each: usize, count: u64) -> (f64, u64) {
        let lost = storm(nodes, each, count);
        let claims = f64::from(u32::try_from(nodes * each).unwrap());
        (
            f64::from(u32::try_from(lost.iter().sum::<u64>()).unwrap()) / claims,
            lost.into_iter().max().unwrap(),
        )
    }

    #[test]
    fn a_thousand_nodes_that_claim_at_once_rarely_meet() {
        // A /16 in blocks of /28, one block each: a quarter of it is claimed in the end.
        let (mean, worst) = conflicts(1000, 1, 4096);
        assert!(mean < 0.2 && worst <= 6, "{mean} lost races per claim, {worst} of one node");
        // Three blocks each: three quarters of it.
        let (mean, worst) = conflicts(1000, 3, 4096);
        assert!(mean < 1.1 && worst <= 40, "{mean} lost races per claim, {worst} of one node");
    }

    #[test]
    fn the_last_blocks_of_a_range_cost_what_double_hashing_costs_and_no_more() {
        // 1000 of 1024 blocks: (1/a) ln(1/(1-a)) - 1 = 2.8 at a = 0.977. Probing one after the other would cost 20.
        let (mean, _) = conflicts(1000, 1, 1024);
        assert!(mean < 3.5, "{mean} lost races per claim");
    }
}
