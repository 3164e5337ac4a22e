//! The twin of looking many packets' tunnels up together: one after the other.

use std::sync::Arc;

use proptest::prelude::*;
use xsk::Umem;

use super::*;
use crate::batch::tests::Belongings;
use crate::batch::{BATCH_PACKETS, BatchMemory};
use crate::fib::{NextHop, Route};
use crate::prefix::Prefix;
use crate::sa::tests::config;
use crate::sa::{HardLimits, SaConfig};
use crate::selector::{PortMatch, Selector};

/// What a prefix of the inner network leads to.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Nothing special.
    Port,
    /// A tunnel: whether it has a slot, what is in that, and whether far ends tell it apart.
    Tunnel { slot: bool, sa: bool, selective: bool, by_remote: bool },
}

fn way() -> impl Strategy<Value = Way> {
    let tunnel = (
        prop::bool::weighted(0.9),
        prop::bool::weighted(0.8),
        prop::bool::weighted(0.2),
        any::<bool>(),
    );
    prop_oneof![
        1 => Just(Way::Port),
        4 => tunnel.prop_map(|(slot, sa, selective, by_remote)| Way::Tunnel { slot, sa, selective, by_remote }),
    ]
}

fn sa(number: u32, selective: bool) -> Sa {
    let narrow = Selector { source_port: PortMatch::exactly(7), ..Selector::any(Family::V4) };
    let config = SaConfig {
        spi: 0x101 + number,
        destination: [192, 0, 2, 100].into(),
        selector: selective.then_some(narrow),
        limits: HardLimits::NONE,
        if_id: number + 1,
        ..config()
    };
    Sa::new(config).unwrap()
}

/// The network of a number.
fn network(number: usize) -> [u8; 4] {
    [10, number as u8, 0, 0]
}

fn view(ways: &[Way]) -> View {
    let mut view = View::default();
    let prefix = |number| Prefix::new(network(number).into(), 16).unwrap();
    for (number, way) in ways.iter().enumerate() {
        match *way {
            Way::Port => {
                view.fib.insert(prefix(number), Route::Via(NextHop { port: 0, gateway: None }));
            }
            Way::Tunnel { slot, sa: has_sa, selective, by_remote } => {
                let number = number as u32;
                let remote = by_remote.then(|| [192, 0, 2, 100].into());
                let row = view.tunnels.join(TunnelName { if_id: number + 1, remote }).unwrap();
                view.tunnels.set_slots(row, [slot.then_some(number), None]);
                view.bundles.set(number, has_sa.then(|| Arc::new(sa(number, selective))));
                view.fib.insert(prefix(number as usize), Route::Tunnel(row));
            }
        }
    }
    view
}

/// A packet: the network it goes to (one more than there are), the host there, its source port, whether
/// it is already decided, the port it came by.
fn packet() -> impl Strategy<Value = (usize, u8, u16, bool, u16)> {
    (0usize..9, 1u8..3, 7u16..9, prop::bool::weighted(0.1), 0u16..2)
}

proptest! {
    #[test]
    fn packets_together_enter_as_each_does_by_itself(
        ways in prop::collection::vec(way(), 1..8),
        bursts in prop::collection::vec((packet(), 1usize..4), 1..24),
    ) {
        let umem = Umem::new(2 * BATCH_PACKETS, 2048, false).unwrap();
        let mut pool = umem.pool(0..2 * BATCH_PACKETS);
        let mut view = view(&ways);
        view.tunnel_devices = 1..2;
        let packets = bursts.iter().flat_map(|(packet, count)| std::iter::repeat_n(*packet, *count));
        let packets: Vec<_> = packets.take(BATCH_PACKETS).collect();
        let mut worker = Belongings::new();
        let mut turn = worker.turn(1);
        let mut memory = [BatchMemory::new(), BatchMemory::new()];
        let mut batches = memory.each_mut().map(BatchMemory::begin);
        for batch in &mut batches {
            for (to, host, port, decided, ingress) in &packets {
                batch.extend(pool.take().into_iter(), *ingress);
                let slot = batch.slots.last_mut().unwrap();
                let [a, b, c, _] = network(*to);
                slot.flow.src = [198, 51, 100, 1].into();
                (slot.flow.dst, slot.flow.src_port) = ([a, b, c, *host].into(), *port);
                slot.verdict = decided.then_some(Verdict::NotForUs);
            }
        }
        let [together, alone] = &mut batches;
        prop_assert!(enter_all(&mut together.slots, &view, &mut turn));
        for slot in alone.slots.iter_mut().filter(|slot| slot.verdict.is_none()) {
            enter_one(slot, &view, &mut turn);
        }
        for (together, alone) in together.slots.iter().zip(&alone.slots) {
            prop_assert_eq!(together.verdict, alone.verdict);
            prop_assert_eq!(
                together.outbound.map(std::ptr::from_ref),
                alone.outbound.map(std::ptr::from_ref)
            );
            prop_assert_eq!(together.lead.code(), alone.lead.code());
        }
        let slots = batches.iter_mut().flat_map(|batch| batch.slots.drain(..));
        slots.for_each(|slot| pool.give(slot.frame));
    }
}
