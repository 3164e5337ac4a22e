//! The twin of doing packets together: each by itself, the long way.

use std::sync::Arc;

use proptest::prelude::*;
use wire::flow::{Flow, Fragment};
use xsk::Umem;

use super::*;
use crate::batch::BatchMemory;
use crate::batch::tests::Belongings;
use crate::counters::Counters;
use crate::policy::{Action, Policy, PolicyConfig, Template};
use crate::prefix::{Family, Prefix};
use crate::sa::tests::config;
use crate::sa::{HardLimits, Mode, Sa, SaConfig};
use crate::selector::{PortMatch, Selector};
use crate::spd::DefaultAction;
use crate::verdict::Verdict;

/// Slots of SAs that policies name; one more than there are.
const SLOTS: u32 = 5;

fn sa(number: u32) -> Arc<Sa> {
    // Every other one carries only some packets.
    let narrow = Selector { source_port: PortMatch::exactly(7), ..Selector::any(Family::V4) };
    let config = SaConfig {
        spi: 0x101 + number,
        selector: (number % 2 == 1).then_some(narrow),
        limits: HardLimits::NONE,
        ..config()
    };
    Arc::new(Sa::new(config).unwrap())
}

/// Few addresses, so that policies overlap and packets meet them.
fn address(bits: u8) -> [u8; 4] {
    [10, 0, bits >> 4 & 1, bits & 0b11]
}

fn prefix() -> impl Strategy<Value = Prefix> {
    let lens = prop::sample::select(vec![0, 23, 24, 31, 32]);
    (any::<u8>(), lens).prop_map(|(bits, len)| Prefix::new(address(bits).into(), len).unwrap())
}

fn action() -> impl Strategy<Value = Action> {
    let template = Template {
        mode: Mode::Tunnel,
        source: [0; 4].into(),
        destination: [0; 4].into(),
        spi: 0,
        reqid: 0,
        optional: false,
    };
    prop_oneof![
        1 => Just(Action::Discard),
        1 => Just(Action::Bypass),
        6 => (prop::option::weighted(0.9, 0..SLOTS), prop::bool::weighted(0.2), prop::bool::weighted(0.1))
            .prop_map(move |(bundle, optional, is_transport)| {
                let mode = if is_transport { Mode::Transport } else { Mode::Tunnel };
                Action::Protect { template: Template { optional, mode, ..template }, bundle }
            }),
    ]
}

/// Of at most as many shapes as one table takes, or of so many that they are merged.
fn policy(one_shape: bool) -> impl Strategy<Value = PolicyConfig> {
    let port = prop_oneof![3 => Just(PortMatch::ANY), 1 => Just(PortMatch::exactly(7))];
    let protocol = prop::sample::select(vec![0, 17]);
    (prefix(), prefix(), port, protocol, action(), prop::bool::weighted(0.2), 0..4u32).prop_map(
        move |(source, destination, source_port, protocol, action, own_sas, priority)| {
            let any = Selector::any(Family::V4);
            let host = Prefix::host(destination.address());
            let selector = match one_shape {
                true => Selector { destination: host, ..any },
                false => Selector { source, destination, source_port, protocol, ..any },
            };
            PolicyConfig {
                priority,
                action,
                own_sas,
                ..PolicyConfig::bypass(0, Direction::Out, selector)
            }
        },
    )
}

fn view(policies: Vec<PolicyConfig>, blocks: bool) -> View {
    let mut view = View::default();
    if blocks {
        view.spd.set_default(Direction::Out, DefaultAction::Block);
    }
    for (index, policy) in (1..).zip(policies) {
        let config = PolicyConfig { index, position: u64::from(index), ..policy };
        view.spd.insert(Arc::new(Policy::new(config)));
    }
    for slot in 0..SLOTS - 1 {
        view.bundles.set(slot, Some(sa(slot)));
    }
    view
}

/// A packet: from where, to where, its ports, and whether it is decided already.
fn packet() -> impl Strategy<Value = (u8, u8, u16, bool)> {
    (any::<u8>(), any::<u8>(), 7u16..9, prop::bool::weighted(0.1))
}

fn flow((source, destination, port, _): (u8, u8, u16, bool)) -> Flow {
    Flow {
        src: address(source).into(),
        dst: address(destination).into(),
        protocol: if source & 4 == 0 { 6 } else { 17 },
        src_port: port,
        dst_port: 80,
        ttl: 64,
        tos: 0,
        header_len: 20,
        total_len: 100,
        fragment: Fragment::Whole,
        has_options: false,
    }
}

proptest! {
    #[test]
    fn packets_together_are_protected_as_each_is_by_itself(
        policies in any::<bool>().prop_flat_map(|one| prop::collection::vec(policy(one), 1..40)),
        blocks in prop::bool::weighted(0.2),
        bursts in prop::collection::vec((packet(), 1usize..4), 1..24),
    ) {
        let umem = Umem::new(2 * BATCH_PACKETS, 2048, false).unwrap();
        let mut pool = umem.pool(0..2 * BATCH_PACKETS);
        let views = [(); 2].map(|()| view(policies.clone(), blocks));
        // There is a policy.
        let Some(many) = views[0].spd.side(Direction::Out).many() else { return Ok(()) };
        let packets: Vec<_> = bursts.iter()
            .flat_map(|(packet, count)| std::iter::repeat_n(*packet, *count))
            .take(BATCH_PACKETS)
            .collect();
        let mut workers = [Belongings::new(), Belongings::new()];
        let [mut turn, mut turn_alone] = workers.each_mut().map(|worker| worker.turn(1));
        let mut memory = [BatchMemory::new(), BatchMemory::new()];
        let mut batches = memory.each_mut().map(BatchMemory::begin);
        for batch in &mut batches {
            for packet in &packets {
                batch.extend(pool.take().into_iter(), 0);
                let slot = batch.slots.last_mut().unwrap();
                slot.flow = flow(*packet);
                slot.verdict = packet.3.then_some(Verdict::NotForUs);
            }
        }
        let [together, alone] = &mut batches;
        prop_assert!(all(&mut together.slots, many, &views[0], &mut turn));
        for slot in alone.slots.iter_mut().filter(|slot| slot.verdict.is_none()) {
            let found = views[1].spd.lookup(Direction::Out, &slot.flow);
            choose_rest(std::slice::from_mut(slot), found, &views[1], &mut turn_alone);
        }
        let spi = |slot: &Slot<'_>| slot.outbound.map(|sa| sa.spi());
        let index = |slot: &Slot<'_>| slot.policy.map(Policy::index);
        for (together, alone) in together.slots.iter().zip(&alone.slots) {
            prop_assert_eq!(together.verdict, alone.verdict);
            prop_assert_eq!(spi(together), spi(alone));
            prop_assert_eq!(index(together), index(alone));
            prop_assert_eq!(together.stay.is_some(), alone.stay.is_some());
        }
        let used = views.each_ref().map(|view| {
            let mut used: Vec<_> =
                view.spd.iter().map(|policy| (policy.index(), policy.usage().packets)).collect();
            used.sort_unstable();
            used
        });
        prop_assert_eq!(&used[0], &used[1]);
        let [together_counted, alone_counted] =
            [turn.counters, turn_alone.counters].map(Counters::snapshot);
        prop_assert_eq!(together_counted.fallback_sa, alone_counted.fallback_sa);
        // Fragments and others are for who looks at more.
        if let Some(slot) = together.slots.iter_mut().find(|slot| slot.verdict.is_none()) {
            slot.flow.fragment = Fragment::First;
            prop_assert!(!all(&mut together.slots, many, &views[0], &mut turn));
        }
        let slots = batches.iter_mut().flat_map(|batch| batch.slots.drain(..));
        slots.for_each(|slot| pool.give(slot.frame));
    }
}
