//! SAs and policies as the tables keep them: packed (`packed.rs`). 100 000 of them are looked at one at a time, so
//! they are made small rather than quick to look at; what works with one works on the whole thing
//! ([`Sa`], [`Policy`]), which is made when it is asked for.
//!
//! Whatever is in here can be had back exactly. An SA's bytes hold its key; the [shelf](crate::roster::shelf) where they are
//! kept wipes them when they are replaced or dropped.

use std::sync::{Arc, LazyLock};

use wire::xfrm::address::{Address, Id, Mark, Selector};
use wire::xfrm::lifetime::{LifetimeConfig, LifetimeCurrent};
use wire::xfrm::number::{AF_INET, IPPROTO_ESP, mode};
use wire::xfrm::policy::UserTmpl;
use wire::xfrm::replay::{ReplayState, ReplayStateEsn};
use wire::xfrm::sa::{EncapTmpl, UsersaInfo};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};
use zeroize::Zeroizing;

use super::algorithm::RFC4106;
use super::packed::{pack, unpack};
use super::policy::{Policy, PolicyId, PolicyRecord};
use super::replay::ReplayValue;
use super::sa::{Aead, AeventThresholds, Body, Direction, Sa, SaId, SaParameters, SaRecord};
use super::secret::Key;

/// Bits of [`FlatSa::flags`] and [`FlatPolicy::flags`].
mod flag {
    pub(super) const VALID: u16 = 1;
    pub(super) const DYING: u16 = 2;
    pub(super) const SOFT_LEFT: u16 = 4;
    pub(super) const DEADLINE: u16 = 8;
    pub(super) const ANNOUNCED: u16 = 16;
    pub(super) const NUMBERS_READ: u16 = 32;
    pub(super) const CPU: u16 = 64;
    pub(super) const CARE_OF: u16 = 128;
    pub(super) const ENCAPSULATION: u16 = 256;
    pub(super) const WIDE: u16 = 512;
    /// The window's bitmap is behind the key; it has nothing but zeros otherwise.
    pub(super) const BITMAP: u16 = 1024;
}

/// All of an SA that has a fixed size.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct FlatSa {
    info: UsersaInfo,
    base: LifetimeCurrent,
    soft_left_s: u64,
    deadline: u64,
    announced_at: u64,
    numbers_read: u64,
    window: ReplayStateEsn,
    legacy: ReplayState,
    mark: Mark,
    output_mark: Mark,
    if_id: u32,
    extra_flags: u32,
    tfc_padding: u32,
    mapping_max_age_s: u32,
    cpu: u32,
    key_bits: u32,
    icv_bits: u32,
    care_of: Address,
    encapsulation: EncapTmpl,
    thresholds: [u32; 2],
    announced_port: u16,
    flags: u16,
    key_len: u16,
    direction: u8,
    pad: u8,
}

/// All of a policy that has a fixed size.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct FlatPolicy {
    selector: Selector,
    limits: LifetimeConfig,
    add_time: u64,
    deadline: u64,
    order: u64,
    mark: Mark,
    index: u32,
    priority: u32,
    if_id: u32,
    kind: u8,
    direction: u8,
    action: u8,
    policy_flags: u8,
    flags: u16,
    templates: u16,
    pad: u32,
}

/// A packed SA.
#[derive(Clone, Copy)]
pub(super) struct StoredSa<'a>(pub(super) &'a [u8]);

/// A packed policy.
#[derive(Clone, Copy)]
pub(super) struct StoredPolicy<'a>(pub(super) &'a [u8]);

fn bit(on: bool, bit: u16) -> u16 {
    if on { bit } else { 0 }
}

/// Room for packed bytes of fixed size, none of which is a key, at their longest; a policy may have several
/// templates, and then takes more.
const PACKED_MAX: usize = size_of::<FlatSa>() + size_of::<FlatSa>().div_ceil(32);

/// What SAs are kept as the difference from: a tunnel over IPv4 with AES-256-GCM and no limits.
static USUAL_SA: LazyLock<FlatSa> = LazyLock::new(|| {
    let thresholds = AeventThresholds::default();
    FlatSa {
        info: UsersaInfo {
            id: Id { proto: IPPROTO_ESP, ..Id::default() },
            family: AF_INET,
            mode: mode::TUNNEL,
            ..UsersaInfo::default()
        },
        key_bits: USUAL_KEY_BITS.into(),
        icv_bits: 128,
        key_len: USUAL_KEY_BITS / 8,
        thresholds: [thresholds.packets, thresholds.ticks],
        ..FlatSa::new_zeroed()
    }
});

/// With the salt.
const USUAL_KEY_BITS: u16 = 256 + 32;

/// The same of policies: between networks, with one template and no limits.
static USUAL_POLICY: LazyLock<FlatPolicy> = LazyLock::new(|| FlatPolicy {
    selector: Selector { family: AF_INET, ..Selector::default() },
    limits: LifetimeConfig::UNLIMITED,
    templates: 1,
    ..FlatPolicy::new_zeroed()
});

/// The same of templates: a tunnel over IPv4 with any algorithm.
static USUAL_TEMPLATE: LazyLock<UserTmpl> = LazyLock::new(|| UserTmpl {
    id: Id { proto: IPPROTO_ESP, ..Id::default() },
    family: AF_INET,
    mode: mode::TUNNEL,
    aalgos: u32::MAX,
    ealgos: u32::MAX,
    calgos: u32::MAX,
    ..UserTmpl::default()
});

impl StoredSa<'_> {
    /// The bytes of an SA.
    pub(super) fn pack(sa: &Sa) -> Zeroizing<Vec<u8>> {
        let mut flat = flat_of(sa);
        let (mut key, mut bitmap): (&[u8], &[u32]) = (&[], &[]);
        if let Body::Valid(record) = &sa.body {
            key = record.aead.key.expose();
            flat.key_len = key.len() as u16;
            if let ReplayValue::Wide { bitmap: words, .. } = &record.replay
                && words.iter().any(|word| *word != 0)
            {
                flat.flags |= flag::BITMAP;
                bitmap = words;
            }
        }
        let mut packed = Vec::with_capacity(PACKED_MAX);
        pack(flat.as_bytes(), USUAL_SA.as_bytes(), &mut packed);
        // With all its room at once, so that no key stays behind where it was before.
        let len = packed.len() + key.len() + size_of_val(bitmap);
        let mut bytes = Zeroizing::new(Vec::with_capacity(len));
        bytes.extend_from_slice(&packed);
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(bitmap.as_bytes());
        bytes
    }

    /// What it is found by, without its key: what it is in the interface's words, and its mark.
    pub(super) fn outline(&self) -> (UsersaInfo, Mark) {
        let mut flat = *USUAL_SA;
        unpack(self.0, flat.as_mut_bytes());
        (flat.info, flat.mark)
    }

    /// The SA, which is called `id`.
    pub(super) fn open(&self, id: SaId) -> Sa {
        let mut flat = *USUAL_SA;
        let rest = unpack(self.0, flat.as_mut_bytes()).unwrap_or_default();
        let (key, words) = rest.split_at_checked(flat.key_len.into()).unwrap_or_default();
        let has = |bit: u16| flat.flags & bit != 0;
        let parameters = parameters_of(&flat);
        let body = if has(flag::VALID) {
            let replay = if has(flag::WIDE) {
                let mut bitmap = vec![0u32; flat.window.bmp_len as usize].into_boxed_slice();
                if has(flag::BITMAP) && words.len() == size_of_val(&*bitmap) {
                    bitmap.as_mut_bytes().copy_from_slice(words);
                }
                ReplayValue::Wide { head: flat.window, bitmap }
            } else {
                ReplayValue::Legacy(flat.legacy)
            };
            let aead = Aead {
                name: RFC4106,
                key_bits: flat.key_bits,
                icv_bits: flat.icv_bits,
                key: Key::new(key),
            };
            Body::Valid(Arc::new(SaRecord { id, parameters, aead, replay }))
        } else {
            Body::Larval(Box::new(parameters))
        };
        Sa {
            body,
            base: flat.base,
            dying: has(flag::DYING),
            soft_left_s: has(flag::SOFT_LEFT).then_some(flat.soft_left_s),
            deadline: has(flag::DEADLINE).then_some(flat.deadline),
            thresholds: AeventThresholds { packets: flat.thresholds[0], ticks: flat.thresholds[1] },
            announced: has(flag::ANNOUNCED).then_some((flat.announced_port, flat.announced_at)),
            numbers_read: has(flag::NUMBERS_READ).then_some(flat.numbers_read),
        }
    }
}

fn flat_of(sa: &Sa) -> FlatSa {
    let parameters = sa.parameters();
    let mut flat = FlatSa {
        info: parameters.info,
        base: sa.base,
        soft_left_s: sa.soft_left_s.unwrap_or(0),
        deadline: sa.deadline.unwrap_or(0),
        announced_at: sa.announced.map_or(0, |(_, at)| at),
        announced_port: sa.announced.map_or(0, |(port, _)| port),
        numbers_read: sa.numbers_read.unwrap_or(0),
        mark: parameters.mark,
        output_mark: parameters.output_mark,
        if_id: parameters.if_id,
        extra_flags: parameters.extra_flags,
        tfc_padding: parameters.tfc_padding,
        mapping_max_age_s: parameters.mapping_max_age_s,
        cpu: parameters.cpu.unwrap_or(0),
        care_of: parameters.care_of.unwrap_or_default(),
        encapsulation: parameters.encapsulation.unwrap_or_default(),
        thresholds: [sa.thresholds.packets, sa.thresholds.ticks],
        direction: parameters.direction.map_or(0, Direction::to_wire),
        flags: bit(!sa.is_larval(), flag::VALID)
            | bit(sa.dying, flag::DYING)
            | bit(sa.soft_left_s.is_some(), flag::SOFT_LEFT)
            | bit(sa.deadline.is_some(), flag::DEADLINE)
            | bit(sa.announced.is_some(), flag::ANNOUNCED)
            | bit(sa.numbers_read.is_some(), flag::NUMBERS_READ)
            | bit(parameters.cpu.is_some(), flag::CPU)
            | bit(parameters.care_of.is_some(), flag::CARE_OF)
            | bit(parameters.encapsulation.is_some(), flag::ENCAPSULATION),
        ..FlatSa::new_zeroed()
    };
    if let Body::Valid(record) = &sa.body {
        (flat.key_bits, flat.icv_bits) = (record.aead.key_bits, record.aead.icv_bits);
        match &record.replay {
            ReplayValue::Legacy(state) => flat.legacy = *state,
            ReplayValue::Wide { head, .. } => {
                flat.window = *head;
                flat.flags |= flag::WIDE;
            }
        }
    }
    flat
}

fn parameters_of(flat: &FlatSa) -> SaParameters {
    let has = |bit: u16| flat.flags & bit != 0;
    SaParameters {
        info: flat.info,
        mark: flat.mark,
        output_mark: flat.output_mark,
        if_id: flat.if_id,
        extra_flags: flat.extra_flags,
        tfc_padding: flat.tfc_padding,
        direction: Direction::from_wire(flat.direction),
        cpu: has(flag::CPU).then_some(flat.cpu),
        care_of: has(flag::CARE_OF).then_some(flat.care_of),
        encapsulation: has(flag::ENCAPSULATION).then_some(flat.encapsulation),
        mapping_max_age_s: flat.mapping_max_age_s,
    }
}

impl StoredPolicy<'_> {
    /// The bytes of a policy.
    pub(super) fn pack(policy: &Policy) -> Vec<u8> {
        let record = &*policy.record;
        let flat = FlatPolicy {
            selector: record.selector,
            limits: record.limits,
            add_time: policy.add_time,
            deadline: policy.deadline.unwrap_or(0),
            order: record.order,
            mark: record.mark,
            index: record.index,
            priority: record.priority,
            if_id: record.if_id,
            kind: record.kind,
            direction: record.direction,
            action: record.action,
            policy_flags: record.flags,
            flags: bit(policy.deadline.is_some(), flag::DEADLINE),
            templates: record.templates.len() as u16,
            pad: 0,
        };
        let mut packed = Vec::with_capacity(PACKED_MAX);
        pack(flat.as_bytes(), USUAL_POLICY.as_bytes(), &mut packed);
        for template in &record.templates {
            pack(template.as_bytes(), USUAL_TEMPLATE.as_bytes(), &mut packed);
        }
        packed
    }

    /// The policy, which is called `id`.
    pub(super) fn open(&self, id: PolicyId) -> Policy {
        let mut flat = *USUAL_POLICY;
        let mut rest = unpack(self.0, flat.as_mut_bytes()).unwrap_or_default();
        let mut templates = vec![*USUAL_TEMPLATE; flat.templates.into()];
        for template in &mut templates {
            rest = unpack(rest, template.as_mut_bytes()).unwrap_or_default();
        }
        let record = PolicyRecord {
            id,
            index: flat.index,
            kind: flat.kind,
            direction: flat.direction,
            selector: flat.selector,
            priority: flat.priority,
            order: flat.order,
            action: flat.action,
            flags: flat.policy_flags,
            limits: flat.limits,
            mark: flat.mark,
            if_id: flat.if_id,
            templates,
        };
        let deadline = (flat.flags & flag::DEADLINE != 0).then_some(flat.deadline);
        Policy { record: Arc::new(record), add_time: flat.add_time, deadline }
    }
}
