//! From the XFRM interface's words to the data plane's: selectors, SAs, policies, counters.
//!
//! Pure functions. What cannot be expressed exactly is made stricter, never looser: a policy that
//! asks for what the data plane does not carry becomes one that never has an SA.

use std::net::IpAddr;

use crypto::{Engine, SharedKey};
use dataplane::alarm::Alarm;
use dataplane::clock::Clock;
use dataplane::counters::UsageSnapshot;
use dataplane::encapsulation::UdpEncapsulation;
use dataplane::ledger::{Entry, Ledger};
use dataplane::policy::{Action, Direction, PolicyConfig, Template};
use dataplane::prefix::{Family, Prefix};
use dataplane::sa::{HardLimits, Mode, Sa, SaConfig, SaError, SaFlags};
use dataplane::selector::{PortMatch, Selector};
use dataplane::spd::DefaultAction;
use std::sync::Arc;
use tracing::warn;
use wire::xfrm::address::{Be16, Selector as WireSelector, family_of};
use wire::xfrm::number::{
    AF_INET, AF_INET6, IPPROTO_ESP, action, default_action, direction, mode, policy_flag,
    policy_type, sa_extra_flag, sa_flag,
};
use wire::xfrm::policy::UserTmpl;
use wire::xfrm::replay::Stats;

use crate::xfrm::{PolicyRecord, SaCounters, SaRecord};

/// Length of the salt at the end of the keying material (RFC 4106 §8.1).
const SALT_LEN: usize = 4;

/// A selector of the interface; `None` if it has no family and therefore selects everything.
pub fn selector(wire: &WireSelector) -> Option<Selector> {
    let family = match wire.family {
        AF_INET => Family::V4,
        AF_INET6 => Family::V6,
        _ => return None,
    };
    let prefix = |address: wire::xfrm::address::Address, len: u8| {
        let address = address.ip(wire.family)?;
        Prefix::new(address, len.min(family.bits()))
    };
    Some(Selector {
        source: prefix(wire.saddr, wire.prefixlen_s)?,
        destination: prefix(wire.daddr, wire.prefixlen_d)?,
        protocol: wire.proto,
        source_port: PortMatch { port: wire.sport.get(), mask: wire.sport_mask.get() },
        destination_port: PortMatch { port: wire.dport.get(), mask: wire.dport_mask.get() },
    })
}

/// A selector in the interface's words.
pub fn wire_selector(selector: &Selector) -> WireSelector {
    let Selector { source, destination, protocol, source_port, destination_port } = selector;
    WireSelector {
        saddr: source.address().into(),
        prefixlen_s: source.len(),
        daddr: destination.address().into(),
        prefixlen_d: destination.len(),
        family: family_of(source.address()),
        proto: *protocol,
        sport: Be16::new(source_port.port),
        sport_mask: Be16::new(source_port.mask),
        dport: Be16::new(destination_port.port),
        dport_mask: Be16::new(destination_port.mask),
        ..WireSelector::default()
    }
}

/// Where an SA's numbers are.
pub enum Home<'a> {
    /// In a new entry: of the ledger, if there is one, else in memory.
    New(Option<&'a Ledger>),
    /// Where an earlier process left them.
    Left(Entry),
}

/// An SA, with its key expanded; the reason when the data plane cannot have it.
pub fn sa(record: &SaRecord, engine: Engine, clock: &Clock, home: Home<'_>) -> Result<Sa, String> {
    let material = record.aead.key.expose();
    let (key, salt) = material.split_last_chunk::<SALT_LEN>().ok_or("the key has no salt")?;
    let key = SharedKey::new(engine, key).map_err(|error| error.to_string())?;
    let parameters = &record.parameters;
    let info = &parameters.info;
    let flag = |bit: u8| info.flags & bit != 0;
    let config = SaConfig {
        spi: parameters.spi(),
        mode: mode(info.mode).ok_or("the mode is not carried")?,
        source: parameters.source(),
        destination: parameters.destination(),
        reqid: info.reqid,
        if_id: parameters.if_id,
        key,
        salt: *salt,
        extended_sequence: record.esn(),
        replay_window: record.replay_window(),
        selector: selector(&info.sel),
        flags: SaFlags {
            no_ecn: flag(sa_flag::NOECN),
            decap_dscp: flag(sa_flag::DECAP_DSCP),
            dont_encap_dscp: parameters.extra_flags & sa_extra_flag::DONT_ENCAP_DSCP != 0,
            no_pmtu_discovery: flag(sa_flag::NOPMTUDISC),
        },
        encapsulation: encapsulation(record),
        limits: limits(record),
        sent: record.replay.output_sequence(),
        received: record.replay.input_sequence(),
        // Of a window that nothing came to there is nothing to say.
        received_bitmap: (record.replay.input_sequence() != 0).then(|| by_number(record)),
        added_ns: clock.now_ns(),
    };
    let sa = match home {
        Home::Left(entry) => Sa::resume(config, entry),
        Home::New(None) => Sa::new(config),
        Home::New(Some(ledger)) => match Sa::new_in(config.clone(), ledger) {
            Err(SaError::Ledger(reason)) => {
                warn!(spi = config.spi, %reason, "an SA will end with this process");
                Sa::new(config)
            }
            other => other,
        },
    };
    sa.map_err(|error| error.to_string())
}

/// Its UDP ports (RFC 3948).
pub fn encapsulation(record: &SaRecord) -> Option<UdpEncapsulation> {
    record.parameters.encapsulation.map(|wire| UdpEncapsulation {
        source_port: wire.encap_sport.get(),
        destination_port: wire.encap_dport.get(),
    })
}

/// The limits that the data plane enforces.
pub fn limits(record: &SaRecord) -> HardLimits {
    let lifetime = &record.parameters.info.lft;
    HardLimits { packets: lifetime.hard_packet_limit, bytes: lifetime.hard_byte_limit }
}

/// What the data plane is to tell of an SA's limits; the kernel's "infinite" is all ones.
pub fn alarm(record: &SaRecord) -> Option<Alarm> {
    let lifetime = &record.parameters.info.lft;
    let soft = (lifetime.soft_packet_limit, lifetime.soft_byte_limit);
    let hard = (lifetime.hard_packet_limit, lifetime.hard_byte_limit);
    lifetime.counts_traffic().then(|| Alarm::new(record.id.0, soft, hard))
}

/// Whether packets, which carry no mark here, can use it.
pub fn applies_to_packets(mark: wire::xfrm::address::Mark) -> bool {
    mark.accepts(0)
}

/// What a policy asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Nothing: bypass or discard.
    Nothing,
    /// One SA that the data plane can carry.
    Sa(Template),
    /// Something that it cannot carry; such a policy never finds an SA, and no packet came through the one that it asks for.
    Impossible,
}

/// What a policy's templates ask for.
pub fn wanted(record: &PolicyRecord) -> Wanted {
    match record.templates.as_slice() {
        _ if record.action == action::BLOCK => Wanted::Nothing,
        [] => Wanted::Nothing,
        [only] => {
            // A selector applies on every port here. What is for one interface alone would also be sealed where it
            // leaves by another, for a peer that it is not meant for.
            let on_one_interface = record.selector.ifindex != 0;
            let carried = only.id.proto == IPPROTO_ESP && mode(only.mode).is_some();
            let possible = carried && !on_one_interface;
            match template(only) {
                Some(template) if possible => Wanted::Sa(template),
                _ => Wanted::Impossible,
            }
        }
        _ => Wanted::Impossible,
    }
}

/// A template that no SA meets: SPI 0 is "any", so the impossible one is reserved (RFC 4303 §2.1).
fn never() -> Template {
    let nowhere = IpAddr::from([255, 255, 255, 255]);
    Template {
        mode: Mode::Tunnel,
        source: nowhere,
        destination: nowhere,
        spi: 1,
        reqid: u32::MAX,
        optional: false,
    }
}

/// The modes that the data plane carries.
fn mode(wire: u8) -> Option<Mode> {
    match wire {
        mode::TUNNEL => Some(Mode::Tunnel),
        mode::TRANSPORT => Some(Mode::Transport),
        _ => None,
    }
}

fn template(wire: &UserTmpl) -> Option<Template> {
    Some(Template {
        mode: mode(wire.mode).unwrap_or_default(),
        source: wire.saddr.ip(wire.family)?,
        destination: wire.id.daddr.ip(wire.family)?,
        spi: wire.id.spi.get(),
        reqid: wire.reqid,
        optional: wire.optional != 0,
    })
}

/// Whether a policy is for packets, and not a socket's, of another type than main, or for packets with a mark,
/// which none has.
pub fn is_for_packets(record: &PolicyRecord) -> bool {
    record.kind == policy_type::MAIN && applies_to_packets(record.mark)
}

/// A policy; `None` if it is not [for packets](is_for_packets).
pub fn policy(record: &PolicyRecord, wanted: Wanted, bundle: Option<u32>) -> Option<PolicyConfig> {
    if !is_for_packets(record) {
        return None;
    }
    // On every port a block is stricter than on one, and a bypass is not.
    let on_one_interface = record.selector.ifindex != 0;
    if on_one_interface && wanted == Wanted::Nothing && record.action != action::BLOCK {
        return None;
    }
    let action = match wanted {
        Wanted::Nothing if record.action == action::BLOCK => Action::Discard,
        Wanted::Nothing => Action::Bypass,
        Wanted::Sa(template) => Action::Protect { template, bundle },
        Wanted::Impossible => Action::Protect { template: never(), bundle: None },
    };
    Some(PolicyConfig {
        index: record.index,
        direction: self::direction(record.direction)?,
        selector: selector(&record.selector)?,
        priority: record.priority,
        position: record.order,
        action,
        if_id: record.if_id,
        own_sas: record.flags & policy_flag::CPU_ACQUIRE != 0,
    })
}

/// The direction of a policy.
pub fn direction(wire: u8) -> Option<Direction> {
    match wire {
        direction::IN => Some(Direction::In),
        direction::OUT => Some(Direction::Out),
        direction::FWD => Some(Direction::Forward),
        _ => None,
    }
}

/// What happens where no policy matches.
pub fn default_of(wire: u8) -> DefaultAction {
    match wire {
        default_action::BLOCK => DefaultAction::Block,
        _ => DefaultAction::Accept,
    }
}

/// The data plane's figures of an SA in the interface's form.
pub fn counters(sa: &Sa, clock: &Clock) -> SaCounters {
    let stats = sa.stats();
    SaCounters {
        use_time: clock.unix_seconds(stats.usage.first_use_ns).unwrap_or(0),
        last_used: clock.unix_seconds(stats.usage.last_use_ns).unwrap_or(0),
        output_sequence: stats.sent,
        input_sequence: stats.received,
        received: since_newest(&stats.replay_bitmap, sa.replay().window(), stats.received),
        stats: Stats {
            replay_window: saturated(stats.replay_old),
            replay: saturated(stats.replayed),
            integrity_failed: saturated(stats.integrity_failed),
        },
        ..traffic(&stats.usage)
    }
}

/// What of it the limits of an SA are about.
pub fn traffic(usage: &UsageSnapshot) -> SaCounters {
    SaCounters {
        bytes: usage.bytes,
        packets: usage.packets,
        total_bytes: usage.bytes,
        total_packets: usage.packets,
        ..SaCounters::default()
    }
}

fn saturated(count: u64) -> u32 {
    count.try_into().unwrap_or(u32::MAX)
}

/// The window that the interface was given, laid out by number.
fn by_number(record: &SaRecord) -> Arc<[u32]> {
    let (window, newest) = (record.replay_window(), record.replay.input_sequence());
    let mut words = vec![0u32; window.div_ceil(32) as usize];
    for back in (0..window).filter(|back| record.replay.was_received(*back)) {
        if let Some(number) = newest.checked_sub(u64::from(back) + 1) {
            let position = number % u64::from(window);
            words[position as usize / 32] |= 1 << (position % 32);
        }
    }
    words.into()
}

/// A window laid out by number (number *n* is bit (*n* − 1) mod window) as one laid out from the
/// newest number backwards.
fn since_newest(bitmap: &[u32], window: u32, newest: u64) -> Vec<u64> {
    let mut words = vec![0u64; window.div_ceil(64) as usize];
    for back in 0..u64::from(window).min(newest) {
        let position = (newest - back - 1) % u64::from(window);
        let word = bitmap.get(position as usize / 32).copied().unwrap_or(0);
        if word >> (position % 32) & 1 != 0 {
            words[back as usize / 64] |= 1 << (back % 64);
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_the_same_seen_from_its_newest_number() {
        // Window of 32, numbers 40, 39 and 10 received: bits 7, 6 and 9.
        let bitmap = [1 << 7 | 1 << 6 | 1 << 9];
        assert_eq!(since_newest(&bitmap, 32, 40), [0b11 | 1 << 30]);
        assert_eq!(since_newest(&[0b111], 64, 3), [0b111]);
        assert!(since_newest(&[], 0, 9).is_empty());
    }

    #[test]
    fn selectors_come_back_from_the_wire_as_they_went() {
        let v4 = Selector {
            protocol: 17,
            source_port: PortMatch { port: 0x1200, mask: 0xff00 },
            destination_port: PortMatch::exactly(53),
            source: Prefix::new([10, 1, 0, 0].into(), 16).unwrap(),
            ..Selector::any(Family::V4)
        };
        for one in [v4, Selector::any(Family::V4), Selector::any(Family::V6)] {
            assert_eq!(selector(&wire_selector(&one)), Some(one));
        }
    }

    #[test]
    fn several_templates_and_those_for_an_interface_never_find_an_sa() {
        let mut sound = UserTmpl { family: AF_INET, mode: mode::TUNNEL, ..UserTmpl::default() };
        sound.id.proto = IPPROTO_ESP;
        let record = PolicyRecord {
            id: crate::xfrm::PolicyId(1),
            index: 9,
            kind: policy_type::MAIN,
            direction: direction::OUT,
            selector: WireSelector { family: AF_INET, ..WireSelector::default() },
            priority: 0,
            order: 0,
            action: action::ALLOW,
            flags: 0,
            limits: Default::default(),
            mark: Default::default(),
            if_id: 0,
            templates: vec![UserTmpl::default(); 2],
        };
        let wanted = wanted(&record);
        assert_eq!(wanted, Wanted::Impossible);
        let config = policy(&record, wanted, Some(3)).unwrap();
        assert!(matches!(config.action, Action::Protect { bundle: None, .. }), "fails closed");
        let mut one = PolicyRecord { templates: vec![sound], ..record.clone() };
        assert!(matches!(super::wanted(&one), Wanted::Sa(_)));
        one.selector.ifindex = 2;
        // In transport mode packets find SAs by their own ends, and inbound the template alone is asked.
        for mode in [mode::TUNNEL, mode::TRANSPORT] {
            one.templates[0].mode = mode;
            let config = policy(&one, super::wanted(&one), Some(3)).unwrap();
            let nothing = Action::Protect { template: never(), bundle: None };
            assert_eq!(config.action, nothing, "not by every port");
        }
        let marked = PolicyRecord { mark: wire::xfrm::address::Mark { v: 1, m: 1 }, ..record };
        assert!(policy(&marked, Wanted::Nothing, None).is_none(), "no packet carries a mark");
    }
}
