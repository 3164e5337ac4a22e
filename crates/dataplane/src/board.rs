//! A worker's port counters, copied out when somebody asks.
//!
//! Ports belong to their worker alone, so nobody else can read their counters. Whoever wants them
//! rings; the worker, which looks at the bell once per turn, writes them down. That costs it a load
//! per turn, and the system calls of [`Port::counters`] only when asked.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use xsk::{Port, PortCounters};

/// How often a reader looks for the answer, and how many times: 50 ms in all. A worker answers
/// within a turn, or within its longest sleep of 10 ms; one that does not run any more never does.
const LOOK: Duration = Duration::from_micros(500);
const LOOKS_MAX: u32 = 100;

/// The board between one worker and its readers.
#[derive(Debug, Default)]
pub struct PortBoard {
    asked: AtomicU64,
    answered: AtomicU64,
    ports: Mutex<Vec<PortCounters>>,
}

impl PortBoard {
    /// The counters of every port, as fresh as the worker's next turn; as last written if it does
    /// not answer. Waits, and is not for workers.
    pub fn read(&self) -> Vec<PortCounters> {
        let asked = self.asked.fetch_add(1, Relaxed) + 1;
        for _ in 0..LOOKS_MAX {
            if self.answered.load(Acquire) >= asked {
                break;
            }
            thread::sleep(LOOK);
        }
        self.ports.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Writes the counters down if somebody asked since the last time.
    #[inline]
    pub(crate) fn answer(&self, ports: &[Port]) {
        let asked = self.asked.load(Relaxed);
        if asked != self.answered.load(Relaxed) {
            self.write(ports, asked);
        }
    }

    /// Writes the counters down, as the answer to everything asked until now.
    pub(crate) fn settle(&self, ports: &[Port]) {
        self.write(ports, self.asked.load(Relaxed));
    }

    #[cold]
    fn write(&self, ports: &[Port], asked: u64) {
        let mut written = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        written.clear();
        written.extend(ports.iter().map(Port::counters));
        drop(written);
        self.answered.store(asked, Release);
    }
}
