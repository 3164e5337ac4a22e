//! The rulers: what the data path costs, measured on the real loop and the real tables.
//!
//! None of this is on the path; nothing outside this module may use it but `peregrine bench` and what
//! counts instructions. Nothing here prints or judges.

pub mod cores;
pub mod path;
pub mod tables;

use xsk::{MemoryEnd, MemoryPort, Pool, Port};

use crate::clock::Clock;
use crate::event;
use crate::view::Reader;
use crate::worker::{Worker, WorkerParts};

/// A worker between two memory ports of `packets` packets each, and the far ends of its ports.
fn worker_on_memory(
    id: usize,
    pool: Pool,
    reader: Reader,
    packets: usize,
) -> Result<(Worker, [MemoryEnd; 2]), RulerError> {
    let (red_port, red) = MemoryPort::pair(pool.umem(), packets as u32)?;
    let (black_port, black) = MemoryPort::pair(pool.umem(), packets as u32)?;
    let worker = Worker::new(WorkerParts {
        id,
        cpu: None,
        ports: vec![Port::Memory(red_port), Port::Memory(black_port)],
        pool,
        reader,
        events: event::channel().0,
        clock: Clock,
    });
    Ok((worker, [red, black]))
}

/// Why a bench cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RulerError {
    /// The request makes no sense.
    #[error("{0}")]
    Request(String),
    /// There is no memory for the rings or the frames.
    #[error("packet memory: {0}")]
    Memory(#[from] std::io::Error),
    /// The engine gives no key.
    #[error("{0}")]
    Key(#[from] crypto::KeyError),
    /// A packet came out in the place of another.
    #[error("tunnel {tunnel}: number {found} came where {expected} was next")]
    Order {
        /// The tunnel.
        tunnel: usize,
        /// Whose turn it was.
        expected: u64,
        /// What came.
        found: u64,
    },
    /// A packet did not come out; the figure would be a lie.
    #[error("{lost} of {sent} packets were lost in the bench, the first by {verdict}")]
    Lost {
        /// Packets that went in.
        sent: u64,
        /// Packets that did not come out.
        lost: u64,
        /// The first verdict that was not a success.
        verdict: &'static str,
    },
}
