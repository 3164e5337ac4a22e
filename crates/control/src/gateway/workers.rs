//! The worker threads: opened with their sockets, started, watched, stopped.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::SyncSender;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use dataplane::board::PortBoard;
use dataplane::clock::Clock;
use dataplane::counters::{CounterSnapshot, Counters};
use dataplane::crew::crew;
use dataplane::event::Event;
use dataplane::view::Publisher;
use dataplane::worker::{Idle, Worker, WorkerParts};
use thiserror::Error;
use xsk::{Port, PortCounters, TunPort, Umem, XdpOptions, XdpPort, XskError};

use super::ports::Ports;
use crate::config::{self, Config, Sizes};

/// Frames that a worker keeps whose sockets others feed: for the host's packets and for those that wait
/// for an SA. The rest go to whoever feeds.
const FED_FRAMES: usize = 1024;

/// Why workers cannot start, or one that ended.
#[derive(Debug, Error)]
pub enum WorkersError {
    /// The packet memory.
    #[error(
        "cannot have {mebibytes} MiB of packet memory: {source}; lower `frames`, or raise the limit \
         on locked memory (ulimit -l)"
    )]
    Memory {
        /// How much.
        mebibytes: usize,
        /// Why not.
        source: io::Error,
    },
    /// A socket of a port.
    #[error(transparent)]
    Port(#[from] XskError),
    /// What they wake each other with.
    #[error("cannot let workers wake each other: {0}")]
    Crew(#[source] io::Error),
    /// The thread.
    #[error("cannot start the worker of core {core}: {source}")]
    Thread {
        /// Its core.
        core: usize,
        /// Why not.
        source: io::Error,
    },
    /// It ended.
    #[error("the worker of core {core} ended: {reason}")]
    Ended {
        /// Its core.
        core: usize,
        /// What it said last.
        reason: String,
    },
}

/// One worker as control sees it.
struct Running {
    core: usize,
    counters: Arc<Counters>,
    board: Arc<PortBoard>,
    thread: Option<JoinHandle<(Worker, io::Result<()>)>>,
}

/// All workers.
pub struct Workers {
    stop: Arc<AtomicBool>,
    /// Opened and not yet running.
    idle: Vec<Worker>,
    running: Vec<Running>,
}

impl Workers {
    /// Opens each worker's sockets on each port, over one packet memory, and registers them.
    pub fn open(
        config: &Config,
        sizes: &Sizes,
        ports: &mut Ports,
        publisher: &Publisher,
        events: &SyncSender<Event>,
        clock: Clock,
    ) -> Result<Workers, WorkersError> {
        let workers = config.cores.len();
        let (frames, frame_size) = (sizes.frames as usize, sizes.frame_size as usize);
        let umem = Umem::new(frames * workers, frame_size, config.hugepages).map_err(|source| {
            WorkersError::Memory { mebibytes: (frames * workers * frame_size) >> 20, source }
        })?;
        let options = XdpOptions { ring_entries: sizes.ring, ..XdpOptions::default() };
        let mut idle = Vec::new();
        let members = crew(workers, clock).map_err(WorkersError::Crew)?;
        for ((id, core), member) in config.cores.iter().enumerate().zip(members) {
            let mut pool = umem.pool(id * frames..(id + 1) * frames);
            let mut own = Vec::new();
            if workers > 1 {
                // Frames wander to whoever reaps the queue by which they leave.
                pool.share(frames);
            }
            for (index, port) in config.ports.iter().enumerate() {
                let sockets = XdpPort::open(&port.interface, id, workers, &mut pool, options)?;
                ports.register(index, &sockets)?;
                own.push(Port::Xdp(sockets));
            }
            if workers > 1 && id > 0 && own.iter().all(|port: &Port| !port.feeds()) {
                // It is fed by others, and needs few of its own.
                pool.share(FED_FRAMES);
            }
            if config.host.enable {
                let device = config.host.device_of(&config.name);
                own.push(Port::Tun(TunPort::open(&device)?));
            }
            for group in &config.groups {
                own.push(Port::Tun(TunPort::open(&group.device)?));
            }
            let mut worker = Worker::new(WorkerParts {
                id,
                cpu: Some(*core),
                ports: own,
                pool,
                reader: publisher.reader(),
                events: events.clone(),
                clock,
            });
            worker.join(member);
            worker.set_idle(match config.idle {
                config::Idle::Spin => Idle::Spin,
                config::Idle::Sleep => {
                    Idle::Sleep { after: Duration::from_micros(config.spin_us.into()) }
                }
            });
            idle.push(worker);
        }
        Ok(Workers { stop: Arc::default(), idle, running: Vec::new() })
    }

    /// Starts the threads.
    pub fn run(&mut self) -> Result<(), WorkersError> {
        self.stop.store(false, Relaxed);
        for mut worker in self.idle.drain(..) {
            let core = worker.cpu().unwrap_or_default();
            let (counters, board) = (worker.counters(), worker.board());
            let stop = self.stop.clone();
            let thread = thread::Builder::new()
                .name(format!("worker{}", worker.id()))
                .spawn(move || {
                    let result = worker.run(&stop);
                    (worker, result)
                })
                .map_err(|source| WorkersError::Thread { core, source })?;
            self.running.push(Running { core, counters, board, thread: Some(thread) });
        }
        Ok(())
    }

    /// Each worker's core and counters.
    pub fn counters(&self) -> impl Iterator<Item = (usize, CounterSnapshot)> {
        self.running.iter().map(|worker| (worker.core, worker.counters.snapshot()))
    }

    /// The counters of every port, summed over the workers, as fresh as a turn of each.
    pub fn port_counters(&self, ports: usize) -> Vec<PortCounters> {
        let mut sums = vec![PortCounters::default(); ports];
        for worker in &self.running {
            for (sum, port) in sums.iter_mut().zip(worker.board.read()) {
                *sum += port;
            }
        }
        sums
    }

    /// Sees that every worker lives.
    ///
    /// # Errors
    /// One does not. Its packets go nowhere, so the gateway must end.
    pub fn check(&mut self) -> Result<(), WorkersError> {
        for worker in &mut self.running {
            if !worker.thread.as_ref().is_some_and(JoinHandle::is_finished) {
                continue;
            }
            let reason = match worker.thread.take().map(JoinHandle::join) {
                Some(Ok((_, Err(error)))) => error.to_string(),
                Some(Err(_)) => "it panicked".to_owned(),
                _ => "nobody told it to".to_owned(),
            };
            return Err(WorkersError::Ended { core: worker.core, reason });
        }
        Ok(())
    }

    /// Stops the threads once what is under way has left. [`Workers::run`] has them go on.
    pub fn stop(&mut self) {
        self.stop.store(true, Relaxed);
        for worker in self.running.drain(..) {
            match worker.thread.map(JoinHandle::join) {
                Some(Ok((worker, Ok(())))) => self.idle.push(worker),
                _ => tracing::warn!(core = worker.core, "a worker did not end well"),
            }
        }
    }
}
