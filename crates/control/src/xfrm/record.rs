//! What the journal keeps of the server: each SA and each policy as the message that installs it.
//!
//! An *entry* is a head and, for what is there, a NEWSA or NEWPOLICY message with all that a dump
//! shows, in front of it what a dump does not: names, deadlines, and where the SA's numbers are. An
//! entry says how something *is*, not what was done to it, so that a later one replaces all earlier ones
//! of the same name, and a journal may hold any of them twice.
//!
//! ```text
//!  kind u32 │ length u32 │ body                          (the machine's byte order)
//!  MARKS         next names and numbers, the default actions
//!  SA            SaHead, NEWSA       SA_GONE      name u64
//!  POLICY        PolicyHead, NEWPOLICY            POLICY_GONE  name u64
//!  EPOCH         of the process that writes from here on, u64
//! ```
//!
//! Reading them back is `restore.rs`; files are `journal`'s. Bump
//! [`FORMAT`](crate::journal::FORMAT) with every change here.

use dataplane::ledger::Place;
use wire::xfrm::lifetime::LifetimeCurrent;
use wire::xfrm::netlink::Header;
use wire::xfrm::number::msg;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::notice::{self, SaView};
use super::policy::{Policy, PolicyId};
use super::sa::{Sa, SaId};
use super::secret::Bytes;
use super::server::Server;

/// Kinds of entries.
pub(super) mod kind {
    pub(in crate::xfrm) const MARKS: u32 = 1;
    pub(in crate::xfrm) const SA: u32 = 2;
    pub(in crate::xfrm) const SA_GONE: u32 = 3;
    pub(in crate::xfrm) const POLICY: u32 = 4;
    pub(in crate::xfrm) const POLICY_GONE: u32 = 5;
    pub(in crate::xfrm) const EPOCH: u32 = 6;
}

/// In front of every body.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct EntryHead {
    pub(super) kind: u32,
    /// Bytes of the body.
    pub(super) len: u32,
}

/// Numbers that must not be given twice, and what fits nowhere else.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub(super) struct Marks {
    pub(super) next_sa: u64,
    pub(super) next_policy: u64,
    pub(super) next_index: u32,
    pub(super) acquires: u32,
    /// Default actions: input, forward, output.
    pub(super) defaults: [u8; 3],
    /// Whether what an earlier run protected is still held back, as it is not known whether it was taken back.
    pub(super) in_doubt: u8,
    pub(super) thresholds: [u8; 4],
}

/// Bits of [`SaHead::flags`] and [`PolicyHead::flags`].
pub(super) mod flag {
    /// Without a key.
    pub(in crate::xfrm) const LARVAL: u32 = 1;
    /// The soft limit was announced.
    pub(in crate::xfrm) const DYING: u32 = 2;
    /// `soft_left_s` means something.
    pub(in crate::xfrm) const SOFT_LEFT: u32 = 4;
    /// `deadline` means something.
    pub(in crate::xfrm) const DEADLINE: u32 = 8;
    /// `cell` and `tag` mean something.
    pub(in crate::xfrm) const PLACED: u32 = 16;
}

/// What NEWSA does not say.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct SaHead {
    pub(super) id: u64,
    pub(super) tag: u64,
    pub(super) base: LifetimeCurrent,
    pub(super) soft_left_s: u64,
    pub(super) deadline: u64,
    pub(super) cell: u32,
    pub(super) flags: u32,
    pub(super) threshold_packets: u32,
    pub(super) threshold_ticks: u32,
}

/// What NEWPOLICY does not say.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct PolicyHead {
    pub(super) id: u64,
    pub(super) order: u64,
    pub(super) add_time: u64,
    pub(super) deadline: u64,
    pub(super) flags: u32,
    pub(super) pad: u32,
}

/// Where SAs' numbers are.
pub trait Places {
    /// Of one SA; `None` where they end with the process.
    fn place(&self, id: SaId) -> Option<Place>;

    /// Packets and bytes that were counted there before they were this SA's.
    fn before(&self, _: SaId) -> (u64, u64) {
        (0, 0)
    }
}

/// Nothing outlives the process.
impl Places for () {
    fn place(&self, _: SaId) -> Option<Place> {
        None
    }
}

/// How far a walk over everything has come: from the newest to the oldest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk {
    sa: u64,
    policy: u64,
}

impl Default for Walk {
    /// At the beginning.
    fn default() -> Self {
        Self { sa: u64::MAX, policy: u64::MAX }
    }
}

/// Room for one entry: the longest is an SA with a window of 4096 packets, about 1.2 KiB.
const ENTRY_MAX: usize = 4096;

impl Server {
    /// Whether something changed that a journal should know, or the data plane.
    pub fn has_changes(&self) -> bool {
        !self.changes.is_empty()
            || !self.sad.touched.is_empty()
            || !self.spd.touched.is_empty()
            || self.marks_touched
    }

    /// A number that has changed when keys are in a journal whose SAs are gone.
    pub fn sas_gone(&self) -> u64 {
        self.sad.gone()
    }

    /// Takes note that no journal will know what changed until now.
    pub fn forget_touched(&mut self) {
        self.sad.touched.take();
        self.spd.touched.take();
        self.marks_touched = false;
    }

    /// Appends an entry for all that changed since the last call; how many.
    pub fn write_touched(&mut self, places: &dyn Places, out: &mut Bytes) -> usize {
        let (sas, policies) = (self.sad.touched.take(), self.spd.touched.take());
        if sas.is_empty() && policies.is_empty() && !self.marks_touched {
            return 0;
        }
        self.marks_touched = false;
        self.write_marks(out);
        for id in &sas {
            match self.sad.get(SaId(*id)) {
                Some(sa) => write_sa(out, SaId(*id), &sa, places),
                None => write_gone(out, kind::SA_GONE, *id),
            }
        }
        for id in &policies {
            match self.spd.get(PolicyId(*id)) {
                Some(policy) => write_policy(out, &policy),
                None => write_gone(out, kind::POLICY_GONE, *id),
            }
        }
        1 + sas.len() + policies.len()
    }

    /// Appends entries for up to `count` things that are there, going on where `walk` is. None are
    /// left when it says 0. The marks go with them, also where nothing is installed: default actions hold
    /// without any policy.
    pub fn write_some(
        &self,
        walk: &mut Walk,
        count: usize,
        places: &dyn Places,
        out: &mut Bytes,
    ) -> usize {
        let mut written = 0;
        while written < count {
            if let Some((id, sa)) = self.sad.before(walk.sa) {
                walk.sa = id.0;
                write_sa(out, id, &sa, places);
            } else if let Some((id, policy)) = self.spd.before(walk.policy) {
                walk.policy = id.0;
                write_policy(out, &policy);
            } else {
                break;
            }
            written += 1;
        }
        self.write_marks(out);
        written
    }

    /// Whether the journal is to say that what an earlier run protected is still held back.
    pub fn set_in_doubt(&mut self, in_doubt: bool) {
        self.in_doubt = in_doubt;
        self.marks_touched = true;
    }

    fn write_marks(&self, out: &mut Bytes) {
        let (next_policy, next_index) = self.spd.next();
        let marks = Marks {
            next_sa: self.sad.next_id().0,
            next_policy,
            next_index,
            acquires: self.acquires,
            defaults: [self.defaults.input, self.defaults.forward, self.defaults.output],
            in_doubt: self.in_doubt.into(),
            thresholds: self.thresholds.to_bytes(),
        };
        write(out, kind::MARKS, |body| body.extend_from_slice(marks.as_bytes()));
    }
}

/// Appends the epoch of the process that writes from here on.
pub(super) fn write_epoch(out: &mut Bytes, epoch: u16) {
    write(out, kind::EPOCH, |body| body.extend_from_slice(u64::from(epoch).as_bytes()));
}

fn write(out: &mut Bytes, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    out.reserve(ENTRY_MAX);
    let bytes = out.vec();
    let start = bytes.len();
    bytes.extend_from_slice(EntryHead { kind, len: 0 }.as_bytes());
    let body_start = bytes.len();
    body(bytes);
    let len = (bytes.len() - body_start) as u32;
    bytes[start..body_start].copy_from_slice(EntryHead { kind, len }.as_bytes());
}

fn write_gone(out: &mut Bytes, kind: u32, id: u64) {
    write(out, kind, |body| body.extend_from_slice(id.as_bytes()));
}

fn write_sa(out: &mut Bytes, id: SaId, sa: &Sa, places: &dyn Places) {
    let place = if sa.is_larval() { None } else { places.place(id) };
    // The next process counts from the beginning of the place.
    let (packets, bytes) = places.before(id);
    let base = LifetimeCurrent {
        packets: sa.base.packets.wrapping_sub(packets),
        bytes: sa.base.bytes.wrapping_sub(bytes),
        ..sa.base
    };
    let bit = |on: bool, bit: u32| if on { bit } else { 0 };
    let head = SaHead {
        id: id.0,
        tag: place.map_or(0, |place| place.tag),
        base,
        soft_left_s: sa.soft_left_s.unwrap_or(0),
        deadline: sa.deadline.unwrap_or(0),
        cell: place.map_or(0, |place| place.cell),
        flags: bit(sa.is_larval(), flag::LARVAL)
            | bit(sa.dying, flag::DYING)
            | bit(sa.soft_left_s.is_some(), flag::SOFT_LEFT)
            | bit(sa.deadline.is_some(), flag::DEADLINE)
            | bit(place.is_some(), flag::PLACED),
        threshold_packets: sa.thresholds.packets,
        threshold_ticks: sa.thresholds.ticks,
    };
    write(out, kind::SA, |body| {
        body.extend_from_slice(head.as_bytes());
        let header = Header { kind: msg::NEWSA, ..Header::default() };
        notice::write_sa(body, header, &SaView::unused(sa));
    });
}

fn write_policy(out: &mut Bytes, policy: &Policy) {
    let head = PolicyHead {
        id: policy.record.id.0,
        order: policy.record.order,
        add_time: policy.add_time,
        deadline: policy.deadline.unwrap_or(0),
        flags: if policy.deadline.is_some() { flag::DEADLINE } else { 0 },
        pad: 0,
    };
    write(out, kind::POLICY, |body| {
        body.extend_from_slice(head.as_bytes());
        let header = Header { kind: msg::NEWPOLICY, ..Header::default() };
        notice::write_policy(body, header, policy, &policy.info(&()));
    });
}
