//! The test station: both ports of the lab on one thread, sending and receiving.
//!
//! One thread for everything, because the gateways need the cores: it sends what is due, takes in
//! what has arrived, and sleeps until the next turn. It lives in its own namespace and is spoken
//! to through channels; a step that runs reports four times a second.
//!
//! It does not know what is between its ports, and it decides nothing about loads.

mod thread;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use xsk::{PortCounters, XskError};

use crate::generator::{Load, Source};
use crate::histogram::LatencyHistogram;
use crate::result::Counts;
use crate::sink::Arrived;
use crate::topology::{Namespace, TopologyError};
use crate::traffic::FrameError;

/// The time between two samples of a running step, four per second as the reports expect.
pub const SAMPLE_TIME: Duration = Duration::from_millis(250);

/// Why the station does not work.
#[derive(Debug, thiserror::Error)]
pub enum StationError {
    /// A port could not be opened.
    #[error("the lab's port {interface}: {source}")]
    Port {
        /// The interface.
        interface: String,
        /// Why.
        source: XskError,
    },
    /// No memory for packets.
    #[error("no memory for the lab's packets: {0}")]
    Memory(std::io::Error),
    /// A frame size of the mix is not possible.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A frame size that AF_XDP cannot carry in one buffer.
    #[error("frames of {size} bytes are asked for, one buffer holds {max}; choose a smaller mix")]
    FrameSize {
        /// The largest of the mix.
        size: u16,
        /// The limit.
        max: usize,
    },
    /// The namespace could not be entered, or a thread not started.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The thread has died: a defect.
    #[error("the station's thread has ended unexpectedly")]
    Gone,
}

/// One port of the station: the interface, and what is sent from it.
#[derive(Debug, Clone)]
pub struct StationPort {
    /// Name of the interface in the station's namespace.
    pub interface: String,
    /// What it sends when a step asks it to.
    pub source: Source,
}

/// One step to be run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Order {
    /// What each port sends.
    pub load: [Load; 2],
    /// For how long.
    pub duration: Duration,
    /// The stretch at the start that averages leave out.
    pub settle: Duration,
    /// Silence after the last frame before the books are closed.
    pub drain: Duration,
}

/// What a running step looks like, a quarter of a second after the last look.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Time since the step began.
    pub elapsed: Duration,
    /// By sending port.
    pub directions: [Progress; 2],
    /// Mean and 99th percentile, microseconds, of the probes since the last snapshot.
    pub latency_us: Option<(f64, f64)>,
}

/// One direction of a running step, counted since the step began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Load frames that left the generator.
    pub sent: u64,
    /// Their L2 bytes without FCS.
    pub sent_bytes: u64,
    /// Probes that left the generator.
    pub probes_sent: u64,
    /// What came.
    pub arrived: Arrived,
}

/// The closed books of one step.
#[derive(Debug, Clone)]
pub struct StepBooks {
    /// How long frames were sent.
    pub duration: Duration,
    /// Whether it was cut short.
    pub interrupted: bool,
    /// By sending port.
    pub directions: [DirectionBooks; 2],
}

/// One direction of a closed step.
#[derive(Debug, Clone)]
pub struct DirectionBooks {
    /// The load, complete.
    pub load: Counts,
    /// The probes, complete.
    pub probes: Counts,
    /// L2 bytes (without FCS) of the load received in the whole step.
    pub load_bytes: u64,
    /// After settling, while sending: how long, load frames received, their bytes.
    pub steady: Steady,
    /// Probe latencies after settling.
    pub latency: LatencyHistogram,
}

/// The stretch of a step that averages are taken over.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Steady {
    /// Its length.
    pub duration: Duration,
    /// Load frames received in it.
    pub frames: u64,
    /// Their L2 bytes without FCS.
    pub bytes: u64,
}

/// What the station's two ports have counted since they were opened.
#[derive(Debug, Clone, Copy, Default)]
pub struct StationCounters {
    /// The sockets' counters, by port.
    pub ports: [PortCounters; 2],
    /// Frames of ours that the XDP program could not give to the socket, by port.
    pub refused: [u64; 2],
    /// Frames that still wait in the transmit rings, by port.
    pub waiting: [u64; 2],
}

/// What the thread is asked.
#[derive(Debug)]
enum Command {
    Step(Order),
    Sources(Box<[Source; 2]>),
    Counters,
}

/// What the thread answers.
#[derive(Debug)]
enum Event {
    Ready(Result<(), StationError>),
    Snapshot(Snapshot),
    Done(Box<StepBooks>),
    Counters(StationCounters),
}

/// A running station. Its thread ends, and the ports are closed, when it is dropped.
#[derive(Debug)]
pub struct Station {
    commands: Option<Sender<Command>>,
    events: Receiver<Event>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Station {
    /// Opens both ports in `namespace`. A step that runs while `stop` becomes true is cut short.
    ///
    /// # Errors
    /// [`StationError`] if a port cannot be opened, or its frames do not fit a buffer.
    pub fn open(
        namespace: &Namespace,
        ports: [StationPort; 2],
        stop: Arc<AtomicBool>,
    ) -> Result<Station, StationError> {
        let (commands, orders) = channel();
        let (answers, events) = channel();
        let thread = thread::spawn(namespace, ports, stop, orders, answers)?;
        let station = Station { commands: Some(commands), events, thread: Some(thread) };
        match station.next()? {
            Event::Ready(result) => result.map(|()| station),
            _ => Err(StationError::Gone),
        }
    }

    /// Runs one step and returns its books; `watch` sees it four times a second.
    ///
    /// # Errors
    /// [`StationError`] if a port failed or the thread ended.
    pub fn step(
        &mut self,
        order: Order,
        mut watch: impl FnMut(&Snapshot),
    ) -> Result<StepBooks, StationError> {
        self.ask(Command::Step(order))?;
        loop {
            match self.next()? {
                Event::Snapshot(snapshot) => watch(&snapshot),
                Event::Done(books) => return Ok(*books),
                _ => return Err(StationError::Gone),
            }
        }
    }

    /// Changes what both ports send, and begins new books.
    ///
    /// # Errors
    /// As of [`Station::open`], if the new frames do not fit or the thread ended.
    pub fn replace(&mut self, sources: [Source; 2]) -> Result<(), StationError> {
        self.ask(Command::Sources(Box::new(sources)))?;
        match self.next()? {
            Event::Ready(result) => result,
            _ => Err(StationError::Gone),
        }
    }

    /// The ports' counters.
    ///
    /// # Errors
    /// [`StationError::Gone`] if the thread ended.
    pub fn counters(&mut self) -> Result<StationCounters, StationError> {
        self.ask(Command::Counters)?;
        match self.next()? {
            Event::Counters(counters) => Ok(counters),
            _ => Err(StationError::Gone),
        }
    }

    fn ask(&self, command: Command) -> Result<(), StationError> {
        let commands = self.commands.as_ref().ok_or(StationError::Gone)?;
        commands.send(command).map_err(|_| StationError::Gone)
    }

    fn next(&self) -> Result<Event, StationError> {
        self.events.recv().map_err(|_| StationError::Gone)
    }
}

impl Drop for Station {
    fn drop(&mut self) {
        // Without commands to come the thread ends its loop.
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
