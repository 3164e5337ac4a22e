//! The slots through which policies find their outbound SAs.
//!
//! A protect policy names a slot by number. When an SA is rekeyed, control fills the slot with the
//! new one; the policy database is not touched. A slot may be empty, and several policies may share
//! one. Which slot belongs to whom is control's to know, and which of several SAs is the best.
//!
//! A slot has one SA for all workers, and may have one more for each worker (RFC 9611): a worker
//! takes its own, else the one for all. Another worker's own SA it never takes: the peer bound that
//! SA's other end to a CPU because one CPU sends on it.
//!
//! Nearly every slot has one SA that takes every packet of every worker. Where that is lies in an array of
//! addresses: eight are a cache line, and what leads to them stays in the first level cache, where slots with
//! their counted references are four times as long, and led to by as much again.

#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::{Arc, LazyLock};

use crate::array::Array;
use crate::cpu::{Cache, prefetch};
use crate::pages::Pages;
use crate::sa::Sa;

/// Highest number of slots: sixteen times the tunnels that the gateway is designed for.
pub const BUNDLES_MAX: u32 = 1 << 20;

/// The SAs of one slot.
#[derive(Clone, Default)]
pub struct Bundle {
    /// For every worker.
    shared: Option<Arc<Sa>>,
    /// Absent for nearly every slot.
    beyond: Option<Arc<Beyond>>,
}

/// What a slot has beyond one SA that takes every packet of every worker.
struct Beyond {
    /// SAs by worker number; a tunnel that one core carries has none. Beyond that, the SA for all may
    /// have a selector.
    own: Box<[Option<Arc<Sa>>]>,
}

const _: () = assert!(size_of::<Bundle>() == 16);

/// No worker has an SA of its own: one for all the slots of which that is so.
static NOBODYS: LazyLock<Arc<Beyond>> = LazyLock::new(|| Arc::new(Beyond { own: Box::default() }));

/// Whose SA a packet leaves by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// This worker's own.
    Own,
    /// Everybody's, in a slot where no worker has one of its own.
    Everybodys,
    /// Everybody's, while another worker has one of its own and this one has not.
    Fallback,
}

impl Bundle {
    /// A slot's SAs: the one for all, and those of workers 0, 1, ….
    pub fn new(shared: Option<Arc<Sa>>, own: Vec<Option<Arc<Sa>>>) -> Bundle {
        let own = if own.iter().any(Option::is_some) { own } else { Vec::new() };
        let selective = shared.iter().any(|sa| sa.is_selective());
        let special = selective || !own.is_empty();
        let beyond = special.then(|| match &own[..] {
            [] => NOBODYS.clone(),
            _ => Arc::new(Beyond { own: own.into() }),
        });
        Bundle { shared, beyond }
    }

    /// The SA of [`Sole::sa`].
    fn simple(&self) -> Option<&Arc<Sa>> {
        self.shared.as_ref().filter(|_| self.beyond.is_none())
    }

    /// The SA for all workers.
    pub fn shared(&self) -> Option<&Arc<Sa>> {
        self.shared.as_ref()
    }

    /// The SA of one worker alone.
    #[inline]
    pub fn own(&self, worker: usize) -> Option<&Arc<Sa>> {
        self.beyond.as_ref()?.own.get(worker)?.as_ref()
    }

    /// The SA that a worker seals with.
    #[inline]
    pub fn choose(&self, worker: usize) -> Option<(&Arc<Sa>, Whose)> {
        if let Some(sa) = self.own(worker) {
            return Some((sa, Whose::Own));
        }
        let fallback = self.beyond.as_ref().is_some_and(|beyond| !beyond.own.is_empty());
        let whose = if fallback { Whose::Fallback } else { Whose::Everybodys };
        self.shared.as_ref().map(|sa| (sa, whose))
    }
}

/// Where the SA is that takes every packet of a slot, if there is one ([`Bundle::simple`]).
#[derive(Clone, Copy, Default)]
struct Address(Option<NonNull<Sa>>);

// SAFETY: it leads to no more than a shared reference to the SA does.
unsafe impl Send for Address where Arc<Sa>: Send {}
// SAFETY: as above.
unsafe impl Sync for Address where Arc<Sa>: Sync {}

/// Where a slot says which SA takes all its packets, for as long as its version is borrowed.
#[derive(Clone, Copy)]
pub(crate) struct Sole<'v>(&'v Address);

impl<'v> Sole<'v> {
    /// The one SA that every worker seals every packet with, if it is as simple as that: no worker has one of
    /// its own, and the SA has no selector.
    #[inline]
    pub(crate) fn sa(self) -> Option<&'v Sa> {
        // SAFETY: the version that is borrowed has the slot's bundle, too, which keeps the SA.
        self.0.0.map(|address| unsafe { address.as_ref() })
    }
}

/// A version of all slots. Cloning is cheap; versions share what did not change.
#[derive(Clone, Default)]
pub struct Bundles {
    slots: Array<Bundle>,
    /// Of each slot's bundle what most packets need, set together with it.
    addresses: Pages<Address>,
    /// How many slots have an SA for all workers.
    filled: usize,
}

impl Bundles {
    /// No slot is filled.
    pub fn new() -> Bundles {
        Bundles::default()
    }

    /// Slots that have an SA for all workers.
    pub(crate) fn len(&self) -> usize {
        self.filled
    }

    /// Where a slot says which SA takes all its packets; asks for that memory.
    #[inline]
    pub(crate) fn sole(&self, slot: u32, cache: Cache) -> Option<Sole<'_>> {
        let address = self.addresses.get(slot)?;
        prefetch(address, cache);
        Some(Sole(address))
    }

    /// The one SA that every worker seals every packet of a slot with, if it is [as simple as that](Sole::sa).
    #[inline(always)]
    pub(crate) fn sa(&self, slot: u32) -> Option<&Sa> {
        Sole(self.addresses.get(slot)?).sa()
    }

    /// The SA of a worker's own in a slot, if there is one and it takes every packet.
    #[inline]
    pub(crate) fn own(&self, slot: u32, worker: usize) -> Option<&Sa> {
        let own = self.slots.get(slot)?.own(worker)?;
        (!own.is_selective()).then_some(own)
    }

    /// The SA for all workers in a slot.
    #[inline]
    pub fn get(&self, slot: u32) -> Option<&Arc<Sa>> {
        self.slots.get(slot)?.shared()
    }

    /// The SA that a worker seals with, by a slot.
    #[inline]
    pub fn choose(&self, slot: u32, worker: usize) -> Option<(&Arc<Sa>, Whose)> {
        self.slots.get(slot)?.choose(worker)
    }

    /// Fills a slot with one SA for all workers, or empties it. Returns whether the slot exists,
    /// which all below [`BUNDLES_MAX`] do.
    pub fn set(&mut self, slot: u32, sa: Option<Arc<Sa>>) -> bool {
        self.set_bundle(slot, Bundle::new(sa, Vec::new()))
    }

    /// Fills a slot. Returns whether the slot exists.
    pub fn set_bundle(&mut self, slot: u32, bundle: Bundle) -> bool {
        if slot >= BUNDLES_MAX {
            return false;
        }
        self.filled -= usize::from(self.get(slot).is_some());
        self.filled += usize::from(bundle.shared().is_some());
        let address = bundle.simple().map(|sa| NonNull::from(&**sa));
        self.addresses.set(slot, Address(address));
        self.slots.set(slot, bundle);
        true
    }
}
