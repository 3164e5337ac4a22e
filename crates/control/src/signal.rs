//! Signals that ask for a stop, as bytes in a socket that a poll loop can wait for.
//!
//! The handler itself (one `send` of one byte, from the signal-hook crate) is the only code that
//! runs in signal context. This module does not stop anything: it tells its owner, once per signal.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// A subscription to the signals that ask a program to stop: SIGTERM (systemd, kill), SIGINT
/// (Ctrl-C) and SIGHUP (the terminal went away). Without the last, closing a terminal would leave
/// no chance to stop cleanly.
#[derive(Debug)]
pub struct StopSignals {
    receiver: UnixStream,
    registered: Vec<signal_hook::SigId>,
}

impl StopSignals {
    /// Takes over the three signals for this process. After a drop they are ignored rather than
    /// deadly: the process is stopping already, and its cleaning up must not be cut short.
    ///
    /// # Errors
    ///
    /// That of the system call that failed.
    pub fn subscribe() -> io::Result<Self> {
        let (receiver, sender) = UnixStream::pair()?;
        receiver.set_nonblocking(true)?;
        let mut signals = Self { receiver, registered: Vec::new() };
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            let id = signal_hook::low_level::pipe::register(signal, sender.try_clone()?)?;
            signals.registered.push(id);
        }
        Ok(signals)
    }

    /// How many signals came since the last call. Two or more: someone is impatient.
    pub fn take(&mut self) -> usize {
        let mut bytes = [0; 64];
        let mut count = 0;
        while let Ok(read @ 1..) = self.receiver.read(&mut bytes) {
            count += read;
        }
        count
    }
}

impl AsFd for StopSignals {
    /// Readable when [`take`](Self::take) will find a signal.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }
}

impl Drop for StopSignals {
    fn drop(&mut self) {
        for id in self.registered.drain(..) {
            signal_hook::low_level::unregister(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    #[test]
    fn signals_arrive_and_are_counted() {
        let mut signals = StopSignals::subscribe().unwrap();
        assert_eq!(signals.take(), 0);
        signal_hook::low_level::raise(SIGTERM).unwrap();
        signal_hook::low_level::raise(SIGHUP).unwrap();
        let limit = Timespec { tv_sec: 5, tv_nsec: 0 };
        let ready = poll(&mut [PollFd::new(&signals, PollFlags::IN)], Some(&limit)).unwrap();
        assert_eq!(ready, 1);
        assert_eq!(signals.take(), 2);
        assert_eq!(signals.take(), 0);
    }
}
