//! Numbers of the XFRM interface: message types, attributes, groups, flags and small enumerations.
//!
//! Kept here rather than taken from the build machine's headers, which may be years older than the
//! daemons that talk to us.

/// Address family of IPv4.
pub const AF_INET: u16 = 2;
/// Address family of IPv6.
pub const AF_INET6: u16 = 10;
/// No address family: "any", where the ABI allows it.
pub const AF_UNSPEC: u16 = 0;

/// IP protocol number of IPv6 routing headers (Mobile IPv6 states).
pub const IPPROTO_ROUTING: u8 = 43;
/// IP protocol number of ESP.
pub const IPPROTO_ESP: u8 = 50;
/// IP protocol number of AH.
pub const IPPROTO_AH: u8 = 51;
/// IP protocol number of IPv6 destination options (Mobile IPv6 states).
pub const IPPROTO_DSTOPTS: u8 = 60;
/// IP protocol number of IPComp.
pub const IPPROTO_COMP: u8 = 108;
/// "Any of AH, ESP, IPComp" in requests that select by protocol.
pub const IPSEC_PROTO_ANY: u8 = 255;

/// A limit that is never reached.
pub const XFRM_INF: u64 = u64::MAX;
/// Largest number of templates in a policy.
pub const XFRM_MAX_DEPTH: usize = 6;
/// Largest replay window, in packets, that `XFRMA_REPLAY_ESN_VAL` may ask for.
pub const REPLAY_ESN_MAX: u32 = 4096;

/// Message types (`nlmsg_type`).
pub mod msg {
    /// First number of the XFRM family.
    pub const BASE: u16 = 0x10;
    /// Install an SA; also the reply to GETSA and ALLOCSPI.
    pub const NEWSA: u16 = 0x10;
    /// Delete one SA.
    pub const DELSA: u16 = 0x11;
    /// Ask for one SA, or dump them.
    pub const GETSA: u16 = 0x12;
    /// Install a policy; also the reply to GETPOLICY.
    pub const NEWPOLICY: u16 = 0x13;
    /// Delete one policy.
    pub const DELPOLICY: u16 = 0x14;
    /// Ask for one policy, or dump them.
    pub const GETPOLICY: u16 = 0x15;
    /// Reserve an SPI.
    pub const ALLOCSPI: u16 = 0x16;
    /// A flow needs an SA.
    pub const ACQUIRE: u16 = 0x17;
    /// An SA reached a soft or hard limit.
    pub const EXPIRE: u16 = 0x18;
    /// Install or replace a policy.
    pub const UPDPOLICY: u16 = 0x19;
    /// Complete a reserved SPI, or update an SA.
    pub const UPDSA: u16 = 0x1a;
    /// A policy reached a soft or hard limit.
    pub const POLEXPIRE: u16 = 0x1b;
    /// Delete all SAs of a protocol.
    pub const FLUSHSA: u16 = 0x1c;
    /// Delete all policies of a type.
    pub const FLUSHPOLICY: u16 = 0x1d;
    /// Set an SA's sequence numbers, counters and thresholds.
    pub const NEWAE: u16 = 0x1e;
    /// Ask for them.
    pub const GETAE: u16 = 0x1f;
    /// Mobile IPv6 report.
    pub const REPORT: u16 = 0x20;
    /// Change endpoints of SAs and policies.
    pub const MIGRATE: u16 = 0x21;
    /// Answer to GETSADINFO.
    pub const NEWSADINFO: u16 = 0x22;
    /// Ask for the size of the SAD.
    pub const GETSADINFO: u16 = 0x23;
    /// Set hash thresholds; also the answer to GETSPDINFO.
    pub const NEWSPDINFO: u16 = 0x24;
    /// Ask for the size of the SPD.
    pub const GETSPDINFO: u16 = 0x25;
    /// A peer's NAT mapping changed.
    pub const MAPPING: u16 = 0x26;
    /// Set what happens to traffic without a policy.
    pub const SETDEFAULT: u16 = 0x27;
    /// Ask for it; also its answer and its event.
    pub const GETDEFAULT: u16 = 0x28;
    /// Last number of the XFRM family.
    pub const MAX: u16 = GETDEFAULT;
}

/// Attribute types (`XFRMA_*`).
pub mod attr {
    /// `xfrm_algo`: authentication, truncated as the algorithm says.
    pub const ALG_AUTH: u16 = 1;
    /// `xfrm_algo`: encryption.
    pub const ALG_CRYPT: u16 = 2;
    /// `xfrm_algo`: compression.
    pub const ALG_COMP: u16 = 3;
    /// `xfrm_encap_tmpl`: UDP or TCP encapsulation.
    pub const ENCAP: u16 = 4;
    /// Array of `xfrm_user_tmpl`.
    pub const TMPL: u16 = 5;
    /// `xfrm_usersa_info`, inside a DELSA event.
    pub const SA: u16 = 6;
    /// `xfrm_userpolicy_info`, inside a DELPOLICY event.
    pub const POLICY: u16 = 7;
    /// `xfrm_user_sec_ctx`.
    pub const SEC_CTX: u16 = 8;
    /// `xfrm_lifetime_cur`.
    pub const LTIME_VAL: u16 = 9;
    /// `xfrm_replay_state`.
    pub const REPLAY_VAL: u16 = 10;
    /// u32: replay event threshold, in packets.
    pub const REPLAY_THRESH: u16 = 11;
    /// u32: replay event timer.
    pub const ETIMER_THRESH: u16 = 12;
    /// `xfrm_address_t`: source address of the wanted SA.
    pub const SRCADDR: u16 = 13;
    /// `xfrm_address_t`: care-of address.
    pub const COADDR: u16 = 14;
    /// u64: seconds since the epoch when the SA was last used.
    pub const LASTUSED: u16 = 15;
    /// `xfrm_userpolicy_type`.
    pub const POLICY_TYPE: u16 = 16;
    /// Array of `xfrm_user_migrate`.
    pub const MIGRATE: u16 = 17;
    /// `xfrm_algo_aead`.
    pub const ALG_AEAD: u16 = 18;
    /// `xfrm_user_kmaddress`.
    pub const KMADDRESS: u16 = 19;
    /// `xfrm_algo_auth`: authentication with its truncation.
    pub const ALG_AUTH_TRUNC: u16 = 20;
    /// `xfrm_mark`.
    pub const MARK: u16 = 21;
    /// u32: traffic-flow-confidentiality padding.
    pub const TFCPAD: u16 = 22;
    /// `xfrm_replay_state_esn` with its bitmap.
    pub const REPLAY_ESN_VAL: u16 = 23;
    /// u32: more SA flags.
    pub const SA_EXTRA_FLAGS: u16 = 24;
    /// u8: protocol filter of a dump.
    pub const PROTO: u16 = 25;
    /// `xfrm_address_filter`: address filter of a dump.
    pub const ADDRESS_FILTER: u16 = 26;
    /// Alignment only.
    pub const PAD: u16 = 27;
    /// `xfrm_user_offload`.
    pub const OFFLOAD_DEV: u16 = 28;
    /// u32: mark given to packets after processing.
    pub const SET_MARK: u16 = 29;
    /// u32: its mask.
    pub const SET_MARK_MASK: u16 = 30;
    /// u32: XFRM interface id.
    pub const IF_ID: u16 = 31;
    /// u32: seconds between NAT mapping events.
    pub const MTIMER_THRESH: u16 = 32;
    /// u8: direction of an SA (Linux 6.10).
    pub const SA_DIR: u16 = 33;
    /// u32: seconds between NAT keep-alives (Linux 6.11).
    pub const NAT_KEEPALIVE_INTERVAL: u16 = 34;
    /// u32: CPU of an SA, RFC 9611 (Linux 6.13).
    pub const SA_PCPU: u16 = 35;
    /// u32: IP-TFS drop time in microseconds (Linux 6.14).
    pub const IPTFS_DROP_TIME: u16 = 36;
    /// u16: IP-TFS reorder window.
    pub const IPTFS_REORDER_WINDOW: u16 = 37;
    /// Flag: IP-TFS must not fragment.
    pub const IPTFS_DONT_FRAG: u16 = 38;
    /// u32: IP-TFS initial delay in microseconds.
    pub const IPTFS_INIT_DELAY: u16 = 39;
    /// u32: IP-TFS queue size in bytes.
    pub const IPTFS_MAX_QSIZE: u16 = 40;
    /// u32: IP-TFS outer packet size.
    pub const IPTFS_PKT_SIZE: u16 = 41;
    /// Last attribute known here.
    pub const MAX: u16 = IPTFS_PKT_SIZE;
}

/// Attributes of NEWSADINFO (`XFRMA_SAD_*`).
pub mod sad_attr {
    /// u32: number of SAs.
    pub const CNT: u16 = 1;
    /// `xfrmu_sadhinfo`.
    pub const HINFO: u16 = 2;
}

/// Attributes of NEWSPDINFO (`XFRMA_SPD_*`).
pub mod spd_attr {
    /// `xfrmu_spdinfo`.
    pub const INFO: u16 = 1;
    /// `xfrmu_spdhinfo`.
    pub const HINFO: u16 = 2;
    /// `xfrmu_spdhthresh` for IPv4.
    pub const IPV4_HTHRESH: u16 = 3;
    /// `xfrmu_spdhthresh` for IPv6.
    pub const IPV6_HTHRESH: u16 = 4;
    /// Last of them.
    pub const MAX: u16 = IPV6_HTHRESH;
}

/// Multicast groups (`XFRMNLGRP_*`), counted from 1 as netlink does.
pub mod group {
    /// ACQUIRE messages.
    pub const ACQUIRE: u32 = 1;
    /// EXPIRE and POLEXPIRE messages.
    pub const EXPIRE: u32 = 2;
    /// Changes of the SAD.
    pub const SA: u32 = 3;
    /// Changes of the SPD.
    pub const POLICY: u32 = 4;
    /// NEWAE messages.
    pub const AEVENTS: u32 = 5;
    /// REPORT messages.
    pub const REPORT: u32 = 6;
    /// MIGRATE messages.
    pub const MIGRATE: u32 = 7;
    /// MAPPING messages.
    pub const MAPPING: u32 = 8;
    /// Last of them.
    pub const MAX: u32 = MAPPING;

    /// The bit of `group` in a bind mask; groups outside 1..=32 have none.
    pub const fn bit(group: u32) -> u32 {
        if group == 0 || group > 32 { 0 } else { 1 << (group - 1) }
    }
}

/// SA modes.
pub mod mode {
    /// Transport mode.
    pub const TRANSPORT: u8 = 0;
    /// Tunnel mode.
    pub const TUNNEL: u8 = 1;
    /// Mobile IPv6 route optimisation.
    pub const ROUTEOPTIMIZATION: u8 = 2;
    /// Mobile IPv6 inbound trigger.
    pub const IN_TRIGGER: u8 = 3;
    /// Bound end-to-end tunnel.
    pub const BEET: u8 = 4;
    /// IP traffic-flow security (Linux 6.14).
    pub const IPTFS: u8 = 5;
    /// First number that no kernel without IP-TFS knows.
    pub const MAX: u8 = 5;
}

/// Encapsulation types (`xfrm_encap_tmpl.encap_type`).
pub mod encap_type {
    /// UDP with eight zero bytes in front of ESP, of drafts before RFC 3948.
    pub const ESPINUDP_NON_IKE: u16 = 1;
    /// UDP (RFC 3948).
    pub const ESPINUDP: u16 = 2;
    /// TCP (RFC 8229).
    pub const ESPINTCP: u16 = 7;
}

/// SA flags (`xfrm_usersa_info.flags`).
pub mod sa_flag {
    /// Do not copy ECN bits.
    pub const NOECN: u8 = 1;
    /// Copy the outer DSCP inside on input.
    pub const DECAP_DSCP: u8 = 2;
    /// Do not copy the don't-fragment bit.
    pub const NOPMTUDISC: u8 = 4;
    /// Accept any source address.
    pub const WILDRECV: u8 = 8;
    /// Let ICMP errors for inner packets through.
    pub const ICMP: u8 = 16;
    /// The selector may be of any family.
    pub const AF_UNSPEC: u8 = 32;
    /// Align the AH header to 4 bytes.
    pub const ALIGN4: u8 = 64;
    /// Extended sequence numbers.
    pub const ESN: u8 = 128;
}

/// More SA flags (`XFRMA_SA_EXTRA_FLAGS`).
pub mod sa_extra_flag {
    /// Do not copy the inner DSCP outside.
    pub const DONT_ENCAP_DSCP: u32 = 1;
    /// Outbound sequence numbers may wrap.
    pub const OSEQ_MAY_WRAP: u32 = 2;
}

/// Directions of an SA (`XFRMA_SA_DIR`).
pub mod sa_direction {
    /// Inbound.
    pub const IN: u8 = 1;
    /// Outbound.
    pub const OUT: u8 = 2;
}

/// Directions of a policy.
pub mod direction {
    /// For packets addressed to this host.
    pub const IN: u8 = 0;
    /// For packets that leave.
    pub const OUT: u8 = 1;
    /// For packets in transit, after they came in.
    pub const FWD: u8 = 2;
    /// Number of directions.
    pub const MAX: u8 = 3;
}

/// Actions of a policy.
pub mod action {
    /// Let through, protected by the templates, if any.
    pub const ALLOW: u8 = 0;
    /// Drop.
    pub const BLOCK: u8 = 1;
}

/// Flags of a policy.
pub mod policy_flag {
    /// Users may override it with a socket policy.
    pub const LOCALOK: u8 = 1;
    /// Match ICMP errors by the packet they quote.
    pub const ICMP: u8 = 2;
    /// Ask for per-CPU SAs, RFC 9611.
    pub const CPU_ACQUIRE: u8 = 4;
}

/// Types of policy.
pub mod policy_type {
    /// Ordinary policies.
    pub const MAIN: u8 = 0;
    /// Mobile IPv6 policies, looked up first.
    pub const SUB: u8 = 1;
}

/// What happens to packets without a policy (`xfrm_userpolicy_default`).
pub mod default_action {
    /// Leave as it is.
    pub const UNSPEC: u8 = 0;
    /// Drop.
    pub const BLOCK: u8 = 1;
    /// Let through.
    pub const ACCEPT: u8 = 2;
}

/// Flags of NEWAE and GETAE.
pub mod ae {
    /// Replay threshold is carried.
    pub const RTHR: u32 = 1;
    /// Replay value is carried.
    pub const RVAL: u32 = 2;
    /// Lifetime value is carried.
    pub const LVAL: u32 = 4;
    /// Timer threshold is carried.
    pub const ETHR: u32 = 8;
    /// Cause: replay update.
    pub const CR: u32 = 16;
    /// Cause: timer.
    pub const CE: u32 = 32;
    /// Cause: somebody set it.
    pub const CU: u32 = 64;
}
