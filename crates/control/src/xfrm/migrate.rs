//! MIGRATE: new ends for the SAs and the templates of one policy, by which an IKE daemon follows a
//! host that changed its address (RFC 4555; libreswan does it so, strongSwan replaces SAs instead).
//!
//! The plan, as the kernel's `xfrm_migrate`, and all of it or nothing:
//!
//! 1. check the list of old and new ends;
//! 2. find the policy by its selector;
//! 3. for each entry find the newest SA between the old ends, and see that it may move;
//! 4. move SAs and templates, which goes on with the SAs' numbers, windows and counters;
//! 5. announce it.

use rustix::io::Errno;
use wire::xfrm::address::Selector;
use wire::xfrm::number::{XFRM_MAX_DEPTH, attr, direction, encap_type, group, mode};
use wire::xfrm::policy::{UserMigrate, UserTmpl, UserpolicyId};
use wire::xfrm::sa::EncapTmpl;
use zerocopy::FromBytes;

use super::delivery::Delivery;
use super::failure::Failure;
use super::notice;
use super::policy::{Policy, PolicyId};
use super::policy_request::kind_of;
use super::request::Request;
use super::sa::{SaId, SaParameters};
use super::sad::SpiKey;
use super::server::{Change, Server};
use super::spd::PolicyKey;

/// In a MIGRATE's selector, "whatever the protocol": `IPSEC_ULPROTO_ANY`.
const PROTOCOL_ANY: u8 = 255;

/// An SA and the ends it gets.
type Move = (SaId, UserMigrate);

impl Server {
    /// MIGRATE.
    pub(super) fn migrate(
        &mut self,
        request: &Request<'_>,
        out: &mut Vec<Delivery>,
    ) -> Result<(), Failure> {
        let wanted: UserpolicyId = request.fixed()?;
        let list = request.attributes.get(attr::MIGRATE).ok_or(Errno::INVAL)?;
        let kind = kind_of(&request.attributes)?;
        let entries = entries(list.payload)?;
        if wanted.dir >= direction::MAX {
            return Err(Errno::INVAL.into());
        }
        let if_id = request.number(attr::IF_ID);
        let policy = self.policy_to_move(&wanted, kind, if_id).ok_or(Errno::NOENT)?;
        let moves = self.sas_to_move(&entries, if_id)?;
        // Without it an SA keeps what encapsulation it has.
        let encapsulation: Option<EncapTmpl> = request.attributes.read(attr::ENCAP);
        let is_foreign = |encap: EncapTmpl| encap.encap_type != encap_type::ESPINUDP;
        if encapsulation.is_some_and(is_foreign) && !moves.is_empty() {
            return Err(Errno::NODATA.into());
        }
        // A list that names none of the policy's ends changes nothing.
        let templates = self.moved_templates(policy, &entries).ok_or(Errno::NODATA)?;
        for (id, entry) in moves {
            self.move_sa(id, &entry, encapsulation);
        }
        self.changes.push(Change::PolicyRemoved(policy));
        let record = self.spd.set_templates(policy, templates).ok_or(Errno::NOENT)?;
        self.changes.push(Change::PolicyInstalled(record));
        let address = request.attributes.get(attr::KMADDRESS).map(|attribute| attribute.payload);
        self.emit(out, group::MIGRATE, || {
            notice::migrated(&wanted, kind, &entries, (address, encapsulation))
        });
        Ok(())
    }

    /// The policy with this selector that is looked up first, whatever its mark.
    fn policy_to_move(&self, wanted: &UserpolicyId, kind: u8, if_id: u32) -> Option<PolicyId> {
        let (selector, direction) = (wanted.sel, wanted.dir);
        let key = PolicyKey { kind, direction, selector, mark: Default::default(), if_id };
        if let Some(found) = self.spd.find(&key) {
            return Some(found);
        }
        // Marked ones, or of any protocol: rare enough to walk over all.
        let fits = |policy: &Policy| {
            let record = &policy.record;
            record.kind == kind
                && record.direction == direction
                && (if_id == 0 || record.if_id == if_id)
                && selects(&selector, &record.selector)
        };
        let fitting = self.spd.policies().filter(|(_, policy)| fits(policy));
        fitting.min_by_key(|(_, p)| (p.record.priority, p.record.order)).map(|(id, _)| id)
    }

    /// The newest SA of each entry's old ends, where there is one. Walks over all SAs: a host changes
    /// its address a few times a day.
    fn sas_to_move(&self, entries: &[UserMigrate], if_id: u32) -> Result<Vec<Move>, Failure> {
        let mut moves: Vec<Move> = Vec::new();
        for entry in entries {
            let mut newest = None;
            let mut before = u64::MAX;
            while let Some((id, sa)) = self.sad.before(before) {
                before = id.0;
                let taken = moves.iter().any(|(taken, _)| *taken == id);
                if !taken && !sa.is_larval() && is_between(sa.parameters(), entry, if_id) {
                    newest = Some((id, sa));
                    break;
                }
            }
            let Some((id, sa)) = newest else { continue };
            let info = &sa.parameters().info;
            let key = |daddr, family| SpiKey::new(daddr, info.id.spi.get(), info.id.proto, family);
            let new = key(&entry.new_daddr, entry.new_family);
            let stays = new == key(&info.id.daddr, info.family);
            if !stays && self.sad.find(&new, sa.parameters().mark.key()).is_some() {
                return Err(Errno::NODATA.into());
            }
            moves.push((id, *entry));
        }
        Ok(moves)
    }

    /// A policy's templates with the new ends; `None` if no entry is about any of them.
    fn moved_templates(&self, id: PolicyId, entries: &[UserMigrate]) -> Option<Vec<UserTmpl>> {
        let mut templates = self.spd.get(id)?.record.templates.clone();
        let mut found = false;
        for template in &mut templates {
            for entry in entries {
                if !is_about(entry, template) {
                    continue;
                }
                found = true;
                if matches!(template.mode, mode::TUNNEL | mode::BEET) {
                    template.id.daddr = entry.new_daddr.canonical(entry.new_family);
                    template.saddr = entry.new_saddr.canonical(entry.new_family);
                    template.family = entry.new_family;
                }
            }
        }
        found.then_some(templates)
    }

    fn move_sa(&mut self, id: SaId, entry: &UserMigrate, encapsulation: Option<EncapTmpl>) {
        let moved = self.sad.relocate(id, |parameters| {
            let info = &mut parameters.info;
            info.family = entry.new_family;
            info.id.daddr = entry.new_daddr.canonical(entry.new_family);
            info.saddr = entry.new_saddr.canonical(entry.new_family);
            parameters.encapsulation = encapsulation.or(parameters.encapsulation);
        });
        self.changes.extend(moved.map(Change::SaMoved));
    }
}

/// The entries of the list, checked.
fn entries(payload: &[u8]) -> Result<Vec<UserMigrate>, Failure> {
    let chunks = payload.chunks_exact(size_of::<UserMigrate>());
    if chunks.len() == 0 || chunks.len() > XFRM_MAX_DEPTH {
        return Err(Errno::INVAL.into());
    }
    let read = |chunk: &[u8]| UserMigrate::read_from_bytes(chunk).unwrap_or_default();
    let entries: Vec<UserMigrate> = chunks.map(read).collect();
    for (at, entry) in entries.iter().enumerate() {
        let is_nowhere = |address: &wire::xfrm::address::Address| {
            address.ip(entry.new_family).is_none_or(|address| address.is_unspecified())
        };
        let old = |entry: &UserMigrate| {
            let UserMigrate { proto, mode, reqid, old_family, old_daddr, old_saddr, .. } = *entry;
            (old_daddr, old_saddr, proto, mode, reqid, old_family)
        };
        let is_twice = entries[at + 1..].iter().any(|other| old(other) == old(entry));
        if is_nowhere(&entry.new_daddr) || is_nowhere(&entry.new_saddr) || is_twice {
            return Err(Errno::INVAL.into());
        }
    }
    Ok(entries)
}

/// `xfrm_migrate_selector_match`.
fn selects(wanted: &Selector, found: &Selector) -> bool {
    if wanted.proto != PROTOCOL_ANY {
        return wanted == found;
    }
    let ends = |selector: &Selector| {
        let Selector { daddr, saddr, prefixlen_d, prefixlen_s, family, .. } = *selector;
        (daddr.canonical(family), saddr.canonical(family), prefixlen_d, prefixlen_s, family)
    };
    ends(wanted) == ends(found)
}

/// Whether an entry is about an SA: `xfrm_migrate_state_find`.
fn is_between(parameters: &SaParameters, entry: &UserMigrate, if_id: u32) -> bool {
    let (info, family) = (&parameters.info, entry.old_family);
    info.mode == entry.mode
        && info.id.proto == entry.proto
        && (entry.reqid == 0 || info.reqid == entry.reqid)
        && (if_id == 0 || parameters.if_id == if_id)
        && info.family == family
        && info.id.daddr.canonical(family) == entry.old_daddr.canonical(family)
        && info.saddr.canonical(family) == entry.old_saddr.canonical(family)
}

/// Whether an entry is about a template: `migrate_tmpl_match`. In transport mode a template has no
/// ends of its own.
fn is_about(entry: &UserMigrate, template: &UserTmpl) -> bool {
    let family = entry.old_family;
    template.mode == entry.mode
        && template.id.proto == entry.proto
        && (entry.reqid == 0 || template.reqid == entry.reqid)
        && match template.mode {
            mode::TUNNEL | mode::BEET => {
                template.id.daddr.canonical(family) == entry.old_daddr.canonical(family)
                    && template.saddr.canonical(family) == entry.old_saddr.canonical(family)
            }
            mode::TRANSPORT => true,
            _ => false,
        }
}
