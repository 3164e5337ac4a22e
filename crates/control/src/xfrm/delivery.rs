//! What a request or a timer produces: replies to one client, events to all who listen.

use std::sync::Arc;

use super::dump::Dump;
use super::flush::Flush;
use super::secret::Bytes;

/// A multicast message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its group, counted from 1.
    pub group: u32,
    /// The message.
    pub bytes: Arc<Bytes>,
}

/// One datagram for somebody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// For the client that asked.
    Reply(Bytes),
    /// For every client bound to the group, the one that asked included.
    Event(Event),
}

impl Delivery {
    /// The event that it is, if it is one.
    pub(super) fn into_event(self) -> Option<Event> {
        match self {
            Delivery::Event(event) => Some(event),
            Delivery::Reply(_) => None,
        }
    }
}

/// All that one datagram of requests produced.
#[derive(Debug, Default)]
pub struct Handled {
    /// In the order in which a kernel puts them into the receive queues.
    pub deliveries: Vec<Delivery>,
    /// The rest of a dump; ask [`super::Server::dump_next`] for it when the client took the part
    /// before.
    pub dump: Option<Dump>,
    /// The rest of a flush, which was the last request; ask [`super::Server::flush_next`] for it, part by
    /// part, and then [`super::Flush::answer`] for what the client gets.
    pub flush: Option<Flush>,
}
