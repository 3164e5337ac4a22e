//! The plot: the published shapes, drawn and compared.

use super::*;
use crate::plot::{Named, Point, assemble};
use crate::report::png;
use crate::result::{Marker, Run, Thresholds, example};

/// Four of the published ramps: plateau, knee, collapse.
fn published() -> Run {
    let ramps = [
        ("10T", 10, "Test0-r3 500T", 6.0),
        ("50T", 50, "Test0-r2 500T", 5.0),
        ("500T", 500, "Test0-r1 500T", 4.0),
    ];
    let curves = ramps
        .map(|(name, tunnels, ramp, top)| {
            example::curve(name, tunnels, top, &example::published_ramp(ramp))
        })
        .into();
    let mut run = example::run_of("Published ramps", example::THRESHOLDS, curves);
    conclude(&mut run);
    run
}

fn conclude(run: &mut Run) {
    let thresholds = run.result.thresholds;
    for index in 0..run.result.curves.len() {
        let name = run.result.curves[index].name.clone();
        let samples: Vec<_> = run.samples_of(&name).cloned().collect();
        let curve = &run.result.curves[index];
        let found = crate::marker::conclude(curve, &samples, &thresholds, &run.result.ceilings, 20);
        run.result.curves[index].conclusion = found;
    }
}

fn plot_of(run: &Run) -> Plot {
    assemble(&[Named { name: "run", run }]).unwrap()
}

/// One point per step, so that the snapshot stays readable.
fn thinned(mut plot: Plot) -> Plot {
    for series in &mut plot.series {
        series.points = series.points.iter().skip(39).step_by(40).copied().collect();
        series.marker = series.marker.map(|marker| {
            let sample = marker.sample / 40;
            let Point { rx_bps, latency_us, rx_loss_percent, latency_loss_percent, .. } =
                series.points[sample];
            Marker { sample, rx_bps, latency_us, rx_loss_percent, latency_loss_percent, ..marker }
        });
    }
    plot
}

fn xml(svg: &str) -> resvg::usvg::roxmltree::Document<'_> {
    resvg::usvg::roxmltree::Document::parse(svg).unwrap()
}

/// Points of every curve path: `(x, y)` per point, paths in drawing order.
fn curve_paths(svg: &str) -> Vec<Vec<(f64, f64)>> {
    let document = xml(svg);
    document
        .descendants()
        .filter(|node| {
            node.has_tag_name("path")
                && node.parent().is_some_and(|parent| parent.has_attribute("clip-path"))
        })
        .map(|node| {
            node.attribute("d")
                .unwrap()
                .split(['M', 'L'])
                .filter(|part| !part.is_empty())
                .map(|part| {
                    let (x, y) = part.split_once(' ').unwrap();
                    (x.parse().unwrap(), y.parse().unwrap())
                })
                .collect()
        })
        .collect()
}

#[test]
fn the_drawing_is_the_snapshot() {
    let mut run = published();
    run.result.ceilings = vec![
        Ceiling { name: "plaintext path".into(), l2_bps: 4.8e9, pps: None, direction: None },
        Ceiling { name: "raw cipher".into(), l2_bps: 40e9, pps: None, direction: None },
    ];
    run.result.curves[0].steps[19].generator_limited = true;
    let svg = draw(&thinned(plot_of(&run)));
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/plot.svg");
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(path, &svg).unwrap();
    }
    let snapshot = std::fs::read_to_string(path).unwrap();
    assert!(svg == snapshot, "plot.svg changed; look at it, then run with UPDATE_SNAPSHOTS=1");
}

#[test]
fn curves_have_the_shape_of_their_data() {
    let plot = thinned(plot_of(&published()));
    let paths = curve_paths(&draw(&plot));
    assert_eq!(paths.len(), 4 * plot.series.len());
    for (index, series) in plot.series.iter().enumerate() {
        let path = &paths[index];
        assert_eq!(path.len(), 20);
        // y falls where the rate rises, by the same proportion everywhere: 0 stands at 610.
        let per_bit = (EDGES[1] - path[9].1) / series.points[9].rx_bps;
        for (point, drawn) in series.points.iter().zip(path) {
            assert!((EDGES[1] - drawn.1 - point.rx_bps * per_bit).abs() < 0.3);
        }
        // The knee: the highest sample is the highest point.
        let best = |values: Vec<f64>| {
            values.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0
        };
        let highest = best(series.points.iter().map(|point| point.rx_bps).collect());
        assert_eq!(best(path.iter().map(|(_, y)| -y).collect()), highest);
    }
    for (index, path) in paths.iter().enumerate() {
        let panel = index / plot.series.len();
        for (x, y) in path {
            assert!((LEFT..=RIGHT).contains(x));
            assert!((EDGES[panel]..=EDGES[panel + 1]).contains(y), "panel {panel}: {y}");
        }
    }
}

#[test]
fn call_outs_show_the_markers_figures() {
    let mut run = published();
    // A generator that was late sent more than was asked for: the marker has what was.
    let marker = run.result.curves[0].conclusion.marker.unwrap();
    let name = run.result.curves[0].name.clone();
    let mut own = run.samples.iter_mut().filter(|sample| sample.curve == name);
    let sample = own.nth(marker.sample).unwrap();
    sample.rx_bps = sample.offered_bps * 1.2;
    let unsaid = number::bps(sample.rx_bps);
    conclude(&mut run);
    let plot = plot_of(&run);
    let svg = draw(&plot);
    for (series, curve) in plot.series.iter().zip(&run.result.curves) {
        let marker = curve.conclusion.marker.unwrap();
        assert!(svg.contains(&format!(">{}<", number::bps(marker.rx_bps))));
        let described = format!("{}: {} at ", series.label, number::bps(marker.rx_bps));
        assert!(svg.contains(&described), "{described}");
        assert!(svg.contains(&format!("latency {}", number::latency(marker.latency_us))));
    }
    assert!(!svg.contains(&unsaid), "{unsaid}");
}

#[test]
fn a_run_without_samples_or_markers_is_still_a_figure() {
    let mut run = published();
    run.samples.clear();
    run.result.title = "a < b & \"c\"".into();
    let svg = draw(&plot_of(&run));
    xml(&svg);
    assert!(svg.contains("a &lt; b &amp; &quot;c&quot;"));
    let mut run = published();
    run.result.curves.truncate(1);
    for sample in &mut run.samples {
        sample.latency_us = None;
        sample.rx_bps = 0.0;
    }
    let svg = draw(&plot_of(&run));
    assert!(!svg.contains("NaN") && !svg.contains("inf"));
    assert_eq!(curve_paths(&svg).len(), 3);
}

#[test]
fn twenty_curves_do_not_break_the_layout() {
    let curves = (0..20)
        .map(|index| {
            let rates: Vec<f64> = (1..=20).map(|step| f64::from(step) * 0.2).collect();
            example::curve(&format!("{index} tunnels"), index, 4.0, &rates)
        })
        .collect();
    let mut run = example::run_of("Many", example::THRESHOLDS, curves);
    conclude(&mut run);
    let svg = draw(&thinned(plot_of(&run)));
    let document = xml(&svg);
    for node in document.descendants().filter(|node| node.has_tag_name("rect")) {
        let number = |name| node.attribute(name).map_or(0.0, |v| v.parse::<f64>().unwrap());
        assert!(number("y") + number("height") <= HEIGHT + 0.1);
    }
}

/// No two texts of a figure touch: boxes from the widths of the usual font.
#[test]
fn no_texts_overlap() {
    let mut run = published();
    run.result.ceilings = [4.41e9, 4.42e9, 4.43e9, 5.5e9, 40e9]
        .map(|l2_bps| Ceiling { name: "link".into(), l2_bps, pps: None, direction: None })
        .into();
    let thresholds = [
        example::THRESHOLDS,
        Thresholds {
            latency_us_max: 1e6,
            rx_loss_percent_max: 0.5,
            latency_loss_percent_max: 50.0,
        },
    ];
    for limits in thresholds {
        run.result.thresholds = limits;
        conclude(&mut run);
        let svg = draw(&plot_of(&run));
        let document = xml(&svg);
        let mut boxes: Vec<(f64, f64, f64, f64, String)> = Vec::new();
        for node in document.descendants().filter(|node| node.has_tag_name("text")) {
            let number = |name: &str| node.attribute(name).and_then(|v| v.parse::<f64>().ok());
            let (Some(x), Some(y)) = (number("x"), number("y")) else { continue };
            let size = number("font-size").unwrap();
            let bold = node.attribute("font-weight").is_some();
            let text = node.text().unwrap_or_default().to_owned();
            let width = canvas::text_width(&text, size, bold);
            let left = match node.attribute("text-anchor").unwrap() {
                "start" => x,
                "middle" => x - width / 2.0,
                _ => x - width,
            };
            assert!(left >= 0.0 && left + width <= WIDTH, "{text} leaves the figure");
            boxes.push((left, y - size * 0.75, left + width, y + size * 0.2, text));
        }
        for (index, a) in boxes.iter().enumerate() {
            for b in &boxes[index + 1..] {
                let apart = a.2 <= b.0 || b.2 <= a.0 || a.3 <= b.1 || b.3 <= a.1;
                assert!(apart, "{} touches {}", a.4, b.4);
            }
        }
    }
}

#[test]
fn the_png_has_the_published_size() {
    match png::render(&draw(&plot_of(&published()))) {
        Ok(bytes) => {
            // IHDR: width and height follow the signature and the chunk's head.
            assert_eq!(bytes[16..24], [0, 0, 0x05, 0x78, 0, 0, 0x03, 0xe8]);
        }
        // A machine without fonts has to say so and nothing else.
        Err(error) => assert_eq!(error, png::PngError::NoFont),
    }
}
