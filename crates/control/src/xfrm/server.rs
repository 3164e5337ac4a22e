//! The server: one datagram of requests in, replies and events out.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use rustix::io::Errno;
use wire::xfrm::Builder;
use wire::xfrm::netlink::{
    AttributePolicy, Datagram, Header, NLA_F_NESTED, NLM_F_ACK, NLM_F_ACK_TLVS, NLM_F_CAPPED,
    NLM_F_DUMP, NLM_F_REQUEST, NLMSG_ERROR, NLMSG_MIN_TYPE, NLMSGERR_ATTR_MSG, NLMSGERR_ATTR_OFFS,
    NLMSGERR_ATTR_POLICY,
};
use wire::xfrm::number::{group, msg};
use zerocopy::IntoBytes;

use super::allocation::Random;
use super::client::Client;
use super::counters::Counters;
use super::delivery::{Delivery, Event, Handled};
use super::expiry::Expiring;
use super::failure::Failure;
use super::flush::Flush;
use super::info::Thresholds;
use super::policy::{Defaults, PolicyId, PolicyRecord};
use super::request::Request;
use super::sa::{Body, SaId, SaRecord};
use super::sad::Sad;
use super::secret::Bytes;
use super::spd::Spd;

/// What the server is told once.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// CPUs that an SA may be bound to (RFC 9611): numbers below this.
    pub cpus: u32,
    /// Seconds after which a larval SA is gone (`net.core.xfrm_acq_expires`).
    pub acquire_expires_s: u64,
    /// Where random SPIs start.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        // The hasher's keys are the standard library's own randomness.
        Self { cpus, acquire_expires_s: 30, seed: RandomState::new().hash_one(0) }
    }
}

/// A change for the data plane. All changes of one [`Server::take_changes`] belong into one view:
/// a replaced policy is removed and installed within it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A new SA.
    SaInstalled(Arc<SaRecord>),
    /// Limits, interface id or output mark of an SA changed; keys and numbers did not.
    SaUpdated(Arc<SaRecord>),
    /// An SA has other ends; keys and numbers did not change.
    SaMoved(Arc<SaRecord>),
    /// Somebody set the sequence numbers and the window of an SA.
    SaReplaySet(Arc<SaRecord>),
    /// An SA reached a soft limit: it is used where there is no other.
    SaDying(SaId),
    /// An SA was flushed, replaced, or it expired.
    SaRemoved(SaId),
    /// Somebody deleted an SA. Nothing is sealed with it any more; the data plane may open for a moment
    /// what its peer sent before it could know.
    SaDeleted(SaId),
    /// An SA was deleted whose sequence numbers were read (GETAE) just before: it is on the move. The
    /// data plane may keep it for the moment until the same SA is installed with other addresses.
    SaDeparted(Arc<SaRecord>),
    /// A new policy.
    PolicyInstalled(Arc<PolicyRecord>),
    /// A policy was deleted, flushed, replaced, or it expired.
    PolicyRemoved(PolicyId),
    /// What happens to packets without a policy.
    DefaultsChanged(Defaults),
}

/// A packet that needs an SA which is not there.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// Source and destination.
    pub addresses: (std::net::IpAddr, std::net::IpAddr),
    /// IP protocol.
    pub protocol: u8,
    /// Source and destination port.
    pub ports: (u16, u16),
    /// The worker that wants an SA of its own; `None` when there is no SA at all.
    pub cpu: Option<u32>,
}

/// SAD, SPD, and the rules of the XFRM interface.
#[derive(Debug)]
pub struct Server {
    pub(super) settings: Settings,
    pub(super) sad: Sad,
    pub(super) spd: Spd,
    pub(super) defaults: Defaults,
    pub(super) thresholds: Thresholds,
    pub(super) changes: Vec<Change>,
    pub(super) random: Random,
    /// ACQUIREs numbered so far.
    pub(super) acquires: u32,
    /// Something changed that is neither an SA nor a policy, and the journal does not know.
    pub(super) marks_touched: bool,
    /// What is still to be looked at for having expired.
    pub(super) expiring: Expiring,
    /// What an earlier run protected is still held back, as not all of that run is known.
    pub(super) in_doubt: bool,
    /// What the request that was carried out last left of a flush.
    pub(super) flushing: Option<Flush>,
    listeners: u32,
}

impl Server {
    /// With empty tables.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            sad: Sad::default(),
            spd: Spd::default(),
            defaults: Defaults::default(),
            thresholds: Thresholds::default(),
            changes: Vec::new(),
            random: Random::new(settings.seed),
            acquires: 0,
            marks_touched: false,
            expiring: Expiring::default(),
            in_doubt: false,
            flushing: None,
            listeners: u32::MAX,
        }
    }

    /// Which groups anybody listens to, as a bind mask; events for others are not built.
    pub fn set_listeners(&mut self, mask: u32) {
        self.listeners = mask;
    }

    /// Somebody listens to these groups as well.
    pub(super) fn listen_too(&mut self, mask: u32) {
        self.listeners |= mask;
    }

    /// Whether anybody listens to a group.
    pub fn is_heard(&self, group: u32) -> bool {
        self.listeners & group::bit(group) != 0
    }

    /// How long a larval SA waits to be completed, from now on (`net.core.xfrm_acq_expires`).
    pub fn set_acquire_expires(&mut self, seconds: u64) {
        self.settings.acquire_expires_s = seconds;
    }

    /// The changes since the last call, in order.
    pub fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// An SA with a key, as it is.
    pub fn sa_record(&self, id: SaId) -> Option<Arc<SaRecord>> {
        match self.sad.get(id)?.body {
            Body::Valid(record) => Some(record),
            Body::Larval(_) => None,
        }
    }

    /// A policy, as it is.
    pub fn policy_record(&self, id: PolicyId) -> Option<Arc<PolicyRecord>> {
        self.spd.get(id).map(|policy| policy.record)
    }

    /// The policy of an index, as events of the data plane name it.
    pub fn policy_of_index(&self, index: u32) -> Option<PolicyId> {
        self.spd.named_by(index)
    }

    /// SAs and policies in the tables.
    pub fn sizes(&self) -> (usize, usize) {
        (self.sad.len(), self.spd.len())
    }

    /// Answers one datagram. `now` is in seconds since the epoch.
    pub fn handle(
        &mut self,
        client: &Client,
        datagram: &[u8],
        now: u64,
        counters: &dyn Counters,
    ) -> Handled {
        let mut handled = Handled::default();
        let mut messages = Datagram::new(datagram).peekable();
        while let Some((header, bytes)) = messages.next() {
            let result: Result<Option<&'static str>, Failure> =
                if header.flags & NLM_F_REQUEST == 0 || header.kind < NLMSG_MIN_TYPE {
                    Ok(None)
                } else if is_dump(&header) {
                    let busy = client.dumping || handled.dump.is_some();
                    if !busy {
                        self.begin_dump(client, header, bytes, counters, &mut handled);
                        // A dump is its own answer.
                        continue;
                    }
                    Err(Errno::BUSY.into())
                } else {
                    self.answer(client, header, bytes, now, counters, &mut handled.deliveries)
                };
            if let Some(mut flush) = self.flushing.take() {
                if messages.peek().is_none() {
                    flush.warn(result.ok().flatten());
                    handled.flush = Some(flush);
                    break;
                }
                // What comes behind it is answered behind it.
                while !self.flush_next(&mut flush, &mut handled.deliveries) {}
            }
            if result.is_err() || header.flags & NLM_F_ACK != 0 {
                let reply = acknowledgement(client, &header, bytes, result);
                handled.deliveries.push(Delivery::Reply(reply));
            }
        }
        handled
    }

    fn begin_dump(
        &self,
        client: &Client,
        header: Header,
        bytes: &[u8],
        counters: &dyn Counters,
        handled: &mut Handled,
    ) {
        let mut dump = self.start_dump(client, header, bytes);
        handled.deliveries.extend(self.dump_next(&mut dump, counters).map(Delivery::Reply));
        handled.dump = (!dump.is_over()).then_some(dump);
    }

    /// Answers one request; `Ok` may still have a text for the client.
    fn answer(
        &mut self,
        client: &Client,
        header: Header,
        bytes: &[u8],
        now: u64,
        counters: &dyn Counters,
        out: &mut Vec<Delivery>,
    ) -> Result<Option<&'static str>, Failure> {
        let request = Request::parse(client, header, bytes, counters, now)?;
        let warning =
            request.attributes.leftover.then_some("bytes leftover after parsing attributes");
        match self.dispatch(&request, out) {
            Ok(()) => Ok(warning),
            Err(failure) => Err(Failure { message: failure.message.or(warning), ..failure }),
        }
    }

    fn dispatch(&mut self, request: &Request<'_>, out: &mut Vec<Delivery>) -> Result<(), Failure> {
        match request.header().kind {
            msg::NEWSA | msg::UPDSA => self.add_sa(request, out),
            msg::DELSA => self.delete_sa(request, out),
            msg::GETSA => self.get_sa(request, out),
            msg::ALLOCSPI => self.allocate_spi(request, out),
            msg::FLUSHSA => self.flush_sas(request, out),
            msg::EXPIRE => self.expire_sa(request, out),
            msg::NEWPOLICY | msg::UPDPOLICY => self.add_policy(request, out),
            msg::DELPOLICY => self.delete_policy(request, out),
            msg::GETPOLICY => self.get_policy(request, out),
            msg::FLUSHPOLICY => self.flush_policies(request, out),
            msg::POLEXPIRE => self.expire_policy(request, out),
            msg::ACQUIRE => self.relay_acquire(request, out),
            msg::NEWAE => self.set_aevent(request, out),
            msg::GETAE => self.get_aevent(request, out),
            msg::GETSADINFO => self.get_sad_info(request, out),
            msg::GETSPDINFO => self.get_spd_info(request, out),
            msg::NEWSPDINFO => self.set_spd_info(request),
            msg::SETDEFAULT => self.set_defaults(request, out),
            msg::GETDEFAULT => self.get_defaults(request, out),
            msg::MIGRATE => self.migrate(request, out),
            // REPORT, MAPPING and NEWSADINFO only ever come from a kernel.
            _ => Err(Errno::INVAL.into()),
        }
    }

    /// Numbers ACQUIREs; 0 stands for none.
    pub(super) fn next_acquire(&mut self) -> u32 {
        self.acquires = self.acquires.checked_add(1).unwrap_or(1);
        self.acquires
    }

    /// Adds an event if anybody listens.
    pub(super) fn emit(&self, out: &mut Vec<Delivery>, group: u32, build: impl FnOnce() -> Bytes) {
        if self.is_heard(group) {
            out.push(Delivery::Event(Event { group, bytes: Arc::new(build()) }));
        }
    }

    /// The header of the event that a request causes: who listens sees who asked.
    pub(super) fn event_header(&self, request: &Request<'_>) -> Header {
        let Header { kind, seq, pid, .. } = request.header();
        Header { kind, seq, pid, ..Header::default() }
    }
}

/// Either bit of the two starts a dump, as in the kernel.
fn is_dump(header: &Header) -> bool {
    matches!(header.kind, msg::GETSA | msg::GETPOLICY) && header.flags & NLM_F_DUMP != 0
}

/// `NLMSG_ERROR`: a refusal with the request quoted, or, with 0 as the error, an acknowledgement.
pub(super) fn acknowledgement(
    client: &Client,
    header: &Header,
    bytes: &[u8],
    result: Result<Option<&'static str>, Failure>,
) -> Bytes {
    let (failure, text) = match result {
        Ok(warning) => (None, warning),
        Err(failure) => (Some(failure), failure.message),
    };
    let quoted = failure.is_some() && !client.cap_ack;
    let text = text.filter(|_| client.ext_ack);
    let offset = failure.and_then(|failure| failure.offset).filter(|_| client.ext_ack);
    let expected = failure.and_then(|failure| failure.expected).filter(|_| client.ext_ack);
    let mut flags = if quoted { 0 } else { NLM_F_CAPPED };
    if text.is_some() || offset.is_some() {
        flags |= NLM_F_ACK_TLVS;
    }
    let code: i32 = failure.map_or(0, |failure| -failure.errno.raw_os_error());
    let quote = if quoted { bytes } else { header.as_bytes() };
    let head = Header { kind: NLMSG_ERROR, flags, seq: header.seq, pid: client.port, len: 0 };
    // The quoted request may hold keys, so room for all of it is made at once.
    let mut reply = Bytes::with_capacity(quote.len() + 256);
    let mut message = Builder::new(reply.vec(), head).fixed(&code).raw(quote);
    if let Some(text) = text {
        message = message.attribute_parts(NLMSGERR_ATTR_MSG, &[text.as_bytes(), &[0]]);
    }
    message = message.attribute_if(NLMSGERR_ATTR_OFFS, offset);
    if let Some(expected) = expected {
        message = message.attribute_parts(
            NLMSGERR_ATTR_POLICY | NLA_F_NESTED,
            &[AttributePolicy::integer(expected.bytes, expected.min, expected.max).as_bytes()],
        );
    }
    message.finish();
    reply
}

/// A refusal made outside of the server.
pub(super) fn refusal(client: &Client, header: &Header, errno: Errno) -> Bytes {
    acknowledgement(client, header, &[], Err(errno.into()))
}
