//! Messages about SAs.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::address::{Address, Be16, Be32, Id, Selector};
use super::lifetime::{LifetimeConfig, LifetimeCurrent};
use super::replay::Stats;

/// `xfrm_usersa_info`: an SA without its algorithms. NEWSA and UPDSA start with it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct UsersaInfo {
    /// Inner packets it accepts.
    pub sel: Selector,
    /// Destination, SPI, protocol.
    pub id: Id,
    /// Source address.
    pub saddr: Address,
    /// Limits.
    pub lft: LifetimeConfig,
    /// How much of them is used.
    pub curlft: LifetimeCurrent,
    /// What it refused.
    pub stats: Stats,
    /// Sequence number of the ACQUIRE that asked for it.
    pub seq: u32,
    /// Ties it to policy templates.
    pub reqid: u32,
    /// Family of the outer addresses.
    pub family: u16,
    /// Mode, see [`super::number::mode`].
    pub mode: u8,
    /// Replay window of at most 32 packets; 0 when `XFRMA_REPLAY_ESN_VAL` says it.
    pub replay_window: u8,
    /// Flags, see [`super::number::sa_flag`].
    pub flags: u8,
    /// Padding.
    pub pad: [u8; 7],
}

/// `xfrm_usersa_id`: names one SA. DELSA and GETSA start with it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct UsersaId {
    /// Destination address.
    pub daddr: Address,
    /// Security parameter index.
    pub spi: Be32,
    /// Address family.
    pub family: u16,
    /// IP protocol.
    pub proto: u8,
    /// Padding.
    pub pad: u8,
}

/// `xfrm_userspi_info`: ALLOCSPI.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct UserspiInfo {
    /// The SA to be.
    pub info: UsersaInfo,
    /// Smallest SPI allowed.
    pub min: u32,
    /// Largest SPI allowed.
    pub max: u32,
}

/// `xfrm_usersa_flush`: FLUSHSA.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct UsersaFlush {
    /// IP protocol; 0 for all.
    pub proto: u8,
}

/// `xfrm_aevent_id`: NEWAE and GETAE.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct AeventId {
    /// Which SA.
    pub sa_id: UsersaId,
    /// Its source address.
    pub saddr: Address,
    /// See [`super::number::ae`].
    pub flags: u32,
    /// Its reqid.
    pub reqid: u32,
}

/// `xfrm_encap_tmpl`: UDP or TCP encapsulation (RFC 3948, RFC 8229).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct EncapTmpl {
    /// 1: UDP with a non-IKE marker, 2: UDP, 7: TCP.
    pub encap_type: u16,
    /// Source port.
    pub encap_sport: Be16,
    /// Destination port.
    pub encap_dport: Be16,
    /// Padding.
    pub pad: u16,
    /// Original address.
    pub encap_oa: Address,
}

/// `xfrm_user_offload`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct UserOffload {
    /// Network interface.
    pub ifindex: i32,
    /// 1: IPv6, 2: inbound, 4: packet offload.
    pub flags: u8,
    /// Padding.
    pub pad: [u8; 3],
}

/// `xfrm_user_sec_ctx`, followed by `ctx_len` bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct UserSecCtx {
    /// Length of all of it.
    pub len: u16,
    /// Always `XFRMA_SEC_CTX`.
    pub exttype: u16,
    /// 1: SELinux.
    pub ctx_alg: u8,
    /// Domain of interpretation.
    pub ctx_doi: u8,
    /// Length of the context.
    pub ctx_len: u16,
}

const _: () = assert!(size_of::<UsersaInfo>() == 224);
const _: () = assert!(size_of::<UsersaId>() == 24);
const _: () = assert!(size_of::<UserspiInfo>() == 232);
const _: () = assert!(size_of::<UsersaFlush>() == 1);
const _: () = assert!(size_of::<AeventId>() == 48);
const _: () = assert!(size_of::<EncapTmpl>() == 24);
const _: () = assert!(size_of::<UserOffload>() == 8);
const _: () = assert!(size_of::<UserSecCtx>() == 8);
