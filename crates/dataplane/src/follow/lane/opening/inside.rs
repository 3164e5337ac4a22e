//! What was inside of packets that were decrypted: is it as nearly all is, who lets it in, and may it go on?

use std::net::{IpAddr, Ipv4Addr};

use arrayvec::ArrayVec;
use wire::{flow, ipv4};

use crate::batch::{BATCH_PACKETS, Slot, Turn};
use crate::content;
use crate::fib::Fib;
use crate::follow::Known;
use crate::follow::lane::inquiry::{Inquiry, last_of, quickly};
use crate::inspect::{Back, Standing, Word, do_routes_decide_alone, is_welcome, may_be_martians};
use crate::policy::{Direction, Policy};
use crate::prefix::Family;
use crate::sa::Sa;
use crate::spd::Lookup;
use crate::view::View;
use crate::vrfs::MAIN;

/// What is asked about what was inside of packets.
pub(super) struct Inside<'v> {
    view: &'v View,
    standing: Standing,
    known: Known,
    /// What lets packets in, and what they meet on their way out.
    forward: Option<Inquiry<'v>>,
    out: Option<Inquiry<'v>>,
    /// What else lets packets in, which has been found already.
    found: ArrayVec<&'v Policy, BATCH_PACKETS>,
    /// [`do_routes_decide_alone`].
    routes_alone: bool,
    /// Where packets come from of which routes are asked, those that follow each other from one once.
    sources: ArrayVec<u32, BATCH_PACKETS>,
    /// Of each packet who lets it in, and which of the questions about its way out is its own.
    by: ArrayVec<[u8; 2], BATCH_PACKETS>,
    /// The route of addresses that begin like these is none into a tunnel.
    bits: u32,
    mask: u32,
}

/// Who lets a packet in: nobody need, or of what policies were asked the answers from here on, or from here on of those that
/// have been found already, or from here on of what routes are asked.
const NOBODY: u8 = 0;
const ASKED: u8 = 1;
const FOUND: u8 = ASKED + BATCH_PACKETS as u8;
const ROUTED: u8 = FOUND + BATCH_PACKETS as u8;

const _: () = assert!(ROUTED as usize + BATCH_PACKETS <= 1 << u8::BITS);

impl<'v> Inside<'v> {
    pub(super) fn of(view: &'v View, turn: &Turn<'_>) -> Inside<'v> {
        let inquiry = |direction| quickly(&view.spd.side(direction)).map(Inquiry::of);
        let out = view.spd.side(Direction::Out);
        Inside {
            view,
            standing: Standing::of(view, turn),
            known: Known::default(),
            forward: inquiry(Direction::Forward),
            out: inquiry(Direction::Out).filter(|_| !out.is_silent()),
            found: ArrayVec::new(),
            routes_alone: do_routes_decide_alone(view),
            sources: ArrayVec::new(),
            by: ArrayVec::new(),
            bits: u32::from(view.has_tunnels()),
            mask: 0,
        }
    }

    /// Looks at what was inside of packets that were decrypted, up to the first that is to be parked, of which nothing is
    /// changed; how many it looked at.
    #[inline(never)]
    pub(super) fn look_at_all(&mut self, slots: &mut [Slot<'_>]) -> usize {
        for slot in slots {
            let by = match slot.verdict {
                None => self.look(slot),
                Some(_) => Some([NOBODY, 0]),
            };
            let Some(by) = by else { break };
            self.by.push(by);
        }
        self.by.len()
    }

    #[inline(always)]
    fn look(&mut self, slot: &mut Slot<'_>) -> Option<[u8; 2]> {
        let sa = slot.inbound?;
        let content = content::plain_behind(usize::from(slot.esp_at), slot)?;
        let header = &content.header;
        let flow = flow::of_plain_v4(header);
        let destination = header.destination().to_bits();
        if header.ttl() <= 1
            || may_be_martians(&flow)
            || self.known.is_for_host(destination, self.view)
            || destination & self.mask != self.bits && self.is_for_tunnel(destination)
        {
            return None;
        }
        let forward = match sa.hot().if_id {
            0 => ASKED + last_of(self.forward.as_mut()?.note(&flow)),
            _ if self.routes_alone => self.route(header.source().to_bits()),
            _ if self.standing.lets_in(sa, Family::V4) => NOBODY,
            _ => self.welcome(header, sa)?,
        };
        let out = match &mut self.out {
            Some(out) => out.note(&flow),
            None => 0,
        };
        slot.frame.narrow(content.at, usize::from(header.total_len()))?;
        slot.counted = content.len;
        slot.flow.dst = IpAddr::V4(header.destination());
        Some([forward, out as u8])
    }

    /// Who lets in what comes through an SA of route mode.
    #[inline(never)]
    fn welcome(&mut self, header: &ipv4::Plain, sa: &Sa) -> Option<u8> {
        let flow = flow::of_plain_v4(header);
        match self.standing.ask(&flow, sa, self.view)? {
            Word::Policy(policy) => {
                self.found.push(policy);
                Some(FOUND + last_of(self.found.len()))
            }
            Word::Routes => Some(self.route(header.source().to_bits())),
        }
    }

    /// That the route to its source is to let a packet in.
    #[inline(always)]
    fn route(&mut self, source: u32) -> u8 {
        if self.sources.last() != Some(&source) {
            self.sources.push(source);
        }
        ROUTED + last_of(self.sources.len())
    }

    /// Whether the route of an address leads into a tunnel.
    #[inline(never)]
    fn is_for_tunnel(&mut self, destination: u32) -> bool {
        let (code, block) = self.view.fib.block_in(MAIN, Ipv4Addr::from_bits(destination).into());
        if Fib::tunnel_of(code).is_some() {
            return true;
        }
        self.mask = (u64::MAX << (u32::BITS - block.min(u32::BITS))) as u32;
        self.bits = destination & self.mask;
        false
    }
}

/// What the policies say of packets that were looked at, for who goes over them in their order.
pub(super) struct Answers<'i, 'v> {
    inside: &'i Inside<'v>,
    /// Of how many questions about their way out the answer is that nobody minds.
    free: usize,
    presumed: ArrayVec<Option<&'v Policy>, BATCH_PACKETS>,
    back: Option<Back<'v>>,
    /// The last question about what lets packets in, and its policy.
    last: (u8, Option<&'v Policy>),
}

impl<'i, 'v> Answers<'i, 'v> {
    #[inline(always)]
    pub(super) fn to(inside: &'i Inside<'v>) -> Answers<'i, 'v> {
        let free = inside.out.as_ref().map_or(0, Inquiry::free);
        let presumed = inside.forward.as_ref().map(Inquiry::presumed).unwrap_or_default();
        let (sources, view) = (&inside.sources, inside.view);
        let back = (!sources.is_empty()).then(|| Back::to_v4(sources, view));
        Answers { inside, free, presumed, back, last: (NOBODY, None) }
    }

    /// Whether a packet that came through an SA may come in and go on, and which policy is to count it, if one is. `None` if it
    /// has to be parked.
    #[inline(always)]
    pub(super) fn let_pass(&mut self, at: usize, sa: &Sa) -> Option<Option<&'v Policy>> {
        let [by, out] = *self.inside.by.get(at)?;
        if usize::from(out) > self.free {
            return None;
        }
        match by {
            NOBODY => Some(None),
            ROUTED.. => self.leads_back(by - ROUTED, sa).then_some(None),
            FOUND.. => self.inside.found.get(usize::from(by - FOUND)).copied().map(Some),
            _ => {
                if self.last.0 != by {
                    self.last = (by, self.policy(by - ASKED));
                }
                self.last.1.filter(|policy| is_welcome(policy, sa)).map(Some)
            }
        }
    }

    /// Whether the route to one of the sources leads into the tunnel of an SA. Out of line, so that nothing of it takes registers
    /// from what policies say.
    #[inline(never)]
    fn leads_back(&self, source: u8, sa: &Sa) -> bool {
        let back = self.back.as_ref();
        back.is_some_and(|back| back.leads_into(source.into(), sa, self.inside.view))
    }

    /// The policy of packets about which the same was asked, if there is one.
    #[inline(always)]
    fn policy(&self, asked: u8) -> Option<&'v Policy> {
        match self.inside.forward.as_ref()?.lookup(asked.into(), &self.presumed)? {
            Lookup::Policy(policy) => Some(policy),
            _ => None,
        }
    }
}
