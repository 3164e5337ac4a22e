//! What workers tell control while they run: a missing neighbour, a missing SA, a peer that moved.
//!
//! The channel is bounded and a worker never waits: an event that finds it full is counted and
//! dropped, as the packet that needs it will come again. The same event is sent at most once per
//! 100 ms. Nothing here changes a packet's fate.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use wire::flow::Flow;

use crate::counters::Counters;
use crate::hold::HOLD_PACKETS;
use crate::policy::Policy;
use crate::sa::Sa;

/// How long the same thing is not asked for again. The kernel retransmits an ARP request each
/// second and IKE takes milliseconds at best; shorter only fills the channel.
pub const REPEAT_NS: u64 = 100_000_000;

/// Events that may wait for control. A burst of new tunnels asks once each.
const CHANNEL_EVENTS: usize = 4096;

/// Events that control takes in one go. Workers may send faster than control can act, whoever scans
/// a network behind the gateway sees to that: without a bound control would do nothing else. At 10 µs
/// each, 512 take 5 ms.
const EVENTS_PER_TURN: usize = 512;

/// Neighbours remembered as asked for, per worker. More unresolved ones at once are asked for more
/// often than they need be, which is harmless.
const RECENT: usize = 256;

/// How long a worker does not ask again for an SA of its own. Its packets have one to leave by, so
/// there is no haste, and every packet until the answer comes past here.
const OWN_REPEAT_NS: u64 = 1_000_000_000;

/// Policies remembered as asked for, per worker. Also the most such questions per worker and
/// interval: a policy whose place is taken waits until the other's interval is over.
const OWN_RECENT: usize = 256;

/// Far ends remembered as asked for, per worker. Of more in an interval each policy asks for one, so that no policy with many of them,
/// of which somebody who scans finds as many as he likes, silences another.
const FAR_RECENT: usize = HOLD_PACKETS;

/// Something that control should do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// A packet needs the link-layer address of a neighbour.
    NeighbourNeeded {
        /// Port index.
        port: u16,
        /// The neighbour.
        address: IpAddr,
    },
    /// A packet needs the SA of a protect policy (`XFRM_MSG_ACQUIRE`).
    SaNeeded {
        /// The policy's index.
        policy: u32,
        /// The packet's flow.
        flow: Flow,
        /// The CPU of the worker that wants an SA of its own; `None` if there is no SA at all.
        cpu: Option<u32>,
    },
    /// An SA reached a limit in packets or bytes (`XFRM_MSG_EXPIRE`).
    LimitReached {
        /// What control calls the SA.
        token: u64,
    },
    /// An authentic packet in UDP came from another address or port than its SA's
    /// (`XFRM_MSG_MAPPING`).
    MappingChanged {
        /// The SA's SPI.
        spi: u32,
        /// The SA's destination.
        destination: IpAddr,
        /// Where the packet came from.
        source: IpAddr,
        /// The UDP port it came from.
        source_port: u16,
    },
}

/// Both ends of the channel: clone the sender for every worker.
pub fn channel() -> (SyncSender<Event>, Receiver<Event>) {
    sync_channel(CHANNEL_EVENTS)
}

/// The events that wait, up to what control should act on before it sees to its other duties.
pub fn take_waiting(receiver: &Receiver<Event>) -> Vec<Event> {
    receiver.try_iter().take(EVENTS_PER_TURN).collect()
}

/// Whom an SA is wanted for, of all those that one policy may be for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Far {
    /// All of them: it has one SA.
    All,
    /// The tunnel's row, from 1, that a packet's route leads to.
    Row(NonZeroU32),
    /// A packet's own ends, in transport mode.
    Ends(IpAddr, IpAddr),
}

/// One worker's end of the channel.
pub struct EventSink {
    sender: SyncSender<Event>,
    /// By policy and far end, and when those were asked for.
    far: Vec<(u32, Far, u64)>,
    recent: Box<[Option<(u16, IpAddr, u64)>; RECENT]>,
    /// When an own SA was asked for last, by policy.
    own_asked_ns: Box<[u64; OWN_RECENT]>,
}

impl EventSink {
    /// A sink into a channel.
    pub fn new(sender: SyncSender<Event>) -> EventSink {
        let own_asked_ns = Box::new([0; OWN_RECENT]);
        let far = Vec::with_capacity(FAR_RECENT);
        EventSink { sender, far, recent: Box::new([None; RECENT]), own_asked_ns }
    }

    /// Asks for a neighbour.
    pub(crate) fn need_neighbour(
        &mut self,
        port: u16,
        address: IpAddr,
        now_ns: u64,
        counters: &Counters,
    ) {
        let slot = &mut self.recent[recent_slot(port, address)];
        if let Some((known_port, known_address, asked_ns)) = *slot
            && (known_port, known_address) == (port, address)
            && now_ns.saturating_sub(asked_ns) < REPEAT_NS
        {
            return;
        }
        *slot = Some((port, address, now_ns));
        self.send(Event::NeighbourNeeded { port, address }, counters);
    }

    /// Asks for a policy's SA for some far end. A far end that does not answer keeps no other of the policy's from being asked for.
    pub(crate) fn need_sa(
        &mut self,
        policy: &Policy,
        far: Far,
        flow: &Flow,
        now_ns: u64,
        counters: &Counters,
    ) {
        let may_ask = match far {
            Far::All => policy.may_ask(now_ns, REPEAT_NS),
            far => self.may_ask_far(policy, far, now_ns),
        };
        if may_ask {
            let event = Event::SaNeeded { policy: policy.index(), flow: *flow, cpu: None };
            self.send(event, counters);
        }
    }

    fn may_ask_far(&mut self, policy: &Policy, far: Far, now_ns: u64) -> bool {
        self.far.retain(|(_, _, asked_ns)| now_ns.saturating_sub(*asked_ns) < REPEAT_NS);
        if self.far.iter().any(|(by, of, _)| (*by, *of) == (policy.index(), far)) {
            return false;
        }
        if self.far.len() == FAR_RECENT {
            return policy.may_ask(now_ns, REPEAT_NS);
        }
        self.far.push((policy.index(), far, now_ns));
        true
    }

    /// Asks for a policy's SA for this worker alone.
    #[inline]
    pub(crate) fn need_own_sa(
        &mut self,
        policy: &Policy,
        flow: &Flow,
        cpu: u32,
        now_ns: u64,
        counters: &Counters,
    ) {
        let index = policy.index();
        // Indexes of one direction are eight apart.
        let asked_ns = &mut self.own_asked_ns[index as usize / 8 % OWN_RECENT];
        if *asked_ns == 0 || now_ns.saturating_sub(*asked_ns) >= OWN_REPEAT_NS {
            *asked_ns = now_ns;
            self.send(Event::SaNeeded { policy: index, flow: *flow, cpu: Some(cpu) }, counters);
        }
    }

    /// Tells that an SA reached a limit.
    #[cold]
    pub(crate) fn limit_reached(&self, token: u64, counters: &Counters) {
        self.send(Event::LimitReached { token }, counters);
    }

    /// Tells that an SA's packets come from elsewhere.
    #[cold]
    pub(crate) fn mapping_changed(
        &mut self,
        sa: &Sa,
        flow: &Flow,
        now_ns: u64,
        counters: &Counters,
    ) {
        if sa.may_announce(now_ns, REPEAT_NS) {
            let event = Event::MappingChanged {
                spi: sa.spi(),
                destination: sa.destination(),
                source: flow.src,
                source_port: flow.src_port,
            };
            self.send(event, counters);
        }
    }

    fn send(&self, event: Event, counters: &Counters) {
        // Full, or control is gone; either way the packets go on.
        if self.sender.try_send(event).is_err() {
            counters.count_event_dropped();
        }
    }
}

/// A weak hash is enough: who provokes collisions gets more events, up to the channel's bound.
fn recent_slot(port: u16, address: IpAddr) -> usize {
    let bits = crate::prefix::address_bits(address);
    let folded = (bits ^ bits >> 64) as u64 ^ u64::from(port) << 48;
    (folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize % RECENT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_neighbour_is_asked_for_once_per_interval() {
        let (sender, receiver) = channel();
        let counters = Counters::new();
        let mut sink = EventSink::new(sender);
        let (a, b) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        for now in [1, 2, 3, REPEAT_NS] {
            sink.need_neighbour(0, a, now, &counters);
            sink.need_neighbour(0, b, now, &counters);
        }
        assert_eq!(receiver.try_iter().count(), 2);
        sink.need_neighbour(0, a, REPEAT_NS + 1, &counters);
        let events: Vec<Event> = receiver.try_iter().collect();
        assert_eq!(events, [Event::NeighbourNeeded { port: 0, address: a }]);
    }

    #[test]
    fn workers_that_never_cease_to_ask_leave_control_time() {
        let (sender, receiver) = channel();
        std::thread::scope(|scope| {
            let address = IpAddr::from([10, 0, 0, 1]);
            // A worker whose channel is never empty; it ends when nobody listens any more.
            let flood = move || while sender.send(needed(address)).is_ok() {};
            scope.spawn(flood);
            for _ in 0..100 {
                assert!(take_waiting(&receiver).len() <= EVENTS_PER_TURN);
            }
            drop(receiver);
        });
    }

    fn needed(address: IpAddr) -> Event {
        Event::NeighbourNeeded { port: 0, address }
    }

    #[test]
    fn a_full_or_closed_channel_is_counted_and_never_waited_for() {
        let (sender, receiver) = channel();
        let counters = Counters::new();
        let mut sink = EventSink::new(sender);
        let address = |n: usize| IpAddr::from((n as u32).to_be_bytes());
        for n in 0..CHANNEL_EVENTS + 10 {
            sink.need_neighbour(0, address(n), 1, &counters);
        }
        assert_eq!(counters.snapshot().events_dropped, 10);
        drop(receiver);
        sink.need_neighbour(0, address(1 << 20), 1, &counters);
        assert_eq!(counters.snapshot().events_dropped, 11);
    }
}
