//! Messages that a kernel sends of itself: acquire, expire, mapping, report.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::address::{Address, Be16, Id, Selector};
use super::policy::UserpolicyInfo;
use super::sa::{UsersaId, UsersaInfo};

/// `xfrm_user_acquire`: a flow needs an SA.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct UserAcquire {
    /// Destination and protocol of the SA.
    pub id: Id,
    /// Its source.
    pub saddr: Address,
    /// The packet that needs it.
    pub sel: Selector,
    /// The policy that asks for it.
    pub policy: UserpolicyInfo,
    /// Allowed authentication algorithms.
    pub aalgos: u32,
    /// Allowed encryption algorithms.
    pub ealgos: u32,
    /// Allowed compression algorithms.
    pub calgos: u32,
    /// Number of this request.
    pub seq: u32,
}

/// `xfrm_user_expire`: an SA reached a limit.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct UserExpire {
    /// The SA.
    pub state: UsersaInfo,
    /// Not 0: it is gone.
    pub hard: u8,
    /// Padding.
    pub pad: [u8; 7],
}

/// `xfrm_user_polexpire`: a policy reached a limit.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct UserPolexpire {
    /// The policy.
    pub pol: UserpolicyInfo,
    /// Not 0: it is gone.
    pub hard: u8,
    /// Padding.
    pub pad: [u8; 7],
}

/// `xfrm_user_mapping`: a peer's NAT mapping changed.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct UserMapping {
    /// Which SA.
    pub id: UsersaId,
    /// Its reqid.
    pub reqid: u32,
    /// Old source address.
    pub old_saddr: Address,
    /// New source address.
    pub new_saddr: Address,
    /// Old source port.
    pub old_sport: Be16,
    /// New source port.
    pub new_sport: Be16,
}

/// `xfrm_user_report`: Mobile IPv6.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct UserReport {
    /// IP protocol.
    pub proto: u8,
    /// Padding.
    pub pad: [u8; 3],
    /// The packet.
    pub sel: Selector,
}

const _: () = assert!(size_of::<UserAcquire>() == 280);
const _: () = assert!(size_of::<UserExpire>() == 232);
const _: () = assert!(size_of::<UserPolexpire>() == 176);
const _: () = assert!(size_of::<UserMapping>() == 64);
const _: () = assert!(size_of::<UserReport>() == 60);
