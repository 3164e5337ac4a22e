//! Lanes, for packets that are as nearly all are, each of a tunnel of its own, whichever that is, or of none.
//!
//! Among many tunnels no packet follows the one before. The stages ask each of them for much that nearly none is; here
//! is asked, in the same order, only what it takes to be sure that it is not. A lane takes the first packets of a batch and
//! ends at the first one of which anything is out of the ordinary: that, and what is behind it, take the stages, unless they are
//! sorted before (`sorting`).

mod addresses;
mod admit;
pub(super) mod forwarding;
mod group;
mod inquiry;
pub(super) mod opening;
pub(super) mod sealing;

/// Packets for which it is worth it, where others come behind them: fewer would wait for their memory one after the
/// other.
pub(super) const WORTH: usize = 8;
