//! Sizes of the two databases, as NEWSADINFO and NEWSPDINFO tell them.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `xfrmu_sadhinfo`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct SadHashInfo {
    /// Hash buckets now.
    pub count: u32,
    /// Hash buckets at most.
    pub max: u32,
}

/// `xfrmu_spdinfo`: policies by direction, and those of sockets.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct SpdInfo {
    /// Input policies.
    pub input: u32,
    /// Output policies.
    pub output: u32,
    /// Forward policies.
    pub forward: u32,
    /// Input policies of sockets.
    pub socket_input: u32,
    /// Output policies of sockets.
    pub socket_output: u32,
    /// Forward policies of sockets.
    pub socket_forward: u32,
}

/// `xfrmu_spdhinfo`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct SpdHashInfo {
    /// Hash mask now.
    pub count: u32,
    /// Hash buckets at most.
    pub max: u32,
}

/// `xfrmu_spdhthresh`: prefix lengths from which policies are hashed.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct SpdHashThreshold {
    /// Of the local side.
    pub lbits: u8,
    /// Of the remote side.
    pub rbits: u8,
}

const _: () = assert!(size_of::<SadHashInfo>() == 8);
const _: () = assert!(size_of::<SpdInfo>() == 24);
const _: () = assert!(size_of::<SpdHashInfo>() == 8);
const _: () = assert!(size_of::<SpdHashThreshold>() == 2);
