//! What a worker sees of a network interface: receive, send, flush, count.
//!
//! An enum and not a trait, so that the loop has no dynamic calls. A port loses no packet that it
//! does not count; it does not look into packets, and never blocks.

use std::ops::{Add, AddAssign, Sub};
use std::os::fd::BorrowedFd;

use crate::frame::Frame;
use crate::memory::MemoryPort;
use crate::pcap::PcapPort;
use crate::ring::Moved;
use crate::tun::TunPort;
use crate::umem::Pool;
use crate::xdp::XdpPort;

/// One interface as one worker sees it.
#[derive(Debug)]
pub enum Port {
    /// A network interface, through AF_XDP.
    Xdp(XdpPort),
    /// A TUN device: the host's own packets, which have no Ethernet header.
    Tun(TunPort),
    /// Rings in memory, for benches and tests.
    Memory(MemoryPort),
    /// Packets of a capture file in, packets to a capture file out.
    Pcap(PcapPort),
}

impl Port {
    /// Receives up to `max` packets: what `make` makes of each goes to the end of `into`. So a worker's slots are
    /// written once, where they stay.
    ///
    /// `pool` gives the frames for packets to come.
    pub fn receive<S>(
        &mut self,
        pool: &mut Pool,
        into: &mut Vec<S>,
        max: usize,
        make: impl FnMut(Frame) -> S,
    ) -> Moved {
        match self {
            Port::Xdp(port) => port.receive(pool, into, max, make),
            Port::Tun(port) => port.receive(pool, into, max, make),
            Port::Memory(port) => port.receive(into, max, make),
            Port::Pcap(port) => port.receive(pool, into, max, make),
        }
    }

    /// Takes packets from the front of `frames` for sending and returns how many; those that there
    /// was no room for stay in `frames`, in order. Sent frames come back to `pool`, now or later.
    ///
    /// The packets may leave only at the next [`Port::flush`].
    pub fn send(&mut self, frames: &mut Vec<Frame>, pool: &mut Pool) -> usize {
        match self {
            Port::Xdp(port) => port.send(frames, pool),
            Port::Tun(port) => port.send(frames, pool),
            Port::Memory(port) => port.send(frames),
            Port::Pcap(port) => port.send(frames, pool),
        }
    }

    /// The same of packets that `take` takes out of the first of `slots`, as long as it takes one and there is room;
    /// how many. What is left is for [`Port::send`], which is also for whatever is out of the ordinary: a port may
    /// take none here, ever.
    pub fn send_from<S>(
        &mut self,
        slots: &mut [S],
        take: impl FnMut(&mut S) -> Option<Frame>,
        pool: &mut Pool,
    ) -> usize {
        match self {
            Port::Xdp(port) => port.send_from(slots, take, pool),
            Port::Memory(port) => port.send_from(slots, take),
            Port::Tun(_) | Port::Pcap(_) => 0,
        }
    }

    /// Makes the taken packets leave, collects spent frames into `pool`, and returns how many
    /// packets still wait because the interface does not take them now.
    pub fn flush(&mut self, pool: &mut Pool) -> usize {
        match self {
            Port::Xdp(port) => port.flush(pool),
            Port::Tun(_) | Port::Memory(_) => 0,
            Port::Pcap(port) => port.flush(),
        }
    }

    /// Whether it takes frames of its worker for packets to come; else another worker's port feeds it.
    pub fn feeds(&self) -> bool {
        match self {
            Port::Xdp(port) => port.feeds(),
            Port::Tun(_) | Port::Pcap(_) => true,
            Port::Memory(_) => false,
        }
    }

    /// Whether ports of other workers depend on this one's turns: it feeds their sockets with frames and
    /// collects what they sent. Who holds it must not stay away for long.
    pub fn feeds_others(&self) -> bool {
        matches!(self, Port::Xdp(port) if port.feeds_others())
    }

    /// What came, what went and what was lost since the port was opened.
    ///
    /// For an AF_XDP port this asks the kernel once per queue (about a microsecond each).
    pub fn counters(&self) -> PortCounters {
        match self {
            Port::Xdp(port) => port.counters(),
            Port::Tun(port) => port.counters(),
            Port::Memory(port) => port.counters(),
            Port::Pcap(port) => port.counters(),
        }
    }

    /// Becomes readable when a packet has arrived; `None` for ports that only polling serves.
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Port::Xdp(port) => Some(port.as_fd()),
            Port::Tun(port) => port.as_fd(),
            Port::Memory(_) | Port::Pcap(_) => None,
        }
    }
}

/// Declares the counters once: field, name and documentation cannot drift apart.
macro_rules! port_counters {
    ($($(#[doc = $doc:literal])+ $name:ident: $kind:ident,)+) => {
        /// What came, what went, and every way a packet can be lost below the data plane.
        ///
        /// Two equations hold. Packets that the XDP program redirected to this port's sockets =
        /// `rx_packets + rx_ring_full + rx_no_frame + rx_oversize` + those still in the RX ring.
        /// Packets that [`Port::send`] took = `tx_packets + tx_invalid`, of which `tx_packets -
        /// tx_dropped` reached the interface, or still wait (the result of [`Port::flush`], or for an
        /// interface that is down).
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct PortCounters {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl PortCounters {
            /// Every counter: its name, what kind it is, its value and what it counts.
            pub fn list(&self) -> [PortCounter; [$(stringify!($name)),+].len()] {
                [$(PortCounter {
                    name: stringify!($name),
                    kind: CounterKind::$kind,
                    value: self.$name,
                    meaning: concat!($($doc),+).trim_ascii(),
                }),+]
            }

            fn combine(self, other: PortCounters, with: fn(u64, u64) -> u64) -> PortCounters {
                PortCounters { $($name: with(self.$name, other.$name)),+ }
            }
        }
    };
}

port_counters! {
    /// Packets received and handed to the worker.
    rx_packets: Traffic,
    /// Bytes of the packets received, from the Ethernet header on, without checksum.
    rx_bytes: Traffic,
    /// Packets lost on arrival: the RX ring was full, the worker did not keep up.
    rx_ring_full: Loss,
    /// Packets lost on arrival: the fill ring was empty, the pool had no free frame.
    rx_no_frame: Loss,
    /// Packets lost on arrival: longer than a chunk of the packet memory has room for. Where workers
    /// share a queue, the first of them counts this and `rx_no_frame` for all.
    rx_oversize: Loss,
    /// Records of a capture file that were cut short or could not be read.
    rx_invalid: Loss,
    /// Packets handed over for sending.
    tx_packets: Traffic,
    /// Bytes of the packets handed over for sending.
    tx_bytes: Traffic,
    /// Packets given back to the worker by `send` because the TX ring was full; what becomes of
    /// them is the worker's decision and count.
    tx_ring_full: Event,
    /// Packets lost on sending: empty, or refused by the kernel as malformed descriptors.
    tx_invalid: Loss,
    /// Packets lost on sending: the interface was down, had no carrier or refused them.
    tx_dropped: Loss,
    /// System calls made to get packets sent, or a driver to take frames for packets to come.
    kicks: Event,
}

/// What a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterKind {
    /// Packets or bytes that went through.
    Traffic,
    /// Packets that were lost.
    Loss,
    /// Something that happened, and lost no packet.
    Event,
}

/// One counter with its name and meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortCounter {
    /// The name, the same everywhere.
    pub name: &'static str,
    /// Traffic, loss or event.
    pub kind: CounterKind,
    /// The count.
    pub value: u64,
    /// What is counted, in a sentence.
    pub meaning: &'static str,
}

impl PortCounters {
    /// Counts packets that were received.
    #[inline]
    pub(crate) fn count_received(&mut self, moved: Moved) {
        self.rx_packets += moved.packets as u64;
        self.rx_bytes += moved.bytes;
    }

    /// Counts packets that were handed over for sending.
    #[inline]
    pub(crate) fn count_sent(&mut self, moved: Moved) {
        self.tx_packets += moved.packets as u64;
        self.tx_bytes += moved.bytes;
    }

    /// Packets that were lost, whatever the cause.
    pub fn lost(&self) -> u64 {
        let losses = self.list();
        losses.iter().filter(|one| one.kind == CounterKind::Loss).map(|one| one.value).sum()
    }
}

impl Add for PortCounters {
    type Output = PortCounters;

    fn add(self, other: PortCounters) -> PortCounters {
        self.combine(other, u64::wrapping_add)
    }
}

impl AddAssign for PortCounters {
    fn add_assign(&mut self, other: PortCounters) {
        *self = *self + other;
    }
}

impl Sub for PortCounters {
    type Output = PortCounters;

    fn sub(self, other: PortCounters) -> PortCounters {
        self.combine(other, u64::wrapping_sub)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_a_name_a_kind_and_a_meaning() {
        let counters =
            PortCounters { rx_packets: 5, rx_oversize: 2, kicks: 9, ..Default::default() };
        let list = counters.list();
        assert_eq!(list[0].name, "rx_packets");
        assert_eq!(list[0].value, 5);
        assert!(list.iter().all(|one| one.meaning.ends_with('.') && one.meaning.len() > 20));
        assert_eq!(counters.lost(), 2);
        let twice = counters + counters;
        assert_eq!((twice.rx_oversize, (twice - counters).kicks), (4, 9));
    }
}
