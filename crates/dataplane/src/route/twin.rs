//! The twin of routing packets together: each in a batch of its own, so that none follows another.

use std::net::Ipv4Addr;
use std::sync::{Arc, LazyLock};

use proptest::prelude::*;
use wire::ethernet::HEADER_LEN;
use xsk::Umem;

use super::*;
use crate::batch::tests::Belongings;
use crate::batch::{BATCH_PACKETS, BatchMemory};
use crate::fib::Fib;
use crate::prefix::Prefix;
use crate::sa::tests::config;
use crate::sa::{HardLimits, SaConfig};
use crate::view::PortInfo;

/// Few addresses, so that routes overlap and packets meet them.
fn address(v6: bool, bits: u8) -> IpAddr {
    match v6 {
        false => [10, bits >> 4 & 1, 0, bits & 0b111].into(),
        true => [0x2001, u16::from(bits >> 4 & 1), 0, 0, 0, 0, 0, u16::from(bits & 0b11)].into(),
    }
}

/// Routes beyond those that packets meet: so many that they are looked up ahead.
static MANY_MORE: LazyLock<Fib> = LazyLock::new(|| {
    let mut fib = Fib::default();
    for number in 0..1500u32 {
        let address = Ipv4Addr::from_bits(0xac10_0000 + number);
        fib.insert(Prefix::host(address.into()), Route::Blackhole);
    }
    fib
});

/// By a router or without, to where somebody answers or not; or nowhere.
fn way(v6: bool) -> impl Strategy<Value = Route> {
    let hop = (0..3u16, prop::option::weighted(0.7, any::<u8>()));
    prop_oneof![
        8 => hop.prop_map(move |(port, gateway)| {
            Route::Via(NextHop { port, gateway: gateway.map(|bits| address(v6, bits)) })
        }),
        1 => Just(Route::Blackhole),
        1 => Just(Route::Local),
    ]
}

fn a_route() -> impl Strategy<Value = (Prefix, Route)> {
    prop::bool::weighted(0.2).prop_flat_map(|v6| {
        let lens = prop::sample::select(vec![0u8, 8, 15, 16, 30, 31, 32]);
        (any::<u8>(), lens, way(v6)).prop_map(move |(bits, len, way)| {
            let len = if v6 { 4 * len } else { len };
            (Prefix::new(address(v6, bits), len).unwrap(), way)
        })
    })
}

fn view(routes: &[(Prefix, Route)], many: bool, answering: &[(u16, bool, u8)]) -> View {
    let port = |number: u8, mtu, up| PortInfo {
        ifindex: 0,
        name: "p".to_owned(),
        mac: MacAddr([2, 0, 0, 0, 0, number]),
        mtu,
        up,
    };
    let fib = if many { MANY_MORE.clone() } else { Fib::default() };
    // One port takes only short packets, and one route in three leads to a port that is none.
    let ports = [port(0, 1500, true), port(1, 60, true)].into();
    let mut view = View { fib, ports, ..View::default() };
    for (prefix, route) in routes {
        view.fib.insert(*prefix, *route);
    }
    for (number, (port, v6, bits)) in (0..).zip(answering) {
        view.neighbours.set(*port, address(*v6, *bits), MacAddr([2, 0, 0, 0, 9, number]));
    }
    view
}

/// An SA that leads to an address.
fn sa(v6: bool, bits: u8) -> Sa {
    let (source, destination) = (address(v6, 0), address(v6, bits));
    let config = SaConfig { source, destination, limits: HardLimits::NONE, ..config() };
    Sa::new(config).unwrap()
}

/// A packet: the SA it is sealed with if it is, its destination, its length, and whether it is decided
/// already.
fn packet() -> impl Strategy<Value = (Option<usize>, bool, u8, usize, bool)> {
    let len = prop::sample::select(vec![40usize, 60, 61, 1501]);
    let v6 = prop::bool::weighted(0.2);
    (prop::option::weighted(0.4, 0..4usize), v6, any::<u8>(), len, prop::bool::weighted(0.1))
}

proptest! {
    #[test]
    fn packets_together_leave_as_each_does_by_itself(
        routes in prop::collection::vec(a_route(), 0..10),
        many in any::<bool>(),
        answering in prop::collection::vec((0..2u16, prop::bool::weighted(0.2), any::<u8>()), 0..24),
        ends in prop::array::uniform4((prop::bool::weighted(0.2), any::<u8>())),
        bursts in prop::collection::vec((packet(), 1usize..4), 1..24),
    ) {
        let umem = Umem::new(2 * BATCH_PACKETS, 2048, false).unwrap();
        let mut pool = umem.pool(0..2 * BATCH_PACKETS);
        let view = view(&routes, many, &answering);
        let sas = ends.map(|(v6, bits)| Arc::new(sa(v6, bits)));
        let packets: Vec<_> = bursts.iter()
            .flat_map(|(packet, count)| std::iter::repeat_n(*packet, *count))
            .take(BATCH_PACKETS)
            .collect();
        let mut worker = Belongings::new();
        let mut turn = worker.turn(1);
        let mut put = |batch: &mut Batch<'_>, packet: (Option<usize>, bool, u8, usize, bool)| {
            batch.extend(pool.take().into_iter(), 0);
            batch.slots.last_mut().map(|slot| {
                let (_, v6, bits, len, decided) = packet;
                slot.frame.push_back(len).unwrap();
                (slot.flow.src, slot.flow.dst) = (address(v6, 0), address(v6, bits));
                slot.verdict = decided.then_some(Verdict::NotForUs);
            })
        };
        let (mut memory, mut memory_alone) = (BatchMemory::new(), BatchMemory::new());
        let mut together = memory.begin();
        for packet in &packets {
            put(&mut together, *packet);
        }
        for (slot, (number, ..)) in together.slots.iter_mut().zip(&packets) {
            slot.outbound = number.map(|number| &*sas[number]);
        }
        route(&mut together, &view, &mut turn);
        let mut done = Vec::new();
        for (packet, slot) in packets.iter().zip(&together.slots) {
            let mut alone = memory_alone.begin();
            put(&mut alone, *packet);
            alone.slots[0].outbound = packet.0.map(|number| &*sas[number]);
            route(&mut alone, &view, &mut turn);
            let alone = alone.slots.pop().unwrap();
            prop_assert_eq!(slot.verdict, alone.verdict, "{:?} of {:?}", packet, packets);
            prop_assert_eq!(slot.egress, alone.egress);
            prop_assert_eq!(slot.frame.len(), alone.frame.len());
            if slot.egress.is_some() {
                prop_assert_eq!(&slot.frame.bytes()[..HEADER_LEN], &alone.frame.bytes()[..HEADER_LEN]);
            }
            done.push(alone.frame);
        }
        done.extend(together.slots.drain(..).map(|slot| slot.frame));
        done.into_iter().for_each(|frame| pool.give(frame));
    }
}
