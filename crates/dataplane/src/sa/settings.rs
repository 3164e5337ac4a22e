//! What control says of an SA, and what it may read of one. What packets do with it is `sa.rs`'s.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crypto::SharedKey;

use super::Sa;
use crate::counters::UsageSnapshot;
use crate::encapsulation::UdpEncapsulation;
use crate::replay::WINDOW_MAX;
use crate::selector::Selector;

/// Which part of a packet an SA protects (RFC 4303 §3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// All of it, behind an outer header of its own.
    #[default]
    Tunnel,
    /// What its IP header carries; the header stays.
    Transport,
}

/// The flags of `xfrm_usersa_info` and `XFRMA_SA_EXTRA_FLAGS` that change packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SaFlags {
    /// `XFRM_STATE_NOECN`: no congestion mark crosses between inner and outer header.
    pub no_ecn: bool,
    /// `XFRM_STATE_DECAP_DSCP`: copy the outer DSCP to the inner header when opening.
    pub decap_dscp: bool,
    /// `XFRM_SA_XFLAG_DONT_ENCAP_DSCP`: do not copy the inner DSCP to the outer header.
    pub dont_encap_dscp: bool,
    /// `XFRM_STATE_NOPMTUDISC`: never set DF on the outer IPv4 header.
    pub no_pmtu_discovery: bool,
}

/// Hard limits; the packet that finds one reached dies, as in `xfrm_state_check_expire`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HardLimits {
    /// Packets; `u64::MAX` for none.
    pub packets: u64,
    /// Bytes of inner packets; `u64::MAX` for none.
    pub bytes: u64,
}

impl HardLimits {
    /// No limit.
    pub const NONE: HardLimits = HardLimits { packets: u64::MAX, bytes: u64::MAX };
}

/// Everything control says about an SA: ESP with AES-GCM and a 16-byte ICV.
#[derive(Clone)]
pub struct SaConfig {
    /// The SPI, host byte order, not zero.
    pub spi: u32,
    /// Tunnel or transport.
    pub mode: Mode,
    /// Outer source address; in transport mode the packet's own.
    pub source: IpAddr,
    /// Outer destination address, of the same family.
    pub destination: IpAddr,
    /// The number that ties the SA to policies; 0 if none.
    pub reqid: u32,
    /// The tunnel of route mode that it belongs to, as XFRM's interfaces name them; 0 if none. Its
    /// inner packets meet the policies of this number alone.
    pub if_id: u32,
    /// The expanded key, without the salt.
    pub key: SharedKey,
    /// The last four bytes of the keying material (RFC 4106 §8.1).
    pub salt: [u8; 4],
    /// Extended sequence numbers (RFC 4303 §2.2.1).
    pub extended_sequence: bool,
    /// Anti-replay window in packets: 0 for off, up to [`WINDOW_MAX`].
    pub replay_window: u32,
    /// What the SA may carry; `None` if everything, of either family.
    pub selector: Option<Selector>,
    /// Flags that change packets.
    pub flags: SaFlags,
    /// UDP encapsulation; an SA with it opens nothing else, and one without it no such packets.
    pub encapsulation: Option<UdpEncapsulation>,
    /// Hard limits in packets and bytes.
    pub limits: HardLimits,
    /// The last sequence number sent by an earlier life of this SA; 0 for a new one.
    pub sent: u64,
    /// The highest sequence number received by an earlier life of this SA; 0 for a new one.
    pub received: u64,
    /// Which numbers of the window that life received, as [`Replay::bitmap`](crate::replay::Replay::bitmap) lays them out; `None`
    /// if all of them are to count as received.
    pub received_bitmap: Option<Arc<[u32]>>,
    /// When the SA was added, on the data plane's [`Clock`](crate::clock::Clock).
    pub added_ns: u64,
}

/// Why an SA cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SaError {
    /// SPI zero is for local use (RFC 4303 §2.1).
    #[error("an SPI must not be zero")]
    SpiZero,
    /// The ends of the tunnel are of two families.
    #[error("the tunnel's ends {0} and {1} are of different families")]
    Families(IpAddr, IpAddr),
    /// The window is wider than what is kept.
    #[error("a replay window has at most {WINDOW_MAX} packets, not {0}")]
    Window(u32),
    /// There is no room for its numbers.
    #[error("no room for an SA's sequence numbers: {0}")]
    Ledger(String),
    /// A change touched what the shared runtime depends on.
    #[error("SPI, key, salt, sequence mode and replay window of an SA cannot be changed")]
    Immutable,
}

/// A reading of everything that packets change in an SA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaStats {
    /// Packets, bytes and times of use, in whichever direction the SA is used.
    pub usage: UsageSnapshot,
    /// When the SA was added, on the data plane's clock.
    pub added_ns: u64,
    /// The last sequence number sent.
    pub sent: u64,
    /// The highest sequence number received.
    pub received: u64,
    /// The replay window, laid out as [`Replay::bitmap`](crate::replay::Replay::bitmap) says.
    pub replay_bitmap: Vec<u32>,
    /// Packets whose integrity check failed.
    pub integrity_failed: u64,
    /// Packets received twice.
    pub replayed: u64,
    /// Packets left of the replay window, or numbered zero.
    pub replay_old: u64,
    /// Authentic packets that died of something else: padding, inner header, selector, policy.
    pub other_errors: u64,
}

impl Sa {
    /// Everything that control could say to make the SA as it is now.
    pub fn config(&self) -> SaConfig {
        let (words, replay) = (self.words(), self.replay());
        SaConfig {
            sent: words.sent().load(Relaxed),
            received: replay.top(),
            received_bitmap: Some(replay.bitmap().into()),
            added_ns: words.added_ns(),
            ..self.settings()
        }
    }

    /// The same as if nothing had been sent or received.
    pub(super) fn settings(&self) -> SaConfig {
        SaConfig {
            spi: self.spi(),
            mode: self.mode(),
            source: self.source(),
            destination: self.destination(),
            reqid: self.reqid,
            if_id: self.if_id(),
            key: self.hot.key.clone(),
            salt: self.hot.salt,
            extended_sequence: self.hot.replay.is_extended(),
            replay_window: self.hot.replay.window(),
            selector: self.selector().copied(),
            flags: self.hot.traits.flags(),
            encapsulation: self.encapsulation(),
            limits: self.rare.as_ref().map_or(HardLimits::NONE, |rare| rare.limits),
            sent: 0,
            received: 0,
            received_bitmap: None,
            added_ns: 0,
        }
    }

    /// The SPI.
    #[inline]
    pub fn spi(&self) -> u32 {
        self.hot.spi
    }

    /// Tunnel or transport.
    #[inline]
    pub fn mode(&self) -> Mode {
        self.hot.traits.mode()
    }

    /// The number that ties it to policies.
    #[inline]
    pub fn reqid(&self) -> u32 {
        self.reqid
    }

    /// Its tunnel of route mode.
    #[inline]
    pub fn if_id(&self) -> u32 {
        self.hot.if_id
    }

    /// The UDP ports around its ESP.
    #[inline]
    pub fn encapsulation(&self) -> Option<UdpEncapsulation> {
        self.hot.udp()
    }

    /// Whether a packet in UDP comes from elsewhere than it says: control has to hear of that once it is proved authentic.
    #[inline]
    pub(crate) fn has_moved(&self, source: IpAddr, port: u16) -> bool {
        self.encapsulation().is_some_and(|udp| udp.moved(self.source(), source, port))
    }
}
