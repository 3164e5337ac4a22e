//! A client of VICI, strongSwan's control socket: what `swanctl` speaks, without `swanctl`.
//!
//! It exists because thousands of connections cannot be loaded from one file in any useful time
//! (the parser's time grows with the square of their number) and because `swanctl --load-conns`
//! unloads what its file does not name. Over the socket connections are loaded one by one.
//!
//! [`Message`] is the tree that both sides exchange and its encoding, pure; [`Client`] is one
//! connection that asks one question at a time. The protocol is described in `README.md` of
//! strongSwan's vici plugin. What the commands mean is not known here.

mod client;
mod message;

pub use client::{Client, ViciError};
pub use message::{DecodeError, Element, Message};
