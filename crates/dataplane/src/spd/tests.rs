//! The policy database against a linear search.

use std::net::IpAddr;

use proptest::prelude::*;

use super::*;
use crate::policy::PolicyConfig;
use crate::prefix::Prefix;
use crate::selector::{PortMatch, Selector};

/// The stupid twin: every policy, asked one after the other.
#[derive(Clone, Default)]
pub(crate) struct Twin(Vec<Arc<Policy>>);

/// What a look-up found, comparable.
#[derive(Debug, PartialEq)]
pub(crate) enum Found {
    Policy(u32),
    Default,
    PortsNeeded,
}

impl Twin {
    pub(crate) fn lookup(&self, if_id: u32, direction: Direction, flow: &Flow) -> Found {
        let later = flow.fragment == Fragment::Later;
        let best = self
            .0
            .iter()
            .filter(|policy| policy.config().direction == direction)
            .filter(|policy| policy.config().if_id == if_id)
            .filter(|policy| match later {
                true => policy.config().selector.matches_without_ports(flow),
                false => policy.config().selector.matches(flow),
            })
            .min_by_key(|policy| policy.rank());
        match best {
            None => Found::Default,
            Some(policy) if later && policy.config().selector.selects_ports() => Found::PortsNeeded,
            Some(policy) => Found::Policy(policy.config().index),
        }
    }

    pub(crate) fn add(&mut self, policy: Arc<Policy>) {
        self.0.push(policy);
    }

    pub(crate) fn remove(&mut self, index: u32) -> Option<Arc<Policy>> {
        let place = self.0.iter().position(|policy| policy.config().index == index)?;
        Some(self.0.remove(place))
    }
}

pub(crate) fn found(lookup: Lookup<'_>) -> Found {
    match lookup {
        Lookup::Policy(policy) => Found::Policy(policy.config().index),
        Lookup::Default(_) => Found::Default,
        Lookup::PortsNeeded => Found::PortsNeeded,
    }
}

/// Addresses from a small space, so that prefixes overlap and flows hit them.
fn address(v6: bool, bits: u8) -> IpAddr {
    let word = u32::from(bits & 0xf0) << 24 | u32::from(bits & 0x0f);
    match v6 {
        false => IpAddr::from(word.to_be_bytes()),
        true => IpAddr::from((u128::from(word) << 96 | u128::from(bits & 3)).to_be_bytes()),
    }
}

fn prefix(v6: bool) -> impl Strategy<Value = Prefix> {
    // Enough different ones that tuples are merged.
    let len = prop_oneof![Just(0u8), 1..9u8, 20..30u8, Just(30), Just(32)];
    (any::<u8>(), len).prop_map(move |(bits, len)| {
        let len = if v6 && len == 32 { 128 } else { len };
        Prefix::new(address(v6, bits), len).unwrap()
    })
}

fn port() -> impl Strategy<Value = PortMatch> {
    prop_oneof![
        4 => Just(PortMatch::ANY),
        2 => (0..3u16).prop_map(PortMatch::exactly),
        // A range that a prefix says, and what none says.
        1 => (0..4u16).prop_map(|port| PortMatch { port, mask: 0xfffe }),
        1 => (0..4u16).prop_map(|port| PortMatch { port, mask: 0x0001 }),
    ]
}

pub(crate) fn selector() -> impl Strategy<Value = Selector> {
    any::<bool>().prop_flat_map(|v6| {
        let protocol = prop_oneof![Just(0u8), Just(6), Just(17)];
        (prefix(v6), prefix(v6), protocol, port(), port()).prop_map(|(s, d, protocol, sp, dp)| {
            Selector { source: s, destination: d, protocol, source_port: sp, destination_port: dp }
        })
    })
}

pub(crate) fn direction() -> impl Strategy<Value = Direction> {
    prop::sample::select(&Direction::ALL[..])
}

pub(crate) fn flow() -> impl Strategy<Value = Flow> {
    let fragment = prop_oneof![
        3 => Just(Fragment::Whole),
        1 => Just(Fragment::First),
        2 => Just(Fragment::Later),
    ];
    let protocol = prop::sample::select(&[1u8, 6, 17][..]);
    (any::<bool>(), any::<u8>(), any::<u8>(), protocol, 0..4u16, 0..4u16, fragment).prop_map(
        |(v6, src, dst, protocol, src_port, dst_port, fragment)| {
            let later = fragment == Fragment::Later;
            Flow {
                src: address(v6, src),
                dst: address(v6, dst),
                protocol,
                src_port: if later { 0 } else { src_port },
                dst_port: if later { 0 } else { dst_port },
                ttl: 64,
                tos: 0,
                header_len: 20,
                total_len: 100,
                fragment,
                has_options: false,
            }
        },
    )
}

fn policy(
    index: u32,
    direction: Direction,
    selector: Selector,
    priority: u32,
    position: u64,
) -> Arc<Policy> {
    let config = PolicyConfig::bypass(index, direction, selector);
    Arc::new(Policy::new(PolicyConfig { priority, position, ..config }))
}

/// UDP to port 80.
pub(super) fn datagram(src: [u8; 4], dst: [u8; 4], src_port: u16, fragment: Fragment) -> Flow {
    Flow {
        src: src.into(),
        dst: dst.into(),
        protocol: 17,
        src_port,
        dst_port: 80,
        ttl: 64,
        tos: 0,
        header_len: 20,
        total_len: 40,
        fragment,
        has_options: false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]
    #[test]
    fn equals_the_linear_search(
        changes in prop::collection::vec(
            (direction(), selector(), 0..4u32, 0..4u8, prop_oneof![3 => Just(0u32), 1 => 1..3u32]),
            1..200,
        ),
        flows in prop::collection::vec((direction(), flow()), 100),
    ) {
        let mut spd = Spd::new();
        let mut twin = Twin::default();
        let mut versions = Vec::new();
        for (n, (dir, selector, priority, what, if_id)) in changes.into_iter().enumerate() {
            let n = n as u32;
            // One change in four removes the policy added a few steps ago, if it is still there.
            if what == 0 && let Some(old) = twin.remove(n.saturating_sub(priority * 3 + 1)) {
                let removed = spd.remove(&old.config());
                prop_assert!(removed.is_some_and(|removed| Arc::ptr_eq(&removed, &old)));
            } else if what == 1 && let Some(old) = twin.remove(n / 2) {
                // An update: the same index, selector and position, another priority.
                let new = Arc::new(Policy::new(PolicyConfig { priority, ..old.config() }));
                twin.0.push(new.clone());
                let replaced = spd.insert(new);
                prop_assert!(replaced.is_some_and(|replaced| Arc::ptr_eq(&replaced, &old)));
            } else {
                let new = policy(n, dir, selector, priority, u64::from(n));
                let new = Arc::new(Policy::new(PolicyConfig { if_id, ..new.config() }));
                twin.0.push(new.clone());
                prop_assert!(spd.insert(new).is_none());
            }
            prop_assert_eq!(spd.len(), twin.0.len());
            if n % 40 == 20 {
                versions.push((spd.clone(), Twin(twin.0.clone())));
            }
        }
        versions.push((spd, twin));
        for (spd, twin) in &versions {
            prop_assert_eq!(spd.iter().count(), spd.len());
            for pair in flows.windows(2) {
                let (direction, one, other) = (pair[0].0, &pair[0].1, &pair[1].1);
                for if_id in 0..3 {
                    if spd.side_of(direction, if_id != 0).same(one, other) {
                        let expected = twin.lookup(if_id, direction, one);
                        prop_assert_eq!(twin.lookup(if_id, direction, other), expected);
                    }
                }
            }
            for (direction, flow) in &flows {
                for if_id in 0..3 {
                    let expected = twin.lookup(if_id, *direction, flow);
                    prop_assert_eq!(&found(spd.lookup_of(if_id, *direction, flow)), &expected);
                    let side = spd.side_of(*direction, if_id != 0);
                    let asked = side.ask(if_id, flow, Cache::First);
                    let presumed = side.presume(if_id, flow, asked, Cache::First);
                    prop_assert_eq!(&found(side.lookup(if_id, flow, asked, presumed)), &expected);
                    if if_id == 0
                        && let Some(many) = side.many()
                        && let Some(question) = many.flow(flow)
                    {
                        let asked = many.ask(question, Cache::First);
                        let presumed = many.presume(asked, Cache::First);
                        prop_assert_eq!(&found(many.lookup(asked, presumed)), &expected);
                    }
                    if if_id == 0 && flow.is_ipv6() && flow.fragment == Fragment::Whole {
                        let (many, fields) = (side.many_v6(), Fields::of(flow, 0));
                        let asked = many.ask(&fields, Cache::First);
                        let presumed = many.presume(&fields, asked, Cache::First);
                        prop_assert_eq!(found(many.lookup(&fields, asked, presumed)), expected);
                    }
                }
            }
        }
    }
}

#[test]
fn defaults_are_per_direction() {
    let mut spd = Spd::new();
    assert!(spd.is_empty());
    spd.set_default(Direction::Forward, DefaultAction::Block);
    assert_eq!(spd.default_action(Direction::Forward), DefaultAction::Block);
    assert_eq!(spd.default_action(Direction::Out), DefaultAction::Accept);
}

#[test]
fn many_policies_of_one_shape_are_one_table_and_go_quickly() {
    let mut spd = Spd::new();
    let selector = |n: u32| {
        let host = Prefix::host(IpAddr::from((0x0a00_0000 + n).to_be_bytes()));
        Selector::between(host, host).unwrap()
    };
    for n in 0..50_000 {
        spd.insert(policy(n, Direction::Out, selector(n), 100, n.into()));
    }
    assert_eq!(spd.tables(Direction::Out, Family::V4), 1);
    // Oldest first: each removal takes the best of the table.
    for n in 0..50_000 {
        assert!(spd.remove(&policy(n, Direction::Out, selector(n), 0, 0).config()).is_some());
    }
    assert!(spd.is_empty());
    assert_eq!(spd.tables(Direction::Out, Family::V4), 0);
}

/// Between one pair of hosts, with a published version for each change.
#[test]
fn policies_by_port_go_quickly_and_fragments_know_the_best() {
    let (mut spd, mut versions) = (Spd::new(), Vec::new());
    let host = |n: u8| Prefix::host(IpAddr::from([10, 0, 0, n]));
    let between = Selector::between(host(1), host(2)).unwrap();
    let by_port = |n: u32| {
        let port = PortMatch::exactly(n as u16);
        let selector = Selector { destination_port: port, ..between };
        policy(n, Direction::Out, selector, 100 + n % 7, n.into())
    };
    let later = datagram([10, 0, 0, 1], [10, 0, 0, 2], 0, Fragment::Later);
    // Better than those with two priorities.
    spd.insert(policy(99_999, Direction::Out, between, 105, 0));
    for n in 0..30_000 {
        spd.insert(by_port(n));
        versions = vec![spd.clone()];
        assert_eq!(found(spd.lookup(Direction::Out, &later)), Found::PortsNeeded);
    }
    assert_eq!(spd.v4[Direction::Out as usize][0].portless.compared(), 1);
    // Best first.
    for priority in 0..7 {
        let expected = if priority < 5 { Found::PortsNeeded } else { Found::Policy(99_999) };
        assert_eq!(found(spd.lookup(Direction::Out, &later)), expected);
        for n in (0..30_000).filter(|n| n % 7 == priority) {
            assert!(spd.remove(&by_port(n).config()).is_some());
        }
    }
    assert_eq!(spd.v4[Direction::Out as usize][0].portless.compared(), 0);
    let old = versions.pop().unwrap();
    assert_eq!((spd.len(), old.len()), (1, 30_001));
    assert_eq!(found(old.lookup(Direction::Out, &later)), Found::PortsNeeded);
}

/// Beside those of other shapes, and whatever is asked after them.
#[test]
fn a_policy_is_presumed_among_several_tables() {
    let mut spd = Spd::new();
    let source = Prefix::host(IpAddr::from([10, 0, 0, 1]));
    let destination = |n: u8| IpAddr::from([10, 9, n, 1]);
    let between = |n: u8| {
        let destination = Prefix::new(destination(n), 32 - n % 2).unwrap();
        Selector::between(source, destination).unwrap()
    };
    for n in 0..100 {
        spd.insert(policy(n.into(), Direction::Out, between(n), 100, n.into()));
    }
    let any = Selector::any(Family::V4);
    let port = Selector { destination_port: PortMatch::exactly(179), ..any };
    spd.insert(policy(200, Direction::Out, port, 1, 200));
    spd.insert(policy(201, Direction::Out, any, 1000, 201));
    assert_eq!(spd.tables(Direction::Out, Family::V4), 4);
    let many = spd.side(Direction::Out).many().unwrap();
    let presumed = |n: u8, dst_port: u16| {
        let flow = datagram([10, 0, 0, 1], [10, 9, n, 1], 7, Fragment::Whole);
        let question = many.flow(&Flow { dst_port, ..flow }).unwrap();
        many.presume(many.ask(question, Cache::First), Cache::First).map(Policy::index)
    };
    for n in 0..100 {
        assert_eq!(presumed(n, 80), Some(n.into()));
        assert_eq!(presumed(n, 179), Some(200));
    }
    assert_eq!(presumed(150, 80), Some(201));
}

/// What a table may have at worst is asked anew after some removals: what is left of it then still ranks as it did.
#[test]
fn a_better_policy_of_another_table_decides_after_removals() {
    let mut spd = Spd::new();
    let between = |n: u8| {
        let [source, destination] =
            [[10, 0, 0, 1], [10, 9, n, 1]].map(|host| Prefix::host(IpAddr::from(host)));
        Selector::between(source, destination).unwrap()
    };
    for n in 0..9 {
        let priority = if n == 0 { 100 } else { 1 };
        spd.insert(policy(n.into(), Direction::Out, between(n), priority, n.into()));
    }
    spd.insert(policy(20, Direction::Out, Selector::any(Family::V4), 50, 20));
    for n in 1..8 {
        spd.remove(&policy(n.into(), Direction::Out, between(n), 0, 0).config()).unwrap();
        let many = spd.side(Direction::Out).many().unwrap();
        let found = |n: u8| {
            let flow = datagram([10, 0, 0, 1], [10, 9, n, 1], 7, Fragment::Whole);
            let asked = many.ask(many.flow(&flow).unwrap(), Cache::First);
            found(many.lookup(asked, many.presume(asked, Cache::First)))
        };
        assert_eq!(found(0), Found::Policy(20), "{n} removed");
        assert_eq!(found(8), Found::Policy(8));
    }
}

#[test]
fn a_policy_of_the_worst_possible_rank_still_decides() {
    let mut spd = Spd::new();
    let selector = Selector::any(Family::V4);
    let last = policy(1, Direction::Out, selector, u32::MAX, u64::MAX);
    spd.insert(last.clone());
    let port = Selector { destination_port: PortMatch::exactly(80), ..selector };
    spd.insert(policy(2, Direction::In, port, u32::MAX, u64::MAX));
    let flow = |fragment| datagram([10, 0, 0, 1], [10, 0, 0, 2], 0, fragment);
    let whole = flow(Fragment::Whole);
    assert_eq!(found(spd.lookup(Direction::Out, &whole)), Found::Policy(1));
    assert_eq!(found(spd.lookup(Direction::In, &whole)), Found::Policy(2));
    let later = flow(Fragment::Later);
    assert_eq!(found(spd.lookup(Direction::In, &later)), Found::PortsNeeded);
}

#[test]
fn flows_are_the_same_if_no_policy_looks_at_where_they_differ() {
    let mut spd = Spd::new();
    let net = |text: &str, len| Prefix::new(text.parse().unwrap(), len).unwrap();
    let between = Selector::between(net("10.0.0.0", 8), net("10.9.0.0", 16)).unwrap();
    spd.insert(policy(1, Direction::Out, between, 1, 1));
    let one = datagram([10, 1, 1, 1], [10, 9, 0, 1], 1, Fragment::Whole);
    let near = datagram([10, 2, 2, 2], [10, 9, 7, 7], 2, Fragment::Whole);
    let far = datagram([10, 1, 1, 1], [10, 8, 0, 1], 1, Fragment::Whole);
    let part = datagram([10, 1, 1, 1], [10, 9, 0, 1], 1, Fragment::First);
    let same = |spd: &Spd, other| spd.side(Direction::Out).same(&one, &other);
    assert!(same(&spd, near) && !same(&spd, far) && !same(&spd, part));
    assert!(spd.side(Direction::In).same(&one, &far), "there is none");
    let port = Selector { source_port: PortMatch::exactly(2), ..between };
    spd.insert(policy(2, Direction::Out, port, 1, 1));
    assert!(!same(&spd, near));
    // What was looked at once may go on being so, but not when all are gone.
    assert!(spd.remove(&policy(2, Direction::Out, port, 1, 1).config()).is_some());
    assert!(spd.remove(&policy(1, Direction::Out, between, 1, 1).config()).is_some());
    assert!(same(&spd, near) && same(&spd, far));
}

/// As many masks as prefix lengths, ports and protocols give: far fewer tables.
#[test]
fn many_shapes_are_few_tables_and_answer_as_the_linear_search() {
    let mut spd = Spd::new();
    let mut twin = Twin::default();
    let mut state = 7u64;
    let mut random = |below: u32| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as u32 % below
    };
    let mut shapes = std::collections::HashSet::new();
    for n in 0..4000 {
        let mut prefix = || {
            let len = 12 + random(21) as u8;
            Prefix::new((0x0a00_0000 | random(1 << 24)).to_be_bytes().into(), len).unwrap()
        };
        let (source, destination) = (prefix(), prefix());
        let port = match random(4) {
            0 => PortMatch::exactly(random(1024) as u16),
            1 => PortMatch { port: (random(64) * 16) as u16, mask: 0xfff0 },
            _ => PortMatch::ANY,
        };
        let selector = Selector {
            protocol: [0, 6, 17][random(3) as usize],
            destination_port: port,
            ..Selector::between(source, destination).unwrap()
        };
        let lens = (source.len(), destination.len());
        shapes.insert((lens, selector.protocol == 0, port.mask));
        let new = policy(n, Direction::Out, selector, random(8), u64::from(n));
        twin.0.push(new.clone());
        spd.insert(new);
    }
    let tables = spd.tables(Direction::Out, Family::V4);
    assert!(shapes.len() > 1500 && tables <= 8, "{} shapes in {tables} tables", shapes.len());
    for n in 0..400 {
        // Into a policy's selector, so that something is found.
        let config = twin.0[random(4000) as usize].config();
        let flow = Flow {
            src: config.selector.source.address(),
            dst: config.selector.destination.address(),
            protocol: if n % 2 == 0 { 6 } else { 17 },
            src_port: 1,
            dst_port: config.selector.destination_port.port,
            ttl: 64,
            tos: 0,
            header_len: 20,
            total_len: 40,
            fragment: if n % 5 == 0 { Fragment::Later } else { Fragment::Whole },
            has_options: false,
        };
        let expected = twin.lookup(0, Direction::Out, &flow);
        assert_eq!(found(spd.lookup(Direction::Out, &flow)), expected);
    }
    for policy in &twin.0 {
        assert!(spd.remove(&policy.config()).is_some_and(|removed| Arc::ptr_eq(&removed, policy)));
    }
    assert!(spd.is_empty() && spd.tables(Direction::Out, Family::V4) == 0);
}

/// A selector around one pair of hosts, by prefixes of any length behind `within` and, if so, ranges of ports below 1024.
fn around(random: &mut impl FnMut(u32) -> u32, v6: bool, within: u8, by_port: bool) -> Selector {
    let mut net = |address: u32| {
        let (address, bits) = match v6 {
            false => (IpAddr::from(address.to_be_bytes()), 32),
            true => (IpAddr::from((u128::from(address) << 96 | 1).to_be_bytes()), 128),
        };
        Prefix::new(address, within + random(bits + 1 - u32::from(within)) as u8).unwrap()
    };
    let between = Selector::between(net(0x0a01_0101), net(0x0a02_0202)).unwrap();
    if !by_port {
        return between;
    }
    let mut range = || {
        let mask = (0xffff_0000_u32 >> (6 + random(11))) as u16;
        PortMatch { port: random(1024) as u16 & mask, mask }
    };
    Selector { protocol: 17, source_port: range(), destination_port: range(), ..between }
}

/// No mask tells those apart that may all decide one flow: the tables are as many as the root of their number.
#[test]
fn what_nests_around_one_pair_is_in_tables_as_the_root_of_its_number() {
    // The hashes' seeds make a few more or less. With eight to a key there were 125, 46 and 50.
    let sets =
        [(false, 0, false, 1000, 42), (false, 17, true, 4000, 34), (true, 33, true, 2000, 34)];
    for (v6, within, by_port, count, most) in sets {
        let (mut spd, mut twin) = (Spd::new(), Twin::default());
        let mut state = 99u64;
        let mut random = |below: u32| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as u32 % below
        };
        let family = if v6 { Family::V6 } else { Family::V4 };
        let last = policy(u32::MAX, Direction::Out, Selector::any(family), u32::MAX, 0);
        spd.insert(last.clone());
        twin.0.push(last);
        let mut known = std::collections::HashSet::new();
        while known.len() < count {
            let selector = around(&mut random, v6, within, by_port);
            if known.insert(selector) {
                let n = known.len() as u32;
                let new = policy(n, Direction::Out, selector, random(1000), n.into());
                twin.0.push(new.clone());
                spd.insert(new);
            }
        }
        let tables = spd.tables(Direction::Out, family);
        assert!(tables <= most, "{tables} tables of {count} policies");
        for n in 0..200 {
            let host = |prefix: Prefix| prefix.address();
            let config = twin.0[random(count as u32) as usize].config();
            let (src, dst) = (host(config.selector.source), host(config.selector.destination));
            let flow = datagram([0; 4], [0; 4], random(1100) as u16, Fragment::Whole);
            let fragment = if n % 5 == 0 { Fragment::Later } else { Fragment::Whole };
            let flow = Flow { src, dst, dst_port: random(1100) as u16, fragment, ..flow };
            let expected = twin.lookup(0, Direction::Out, &flow);
            assert_eq!(found(spd.lookup(Direction::Out, &flow)), expected);
        }
        for policy in &twin.0 {
            assert!(spd.remove(&policy.config()).is_some());
        }
        assert!(spd.is_empty() && spd.tables(Direction::Out, family) == 0);
    }
}
