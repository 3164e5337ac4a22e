//! The slots of `View::bundles`: which exist, which SAs fit each, and filling them.
//!
//! An SA is kept with its ends; that it fits the slots for its own SPI as well as those for any is seen
//! when one is filled. It is kept a second time for slots that know its far end alone: those that routes
//! name, and those of templates without a source, as long as there are such.
//!
//! Policies that want the same SA share a slot. A slot is filled with the best SAs that fit: one for
//! all workers, and one for each worker that has its own. `candidates.rs` says what is best, and
//! `tables.rs` when to look again.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use dataplane::bundles::Bundle;
use dataplane::policy::Template;
use dataplane::sa::{Mode, Sa};
use dataplane::transport::Ends;
use dataplane::view::View;
use foldhash::HashMap;

use super::candidates::{Candidate, Candidates, SHARED};
use super::short::{KEY_BYTES_MAX, Parts, Short, put, put_address};
use crate::xfrm::SaId;

/// What is known of the ends of a slot's SA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Known {
    /// Both.
    Both,
    /// The far one: the template has no source, for which Linux asks its routes (`xfrm_get_saddr`).
    FarByTemplate,
    /// The far one: a route names it.
    FarByRoute,
}

/// What a slot's SA must be. An SPI of zero stands for any; a reqid of zero does not, as in
/// `xfrm_state_find`: a policy without one takes SAs without one, and no other tunnel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotKey {
    known: Known,
    if_id: u32,
    mode: Mode,
    source: IpAddr,
    destination: IpAddr,
    reqid: u32,
    spi: u32,
}

impl SlotKey {
    /// What a template asks for, in a policy of an `if_id`.
    pub fn of(template: &Template, if_id: u32) -> SlotKey {
        let is_open = template.mode == Mode::Tunnel && template.source.is_unspecified();
        SlotKey {
            known: if is_open { Known::FarByTemplate } else { Known::Both },
            if_id,
            mode: template.mode,
            source: template.source,
            destination: template.destination,
            reqid: template.reqid,
            spi: template.spi,
        }
    }

    /// Every slot that an SA fits which knows both ends.
    fn fitted_by(sa: &Sa) -> [SlotKey; 2] {
        let known = Known::Both;
        let (source, destination, reqid) = (sa.source(), sa.destination(), sa.reqid());
        let (mode, if_id) = (sa.mode(), sa.if_id());
        [0, sa.spi()].map(|spi| SlotKey { known, if_id, mode, source, destination, reqid, spi })
    }

    /// Any SA of an `if_id` to a far end.
    pub fn to_far_end(if_id: u32, destination: IpAddr) -> SlotKey {
        let (source, known) = (unspecified(destination), Known::FarByRoute);
        SlotKey { known, if_id, mode: Mode::Tunnel, source, destination, reqid: 0, spi: 0 }
    }

    /// The slot of templates without a source that an SA fits, in tunnel mode.
    fn without_source(sa: &Sa) -> SlotKey {
        let [any, _] = SlotKey::fitted_by(sa);
        SlotKey { known: Known::FarByTemplate, source: unspecified(any.destination), ..any }
    }

    /// The slot's ends, whatever its SPI.
    fn ends_key(&self) -> EndsKey {
        let SlotKey { known, if_id, mode, source, destination, reqid, .. } = *self;
        let mut parts = Parts::new();
        put(&mut parts, &[u8::from(mode == Mode::Transport) | (known as u8) << 1]);
        put(&mut parts, &reqid.to_ne_bytes());
        put_address(&mut parts, source);
        put_address(&mut parts, destination);
        if if_id != 0 {
            put(&mut parts, &if_id.to_ne_bytes());
        }
        Short::new(&parts)
    }

    /// What packets find the slot by, in transport mode.
    fn ends(self) -> Option<Ends> {
        let SlotKey { if_id, mode, source, destination, reqid, spi, .. } = self;
        (mode == Mode::Transport).then_some(Ends { source, destination, if_id, reqid, spi })
    }
}

fn unspecified(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Whether SAs with these ends fit a slot that is `open`: a tunnel's, with all but the source in common.
fn fits_open(ends: &EndsKey, open: &EndsKey, source_len: usize) -> bool {
    fn rest(key: &EndsKey, source_len: usize) -> (Option<&[u8]>, Option<&[u8]>) {
        let bytes = key.bytes();
        (bytes.get(1..5), bytes.get(5 + source_len..))
    }
    let is_tunnel = ends.bytes().first() == Some(&(Known::Both as u8));
    is_tunnel && rest(ends, source_len) == rest(open, source_len)
}

/// What is known of them and mode, reqid, two addresses and, of a tunnel in route mode, its `if_id`: mostly 13
/// bytes for IPv4.
type EndsKey = Short<14>;
const _: () = assert!(5 + 2 * 16 + 4 <= KEY_BYTES_MAX);

/// An SA on offer.
#[derive(Clone, Copy)]
pub struct Offer<'a> {
    /// Its name.
    pub id: SaId,
    /// What the data plane has.
    pub sa: &'a Sa,
    /// The worker that alone seals with it.
    pub worker: Option<u16>,
    /// It reached a soft limit.
    pub dying: bool,
}

impl Offer<'_> {
    fn candidate(&self) -> Candidate {
        let Offer { id, sa, worker, dying } = *self;
        let worker = worker.unwrap_or(SHARED);
        Candidate { worker, is_fresh: !dying, id, spi: sa.spi() }
    }
}

struct Slot {
    number: u32,
    /// Policies that name it; in transport mode 1 as long as an SA fits.
    users: u32,
}

/// All slots.
#[derive(Default)]
pub struct Slots {
    /// The `if_id`s whose tunnels are told apart by their far ends.
    shared: HashSet<u32>,
    slots: HashMap<(EndsKey, u32), Slot>,
    /// SAs by their ends, whether there is a slot for them or not.
    candidates: HashMap<EndsKey, Candidates>,
    /// How many slots have these ends of which a template named the far one alone.
    open: HashMap<EndsKey, u32>,
    free: Vec<u32>,
    made: u32,
}

impl Slots {
    /// Says whose tunnels are told apart by their far ends, before any SA is there.
    pub fn share(&mut self, if_ids: impl Iterator<Item = u32>) {
        self.shared = if_ids.collect();
    }

    /// The slot by far end that an SA fits, if routes may name it.
    fn far_end(&self, sa: &Sa) -> Option<SlotKey> {
        let by_route = sa.mode() == Mode::Tunnel && self.shared.contains(&sa.if_id());
        by_route.then(|| SlotKey::to_far_end(sa.if_id(), sa.destination()))
    }

    /// The slot of templates without a source that an SA fits, if there are such templates.
    fn open_end(&self, sa: &Sa) -> Option<SlotKey> {
        let may_be = sa.mode() == Mode::Tunnel && !self.open.is_empty();
        let key = may_be.then(|| SlotKey::without_source(sa))?;
        self.open.contains_key(&key.ends_key()).then_some(key)
    }

    /// Those of them that know the SA's far end alone.
    fn by_far_end(&self, sa: &Sa) -> impl Iterator<Item = SlotKey> + use<> {
        self.far_end(sa).into_iter().chain(self.open_end(sa))
    }

    /// An SA is there, or is there with other properties after [`withdraw`](Slots::withdraw). The
    /// slots are to be filled anew then.
    pub fn offer(&mut self, offer: Offer<'_>, view: &mut View) {
        let keys = SlotKey::fitted_by(offer.sa);
        let candidates = self.candidates.entry(keys[0].ends_key()).or_default();
        let were_empty = keys.map(|key| candidates.is_empty(key.spi));
        candidates.insert(offer.candidate());
        for (key, was_empty) in keys.into_iter().zip(were_empty) {
            if let Some(ends) = key.ends().filter(|_| was_empty) {
                let (number, _) = self.join(key);
                view.transport.insert(ends, number);
            }
        }
        for key in self.by_far_end(offer.sa) {
            self.candidates.entry(key.ends_key()).or_default().insert(offer.candidate());
        }
    }

    /// An SA is not there any more. The slots are to be filled anew then.
    pub fn withdraw(&mut self, offer: Offer<'_>, view: &mut View) {
        for key in self.by_far_end(offer.sa) {
            let Some(candidates) = self.candidates.get_mut(&key.ends_key()) else { continue };
            candidates.remove(offer.candidate());
            if candidates.is_empty(0) {
                self.candidates.remove(&key.ends_key());
            }
        }
        let keys = SlotKey::fitted_by(offer.sa);
        let ends_key = keys[0].ends_key();
        let Some(candidates) = self.candidates.get_mut(&ends_key) else { return };
        let were_empty = keys.map(|key| candidates.is_empty(key.spi));
        candidates.remove(offer.candidate());
        let are_empty = keys.map(|key| candidates.is_empty(key.spi));
        if are_empty[0] {
            self.candidates.remove(&ends_key);
        }
        for (at, key) in keys.into_iter().enumerate() {
            if let Some(ends) = key.ends()
                && are_empty[at]
                && !were_empty[at]
            {
                view.transport.remove(&ends);
                self.leave(key, view);
            }
        }
    }

    /// Fills the slots that an SA fits, if they exist. `armed` gives the SA of a name, with IVs.
    pub fn refill(&self, sa: &Sa, view: &mut View, armed: impl Fn(SaId) -> Option<Arc<Sa>>) {
        // A template may insist on an SPI, a route never does.
        let with_spi = |key| [0, sa.spi()].map(|spi| SlotKey { spi, ..key });
        let of_templates = self.open_end(sa).into_iter().flat_map(with_spi);
        let keys = SlotKey::fitted_by(sa).into_iter().chain(self.far_end(sa)).chain(of_templates);
        keys.for_each(|key| self.fill(key, view, &armed));
    }

    fn fill(&self, key: SlotKey, view: &mut View, armed: &impl Fn(SaId) -> Option<Arc<Sa>>) {
        let named = (key.ends_key(), key.spi);
        let Some(slot) = self.slots.get(&named) else { return };
        let (mut shared, mut own) = (None, Vec::new());
        if let Some(candidates) = self.candidates.get(&named.0) {
            shared = candidates.shared(key.spi).and_then(armed);
            for (worker, id) in candidates.own(key.spi) {
                own.resize(own.len().max(worker + 1), None);
                own[worker] = armed(id);
            }
        }
        view.bundles.set_bundle(slot.number, Bundle::new(shared, own));
    }

    /// The SAs that fit a slot.
    pub fn fitting(&self, key: SlotKey) -> impl Iterator<Item = SaId> {
        let candidates = self.candidates.get(&key.ends_key());
        candidates.into_iter().flat_map(move |some| some.fitting(key.spi).map(|one| one.id))
    }

    /// Whether the tunnels of an `if_id` are told apart by their far ends.
    pub fn is_shared(&self, if_id: u32) -> bool {
        self.shared.contains(&if_id)
    }

    /// The number of a slot for one more policy; it is filled if it is new.
    pub fn take(
        &mut self,
        key: SlotKey,
        view: &mut View,
        armed: impl Fn(SaId) -> Option<Arc<Sa>>,
    ) -> u32 {
        let (number, is_new) = self.join(key);
        if is_new {
            if key.known == Known::FarByTemplate {
                self.open(key);
            }
            self.fill(key, view, &armed);
        }
        number
    }

    /// A slot is new whose template has no source: looks for the SAs that are there already.
    fn open(&mut self, key: SlotKey) {
        let open = key.ends_key();
        let slots = self.open.entry(open.clone()).or_default();
        *slots += 1;
        if *slots > 1 {
            return;
        }
        let source_len = if key.source.is_ipv4() { 4 } else { 16 };
        let fitting = self.candidates.iter().filter(|(ends, _)| fits_open(ends, &open, source_len));
        let fitting: Vec<Candidate> = fitting.flat_map(|(_, some)| some.all()).copied().collect();
        for candidate in fitting {
            self.candidates.entry(open.clone()).or_default().insert(candidate);
        }
    }

    /// The last policy of such a slot is gone.
    fn close(&mut self, open: &EndsKey) {
        let Some(slots) = self.open.get_mut(open) else { return };
        *slots -= 1;
        if *slots == 0 {
            self.open.remove(open);
            self.candidates.remove(open);
        }
    }

    /// One more user of a slot: its number, and whether it is new and empty.
    fn join(&mut self, key: SlotKey) -> (u32, bool) {
        let named = (key.ends_key(), key.spi);
        if let Some(slot) = self.slots.get_mut(&named) {
            slot.users += 1;
            return (slot.number, false);
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.made += 1;
            self.made - 1
        });
        self.slots.insert(named, Slot { number, users: 1 });
        (number, true)
    }

    /// A policy is gone; its slot goes with the last.
    pub fn leave(&mut self, key: SlotKey, view: &mut View) {
        let named = (key.ends_key(), key.spi);
        let Some(slot) = self.slots.get_mut(&named) else { return };
        slot.users -= 1;
        if slot.users == 0 {
            view.bundles.set(slot.number, None);
            self.free.push(slot.number);
            self.slots.remove(&named);
            if key.known == Known::FarByTemplate {
                self.close(&named.0);
            }
        }
    }

    /// The numbers in use.
    #[cfg(test)]
    pub fn numbers(&self) -> impl Iterator<Item = u32> {
        self.slots.values().map(|slot| slot.number)
    }
}
