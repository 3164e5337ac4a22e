//! ACQUIRE: which SA a packet wants, and whether somebody is asked for it.

use std::sync::Arc;

use wire::xfrm::address::{Address, Be16, Selector};
use wire::xfrm::event::UserAcquire;
use wire::xfrm::number::{group, mode};

use super::counters::Counters;
use super::delivery::Delivery;
use super::notice;
use super::policy::{PolicyId, PolicyRecord};
use super::sa::{Direction, SaParameters};
use super::sad::{LarvalKey, SpiKey};
use super::server::{Flow, Server};

/// ACQUIREs that may wait for an answer at a time. Whoever scans the networks behind 50 000 trap
/// policies has each ask once; a daemon that does 1000 negotiations a second has 8 s of work then, and
/// what was not asked is asked when the next packet comes. Each costs half a kilobyte for up to
/// `acquire_expires_s`, which is also how long a question without an answer is not repeated.
const ACQUIRES_PENDING_MAX: usize = 8192;

impl Server {
    /// Says that a packet needs an SA: announces an ACQUIRE for the first template of a policy and
    /// leaves a larval SA, so that the same is not asked again while the answer is awaited.
    /// Nothing when the policy is gone, has no template, or was asked for already, when nobody listens
    /// (as the kernel's `km_is_alive`), or when too many wait for an answer.
    pub fn acquire(
        &mut self,
        policy: PolicyId,
        flow: &Flow,
        now: u64,
        counters: &dyn Counters,
    ) -> Vec<Delivery> {
        let Some(found) = self.spd.get(policy) else { return Vec::new() };
        let (record, info) = (Arc::clone(&found.record), found.info(counters));
        let Some(template) = record.templates.first() else { return Vec::new() };
        let mut parameters = acquired(&record, flow);
        // In transport mode there are as many questions as far ends: half of the room is for the others.
        let most = match template.mode {
            mode::TUNNEL => ACQUIRES_PENDING_MAX,
            mode::TRANSPORT => ACQUIRES_PENDING_MAX / 2,
            _ => 0,
        };
        let is_flood = self.sad.acquires_pending() >= most || !self.is_heard(group::ACQUIRE);
        if is_flood || self.is_there(&parameters) || self.waits_for(&parameters) {
            return Vec::new();
        }
        parameters.info.seq = self.next_acquire();
        parameters.info.lft.hard_add_expires_seconds = self.settings.acquire_expires_s;
        let body = UserAcquire {
            id: parameters.info.id,
            saddr: parameters.info.saddr,
            sel: parameters.info.sel,
            policy: info,
            aalgos: template.aalgos,
            ealgos: template.ealgos,
            calgos: template.calgos,
            seq: parameters.info.seq,
        };
        self.add_larval(parameters, now);
        let mut out = Vec::new();
        self.emit(&mut out, group::ACQUIRE, || notice::acquire(&body, &record, flow.cpu));
        out
    }

    /// Whether there is an SA with the SPI that a policy insists on, be it larval: as in Linux nobody is asked for it then, and
    /// nothing is put before it.
    fn is_there(&self, parameters: &SaParameters) -> bool {
        let key = SpiKey::of(&parameters.info);
        parameters.spi() != 0 && self.sad.find(&key, parameters.mark.key()).is_some()
    }

    fn waits_for(&self, parameters: &SaParameters) -> bool {
        let key = LarvalKey::of(parameters);
        self.sad.has_larval(&key, parameters.mark, parameters.if_id)
    }
}

/// The larval SA for a packet: it accepts just that packet's flow.
fn acquired(record: &PolicyRecord, flow: &Flow) -> SaParameters {
    let (source, destination) = flow.addresses;
    let family = wire::xfrm::address::family_of(destination);
    let prefix = if destination.is_ipv4() { 32 } else { 128 };
    let mut parameters = SaParameters {
        mark: record.mark,
        if_id: record.if_id,
        direction: Some(Direction::Out),
        cpu: flow.cpu,
        ..SaParameters::default()
    };
    let info = &mut parameters.info;
    info.sel = Selector {
        daddr: destination.into(),
        saddr: source.into(),
        dport: Be16::new(flow.ports.1),
        dport_mask: Be16::new(u16::MAX),
        sport: Be16::new(flow.ports.0),
        sport_mask: Be16::new(u16::MAX),
        family,
        prefixlen_d: prefix,
        prefixlen_s: prefix,
        proto: flow.protocol,
        ..Selector::default()
    };
    if let Some(template) = record.templates.first() {
        info.id = template.id;
        info.saddr = template.saddr;
        info.mode = template.mode;
        // In transport mode the ends that a template leaves open are the packet's.
        if template.mode == mode::TRANSPORT {
            if info.id.daddr == Address::default() {
                info.id.daddr = destination.into();
            }
            if info.saddr == Address::default() {
                info.saddr = source.into();
            }
        }
        info.reqid = template.reqid;
        info.family = template.family;
    }
    parameters
}
