//! NEWSA, UPDSA, DELSA, GETSA, FLUSHSA and EXPIRE from user space.

use std::sync::Arc;

use rustix::io::Errno;
use wire::xfrm::address::Mark;
use wire::xfrm::attribute::Attributes;
use wire::xfrm::event::UserExpire;
use wire::xfrm::lifetime::LifetimeCurrent;
use wire::xfrm::netlink::Header;
use wire::xfrm::number::{
    AF_UNSPEC, IPPROTO_AH, IPPROTO_COMP, IPPROTO_ESP, IPSEC_PROTO_ANY, attr, encap_type, group,
    mode, msg, sa_flag,
};
use wire::xfrm::replay::{ReplayState, ReplayStateEsn, Stats};
use wire::xfrm::sa::{EncapTmpl, UserOffload, UsersaId, UsersaInfo};
use zerocopy::FromBytes;

use super::algorithm;
use super::clock::has_time_limit;
use super::delivery::Delivery;
use super::expiry::watches_traffic;
use super::failure::Failure;
use super::notice::{self, SaView};
use super::probe::is_probe;
use super::replay::ReplayValue;
use super::request::Request;
use super::sa::{Aead, AeventThresholds, Body, Direction, Sa, SaId, SaParameters, SaRecord};
use super::sa_check;
use super::sad::{LarvalKey, SpiKey};
use super::server::{Change, Server};

/// An SA's time limits are looked at first so long after its installation.
const FIRST_LOOK_S: u64 = 1;

/// Device offload flags that a kernel without packet offload knows.
const OFFLOAD_FLAGS_KNOWN: u8 = 3;

/// Whether `proto` is among those that `wanted` asks for.
pub(super) fn proto_matches(proto: u8, wanted: u8) -> bool {
    wanted == 0 || proto == wanted || (wanted == IPSEC_PROTO_ANY && is_ipsec(proto))
}

fn is_ipsec(proto: u8) -> bool {
    matches!(proto, IPPROTO_AH | IPPROTO_ESP | IPPROTO_COMP)
}

impl Server {
    /// NEWSA and UPDSA.
    pub(super) fn add_sa(
        &mut self,
        request: &Request<'_>,
        out: &mut Vec<Delivery>,
    ) -> Result<(), Failure> {
        let info: UsersaInfo = request.fixed()?;
        sa_check::check(&info, &request.attributes)?;
        let sa = self.construct_sa(info, request)?;
        // The event shows the SA that was asked for, even where an update keeps most of the old.
        let header = self.event_header(request);
        let heard = self.is_heard(group::SA);
        let event = heard.then(|| notice::sa_event(header, &SaView::unused(&sa)));
        if request.header().kind == msg::NEWSA {
            self.insert_sa(sa, request.now)?;
        } else {
            self.update_sa(sa, request)?;
        }
        if let Some(event) = event {
            self.emit(out, group::SA, || event);
        }
        Ok(())
    }

    /// Looks algorithms and modes up, in the kernel's order, and builds the SA.
    pub(super) fn construct_sa(
        &self,
        given: UsersaInfo,
        request: &Request<'_>,
    ) -> Result<Sa, Failure> {
        let attributes = &request.attributes;
        let aead = algorithm::aead(attributes)?;
        algorithm::find_auth(attributes)?;
        let probe = is_probe(&given, attributes);
        if !probe {
            algorithm::find_encryption(attributes)?;
        }
        algorithm::find_compression(attributes)?;
        let cpu = attributes.read::<u32>(attr::SA_PCPU);
        if cpu.is_some_and(|cpu| cpu >= self.settings.cpus) {
            return Err(Failure::because(Errno::RANGE, "pCPU number too big"));
        }
        if !self.keeps_mode(&given, request) {
            check_mode(&given)?;
        }
        let aead = if probe { None } else { Some(initialise(&given, aead, attributes)?) };
        let replay = replay_value(&given, attributes)?;

        let mut info = UsersaInfo {
            curlft: LifetimeCurrent::default(),
            stats: Stats::default(),
            replay_window: given.replay_window.min(32),
            pad: [0; 7],
            ..given
        };
        if info.sel.family == AF_UNSPEC && info.flags & sa_flag::AF_UNSPEC == 0 {
            info.sel.family = info.family;
        }
        if probe {
            info.lft.hard_add_expires_seconds = self.settings.acquire_expires_s;
        }
        let parameters = parameters(info, request);
        let body = match aead {
            Some(aead) => {
                let id = self.sad.next_id();
                Body::Valid(Arc::new(SaRecord { id, parameters, aead, replay }))
            }
            None => Body::Larval(Box::new(parameters)),
        };
        let mut sa = Sa::new(body, request.now);
        if let Some(usage) = attributes.read(attr::LTIME_VAL) {
            sa.base = usage;
        }
        let defaults = AeventThresholds::default();
        sa.thresholds = AeventThresholds {
            packets: attributes.read(attr::REPLAY_THRESH).unwrap_or(defaults.packets),
            ticks: attributes.read(attr::ETIMER_THRESH).unwrap_or(defaults.ticks),
        };
        Ok(sa)
    }

    /// Whether this is an update of an SA in use, which keeps its mode whatever the request says.
    fn keeps_mode(&self, info: &UsersaInfo, request: &Request<'_>) -> bool {
        let key = SpiKey::new(&info.id.daddr, info.id.spi.get(), info.id.proto, info.family);
        let found = self.sad.find(&key, request.mark().key()).and_then(|id| self.sad.get(id));
        request.header().kind == msg::UPDSA && found.is_some_and(|sa| !sa.is_larval())
    }

    /// Adds an SA, in place of the larval one that waited for it.
    fn insert_sa(&mut self, sa: Sa, now: u64) -> Result<(), Failure> {
        let parameters = sa.parameters();
        if self.find_same(parameters).is_some() {
            return Err(Errno::EXIST.into());
        }
        let larval = self
            .find_acquired(parameters)
            .or_else(|| self.sad.find_larval(&LarvalKey::of(parameters), parameters.mark));
        self.install(sa, now);
        if let Some(larval) = larval {
            self.sad.remove(larval);
        }
        Ok(())
    }

    fn find_same(&self, parameters: &SaParameters) -> Option<SaId> {
        let info = &parameters.info;
        let key = SpiKey::new(&info.id.daddr, info.id.spi.get(), info.id.proto, info.family);
        self.sad.find(&key, parameters.mark.key())
    }

    fn find_acquired(&self, parameters: &SaParameters) -> Option<SaId> {
        let info = &parameters.info;
        if info.seq == 0 {
            return None;
        }
        let id = self.sad.find_acquire(info.seq, parameters.mark.key(), parameters.cpu)?;
        let sa = self.sad.get(id)?;
        let found = &sa.parameters().info;
        let same_peer =
            found.id.daddr.canonical(info.family) == info.id.daddr.canonical(info.family);
        (found.id.proto == info.id.proto && same_peer).then_some(id)
    }

    /// Puts an SA into the table and tells the data plane.
    fn install(&mut self, mut sa: Sa, now: u64) {
        let timed = has_time_limit(&sa.parameters().info.lft);
        let first_look_s = match sa.is_larval() {
            true => Some(self.settings.acquire_expires_s),
            false => timed.then_some(FIRST_LOOK_S),
        };
        sa.deadline = first_look_s.map(|after_s| now + after_s);
        self.sad.insert(&sa);
        if let Body::Valid(record) = sa.body {
            self.changes.push(Change::SaInstalled(record));
        }
    }

    /// UPDSA: completes a larval SA, or changes what an SA in use allows to change.
    fn update_sa(&mut self, sa: Sa, request: &Request<'_>) -> Result<(), Failure> {
        let id = self.find_same(sa.parameters()).ok_or(Errno::SRCH)?;
        let found = self.sad.get(id).ok_or(Errno::SRCH)?;
        let direction = sa.parameters().direction;
        if found.is_larval() {
            if direction.is_some() && direction != found.parameters().direction {
                return Err(Errno::SRCH.into());
            }
            self.install(sa, request.now);
            self.sad.remove(id);
            return Ok(());
        }
        if direction != found.parameters().direction {
            return Err(Errno::SRCH.into());
        }
        self.change_sa(id, sa.parameters(), request.now)
    }

    /// New limits, UDP ports, interface and output mark for an SA in use; the rest stays as it is.
    fn change_sa(&mut self, id: SaId, wanted: &SaParameters, now: u64) -> Result<(), Failure> {
        let change = self.sad.edit(id, |sa| {
            let Body::Valid(record) = &mut sa.body else { return Err(Errno::SRCH) };
            if record.parameters.encapsulation.is_some() != wanted.encapsulation.is_some() {
                return Err(Errno::INVAL);
            }
            let parameters = &mut Arc::make_mut(record).parameters;
            parameters.info.lft = wanted.info.lft;
            parameters.encapsulation = wanted.encapsulation;
            if let (Some(care_of), Some(wanted)) = (&mut parameters.care_of, wanted.care_of) {
                *care_of = wanted;
            }
            if wanted.output_mark.is_set() {
                parameters.output_mark = wanted.output_mark;
            }
            if wanted.if_id != 0 {
                parameters.if_id = wanted.if_id;
            }
            sa.dying = false;
            Ok(Change::SaUpdated(Arc::clone(record)))
        });
        let change = change.ok_or(Errno::SRCH)??;
        let limits = wanted.info.lft;
        self.sad.set_limited(id, watches_traffic(&limits));
        self.sad.set_deadline(id, has_time_limit(&limits).then_some(now + FIRST_LOOK_S));
        self.changes.push(change);
        Ok(())
    }

    /// The SA that a DELSA or GETSA names.
    fn named_sa(&self, request: &Request<'_>) -> Result<SaId, Failure> {
        let id: UsersaId = request.fixed()?;
        if !proto_matches(id.proto, IPSEC_PROTO_ANY) {
            // Such SAs are found by their addresses; there are none, but the request may be wrong.
            let complete = request.attributes.has(attr::SRCADDR);
            return Err(if complete { Errno::SRCH } else { Errno::INVAL }.into());
        }
        self.find_sa(&id, request.mark()).ok_or(Failure::new(Errno::SRCH))
    }

    pub(super) fn find_sa(&self, id: &UsersaId, mark: Mark) -> Option<SaId> {
        let key = SpiKey::new(&id.daddr, id.spi.get(), id.proto, id.family);
        self.sad.find(&key, mark.key())
    }

    /// DELSA.
    pub(super) fn delete_sa(
        &mut self,
        request: &Request<'_>,
        out: &mut Vec<Delivery>,
    ) -> Result<(), Failure> {
        let id = self.named_sa(request)?;
        let header = self.event_header(request);
        if self.is_heard(group::SA)
            && let Some(sa) = self.sad.get(id)
        {
            self.emit(out, group::SA, || {
                notice::sa_event(header, &SaView::new(id, &sa, request.counters))
            });
        }
        // Nobody has it any more, so its record is told whole to whom it may come back.
        match self.sad.remove(id).map(|sa| (sa.is_moving(request.now), sa.body)) {
            Some((true, Body::Valid(record))) => self.changes.push(Change::SaDeparted(record)),
            Some((false, Body::Valid(_))) => self.changes.push(Change::SaDeleted(id)),
            _ => {}
        }
        Ok(())
    }

    /// Takes an SA out of the table and tells the data plane, if it ever knew of it.
    pub(super) fn remove_sa(&mut self, id: SaId) {
        if self.sad.remove(id).is_some_and(|sa| !sa.is_larval()) {
            self.changes.push(Change::SaRemoved(id));
        }
    }

    /// GETSA for one SA.
    pub(super) fn get_sa(
        &mut self,
        request: &Request<'_>,
        out: &mut Vec<Delivery>,
    ) -> Result<(), Failure> {
        let id = self.named_sa(request)?;
        self.reply_sa(id, request, out);
        Ok(())
    }

    /// Answers with an SA.
    pub(super) fn reply_sa(&self, id: SaId, request: &Request<'_>, out: &mut Vec<Delivery>) {
        let Some(sa) = self.sad.get(id) else { return };
        let header = Header {
            kind: msg::NEWSA,
            seq: request.header().seq,
            pid: request.client.port,
            ..Header::default()
        };
        let view = SaView::new(id, &sa, request.counters);
        out.push(Delivery::Reply(notice::sa(header, &view)));
    }

    /// EXPIRE from user space: announced, and deleted when hard.
    pub(super) fn expire_sa(
        &mut self,
        request: &Request<'_>,
        out: &mut Vec<Delivery>,
    ) -> Result<(), Failure> {
        let expire: UserExpire = request.fixed()?;
        let info = &expire.state;
        let key = SpiKey::new(&info.id.daddr, info.id.spi.get(), info.id.proto, info.family);
        let id = self.sad.find(&key, request.mark().key()).ok_or(Errno::NOENT)?;
        if self.sad.get(id).is_none_or(|sa| sa.is_larval()) {
            return Err(Errno::INVAL.into());
        }
        let hard = expire.hard != 0;
        self.announce_expiry(id, hard, request.header().pid, request.counters, out);
        if hard {
            self.remove_sa(id);
        }
        Ok(())
    }
}

/// What a request says about an SA beside its algorithms and numbers.
pub(super) fn parameters(info: UsersaInfo, request: &Request<'_>) -> SaParameters {
    let attributes = &request.attributes;
    SaParameters {
        info,
        mark: request.mark().sanitized(),
        output_mark: output_mark(attributes),
        if_id: request.number(attr::IF_ID),
        extra_flags: request.number(attr::SA_EXTRA_FLAGS),
        tfc_padding: request.number(attr::TFCPAD),
        direction: attributes.read(attr::SA_DIR).and_then(Direction::from_wire),
        cpu: attributes.read(attr::SA_PCPU),
        care_of: attributes.read(attr::COADDR),
        encapsulation: attributes.read(attr::ENCAP),
        mapping_max_age_s: request.number(attr::MTIMER_THRESH),
    }
}

fn output_mark(attributes: &Attributes<'_>) -> Mark {
    match attributes.read(attr::SET_MARK) {
        Some(v) => Mark { v, m: attributes.read(attr::SET_MARK_MASK).unwrap_or(u32::MAX) },
        None => Mark::default(),
    }
}

fn check_mode(info: &UsersaInfo) -> Result<(), Failure> {
    let refusal = match info.mode {
        mode::TUNNEL => return Ok(()),
        mode::TRANSPORT
            if matches!(info.sel.family, AF_UNSPEC) || info.sel.family == info.family =>
        {
            return Ok(());
        }
        mode::TRANSPORT => "Only tunnel modes can accommodate a change of family",
        _ => "Requested mode not found",
    };
    Err(Failure::because(Errno::PROTONOSUPPORT, refusal))
}

/// What the kernel checks when it sets the transform up; here is where it ends for what the data
/// plane does not carry.
fn initialise(
    info: &UsersaInfo,
    aead: Option<Aead>,
    attributes: &Attributes<'_>,
) -> Result<Aead, Failure> {
    if info.id.proto != IPPROTO_ESP {
        return Err(Failure::because(Errno::PROTONOSUPPORT, "Requested type not found"));
    }
    let aead = aead.ok_or(Failure::invalid("ESP: AEAD or CRYPT must be provided"))?;
    algorithm::check_key(&aead)?;
    let encapsulation: Option<EncapTmpl> = attributes.read(attr::ENCAP);
    if encapsulation.is_some_and(|encap| encap.encap_type != encap_type::ESPINUDP) {
        return Err(Failure::invalid("Unsupported encapsulation type for ESP"));
    }
    if attributes.has(attr::NAT_KEEPALIVE_INTERVAL) {
        return Err(Failure::because(Errno::OPNOTSUPP, "NAT keepalives are the IKE daemon's here"));
    }
    if attributes.read::<u32>(attr::TFCPAD).is_some_and(|padding| padding != 0) {
        // Whoever asks for it would think that lengths say nothing.
        return Err(Failure::because(Errno::OPNOTSUPP, "TFC padding is not done here"));
    }
    let offload: UserOffload = attributes.read(attr::OFFLOAD_DEV).unwrap_or_default();
    if offload.flags & !OFFLOAD_FLAGS_KNOWN != 0 {
        return Err(Failure::invalid("Unrecognized flags in offload request"));
    }
    Ok(aead)
}

fn replay_value(info: &UsersaInfo, attributes: &Attributes<'_>) -> Result<ReplayValue, Failure> {
    let Some(attribute) = attributes.get(attr::REPLAY_ESN_VAL) else {
        let state: ReplayState = attributes.read(attr::REPLAY_VAL).unwrap_or_default();
        return Ok(ReplayValue::Legacy(state));
    };
    let head: ReplayStateEsn = attribute.read().unwrap_or_default();
    if head.replay_window > head.bmp_len.saturating_mul(32) {
        return Err(Failure::invalid("ESN replay window is too large for the chosen bitmap size"));
    }
    let outbound =
        attributes.read(attr::SA_DIR).and_then(Direction::from_wire) == Some(Direction::Out);
    if info.flags & sa_flag::ESN != 0 && head.replay_window == 0 && !outbound {
        return Err(Failure::invalid("ESN replay window must be > 0"));
    }
    Ok(ReplayValue::Wide { bitmap: bitmap(&head, attribute.payload), head })
}

/// The bitmap behind `head`; zeros when the sender left it out.
pub(super) fn bitmap(head: &ReplayStateEsn, payload: &[u8]) -> Box<[u32]> {
    let words = payload.get(size_of::<ReplayStateEsn>()..).unwrap_or_default();
    let given = words.chunks_exact(4).map(|word| u32::read_from_bytes(word).unwrap_or_default());
    given.chain(std::iter::repeat(0)).take(head.bmp_len as usize).collect()
}
