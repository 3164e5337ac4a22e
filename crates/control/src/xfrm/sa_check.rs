//! What NEWSA and UPDSA must satisfy before anything is looked up, in the kernel's order.

use wire::xfrm::attribute::Attributes;
use wire::xfrm::number::{
    AF_INET, AF_INET6, AF_UNSPEC, IPPROTO_AH, IPPROTO_COMP, IPPROTO_DSTOPTS, IPPROTO_ESP,
    IPPROTO_ROUTING, REPLAY_ESN_MAX, attr, mode, sa_direction, sa_extra_flag, sa_flag,
};
use wire::xfrm::replay::{ReplayState, ReplayStateEsn};
use wire::xfrm::sa::{UserSecCtx, UsersaInfo};

use super::algorithm;
use super::failure::Failure;

type Check = Result<(), Failure>;

fn refuse_if(condition: bool, message: &'static str) -> Check {
    if condition { Err(Failure::invalid(message)) } else { Ok(()) }
}

/// All of it.
pub(super) fn check(info: &UsersaInfo, attributes: &Attributes<'_>) -> Check {
    check_families(info)?;
    match info.id.proto {
        IPPROTO_AH => check_ah(attributes)?,
        IPPROTO_ESP => check_esp(info, attributes)?,
        IPPROTO_COMP => check_comp(info, attributes)?,
        IPPROTO_DSTOPTS | IPPROTO_ROUTING => check_mobility(attributes)?,
        _ => return Err(Failure::invalid("Unsupported protocol")),
    }
    algorithm::check_lengths(attributes)?;
    check_security_context(attributes)?;
    let direction = attributes.read::<u8>(attr::SA_DIR).unwrap_or_default();
    check_replay(info, attributes, direction)?;
    refuse_if(
        !matches!(info.mode, mode::TRANSPORT | mode::TUNNEL | mode::ROUTEOPTIMIZATION | mode::BEET),
        "Unsupported mode",
    )?;
    check_nat_timers(attributes, direction)?;
    match direction {
        sa_direction::OUT => check_outbound(info, attributes),
        sa_direction::IN => check_inbound(info, attributes),
        _ => Ok(()),
    }
}

fn check_families(info: &UsersaInfo) -> Check {
    refuse_if(!matches!(info.family, AF_INET | AF_INET6), "Invalid address family")?;
    let mut family = info.sel.family;
    if family == AF_UNSPEC && info.flags & sa_flag::AF_UNSPEC == 0 {
        family = info.family;
    }
    let longest = info.sel.prefixlen_d.max(info.sel.prefixlen_s);
    match family {
        AF_UNSPEC => Ok(()),
        AF_INET => {
            refuse_if(longest > 32, "Invalid prefix length in selector (must be <= 32 for IPv4)")
        }
        AF_INET6 => {
            refuse_if(longest > 128, "Invalid prefix length in selector (must be <= 128 for IPv6)")
        }
        _ => Err(Failure::invalid("Invalid address family in selector")),
    }
}

fn any(attributes: &Attributes<'_>, kinds: &[u16]) -> bool {
    kinds.iter().any(|&kind| attributes.has(kind))
}

fn check_ah(attributes: &Attributes<'_>) -> Check {
    refuse_if(
        !any(attributes, &[attr::ALG_AUTH, attr::ALG_AUTH_TRUNC]),
        "Missing required attribute for AH: AUTH_TRUNC or AUTH",
    )?;
    refuse_if(
        any(attributes, &[attr::ALG_AEAD, attr::ALG_CRYPT, attr::ALG_COMP, attr::TFCPAD]),
        "Invalid attributes for AH: AEAD, CRYPT, COMP, TFCPAD",
    )
}

fn check_esp(info: &UsersaInfo, attributes: &Attributes<'_>) -> Check {
    refuse_if(attributes.has(attr::ALG_COMP), "Invalid attribute for ESP: COMP")?;
    let separate = any(attributes, &[attr::ALG_AUTH, attr::ALG_AUTH_TRUNC, attr::ALG_CRYPT]);
    let combined = attributes.has(attr::ALG_AEAD);
    refuse_if(
        !separate && !combined,
        "Missing required attribute for ESP: at least one of AUTH, AUTH_TRUNC, CRYPT, AEAD",
    )?;
    refuse_if(
        separate && combined,
        "Invalid attribute combination for ESP: AEAD can't be used with AUTH, AUTH_TRUNC, CRYPT",
    )?;
    refuse_if(
        attributes.has(attr::TFCPAD) && info.mode != mode::TUNNEL,
        "TFC padding can only be used in tunnel mode",
    )
}

fn check_comp(info: &UsersaInfo, attributes: &Attributes<'_>) -> Check {
    refuse_if(!attributes.has(attr::ALG_COMP), "Missing required attribute for COMP: COMP")?;
    let others =
        [attr::ALG_AEAD, attr::ALG_AUTH, attr::ALG_AUTH_TRUNC, attr::ALG_CRYPT, attr::TFCPAD];
    refuse_if(
        any(attributes, &others),
        "Invalid attributes for COMP: AEAD, AUTH, AUTH_TRUNC, CRYPT, TFCPAD",
    )?;
    refuse_if(info.id.spi.get() >= 0x1_0000, "SPI is too large for COMP (must be < 0x10000)")
}

fn check_mobility(attributes: &Attributes<'_>) -> Check {
    let others = [
        attr::ALG_COMP,
        attr::ALG_AUTH,
        attr::ALG_AUTH_TRUNC,
        attr::ALG_AEAD,
        attr::ALG_CRYPT,
        attr::ENCAP,
        attr::SEC_CTX,
        attr::TFCPAD,
    ];
    refuse_if(any(attributes, &others), "Invalid attributes for DSTOPTS/ROUTING")?;
    refuse_if(
        !attributes.has(attr::COADDR),
        "Missing required COADDR attribute for DSTOPTS/ROUTING",
    )
}

/// A security context says its own length twice; both must be right. Policies have them too.
pub(super) fn check_security_context(attributes: &Attributes<'_>) -> Check {
    let Some(attribute) = attributes.get(attr::SEC_CTX) else { return Ok(()) };
    let context = attribute.read::<UserSecCtx>().unwrap_or_default();
    let expected = size_of::<UserSecCtx>() + usize::from(context.ctx_len);
    refuse_if(
        usize::from(context.len) > attribute.payload.len() || usize::from(context.len) != expected,
        "Invalid security context length",
    )
}

fn check_replay(info: &UsersaInfo, attributes: &Attributes<'_>, direction: u8) -> Check {
    let Some(attribute) = attributes.get(attr::REPLAY_ESN_VAL) else {
        return refuse_if(info.flags & sa_flag::ESN != 0, "Missing required attribute for ESN");
    };
    let head = attribute.read::<ReplayStateEsn>().unwrap_or_default();
    refuse_if(head.bmp_len > REPLAY_ESN_MAX / 32, "ESN bitmap length must be <= 128")?;
    let len = attribute.payload.len();
    refuse_if(
        (len as u64) < head.wire_len() && len != size_of::<ReplayStateEsn>(),
        "ESN attribute is too short to fit the full bitmap length",
    )?;
    refuse_if(
        !matches!(info.id.proto, IPPROTO_ESP | IPPROTO_AH),
        "ESN only supported for ESP and AH",
    )?;
    refuse_if(info.replay_window != 0, "ESN not compatible with legacy replay_window")?;
    match direction {
        sa_direction::OUT => check_replay_outbound(info, &head),
        sa_direction::IN => check_replay_inbound(info, &head),
        _ => Ok(()),
    }
}

fn check_replay_outbound(info: &UsersaInfo, head: &ReplayStateEsn) -> Check {
    refuse_if(head.replay_window != 0, "Replay window should be 0 for output SA")?;
    refuse_if(
        head.seq != 0 || head.seq_hi != 0,
        "Replay seq and seq_hi should be 0 for output SA",
    )?;
    if info.flags & sa_flag::ESN == 0 {
        refuse_if(head.oseq_hi != 0, "Replay oseq_hi should be 0 in non-ESN mode for output SA")?;
        refuse_if(
            head.oseq == u32::MAX,
            "Replay oseq should be less than 0xFFFFFFFF in non-ESN mode for output SA",
        )?;
    } else {
        refuse_if(
            head.oseq == u32::MAX && head.oseq_hi == u32::MAX,
            "Replay oseq and oseq_hi should be less than 0xFFFFFFFF for output SA",
        )?;
    }
    refuse_if(head.bmp_len != 0, "Replay bmp_len should 0 for output SA")
}

fn check_replay_inbound(info: &UsersaInfo, head: &ReplayStateEsn) -> Check {
    refuse_if(
        head.oseq != 0 || head.oseq_hi != 0,
        "Replay oseq and oseq_hi should be 0 for input SA",
    )?;
    if info.flags & sa_flag::ESN == 0 {
        refuse_if(head.seq_hi != 0, "Replay seq_hi should be 0 in non-ESN mode for input SA")?;
        return refuse_if(
            head.seq == u32::MAX,
            "Replay seq should be less than 0xFFFFFFFF in non-ESN mode for input SA",
        );
    }
    refuse_if(
        head.seq == u32::MAX && head.seq_hi == u32::MAX,
        "Replay seq and seq_hi should be less than 0xFFFFFFFF for input SA",
    )
}

fn check_nat_timers(attributes: &Attributes<'_>, direction: u8) -> Check {
    let encapsulated = attributes.has(attr::ENCAP);
    if attributes.has(attr::MTIMER_THRESH) {
        refuse_if(!encapsulated, "MTIMER_THRESH attribute can only be set on ENCAP states")?;
        refuse_if(
            direction == sa_direction::OUT,
            "MTIMER_THRESH attribute should not be set on output SA",
        )?;
    }
    if attributes.has(attr::NAT_KEEPALIVE_INTERVAL) {
        refuse_if(
            direction != 0 && direction != sa_direction::OUT,
            "NAT_KEEPALIVE_INTERVAL attribute can only be set on output SA",
        )?;
        refuse_if(
            !encapsulated,
            "NAT_KEEPALIVE_INTERVAL attribute can only be set on ENCAP states",
        )?;
    }
    Ok(())
}

fn check_outbound(info: &UsersaInfo, attributes: &Attributes<'_>) -> Check {
    refuse_if(
        info.flags & sa_flag::DECAP_DSCP != 0,
        "Flag DECAP_DSCP should not be set for output SA",
    )?;
    refuse_if(info.flags & sa_flag::ICMP != 0, "Flag ICMP should not be set for output SA")?;
    refuse_if(
        info.flags & sa_flag::WILDRECV != 0,
        "Flag WILDRECV should not be set for output SA",
    )?;
    refuse_if(info.replay_window != 0, "Replay window should be 0 for output SA")?;
    let replay = attributes.read::<ReplayState>(attr::REPLAY_VAL).unwrap_or_default();
    refuse_if(
        replay.seq != 0 || replay.bitmap != 0,
        "Replay seq and bitmap should be 0 for output SA",
    )
}

fn check_inbound(info: &UsersaInfo, attributes: &Attributes<'_>) -> Check {
    refuse_if(
        info.flags & sa_flag::NOPMTUDISC != 0,
        "Flag NOPMTUDISC should not be set for input SA",
    )?;
    let extra = attributes.read::<u32>(attr::SA_EXTRA_FLAGS).unwrap_or_default();
    refuse_if(
        extra & sa_extra_flag::DONT_ENCAP_DSCP != 0,
        "Flag DONT_ENCAP_DSCP should not be set for input SA",
    )?;
    refuse_if(
        extra & sa_extra_flag::OSEQ_MAY_WRAP != 0,
        "Flag OSEQ_MAY_WRAP should not be set for input SA",
    )
}
