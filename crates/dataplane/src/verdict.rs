//! The one list of ends a packet can have.
//!
//! Every packet that a worker receives ends in exactly one [`Verdict`], so the sum over all
//! counters (plus what still waits in a transmit queue) equals the packets received. The names are
//! the counter names in every place that shows them. Where Linux has a counter for the same cause
//! in `/proc/net/xfrm_stat`, [`Verdict::linux`] gives its name.
//!
//! This file does not count (`counters.rs`) and does not decide (the stages do).

/// Whether a verdict means that the packet did what it came for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The packet left by a port, or was consumed as its sender meant it to be.
    Delivered,
    /// The packet died here, by the named cause.
    Dropped,
}

macro_rules! verdicts {
    ($($(#[doc = $doc:literal])+ $variant:ident $name:literal $outcome:ident $linux:expr;)+) => {
        /// How a packet's stay in the gateway ended.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Verdict {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl Verdict {
            /// Every verdict, in the order of declaration.
            pub const ALL: &'static [Verdict] = &[$(Verdict::$variant,)+];

            /// The counter's name, the same everywhere (`snake_case`).
            pub fn name(self) -> &'static str {
                match self { $(Verdict::$variant => $name,)+ }
            }

            /// Whether this is a success or a drop.
            pub fn outcome(self) -> Outcome {
                match self { $(Verdict::$variant => Outcome::$outcome,)+ }
            }

            /// The name in `/proc/net/xfrm_stat` that counts the same cause, if Linux has one.
            pub fn linux(self) -> Option<&'static str> {
                match self { $(Verdict::$variant => $linux,)+ }
            }

            /// One sentence for people, the same as the variant's documentation.
            pub fn description(self) -> &'static str {
                match self { $(Verdict::$variant => concat!($($doc,)+).trim_ascii(),)+ }
            }
        }
    };
}

verdicts! {
    // ---- successes -------------------------------------------------------------------------
    /// Forwarded in clear, as a bypass policy or the default action says.
    Forwarded "forwarded" Delivered None;
    /// Sealed into a tunnel and sent.
    Sealed "sealed" Delivered None;
    /// Opened from a tunnel and sent in clear.
    Opened "opened" Delivered None;
    /// Opened from one tunnel and sealed into another, as a hub does.
    Resealed "resealed" Delivered None;
    /// Opened from a tunnel and handed to this host.
    HostOpened "host_opened" Delivered None;
    /// Sent by this host, sealed and sent.
    HostSealed "host_sealed" Delivered None;
    /// Sent by this host and sent in clear, as no policy protects it.
    HostForwarded "host_forwarded" Delivered None;
    /// An authentic dummy packet (next header 59, RFC 4303 §2.6), consumed silently.
    Dummy "dummy" Delivered None;

    // ---- link layer --------------------------------------------------------------------------
    /// The frame is too short for its Ethernet header.
    EthernetTruncated "ethernet_truncated" Dropped None;
    /// The frame is addressed to another station or to a group of stations.
    NotForUs "not_for_us" Dropped None;
    /// The frame carries a VLAN tag, and no VLAN is configured on the port.
    VlanUnknown "vlan_unknown" Dropped None;
    /// The frame carries neither IPv4 nor IPv6.
    NotIp "not_ip" Dropped None;

    // ---- network layer, as received ------------------------------------------------------------
    /// The IP packet is shorter than its headers say.
    IpTruncated "ip_truncated" Dropped None;
    /// The IP version does not fit the EtherType, or is neither 4 nor 6.
    IpVersion "ip_version" Dropped None;
    /// An IP header length field is impossible.
    IpHeaderLength "ip_header_length" Dropped None;
    /// The IP total or payload length is impossible.
    IpTotalLength "ip_total_length" Dropped None;
    /// The IPv4 header checksum is wrong.
    IpChecksum "ip_checksum" Dropped None;
    /// The IPv4 options or the chain of IPv6 extension headers break their rules or their limit.
    IpExtensions "ip_extensions" Dropped None;
    /// A fragment that no sender makes: too short for its headers, or past the largest packet.
    IpFragment "ip_fragment" Dropped None;
    /// An IPv4 source routing option or IPv6 routing header, which would evade the policy.
    SourceRoute "source_route" Dropped None;
    /// The source address cannot be forwarded from (multicast, link-local, loopback, unspecified).
    MartianSource "martian_source" Dropped None;
    /// The destination cannot be forwarded to (multicast, broadcast, link-local, loopback,
    /// unspecified).
    MartianDestination "martian_destination" Dropped None;

    // ---- for the host --------------------------------------------------------------------------
    /// In clear, for an address of this host: the steering program should have passed it up.
    HostClear "host_clear" Dropped None;
    /// Opened, for this host, with no way to it: there is no host device, or the address is a
    /// broadcast.
    HostUnreached "host_unreached" Dropped None;

    // ---- ESP, inbound --------------------------------------------------------------------------
    /// An ESP packet that is itself a fragment (RFC 4303 §3.4.1 asks for reassembly before ESP).
    FragmentEsp "fragment_esp" Dropped Some("XfrmInHdrError");
    /// Too short to hold the ESP header, IV, trailer and ICV.
    EspTruncated "esp_truncated" Dropped Some("XfrmInHdrError");
    /// The ciphertext is not a multiple of four bytes (RFC 4303 §2.4).
    EspAlignment "esp_alignment" Dropped Some("XfrmInStateProtoError");
    /// No SA has this SPI and destination.
    NoState "no_state" Dropped Some("XfrmInNoStates");
    /// The UDP header around ESP is cut short, or its length is impossible.
    UdpMalformed "udp_malformed" Dropped Some("XfrmInHdrError");
    /// The SA is for ESP in UDP and the packet is plain ESP, or the other way round.
    EncapsulationMismatch "encapsulation_mismatch" Dropped Some("XfrmInStateMismatch");
    /// The inbound SA is past its hard lifetime in bytes or packets.
    InSaExpired "in_sa_expired" Dropped Some("XfrmInStateExpired");
    /// Sequence number zero, which no sender may use (RFC 4303 §2.2).
    SequenceZero "sequence_zero" Dropped Some("XfrmInStateSeqError");
    /// The sequence number was received before.
    Replayed "replayed" Dropped Some("XfrmInStateSeqError");
    /// The sequence number is left of the replay window.
    ReplayOld "replay_old" Dropped Some("XfrmInStateSeqError");
    /// The integrity check value is wrong.
    IntegrityFailed "integrity_failed" Dropped Some("XfrmInStateProtoError");
    /// Authentic, but the padding is longer than the packet or not 1, 2, 3, … (RFC 4303 §2.4).
    EspPadding "esp_padding" Dropped Some("XfrmInStateProtoError");
    /// Authentic, but the next header is not what a tunnel mode SA carries.
    EspNextHeader "esp_next_header" Dropped Some("XfrmInStateModeError");
    /// Authentic, but the inner packet is malformed or its version contradicts the next header.
    InnerMalformed "inner_malformed" Dropped Some("XfrmInStateProtoError");
    /// Outer congestion mark on an inner packet that cannot carry it (RFC 6040 §4.2).
    EcnNotCapable "ecn_not_capable" Dropped None;
    /// The inner packet is outside the selector of its SA.
    SelectorMismatch "selector_mismatch" Dropped Some("XfrmInStateMismatch");
    /// The inner packet's policy asks for another SA than the one that carried it.
    PolicyMismatch "policy_mismatch" Dropped Some("XfrmInTmplMismatch");
    /// No inbound policy covers the inner packet (RFC 4301 §5.2).
    NoPolicy "no_policy" Dropped Some("XfrmInNoPols");
    /// Came in clear although a policy protects it.
    ClearOfProtected "clear_of_protected" Dropped Some("XfrmInTmplMismatch");
    /// A forward or inbound policy, or their default action, blocks it.
    PolicyBlock "policy_block" Dropped Some("XfrmInPolBlock");

    // ---- ESP, outbound -------------------------------------------------------------------------
    /// An outbound policy, or the default action, blocks it.
    OutPolicyBlock "out_policy_block" Dropped Some("XfrmOutPolBlock");
    /// A policy protects it, and there is no SA yet.
    NoSa "no_sa" Dropped Some("XfrmOutNoStates");
    /// It would wait for an SA that was asked for, but too many packets wait already.
    HoldFull "hold_full" Dropped Some("XfrmOutNoStates");
    /// It waited for an SA, which did not come in time.
    HoldExpired "hold_expired" Dropped Some("XfrmOutNoStates");
    /// It waited for an SA, and meanwhile no policy protects it any more.
    HoldPolicyGone "hold_policy_gone" Dropped Some("XfrmOutPolDead");
    /// The outbound SA is past its hard lifetime in bytes or packets.
    OutSaExpired "out_sa_expired" Dropped Some("XfrmOutStateExpired");
    /// The outbound SA has used its last sequence number (RFC 4303 §3.3.3).
    SequenceExhausted "sequence_exhausted" Dropped Some("XfrmOutStateSeqError");
    /// The outbound SA has no unused initialization vector left.
    NonceExhausted "nonce_exhausted" Dropped Some("XfrmOutStateSeqError");
    /// A fragment whose policy wants transport mode, which seals whole datagrams only (RFC 4303
    /// §3.3.4).
    FragmentTransport "fragment_transport" Dropped Some("XfrmOutStateModeError");
    /// A fragment whose policy selects by ports, which a fragment may not show (RFC 4301 §7).
    FragmentOfPortPolicy "fragment_of_port_policy" Dropped None;

    // ---- forwarding ----------------------------------------------------------------------------
    /// The TTL or hop limit ran out here.
    TtlExpired "ttl_expired" Dropped None;
    /// No route to the destination.
    NoRoute "no_route" Dropped None;
    /// A blackhole route.
    RouteBlackhole "route_blackhole" Dropped None;
    /// An unreachable route.
    RouteUnreachable "route_unreachable" Dropped None;
    /// A prohibit route.
    RouteProhibit "route_prohibit" Dropped None;
    /// The route leaves by an interface that is not a port of the gateway.
    RouteNotAPort "route_not_a_port" Dropped None;
    /// The route leaves by a port or a tunnel of another VRF.
    RouteOutOfVrf "route_out_of_vrf" Dropped None;
    /// The VRF that its port or its tunnel is led to is not there.
    VrfUnknown "vrf_unknown" Dropped None;
    /// Led into a tunnel that does not exist, or that no policy says how to enter.
    NoTunnel "no_tunnel" Dropped Some("XfrmOutNoStates");
    /// The tunnel's far end is an address of this host.
    TunnelToSelf "tunnel_to_self" Dropped None;
    /// The next hop's link-layer address is not known yet; the kernel has been asked.
    NeighbourUnresolved "neighbour_unresolved" Dropped None;
    /// The result is larger than the MTU of the egress port.
    TooBig "too_big" Dropped None;
    /// The frame has no room left for the headers or the trailer.
    NoRoom "no_room" Dropped None;
    /// The egress port is down.
    PortDown "port_down" Dropped None;
    /// The egress port's transmit queue is full.
    TransmitFull "transmit_full" Dropped None;
    /// The ring of packets that other workers encrypt or decrypt is full: one that holds its oldest
    /// packets does not run.
    PipelineFull "pipeline_full" Dropped None;
    /// The gateway stopped before the packet could be sent.
    Stopped "stopped" Dropped None;
}

impl Verdict {
    /// How many verdicts there are; the length of a counter array.
    pub const COUNT: usize = Verdict::ALL.len();

    /// Position in [`Verdict::ALL`] and in every counter array.
    pub fn index(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_snake_case_and_indexed_in_order() {
        let mut names = HashSet::new();
        for (index, verdict) in Verdict::ALL.iter().enumerate() {
            assert_eq!(verdict.index(), index);
            assert!(names.insert(verdict.name()), "{} twice", verdict.name());
            assert!(verdict.name().bytes().all(|b| b.is_ascii_lowercase() || b == b'_'));
            let camel: String = verdict.name().split('_').map(capitalised).collect();
            assert_eq!(camel, format!("{verdict:?}"), "name and variant must agree");
            assert!(verdict.description().ends_with('.'), "{verdict:?}");
        }
        assert_eq!(names.len(), Verdict::COUNT);
    }

    #[test]
    fn linux_names_are_those_of_xfrm_stat() {
        for verdict in Verdict::ALL {
            if let Some(name) = verdict.linux() {
                assert!(name.starts_with("XfrmIn") || name.starts_with("XfrmOut"));
                assert_eq!(verdict.outcome(), Outcome::Dropped);
            }
        }
    }

    fn capitalised(word: &str) -> String {
        let (first, rest) = word.split_at(1);
        first.to_uppercase() + rest
    }
}
