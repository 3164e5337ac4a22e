//! The client, in this process or behind the preload library.
//!
//! A preload library is loaded when a program starts, so a client behind it is a program of its own:
//! `peregrine exec -- peregrine bench xfrm-client`. It takes orders on its standard input, a line of
//! JSON each, and answers each with a line. At the end of its input it ends what it is about early, as a driver does.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::RatesError;
use super::driver::{Done, Driver, Order};
use super::program::Program;
use crate::topology::command_apart;

/// How often it is looked whether to stop while an answer is awaited.
const POLL: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Who asks the gateway.
pub enum Client {
    /// This process, straight at the socket.
    Direct(Box<Driver>),
    /// Another process, through the preload library.
    Shimmed(Shimmed),
}

/// The process behind the preload library.
pub struct Shimmed {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    stop: Arc<AtomicBool>,
}

/// A line of the process behind the library.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Done(Done),
    Failed(String),
}

impl Client {
    /// Starts the client of `binary` behind the preload library, for a gateway's instance. `stop` becomes true when
    /// orders are to end early; none is taken afterwards.
    pub fn behind_shim(
        binary: &Path,
        instance: &str,
        stop: Arc<AtomicBool>,
    ) -> Result<Client, RatesError> {
        let mut child = command_apart(binary)
            .args(["exec", "--instance", instance, "--"])
            .arg(binary)
            .args(["bench", "xfrm-client"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let orders = child.stdin.take();
        let answers = child.stdout.take().ok_or_else(|| failed("it has no output"))?;
        let answers = BufReader::new(answers);
        Ok(Client::Shimmed(Shimmed { child, orders, answers, stop }))
    }

    /// Carries out an order.
    pub fn obey(&mut self, order: Order) -> Result<Done, RatesError> {
        match self {
            Client::Direct(driver) => Ok(driver.obey(order)?),
            Client::Shimmed(shimmed) => shimmed.obey(order),
        }
    }

    /// Closes the connection and ends the process, if there is one.
    pub fn close(self) {
        drop(self);
    }
}

impl Shimmed {
    fn obey(&mut self, order: Order) -> Result<Done, RatesError> {
        let line = serde_json::to_string(&order).map_err(failed)? + "\n";
        let orders = self.orders.as_mut().ok_or_else(|| failed("it has no input"))?;
        orders.write_all(line.as_bytes()).map_err(failed)?;
        self.await_answer().map_err(failed)?;
        let mut answer = String::new();
        if self.answers.read_line(&mut answer).map_err(failed)? == 0 {
            return Err(failed("it ended early"));
        }
        match serde_json::from_str(&answer).map_err(failed)? {
            Answer::Done(done) => Ok(done),
            Answer::Failed(reason) => Err(failed(reason)),
        }
    }

    /// Waits until there is something to read, or it is to stop: then it closes the input, by which the other end hears of that.
    fn await_answer(&mut self) -> Result<(), Errno> {
        while !self.stop.load(Ordering::Relaxed) {
            match poll(&mut [PollFd::new(self.answers.get_ref(), PollFlags::IN)], Some(&POLL)) {
                Ok(0) | Err(Errno::INTR) => {}
                ready => return ready.map(drop),
            }
        }
        self.orders = None;
        Ok(())
    }
}

impl Drop for Shimmed {
    fn drop(&mut self) {
        // At the end of its input it ends by itself, unless it hangs.
        self.orders = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn failed(reason: impl ToString) -> RatesError {
    RatesError::Shimmed(reason.to_string())
}

/// The other end: obeys orders until there are no more, and ends early the one that it is about then.
///
/// # Errors
/// [`RatesError`]: an order cannot be read or its answer not be written, or [`Driver::obey`] failed.
pub fn serve(
    orders: impl BufRead + Send + 'static,
    mut answers: impl Write,
) -> Result<(), RatesError> {
    let stop = Arc::new(AtomicBool::new(false));
    let mut driver = Driver::new(Program::netlink()?, Arc::clone(&stop));
    let (sender, receiver) = mpsc::channel();
    // Who is about an order does not read. The thread ends with its input, or with the process.
    thread::spawn(move || {
        let _ = orders.lines().try_for_each(|line| sender.send(line));
        stop.store(true, Ordering::Relaxed);
    });
    for line in receiver {
        let order = serde_json::from_str(&line.map_err(failed)?).map_err(failed)?;
        let answer = match driver.obey(order) {
            Ok(done) => Answer::Done(done),
            Err(error) => Answer::Failed(error.to_string()),
        };
        let line = serde_json::to_string(&answer).map_err(failed)?;
        writeln!(answers, "{line}").and_then(|()| answers.flush()).map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_and_answers_survive_the_pipe() {
        let order = Order::Install(50_000);
        let text = serde_json::to_string(&order).unwrap();
        assert_eq!(serde_json::from_str::<Order>(&text).unwrap(), order);
        let mut done = Done { requests: 3, seconds: 0.25, ..Done::default() };
        let mut histogram = crate::histogram::LatencyHistogram::new();
        histogram.record(20_000);
        done.latencies.insert(super::super::Operation::Rekey, histogram.latency().unwrap());
        let text = serde_json::to_string(&Answer::Done(done.clone())).unwrap();
        assert!(!text.contains('\n'));
        let Answer::Done(back) = serde_json::from_str(&text).unwrap() else { panic!("{text}") };
        assert_eq!(back, done);
    }
}
