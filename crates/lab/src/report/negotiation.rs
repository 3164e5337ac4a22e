//! Mass starts, for terminals and for the page: a sentence per curve, a row per gateway.

use crate::result::{Curve, NegotiationSide, RunResult};

/// What the columns mean, in one sentence.
pub const CAPTION: &str = "Negotiated by IKE: resident memory with all tunnels up; the gateway's \
                           processor time includes its worker's polling";

/// The heads of the columns.
pub const HEADER: [&str; 9] = [
    "curve",
    "gateway",
    "SAs",
    "policies",
    "daemons' memory",
    "their CPU",
    "gateway's memory",
    "before",
    "its CPU",
];

/// How each negotiated curve came about.
pub fn sentences(result: &RunResult) -> Vec<String> {
    let sentence = |curve: &Curve| {
        let negotiation = curve.negotiation.as_ref()?;
        let time = &negotiation.handshake;
        let answers = match negotiation.responder.as_str() {
            "any" => "one connection for all on the answering side",
            _ => "a connection for each",
        };
        Some(format!(
            "{}: {}; {} daemon(s) per gateway, {answers}, {} handshakes at once, each p50 {:.0} ms, \
             p99 {:.0} ms",
            curve.name,
            negotiation.sentence(),
            negotiation.daemons_per_gateway,
            negotiation.parallel,
            time.p50_ms,
            time.p99_ms,
        ))
    };
    result.curves.iter().filter_map(sentence).collect()
}

/// The rows; none where all keys are static.
pub fn rows(result: &RunResult) -> Vec<Vec<String>> {
    let sides = result.curves.iter().flat_map(|curve| {
        let sides = curve.negotiation.iter().flat_map(|negotiation| &negotiation.gateways);
        sides.map(|side| row(&curve.name, side))
    });
    sides.collect()
}

fn row(curve: &str, side: &NegotiationSide) -> Vec<String> {
    vec![
        curve.to_owned(),
        side.gateway.clone(),
        side.sas.to_string(),
        side.policies.to_string(),
        megabytes(side.daemon_rss_bytes),
        seconds(side.daemon_cpu_s),
        megabytes(side.gateway_rss_bytes),
        megabytes(side.gateway_rss_before_bytes),
        seconds(side.gateway_cpu_s),
    ]
}

fn seconds(seconds: f64) -> String {
    format!("{seconds:.1} s")
}

fn megabytes(bytes: u64) -> String {
    format!("{:.0} MB", bytes as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{HandshakeTime, Negotiation, example};

    #[test]
    fn a_row_for_each_gateway_of_a_negotiated_curve() {
        let mut result = example::run().result;
        assert!(rows(&result).is_empty() && sentences(&result).is_empty());
        let side = |gateway: &str| NegotiationSide {
            gateway: gateway.into(),
            sas: 1000,
            policies: 2000,
            daemon_rss_bytes: 30_400_000,
            daemon_cpu_s: 1.64,
            gateway_rss_bytes: 60_000_000,
            gateway_rss_before_bytes: 50_000_000,
            gateway_cpu_s: 0.5,
        };
        result.curves[0].negotiation = Some(Negotiation {
            daemon: "strongSwan 5.9.8".into(),
            proposals: "aes256-sha256-modp2048, aes256gcm128-esn".into(),
            responder: "exact".into(),
            daemons_per_gateway: 1,
            parallel: 16,
            tunnels: 500,
            load_s: 0.31,
            negotiate_s: 2.0,
            tunnels_per_s: 250.0,
            handshake: HandshakeTime { p50_ms: 30.0, p99_ms: 90.0, max_ms: 95.0 },
            gateways: vec![side("gw0"), side("gw1")],
        });
        let rows = rows(&result);
        assert_eq!(rows.len(), 2);
        assert!(rows.iter().all(|row| row.len() == HEADER.len()));
        assert!(
            rows[1].join("|").contains("gw1|1000|2000|30 MB|1.6 s|60 MB|50 MB|0.5 s"),
            "{rows:?}"
        );
        assert_eq!(
            sentences(&result),
            [
                "500 tunnels: 500 tunnels negotiated by strongSwan 5.9.8 in 2.0 s (250 per second; loaded \
              in 0.3 s); 1 daemon(s) per gateway, a connection for each, 16 handshakes at once, each \
              p50 30 ms, p99 90 ms"
            ]
        );
    }
}
