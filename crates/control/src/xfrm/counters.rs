//! What the server asks the data plane: live figures of SAs and policies.

use wire::xfrm::replay::Stats;

use super::policy::PolicyId;
use super::sa::SaId;
use super::server::Server;

/// Live figures of one SA.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SaCounters {
    /// Bytes of ESP payload processed since installation.
    pub bytes: u64,
    /// Packets processed since installation.
    pub packets: u64,
    /// Bytes that its limits are about: with what it processed as another SA of the interface's, before it
    /// moved.
    pub total_bytes: u64,
    /// Packets that its limits are about.
    pub total_packets: u64,
    /// First use, seconds since the epoch; 0 when never.
    pub use_time: u64,
    /// Last use, seconds since the epoch; 0 when never.
    pub last_used: u64,
    /// Last sequence number sent.
    pub output_sequence: u64,
    /// Highest sequence number received.
    pub input_sequence: u64,
    /// Bit `i % 64` of word `i / 64`: number `input_sequence - i` was received.
    pub received: Vec<u64>,
    /// What it refused.
    pub stats: Stats,
}

/// Live figures of one policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyCounters {
    /// Last use, seconds since the epoch; 0 when never.
    pub use_time: u64,
}

/// Source of live figures. `None` for what the data plane does not know (yet).
pub trait Counters {
    /// Of an SA.
    fn sa(&self, id: SaId) -> Option<SaCounters>;
    /// Of an SA what its limits in bytes and packets are about, and nothing else: every SA that has some is asked each second, and
    /// what a window received takes a hundred times as long to tell.
    fn traffic(&self, id: SaId) -> Option<SaCounters>;
    /// Of a policy.
    fn policy(&self, id: PolicyId) -> Option<PolicyCounters>;
}

/// The data plane: who brings changes into force.
pub trait Backend: Counters {
    /// Takes what changed in the server, brings it into force and writes it down, before the program
    /// that asked for it is answered. False if it cannot: the program gets no answer, and its
    /// connection ends.
    #[must_use]
    fn commit(&mut self, server: &mut Server) -> bool;
}

/// No data plane: every change is in force as soon as it is known.
impl Backend for () {
    fn commit(&mut self, server: &mut Server) -> bool {
        server.take_changes();
        server.forget_touched();
        true
    }
}

/// No data plane: nothing was ever used.
impl Counters for () {
    fn sa(&self, _: SaId) -> Option<SaCounters> {
        None
    }

    fn traffic(&self, _: SaId) -> Option<SaCounters> {
        None
    }

    fn policy(&self, _: PolicyId) -> Option<PolicyCounters> {
        None
    }
}
