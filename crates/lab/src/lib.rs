//! The lab: what is offered to the gateways, what came out, and the report about it.
//!
//! Two halves. The pure one is arithmetic on values, with no socket, namespace or clock: recipes say
//! which addresses, tunnels and loads a test has; `traffic` turns them into frames; `sequence` and
//! `histogram` account for the frames that come back; `result` is the folder a run leaves behind;
//! `marker` reads the published figures of merit off it; `plot` and `report` draw it.
//!
//! The active one measures. Read [`run`] first: it builds the network (`wiring`, on `topology`),
//! measures the lab itself (`calibration`), starts the gateways (`dut`), sends and receives
//! (`station`, with a `generator` per port and one `sink`) and closes the books (`accounting`).
//!
//! `rates` measures a gateway's other interface, the one to its IKE daemon, with the same parts.
//!
//! The lab shares no packet code with the gateway it judges, so one bug cannot hide in both.
#![forbid(unsafe_code)]

pub mod accounting;
pub mod aims;
pub mod calibration;
pub mod clock;
pub mod dut;
pub mod environment;
pub mod figure;
pub mod generator;
pub mod histogram;
pub mod ike;
pub mod marker;
pub mod matrix;
pub mod plot;
pub mod progress;
pub mod rates;
pub mod recipe;
pub mod report;
pub mod result;
pub mod run;
pub mod sequence;
pub mod sink;
pub mod station;
pub mod swanctl;
pub mod topology;
pub mod traffic;
pub mod usage;
pub mod vici;
pub mod vpp;
pub mod wiring;
