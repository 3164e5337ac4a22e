//! Protocol and next-header numbers that this crate or its users decide by (IANA registry
//! "Assigned Internet Protocol Numbers"). Not the whole registry.

/// IPv6 hop-by-hop options (RFC 8200 §4.3).
pub const HOP_BY_HOP: u8 = 0;
/// ICMP for IPv4.
pub const ICMP: u8 = 1;
/// IPv4 in IP: the next header of ESP in tunnel mode with an IPv4 inner packet.
pub const IPV4: u8 = 4;
/// TCP.
pub const TCP: u8 = 6;
/// UDP.
pub const UDP: u8 = 17;
/// DCCP.
pub const DCCP: u8 = 33;
/// IPv6 in IP: the next header of ESP in tunnel mode with an IPv6 inner packet.
pub const IPV6: u8 = 41;
/// IPv6 routing header (RFC 8200 §4.4).
pub const ROUTING: u8 = 43;
/// IPv6 fragment header (RFC 8200 §4.5).
pub const FRAGMENT: u8 = 44;
/// GRE.
pub const GRE: u8 = 47;
/// Encapsulating Security Payload.
pub const ESP: u8 = 50;
/// Authentication Header.
pub const AH: u8 = 51;
/// ICMP for IPv6.
pub const ICMPV6: u8 = 58;
/// No next header: nothing follows (RFC 8200 §4.7). In ESP it marks a dummy packet
/// (RFC 4303 §2.6).
pub const NO_NEXT_HEADER: u8 = 59;
/// IPv6 destination options (RFC 8200 §4.6).
pub const DESTINATION_OPTIONS: u8 = 60;
/// SCTP.
pub const SCTP: u8 = 132;
/// IPv6 mobility header (RFC 6275 §6.1). An upper-layer protocol to XFRM, as it is here.
pub const MOBILITY: u8 = 135;
/// UDP-Lite.
pub const UDP_LITE: u8 = 136;
