//! A second client, which asks something small over and over while the first has something large done:
//! how long it waits is what a gateway's other programs notice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::super::program::{Program, ProgramError};
use super::super::tunnel::Requests;
use crate::histogram::LatencyHistogram;
use crate::result::Latency;

/// Between two questions: enough that it takes no time from what is measured.
const PAUSE: Duration = Duration::from_millis(1);

/// A client in a thread of its own.
pub struct Bystander {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Option<Latency>, ProgramError>>,
}

impl Bystander {
    /// Begins to ask.
    pub fn start(mut program: Program) -> Bystander {
        let stop = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let (mut requests, mut waited) = (Requests::default(), LatencyHistogram::default());
            while !until.load(Ordering::Relaxed) {
                requests.sad_info();
                let begin = Instant::now();
                program.ask(requests.bytes())?;
                waited.record(u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX));
                thread::sleep(PAUSE);
            }
            Ok(waited.latency())
        });
        Bystander { stop, thread }
    }

    /// Ends; how long the answers took.
    pub fn end(self) -> Result<Option<Latency>, ProgramError> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}
