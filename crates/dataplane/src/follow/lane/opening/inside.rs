//! What was inside of packets that were decrypted: is it as nearly all is, who lets it in, and may it go on?

use std::hint::black_box;

use arrayvec::ArrayVec;
use wire::flow::Flow;
use wire::{ipv4, ipv6};

use crate::batch::{BATCH_PACKETS, Slot, Turn};
use crate::content;
use crate::cpu::{Cache, asked_cache};
use crate::fib::{Fib, Lead, MANY};
use crate::follow::lane::addresses::Addresses;
use crate::follow::lane::group::Group;
use crate::follow::lane::inquiry::{Inquiry, InquiryV6, Last, Presumed, is_quick};
use crate::follow::like::Known;
use crate::inspect::{Back, Standing, Word, do_routes_decide_alone, is_welcome, may_be_martians};
use crate::parse;
use crate::plain::PlainHeader;
use crate::policy::{Address, Direction, Fields, Policy};
use crate::prefix::{Block, Family};
use crate::route::leave_framed;
use crate::sa::Sa;
use crate::spd::Lookup;
use crate::view::View;
use crate::vrfs::{MAIN, UNKNOWN};

/// What is asked about what was inside of packets.
pub(super) struct Inside<'v> {
    view: &'v View,
    standing: Standing,
    known: Known<u32>,
    known_v6: Known<u128>,
    /// What lets packets in, and what they meet on their way out.
    forward: Option<Inquiry<'v>>,
    last_forward: Last,
    out: Option<Inquiry<'v>>,
    last_out: Last,
    forward_v6: InquiryV6<'v>,
    out_v6: InquiryV6<'v>,
    /// What else lets packets in, which has been found already.
    found: ArrayVec<&'v Policy, BATCH_PACKETS>,
    /// [`do_routes_decide_alone`].
    routes_alone: bool,
    /// Where packets come from of which routes are asked.
    sources: Addresses<u32>,
    sources_v6: Addresses<u128>,
    /// Of each packet who lets it in, and which of the questions about its way out is its own.
    by: ArrayVec<[u16; 2], BATCH_PACKETS>,
    /// The route of addresses that begin like these is none into a tunnel. Where there are VRFs none begins so: there the routes
    /// differ from table to table, and are asked for with it.
    block: Block,
    in_vrf: BlockInVrf,
    /// There are packets of IPv6, and of the last of them the route was none into a tunnel.
    has_v6: bool,
    last_v6: Option<u128>,
}

/// Addresses whose route in the table of a VRF is none into a tunnel, and its code.
struct BlockInVrf {
    vrf: u32,
    block: Block,
    code: u32,
}

/// Who lets a packet in: nobody need, or the policies that were asked about its group, or of those that have been found already
/// the one with its number, or the routes that are asked about its group.
const NOBODY: u16 = 0;
const ASKED: u16 = 1 << 8;
const FOUND: u16 = 2 << 8;
const ROUTED: u16 = 3 << 8;

/// Which that is of them, and the group or number.
const KIND: u16 = 0xff00;

/// That nobody is asked about a packet's way out; else it is the group with this added.
const UNASKED: u16 = 0;
const OUT: u16 = 1 << 8;

impl<'v> Inside<'v> {
    pub(super) fn of(view: &'v View, turn: &Turn<'_>) -> Inside<'v> {
        let (forward, out) = (view.spd.side(Direction::Forward), view.spd.side(Direction::Out));
        Inside {
            view,
            standing: Standing::of(view, turn),
            known: Known::of_none(),
            known_v6: Known::of_none(),
            forward: is_quick(&forward).then(|| Inquiry::of(&forward)),
            last_forward: Last::default(),
            out: (!out.is_silent()).then(|| Inquiry::of(&out)),
            last_out: Last::default(),
            forward_v6: InquiryV6::of(&forward),
            out_v6: InquiryV6::of(&out),
            has_v6: false,
            found: ArrayVec::new(),
            // Together they are looked up in one table.
            routes_alone: do_routes_decide_alone(view) && !view.vrfs.in_use(),
            sources: Addresses::default(),
            sources_v6: Addresses::default(),
            by: ArrayVec::new(),
            block: if view.has_tunnels() || view.vrfs.in_use() { Block::NONE } else { Block::ALL },
            in_vrf: BlockInVrf { vrf: MAIN, block: Block::NONE, code: 0 },
            last_v6: None,
        }
    }

    /// Looks at what was inside of packets that were decrypted, up to the first that is to be parked, of which nothing is
    /// changed; how many it looked at. Those become what was inside of them, behind room for a link header.
    pub(super) fn look_at_all(&mut self, slots: &mut [Slot<'_>]) -> usize {
        match asked_cache() {
            Cache::First => self.look_into::<false>(slots),
            Cache::Second => self.look_into::<true>(slots),
        }
    }

    /// The same where memory is asked for into the `SECOND` cache, or the first: a function for each.
    #[inline(never)]
    fn look_into<const SECOND: bool>(&mut self, slots: &mut [Slot<'_>]) -> usize {
        let cache = Cache::second_if(SECOND);
        for slot in slots {
            let by = match slot.verdict {
                None => self.look(slot, cache),
                Some(_) => Some([NOBODY, UNASKED]),
            };
            let Some(by) = by else { break };
            self.by.push(by);
        }
        self.by.len()
    }

    #[inline(always)]
    fn look(&mut self, slot: &mut Slot<'_>, cache: Cache) -> Option<[u16; 2]> {
        let sa = slot.inbound?;
        let content = content::any_behind::<ipv4::Plain>(usize::from(slot.esp_at), slot, self.view);
        let Some(content) = content else { return self.look_v6(slot, sa) };
        let header = &content.header;
        let flow = header.flow();
        let destination = header.destination().to_bits();
        if header.ttl() <= 1
            || may_be_martians(&flow)
            || self.known.is_for_host(destination, self.view)
            || !self.block.has(destination) && self.is_for_tunnel(destination, slot)
        {
            return None;
        }
        let forward = match sa.hot().if_id {
            0 => ASKED | self.forward.as_mut()?.note(header, &mut self.last_forward, cache).code(),
            _ if self.routes_alone => ROUTED | self.sources.note(u32::of_address(flow.src)).code(),
            _ if self.standing.lets_in(sa, Family::V4) => NOBODY,
            _ => self.welcome::<ipv4::Plain>(content.at, sa, slot)?,
        };
        let out = match &mut self.out {
            Some(out) => OUT | out.note(header, &mut self.last_out, cache).code(),
            None => UNASKED,
        };
        leave_framed(&mut slot.frame, content.at, header.total_len().into())?;
        slot.counted = content.len;
        Some([forward, out])
    }

    /// The same of one with IPv6 inside. Out of line, so that nothing of it takes registers from the others.
    #[inline(never)]
    fn look_v6(&mut self, slot: &mut Slot<'_>, sa: &Sa) -> Option<[u16; 2]> {
        let content = content::plain_behind::<ipv6::Plain>(usize::from(slot.esp_at), slot)?;
        let flow = content.header.flow();
        let destination = u128::of_address(flow.dst);
        if flow.ttl <= 1
            || may_be_martians(&flow)
            || self.known_v6.is_for_host(destination, self.view)
            || self.last_v6 != Some(destination) && self.is_for_tunnel_v6(destination, slot)
        {
            return None;
        }
        let fields = Fields::of(&flow, 0);
        let forward = match sa.hot().if_id {
            0 if self.forward.is_none() => return None,
            0 => ASKED | self.forward_v6.note(fields).code(),
            _ if self.routes_alone => ROUTED | self.sources_v6.note(fields.source).code(),
            _ if self.standing.lets_in(sa, Family::V6) => NOBODY,
            _ => self.welcome::<ipv6::Plain>(content.at, sa, slot)?,
        };
        let out = match self.out {
            Some(_) => OUT | self.out_v6.note(fields).code(),
            None => UNASKED,
        };
        self.has_v6 = true;
        leave_framed(&mut slot.frame, content.at, flow.total_len.into())?;
        slot.counted = content.len;
        Some([forward, out])
    }

    /// Who lets in what comes through an SA of route mode, and begins at so many bytes of the packet. It is read anew, so that it need not
    /// be in memory for this.
    #[inline(never)]
    fn welcome<P: PlainHeader>(&mut self, at: usize, sa: &Sa, slot: &Slot<'_>) -> Option<u16> {
        let flow = parse::reread::<P>(&slot.frame, at)?.any_flow();
        match self.standing.ask(&flow, sa, self.view)? {
            Word::Policy(policy) => {
                self.found.push(policy);
                Some(FOUND | (self.found.len() as u16 - 1))
            }
            Word::Routes if self.view.vrfs.in_use() => {
                let code = self.view.fib.code_in(self.view.vrf_of(slot), flow.src);
                Back::by(&[code], self.view).leads_into(0, sa, self.view).then_some(NOBODY)
            }
            Word::Routes => Some(self.route(&flow)),
        }
    }

    /// That the route to its source is to let a packet in.
    fn route(&mut self, flow: &Flow) -> u16 {
        let group = match flow.is_ipv6() {
            false => self.sources.note(u32::of_address(flow.src)),
            true => self.sources_v6.note(u128::of_address(flow.src)),
        };
        ROUTED | group.code()
    }

    /// Whether the route of a packet's address leads into a tunnel. Where there are VRFs, it is noted if it does not.
    #[inline(never)]
    fn is_for_tunnel(&mut self, destination: u32, slot: &mut Slot<'_>) -> bool {
        let vrf = self.view.vrf_of(slot);
        let known = &self.in_vrf;
        if known.vrf == vrf && known.block.has(destination) {
            slot.lead = Lead::to(known.code);
            return false;
        }
        let (code, len) = self.view.fib.block_in(vrf, destination.address());
        if vrf == UNKNOWN || Fib::tunnel_of(code).is_some() {
            return true;
        }
        let block = Block::of(destination, len);
        if self.view.vrfs.in_use() {
            self.in_vrf = BlockInVrf { vrf, block, code };
            slot.lead = Lead::to(code);
        } else {
            self.block = block;
        }
        false
    }

    /// The same of one of IPv6.
    #[inline(never)]
    fn is_for_tunnel_v6(&mut self, destination: u128, slot: &mut Slot<'_>) -> bool {
        let (view, vrf) = (self.view, self.view.vrf_of(slot));
        let code = || view.fib.code_in(vrf, destination.address());
        if view.vrfs.in_use() {
            let code = code();
            if vrf == UNKNOWN || Fib::tunnel_of(code).is_some() {
                return true;
            }
            slot.lead = Lead::to(code);
            return false;
        }
        let is_it = view.has_tunnels() && Fib::tunnel_of(code()).is_some();
        self.last_v6 = (!is_it).then_some(destination);
        is_it
    }

    /// Whether any that it looked at was of IPv6.
    pub(super) fn has_v6(&self) -> bool {
        self.has_v6
    }

    /// Where the routes to sources lead.
    #[inline(never)]
    fn ways_back(&self) -> Back<'v> {
        let mut codes = [0; MANY];
        Back::by(self.sources.codes(MAIN, self.view, &mut codes), self.view)
    }

    /// What is said of packets of IPv6.
    #[inline(never)]
    fn said_of_v6(&self) -> Said<'v> {
        let mut codes = [0; MANY];
        Said {
            free: self.out_v6.free(),
            presumed: self.forward_v6.presumed(),
            back: Some(Back::by(self.sources_v6.codes(MAIN, self.view, &mut codes), self.view)),
        }
    }
}

/// What the policies say of packets that were looked at, for who goes over them in their order: of such of IPv4 alone, or of some of
/// IPv6 among them.
pub(super) struct Answers<'i, 'v, const MIXED: bool> {
    inside: &'i Inside<'v>,
    v4: Said<'v>,
    v6: Said<'v>,
    /// Who let the last packet in of which policies were asked, and the policy.
    last: (u16, Option<&'v Policy>),
}

/// What was said of packets of a family.
#[derive(Default)]
struct Said<'v> {
    /// Of how many questions about their way out the answer is that nobody minds.
    free: usize,
    presumed: Presumed<'v>,
    /// Where the routes to their sources lead.
    back: Option<Back<'v>>,
}

impl<'i, 'v, const MIXED: bool> Answers<'i, 'v, MIXED> {
    #[inline(always)]
    pub(super) fn to(inside: &'i Inside<'v>) -> Answers<'i, 'v, MIXED> {
        let free = inside.out.as_ref().map_or(0, Inquiry::free);
        let presumed = |forward: &Inquiry<'v>| forward.presumed(asked_cache());
        let presumed = inside.forward.as_ref().map(presumed).unwrap_or_default();
        let back = (!inside.sources.is_empty()).then(|| inside.ways_back());
        let v4 = Said { free, presumed, back };
        let v6 = if MIXED { inside.said_of_v6() } else { Said::default() };
        Answers { inside, v4, v6, last: (NOBODY, None) }
    }

    /// What was said of the packets of a group's family.
    #[inline(always)]
    fn said(&self, group: Group) -> &Said<'v> {
        if MIXED && group.is_v6() { &self.v6 } else { &self.v4 }
    }

    /// Whether a packet that came through an SA may come in and go on, and which policy is to count it, if one is. `None` if it
    /// has to be parked.
    #[inline(always)]
    pub(super) fn let_pass(&mut self, at: usize, sa: &Sa) -> Option<Option<&'v Policy>> {
        let [by, out] = *self.inside.by.get(at)?;
        if out != UNASKED && Group::of(out).number() >= self.said(Group::of(out)).free {
            return None;
        }
        match by & KIND {
            NOBODY => Some(None),
            ROUTED => self.leads_back(Group::of(by), sa).then_some(None),
            FOUND => self.inside.found.get(usize::from(by ^ FOUND)).copied().map(Some),
            _ => {
                if self.last.0 != by {
                    self.last = (by, self.policy(Group::of(by)));
                }
                self.last.1.filter(|policy| is_welcome(policy, sa)).map(Some)
            }
        }
    }

    /// The place itself, where whoever goes over the packets ends before their end. By reference, and opaque, so that the answers
    /// are in memory as a whole: in registers, of which there are too few, they cost 3 % of opening many tunnels by policies.
    #[cold]
    #[inline(never)]
    pub(super) fn end_at(&mut self, at: usize) -> usize {
        black_box(self);
        at
    }

    /// Whether the route to one of the sources leads into the tunnel of an SA. Out of line, so that nothing of it takes registers
    /// from what policies say.
    #[inline(never)]
    fn leads_back(&self, group: Group, sa: &Sa) -> bool {
        let back = self.said(group).back.as_ref();
        back.is_some_and(|back| back.leads_into(group.number(), sa, self.inside.view))
    }

    /// The policy of packets about which the same was asked, if there is one.
    #[inline(always)]
    fn policy(&self, group: Group) -> Option<&'v Policy> {
        let (at, presumed) = (group.number(), &self.said(group).presumed);
        let found = match MIXED && group.is_v6() {
            false => self.inside.forward.as_ref()?.lookup(at, presumed)?,
            true => self.inside.forward_v6.lookup(at, presumed)?,
        };
        match found {
            Lookup::Policy(policy) => Some(policy),
            _ => None,
        }
    }
}
