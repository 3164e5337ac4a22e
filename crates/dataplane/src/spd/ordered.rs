//! Policies in the order of their ranks, whose versions share what they have in common.
//!
//! Method: a treap (Seidel, Aragon, Algorithmica 1996), a search tree whose shape is that of policies added in a random
//! order, in whatever order they come. A change copies the way to its place, some two nodes for each doubling of the number.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::quality::RandomState;

use crate::policy::{Policy, Rank};

/// The rank, and for those of the same rank where the policy lies.
type Key = (Rank, usize);

type Link = Option<Arc<Node>>;

#[derive(Clone)]
struct Node {
    key: Key,
    /// None below has a higher one.
    weight: u64,
    policy: Arc<Policy>,
    better: Link,
    worse: Link,
}

/// A version of such policies, each of which is in it once.
#[derive(Clone, Default)]
pub(super) struct Ordered {
    root: Link,
    hasher: RandomState,
}

impl Ordered {
    /// The best.
    pub(super) fn first(&self) -> Option<&Arc<Policy>> {
        let mut node = self.root.as_ref()?;
        while let Some(better) = &node.better {
            node = better;
        }
        Some(&node.policy)
    }

    pub(super) fn insert(&mut self, policy: Arc<Policy>) {
        let key = key_of(&policy);
        let weight = self.hasher.hash_one(key);
        insert(&mut self.root, Node { key, weight, policy, better: None, worse: None });
    }

    /// Removes a policy that is in it.
    pub(super) fn remove(&mut self, policy: &Arc<Policy>) {
        remove(&mut self.root, key_of(policy));
    }
}

fn key_of(policy: &Arc<Policy>) -> Key {
    (policy.rank(), Arc::as_ptr(policy).addr())
}

fn insert(link: &mut Link, node: Node) {
    match link {
        Some(here) if here.weight >= node.weight => {
            let here = Arc::make_mut(here);
            let side = if node.key < here.key { &mut here.better } else { &mut here.worse };
            insert(side, node);
        }
        _ => {
            let (better, worse) = split(link.take(), node.key);
            *link = Some(Arc::new(Node { better, worse, ..node }));
        }
    }
}

fn remove(link: &mut Link, key: Key) {
    let Some(node) = link else { return };
    let node = Arc::make_mut(node);
    if key == node.key {
        *link = joined(node.better.take(), node.worse.take());
    } else {
        remove(if key < node.key { &mut node.better } else { &mut node.worse }, key);
    }
}

/// Those before a key, and those after it.
fn split(link: Link, key: Key) -> (Link, Link) {
    let Some(mut node) = link else { return (None, None) };
    let here = Arc::make_mut(&mut node);
    if here.key < key {
        let (better, worse) = split(here.worse.take(), key);
        here.worse = better;
        (Some(node), worse)
    } else {
        let (better, worse) = split(here.better.take(), key);
        here.better = worse;
        (better, Some(node))
    }
}

/// Both, of which all in the first come before those in the second.
fn joined(better: Link, worse: Link) -> Link {
    let (mut first, mut second) = match (better, worse) {
        (Some(first), Some(second)) => (first, second),
        (better, worse) => return better.or(worse),
    };
    if first.weight >= second.weight {
        let here = Arc::make_mut(&mut first);
        here.worse = joined(here.worse.take(), Some(second));
        Some(first)
    } else {
        let here = Arc::make_mut(&mut second);
        here.better = joined(Some(first), here.better.take());
        Some(second)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::{Direction, PolicyConfig};
    use crate::prefix::Family;
    use crate::selector::Selector;

    fn policy(n: u32, priority: u32) -> Arc<Policy> {
        let config = PolicyConfig::bypass(n, Direction::Out, Selector::any(Family::V4));
        Arc::new(Policy::new(PolicyConfig { priority, position: u64::from(n % 2), ..config }))
    }

    fn all(link: &Link, found: &mut Vec<Key>) {
        if let Some(node) = link {
            all(&node.better, found);
            found.push(node.key);
            all(&node.worse, found);
        }
    }

    fn depth(link: &Link) -> usize {
        link.as_ref().map_or(0, |node| 1 + depth(&node.better).max(depth(&node.worse)))
    }

    proptest! {
        #[test]
        fn equals_a_sorted_list_in_every_version(
            steps in prop::collection::vec((0..4u32, any::<u16>()), 1..120),
        ) {
            let (mut ordered, mut twin) = (Ordered::default(), Vec::<Arc<Policy>>::new());
            let mut versions = Vec::new();
            for (n, (what, bits)) in (0..).zip(steps) {
                if what == 0 && !twin.is_empty() {
                    let removed = twin.remove(usize::from(bits) % twin.len());
                    ordered.remove(&removed);
                } else {
                    let new = policy(n, u32::from(bits % 5));
                    ordered.insert(new.clone());
                    twin.push(new);
                }
                versions.push((ordered.clone(), twin.clone()));
            }
            for (ordered, mut twin) in versions {
                twin.sort_by_key(key_of);
                let mut found = Vec::new();
                all(&ordered.root, &mut found);
                prop_assert_eq!(found, twin.iter().map(key_of).collect::<Vec<_>>());
                let first = ordered.first().map(Arc::as_ptr);
                prop_assert_eq!(first, twin.first().map(Arc::as_ptr));
            }
        }
    }

    #[test]
    fn the_way_to_a_policy_is_short_in_whatever_order_they_come() {
        let mut ordered = Ordered::default();
        for n in 0..4000 {
            ordered.insert(policy(n, n));
        }
        assert!(depth(&ordered.root) < 80, "{}", depth(&ordered.root));
    }
}
