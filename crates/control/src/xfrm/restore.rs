//! A server as an earlier process left it, from the entries that `record.rs` wrote.
//!
//! Two steps: [`Entries`] takes the entries in order and keeps the last of each name; then
//! [`Server::restore`] builds what they say with the code that answers the same messages from a
//! program, so that whatever a program could install comes back as it was. Nothing panics on any
//! bytes: an entry that makes no sense is counted and left out.

use std::collections::BTreeMap;
use std::sync::Arc;

use dataplane::ledger::Place;
use dataplane::replay::WINDOW_MAX;
use rustix::io::Errno;
use wire::xfrm::netlink::Datagram;
use wire::xfrm::number::{attr, msg};
use wire::xfrm::policy::UserpolicyInfo;
use wire::xfrm::replay::ReplayStateEsn;
use wire::xfrm::sa::UsersaInfo;
use zerocopy::FromBytes;

use super::client::Client;
use super::failure::Failure;
use super::info::Thresholds;
use super::policy::{Defaults, Policy, PolicyId, PolicyRecord};
use super::policy_request::construct;
use super::record::{self, EntryHead, Marks, PolicyHead, SaHead, flag, kind};
use super::request::Request;
use super::sa::{AeventThresholds, Body, Sa, SaId, SaRecord};
use super::sa_request::parameters;
use super::secret::Bytes;
use super::server::{Change, Server};

/// Bytes that are no entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it holds something that is no entry")]
pub struct NoEntry;

/// The last entry of each name.
#[derive(Debug, Default)]
pub struct Entries<'a> {
    marks: Option<Marks>,
    sas: BTreeMap<u64, (SaHead, &'a [u8])>,
    policies: BTreeMap<u64, (PolicyHead, &'a [u8])>,
    epoch: Option<u32>,
}

impl<'a> Entries<'a> {
    /// Adds entries that were written together: all of them, or on an error none.
    ///
    /// # Errors
    ///
    /// [`NoEntry`] if any of the bytes are none.
    pub fn add(&mut self, bytes: &'a [u8]) -> Result<(), NoEntry> {
        split(bytes, &mut |_, _| Ok(()))?;
        split(bytes, &mut |kind, body| self.add_one(kind, body))
    }

    fn add_one(&mut self, kind: u32, body: &'a [u8]) -> Result<(), NoEntry> {
        match kind {
            kind::MARKS => self.marks = Some(read(body)?.0),
            kind::SA => {
                let (head, message): (SaHead, _) = read(body)?;
                self.sas.insert(head.id, (head, message));
            }
            kind::SA_GONE => {
                self.sas.remove(&read::<u64>(body)?.0);
            }
            kind::POLICY => {
                let (head, message): (PolicyHead, _) = read(body)?;
                self.policies.insert(head.id, (head, message));
            }
            kind::POLICY_GONE => {
                self.policies.remove(&read::<u64>(body)?.0);
            }
            kind::EPOCH => self.epoch = u32::try_from(read::<u64>(body)?.0).ok(),
            _ => return Err(NoEntry),
        }
        Ok(())
    }

    /// The epoch of the process that wrote last, if it is in an entry.
    pub fn epoch(&self) -> Option<u32> {
        self.epoch
    }

    /// Appends the epoch of the process that writes from here on.
    pub fn write_epoch(out: &mut Bytes, epoch: u16) {
        record::write_epoch(out, epoch);
    }

    /// Whether they say what the default actions are. Whatever a server writes does.
    pub fn have_marks(&self) -> bool {
        self.marks.is_some()
    }

    /// Whether their server came after one of which not all was known, and something that was protected then
    /// was still held back.
    pub fn are_in_doubt(&self) -> bool {
        self.marks.is_some_and(|marks| marks.in_doubt != 0)
    }

    /// SAs and policies, as far as the entries go.
    pub fn sizes(&self) -> (usize, usize) {
        (self.sas.len(), self.policies.len())
    }
}

/// Cuts bytes into entries, whose bodies are long enough for their heads.
fn split<'a>(
    mut bytes: &'a [u8],
    each: &mut dyn FnMut(u32, &'a [u8]) -> Result<(), NoEntry>,
) -> Result<(), NoEntry> {
    while !bytes.is_empty() {
        let (head, rest): (EntryHead, _) = read(bytes)?;
        let (body, rest) = rest.split_at_checked(head.len as usize).ok_or(NoEntry)?;
        let body_min = match head.kind {
            kind::MARKS => size_of::<Marks>(),
            kind::SA => size_of::<SaHead>(),
            kind::POLICY => size_of::<PolicyHead>(),
            kind::SA_GONE | kind::POLICY_GONE | kind::EPOCH => size_of::<u64>(),
            _ => return Err(NoEntry),
        };
        if body.len() < body_min {
            return Err(NoEntry);
        }
        each(head.kind, body)?;
        bytes = rest;
    }
    Ok(())
}

fn read<T: FromBytes>(bytes: &[u8]) -> Result<(T, &[u8]), NoEntry> {
    T::read_from_prefix(bytes).map_err(|_| NoEntry)
}

/// What [`Server::restore`] brought back.
#[derive(Debug, Default)]
pub struct Restored {
    /// For the data plane, in the order in which everything was installed.
    pub changes: Vec<Change>,
    /// Where the numbers of SAs are.
    pub places: Vec<(SaId, Place)>,
    /// SAs with a key.
    pub sas: usize,
    /// Policies.
    pub policies: usize,
    /// SAs and policies that could not be brought back.
    pub lost: usize,
}

/// The window is as large as it says, and no larger than the server ever accepts: what is not checked
/// again of a request that was accepted once, and asks for memory.
fn check_window(request: &Request<'_>) -> Result<(), Failure> {
    let Some(attribute) = request.attributes.get(attr::REPLAY_ESN_VAL) else { return Ok(()) };
    let head: ReplayStateEsn = attribute.read().ok_or(Errno::INVAL)?;
    let whole = head.wire_len() <= attribute.payload.len() as u64;
    let small = head.replay_window <= WINDOW_MAX && head.bmp_len <= WINDOW_MAX / 32;
    if whole && small { Ok(()) } else { Err(Errno::INVAL.into()) }
}

impl Server {
    /// Brings back what the entries say, in a server that has nothing yet. What was lost counts as a
    /// change, so that the journal learns of it.
    pub fn restore(&mut self, entries: &Entries<'_>) -> Restored {
        let mut restored = Restored::default();
        // With nothing to go on with, nobody can be waiting either.
        if !entries.sas.is_empty() || !entries.policies.is_empty() {
            self.expiring.settles_at = Some(0);
        }
        let mut lost = Vec::new();
        for (id, (head, message)) in &entries.sas {
            match self.restore_sa(head, message) {
                Ok(record) => {
                    let place = Place { cell: head.cell, tag: head.tag };
                    restored.sas += usize::from(record.is_some());
                    restored.places.extend(record.as_ref().map(|record| (record.id, place)));
                    let dying = record.is_some() && head.flags & flag::DYING != 0;
                    restored.changes.extend(record.map(Change::SaInstalled));
                    restored.changes.extend(dying.then_some(Change::SaDying(SaId(*id))));
                }
                Err(_) => lost.push(SaId(*id)),
            }
        }
        for (head, message) in entries.policies.values() {
            match self.restore_policy(head, message) {
                Ok(record) => {
                    restored.policies += 1;
                    restored.changes.push(Change::PolicyInstalled(record));
                }
                Err(_) => restored.lost += 1,
            }
        }
        self.restore_marks(&entries.marks.unwrap_or_default());
        if self.defaults != Defaults::default() {
            restored.changes.push(Change::DefaultsChanged(self.defaults));
        }
        restored.lost += lost.len();
        self.forget_touched();
        lost.into_iter().for_each(|id| self.sad.touch(id));
        restored
    }

    /// Takes an SA that was just restored back out: its numbers are lost, so it must not seal, and
    /// must not open what it opened before.
    pub fn give_up(&mut self, id: SaId) {
        self.sad.remove(id);
    }

    fn restore_sa(
        &mut self,
        head: &SaHead,
        message: &[u8],
    ) -> Result<Option<Arc<SaRecord>>, Failure> {
        let client = Client::default();
        let (header, bytes) = Datagram::new(message).next().ok_or(Errno::INVAL)?;
        let request = Request::parse(&client, header, bytes, &(), head.base.add_time)?;
        let has = |bit: u32| head.flags & bit != 0;
        if header.kind != msg::NEWSA || head.id == u64::MAX {
            return Err(Errno::INVAL.into());
        }
        let info: UsersaInfo = request.fixed()?;
        check_window(&request)?;
        let mut sa = if has(flag::LARVAL) {
            Sa::new(Body::Larval(Box::new(parameters(info, &request))), request.now)
        } else if has(flag::PLACED) {
            self.construct_sa(info, &request)?
        } else {
            return Err(Errno::NODATA.into());
        };
        sa.base = head.base;
        sa.dying = has(flag::DYING);
        sa.soft_left_s = has(flag::SOFT_LEFT).then_some(head.soft_left_s);
        sa.deadline = has(flag::DEADLINE).then_some(head.deadline);
        sa.thresholds =
            AeventThresholds { packets: head.threshold_packets, ticks: head.threshold_ticks };
        let id = SaId(head.id);
        if let Body::Valid(record) = &mut sa.body {
            Arc::make_mut(record).id = id;
        }
        let record = sa.record().cloned();
        self.sad.restore(id, &sa);
        Ok(record)
    }

    fn restore_policy(
        &mut self,
        head: &PolicyHead,
        message: &[u8],
    ) -> Result<Arc<PolicyRecord>, Failure> {
        let client = Client::default();
        let (header, bytes) = Datagram::new(message).next().ok_or(Errno::INVAL)?;
        let request = Request::parse(&client, header, bytes, &(), head.add_time)?;
        if header.kind != msg::NEWPOLICY || head.id == u64::MAX {
            return Err(Errno::INVAL.into());
        }
        let info: UserpolicyInfo = request.fixed()?;
        let built = construct(&info, &request)?;
        let record = Arc::new(PolicyRecord {
            id: PolicyId(head.id),
            order: head.order,
            index: info.index,
            ..built
        });
        let deadline = (head.flags & flag::DEADLINE != 0).then_some(head.deadline);
        let policy = Policy { record: Arc::clone(&record), add_time: head.add_time, deadline };
        if self.spd.restore(&policy) { Ok(record) } else { Err(Errno::EXIST.into()) }
    }

    fn restore_marks(&mut self, marks: &Marks) {
        self.sad.skip_to(marks.next_sa);
        self.spd.skip_to((marks.next_policy, marks.next_index));
        self.acquires = marks.acquires;
        let known = |action: u8, default: u8| if action == 0 { default } else { action };
        let ([input, forward, output], old) = (marks.defaults, self.defaults);
        self.defaults = Defaults {
            input: known(input, old.input),
            forward: known(forward, old.forward),
            output: known(output, old.output),
        };
        if marks.defaults != [0; 3] {
            self.thresholds = Thresholds::from_bytes(marks.thresholds);
        }
    }
}
