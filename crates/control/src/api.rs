//! The socket behind `peregrine show`: one JSON request per line, one JSON reply per line.
//!
//! ```text
//! {"show":"drops"}
//! {"schema":1,"reply":{"drops":[{"name":"replayed","count":3,"per_s":0.5,…}]}}
//! ```
//!
//! [`Server`] belongs into the control thread's poll loop and asks a [`Facts`] for what it replies;
//! [`ask`] is the client. The socket answers questions and changes nothing: there is no request
//! that configures, and no reply has a key in it. The one exception is `{"upgrade":{}}`, which has
//! another binary take over.

mod client;
mod host;
mod server;
mod status;
mod types;

pub use client::{Answer, AskError, ask, upgrade};
pub use host::HostDevice;
pub use server::{CLIENTS_MAX, Server};
pub use status::{DefaultActions, Restored, Status, Upgrade};
pub use types::{
    DropCount, Envelope, Facts, Loss, Neighbour, Policy, Port, Reply, Request, Route, SCHEMA, Sa,
    SaErrors, Show, Template, Worker,
};

#[cfg(test)]
mod tests;
