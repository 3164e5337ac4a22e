//! Packets that come mixed, put apart by kind: those in clear first, then ESP, then what the stages have to see.
//!
//! Where a gateway has one port both come by it, one by one, and among either what is for the host itself, fragments, packets at
//! their last hop: each ends a lane, which would be no shorter a way than the stages for a few packets. So the rest of a batch
//! is sorted before the lanes see it once more. Packets between the same two hosts, and ESP of one SA, stay in the order in which they
//! came: those behind one for the stages take them as well. ESP for this host and what is only forwarded are never between the same.

use wire::{ipv4, ipv6};

use super::aside::{Hosts, Packet, Packets, gather};
use super::like::Known;
use crate::batch::{BATCH_PACKETS, Slot};
use crate::inspect::may_be_martians;
use crate::parse::{self, LastMac};
use crate::plain::PlainHeader;
use crate::policy::Address;
use crate::view::View;

/// Puts packets into another order which no stage knows yet; whether any is in another place now.
type Order = fn(&mut [Slot<'_>], &View) -> bool;

/// What is tried one after the other, as long as next to none of the first is taken.
pub(super) const ORDERS: [Order; 2] = [apart, esp_first];

/// ESP before packets in clear, where those need the stages all the same.
#[inline(never)]
fn esp_first(slots: &mut [Slot<'_>], view: &View) -> bool {
    let mut kinds = Kinds::of(view);
    let mut is_esp = |slot: &Slot<'_>| matches!(kinds.kind(slot), Kind::Esp);
    let begins = slots.first().is_some_and(&mut is_esp);
    !gather(slots, Some(&view.encapsulation_ports), |_, slot| is_esp(slot).then_some(())).is_empty()
        && !begins
}

/// Packets in clear, ESP, others.
#[inline(never)]
fn apart(slots: &mut [Slot<'_>], view: &View) -> bool {
    let slots_len = slots.len().min(BATCH_PACKETS);
    let slots = &mut slots[..slots_len];
    let (mut kinds, mut seen) = (Kinds::of(view), Hosts::none(Some(&view.encapsulation_ports)));
    let (mut esp, mut others) = (Packets::new(), Packets::new());
    let (mut in_clear, mut is_moved) = (0, false);
    for at in 0..slots.len() {
        let mut kind = kinds.kind(&slots[at]);
        if matches!(kind, Kind::Other) || seen.has(&slots[at].frame) {
            seen.note(&slots[at].frame);
            kind = Kind::Other;
        }
        let packet = Packet::take(&mut slots[at]);
        match kind {
            Kind::InClear => {
                is_moved |= at != in_clear;
                packet.put(&mut slots[in_clear]);
                in_clear += 1;
            }
            Kind::Esp => {
                is_moved |= !others.is_empty();
                esp.push(packet);
            }
            Kind::Other => others.push(packet),
        }
    }
    let rest = slots[in_clear..].iter_mut();
    rest.zip(esp.into_iter().chain(others)).for_each(|(slot, packet)| packet.put(slot));
    is_moved
}

/// What packets may be, in the order in which they are put.
enum Kind {
    InClear,
    Esp,
    Other,
}

/// Who says of which kind packets are, by what they themselves say.
struct Kinds<'v> {
    view: &'v View,
    mac: LastMac,
    v4: Addresses<u32>,
    v6: Addresses<u128>,
}

/// What is known of destinations: the last that was this host's, and the last that was not.
struct Addresses<A> {
    own: Option<A>,
    other: Known<A>,
}

impl<A: Address> Addresses<A> {
    fn none() -> Addresses<A> {
        Addresses { own: None, other: Known::of_none() }
    }
}

impl<'v> Kinds<'v> {
    fn of(view: &'v View) -> Kinds<'v> {
        Kinds { view, mac: LastMac::new(), v4: Addresses::none(), v6: Addresses::none() }
    }

    #[inline(always)]
    fn kind(&mut self, slot: &Slot<'_>) -> Kind {
        let view = self.view;
        let (frame, mac) = (&slot.frame, self.mac.bits(slot, view));
        let Some(header) = parse::any_header::<ipv4::Plain>(frame, mac, view) else {
            return self.kind_v6(slot, mac);
        };
        kind_of(&header, &mut self.v4, view, || {
            parse::plain_esp(frame, mac).is_some()
                || parse::plain_esp_in_udp(frame, mac, &view.encapsulation_ports).is_some()
        })
    }

    /// Of what is not plain in IPv4.
    #[inline(never)]
    fn kind_v6(&mut self, slot: &Slot<'_>, mac: u64) -> Kind {
        let header = parse::plain_header::<ipv6::Plain>(&slot.frame, mac);
        header.map_or(Kind::Other, |header| {
            let is_esp = || parse::plain_esp_v6(&slot.frame, mac).is_some();
            kind_of(&header, &mut self.v6, self.view, is_esp)
        })
    }
}

/// The kind of a plain packet, which may be ESP.
#[inline(always)]
fn kind_of<P: PlainHeader>(
    header: &P,
    known: &mut Addresses<P::Bits>,
    view: &View,
    is_esp: impl FnOnce() -> bool,
) -> Kind {
    let destination = header.destination();
    if known.own == Some(destination) || known.other.is_for_host(destination, view) {
        known.own = Some(destination);
        return if is_esp() { Kind::Esp } else { Kind::Other };
    }
    if header.hops() > 1 && !may_be_martians(&header.flow()) { Kind::InClear } else { Kind::Other }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv6Addr};

    use proptest::prelude::*;
    use wire::Overlay;
    use wire::ethernet::{EtherType, HEADER_LEN, Header, MacAddr};
    use wire::protocol;
    use xsk::Umem;

    use super::*;
    use crate::batch::BatchMemory;
    use crate::view::PortInfo;

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 7]);
    const OWN: [u8; 4] = [192, 0, 2, 1];
    const OWN_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 9, 0, 0, 0, 1);

    /// A packet of some kind, its number in its data; the last byte of an address is drawn.
    fn frame(kind: u8, host: u8, is_v6: bool, number: u8) -> Vec<u8> {
        let to_own = kind == 1;
        let protocol = if to_own { protocol::ESP } else { protocol::UDP };
        let hops = if kind == 2 { 1 } else { 64 };
        let data = [&[0; 39][..], &[number]].concat();
        let mut frame =
            vec![0; HEADER_LEN + if is_v6 { ipv6::HEADER_LEN } else { ipv4::HEADER_LEN }];
        let (link, header) = frame.split_at_mut(HEADER_LEN);
        let ethertype = if is_v6 { EtherType::IPV6 } else { EtherType::IPV4 };
        Header::new(MAC, MacAddr([2, 0, 0, 0, 0, 8]), ethertype).emit(link).unwrap();
        match is_v6 {
            false => {
                let to = if to_own { OWN } else { [10, 2, 0, host] };
                let template =
                    ipv4::Template::new([10, 1, 0, host].into(), to.into(), protocol, hops);
                template.stamp((20 + data.len()) as u16, 0, 0, false).emit(header).unwrap();
            }
            true => {
                let [from, to] = [1, 2]
                    .map(|net: u128| (0x2001_0db8 << 96 | net << 64 | u128::from(host)).into());
                let to = if to_own { OWN_V6 } else { to };
                let template = ipv6::Template::new(from, to, protocol, hops);
                template.stamp(data.len() as u16, 0, 0).emit(header).unwrap();
            }
        }
        frame.extend(data);
        frame
    }

    fn view() -> View {
        let port = PortInfo { ifindex: 1, name: "p".to_owned(), mac: MAC, mtu: 1500, up: true };
        let mut view = View { ports: [port].into(), ..View::default() };
        view.local.insert(IpAddr::from(OWN));
        view.local.insert(OWN_V6.into());
        view
    }

    proptest! {
        /// None is lost, each pair of hosts keeps its order, and none for the stages is before one that is not.
        #[test]
        fn packets_are_put_apart_and_stay_in_order_between_hosts(
            packets in prop::collection::vec((0u8..3, 0u8..6, any::<bool>()), 1..=BATCH_PACKETS),
        ) {
            let umem = Umem::new(BATCH_PACKETS, 2048, false).unwrap();
            let mut pool = umem.pool(0..BATCH_PACKETS);
            let mut memory = BatchMemory::new();
            let mut batch = memory.begin();
            for (number, (kind, host, is_v6)) in packets.iter().enumerate() {
                let bytes = frame(*kind, *host, *is_v6, number as u8);
                let mut frame = pool.take().unwrap();
                frame.push_back(bytes.len()).unwrap().copy_from_slice(&bytes);
                batch.extend(std::iter::once(frame), 0);
            }
            let is_moved = apart(&mut batch.slots, &view());
            let order: Vec<_> = batch.slots.iter().map(|slot| usize::from(*slot.frame.bytes().last().unwrap())).collect();
            prop_assert_eq!(is_moved, !order.is_sorted());
            let mut all = order.clone();
            all.sort_unstable();
            prop_assert!(all.into_iter().eq(0..packets.len()));
            // Of one kind, what comes of it behind one at its last hop between the same hosts is at the end with that.
            let rank = |number: usize| {
                let (kind, host, is_v6) = packets[number];
                let is_before = |other: &(u8, u8, bool)| *other == (2, host, is_v6);
                let follows = kind == 0 && packets[..number].iter().any(is_before);
                if follows { 2 } else { kind }
            };
            prop_assert!(order.is_sorted_by_key(|number| (rank(*number), *number)));
            batch.slots.drain(..).for_each(|slot| pool.give(slot.frame));
        }
    }
}
