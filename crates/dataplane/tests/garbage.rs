//! Whatever comes in, every packet ends under one name and no frame is lost.

mod fixture;

use std::cell::RefCell;
use std::sync::Arc;

use dataplane::sa::{Sa, SaConfig};
use dataplane::verdict::Verdict;
use fixture::*;
use proptest::prelude::*;
use wire::protocol;

/// Frames from pure noise to nearly genuine.
fn frames() -> impl Strategy<Value = (u16, Vec<u8>)> {
    let noise = prop::collection::vec(any::<u8>(), 0..200);
    let noise_for_us =
        prop::collection::vec(any::<u8>(), 0..200).prop_map(|bytes| frame(RED, &bytes));
    let port = prop_oneof![Just(RED), Just(BLACK)];
    let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    let nearly = (0..8usize, damage, any::<prop::sample::Index>(), any::<bool>(), 1..200u64)
        .prop_map(|(kind, damage, cut, do_cut, sequence)| {
            let mut bytes = template(kind, sequence);
            for (at, value) in damage {
                let at = at.index(bytes.len());
                bytes[at] ^= value;
            }
            if do_cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            bytes
        });
    (port, prop_oneof![1 => noise, 1 => noise_for_us, 6 => nearly])
}

/// A genuine frame of some kind, for either port.
fn template(kind: usize, sequence: u64) -> Vec<u8> {
    let sa = PLAIN.sa(Site::West);
    let v6 = kind % 2 == 1;
    match kind {
        0 | 1 => Packet::towards(Site::East, v6, 30).frame(RED),
        2 | 3 => Packet::towards(Site::West, v6, 30).frame(BLACK),
        _ => {
            // Plain ESP, or in UDP.
            let sa = if kind < 6 { sa } else { in_udp() };
            let next_header = if v6 { protocol::IPV6 } else { protocol::IPV4 };
            let inner = Packet::towards(Site::West, v6, 30);
            Seal { next_header, ..Seal::sequence(sequence) }.frame(&sa, &inner.bytes())
        }
    }
}

/// Another SA towards west.
fn in_udp() -> SaConfig {
    SaConfig { spi: 0x3000_0003, ..Tunnel { udp: Some((4500, 4500)), ..PLAIN }.sa(Site::West) }
}

fn west() -> Gateway {
    let mut view = PLAIN.view(Site::West, &nonces());
    view.sad.insert(Arc::new(Sa::new(in_udp()).unwrap()));
    view.encapsulation_ports.set(4500, true);
    Gateway::new(view)
}

thread_local! {
    /// One gateway for all cases: its packet memory stays mapped until the process ends.
    static WEST: RefCell<Gateway> = RefCell::new(west());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn verdicts_add_up_and_frames_come_back(frames in prop::collection::vec(frames(), 1..120)) {
        WEST.with_borrow_mut(|west| {
            let before = west.snapshot();
            let mut bytes = 0;
            for (port, frame) in &frames {
                west.inject(*port, frame);
                bytes += frame.len() as u64;
            }
            while west.worker.turn() != 0 {}
            let after = west.snapshot();
            prop_assert_eq!(after.received - before.received, frames.len() as u64);
            prop_assert_eq!(after.received_bytes - before.received_bytes, bytes);
            prop_assert_eq!(after.decided(), after.received);
            prop_assert_eq!(west.worker.waiting(), 0);
            let mut left = 0;
            for port in [RED, BLACK] {
                while west.collect(port).is_some() {
                    left += 1;
                }
            }
            let sent = |s: &dataplane::counters::CounterSnapshot| {
                [Verdict::Forwarded, Verdict::Sealed, Verdict::Opened, Verdict::Resealed]
                    .iter().map(|v| s.of(*v)).sum::<u64>()
            };
            prop_assert_eq!(sent(&after) - sent(&before), left);
            prop_assert_eq!(west.worker.pool().free(), FRAMES);
            Ok(())
        })?;
    }
}
