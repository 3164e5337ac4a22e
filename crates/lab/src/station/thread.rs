//! The station's thread: the turn.
//!
//! ```text
//!   each turn:  for both ports: probe if due → load that is due, at most one burst
//!               for both ports: everything that has arrived → the sink's books
//!               sample if a quarter of a second is over
//!               sleep until the next turn, unless more is due already
//! ```

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use xsk::{Frame, Pool, Port, Umem, XdpOptions, XdpPort};

use super::{
    Command, DirectionBooks, Event, Order, Progress, SAMPLE_TIME, Snapshot, StationCounters,
    StationError, StationPort, Steady, StepBooks,
};
use crate::clock;
use crate::generator::{Generator, Source};
use crate::sink::{Arrived, Sink};
use crate::topology::{Namespace, TopologyError};
use crate::traffic::SIGNATURE;

/// The time between two turns. At 500 kpps a turn sends 50 frames: shorter turns cost more in
/// wake-ups than they smooth (a wake-up is about 5 µs), longer ones send bursts that overflow the
/// 256 places of a veth's queue.
const TURN_NS: u64 = 100_000;
/// The kernel may delay a sleep by this much; its default of 50 µs is half a turn.
const TIMER_SLACK_NS: NonZeroU64 = NonZeroU64::MIN;
/// The station goes before the gateways when they compete for a core: a generator that waits
/// offers less than it says. It sleeps whenever nothing is due.
const NICE: i32 = -10;
/// Packet memory, 2 KiB each: per port 2048 in the fill ring, 2048 arrived and 2048 on their way
/// out make 12 288; the rest are bursts in hand.
const CHUNKS: usize = 16_384;
const CHUNK_BYTES: usize = 2048;
/// Frames taken from a port in one go.
const RECEIVE_MAX: usize = 256;

/// Starts the thread in `namespace`; its first event says whether the ports are open.
pub(super) fn spawn(
    namespace: &Namespace,
    ports: [StationPort; 2],
    stop: Arc<AtomicBool>,
    orders: Receiver<Command>,
    answers: Sender<Event>,
) -> Result<JoinHandle<()>, StationError> {
    let path = namespace.path();
    let work = move || {
        let opened = Namespace::enter_path(&path)
            .map_err(StationError::from)
            .and_then(|()| Bench::open(&ports, stop, answers.clone()));
        match opened {
            Ok(mut bench) => {
                let _ = answers.send(Event::Ready(Ok(())));
                bench.serve(&orders);
            }
            Err(error) => {
                let _ = answers.send(Event::Ready(Err(error)));
            }
        }
    };
    std::thread::Builder::new().name("lab-station".to_owned()).spawn(work).map_err(|source| {
        let what = "starting the station's thread".to_owned();
        TopologyError::Io { what, source }.into()
    })
}

/// Everything the thread owns.
struct Bench {
    ports: [Port; 2],
    programs: [xsk::Sink; 2],
    generators: [Generator; 2],
    sink: Sink,
    pool: Pool,
    /// Received frames in hand; empty between turns.
    arrivals: Vec<Frame>,
    /// Frames that wait in the transmit rings.
    waiting: [u64; 2],
    stop: Arc<AtomicBool>,
    answers: Sender<Event>,
}

/// Where the generators were when the step began.
type Start = [(u64, u64, u64); 2];

impl Bench {
    fn open(
        plans: &[StationPort; 2],
        stop: Arc<AtomicBool>,
        answers: Sender<Event>,
    ) -> Result<Bench, StationError> {
        // Neither is needed to be right, only to be punctual: an unprivileged station goes on.
        let _ = rustix::process::setpriority_process(None, NICE);
        let _ = rustix::thread::set_current_timer_slack(Some(TIMER_SLACK_NS));
        let umem = Umem::new(CHUNKS, CHUNK_BYTES, false).map_err(StationError::Memory)?;
        let mut pool = umem.pool(0..CHUNKS);
        let [one, two] = plans;
        let (generators, sink) = halves([one.source.clone(), two.source.clone()], &pool)?;
        let (port_one, program_one) = open_port(&one.interface, &mut pool)?;
        let (port_two, program_two) = open_port(&two.interface, &mut pool)?;
        Ok(Bench {
            ports: [port_one, port_two],
            programs: [program_one, program_two],
            generators,
            sink,
            pool,
            arrivals: Vec::with_capacity(RECEIVE_MAX),
            waiting: [0; 2],
            stop,
            answers,
        })
    }

    /// Does what is asked until nobody can ask any more.
    fn serve(&mut self, orders: &Receiver<Command>) {
        while let Ok(command) = orders.recv() {
            let answer = match command {
                Command::Step(order) => Event::Done(Box::new(self.step(&order))),
                Command::Counters => Event::Counters(self.counters()),
                Command::Sources(sources) => Event::Ready(self.replace(*sources)),
            };
            if self.answers.send(answer).is_err() {
                return;
            }
        }
    }

    fn replace(&mut self, sources: [Source; 2]) -> Result<(), StationError> {
        // Old frames would be strangers to the new books.
        self.receive();
        (self.generators, self.sink) = halves(sources, &self.pool)?;
        Ok(())
    }

    fn step(&mut self, order: &Order) -> StepBooks {
        // What arrives from here on is this step's, stragglers of the last one included: they are
        // late, and every frame that ever arrives is in the books of some step.
        self.sink.begin();
        let start = self.positions();
        for (generator, load) in self.generators.iter_mut().zip(order.load) {
            generator.begin(load, order.duration);
        }
        let (duration, settled) = self.send_for(order, &start);
        let sent_until = self.sink.arrived();
        for index in 0..2 {
            self.generators[index].end(&mut self.ports[index], &mut self.pool);
        }
        self.drain(order.drain);
        let sequences = [0, 1].map(|port: usize| self.generators[port].sequences());
        self.sink.close(sequences);
        let steady = [0, 1].map(|port: usize| {
            let (at, before): (Duration, [Arrived; 2]) = settled;
            let (before, until) = (before[port], sent_until[port]);
            Steady {
                duration: duration - at,
                frames: until.load.received - before.load.received,
                bytes: until.load_bytes - before.load_bytes,
            }
        });
        StepBooks {
            duration,
            interrupted: self.is_stopped(),
            directions: self.books(&start, duration, steady),
        }
    }

    /// Sends for the time of the step, or until stopped. Returns how long, and when it settled with
    /// what had arrived by then.
    fn send_for(&mut self, order: &Order, start: &Start) -> (Duration, (Duration, [Arrived; 2])) {
        let begin_ns = clock::now_ns();
        let mut settled = (Duration::ZERO, [Arrived::default(); 2]);
        let mut is_settled = order.settle.is_zero();
        let mut samples = Samples::of(order.duration);
        loop {
            // The last turn is that of the very end: it sends what came due since the one before.
            let elapsed = since(begin_ns).min(order.duration);
            let is_over = elapsed == order.duration || self.is_stopped();
            let mut is_behind = false;
            for (index, generator) in self.generators.iter_mut().enumerate() {
                is_behind |= generator.turn(elapsed, &mut self.ports[index], &mut self.pool);
            }
            let received = self.receive();
            if !is_settled && elapsed >= order.settle {
                is_settled = true;
                self.sink.settle();
                settled = (elapsed, self.sink.arrived());
            }
            if samples.is_due(elapsed, is_over) {
                self.report(elapsed, start);
            }
            if is_over {
                return (elapsed, settled);
            }
            if !is_behind && received == 0 {
                sleep_until(begin_ns, TURN_NS, order.duration);
            }
        }
    }

    /// Takes in what is still on its way.
    fn drain(&mut self, time: Duration) {
        let begin_ns = clock::now_ns();
        while since(begin_ns) < time {
            for (index, port) in self.ports.iter_mut().enumerate() {
                self.waiting[index] = port.flush(&mut self.pool) as u64;
            }
            if self.receive() == 0 {
                sleep_until(begin_ns, TURN_NS, time);
            }
        }
        self.receive();
    }

    /// Books everything that has arrived, at most one ring per port; returns how many frames.
    fn receive(&mut self) -> usize {
        let mut total = 0;
        for (at, port) in self.ports.iter_mut().enumerate() {
            // Bounded, so that a port that never runs dry cannot hold up sending.
            for _ in 0..XdpOptions::default().ring_entries as usize / RECEIVE_MAX {
                let (pool, arrivals) = (&mut self.pool, &mut self.arrivals);
                let count = port.receive(pool, arrivals, RECEIVE_MAX, |frame| frame).packets;
                for frame in self.arrivals.drain(..) {
                    let received_ns = frame.metadata_u64().unwrap_or_else(clock::now_ns);
                    self.sink.receive(at, frame.bytes(), received_ns);
                    self.pool.give(frame);
                }
                total += count;
                if count < RECEIVE_MAX {
                    break;
                }
            }
        }
        total
    }

    fn report(&mut self, elapsed: Duration, start: &Start) {
        let arrived = self.sink.arrived();
        let now = self.positions();
        let directions = [0, 1].map(|port: usize| Progress {
            sent: now[port].0 - start[port].0,
            probes_sent: now[port].1 - start[port].1,
            sent_bytes: now[port].2 - start[port].2,
            arrived: arrived[port],
        });
        let latency_us = self.sink.recent_latency();
        // Nobody listens any more when the station is being dropped.
        let _ = self.answers.send(Event::Snapshot(Snapshot { elapsed, directions, latency_us }));
    }

    fn books(&self, start: &Start, duration: Duration, steady: [Steady; 2]) -> [DirectionBooks; 2] {
        let arrived = self.sink.arrived();
        let latencies = self.sink.latencies();
        let now = self.positions();
        [0, 1].map(|port: usize| {
            let (mut load, mut probes) = (arrived[port].load, arrived[port].probes);
            load.sent = now[port].0 - start[port].0;
            probes.sent = now[port].1 - start[port].1;
            self.generators[port].expect(duration, &mut load, &mut probes);
            DirectionBooks {
                load,
                probes,
                load_bytes: arrived[port].load_bytes,
                steady: steady[port],
                latency: latencies[port].clone(),
            }
        })
    }

    /// Load frames, probes and load bytes that each generator has sent so far.
    fn positions(&self) -> Start {
        [0, 1].map(|port: usize| {
            let generator = &self.generators[port];
            let (load, probes) = generator.sequences();
            (load, probes, generator.sent_bytes())
        })
    }

    fn counters(&self) -> StationCounters {
        StationCounters {
            ports: [0, 1].map(|port: usize| self.ports[port].counters()),
            refused: [0, 1].map(|port: usize| refused(&self.programs[port])),
            waiting: self.waiting,
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // The interfaces go back to the kernel; if they are gone already, so are the programs.
        for program in &mut self.programs {
            let _ = program.detach();
        }
    }
}

/// When the samples of a step are due: as a quarter of a second is over, or as soon after it as the thread has its core. None is
/// shorter than half of one, whatever held the thread up and however long the step: what had piled up, over no time, would be a rate
/// that never was, and what is still on its way would look lost.
struct Samples {
    duration: Duration,
    last: Duration,
    next: Duration,
}

impl Samples {
    /// Those of a step that takes so long.
    fn of(duration: Duration) -> Samples {
        Samples { duration, last: Duration::ZERO, next: SAMPLE_TIME }
    }

    /// Whether one is due that long after the beginning; then the next is not until later. The step `is_over` with its time, or when
    /// it is stopped: what is too short for a sample then was in none, unless it is the only one.
    fn is_due(&mut self, elapsed: Duration, is_over: bool) -> bool {
        let shortest = SAMPLE_TIME / 2;
        let since_last = elapsed - self.last;
        let is_due = match is_over {
            true => since_last >= shortest || self.last.is_zero(),
            false => elapsed >= self.next && self.duration - elapsed >= shortest,
        };
        if is_due {
            self.last = elapsed;
            let quarter = |at: Duration| (at.as_nanos() / SAMPLE_TIME.as_nanos()) as u32;
            self.next = SAMPLE_TIME * (quarter(elapsed + shortest) + 1);
        }
        is_due
    }
}

/// The sending and the receiving half for what both ports send.
fn halves(sources: [Source; 2], pool: &Pool) -> Result<([Generator; 2], Sink), StationError> {
    let max = pool.umem().packet_size_max();
    for source in &sources {
        let size = source.mix.sizes().max().unwrap_or_default();
        if usize::from(size) > max {
            return Err(StationError::FrameSize { size, max });
        }
    }
    let cycles = [0, 1].map(|port: usize| sources[port].cycle.clone());
    let [one, two] = sources;
    Ok(([Generator::new(one)?, Generator::new(two)?], Sink::new(cycles)))
}

/// Opens the port and brings the frames with our signature to it.
fn open_port(interface: &str, pool: &mut Pool) -> Result<(Port, xsk::Sink), StationError> {
    let error = |source| StationError::Port { interface: interface.to_owned(), source };
    let mut program = xsk::Sink::load(interface, SIGNATURE).map_err(error)?;
    let port = XdpPort::open(interface, 0, 1, pool, XdpOptions::default()).map_err(error)?;
    for (queue, socket) in port.queues() {
        program.register(queue, socket).map_err(error)?;
    }
    program.attach().map_err(error)?;
    Ok((Port::Xdp(port), program))
}

/// Frames of ours that the program dropped instead of giving them to the socket.
fn refused(program: &xsk::Sink) -> u64 {
    program
        .counters()
        .iter()
        .filter(|count| count.name.starts_with("drop_"))
        .map(|count| count.packets)
        .sum()
}

fn since(begin_ns: u64) -> Duration {
    Duration::from_nanos(clock::now_ns() - begin_ns)
}

/// Sleeps until the next whole turn after the begin, but not beyond `end`.
fn sleep_until(begin_ns: u64, turn_ns: u64, end: Duration) {
    let elapsed = since(begin_ns);
    let turn = (elapsed.as_nanos() as u64 / turn_ns + 1) * turn_ns;
    let next = Duration::from_nanos(turn).min(end);
    std::thread::sleep(next.saturating_sub(elapsed));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When samples are taken, in milliseconds, by a thread that has its core at those times; the last is the end.
    fn taken(turns: impl IntoIterator<Item = u64>, duration: u64) -> Vec<u64> {
        let mut samples = Samples::of(Duration::from_millis(duration));
        let turns = turns.into_iter().take_while(|at| *at < duration);
        let all = turns.map(|at| (at, false)).chain([(duration, true)]);
        let due = all.filter(|(at, is_over)| samples.is_due(Duration::from_millis(*at), *is_over));
        due.map(|(at, _)| at).collect()
    }

    #[test]
    fn a_sample_is_a_quarter_of_a_second() {
        assert_eq!(taken(0.., 1000), [250, 500, 750, 1000]);
        assert_eq!(taken(0.., 100), [100]);
    }

    #[test]
    fn a_remainder_belongs_to_the_sample_before() {
        assert_eq!(taken(0.., 1001), [250, 500, 750, 1001]);
        assert_eq!(taken(0.., 1124), [250, 500, 750, 1124]);
        assert_eq!(taken(0.., 1130), [250, 500, 750, 1000, 1130]);
    }

    /// Away from its core for a while, the thread has not three samples to report when it is back.
    #[test]
    fn a_stall_makes_one_long_sample_and_no_short_ones() {
        let stalled = |from: u64, until: u64| (0..from).chain(until..);
        assert_eq!(taken(stalled(100, 902), 2000), [902, 1250, 1500, 1750, 2000]);
        assert_eq!(taken(stalled(100, 760), 1000), [760, 1000]);
        assert_eq!(taken(stalled(600, 990), 1000), [250, 500, 1000]);
    }

    /// A step that is stopped right behind a sample has no other.
    #[test]
    fn a_step_that_is_stopped_ends_with_a_whole_sample() {
        let mut samples = Samples::of(Duration::from_secs(1));
        assert!(samples.is_due(Duration::from_millis(250), false));
        assert!(!samples.is_due(Duration::from_millis(255), true));
        assert!(samples.is_due(Duration::from_millis(400), true));
    }
}
