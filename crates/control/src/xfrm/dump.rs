//! Dumps: all SAs or all policies, newest first, in parts that a client fetches one by one.
//!
//! A dump is a cursor and a filter; it holds no entries, so its memory does not depend on the size
//! of the table. What changes while it runs is shown or not, but nothing is shown twice.

use rustix::io::Errno;
use wire::xfrm::Builder;
use wire::xfrm::address::AddressFilter;
use wire::xfrm::message::Message;
use wire::xfrm::netlink::{Header, NLM_F_ACK_TLVS, NLM_F_MULTI, NLMSG_DONE, NLMSGERR_ATTR_MSG};
use wire::xfrm::number::{AF_INET, AF_INET6, attr, msg};

use super::client::Client;
use super::counters::Counters;
use super::failure::Failure;
use super::notice::{self, SaView};
use super::request::parse_attributes;
use super::sa::SaParameters;
use super::sa_request::proto_matches;
use super::secret::{Bytes, REPLY_CAPACITY};
use super::server::Server;

/// Longest part. strongSwan receives into one page and drops what is longer.
pub const PART_MAX: usize = 4096;

/// Room for a part and for the entry behind it that is taken back as it does not fit: a part never moves, which
/// would leave keys behind.
const PART_ROOM: usize = PART_MAX + REPLY_CAPACITY;

#[derive(Clone, Debug)]
enum Table {
    Sas { proto: u8, filter: Option<AddressFilter> },
    Policies,
}

#[derive(Clone, Debug)]
enum Progress {
    /// Everything older than this is still to come.
    Before(u64),
    /// Only the end is still to come.
    Ending(Result<(), Failure>),
    Over,
}

/// A dump that is under way.
#[derive(Clone, Debug)]
pub struct Dump {
    table: Table,
    progress: Progress,
    seq: u32,
    port: u32,
    ext_ack: bool,
}

impl Dump {
    /// Whether its last part was taken.
    pub fn is_over(&self) -> bool {
        matches!(self.progress, Progress::Over)
    }
}

impl Server {
    /// Starts the dump that a GETSA or GETPOLICY asks for. A filter that is wrong ends the dump
    /// with an error, it does not refuse the request: that is where the kernel looks at it.
    pub(super) fn start_dump(&self, client: &Client, header: Header, bytes: &[u8]) -> Dump {
        let (table, progress) = if header.kind == msg::GETPOLICY {
            (Table::Policies, Progress::Before(u64::MAX))
        } else {
            match sa_filter(header, bytes) {
                Ok((proto, filter)) => (Table::Sas { proto, filter }, Progress::Before(u64::MAX)),
                Err(failure) => (Table::Policies, Progress::Ending(Err(failure))),
            }
        };
        Dump { table, progress, seq: header.seq, port: client.port, ext_ack: client.ext_ack }
    }

    /// The next part of a dump: at most `PART_MAX` bytes of entries, at the end a part that says
    /// so, then nothing.
    pub fn dump_next(&self, dump: &mut Dump, counters: &dyn Counters) -> Option<Bytes> {
        if let Progress::Before(cursor) = dump.progress {
            let mut bytes = Bytes::with_capacity(PART_ROOM);
            let rest = match &dump.table {
                Table::Sas { .. } => self.dump_sas(dump, cursor, &mut bytes, counters),
                Table::Policies => self.dump_policies(dump, cursor, &mut bytes, counters),
            };
            dump.progress = rest.map_or(Progress::Ending(Ok(())), Progress::Before);
            if !bytes.is_empty() {
                return Some(bytes);
            }
        }
        let Progress::Ending(result) = dump.progress else { return None };
        dump.progress = Progress::Over;
        Some(done(dump, result))
    }

    /// Adds SAs older than `cursor` while they fit; returns where to go on.
    fn dump_sas(
        &self,
        dump: &Dump,
        mut cursor: u64,
        bytes: &mut Bytes,
        counters: &dyn Counters,
    ) -> Option<u64> {
        let Table::Sas { proto, filter } = &dump.table else { return None };
        let header = entry_header(dump, msg::NEWSA);
        while let Some((id, sa)) = self.sad.before(cursor) {
            let parameters = sa.parameters();
            if proto_matches(parameters.info.id.proto, *proto)
                && passes(parameters, filter.as_ref())
            {
                let start = bytes.len();
                notice::write_sa(bytes.vec(), header, &SaView::new(id, &sa, counters));
                if overflows(bytes, start) {
                    return Some(cursor);
                }
            }
            cursor = id.0;
        }
        None
    }

    fn dump_policies(
        &self,
        dump: &Dump,
        mut cursor: u64,
        bytes: &mut Bytes,
        counters: &dyn Counters,
    ) -> Option<u64> {
        let header = entry_header(dump, msg::NEWPOLICY);
        while let Some((id, policy)) = self.spd.before(cursor) {
            let start = bytes.len();
            notice::write_policy(bytes.vec(), header, &policy, &policy.info(counters));
            if overflows(bytes, start) {
                return Some(cursor);
            }
            cursor = id.0;
        }
        None
    }
}

fn entry_header(dump: &Dump, kind: u16) -> Header {
    Header { kind, flags: NLM_F_MULTI, seq: dump.seq, pid: dump.port, len: 0 }
}

/// Takes the entry that began at `start` back if it made the part too long. A first entry stays,
/// so that a dump always moves on.
fn overflows(bytes: &mut Bytes, start: usize) -> bool {
    let over = bytes.len() > PART_MAX && start > 0;
    if over {
        bytes.vec().truncate(start);
    }
    over
}

fn sa_filter(header: Header, bytes: &[u8]) -> Result<(u8, Option<AddressFilter>), Failure> {
    // The kernel parses a dump request as if it had no fixed part.
    let message = Message::new(header, bytes, 0).ok_or(Failure::new(Errno::INVAL))?;
    let attributes = parse_attributes(&message)?;
    let filter: Option<AddressFilter> = attributes.read(attr::ADDRESS_FILTER);
    if filter.is_some_and(|filter| filter.splen > 128 || filter.dplen > 128) {
        return Err(Errno::INVAL.into());
    }
    Ok((attributes.read(attr::PROTO).unwrap_or_default(), filter))
}

fn passes(parameters: &SaParameters, filter: Option<&AddressFilter>) -> bool {
    let Some(filter) = filter else { return true };
    let info = &parameters.info;
    if matches!(filter.family, AF_INET | AF_INET6) && info.family != filter.family {
        return false;
    }
    info.saddr.matches(&filter.saddr, filter.splen)
        && info.id.daddr.matches(&filter.daddr, filter.dplen)
}

fn done(dump: &Dump, result: Result<(), Failure>) -> Bytes {
    let failure = result.err();
    let code = failure.map_or(0, |failure| -failure.errno.raw_os_error());
    let text = failure.and_then(|failure| failure.message).filter(|_| dump.ext_ack);
    let mut header = entry_header(dump, NLMSG_DONE);
    if text.is_some() {
        header.flags |= NLM_F_ACK_TLVS;
    }
    let mut bytes = Bytes::for_reply();
    let mut message = Builder::new(bytes.vec(), header).fixed(&code);
    if let Some(text) = text {
        message = message.attribute_parts(NLMSGERR_ATTR_MSG, &[text.as_bytes(), &[0]]);
    }
    message.finish();
    bytes
}
