//! Rates: bits against frames, frames expected in a trial.
//!
//! All rates are decimal; L2 counts the 4-byte FCS that veth never carries, because the published
//! figures count it.

use crate::result::Rate;

/// Ethernet FCS, counted in L2 rates.
const FCS_BYTES: f64 = 4.0;
/// Preamble, start delimiter and minimum gap (IEEE 802.3): what L1 adds to L2.
const L1_BYTES: f64 = 20.0;
/// What a trial may lack at its end without being short: time to stop the sender. CSIT uses the
/// same 10 µs.
const ALLOWANCE_S: f64 = 10e-6;

/// Below this share of the expected frames, the generator was the limit.
pub const GENERATOR_LIMITED_RATIO: f64 = 0.999;
/// Latency probes per second and port; they are not scaled by the ramp.
pub const PROBES_PER_SECOND: u32 = 100;
/// A probe: Ethernet 14, IPv4 20, UDP 8, payload 700.
pub const PROBE_FRAME_BYTES: u16 = 742;

/// The three units of `pps` frames per second of `average_bytes` (L2 without FCS).
pub fn rate(pps: f64, average_bytes: f64) -> Rate {
    Rate {
        pps,
        l2_bps: pps * 8.0 * (average_bytes + FCS_BYTES),
        l1_bps: pps * 8.0 * (average_bytes + FCS_BYTES + L1_BYTES),
    }
}

/// The same of `l2_bps` bits per second.
pub fn rate_of_bits(l2_bps: f64, average_bytes: f64) -> Rate {
    Rate { l2_bps, ..rate(l2_bps / 8.0 / (average_bytes + FCS_BYTES), average_bytes) }
}

/// The frames a trial owes: `ceil((duration − 10 µs) × rate)`. Frames that the generator failed to
/// send beyond that allowance are losses.
pub fn expected_frames(duration_s: f64, pps: f64) -> u64 {
    // The tolerance keeps a product that is whole in decimal from being rounded up by one binary
    // digit; it is far below one frame.
    (((duration_s - ALLOWANCE_S).max(0.0) * pps) - 1e-6).ceil().max(0.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_rate_of_minimum_frames() {
        // 14 880 952 frames of 64 bytes with FCS fill 10 Gbps at L1.
        let rate = rate(1e10 / (8.0 * 84.0), 60.0);
        assert!((rate.l1_bps - 1e10).abs() < 1.0);
        assert_eq!(rate.pps as u64, 14_880_952);
        assert!((rate.l2_bps - 1e10 * 64.0 / 84.0).abs() < 1.0);
    }

    #[test]
    fn bits_and_frames_are_one_rate() {
        let load = rate_of_bits(2e8, 990.6);
        assert!((load.l2_bps - 2e8).abs() < 1.0);
        assert!((load.pps * 8.0 * 994.6 - load.l2_bps).abs() < 1.0);
    }

    #[test]
    fn ten_microseconds_are_forgiven() {
        assert_eq!(expected_frames(1.0, 1_000_000.0), 999_990);
        assert_eq!(expected_frames(30.0, 1000.0), 30_000);
        assert_eq!(expected_frames(0.0, 1e6), 0);
        assert_eq!(expected_frames(5e-6, 1e6), 0);
    }
}
