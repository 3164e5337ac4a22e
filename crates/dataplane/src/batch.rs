//! The packets of one turn, and what the stages found out about each.
//!
//! A stage goes over the slots that no earlier stage has decided. Slots refer into the turn's view,
//! so the batch ends with the turn; only its memory is kept. Slots come with `receive`, from the hold after
//! `hop` (`hold.rs`), and from other workers in `decrypt` and `encrypt`, which also lend them (`crew.rs`); they
//! go with `send`. No other stage adds or removes any.

#![allow(unsafe_code)]

use std::mem::{MaybeUninit, offset_of};
use std::net::{IpAddr, Ipv6Addr};
use std::ops::{Deref, DerefMut};

use wire::flow::{Flow, Fragment};
use xsk::Frame;

use crate::chunk::CHUNK_PACKETS;
use crate::counters::Counters;
use crate::cpu::LINE;
use crate::crew::COMMIT_CHUNKS;
use crate::event::EventSink;
use crate::fib::Lead;
use crate::flows::Flows;
use crate::hold::{HOLD_PACKETS, Hold, Stay};
use crate::policy::Policy;
use crate::sa::Sa;
use crate::sad;
use crate::tunnel::Entrance;
use crate::verdict::Verdict;
use crate::view::View;

/// Packets of one turn. 64 hide the memory latency of table look-ups behind each other and, at
/// 500 ns each, bound a turn to 32 µs; 256 would fill the second level cache with payload.
pub(crate) const BATCH_PACKETS: usize = 64;

/// Slots of a turn: what is received, what comes back from the hold, and from other workers.
pub(crate) const SLOTS: usize = BATCH_PACKETS + HOLD_PACKETS + COMMIT_CHUNKS * CHUNK_PACKETS;

/// A packet and what is known about it. What whoever encrypts or decrypts it reads is in the first cache
/// line, and is all of it that most packets have; the others, of which stages make [`Notes`], have two more. Each is
/// all that moves of it to another core and back.
#[repr(C, align(64))]
pub(crate) struct Slot<'v> {
    /// The packet: from `parse` on the IP packet, and after `route` the Ethernet frame again.
    pub(crate) frame: Frame,
    /// The full ESP sequence number: of a packet to be opened what it seems to be, and of one to be
    /// encrypted its own.
    pub(crate) sequence: u64,
    /// The IV of a packet to be encrypted.
    pub(crate) iv: u64,
    /// The SA to open it with, and then the SA it came through.
    pub(crate) inbound: Option<&'v Sa>,
    /// The SA to seal it with, and then the SA it leaves through.
    pub(crate) outbound: Option<&'v Sa>,
    /// Bytes in front of the ESP header of a packet to be opened: IP headers, and UDP's where it is
    /// used.
    pub(crate) esp_at: u16,
    /// The bytes of it that its SA counts.
    pub(crate) counted: u16,
    /// The port it came in by.
    pub(crate) ingress: u16,
    /// Where it leaves.
    pub(crate) egress: Option<u16>,
    /// Bytes of the link header that `parse` took off.
    pub(crate) link_len: u8,
    /// How it ends, once that is decided. Successes are decided by `route`.
    pub(crate) verdict: Option<Verdict>,
    /// What is wrong with the content of an authentic packet; `accept` decides.
    pub(crate) flaw: Option<Verdict>,
    /// It came through a tunnel before it waited for an SA: what `stay` says, where all stages look.
    pub(crate) waited_opened: bool,
    /// Whether there are notes.
    is_noted: bool,
    // Two more lines.
    notes: MaybeUninit<Notes<'v>>,
}

/// What stages find out about a packet, for each other. Lanes find out little that others ask for, so that there are none until
/// somebody makes one: who reads before finds them blank.
#[repr(C)]
pub(crate) struct Notes<'v> {
    // What policies and routes ask for, and decrypting finds out. Nothing in this line is smaller than what it is written
    // in: a number that may be missing would be, and the processor would wait for each new one.
    /// The outbound policy that asks for an SA, while the SA is being looked for.
    pub(crate) policy: Option<&'v Policy>,
    /// Its headers; of the inner packet once it is opened.
    pub(crate) flow: Flow,
    /// The route to its own destination, once that was looked up in this view.
    pub(crate) lead: Lead,
    // What few packets have, in a line of its own.
    /// The tunnel that its route leads into, while the SA is being looked for.
    pub(crate) tunnel: Option<Entrance<'v>>,
    /// Its wait for an SA: with the verdict `NoSa` it begins or goes on, without one it just ended.
    pub(crate) stay: Option<Stay>,
}

const _: () =
    assert!(offset_of!(Slot<'static>, notes) == LINE && offset_of!(Notes<'static>, tunnel) == LINE);

/// The flow of a packet that is not parsed yet: addresses without unused bytes, so that it can be
/// written in large pieces.
const UNPARSED: Flow = Flow {
    src: IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    dst: IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    protocol: 0,
    src_port: 0,
    dst_port: 0,
    ttl: 0,
    tos: 0,
    header_len: 0,
    total_len: 0,
    fragment: Fragment::Whole,
    has_options: false,
};

impl Notes<'_> {
    const BLANK: Notes<'static> =
        Notes { policy: None, flow: UNPARSED, lead: Lead::UNKNOWN, tunnel: None, stay: None };
}

/// Notes are read as if they were the slot's own.
impl<'v> Deref for Slot<'v> {
    type Target = Notes<'v>;

    #[inline(always)]
    fn deref(&self) -> &Notes<'v> {
        match self.is_noted {
            // SAFETY: they were written when this was set, and are never taken away.
            true => unsafe { self.notes.assume_init_ref() },
            false => &Notes::BLANK,
        }
    }
}

/// And made so.
impl<'v> DerefMut for Slot<'v> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Notes<'v> {
        self.parts().1
    }
}

impl<'v> Slot<'v> {
    /// A packet that came in by a port, of which nothing is known yet.
    #[inline(always)]
    pub(crate) fn new(frame: Frame, ingress: u16) -> Slot<'v> {
        Slot {
            frame,
            sequence: 0,
            iv: 0,
            inbound: None,
            outbound: None,
            esp_at: 0,
            counted: 0,
            ingress,
            egress: None,
            link_len: 0,
            verdict: None,
            flaw: None,
            waited_opened: false,
            is_noted: false,
            notes: MaybeUninit::uninit(),
        }
    }

    /// The packet and the notes, for who has to do with both at once.
    #[inline(always)]
    pub(crate) fn parts(&mut self) -> (&mut Frame, &mut Notes<'v>) {
        if !self.is_noted {
            self.notes.write(Notes::BLANK);
            self.is_noted = true;
        }
        // SAFETY: they were written, now or when this was set.
        (&mut self.frame, unsafe { self.notes.assume_init_mut() })
    }

    /// Whether the packet came through a tunnel.
    #[inline]
    pub(crate) fn was_opened(&self) -> bool {
        self.inbound.is_some() || self.waited_opened
    }

    /// The tunnel of route mode that the packet came through; 0 if none.
    #[inline]
    pub(crate) fn came_by_tunnel(&self) -> u32 {
        match self.inbound {
            Some(sa) => sa.hot().if_id,
            None => self.stay.map_or(0, |stay| stay.if_id),
        }
    }

    /// Whether the host itself sent the packet.
    #[inline]
    pub(crate) fn is_hosts(&self, view: &View) -> bool {
        view.host == Some(self.ingress) || view.tunnel_devices.contains(&self.ingress)
    }

    /// Decides the packet's fate.
    #[inline]
    pub(crate) fn decide(&mut self, verdict: Verdict) {
        debug_assert!(self.verdict.is_none(), "decided twice");
        self.verdict = Some(verdict);
    }

    /// The same of a packet that dies, which its SA counts if it has one.
    #[cold]
    pub(crate) fn refuse(&mut self, sa: Option<&Sa>, verdict: Verdict) {
        if let Some(sa) = sa {
            sa.count_error(verdict);
        }
        self.decide(verdict);
    }
}

/// The packets of one turn.
#[derive(Default)]
pub(crate) struct Batch<'v> {
    pub(crate) slots: Vec<Slot<'v>>,
    /// The SAs of ESP packets, while they are being looked for.
    pub(crate) named: Vec<Named>,
    /// Packets that were decrypted and wait, as long as others are, to take their places again.
    pub(crate) parked: Vec<Slot<'v>>,
    /// Packets that another worker decrypted, which join the batch in this turn.
    pub(crate) returned: usize,
    /// Whether packets that waited for an SA join the batch in this turn.
    pub(crate) rejoined: bool,
    /// Whether any packet may have to be sealed: `choose` says so, and then `seal` whether it met one.
    pub(crate) seals: bool,
}

/// The SA that an ESP packet names, and those that follow it without one of another in between.
pub(crate) struct Named {
    /// The first packet's slot.
    pub(crate) slot: usize,
    /// The name.
    pub(crate) key: sad::Key,
    /// Its hash in this turn's view.
    pub(crate) hash: u64,
}

/// The memory of a batch between turns.
pub(crate) struct BatchMemory {
    slots: Vec<Slot<'static>>,
    named: Vec<Named>,
    parked: Vec<Slot<'static>>,
}

impl BatchMemory {
    /// Memory for a full batch.
    pub fn new() -> BatchMemory {
        BatchMemory {
            slots: Vec::with_capacity(SLOTS),
            named: Vec::with_capacity(SLOTS),
            parked: Vec::with_capacity(BATCH_PACKETS),
        }
    }

    /// Lends the memory to a turn.
    pub(crate) fn begin<'v>(&mut self) -> Batch<'v> {
        let named = std::mem::take(&mut self.named);
        let slots = relabel(std::mem::take(&mut self.slots));
        let parked = relabel(std::mem::take(&mut self.parked));
        Batch { slots, named, parked, returned: 0, rejoined: false, seals: false }
    }

    /// Takes the memory back.
    pub(crate) fn end(&mut self, batch: Batch<'_>) {
        self.slots = relabel(batch.slots);
        self.named = batch.named;
        self.parked = relabel(batch.parked);
    }
}

impl Default for BatchMemory {
    fn default() -> Self {
        BatchMemory::new()
    }
}

/// An empty vector with the memory of another whose slots had another lifetime. Collecting into
/// the same layout reuses the allocation; a test holds the compiler to it.
pub(crate) fn relabel<'a>(mut slots: Vec<Slot<'_>>) -> Vec<Slot<'a>> {
    slots.clear();
    slots.into_iter().map_while(|_| None).collect()
}

impl<'v> Batch<'v> {
    /// Adds packets that came in by a port.
    #[inline]
    pub(crate) fn extend(&mut self, frames: impl Iterator<Item = Frame>, ingress: u16) {
        self.slots.extend(frames.map(|frame| Slot::new(frame, ingress)));
    }

    /// Whether any of the packets came out of a tunnel in this turn.
    #[inline]
    pub(crate) fn brings_opened(&self) -> bool {
        !self.named.is_empty() || self.returned != 0
    }

    /// The packets that no stage has decided yet.
    #[inline]
    pub(crate) fn undecided(&mut self) -> impl Iterator<Item = &mut Slot<'v>> {
        self.slots.iter_mut().filter(|slot| slot.verdict.is_none())
    }
}

/// Whether a slot's SA is this very one.
#[inline]
pub(crate) fn is_same(slot: Option<&Sa>, sa: &Sa) -> bool {
    slot.is_some_and(|other| std::ptr::eq(other, sa))
}

/// What a stage may know and touch beside the packets and the view.
pub(crate) struct Turn<'a> {
    /// The time of this turn on the data plane's clock.
    pub(crate) now_ns: u64,
    /// The worker's number.
    pub(crate) worker: usize,
    /// The worker's seat (`seat.rs`).
    pub(crate) seat: u16,
    /// The turn's number there.
    pub(crate) number: u64,
    /// The CPU that it is pinned to.
    pub(crate) cpu: Option<u32>,
    pub(crate) counters: &'a Counters,
    pub(crate) events: &'a mut EventSink,
    pub(crate) hold: &'a mut Hold,
    /// Packets that come in once more in the next turn, and their ports.
    pub(crate) late: &'a mut Vec<(Frame, u16)>,
    pub(crate) flows: &'a mut Flows,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::event;
    use xsk::Umem;

    /// What a worker has that [`Turn`] refers to.
    pub(crate) struct Belongings {
        counters: Counters,
        events: EventSink,
        hold: Hold,
        late: Vec<(Frame, u16)>,
        flows: Flows,
    }

    impl Belongings {
        /// Nobody listens to its events.
        pub(crate) fn new() -> Belongings {
            Belongings {
                counters: Counters::default(),
                events: EventSink::new(event::channel().0),
                hold: Hold::new(),
                late: Vec::new(),
                flows: Flows::new(),
            }
        }

        /// A turn of the first worker.
        pub(crate) fn turn(&mut self, now_ns: u64) -> Turn<'_> {
            Turn {
                now_ns,
                worker: 0,
                seat: 1,
                number: 1,
                cpu: None,
                counters: &self.counters,
                events: &mut self.events,
                hold: &mut self.hold,
                late: &mut self.late,
                flows: &mut self.flows,
            }
        }
    }

    #[test]
    fn notes_are_blank_until_one_is_made_and_move_with_the_packet() {
        let umem = Umem::new(2, 2048, false).unwrap();
        let mut pool = umem.pool(0..2);
        let mut slots: Vec<Slot<'_>> = Vec::with_capacity(2);
        slots.extend(pool.take().map(|frame| Slot::new(frame, 3)));
        assert!(slots[0].policy.is_none() && slots[0].tunnel.is_none() && slots[0].stay.is_none());
        assert_eq!((slots[0].flow.src, slots[0].lead.code()), (UNPARSED.src, None));
        assert!(!slots[0].is_noted, "whoever only reads makes none");
        slots[0].lead = Lead::to(7);
        slots[0].parts().1.flow.ttl = 64;
        slots.extend(pool.take().map(|frame| Slot::new(frame, 4)));
        slots.swap(0, 1);
        let noted = |slot: &Slot<'_>| (slot.ingress, slot.lead.code(), slot.flow.ttl);
        assert_eq!(slots.iter().map(noted).collect::<Vec<_>>(), [(4, None, 0), (3, Some(7), 64)]);
        assert_eq!(slots[1].flow.dst, UNPARSED.dst);
        slots.drain(..).for_each(|slot| pool.give(slot.frame));
    }

    #[test]
    fn a_turn_allocates_no_batch() {
        let umem = Umem::new(1, 2048, false).unwrap();
        let mut pool = umem.pool(0..1);
        let mut memory = BatchMemory::new();
        let place = memory.slots.as_ptr();
        for _ in 0..3 {
            let mut batch = memory.begin();
            batch.extend(pool.take().into_iter(), 0);
            pool.give(batch.slots.pop().unwrap().frame);
            memory.end(batch);
            assert_eq!(memory.slots.as_ptr(), place);
            assert_eq!(memory.slots.capacity(), SLOTS);
        }
    }
}
