//! What is measured: kinds of requests, and sequences of them as an IKE daemon sends them.
//!
//! A driver installs tunnels and remembers them; a round begins and ends with the same tunnels
//! installed, so that a table's size is what the report says it is. The clock runs from before a
//! request is sent until its answer is here. What is done to all tunnels at once is in `mass`.

mod mass;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use wire::xfrm::number::msg;
use wire::xfrm::sa::UsersaInfo;
use zerocopy::FromBytes;

use super::program::{Program, ProgramError};
use super::tunnel::{DIRECTIONS, Requests, Tunnel};
use crate::histogram::LatencyHistogram;
use crate::result::Latency;

/// Tunnels that come and go in a round beside those that are installed. Small, so that a table that
/// is called empty nearly is.
const BLOCK: u32 = 500;

/// What a latency belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// ALLOCSPI.
    AllocSpi,
    /// UPDSA of a larval SA.
    UpdSa,
    /// NEWSA.
    NewSa,
    /// NEWPOLICY.
    NewPolicy,
    /// UPDPOLICY of a policy that is there.
    UpdPolicy,
    /// GETSA of one SA, out of all at random.
    GetSa,
    /// DELSA.
    DelSa,
    /// DELPOLICY.
    DelPolicy,
    /// ALLOCSPI, UPDSA, NEWSA, three NEWPOLICY.
    Handshake,
    /// Of a tunnel out of all at random: ALLOCSPI, UPDSA, NEWSA, three UPDPOLICY, two DELSA.
    Rekey,
}

impl Operation {
    /// Its name in tables, and how many requests it is.
    pub const fn describe(self) -> (&'static str, u32) {
        match self {
            Operation::AllocSpi => ("ALLOCSPI", 1),
            Operation::UpdSa => ("UPDSA", 1),
            Operation::NewSa => ("NEWSA", 1),
            Operation::NewPolicy => ("NEWPOLICY", 1),
            Operation::UpdPolicy => ("UPDPOLICY", 1),
            Operation::GetSa => ("GETSA", 1),
            Operation::DelSa => ("DELSA", 1),
            Operation::DelPolicy => ("DELPOLICY", 1),
            Operation::Handshake => ("handshake", 6),
            Operation::Rekey => ("rekey", 8),
        }
    }
}

/// Work for a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Have this many tunnels installed.
    Install(u32),
    /// Measure this many rounds.
    Measure(u32),
    /// Have this many tunnels installed, several at a time.
    Fill {
        /// All of them.
        tunnels: u32,
        /// Tunnels whose requests are under way at a time.
        in_flight: u32,
        /// Tunnels whose requests share a datagram; 0: every request has one of its own.
        per_datagram: u32,
    },
    /// Rekey tunnels at random, at an even pace.
    Rekey {
        /// Rekeyings per second.
        per_second: u32,
        /// How many.
        count: u32,
    },
    /// Delete all tunnels that were installed, several at a time.
    Delete {
        /// Tunnels whose requests are under way at a time.
        in_flight: u32,
        /// Tunnels whose requests share a datagram; 0: every request has one of its own.
        per_datagram: u32,
    },
    /// List all SAs.
    List,
    /// Flush all policies, then all SAs.
    Flush,
}

/// What a driver did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// Requests sent.
    pub requests: u64,
    /// Seconds they took.
    pub seconds: f64,
    /// Latencies, of a measurement only.
    pub latencies: BTreeMap<Operation, Latency>,
    /// Messages of a listing.
    pub listed: u64,
}

/// One client and the tunnels that it installed.
pub struct Driver {
    program: Program,
    requests: Requests,
    installed: Vec<Tunnel>,
    sent: u64,
    random: u64,
    stop: Arc<AtomicBool>,
}

#[derive(Default)]
struct Books(BTreeMap<Operation, LatencyHistogram>);

impl Books {
    fn record(&mut self, operation: Operation, since: Instant) {
        let nanoseconds = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.0.entry(operation).or_default().record(nanoseconds);
    }
}

impl Driver {
    /// A driver without tunnels. `stop` becomes true when orders are to end early.
    pub fn new(program: Program, stop: Arc<AtomicBool>) -> Driver {
        let (requests, installed) = (Requests::default(), Vec::new());
        Driver { program, requests, installed, sent: 0, random: 1, stop }
    }

    /// Carries out an order, or as much of it as there was time for: it ends early between rounds, tunnels and rekeyings.
    ///
    /// # Errors
    /// [`ProgramError`] at the first request that the gateway refuses, or if the connection ends.
    pub fn obey(&mut self, order: Order) -> Result<Done, ProgramError> {
        let (begin, sent) = (Instant::now(), self.sent);
        let (mut books, mut listed) = (Books::default(), 0);
        match order {
            Order::Install(tunnels) => self.install(tunnels)?,
            Order::Measure(rounds) => {
                // Once for nothing: memory that is touched first, branches, the other side's caches.
                self.round(&mut Books::default())?;
                for _ in 0..rounds {
                    if self.is_stopped() {
                        break;
                    }
                    self.round(&mut books)?;
                }
            }
            Order::Fill { tunnels, in_flight, per_datagram } => {
                self.fill(tunnels, in_flight, per_datagram)?
            }
            Order::Rekey { per_second, count } => {
                self.keep_rekeying(per_second, count, &mut books)?
            }
            Order::Delete { in_flight, per_datagram } => self.delete(in_flight, per_datagram)?,
            Order::List => listed = self.list()?,
            Order::Flush => self.flush()?,
        }
        let latencies = books.0.iter().filter_map(|(of, all)| Some((*of, all.latency()?)));
        Ok(Done {
            requests: self.sent - sent,
            seconds: begin.elapsed().as_secs_f64(),
            latencies: latencies.collect(),
            listed,
        })
    }

    fn install(&mut self, tunnels: u32) -> Result<(), ProgramError> {
        let mut unwanted = Books::default();
        for number in self.installed.len() as u32..tunnels {
            if self.is_stopped() {
                break;
            }
            let tunnel = self.handshake(number, &mut unwanted)?;
            self.installed.push(tunnel);
        }
        Ok(())
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn round(&mut self, books: &mut Books) -> Result<(), ProgramError> {
        self.singly(books)?;
        self.in_sequence(books)
    }

    /// Each kind of request for itself, `BLOCK` of each in a row.
    fn singly(&mut self, books: &mut Books) -> Result<(), ProgramError> {
        let first = self.installed.len() as u32;
        let mut block: Vec<Tunnel> = (first..first + BLOCK).map(Tunnel::new).collect();
        for tunnel in &mut block {
            self.allocate(tunnel, books)?;
            tunnel.outbound = self.requests.fresh_spi();
        }
        for tunnel in &block {
            self.timed(Operation::UpdSa, books, |requests| requests.complete_inbound(tunnel))?;
        }
        for tunnel in &block {
            self.timed(Operation::NewSa, books, |requests| requests.add_outbound(tunnel))?;
        }
        for tunnel in &block {
            self.policies(Operation::NewPolicy, tunnel, books)?;
        }
        for nth in 0..block.len() {
            let tunnel = self.any(&block);
            let inbound = nth % 2 == 0;
            self.timed(Operation::GetSa, books, |requests| requests.get_sa(&tunnel, inbound))?;
        }
        for tunnel in &block {
            self.policies(Operation::UpdPolicy, tunnel, books)?;
        }
        for tunnel in &block {
            self.dismantle(tunnel, books)?;
        }
        Ok(())
    }

    /// New tunnels, one after the other, then rekeying.
    fn in_sequence(&mut self, books: &mut Books) -> Result<(), ProgramError> {
        // What is in a sequence is counted as the sequence only.
        let mut inside = Books::default();
        let first = self.installed.len();
        for number in first as u32..first as u32 + BLOCK {
            let begin = Instant::now();
            let tunnel = self.handshake(number, &mut inside)?;
            books.record(Operation::Handshake, begin);
            self.installed.push(tunnel);
        }
        for _ in 0..BLOCK {
            let place = self.below(self.installed.len());
            let begin = Instant::now();
            self.installed[place] = self.rekey(self.installed[place], &mut inside)?;
            books.record(Operation::Rekey, begin);
        }
        for tunnel in self.installed.split_off(first) {
            self.dismantle(&tunnel, &mut inside)?;
        }
        Ok(())
    }

    fn handshake(&mut self, number: u32, books: &mut Books) -> Result<Tunnel, ProgramError> {
        let tunnel = self.sas(Tunnel::new(number), books)?;
        self.policies(Operation::NewPolicy, &tunnel, books)?;
        Ok(tunnel)
    }

    fn rekey(&mut self, old: Tunnel, books: &mut Books) -> Result<Tunnel, ProgramError> {
        let new = self.sas(Tunnel::new(old.number), books)?;
        self.policies(Operation::UpdPolicy, &new, books)?;
        self.delete_sas(&old, books)?;
        Ok(new)
    }

    fn sas(&mut self, mut tunnel: Tunnel, books: &mut Books) -> Result<Tunnel, ProgramError> {
        self.allocate(&mut tunnel, books)?;
        self.timed(Operation::UpdSa, books, |requests| requests.complete_inbound(&tunnel))?;
        tunnel.outbound = self.requests.fresh_spi();
        self.timed(Operation::NewSa, books, |requests| requests.add_outbound(&tunnel))?;
        Ok(tunnel)
    }

    fn policies(
        &mut self,
        operation: Operation,
        tunnel: &Tunnel,
        books: &mut Books,
    ) -> Result<(), ProgramError> {
        let kind = if operation == Operation::NewPolicy { msg::NEWPOLICY } else { msg::UPDPOLICY };
        for dir in DIRECTIONS {
            self.timed(operation, books, |requests| requests.policy(kind, tunnel, dir))?;
        }
        Ok(())
    }

    fn delete_sas(&mut self, tunnel: &Tunnel, books: &mut Books) -> Result<(), ProgramError> {
        for inbound in [true, false] {
            self.timed(Operation::DelSa, books, |requests| requests.delete_sa(tunnel, inbound))?;
        }
        Ok(())
    }

    fn dismantle(&mut self, tunnel: &Tunnel, books: &mut Books) -> Result<(), ProgramError> {
        for dir in DIRECTIONS {
            self.timed(Operation::DelPolicy, books, |requests| {
                requests.delete_policy(tunnel, dir)
            })?;
        }
        self.delete_sas(tunnel, books)
    }

    fn allocate(&mut self, tunnel: &mut Tunnel, books: &mut Books) -> Result<(), ProgramError> {
        self.requests.allocate(tunnel);
        let begin = Instant::now();
        let answer = self.program.ask(self.requests.bytes())?;
        books.record(Operation::AllocSpi, begin);
        self.sent += 1;
        tunnel.inbound = allocated(answer)?;
        Ok(())
    }

    fn timed(
        &mut self,
        operation: Operation,
        books: &mut Books,
        write: impl FnOnce(&mut Requests),
    ) -> Result<(), ProgramError> {
        write(&mut self.requests);
        let begin = Instant::now();
        self.program.ask(self.requests.bytes())?;
        books.record(operation, begin);
        self.sent += 1;
        Ok(())
    }

    /// One of the installed tunnels, or of these when there are none.
    fn any(&mut self, others: &[Tunnel]) -> Tunnel {
        let among = if self.installed.is_empty() { others.len() } else { self.installed.len() };
        let place = self.below(among);
        self.installed.get(place).copied().unwrap_or(others[place % others.len()])
    }

    /// A number below `end`, of Knuth's generator: the same in every run.
    fn below(&mut self, end: usize) -> usize {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize % end.max(1)
    }
}

/// The SPI in the answer to an ALLOCSPI.
fn allocated(answer: &[u8]) -> Result<u32, ProgramError> {
    let body = answer.get(wire::xfrm::netlink::HEADER_LEN..).unwrap_or_default();
    let info = UsersaInfo::read_from_prefix(body).map(|(info, _)| info);
    Ok(info.map_err(|_| ProgramError::Closed)?.id.spi.get())
}
