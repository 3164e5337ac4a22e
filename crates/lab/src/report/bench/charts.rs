//! Which charts are drawn of which figures. A chart without a line of our own is not drawn.

use crate::figure::Figures;
use crate::report::chart::{Axis, Chart, Line, Source};
use crate::vpp;

/// What VPP's selections are called in a legend.
const VPP_SELECTIONS: [(&str, &str); 6] = [
    ("plain", "VPP, in clear"),
    ("p2p", "VPP, point-to-point"),
    ("p2mp", "VPP, point-to-multipoint"),
    ("policy-fastpath", "VPP, policies, fast path"),
    ("policy-flowcache", "VPP, policies, flow cache"),
    ("policy-linear", "VPP, policies, linear"),
];
/// What ours are called.
const SELECTIONS: [(&str, &str); 6] = [
    ("plain", "Peregrine, in clear"),
    ("policy", "Peregrine, policies"),
    ("policy-cached", "Peregrine, many shapes, flow cache"),
    ("policy-uncached", "Peregrine, eight shapes, new flows"),
    ("p2p", "Peregrine, point-to-point"),
    ("p2mp", "Peregrine, point-to-multipoint"),
];

/// All charts that the figures allow, each with the name of its file.
pub fn charts(figures: &Figures) -> Vec<(String, Chart)> {
    let mut charts = Vec::new();
    for (direction, title) in
        [("seal", "Sealing"), ("open", "Opening"), ("both", "Sealing and opening")]
    {
        for tunnels in ["1", "10000"] {
            charts.push((
                format!("{direction}-sizes-{tunnels}"),
                over_sizes(figures, direction, title, tunnels),
            ));
        }
        let at_random = over_sizes_at_random(figures, direction, title);
        charts.push((format!("{direction}-sizes-random"), at_random));
        for size in ["imix1", "114", "1428"] {
            charts.push((
                format!("{direction}-tunnels-{size}"),
                over_tunnels(figures, direction, title, size),
            ));
        }
    }
    charts.push(("policies".to_owned(), over_policies(figures)));
    charts.push(("cores-many".to_owned(), over_cores(figures, "many")));
    charts.push(("cores-fat".to_owned(), over_cores(figures, "fat")));
    let is_ours = |chart: &Chart| chart.lines.iter().any(|line| line.source == Source::Measured);
    charts.retain(|(_, chart)| is_ours(chart));
    charts
}

/// The figures of a pattern as a line, if there are any; what stands for `*` is x, and a name that
/// is no number (a mix) is left out.
fn line(figures: &Figures, pattern: &str, label: &str, source: Source) -> Option<Line> {
    let at = pattern.split('/').position(|part| part == "*")?;
    let x = |name: &str| name.split('/').nth(at)?.parse::<f64>().ok();
    let mut points: Vec<(f64, f64)> =
        figures.matching(pattern).filter_map(|(name, value)| Some((x(name)?, value))).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    (!points.is_empty()).then(|| Line { label: label.to_owned(), source, points })
}

fn axis(title: &str, logarithmic: bool) -> Axis {
    Axis { title: title.to_owned(), logarithmic }
}

fn over_sizes(figures: &Figures, direction: &str, title: &str, tunnels: &str) -> Chart {
    let mut lines = Vec::new();
    for (name, label) in SELECTIONS {
        let of = |above: &str, label: &str| {
            let pattern = format!("{above}/{name}/{direction}/{tunnels}/*/cycles");
            line(figures, &pattern, label, Source::Measured)
        };
        // One tunnel has no order; several of VPP's were measured in turns.
        let in_turns = of("path-turns", &format!("{label}, in turns"));
        lines.extend(in_turns.or_else(|| match tunnels {
            "1" => of("path", label),
            _ => of("path", &format!("{label}, at random")),
        }));
    }
    for (name, label) in VPP_SELECTIONS.into_iter().filter(|(name, _)| *name != "policy-linear") {
        let pattern = format!("vpp/{direction}/{name}/{tunnels}/*/cycles");
        lines.extend(line(figures, &pattern, label, Source::Published));
    }
    lines.extend(ciphers(figures, direction, tunnels));
    let count = if tunnels == "1" { "one tunnel".to_owned() } else { grouped(tunnels) };
    sizes_chart(format!("{title}: cycles per packet against size, {count}"), lines, footer())
}

/// Many tunnels whose packets come in random order, VPP's as well.
fn over_sizes_at_random(figures: &Figures, direction: &str, title: &str) -> Chart {
    let tunnels = "10000";
    let mut lines = Vec::new();
    for (name, label) in SELECTIONS {
        let pattern = format!("path/{name}/{direction}/{tunnels}/*/cycles");
        lines.extend(line(figures, &pattern, label, Source::Measured));
    }
    for (name, label) in VPP_SELECTIONS {
        let pattern = format!("vpp-random/{direction}/{name}/{tunnels}/*/cycles");
        lines.extend(line(figures, &pattern, label, Source::Published));
    }
    lines.extend(ciphers(figures, direction, tunnels));
    let count = grouped(tunnels);
    let title = format!("{title}: cycles per packet against size, {count} in random order");
    let at_random = |text: String| text.replace("consecutive tunnels", "random tunnels");
    sizes_chart(title, lines, footer().into_iter().map(at_random).collect())
}

fn sizes_chart(title: String, lines: Vec<Line>, footer: Vec<String>) -> Chart {
    Chart {
        title,
        x: axis("bytes of the packet with Ethernet header", false),
        y: axis("cycles per packet", false),
        lines,
        footer,
    }
}

fn ciphers(figures: &Figures, direction: &str, tunnels: &str) -> Vec<Line> {
    let one = format!("cipher/{direction}/1/*/cycles");
    let mut lines: Vec<Line> =
        line(figures, &one, "the cipher alone, one key", Source::Ceiling).into_iter().collect();
    if tunnels != "1" {
        let all = format!("cipher/{direction}/{tunnels}/*/cycles");
        let label = "the cipher alone, all keys, no prefetch";
        lines.extend(line(figures, &all, label, Source::Ceiling));
    }
    lines
}

fn over_tunnels(figures: &Figures, direction: &str, title: &str, size: &str) -> Chart {
    let mut lines = Vec::new();
    for (name, label) in SELECTIONS {
        let pattern = format!("path/{name}/{direction}/*/{size}/cycles");
        lines.extend(line(figures, &pattern, label, Source::Measured));
    }
    for (name, label) in VPP_SELECTIONS {
        let pattern = format!("vpp/{direction}/{name}/*/{size}/cycles");
        lines.extend(line(figures, &pattern, label, Source::Published));
    }
    let all_keys = format!("cipher/{direction}/*/{size}/cycles");
    let label = "the cipher alone, all keys, no prefetch";
    lines.extend(line(figures, &all_keys, label, Source::Ceiling));
    if let Some(cycles) = figures.value(&format!("cipher/{direction}/1/{size}/cycles")) {
        let xs = lines.iter().flat_map(|line| &line.points).map(|point| point.0);
        let last = xs.fold(1.0, f64::max);
        let label = "the cipher alone, one key".to_owned();
        let points = vec![(1.0, cycles), (last, cycles)];
        lines.push(Line { label, source: Source::Ceiling, points });
    }
    let size = if size == "imix1" { "iMIX 1".to_owned() } else { format!("{size} bytes") };
    Chart {
        title: format!("{title}: cycles per packet against tunnels, {size}"),
        x: axis("tunnels; ours in random order", true),
        y: axis("cycles per packet", true),
        lines,
        footer: footer(),
    }
}

fn over_policies(figures: &Figures) -> Chart {
    let lines = [
        ("policy/classifier/*/ns", "classifier"),
        ("policy/cache/*/ns", "flow cache in front"),
        ("policy/linear/*/ns", "linear search"),
    ];
    let lines = lines
        .into_iter()
        .filter_map(|(pattern, label)| line(figures, pattern, label, Source::Measured));
    Chart {
        title: "A policy look-up against the number of policies".to_owned(),
        x: axis("policies", true),
        y: axis("ns per look-up", true),
        lines: lines.collect(),
        footer: vec![],
    }
}

fn over_cores(figures: &Figures, case: &str) -> Chart {
    let (title, table) = match case {
        "fat" => ("One fat tunnel", "fat"),
        _ => ("Many tunnels", "10k"),
    };
    let mut lines = Vec::new();
    let measured = format!("cores/{case}/*/gbps");
    lines.extend(line(figures, &measured, "Peregrine, measured", Source::Measured));
    let model = format!("cores/{case}/model/*/gbps");
    lines.extend(line(figures, &model, "Peregrine, the model", Source::Modelled));
    let mut rates = vpp::rates();
    rates.retain(|rate| rate.table == table);
    let mut modes: Vec<&str> = rates.iter().map(|rate| rate.mode).collect();
    modes.dedup();
    for mode in modes {
        let rates = rates.iter().filter(|rate| rate.mode == mode);
        let points = rates.map(|rate| (f64::from(rate.cores), rate.gbps)).collect();
        lines.push(Line { label: format!("VPP, {mode}"), source: Source::Published, points });
    }
    Chart {
        title: format!("{title}: rate against cores"),
        x: axis("cores", true),
        y: axis("Gbps", true),
        lines,
        footer: vec![vpp::CORES_CONDITIONS.to_owned()],
    }
}

fn footer() -> Vec<String> {
    vec![
        "Solid with dots: measured here, whole path from ring to ring. Dotted: what the cipher \
         alone takes."
            .to_owned(),
        format!("Dashed with rings: {}.", vpp::CYCLES_CONDITIONS),
    ]
}

fn grouped(tunnels: &str) -> String {
    tunnels.parse().map_or_else(|_| format!("{tunnels} tunnels"), crate::report::number::tunnels)
}
