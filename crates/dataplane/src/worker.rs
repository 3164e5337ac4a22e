//! A worker: one thread, one core, the whole path from port to port.
//!
//! [`Worker::turn`] is the table of contents of this crate. A worker shares nothing with another
//! but what the current view holds, and waits for nobody. It does not choose which packets come to
//! it; the steering program does.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{CpuSet, sched_setaffinity};
use xsk::{Frame, Pool, Port};

use crate::accept::accept;
use crate::batch::{BATCH_PACKETS, BatchMemory, Turn};
use crate::board::PortBoard;
use crate::choose::choose;
use crate::classify::classify;
use crate::clock::Clock;
use crate::counters::Counters;
use crate::cpu;
use crate::crew::{self, Lending, Member};
use crate::doorbell::Doorbell;
use crate::event::{Event, EventSink};
use crate::flows::Flows;
use crate::follow::Trails;
use crate::hold::Hold;
use crate::hop::hop;
use crate::inspect::inspect;
use crate::laps::{Laps, Stage};
use crate::open::open;
use crate::parse::parse;
use crate::receive::{put_off, receive};
use crate::route::route;
use crate::seal::seal;
use crate::seat::Seat;
use crate::send::{Queue, send};
use crate::verdict::Verdict;
use crate::view::Reader;

/// What a worker does when there is no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// It goes on asking: the lowest latency, and a core that is always busy.
    Spin,
    /// It asks for a while, letting others have the core who want it, then sleeps until a packet comes.
    Sleep {
        /// The while. Shorter than the gap between packets pays a wake-up (5 µs) for each of them;
        /// longer burns an idle core.
        after: Duration,
    },
}

impl Default for Idle {
    /// 50 µs: the gap between packets at 20 000 per second.
    fn default() -> Idle {
        Idle::Sleep { after: Duration::from_micros(50) }
    }
}

/// Longest sleep. A sleeping worker still has to let go of old views, so this bounds how long
/// control keeps them; it also bounds how late a stop is noticed.
const SLEEP_MAX: Duration = Duration::from_millis(10);

/// The same for a worker whose ports feed those of others: a fill ring of 2048 lasts 200 µs at ten million
/// packets per second. Five thousand wake-ups per second are 2 % of an idle core.
const FEED_SLEEP_MAX: Duration = Duration::from_micros(200);

/// The same while packets wait for an SA, which comes with a view and wakes nobody.
const HOLD_SLEEP_MAX: Duration = Duration::from_millis(1);

/// Turns that a stopping worker spends on packets under way, each followed by a short pause.
const DRAIN_TURNS_MAX: u32 = 100;

/// How long it pauses: all of them together are 100 ms, far more than a full transmit ring needs.
const DRAIN_PAUSE: Duration = Duration::from_millis(1);

/// What a worker is made of.
pub struct WorkerParts {
    /// Its number, from 0.
    pub id: usize,
    /// The CPU to run on; `None` leaves that to the kernel.
    pub cpu: Option<usize>,
    /// The ports, in the order of [`View::ports`](crate::view::View::ports).
    pub ports: Vec<Port>,
    /// The frames.
    pub pool: Pool,
    /// The views.
    pub reader: Reader,
    /// Where events go.
    pub events: SyncSender<Event>,
    /// The data plane's clock.
    pub clock: Clock,
}

/// One worker of the data plane.
pub struct Worker {
    id: usize,
    seat: Seat,
    cpu: Option<usize>,
    ports: Vec<Port>,
    queues: Vec<Queue>,
    pool: Pool,
    /// Before the reader, as what is out refers to the reader's view.
    crew: Option<Member>,
    reader: Reader,
    events: EventSink,
    hold: Hold,
    flows: Flows,
    trails: Trails,
    clock: Clock,
    /// When the current turn began.
    now_ns: u64,
    idle: Idle,
    counters: Arc<Counters>,
    board: Arc<PortBoard>,
    batch: BatchMemory,
    late: Vec<(Frame, u16)>,
    /// The last turn did something for the crew.
    worked: bool,
}

impl Worker {
    /// A worker that has not run yet. All memory it will ever use is allocated here.
    pub fn new(parts: WorkerParts) -> Worker {
        Worker {
            id: parts.id,
            seat: Seat::take(),
            cpu: parts.cpu,
            queues: parts.ports.iter().map(|_| Queue::new()).collect(),
            ports: parts.ports,
            pool: parts.pool,
            crew: None,
            reader: parts.reader,
            events: EventSink::new(parts.events),
            hold: Hold::new(),
            flows: Flows::new(),
            trails: Trails::default(),
            now_ns: parts.clock.now_ns(),
            clock: parts.clock,
            idle: Idle::default(),
            counters: Arc::default(),
            board: Arc::default(),
            batch: BatchMemory::new(),
            late: Vec::with_capacity(BATCH_PACKETS),
            worked: false,
        }
    }

    /// Its number.
    pub fn id(&self) -> usize {
        self.id
    }

    /// Its counters, for control to read while it runs.
    pub fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    /// The counters of its ports, for control to read while it runs.
    pub fn board(&self) -> Arc<PortBoard> {
        self.board.clone()
    }

    /// The CPU it runs on, if that was chosen.
    pub fn cpu(&self) -> Option<usize> {
        self.cpu
    }

    /// Chooses what it does when there is no packet.
    pub fn set_idle(&mut self, idle: Idle) {
        self.idle = idle;
    }

    /// Chooses how long packets wait for an SA at most.
    pub fn set_hold_time(&mut self, time: Duration) {
        self.hold.set_time(time);
    }

    /// Makes it help the other workers of a crew, and they it.
    pub fn join(&mut self, member: Member) {
        self.crew = Some(member);
    }

    /// Chooses when others help it, if it is of a crew.
    pub fn set_lending(&mut self, lending: Lending) {
        if let Some(crew) = &mut self.crew {
            crew.set_lending(lending);
        }
    }

    /// Whether the last turn did something for the crew: helped another, or waits for help.
    pub fn has_worked(&self) -> bool {
        self.worked
    }

    /// Its ports, for their counters.
    pub fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// Its free frames.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// As [`pool`](Worker::pool), for a caller that feeds the ports from the same frames.
    pub fn pool_mut(&mut self) -> &mut Pool {
        &mut self.pool
    }

    /// Packets that wait for a port or for an SA, and are therefore not counted yet.
    pub fn waiting(&self) -> usize {
        let lent = self.crew.as_ref().map_or(0, Member::lent);
        let queued = self.queues.iter().map(Queue::len).sum::<usize>();
        queued + self.hold.len() + self.late.len() + lent
    }

    /// One turn: a batch of packets, from the ports to the ports. The number received.
    pub fn turn(&mut self) -> usize {
        self.turn_of(BATCH_PACKETS, &mut ())
    }

    /// The same, and `laps` is told when each stage is over.
    pub fn turn_timed(&mut self, laps: &mut impl Laps) -> usize {
        self.turn_of(BATCH_PACKETS, laps)
    }

    /// A turn that receives at most so many packets.
    pub(crate) fn turn_of(&mut self, packets_max: usize, laps: &mut impl Laps) -> usize {
        laps.begin();
        let turn_number = self.seat.begin_turn();
        self.now_ns = self.clock.now_ns();
        let now_ns = self.now_ns;
        let packets_max = self.begin_crew(packets_max);
        let (ports, pool, crew) = (&mut self.ports[..], &mut self.pool, &mut self.crew);
        let turn = &mut Turn {
            now_ns,
            worker: self.id,
            seat: self.seat.number(),
            number: turn_number,
            cpu: self.cpu.map(|cpu| cpu as u32),
            counters: &self.counters,
            events: &mut self.events,
            hold: &mut self.hold,
            late: &mut self.late,
            flows: &mut self.flows,
        };
        let batch = &mut self.batch.begin();

        let lends = crew.as_ref().is_some_and(Member::lends);
        laps.receiving();
        let mut received = receive(batch, ports, pool, packets_max, lends, turn);
        if self.reader.is_stale() {
            received = put_off(batch, turn);
        }
        laps.lap(Stage::Receive);
        // After receiving: what was sent when a policy was already in force meets that policy, or was put off.
        let (view, version) = self.reader.enter_numbered();
        cpu::suit_cache(view.sas());
        let followed = match crew.as_mut().filter(|crew| !crew.is_aside()) {
            None => self.trails.follow(batch, version, view, turn),
            Some(crew) => self.trails.lend(batch, version, view, turn, crew),
        };
        laps.lap(Stage::Follow);
        let is_done = crew.as_ref().is_none_or(Member::brings_done);
        if !followed.is_all(batch) || !is_done {
            parse(batch, view);
            laps.lap(Stage::Parse);
            classify(batch, view);
            laps.lap(Stage::Classify);
            open(batch, turn);
            laps.lap(Stage::Open);
            crew::decrypt(batch, crew);
            followed.unpark(batch);
            laps.lap(Stage::Decrypt);
            accept(batch, turn);
            laps.lap(Stage::Accept);
            inspect(batch, view, turn);
            laps.lap(Stage::Inspect);
            hop(batch, view);
            turn.hold.turn(batch, view, now_ns, pool, turn.counters);
            laps.lap(Stage::Hop);
            choose(batch, view, turn);
            laps.lap(Stage::Choose);
            seal(batch, turn);
            laps.lap(Stage::Seal);
            crew::encrypt(batch, crew);
            laps.lap(Stage::Encrypt);
            route(batch, view, turn);
            laps.lap(Stage::Route);
            self.trails.learn(&followed, batch, version, view, turn);
        } else if let Some(crew) = crew.as_mut() {
            crew.rejoin(batch);
        }
        send(batch, ports, &mut self.queues, pool, turn);
        laps.lap(Stage::Send);

        self.batch.end(std::mem::take(batch));
        self.seat.end_turn();
        self.counters.count_turn(received);
        self.worked = crew.as_mut().is_some_and(|crew| crew.end_turn(received));
        received
    }

    /// Before a turn with a crew: what it may receive. While packets are out, the worker keeps the view
    /// that they refer to; when there is a newer one, or the worker is to do all by itself again, it
    /// receives no more until they are back.
    fn begin_crew(&mut self, packets_max: usize) -> usize {
        let Some(crew) = &mut self.crew else { return packets_max };
        self.reader.hold(crew.is_waiting());
        let receives = !crew.is_waiting() || !(self.reader.is_outdated() || crew.is_leaving());
        crew.begin_turn(self.now_ns);
        if receives && !crew.is_short(self.now_ns) { packets_max } else { 0 }
    }

    /// Runs until `stop` is set, then sends what is under way and returns.
    ///
    /// # Errors
    /// If the thread cannot be bound to its CPU, or waiting for packets fails.
    pub fn run(&mut self, stop: &AtomicBool) -> io::Result<()> {
        if let Some(cpu) = self.cpu {
            let mut cpus = CpuSet::new();
            cpus.set(cpu);
            sched_setaffinity(None, &cpus)?;
        }
        let mut busy_ns = self.now_ns;
        while !stop.load(Relaxed) {
            self.board.answer(&self.ports);
            if self.turn() != 0 || self.worked {
                busy_ns = self.now_ns;
                continue;
            }
            match self.idle {
                Idle::Spin => std::hint::spin_loop(),
                Idle::Sleep { after }
                    if self.now_ns.saturating_sub(busy_ns) > after.as_nanos() as u64 =>
                {
                    self.sleep()?;
                }
                // On a core of its own that costs a third of a microsecond; on one that others use, they
                // have what this worker would only look with.
                Idle::Sleep { .. } => std::thread::yield_now(),
            }
        }
        self.drain();
        self.board.settle(&self.ports);
        Ok(())
    }

    /// Waits for a packet on any port, or until something else is due.
    fn sleep(&mut self) -> io::Result<()> {
        if let Some(crew) = &mut self.crew {
            if crew.is_needed() {
                return Ok(());
            }
            crew.rest();
        }
        self.counters.count_sleep();
        self.reader.hold(false);
        self.reader.rest();
        let idle = self.queues.iter().all(Queue::is_idle);
        let has_fds = self.ports.iter().all(|port| port.as_fd().is_some());
        if !idle || !has_fds || self.ports.is_empty() {
            // Something to send, or a port that only polling serves: do not stay away for long.
            std::thread::sleep(Duration::from_micros(50));
            return Ok(());
        }
        // A handful of descriptors, collected only on the way to sleep.
        let doorbell = self.crew.as_ref().map(|crew| crew.doorbell());
        let fds = self.ports.iter().filter_map(Port::as_fd).chain(doorbell.map(Doorbell::as_fd));
        let mut fds: Vec<PollFd<'_>> =
            fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let longest = if self.hold.len() == 0 { SLEEP_MAX } else { HOLD_SLEEP_MAX };
        let feeds = self.ports.iter().any(Port::feeds_others);
        let longest = if feeds { longest.min(FEED_SLEEP_MAX) } else { longest };
        let timeout = Timespec { tv_sec: 0, tv_nsec: longest.as_nanos() as i64 };
        let result = poll(&mut fds, Some(&timeout));
        if let Some(doorbell) = doorbell {
            doorbell.hear();
        }
        match result {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes back what is out, for a bounded time, and gives up the rest.
    fn drain_crew(&mut self) {
        for _ in 0..DRAIN_TURNS_MAX {
            if !self.crew.as_ref().is_some_and(Member::is_waiting) {
                break;
            }
            self.turn_of(0, &mut ());
        }
        if let Some(crew) = &mut self.crew {
            crew.discard(&mut self.pool, &self.counters);
        }
        self.reader.hold(false);
    }

    /// Sends what waits, for a bounded time, and gives up the rest. Receives nothing more.
    fn drain(&mut self) {
        // What comes back from others may have to wait as well.
        self.drain_crew();
        self.hold.discard(&mut self.pool, &self.counters);
        self.counters.count(Verdict::Stopped, self.late.len() as u64);
        for (frame, _) in self.late.drain(..) {
            self.pool.give(frame);
        }
        for _ in 0..DRAIN_TURNS_MAX {
            for (queue, port) in self.queues.iter_mut().zip(&mut self.ports) {
                queue.drain(port, &mut self.pool, &self.counters);
            }
            if self.queues.iter().all(Queue::is_idle) {
                return;
            }
            std::thread::sleep(DRAIN_PAUSE);
        }
        for queue in &mut self.queues {
            queue.discard(&mut self.pool, &self.counters);
        }
    }
}
