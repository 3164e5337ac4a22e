//! Lifetimes of SAs and policies: limits, and how much of them is used.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::number::XFRM_INF;

/// `xfrm_lifetime_cfg`. A limit of [`XFRM_INF`] (bytes, packets) or 0 (seconds) is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LifetimeConfig {
    /// Bytes until EXPIRE(soft).
    pub soft_byte_limit: u64,
    /// Bytes until deletion.
    pub hard_byte_limit: u64,
    /// Packets until EXPIRE(soft).
    pub soft_packet_limit: u64,
    /// Packets until deletion.
    pub hard_packet_limit: u64,
    /// Seconds from installation until EXPIRE(soft).
    pub soft_add_expires_seconds: u64,
    /// Seconds from installation until deletion.
    pub hard_add_expires_seconds: u64,
    /// Seconds from first use until EXPIRE(soft).
    pub soft_use_expires_seconds: u64,
    /// Seconds from first use until deletion.
    pub hard_use_expires_seconds: u64,
}

impl LifetimeConfig {
    /// No limit of any kind.
    pub const UNLIMITED: Self = Self {
        soft_byte_limit: XFRM_INF,
        hard_byte_limit: XFRM_INF,
        soft_packet_limit: XFRM_INF,
        hard_packet_limit: XFRM_INF,
        soft_add_expires_seconds: 0,
        hard_add_expires_seconds: 0,
        soft_use_expires_seconds: 0,
        hard_use_expires_seconds: 0,
    };

    /// Whether any limit counts bytes or packets.
    pub const fn counts_traffic(&self) -> bool {
        self.soft_byte_limit != XFRM_INF
            || self.hard_byte_limit != XFRM_INF
            || self.soft_packet_limit != XFRM_INF
            || self.hard_packet_limit != XFRM_INF
    }
}

impl Default for LifetimeConfig {
    fn default() -> Self {
        Self::UNLIMITED
    }
}

/// `xfrm_lifetime_cur`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct LifetimeCurrent {
    /// Bytes so far.
    pub bytes: u64,
    /// Packets so far.
    pub packets: u64,
    /// When it was installed, seconds since the epoch.
    pub add_time: u64,
    /// When it was first used, seconds since the epoch; 0 when never.
    pub use_time: u64,
}

const _: () = assert!(size_of::<LifetimeConfig>() == 64);
const _: () = assert!(size_of::<LifetimeCurrent>() == 32);
