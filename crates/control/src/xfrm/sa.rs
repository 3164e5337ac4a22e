//! One SA: what the data plane gets of it, and what the server remembers beside.

use std::net::IpAddr;
use std::sync::Arc;

use wire::xfrm::address::{Address, Mark};
use wire::xfrm::lifetime::LifetimeCurrent;
use wire::xfrm::number::{sa_direction, sa_flag};
use wire::xfrm::sa::{EncapTmpl, UsersaInfo};

use super::counters::SaCounters;
use super::replay::ReplayValue;
use super::secret::Key;

/// Names an SA for as long as the server runs; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SaId(pub u64);

/// What an SA is for, when its owner says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// It opens packets.
    In,
    /// It seals packets.
    Out,
}

impl Direction {
    /// From the value of `XFRMA_SA_DIR`.
    pub(super) fn from_wire(value: u8) -> Option<Self> {
        match value {
            sa_direction::IN => Some(Self::In),
            sa_direction::OUT => Some(Self::Out),
            _ => None,
        }
    }

    /// To the value of `XFRMA_SA_DIR`.
    pub(super) const fn to_wire(self) -> u8 {
        match self {
            Self::In => sa_direction::IN,
            Self::Out => sa_direction::OUT,
        }
    }
}

/// An AEAD algorithm with its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aead {
    /// The kernel's name of it.
    pub name: &'static str,
    /// Key length in bits as it was asked for, salt included.
    pub key_bits: u32,
    /// ICV length in bits.
    pub icv_bits: u32,
    /// The key; for RFC 4106 the AES key and then 4 bytes of salt.
    pub key: Key,
}

/// Everything about an SA but its algorithms and sequence numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SaParameters {
    /// As installed; `curlft` and `stats` are what they were then.
    pub info: UsersaInfo,
    /// Which packets' marks it accepts.
    pub mark: Mark,
    /// The mark it gives to packets.
    pub output_mark: Mark,
    /// XFRM interface, 0 for none.
    pub if_id: u32,
    /// More flags, see [`wire::xfrm::number::sa_extra_flag`].
    pub extra_flags: u32,
    /// Traffic-flow-confidentiality padding in bytes, 0 for none.
    pub tfc_padding: u32,
    /// Its direction, when said.
    pub direction: Option<Direction>,
    /// Its CPU (RFC 9611), when said.
    pub cpu: Option<u32>,
    /// Care-of address; kept because it is shown.
    pub care_of: Option<Address>,
    /// UDP encapsulation (RFC 3948), and its ports.
    pub encapsulation: Option<EncapTmpl>,
    /// Seconds after which the same change of the peer's mapping is announced again; 0 for always,
    /// `u32::MAX` for no announcement at all.
    pub mapping_max_age_s: u32,
}

impl SaParameters {
    /// Outer source address.
    pub fn source(&self) -> IpAddr {
        self.info.saddr.ip(self.info.family).unwrap_or(IpAddr::from([0; 4]))
    }

    /// Outer destination address.
    pub fn destination(&self) -> IpAddr {
        self.info.id.daddr.ip(self.info.family).unwrap_or(IpAddr::from([0; 4]))
    }

    /// Security parameter index.
    pub fn spi(&self) -> u32 {
        self.info.id.spi.get()
    }
}

/// An SA as the data plane gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaRecord {
    /// Its name.
    pub id: SaId,
    /// Addresses, SPI, flags, limits, marks.
    pub parameters: SaParameters,
    /// Algorithm and key.
    pub aead: Aead,
    /// Sequence numbers and window to start from.
    pub replay: ReplayValue,
}

impl SaRecord {
    /// Whether it uses extended sequence numbers (RFC 4303 §2.2.1).
    pub fn esn(&self) -> bool {
        self.parameters.info.flags & sa_flag::ESN != 0
    }

    /// Size of the replay window in packets; 0 switches the check off.
    pub fn replay_window(&self) -> u32 {
        match &self.replay {
            ReplayValue::Legacy(_) => self.parameters.info.replay_window.into(),
            ReplayValue::Wide { head, .. } => head.replay_window,
        }
    }
}

/// Seconds between GETAE and DELSA of a move. They are counted whole, so 1 is between nothing and
/// two seconds; a daemon that thousands of SAs keep busy still takes milliseconds for each.
const MOVE_S_MAX: u64 = 1;

/// How far an SA is.
#[derive(Clone, Debug)]
pub(super) enum Body {
    /// An SPI is reserved or an ACQUIRE is under way; there is no key.
    Larval(Box<SaParameters>),
    /// It has a key.
    Valid(Arc<SaRecord>),
}

/// Thresholds of events about sequence numbers; kept because GETAE shows them.
#[derive(Clone, Copy, Debug)]
pub(super) struct AeventThresholds {
    /// Packets between events.
    pub(super) packets: u32,
    /// Time between events, in kernel ticks.
    pub(super) ticks: u32,
}

/// Ticks per second of the kernel that we look like (Debian's), the unit in which it takes, keeps
/// and converts `XFRMA_ETIMER_THRESH`.
pub(super) const TICKS_PER_SECOND: u32 = 250;

impl Default for AeventThresholds {
    /// `net.core.xfrm_aevent_rseqth` and `xfrm_aevent_etime`: 2 packets, 1 second.
    fn default() -> Self {
        Self { packets: 2, ticks: TICKS_PER_SECOND }
    }
}

/// One entry of the SAD.
#[derive(Clone, Debug)]
pub(super) struct Sa {
    pub(super) body: Body,
    /// Counters to which the data plane's are added.
    pub(super) base: LifetimeCurrent,
    /// A soft limit was reached.
    pub(super) dying: bool,
    /// Seconds that were left to the soft time limit when it was looked at last.
    pub(super) soft_left_s: Option<u64>,
    /// When to look at its time limits next.
    pub(super) deadline: Option<u64>,
    pub(super) thresholds: AeventThresholds,
    /// The port and the time of the last MAPPING.
    pub(super) announced: Option<(u16, u64)>,
    /// When somebody last asked for its sequence numbers (GETAE), in seconds since the epoch.
    pub(super) numbers_read: Option<u64>,
}

impl Sa {
    /// An SA that is installed at `now`.
    pub(super) fn new(body: Body, now: u64) -> Self {
        Self {
            body,
            base: LifetimeCurrent { add_time: now, ..LifetimeCurrent::default() },
            dying: false,
            soft_left_s: None,
            deadline: None,
            thresholds: AeventThresholds::default(),
            announced: None,
            numbers_read: None,
        }
    }

    pub(super) fn parameters(&self) -> &SaParameters {
        match &self.body {
            Body::Larval(parameters) => parameters,
            Body::Valid(record) => &record.parameters,
        }
    }

    pub(super) fn record(&self) -> Option<&Arc<SaRecord>> {
        match &self.body {
            Body::Larval(_) => None,
            Body::Valid(record) => Some(record),
        }
    }

    /// Whether its deletion at `now` is half of a move: IKE daemons move an SA by GETAE, DELSA and
    /// NEWSA, one right after the other, and ask for the numbers of no other SA.
    pub(super) fn is_moving(&self, now: u64) -> bool {
        let read_lately = |at| now.saturating_sub(at) <= MOVE_S_MAX;
        !self.is_larval() && self.numbers_read.is_some_and(read_lately)
    }

    pub(super) fn is_larval(&self) -> bool {
        matches!(self.body, Body::Larval(_))
    }

    /// Usage: the base and the data plane's figures.
    pub(super) fn usage(&self, live: Option<&SaCounters>) -> LifetimeCurrent {
        let Some(live) = live else { return self.base };
        LifetimeCurrent {
            bytes: self.base.bytes.wrapping_add(live.bytes),
            packets: self.base.packets.wrapping_add(live.packets),
            use_time: if live.use_time == 0 { self.base.use_time } else { live.use_time },
            ..self.base
        }
    }

    pub(super) fn replay(&self, live: Option<&SaCounters>) -> ReplayValue {
        let Some(record) = self.record() else { return ReplayValue::default() };
        match live {
            Some(live) => record.replay.with_live(live),
            None => record.replay.clone(),
        }
    }
}
