//! The lab: what is offered to the gateways, what came out, and the report about it.
//!
//! Recipes say which addresses, tunnels and loads a test has; `traffic` turns them into frames;
//! `sequence` and `histogram` account for the frames that come back; `result` is the folder a run
//! leaves behind; `marker` reads the published figures of merit off it; `plot` and `report` draw
//! it. All of this is arithmetic on values: no sockets, no namespaces and no clock in these files.
//! The lab shares no packet code with the gateway it judges, so one bug cannot hide in both.
#![forbid(unsafe_code)]

pub mod clock;
pub mod generator;
pub mod histogram;
pub mod marker;
pub mod plot;
pub mod recipe;
pub mod result;
pub mod sequence;
pub mod sink;
pub mod station;
pub mod topology;
pub mod traffic;
