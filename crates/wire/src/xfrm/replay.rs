//! Replay windows and sequence numbers as XFRM messages carry them.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `xfrm_replay_state`: the window of at most 32 packets.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct ReplayState {
    /// Last sequence number sent.
    pub oseq: u32,
    /// Highest sequence number received.
    pub seq: u32,
    /// Bit n: `seq - n` was received.
    pub bitmap: u32,
}

/// `xfrm_replay_state_esn` without its bitmap, which follows as `bmp_len` words.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct ReplayStateEsn {
    /// Words in the bitmap.
    pub bmp_len: u32,
    /// Last sequence number sent, low half.
    pub oseq: u32,
    /// Highest sequence number received, low half.
    pub seq: u32,
    /// Last sequence number sent, high half.
    pub oseq_hi: u32,
    /// Highest sequence number received, high half.
    pub seq_hi: u32,
    /// Size of the window in packets.
    pub replay_window: u32,
}

impl ReplayStateEsn {
    /// Length of the attribute that holds this and its bitmap. Computed in 64 bits, so a hostile
    /// `bmp_len` cannot wrap it.
    pub const fn wire_len(&self) -> u64 {
        size_of::<Self>() as u64 + self.bmp_len as u64 * 4
    }
}

/// `xfrm_stats`: what an SA refused.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Stats {
    /// Packets left of the window.
    pub replay_window: u32,
    /// Packets seen before.
    pub replay: u32,
    /// Packets whose integrity check failed.
    pub integrity_failed: u32,
}

const _: () = assert!(size_of::<ReplayState>() == 12);
const _: () = assert!(size_of::<ReplayStateEsn>() == 24);
const _: () = assert!(size_of::<Stats>() == 12);
