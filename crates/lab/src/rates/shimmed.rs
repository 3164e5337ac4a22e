//! The client, in this process or behind the preload library.
//!
//! A preload library is loaded when a program starts, so a client behind it is a program of its own:
//! `peregrine exec -- peregrine bench xfrm-client`. It takes orders on its standard input, a line of
//! JSON each, and answers each with a line.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use serde::{Deserialize, Serialize};

use super::RatesError;
use super::driver::{Done, Driver, Order};
use super::program::Program;
use crate::topology::command_apart;

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
}

/// A line of the process behind the library.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Done(Done),
    Failed(String),
}

impl Client {
    /// Starts the client of `binary` behind the preload library, for a gateway's instance.
    pub fn behind_shim(binary: &Path, instance: &str) -> Result<Client, RatesError> {
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
        Ok(Client::Shimmed(Shimmed { child, orders, answers: BufReader::new(answers) }))
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
        let mut answer = String::new();
        if self.answers.read_line(&mut answer).map_err(failed)? == 0 {
            return Err(failed("it ended early"));
        }
        match serde_json::from_str(&answer).map_err(failed)? {
            Answer::Done(done) => Ok(done),
            Answer::Failed(reason) => Err(failed(reason)),
        }
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

/// The other end: obeys orders until there are no more.
///
/// # Errors
/// [`RatesError`]: an order cannot be read or its answer not be written, or [`Driver::obey`] failed.
pub fn serve(orders: impl BufRead, mut answers: impl Write) -> Result<(), RatesError> {
    let mut driver = Driver::new(Program::netlink()?);
    for line in orders.lines() {
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
