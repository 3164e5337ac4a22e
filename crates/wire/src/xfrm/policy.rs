//! Messages about policies.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::address::{Address, Id, Selector};
use super::lifetime::{LifetimeConfig, LifetimeCurrent};

/// `xfrm_userpolicy_info`: a policy without its templates. NEWPOLICY and UPDPOLICY start with it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct UserpolicyInfo {
    /// Packets it is for.
    pub sel: Selector,
    /// Limits.
    pub lft: LifetimeConfig,
    /// How much of them is used.
    pub curlft: LifetimeCurrent,
    /// Smaller is looked at first.
    pub priority: u32,
    /// Its number; the low three bits are the direction.
    pub index: u32,
    /// Direction, see [`super::number::direction`].
    pub dir: u8,
    /// Action, see [`super::number::action`].
    pub action: u8,
    /// Flags, see [`super::number::policy_flag`].
    pub flags: u8,
    /// Sharing; kernels check it and forget it.
    pub share: u8,
    /// Padding.
    pub pad: [u8; 4],
}

/// `xfrm_userpolicy_id`: names one policy. DELPOLICY and GETPOLICY start with it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct UserpolicyId {
    /// Its selector, when `index` is 0.
    pub sel: Selector,
    /// Its number.
    pub index: u32,
    /// Its direction.
    pub dir: u8,
    /// Padding.
    pub pad: [u8; 3],
}

/// `xfrm_user_tmpl`: what kind of SA a policy wants.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct UserTmpl {
    /// Tunnel destination, SPI (0 for any), protocol.
    pub id: Id,
    /// Family of the outer addresses.
    pub family: u16,
    /// Padding.
    pub pad0: u16,
    /// Tunnel source.
    pub saddr: Address,
    /// The SA's reqid.
    pub reqid: u32,
    /// The SA's mode.
    pub mode: u8,
    /// Sharing.
    pub share: u8,
    /// Packets may pass without it.
    pub optional: u8,
    /// Padding.
    pub pad1: u8,
    /// Allowed authentication algorithms.
    pub aalgos: u32,
    /// Allowed encryption algorithms.
    pub ealgos: u32,
    /// Allowed compression algorithms.
    pub calgos: u32,
}

/// `xfrm_userpolicy_type`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct UserpolicyType {
    /// See [`super::number::policy_type`].
    pub kind: u8,
    /// Padding.
    pub pad0: u8,
    /// Reserved.
    pub reserved1: u16,
    /// Reserved.
    pub reserved2: u8,
    /// Padding.
    pub pad1: u8,
}

/// `xfrm_userpolicy_default`: SETDEFAULT and GETDEFAULT, see [`super::number::default_action`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct UserpolicyDefault {
    /// For packets addressed to this host.
    pub input: u8,
    /// For packets in transit.
    pub forward: u8,
    /// For packets that leave.
    pub output: u8,
}

/// `xfrm_user_migrate`: new endpoints for an SA.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct UserMigrate {
    /// Old destination.
    pub old_daddr: Address,
    /// Old source.
    pub old_saddr: Address,
    /// New destination.
    pub new_daddr: Address,
    /// New source.
    pub new_saddr: Address,
    /// IP protocol.
    pub proto: u8,
    /// Mode.
    pub mode: u8,
    /// Reserved.
    pub reserved: u16,
    /// The SA's reqid.
    pub reqid: u32,
    /// Old family.
    pub old_family: u16,
    /// New family.
    pub new_family: u16,
}

/// `xfrm_user_kmaddress`: addresses that IKE shall use.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct UserKmaddress {
    /// Ours.
    pub local: Address,
    /// The peer's.
    pub remote: Address,
    /// Reserved.
    pub reserved: u32,
    /// Their family.
    pub family: u16,
    /// Padding.
    pub pad: u16,
}

const _: () = assert!(size_of::<UserpolicyInfo>() == 168);
const _: () = assert!(size_of::<UserpolicyId>() == 64);
const _: () = assert!(size_of::<UserTmpl>() == 64);
const _: () = assert!(size_of::<UserpolicyType>() == 6);
const _: () = assert!(size_of::<UserpolicyDefault>() == 3);
const _: () = assert!(size_of::<UserMigrate>() == 76);
const _: () = assert!(size_of::<UserKmaddress>() == 40);
