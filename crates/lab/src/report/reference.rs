//! The published figures that a run is set beside. Other hardware, other ruler: they give the
//! order of magnitude and the shape, never a verdict.

use crate::result::{Curve, Direction};

/// Every marker of the published result figures, read off the images.
const BLUEFIELD3_CSV: &str = include_str!("../../reference/bluefield3.csv");
/// What has to stand beside every one of these figures.
pub const OTHER_HARDWARE: &str =
    "published figures: two Nvidia BlueField-3 cards, other hardware and another ruler";

/// One published marker.
#[derive(Debug, Clone, PartialEq)]
pub struct Published {
    /// The figure, for example `Test1-bidir (500T)`.
    pub figure: String,
    /// The curve in it.
    pub curve: String,
    /// What did the work in that figure.
    pub engine: &'static str,
    /// Received at the marker, Gbps.
    pub rx_gbps: f64,
    /// Latency at the marker, microseconds.
    pub latency_us: f64,
    /// Loss at the marker, percent.
    pub rx_loss_percent: f64,
    /// Probe loss at the marker, percent.
    pub latency_loss_percent: f64,
}

/// The published markers that correspond to one curve of a recipe, if any.
pub fn published(recipe: &str, curve: &Curve) -> Vec<Published> {
    let tunnels = format!("{}T", curve.tunnels);
    let wanted: &[(&str, &str, &'static str)] = match (recipe, curve.direction) {
        ("bf3-test0", Direction::Unidirectional) => &[
            ("Test0-r1 (No offload, uni)", &tunnels, "Linux kernel, no offload"),
            ("Test0-r2 (Crypto offload, uni)", &tunnels, "Linux kernel, crypto offload"),
            ("Test0-r3 (Packet offload, uni)", &tunnels, "Linux kernel, packet offload"),
        ],
        ("bf3-test1", Direction::Unidirectional) if curve.tunnels == 500 => {
            &[("Test1-unidir (500T)", "ipsec-lpm+fib", "XDP forwarder, packet offload")]
        }
        ("bf3-test1", Direction::Bidirectional) if curve.tunnels == 500 => {
            &[("Test1-bidir (500T)", "ipsec-lpm+fib", "XDP forwarder, packet offload")]
        }
        ("bf3-test4", Direction::Bidirectional) => &[(
            "Test4 (routed, 4TX/4RX, 120K clients)",
            &tunnels,
            "XDP forwarder, packet offload, two pairs of ports",
        )],
        _ => &[],
    };
    wanted.iter().filter_map(|(figure, curve, engine)| find(figure, curve, engine)).collect()
}

fn find(figure: &str, curve: &str, engine: &'static str) -> Option<Published> {
    BLUEFIELD3_CSV.lines().skip(1).find_map(|line| {
        // Figures may hold commas and are quoted then; the five other cells never are.
        let mut cells = line.rsplitn(6, ',');
        let mut number = || cells.next()?.parse::<f64>().ok();
        let (latency_loss_percent, rx_loss_percent) = (number()?, number()?);
        let (latency_us, rx_gbps) = (number()?, number()?);
        let found_curve = cells.next()?;
        let found_figure = cells.next()?.trim_matches('"');
        (found_figure == figure && found_curve == curve).then(|| Published {
            figure: figure.to_owned(),
            curve: curve.to_owned(),
            engine,
            rx_gbps,
            latency_us,
            rx_loss_percent,
            latency_loss_percent,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::example;

    #[test]
    fn each_published_curve_is_found_from_its_own_recipe() {
        let (mut curve, _) = example::curve("x", 500, 1.0, &[1.0]);
        curve.direction = Direction::Bidirectional;
        let found = published("bf3-test1", &curve);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].rx_gbps, found[0].latency_us), (115.27, 228.75));
        assert_eq!((found[0].rx_loss_percent, found[0].latency_loss_percent), (2.98, 0.35));
        curve.direction = Direction::Unidirectional;
        assert_eq!(published("bf3-test1", &curve)[0].rx_gbps, 72.23);
        for (tunnels, rates) in
            [(10, [3.10, 3.39, 5.24]), (50, [3.97, 4.43, 4.84]), (500, [1.19, 3.09, 3.63])]
        {
            curve.tunnels = tunnels;
            let found = published("bf3-test0", &curve);
            assert_eq!(found.iter().map(|p| p.rx_gbps).collect::<Vec<_>>(), rates);
        }
        curve.tunnels = 7;
        assert_eq!(published("bf3-test0", &curve), vec![]);
        assert_eq!(published("other", &curve), vec![]);
    }
}
