//! A security association, as the data plane needs it.
//!
//! An [`Sa`] is read-only but for its runtime: sequence numbers, IVs, replay window and
//! counters, which one worker may claim (`claim.rs`). But for the IVs they are words of an entry of the
//! [`Ledger`], where they may outlive the process. A changed SA (`XFRM_MSG_UPDSA`) is a new object that shares the old one's
//! runtime, so nothing is lost or repeated while workers move from one to the other.
//!
//! As in XFRM, an SA has no direction of its own. It opens once the SAD holds it, and seals once a
//! bundle points to it and [`Sa::arm`] gave it IVs. Soft lifetimes, rekeying and timers are
//! control's business; the hard limits in packets and bytes are enforced here, to the packet. Where workers share an SA, each of them
//! but one may exceed them by a packet, as who asks has not counted yet.

mod access;
mod carries;
mod limits;
mod numbers;
mod rare;
mod settings;
mod successor;
mod traits;
mod welcome;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crypto::SharedKey;
use wire::flow::Flow;
use wire::{ipv4, ipv6, protocol};

use crate::alarm::Alarm;
use crate::counters::UsageSnapshot;
use crate::cpu::{Cache, LINE, prefetch, prefetch_next};
use crate::ecn;
use crate::encapsulation::UdpEncapsulation;
use crate::ledger::{Entry, ErrorKind, Ledger, Place, Words};
use crate::nonce::{BlockCopy, IvSource, NonceSpace};
use crate::prefix::Block;
use crate::replay::{Replay, WINDOW_MAX};
use crate::selector::Selector;
use crate::verdict::Verdict;

use carries::Carries;
use limits::{Distance, LOOK_PACKETS};
pub(crate) use numbers::Numbers;
use rare::Rare;
pub use settings::{HardLimits, Mode, SaConfig, SaError, SaFlags, SaStats};
use traits::Traits;

/// Why an SA gives no number to seal with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SealRefusal {
    /// The last sequence number was sent.
    SequenceExhausted,
    /// No IV is left, or none was ever given.
    NonceExhausted,
}

/// TTL or hop limit of the outer header: what Linux's routes default to.
const OUTER_TTL: u8 = 64;

/// The outer header, but for what differs from packet to packet.
#[derive(Clone, Copy)]
pub(crate) enum Outer<'s> {
    V4(&'s ipv4::Template),
    V6(&'s ipv6::Template),
}

/// The part of an SA that packets change.
struct Runtime {
    ivs: IvSource,
    entry: Entry,
    /// When control was last told that packets come from elsewhere.
    announced_ns: AtomicU64,
}

impl Runtime {
    fn new(entry: Entry) -> Runtime {
        // Whoever had claimed it in an earlier process is gone.
        entry.words().claim().store(0, Relaxed);
        Runtime { ivs: IvSource::unarmed(), entry, announced_ns: AtomicU64::new(0) }
    }
}

/// What packets need of an SA: most of them one line.
#[repr(C)]
pub(crate) struct Hot {
    /// The replay window, and with it the entry's words.
    pub(crate) replay: Replay,
    pub(crate) traits: Traits,
    /// From its limits in packets and bytes.
    distance: Distance,
    carries: Carries,
    /// The bits of the inner type of service that its outer header has as well.
    pub(crate) copied_tos: u8,
    /// The expanded key.
    pub(crate) key: SharedKey,
    /// What was last found to let in what comes through this SA.
    welcomed_by: AtomicU64,
    /// Which IVs its next numbers have.
    block: BlockCopy,
    pub(crate) salt: [u8; 4],
    pub(crate) spi: u32,
    /// Its tunnel of route mode.
    pub(crate) if_id: u32,
    /// The outer header, if that is of IPv4.
    v4: ipv4::Template,
    // The second line.
    /// The outer header, if that is of IPv6.
    v6: ipv6::Template,
    /// The ports of UDP behind it, if there is UDP.
    udp: UdpEncapsulation,
    /// What was found to let it in before that: one and the other may be of the two families inside.
    welcomed_before_by: AtomicU64,
    room: u64,
}

/// A security association, in three lines when it is counted (`Arc`). 100 000 of them are kept: what is not in
/// the hot lines is to be in one more, with the reference counts.
///
/// Nothing here says that it begins with a line, as then its reference counts would take a line of their
/// own; the heap says so where it matters ([`xsk::heap`]).
#[repr(C)]
pub struct Sa {
    runtime: Arc<Runtime>,
    rare: Option<Box<Rare>>,
    reqid: u32,
    /// So that the hot lines are lines.
    room: [u64; 3],
    hot: Hot,
}

/// Two reference counts and what is before the hot lines are one line.
const _: () = assert!(2 * size_of::<usize>() + std::mem::offset_of!(Sa, hot) == LINE);

const _: () = assert!(size_of::<Hot>() == 2 * LINE && std::mem::offset_of!(Hot, v6) == LINE);

impl Hot {
    /// The outer header.
    #[inline]
    pub(crate) fn outer(&self) -> Outer<'_> {
        if self.traits.is_v6() { Outer::V6(&self.v6) } else { Outer::V4(&self.v4) }
    }

    /// That of a [usual](Traits::is_usual) tunnel, with nothing but ESP behind it.
    #[inline(always)]
    pub(crate) fn usual_outer(&self) -> Option<&ipv4::Template> {
        self.traits.is_usual().then_some(&self.v4)
    }

    /// The UDP ports around its ESP.
    #[inline]
    pub(crate) fn udp(&self) -> Option<UdpEncapsulation> {
        self.traits.is_encapsulated().then_some(self.udp)
    }
}

impl Sa {
    /// A new SA in memory, which ends with the process.
    ///
    /// # Errors
    ///
    /// [`SaError`] for an SPI of zero, ends of two families, or a replay window above [`WINDOW_MAX`]; also
    /// if there is no memory for its words.
    pub fn new(config: SaConfig) -> Result<Sa, SaError> {
        let entry = Entry::in_memory(config.replay_window);
        Sa::begin(config, entry)
    }

    /// A new SA whose runtime is an entry of a ledger.
    ///
    /// # Errors
    ///
    /// As of [`Sa::new`], with [`SaError::Ledger`] if the ledger cannot grow.
    pub fn new_in(config: SaConfig, ledger: &Ledger) -> Result<Sa, SaError> {
        let entry = ledger.take(config.replay_window);
        Sa::begin(config, entry)
    }

    /// An SA that goes on where an earlier process left it: numbers, window, counters and the time
    /// of its addition are the entry's, whatever the settings say.
    ///
    /// # Errors
    ///
    /// As of [`Sa::new`], but for memory, which `entry` has.
    pub fn resume(config: SaConfig, entry: Entry) -> Result<Sa, SaError> {
        Sa::assemble(config, Arc::new(Runtime::new(entry)))
    }

    fn begin(config: SaConfig, entry: io::Result<Entry>) -> Result<Sa, SaError> {
        let entry = entry.map_err(|error| SaError::Ledger(error.to_string()))?;
        let words = entry.words();
        words.sent().store(config.sent, Relaxed);
        words.set_added_ns(config.added_ns);
        begin_window(&config, words);
        Sa::assemble(config, Arc::new(Runtime::new(entry)))
    }

    /// This SA with an alarm, of which a replacement with changes knows nothing.
    pub fn with_alarm(mut self, alarm: Option<Alarm>) -> Sa {
        if alarm.is_some() || self.rare.is_some() {
            let rare = self.rare.get_or_insert_default();
            rare.alarm = alarm;
            self.measure();
        }
        self
    }

    fn assemble(config: SaConfig, runtime: Arc<Runtime>) -> Result<Sa, SaError> {
        if config.spi == 0 {
            return Err(SaError::SpiZero);
        }
        const NONE: (Ipv4Addr, Ipv6Addr) = (Ipv4Addr::UNSPECIFIED, Ipv6Addr::UNSPECIFIED);
        let ends = match (config.source, config.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                [(source, NONE.1), (destination, NONE.1)]
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                [(NONE.0, source), (NONE.0, destination)]
            }
            (source, destination) => return Err(SaError::Families(source, destination)),
        };
        let [source, destination] = ends;
        let protocol = if config.encapsulation.is_some() { protocol::UDP } else { protocol::ESP };
        if config.replay_window > WINDOW_MAX {
            return Err(SaError::Window(config.replay_window));
        }
        let words = runtime.entry.words();
        let rare = Rare { selector: config.selector, limits: config.limits, alarm: None };
        let hot = Hot {
            replay: Replay::resumed(words, config.replay_window, config.extended_sequence),
            traits: Traits::of(&config),
            distance: Distance::default(),
            carries: Carries::of(config.selector.as_ref()),
            copied_tos: ecn::copied(&config.flags),
            key: config.key,
            welcomed_by: AtomicU64::new(0),
            welcomed_before_by: AtomicU64::new(0),
            block: BlockCopy::empty(),
            salt: config.salt,
            spi: config.spi,
            if_id: config.if_id,
            v4: ipv4::Template::new(source.0, destination.0, protocol, OUTER_TTL),
            v6: ipv6::Template::new(source.1, destination.1, protocol, OUTER_TTL),
            udp: config.encapsulation.unwrap_or(UdpEncapsulation::NONE),
            room: 0,
        };
        let is_rare = rare.has_limits() || hot.carries == Carries::Selected;
        let rare = is_rare.then(|| Box::new(rare));
        let mut sa = Sa { runtime, rare, reqid: config.reqid, room: [0; 3], hot };
        sa.measure();
        Ok(sa)
    }

    /// Gives the SA initialization vectors, so that it may seal. Once per runtime; again is free.
    ///
    /// # Errors
    ///
    /// That of [`NonceSpace::claim_block`]: the SA may not seal yet, and does once its workers can have a block.
    pub fn arm(&self, space: &Arc<NonceSpace>) -> io::Result<()> {
        self.runtime.ivs.arm(space, self.words().sent().load(Relaxed))
    }

    /// What most packets need.
    #[inline]
    pub(crate) fn hot(&self) -> &Hot {
        &self.hot
    }

    /// Whether it has a selector, so that there are packets it may not carry.
    #[inline]
    pub(crate) fn is_selective(&self) -> bool {
        self.hot.carries != Carries::Everything
    }

    /// Whether its selector admits packets of a flow.
    #[inline]
    pub(crate) fn admits(&self, flow: &Flow) -> bool {
        !self.is_selective() || self.selector().is_none_or(|selector| selector.matches(flow))
    }

    /// What it may carry; `None` if everything.
    #[inline]
    pub fn selector(&self) -> Option<&Selector> {
        match self.hot.carries {
            Carries::Selected => self.rare.as_ref()?.selector.as_ref(),
            simple => simple.selector(),
        }
    }

    /// The near end, of the family of the outer header.
    #[inline]
    pub fn source(&self) -> IpAddr {
        match self.hot.outer() {
            Outer::V4(template) => template.source().into(),
            Outer::V6(template) => template.source().into(),
        }
    }

    /// The far end, of the family of the outer header.
    #[inline]
    pub fn destination(&self) -> IpAddr {
        match self.hot.outer() {
            Outer::V4(template) => template.destination().into(),
            Outer::V6(template) => template.destination().into(),
        }
    }

    /// Whether that is an address. To compare one that was asked for would take longer: it is written in
    /// other pieces than it is read in.
    #[inline]
    pub(crate) fn leads_to(&self, address: &IpAddr) -> bool {
        match (self.hot.outer(), address) {
            (Outer::V4(template), IpAddr::V4(address)) => template.destination() == *address,
            (Outer::V6(template), IpAddr::V6(address)) => template.destination() == *address,
            _ => false,
        }
    }

    /// Whether it leads into a block of addresses, or to an address of IPv6.
    #[inline(always)]
    pub(crate) fn leads_within(&self, block: Block, address: &IpAddr) -> bool {
        match self.hot.outer() {
            Outer::V4(template) => block.has(template.destination().to_bits()),
            Outer::V6(_) => self.leads_to(address),
        }
    }

    /// The replay window.
    #[inline(always)]
    pub fn replay(&self) -> &Replay {
        &self.hot.replay
    }

    /// The entry's words.
    #[inline(always)]
    pub(crate) fn words(&self) -> Words {
        self.hot.replay.entry()
    }

    /// Asks for the line that every packet needs.
    #[inline]
    pub(crate) fn prefetch(&self, cache: Cache) {
        prefetch(&self.hot, cache);
    }

    /// Asks for what that line leads to: the entry's words, and the second line where packets that are sealed need it.
    #[inline(always)]
    pub(crate) fn prefetch_to_seal(&self, cache: Cache) {
        self.words().prefetch(cache);
        if self.hot.traits.needs_more() {
            prefetch_next(&self.hot, cache);
        }
    }

    /// The same for packets that are opened, of which only those in UDP need the second line.
    #[inline(always)]
    pub(crate) fn prefetch_to_open(&self, cache: Cache) {
        self.words().prefetch(cache);
        if self.hot.traits.is_encapsulated() {
            prefetch_next(&self.hot, cache);
        }
    }

    /// Where its runtime is, for the next process; `None` if it ends with this one.
    pub fn place(&self) -> Option<Place> {
        self.runtime.entry.place()
    }

    /// Whether control may be told now that packets come from elsewhere: at most once per
    /// `interval_ns`, by one worker.
    pub(crate) fn may_announce(&self, now_ns: u64, interval_ns: u64) -> bool {
        let announced = &self.runtime.announced_ns;
        let last = announced.load(Relaxed);
        (last == 0 || now_ns.saturating_sub(last) >= interval_ns)
            && announced.compare_exchange(last, now_ns, Relaxed, Relaxed).is_ok()
    }

    /// Whether two objects are versions of the same SA.
    pub fn same_runtime(&self, other: &Sa) -> bool {
        Arc::ptr_eq(&self.runtime, &other.runtime)
    }

    /// Counts packets sealed or opened: `alone` for the worker that has claimed the SA.
    #[inline]
    pub fn count(&self, packets: u64, inner_bytes: u64, now_ns: u64, alone: bool) {
        let before = self.words().count(packets, inner_bytes, now_ns, alone);
        if (before ^ (before + packets)) >= LOOK_PACKETS {
            self.look_at_limits();
        }
    }

    /// Counts a packet of this SA that died.
    pub(crate) fn count_error(&self, verdict: Verdict) {
        self.words().count_error(match verdict {
            Verdict::IntegrityFailed => ErrorKind::Integrity,
            Verdict::Replayed => ErrorKind::Replayed,
            Verdict::ReplayOld | Verdict::SequenceZero => ErrorKind::ReplayOld,
            _ => ErrorKind::Other,
        });
    }

    /// Reads what its limits are about, in far less time than [`stats`](Sa::stats), which puts the window together.
    pub fn usage(&self) -> UsageSnapshot {
        self.words().usage()
    }

    /// Reads everything that packets change.
    pub fn stats(&self) -> SaStats {
        let (entry, replay) = (self.words(), self.replay());
        SaStats {
            usage: entry.usage(),
            added_ns: entry.added_ns(),
            sent: entry.sent().load(Relaxed),
            received: replay.top(),
            replay_bitmap: replay.bitmap(),
            integrity_failed: entry.errors(ErrorKind::Integrity),
            replayed: entry.errors(ErrorKind::Replayed),
            replay_old: entry.errors(ErrorKind::ReplayOld),
            other_errors: entry.errors(ErrorKind::Other),
        }
    }
}

/// Sets a new entry's window to what the settings say was received.
fn begin_window(config: &SaConfig, words: Words) {
    let (window, extended, top) = (config.replay_window, config.extended_sequence, config.received);
    match &config.received_bitmap {
        Some(bitmap) => Replay::begun_with(words, window, extended, top, bitmap),
        None => Replay::begun(words, window, extended, top),
    };
}

impl std::fmt::Debug for Sa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (spi, source, destination) = (self.spi(), self.source(), self.destination());
        write!(f, "Sa({spi:#010x} {source} -> {destination})")
    }
}

#[cfg(test)]
pub(crate) mod tests;
