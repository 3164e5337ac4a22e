//! Tests of the server: requests as programs send them, answers as a kernel gives them.

mod bench;
mod dumps;
mod encapsulation;
mod events;
mod flushes;
mod migrate;
mod numbers;
mod policies;
mod properties;
mod protocol;
mod replies;
mod reservations;
mod restore;
mod sas;
mod scale;
mod timers;
