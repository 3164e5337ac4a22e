//! What is done to all tunnels: installing with many requests under way, rekeying at an even pace,
//! deleting, listing, flushing.

use std::time::{Duration, Instant};

use wire::xfrm::number::msg;

use super::super::program::{Asked, ProgramError};
use super::super::tunnel::{DIRECTIONS, Requests, Tunnel};
use super::{Books, Driver, Operation, allocated};

/// Writes one request of a tunnel.
type Step = fn(&mut Requests, &Tunnel);

/// The requests of a tunnel whose inbound SA has its SPI.
const COMPLETION: [Step; 2 + DIRECTIONS.len()] = [
    Requests::complete_inbound,
    Requests::add_outbound,
    |requests, tunnel| requests.policy(msg::NEWPOLICY, tunnel, DIRECTIONS[0]),
    |requests, tunnel| requests.policy(msg::NEWPOLICY, tunnel, DIRECTIONS[1]),
    |requests, tunnel| requests.policy(msg::NEWPOLICY, tunnel, DIRECTIONS[2]),
];

/// The requests that take a tunnel away, in the order in which an IKE daemon sends them.
const DELETION: [Step; 2 + DIRECTIONS.len()] = [
    |requests, tunnel| requests.delete_policy(tunnel, DIRECTIONS[0]),
    |requests, tunnel| requests.delete_policy(tunnel, DIRECTIONS[1]),
    |requests, tunnel| requests.delete_policy(tunnel, DIRECTIONS[2]),
    |requests, tunnel| requests.delete_sa(tunnel, true),
    |requests, tunnel| requests.delete_sa(tunnel, false),
];

impl Driver {
    /// Installs tunnels until there are so many, `in_flight` of them at a time, as an IKE daemon does
    /// that does not wait for one answer before it sends the next request: their ALLOCSPIs first,
    /// because the SPIs are in the answers, then everything else.
    pub(super) fn fill(
        &mut self,
        tunnels: u32,
        in_flight: u32,
        per_datagram: u32,
    ) -> Result<(), ProgramError> {
        let mut asked: Vec<Asked> = Vec::new();
        let mut first = self.installed.len() as u32;
        while first < tunnels && !self.is_stopped() {
            let end = tunnels.min(first + in_flight.max(1));
            let mut block: Vec<Tunnel> = (first..end).map(Tunnel::new).collect();
            self.begin_all(&[Requests::allocate], &block, per_datagram, &mut asked)?;
            for (tunnel, asked) in block.iter_mut().zip(asked.drain(..)) {
                tunnel.inbound = allocated(self.program.receive(asked)?)?;
                tunnel.outbound = self.requests.fresh_spi();
            }
            self.begin_all(&COMPLETION, &block, per_datagram, &mut asked)?;
            for asked in asked.drain(..) {
                self.program.receive(asked)?;
            }
            self.installed.append(&mut block);
            first = end;
        }
        Ok(())
    }

    /// Deletes every tunnel by requests of its own, `in_flight` of them at a time.
    pub(super) fn delete(&mut self, in_flight: u32, per_datagram: u32) -> Result<(), ProgramError> {
        let mut asked: Vec<Asked> = Vec::new();
        while !self.installed.is_empty() && !self.is_stopped() {
            let first = self.installed.len().saturating_sub(in_flight.max(1) as usize);
            let block = self.installed.split_off(first);
            self.begin_all(&DELETION, &block, per_datagram, &mut asked)?;
            for asked in asked.drain(..) {
                self.program.receive(asked)?;
            }
        }
        Ok(())
    }

    /// Rekeys `count` tunnels out of all at random. Each has its moment, whether the one before was
    /// late or not; its time counts from that moment, so that waiting for a late one is in it.
    pub(super) fn keep_rekeying(
        &mut self,
        per_second: u32,
        count: u32,
        books: &mut Books,
    ) -> Result<(), ProgramError> {
        let begin = Instant::now();
        let mut inside = Books::default();
        for nth in 0..count {
            if self.is_stopped() {
                break;
            }
            let due = begin + Duration::from_secs(nth.into()) / per_second.max(1);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let place = self.below(self.installed.len());
            let Some(old) = self.installed.get(place).copied() else { return Ok(()) };
            self.installed[place] = self.rekey(old, &mut inside)?;
            books.record(Operation::Rekey, due);
        }
        Ok(())
    }

    /// Lists all SAs; how many.
    pub(super) fn list(&mut self) -> Result<u64, ProgramError> {
        let asked = self.begin(Requests::list_sas)?;
        self.program.receive_dump(asked)
    }

    /// Flushes what is installed, by whomever.
    pub(super) fn flush(&mut self) -> Result<(), ProgramError> {
        self.installed.clear();
        for write in [Requests::flush_policies, Requests::flush_sas] {
            let asked = self.begin(write)?;
            self.program.receive(asked)?;
        }
        Ok(())
    }

    /// Sends these requests of all these tunnels: those of `per_datagram` of them together, or, if
    /// that is 0, each for itself.
    fn begin_all(
        &mut self,
        steps: &[Step],
        tunnels: &[Tunnel],
        per_datagram: u32,
        asked: &mut Vec<Asked>,
    ) -> Result<(), ProgramError> {
        let each = tunnels.iter().flat_map(|tunnel| steps.iter().map(move |step| (step, tunnel)));
        let all: Vec<(&Step, &Tunnel)> = each.collect();
        for together in all.chunks((per_datagram as usize * steps.len()).max(1)) {
            self.requests.pack(|requests| {
                together.iter().for_each(|(step, tunnel)| step(requests, tunnel));
            });
            self.sent += together.len() as u64;
            self.program.send_packed(self.requests.bytes(), asked)?;
        }
        Ok(())
    }

    fn begin(&mut self, write: impl FnOnce(&mut Requests)) -> Result<Asked, ProgramError> {
        write(&mut self.requests);
        self.sent += 1;
        self.program.send(self.requests.bytes())
    }
}
