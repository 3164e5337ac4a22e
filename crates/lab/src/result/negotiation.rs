//! How the tunnels of a curve came about, when an IKE daemon negotiated them.

use serde::{Deserialize, Serialize};

/// One mass start: both daemons loaded, every tunnel initiated by the near gateway.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Negotiation {
    /// Who negotiated, with version.
    pub daemon: String,
    /// IKE and ESP proposals.
    pub proposals: String,
    /// `exact` (one connection per tunnel on the answering side) or `any` (one for all).
    pub responder: String,
    /// Daemons per gateway.
    pub daemons_per_gateway: u32,
    /// Handshakes under way at once, all daemons together.
    pub parallel: u32,
    /// Tunnels negotiated.
    pub tunnels: u32,
    /// Seconds for loading all connections into all daemons.
    pub load_s: f64,
    /// Seconds from the first initiation until both gateways held all SAs.
    pub negotiate_s: f64,
    /// Tunnels over those seconds.
    pub tunnels_per_s: f64,
    /// From asking the near daemon until it had both SAs installed.
    pub handshake: HandshakeTime,
    /// Both gateways, near first.
    pub gateways: Vec<NegotiationSide>,
}

/// The time of one handshake, milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct HandshakeTime {
    /// The median.
    pub p50_ms: f64,
    /// 99 in 100 are not slower.
    pub p99_ms: f64,
    /// The slowest.
    pub max_ms: f64,
}

/// What it took on one gateway. Memory is resident memory after the last handshake.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NegotiationSide {
    /// The gateway.
    pub gateway: String,
    /// SAs installed.
    pub sas: u64,
    /// Policies installed.
    pub policies: u64,
    /// Memory of all its daemons, bytes.
    pub daemon_rss_bytes: u64,
    /// Processor time of all its daemons, loading included, seconds.
    pub daemon_cpu_s: f64,
    /// Memory of the gateway, bytes.
    pub gateway_rss_bytes: u64,
    /// Memory of the gateway before the first tunnel, bytes.
    pub gateway_rss_before_bytes: u64,
    /// Processor time of the gateway for it, seconds; its worker polls meanwhile.
    pub gateway_cpu_s: f64,
}

impl HandshakeTime {
    /// Of all handshakes, in any order; zero when there were none.
    pub fn of(mut times_ms: Vec<f64>) -> HandshakeTime {
        times_ms.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let last = times_ms.len().saturating_sub(1);
            times_ms.get((last as f64 * share).round() as usize).copied().unwrap_or(0.0)
        };
        HandshakeTime { p50_ms: at(0.5), p99_ms: at(0.99), max_ms: at(1.0) }
    }
}

impl Negotiation {
    /// What a reader wants first, in one sentence.
    pub fn sentence(&self) -> String {
        let plural = if self.tunnels == 1 { "" } else { "s" };
        format!(
            "{} tunnel{} negotiated by {} in {:.1} s ({:.0} per second; loaded in {:.1} s)",
            self.tunnels, plural, self.daemon, self.negotiate_s, self.tunnels_per_s, self.load_s
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_handshakes() {
        let times = (1..=101).rev().map(f64::from).collect();
        let time = HandshakeTime::of(times);
        assert_eq!((time.p50_ms, time.p99_ms, time.max_ms), (51.0, 100.0, 101.0));
        assert_eq!(HandshakeTime::of(vec![]), HandshakeTime::default());
    }
}
