//! Messages about SAs and policies as they go out: replies, dump entries and events.
//!
//! One function per message. The order of attributes is the kernel's.

use std::net::IpAddr;

use wire::xfrm::Builder;
use wire::xfrm::address::{Be16, Mark};
use wire::xfrm::algorithm::{AlgorithmAead, Name};
use wire::xfrm::event::{UserAcquire, UserExpire, UserMapping, UserPolexpire};
use wire::xfrm::lifetime::LifetimeCurrent;
use wire::xfrm::netlink::Header;
use wire::xfrm::number::{ae, attr, msg};
use wire::xfrm::policy::{UserMigrate, UserTmpl, UserpolicyId, UserpolicyInfo, UserpolicyType};
use wire::xfrm::replay::Stats;
use wire::xfrm::sa::{AeventId, EncapTmpl, UsersaFlush, UsersaId, UsersaInfo};
use zerocopy::IntoBytes;

use super::counters::Counters;
use super::policy::{Policy, PolicyRecord};
use super::replay::ReplayValue;
use super::sa::{Sa, SaId, SaParameters, TICKS_PER_SECOND};
use super::secret::Bytes;

/// One message in memory that is wiped.
fn message(header: Header, build: impl FnOnce(Builder<'_>) -> Builder<'_>) -> Bytes {
    let mut bytes = Bytes::for_reply();
    build(Builder::new(bytes.vec(), header)).finish();
    bytes
}

fn nonzero(value: u32) -> Option<u32> {
    (value != 0).then_some(value)
}

fn set(mark: Mark) -> Option<Mark> {
    mark.is_set().then_some(mark)
}

/// An SA at a moment.
pub(super) struct SaView<'a> {
    sa: &'a Sa,
    usage: LifetimeCurrent,
    stats: Stats,
    last_used: u64,
    replay: ReplayValue,
}

impl<'a> SaView<'a> {
    /// With the data plane's figures.
    pub(super) fn new(id: SaId, sa: &'a Sa, counters: &dyn Counters) -> Self {
        // A larval SA has no traffic; not asking spares the data plane a miss.
        let live = if sa.is_larval() { None } else { counters.sa(id) };
        Self {
            usage: sa.usage(live.as_ref()),
            replay: sa.replay(live.as_ref()),
            stats: live.as_ref().map(|live| live.stats).unwrap_or_default(),
            last_used: live.as_ref().map(|live| live.last_used).unwrap_or_default(),
            sa,
        }
    }

    /// Without them.
    pub(super) fn unused(sa: &'a Sa) -> Self {
        Self { usage: sa.base, replay: sa.replay(None), stats: Stats::default(), last_used: 0, sa }
    }

    /// With the sequence numbers that were set rather than the data plane's, which will follow.
    pub(super) fn with_stored_numbers(self) -> Self {
        Self { replay: self.sa.replay(None), ..self }
    }

    fn parameters(&self) -> &SaParameters {
        self.sa.parameters()
    }

    fn info(&self) -> UsersaInfo {
        UsersaInfo { curlft: self.usage, stats: self.stats, ..self.parameters().info }
    }

    fn id(&self) -> UsersaId {
        let info = &self.parameters().info;
        UsersaId {
            daddr: info.id.daddr,
            spi: info.id.spi,
            family: info.family,
            proto: info.id.proto,
            pad: 0,
        }
    }

    fn write_attributes<'b>(&self, message: Builder<'b>) -> Builder<'b> {
        let parameters = self.parameters();
        let output_mark = set(parameters.output_mark);
        let mut message = message
            .attribute_if(attr::SA_EXTRA_FLAGS, nonzero(parameters.extra_flags))
            .attribute_if(attr::COADDR, parameters.care_of)
            .attribute_if(attr::LASTUSED, (self.last_used != 0).then_some(self.last_used));
        if let Some(record) = self.sa.record() {
            let head = AlgorithmAead {
                name: Name::new(record.aead.name),
                key_len: record.aead.key_bits,
                icv_len: record.aead.icv_bits,
            };
            let key = record.aead.key.expose();
            message = message.attribute_parts(attr::ALG_AEAD, &[head.as_bytes(), key]);
        }
        message = message
            .attribute_if(attr::ENCAP, parameters.encapsulation)
            .attribute_if(attr::TFCPAD, nonzero(parameters.tfc_padding))
            .attribute_if(attr::MARK, set(parameters.mark))
            .attribute_if(attr::SET_MARK, output_mark.map(|mark| mark.v))
            .attribute_if(attr::SET_MARK_MASK, output_mark.map(|mark| mark.m));
        self.replay
            .write(message)
            .attribute_if(attr::IF_ID, nonzero(parameters.if_id))
            .attribute_if(attr::MTIMER_THRESH, nonzero(parameters.mapping_max_age_s))
            .attribute_if(attr::SA_DIR, parameters.direction.map(super::sa::Direction::to_wire))
            .attribute_if(attr::SA_PCPU, parameters.cpu)
    }
}

/// NEWSA as an answer or a dump entry, appended to `out`.
pub(super) fn write_sa(out: &mut Vec<u8>, header: Header, view: &SaView<'_>) {
    view.write_attributes(Builder::new(out, header).fixed(&view.info())).finish();
}

/// NEWSA as an answer.
pub(super) fn sa(header: Header, view: &SaView<'_>) -> Bytes {
    message(header, |message| view.write_attributes(message.fixed(&view.info())))
}

/// NEWSA, UPDSA or DELSA as an event.
pub(super) fn sa_event(header: Header, view: &SaView<'_>) -> Bytes {
    if header.kind != msg::DELSA {
        return sa(header, view);
    }
    message(header, |message| {
        view.write_attributes(message.fixed(&view.id()).attribute(attr::SA, &view.info()))
    })
}

/// FLUSHSA as an event.
pub(super) fn sa_flushed(header: Header, proto: u8) -> Bytes {
    message(header, |message| message.fixed(&UsersaFlush { proto }))
}

/// EXPIRE.
pub(super) fn sa_expired(header: Header, view: &SaView<'_>, hard: bool) -> Bytes {
    let parameters = view.parameters();
    let body = UserExpire { state: view.info(), hard: hard.into(), pad: [0; 7] };
    message(header, |message| {
        message
            .fixed(&body)
            .attribute_if(attr::MARK, set(parameters.mark))
            .attribute_if(attr::IF_ID, nonzero(parameters.if_id))
            .attribute_if(attr::SA_PCPU, parameters.cpu)
            .attribute_if(attr::SA_DIR, parameters.direction.map(super::sa::Direction::to_wire))
    })
}

/// MAPPING.
pub(super) fn mapping(parameters: &SaParameters, source: IpAddr, port: u16) -> Bytes {
    let info = &parameters.info;
    let old_sport = parameters.encapsulation.map_or(Be16::new(0), |encap| encap.encap_sport);
    let body = UserMapping {
        id: UsersaId {
            daddr: info.id.daddr,
            spi: info.id.spi,
            family: info.family,
            proto: info.id.proto,
            pad: 0,
        },
        reqid: info.reqid,
        old_saddr: info.saddr,
        new_saddr: source.into(),
        old_sport,
        new_sport: Be16::new(port),
    };
    let header = Header { kind: msg::MAPPING, ..Header::default() };
    message(header, |message| message.fixed(&body))
}

/// NEWAE as an answer or an event.
pub(super) fn aevent(header: Header, view: &SaView<'_>, flags: u32) -> Bytes {
    let parameters = view.parameters();
    let thresholds = view.sa.thresholds;
    // In tenths of a second; the kernel multiplies in 32 bits first.
    let tenths = thresholds.ticks.wrapping_mul(10) / TICKS_PER_SECOND;
    let body = AeventId {
        sa_id: view.id(),
        saddr: parameters.info.saddr,
        flags,
        reqid: parameters.info.reqid,
    };
    message(header, |message| {
        view.replay
            .write(message.fixed(&body))
            .attribute(attr::LTIME_VAL, &view.usage)
            .attribute_if(
                attr::REPLAY_THRESH,
                (flags & ae::RTHR != 0).then_some(thresholds.packets),
            )
            .attribute_if(attr::ETIMER_THRESH, (flags & ae::ETHR != 0).then_some(tenths))
            .attribute_if(attr::MARK, set(parameters.mark))
            .attribute_if(attr::IF_ID, nonzero(parameters.if_id))
            .attribute_if(attr::SA_PCPU, parameters.cpu)
            .attribute_if(attr::SA_DIR, parameters.direction.map(super::sa::Direction::to_wire))
    })
}

fn write_templates<'a>(message: Builder<'a>, templates: &[UserTmpl]) -> Builder<'a> {
    if templates.is_empty() {
        return message;
    }
    message.attribute(attr::TMPL, templates)
}

fn write_policy_attributes<'a>(message: Builder<'a>, policy: &PolicyRecord) -> Builder<'a> {
    let kind = UserpolicyType { kind: policy.kind, ..UserpolicyType::default() };
    write_templates(message, &policy.templates)
        .attribute(attr::POLICY_TYPE, &kind)
        .attribute_if(attr::MARK, set(policy.mark))
        .attribute_if(attr::IF_ID, nonzero(policy.if_id))
}

/// NEWPOLICY as a dump entry, appended to `out`.
pub(super) fn write_policy(
    out: &mut Vec<u8>,
    header: Header,
    policy: &Policy,
    info: &UserpolicyInfo,
) {
    write_policy_attributes(Builder::new(out, header).fixed(info), &policy.record).finish();
}

/// NEWPOLICY, UPDPOLICY or DELPOLICY. `by_index`: the deletion named the policy by its index.
pub(super) fn policy(
    header: Header,
    policy: &Policy,
    info: &UserpolicyInfo,
    by_index: bool,
) -> Bytes {
    message(header, |message| {
        let message = if header.kind == msg::DELPOLICY {
            let mut id = UserpolicyId { dir: info.dir, ..UserpolicyId::default() };
            if by_index {
                id.index = info.index;
            } else {
                id.sel = info.sel;
            }
            message.fixed(&id).attribute(attr::POLICY, info)
        } else {
            message.fixed(info)
        };
        write_policy_attributes(message, &policy.record)
    })
}

/// FLUSHPOLICY as an event.
pub(super) fn policies_flushed(header: Header, kind: u8) -> Bytes {
    let kind = UserpolicyType { kind, ..UserpolicyType::default() };
    message(header, |message| message.attribute(attr::POLICY_TYPE, &kind))
}

/// POLEXPIRE.
pub(super) fn policy_expired(
    header: Header,
    policy: &Policy,
    info: &UserpolicyInfo,
    hard: bool,
) -> Bytes {
    let body = UserPolexpire { pol: *info, hard: hard.into(), pad: [0; 7] };
    message(header, |message| write_policy_attributes(message.fixed(&body), &policy.record))
}

/// MIGRATE: the policy `named` has other ends now. Where the peer's IKE daemon is, and the SAs'
/// encapsulation, are as the request said.
pub(super) fn migrated(
    named: &UserpolicyId,
    kind: u8,
    entries: &[UserMigrate],
    (address, encapsulation): (Option<&[u8]>, Option<EncapTmpl>),
) -> Bytes {
    let header = Header { kind: msg::MIGRATE, ..Header::default() };
    let body = UserpolicyId { sel: named.sel, dir: named.dir, ..UserpolicyId::default() };
    let kind = UserpolicyType { kind, ..UserpolicyType::default() };
    message(header, |message| {
        let mut message = message.fixed(&body);
        if let Some(address) = address {
            message = message.attribute_parts(attr::KMADDRESS, &[address]);
        }
        message =
            message.attribute_if(attr::ENCAP, encapsulation).attribute(attr::POLICY_TYPE, &kind);
        for entry in entries {
            message = message.attribute(attr::MIGRATE, &UserMigrate { reserved: 0, ..*entry });
        }
        message
    })
}

/// ACQUIRE. `cpu`: the worker that wants an SA of its own (RFC 9611).
pub(super) fn acquire(body: &UserAcquire, policy: &PolicyRecord, cpu: Option<u32>) -> Bytes {
    let header = Header { kind: msg::ACQUIRE, ..Header::default() };
    message(header, |message| {
        write_policy_attributes(message.fixed(body), policy).attribute_if(attr::SA_PCPU, cpu)
    })
}
