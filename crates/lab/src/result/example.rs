//! Synthetic runs for tests, shaped like the published ramps.

use super::*;

/// Samples per second, as a real run has.
const SAMPLES_PER_STEP: u32 = 40;

/// A curve and its samples from the receive rate at the end of each step, Gbps. Latency and probe
/// loss are invented: flat, then rising where frames are lost.
pub(crate) fn curve(
    name: &str,
    tunnels: u32,
    top_gbps: f64,
    rx_gbps: &[f64],
) -> (Curve, Vec<Sample>) {
    let mut samples = Vec::new();
    let mut steps = Vec::new();
    for (index, &rx) in rx_gbps.iter().enumerate() {
        let step = index as u32 + 1;
        let offered = top_gbps * f64::from(step) / rx_gbps.len() as f64;
        let loss = (1.0 - rx / offered).max(0.0);
        let loss = if loss < 0.01 { 0.0 } else { loss };
        let latency_us = 45.0 + f64::from(tunnels % 37) + loss.sqrt() * 4000.0;
        for sample in 0..SAMPLES_PER_STEP {
            let before = if index == 0 { 0.0 } else { rx_gbps[index - 1] };
            let settled = 1.0 - (-f64::from(sample) / 4.0).exp();
            let wobble = f64::from((sample * 7919 + step * 104_729 + tunnels) % 97) / 97.0 - 0.5;
            samples.push(Sample {
                t_s: f64::from(index as u32 * SAMPLES_PER_STEP + sample) * 0.25,
                curve: name.into(),
                step,
                offered_bps: offered * 1e9,
                tx_bps: offered * 1e9,
                rx_bps: (before + (rx - before) * settled) * 1e9 * (1.0 + wobble * 0.004),
                rx_pps: rx * 1e9 / 8.0 / 1062.0,
                latency_us: Some(latency_us * (1.0 + wobble * 0.3)),
                latency_p99_us: Some(latency_us * 3.0),
                rx_loss_percent: loss * 100.0 * settled,
                latency_loss_percent: loss * 80.0 * settled * (1.0 + wobble * 0.5),
                reordered: 0,
                duplicated: 0,
                corrupted: 0,
            });
        }
        steps.push(example_step(step, offered, rx, loss, latency_us));
    }
    let curve = Curve {
        name: name.into(),
        tunnels,
        direction: Direction::Unidirectional,
        max_l2_bps_per_port: top_gbps * 1e9,
        negotiation: None,
        accounting: books(&steps),
        steps,
        conclusion: Conclusion::default(),
    };
    (curve, samples)
}

fn example_step(step: u32, offered_gbps: f64, rx_gbps: f64, loss: f64, latency_us: f64) -> Step {
    let rate = |gbps: f64| crate::traffic::rate(gbps * 1e9 / 8.0 / 1062.07, 1058.07);
    let expected = (rate(offered_gbps).pps * 10.0) as u64;
    let lost = (expected as f64 * loss) as u64;
    let frames =
        Counts { expected, sent: expected, received: expected - lost, lost, ..Counts::default() };
    let lost = (1000.0 * loss * 0.8) as u64;
    let probes =
        Counts { expected: 1000, sent: 1000, received: 1000 - lost, lost, ..Counts::default() };
    let latency = Some(Latency {
        min_us: latency_us * 0.5,
        avg_us: latency_us,
        p50_us: latency_us * 0.9,
        p90_us: latency_us * 1.5,
        p99_us: latency_us * 3.0,
        p99_9_us: latency_us * 5.0,
        max_us: latency_us * 7.0,
        samples: probes.received,
    });
    let received_rate = rate(rx_gbps);
    Step {
        step,
        duration_s: 10.0,
        offered_per_port: rate(offered_gbps),
        received_rate,
        frames,
        loss_ratio: frames.loss_ratio(),
        probes,
        latency_loss_ratio: probes.loss_ratio(),
        latency,
        generator_limited: false,
        directions: vec![DirectionStep {
            name: "P0→P1".into(),
            offered: Some(rate(offered_gbps)),
            received_rate,
            frames,
            probes,
            latency,
        }],
    }
}

fn books(steps: &[Step]) -> Vec<AccountingRow> {
    let mut all = Counts::default();
    steps.iter().for_each(|step| {
        all.add(&step.frames);
        all.add(&step.probes);
    });
    let row = |place: &str, side, name: &str, packets| AccountingRow {
        place: place.into(),
        side,
        name: name.into(),
        packets,
    };
    vec![
        row("path", Side::In, "offered", all.sent),
        row("path", Side::Out, "delivered", all.received),
        row("path", Side::Out, "gw0 queue_full", all.lost),
        row("gw0", Side::In, "received", all.sent),
        row("gw0", Side::Out, "sealed", all.received),
        row("gw0", Side::Out, "queue_full", all.lost),
        row("gw1", Side::In, "received", all.received),
        row("gw1", Side::Out, "opened", all.received),
    ]
}

/// One of the published ramps, by its name in `testdata/reference-ramps.csv`; hidden steps repeat
/// the one before.
pub(crate) fn published_ramp(name: &str) -> Vec<f64> {
    let text = include_str!("../../testdata/reference-ramps.csv");
    let line =
        text.lines().find(|line| line.split(',').next() == Some(name)).expect("a known ramp");
    let mut last = 0.0;
    line.split(',')
        .skip(1)
        .map(|cell| {
            last = cell.parse().unwrap_or(last);
            last
        })
        .collect()
}

/// A whole run made of such curves.
pub(crate) fn run_of(
    title: &str,
    thresholds: Thresholds,
    curves: Vec<(Curve, Vec<Sample>)>,
) -> Run {
    let (curves, samples): (Vec<_>, Vec<_>) = curves.into_iter().unzip();
    let steps = curves[0].steps.len() as u32;
    Run {
        result: RunResult {
            schema: SCHEMA,
            recipe: "bf3-test0".into(),
            title: title.into(),
            started_at: "2026-01-02T03:04:05Z".into(),
            tool: Tool { name: "peregrine".into(), version: "0.1.0".into() },
            ruler: Ruler::EndToEndVeth,
            thresholds,
            ramp: RampShape { steps, step_time_s: 10.0, drain_ms: 200, settle_s: 2.0 },
            curves,
            calibration: Some(Calibration {
                measured_at: "2026-01-02T03:03:05Z".into(),
                zero_loss: crate::traffic::rate(600_000.0, 1058.07),
                maximum: crate::traffic::rate(700_000.0, 1058.07),
                latency: None,
                clean: true,
                points: vec![CalibrationPoint {
                    offered: crate::traffic::rate(700_000.0, 1058.07),
                    received: crate::traffic::rate(690_000.0, 1058.07),
                    loss_ratio: 1.0 / 70.0,
                }],
            }),
            ceilings: vec![],
            notes: vec![],
        },
        // The file rounds; a run that was read has what the file can hold.
        samples: read_samples(&write_samples(&samples.concat())).unwrap(),
        environment: environment(),
    }
}

fn environment() -> Environment {
    let map = |pairs: &[(&str, &str)]| {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    };
    Environment {
        schema: SCHEMA,
        kernel: "6.12.0 #1 SMP".into(),
        cmdline: "console=ttyS0 quiet".into(),
        cpu: Cpu {
            model: "Example CPU <9000> & co".into(),
            cores: 2,
            governor: "none".into(),
            mitigations: map(&[("meltdown", "Not affected")]),
        },
        versions: map(&[("peregrine", "0.1.0"), ("iproute2", "6.1.0"), ("engine", "ipsec-mb 2.0")]),
        offloads: [("p0".to_owned(), map(&[("generic-receive-offload", "off")]))].into(),
        sysctl: map(&[("net.ipv4.ip_forward", "1")]),
        recipe_hash: "00ff00ff00ff00ff".into(),
        seed: 1,
        started_at: "2026-01-02T03:04:05Z".into(),
        finished_at: "2026-01-02T03:07:25Z".into(),
        other: std::collections::BTreeMap::new(),
    }
}

/// The published thresholds of every test but Test 0.
pub(crate) const THRESHOLDS: Thresholds =
    Thresholds { latency_us_max: 1000.0, rx_loss_percent_max: 5.0, latency_loss_percent_max: 8.0 };

/// One small run.
pub(crate) fn run() -> Run {
    run_of(
        "Example",
        THRESHOLDS,
        vec![curve("500 tunnels", 500, 4.0, &published_ramp("Test0-r1 500T"))],
    )
}
