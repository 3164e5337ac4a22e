//! NEWPOLICY, UPDPOLICY, DELPOLICY, GETPOLICY, FLUSHPOLICY, POLEXPIRE and ACQUIRE from user space.

use rustix::io::Errno;
use wire::xfrm::address::Selector;
use wire::xfrm::attribute::Attributes;
use wire::xfrm::event::{UserAcquire, UserPolexpire};
use wire::xfrm::netlink::Header;
use wire::xfrm::number::{
    AF_INET, AF_INET6, IPPROTO_AH, IPPROTO_COMP, IPPROTO_DSTOPTS, IPPROTO_ESP, IPPROTO_ROUTING,
    XFRM_MAX_DEPTH, action, attr, direction, group, mode, msg, policy_type,
};
use wire::xfrm::policy::{UserTmpl, UserpolicyId, UserpolicyInfo, UserpolicyType};
use zerocopy::FromBytes;

use super::clock::has_time_limit;
use super::delivery::Delivery;
use super::failure::Failure;
use super::notice;
use super::policy::{PolicyId, PolicyRecord};
use super::request::Request;
use super::sa_check::check_security_context;
use super::server::{Change, Server};
use super::spd::{PolicyKey, direction_of};

/// A policy's time limits are looked at first so long after its installation.
const FIRST_LOOK_S: u64 = 1;

/// Largest `share` that means something.
const SHARE_UNIQUE: u8 = 3;

impl Server {
    /// NEWPOLICY and UPDPOLICY.
    pub(super) fn add_policy(
        &mut self,
        request: &Request<'_>,
        out: &mut Vec<Delivery>,
    ) -> Result<(), Failure> {
        let info: UserpolicyInfo = request.fixed()?;
        let record = construct(&info, request)?;
        let is_new = request.header().kind == msg::NEWPOLICY;
        if is_new && self.spd.find(&PolicyKey::of(&record)).is_some() {
            return Err(Errno::EXIST.into());
        }
        let timed = has_time_limit(&record.limits);
        let (record, replaced) = self.spd.insert(record, request.now);
        let id = record.id;
        if timed {
            self.spd.set_deadline(id, Some(request.now + FIRST_LOOK_S));
        }
        self.changes.extend(replaced.map(Change::PolicyRemoved));
        self.changes.push(Change::PolicyInstalled(record));
        self.announce_policy(id, false, request, out);
        Ok(())
    }

    fn announce_policy(
        &self,
        id: PolicyId,
        by_index: bool,
        request: &Request<'_>,
        out: &mut Vec<Delivery>,
    ) {
        if !self.is_heard(group::POLICY) {
            return;
        }
        let Some(policy) = self.spd.get(id) else { return };
        let header = self.event_header(request);
        self.emit(out, group::POLICY, || {
            notice::policy(header, &policy, &policy.info(request.counters), by_index)
        });
    }

    /// The policy that a request names by index or by selector.
    fn named_policy(
        &self,
        request: &Request<'_>,
        index: u32,
        direction: u8,
        selector: Selector,
    ) -> Result<PolicyId, Failure> {
        let kind = kind_of(&request.attributes)?;
        check_direction(direction)?;
        let key = PolicyKey {
            kind,
            direction,
            selector,
            mark: request.mark(),
            if_id: request.number(attr::IF_ID),
        };
        let found = if index != 0 {
            (direction_of(index) == u32::from(direction))
                .then(|| self.spd.find_by_index(index, &key))
                .flatten()
        } else {
            check_security_context(&request.attributes)?;
            self.spd.find(&key)
        };
        found.ok_or(Failure::new(Errno::NOENT))
    }

    /// GETPOLICY for one policy.
    pub(super) fn get_policy(
        &mut self,
        request: &Request<'_>,
        out: &mut Vec<Delivery>,
    ) -> Result<(), Failure> {
        let wanted: UserpolicyId = request.fixed()?;
        let id = self.named_policy(request, wanted.index, wanted.dir, wanted.sel)?;
        let policy = self.spd.get(id).ok_or(Errno::NOENT)?;
        let header = Header {
            kind: msg::NEWPOLICY,
            seq: request.header().seq,
            pid: request.client.port,
            ..Header::default()
        };
        let info = policy.info(request.counters);
        out.push(Delivery::Reply(notice::policy(header, &policy, &info, false)));
        Ok(())
    }

    /// DELPOLICY.
    pub(super) fn delete_policy(
        &mut self,
        request: &Request<'_>,
        out: &mut Vec<Delivery>,
    ) -> Result<(), Failure> {
        let wanted: UserpolicyId = request.fixed()?;
        let id = self.named_policy(request, wanted.index, wanted.dir, wanted.sel)?;
        self.announce_policy(id, wanted.index != 0, request, out);
        self.remove_policy(id);
        Ok(())
    }

    /// Takes a policy out of the table and tells the data plane.
    pub(super) fn remove_policy(&mut self, id: PolicyId) {
        if self.spd.remove(id).is_some() {
            self.changes.push(Change::PolicyRemoved(id));
        }
    }

    /// POLEXPIRE from user space: deleted when hard, and announced.
    pub(super) fn expire_policy(
        &mut self,
        request: &Request<'_>,
        out: &mut Vec<Delivery>,
    ) -> Result<(), Failure> {
        let expire: UserPolexpire = request.fixed()?;
        let wanted = &expire.pol;
        let id = self.named_policy(request, wanted.index, wanted.dir, wanted.sel)?;
        let hard = expire.hard != 0;
        self.announce_policy_expiry(id, hard, request.header().pid, request.counters, out);
        if hard {
            self.remove_policy(id);
        }
        Ok(())
    }

    /// ACQUIRE from user space: announced to the IKE daemon, once per template.
    pub(super) fn relay_acquire(
        &mut self,
        request: &Request<'_>,
        out: &mut Vec<Delivery>,
    ) -> Result<(), Failure> {
        let given: UserAcquire = request.fixed()?;
        let record = construct(&given.policy, request)?;
        let cpu = request.attributes.read::<u32>(attr::SA_PCPU);
        if cpu.is_some_and(|cpu| cpu >= self.settings.cpus) {
            return Err(Errno::INVAL.into());
        }
        for template in &record.templates {
            let body = UserAcquire {
                id: template.id,
                saddr: given.saddr,
                sel: given.sel,
                policy: UserpolicyInfo {
                    dir: direction::OUT,
                    share: 0,
                    pad: [0; 4],
                    curlft: Default::default(),
                    ..given.policy
                },
                seq: self.next_acquire(),
                ..given
            };
            self.emit(out, group::ACQUIRE, || notice::acquire(&body, &record, cpu));
        }
        Ok(())
    }
}

fn check_direction(value: u8) -> Result<(), Failure> {
    if value < direction::MAX { Ok(()) } else { Err(Failure::invalid("Invalid policy direction")) }
}

/// The policy type that a request names. There is one, as in kernels without `CONFIG_XFRM_SUB_POLICY`: packets
/// are asked about once, and a second policy for each would only seem to be in force.
pub(super) fn kind_of(attributes: &Attributes<'_>) -> Result<u8, Failure> {
    let kind = attributes.read::<UserpolicyType>(attr::POLICY_TYPE).unwrap_or_default().kind;
    match kind {
        policy_type::MAIN => Ok(kind),
        _ => Err(Failure::invalid("Invalid policy type")),
    }
}

fn check(info: &UserpolicyInfo) -> Result<(), Failure> {
    let invalid = |message| Err(Failure::invalid(message));
    if info.share > SHARE_UNIQUE {
        return invalid("Invalid policy share");
    }
    if !matches!(info.action, action::ALLOW | action::BLOCK) {
        return invalid("Invalid policy action");
    }
    let longest = info.sel.prefixlen_d.max(info.sel.prefixlen_s);
    match info.sel.family {
        AF_INET if longest > 32 => {
            return invalid("Invalid prefix length in selector (must be <= 32 for IPv4)");
        }
        AF_INET6 if longest > 128 => {
            return invalid("Invalid prefix length in selector (must be <= 128 for IPv6)");
        }
        AF_INET | AF_INET6 => {}
        _ => return invalid("Invalid selector family"),
    }
    check_direction(info.dir)?;
    if info.index != 0 && direction_of(info.index) != u32::from(info.dir) {
        return invalid("Policy index doesn't match direction");
    }
    Ok(())
}

/// Checks a policy in the kernel's order and builds it; id and order come with insertion.
pub(super) fn construct(
    info: &UserpolicyInfo,
    request: &Request<'_>,
) -> Result<PolicyRecord, Failure> {
    check(info)?;
    check_security_context(&request.attributes)?;
    let kind = kind_of(&request.attributes)?;
    let templates = templates(info, &request.attributes)?;
    Ok(PolicyRecord {
        id: PolicyId(0),
        index: info.index,
        kind,
        direction: info.dir,
        selector: info.sel,
        priority: info.priority,
        order: 0,
        action: info.action,
        flags: info.flags,
        limits: info.lft,
        mark: request.mark().sanitized(),
        if_id: request.number(attr::IF_ID),
        templates,
    })
}

fn templates(info: &UserpolicyInfo, attributes: &Attributes<'_>) -> Result<Vec<UserTmpl>, Failure> {
    let Some(attribute) = attributes.get(attr::TMPL) else { return Ok(Vec::new()) };
    let chunks = attribute.payload.chunks_exact(size_of::<UserTmpl>());
    if chunks.len() > XFRM_MAX_DEPTH {
        return Err(Failure::invalid("Template count must be <= XFRM_MAX_DEPTH (6)"));
    }
    let mut previous = info.sel.family;
    let mut templates = Vec::with_capacity(chunks.len());
    for chunk in chunks {
        let mut template = UserTmpl::read_from_bytes(chunk).unwrap_or_default();
        // Programs older than mixed-family tunnels leave the family at 0.
        if template.family == 0 {
            template.family = info.sel.family;
        }
        check_template(&template, previous, info.dir)?;
        previous = template.family;
        (template.pad0, template.pad1) = (0, 0);
        templates.push(template);
    }
    Ok(templates)
}

fn check_template(template: &UserTmpl, previous: u16, dir: u8) -> Result<(), Failure> {
    let invalid = |message| Err(Failure::invalid(message));
    if matches!(template.mode, mode::TUNNEL | mode::BEET) {
        if template.optional != 0 && dir == direction::OUT {
            return invalid("Mode in optional template not allowed in outbound policy");
        }
    } else if template.family != previous {
        return invalid("Mode in template doesn't support a family change");
    }
    if template.mode >= mode::MAX {
        return invalid("Mode in template must be < XFRM_MODE_MAX (5)");
    }
    if !matches!(template.family, AF_INET | AF_INET6) {
        return invalid("Invalid family in template");
    }
    let known = matches!(
        template.id.proto,
        IPPROTO_AH | IPPROTO_ESP | IPPROTO_COMP | IPPROTO_ROUTING | IPPROTO_DSTOPTS
    );
    if known { Ok(()) } else { invalid("Invalid XFRM protocol in template") }
}
