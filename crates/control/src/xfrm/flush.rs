//! Flushes: all SAs or all policies go, in parts, so that nobody else waits for the last of 100 000.
//!
//! As in the kernel, which lets go of its lock in between, a flush is not one step: what others add
//! while it runs stays, and what they look at meanwhile is partly gone. It goes from the newest
//! entry to the oldest, and is answered and announced when the last is out of force.

use wire::xfrm::netlink::{Header, NLM_F_ACK};
use wire::xfrm::number::group;
use wire::xfrm::sa::UsersaFlush;

use super::client::Client;
use super::delivery::Delivery;
use super::failure::Failure;
use super::notice;
use super::policy_request::kind_of;
use super::request::Request;
use super::sa_request::proto_matches;
use super::server::{Server, acknowledgement};

/// Entries of a part: half a millisecond, which is how long whoever else asks may have to wait for it.
const PART_ENTRIES: usize = 128;

#[derive(Clone, Copy, Debug)]
enum Table {
    Sas { proto: u8 },
    Policies { kind: u8 },
}

/// A flush that is under way.
#[derive(Clone, Copy, Debug)]
pub struct Flush {
    table: Table,
    /// What is left has names below this.
    below: u64,
    /// Something went.
    any: bool,
    client: Client,
    header: Header,
    warning: Option<&'static str>,
}

impl Flush {
    /// The answer, when it is over.
    pub fn answer(&self) -> Option<Delivery> {
        let reply = || acknowledgement(&self.client, &self.header, &[], Ok(self.warning));
        (self.header.flags & NLM_F_ACK != 0).then(|| Delivery::Reply(reply()))
    }

    pub(super) fn warn(&mut self, warning: Option<&'static str>) {
        self.warning = warning;
    }
}

impl Server {
    /// FLUSHSA; an empty table is no failure and no event.
    pub(super) fn flush_sas(
        &mut self,
        request: &Request<'_>,
        out: &mut Vec<Delivery>,
    ) -> Result<(), Failure> {
        let UsersaFlush { proto } = request.fixed()?;
        self.begin_flush(Table::Sas { proto }, request, out);
        Ok(())
    }

    /// FLUSHPOLICY; an empty table is no failure and no event.
    pub(super) fn flush_policies(
        &mut self,
        request: &Request<'_>,
        out: &mut Vec<Delivery>,
    ) -> Result<(), Failure> {
        let kind = kind_of(&request.attributes)?;
        self.begin_flush(Table::Policies { kind }, request, out);
        Ok(())
    }

    /// Does the first part. What is left of a longer flush is in `flushing` then.
    fn begin_flush(&mut self, table: Table, request: &Request<'_>, out: &mut Vec<Delivery>) {
        let (client, header) = (*request.client, request.header());
        let mut flush = Flush { table, below: u64::MAX, any: false, client, header, warning: None };
        if !self.flush_next(&mut flush, out) {
            self.flushing = Some(flush);
        }
    }

    /// The next part of a flush. Whether it is over.
    pub fn flush_next(&mut self, flush: &mut Flush, out: &mut Vec<Delivery>) -> bool {
        for _ in 0..PART_ENTRIES {
            if !self.flush_one(flush) {
                self.announce_flush(flush, out);
                return true;
            }
        }
        false
    }

    /// Looks at the next entry; whether there was one.
    fn flush_one(&mut self, flush: &mut Flush) -> bool {
        match flush.table {
            Table::Sas { proto } => {
                let Some((id, of)) = self.sad.protocol_before(flush.below) else { return false };
                flush.below = id.0;
                if proto_matches(of, proto) {
                    flush.any = true;
                    self.remove_sa(id);
                }
            }
            Table::Policies { kind } => {
                let Some((id, policy)) = self.spd.before(flush.below) else { return false };
                flush.below = id.0;
                if policy.record.kind == kind {
                    flush.any = true;
                    self.remove_policy(id);
                }
            }
        }
        true
    }

    fn announce_flush(&self, flush: &Flush, out: &mut Vec<Delivery>) {
        if !flush.any {
            return;
        }
        let Header { kind, seq, pid, .. } = flush.header;
        let header = Header { kind, seq, pid, ..Header::default() };
        match flush.table {
            Table::Sas { proto } => {
                self.emit(out, group::SA, || notice::sa_flushed(header, proto));
            }
            Table::Policies { kind } => {
                self.emit(out, group::POLICY, || notice::policies_flushed(header, kind));
            }
        }
    }
}
