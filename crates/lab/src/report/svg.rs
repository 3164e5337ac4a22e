//! The four-panel plot of the published figures, as SVG: receive rate, latency, receive loss and
//! latency loss over the samples of the ramp.
//!
//! ```text
//!        140                          1316
//!     60 ┌──────────────────────────────┐
//!        │ legend, call-outs    RX rate │   5.5 parts
//!    610 ├──────────────────────────────┤
//!        │                 latency, log │   1
//!    710 ├──────────────────────────────┤
//!        │                      RX loss │   1
//!    810 ├──────────────────────────────┤
//!        │                 latency loss │   1
//!    910 └──────────────────────────────┘
//! ```
//!
//! Every curve has a colour and a shape, so nothing depends on colour alone. Text and lines carry
//! classes (`ink`, `grid`, `paper`) by which a page may recolour them; alone, the file is dark on
//! white. It does not read files and does not know about fonts beyond their usual widths.

mod annotate;
pub(super) mod axis;
mod callout;
pub(super) mod canvas;
mod panel;

pub use canvas::escape;

use self::axis::{Scale, X};
use self::canvas::{Anchor, Canvas, fit};
use self::panel::Panel;
use super::number;
use crate::plot::{Plot, Series};
use crate::result::Ceiling;

/// Width of the figure, pixels.
pub const WIDTH: f64 = 1400.0;
/// Height of the figure, pixels.
pub const HEIGHT: f64 = 1000.0;
/// Left edge of all panels.
pub const LEFT: f64 = 140.0;
/// Right edge of all panels.
pub const RIGHT: f64 = 1316.0;
/// Upper edge of each panel, and the lower edge of the last.
pub const EDGES: [f64; 5] = [60.0, 610.0, 710.0, 810.0, 910.0];

/// Okabe and Ito's palette without black and yellow, in an order that starts like the published
/// figures (orange, green, red-purple …); brown and violet extend it.
pub(super) const COLOURS: [&str; 8] =
    ["#e69f00", "#009e73", "#0072b2", "#cc79a7", "#d55e00", "#56b4e9", "#8c5a2b", "#6a51a3"];
/// Dashes of the first eight curves, the next eight, and all others.
const DASHES: [&str; 3] = ["", "7 3", "2 3"];
/// A ceiling is drawn, and the scale stretched to show it, up to this multiple of the highest
/// sample; one far above would only press the curves flat, and is named below the plot instead.
const CEILING_REACH: f64 = 1.35;
/// Free space above the highest value of the first panel.
const HEADROOM: f64 = 1.06;

/// Draws the figure.
pub fn draw(plot: &Plot) -> String {
    let figure = Figure::new(plot);
    let clips: Vec<_> = EDGES
        .windows(2)
        .map(|edges| ((LEFT, edges[0]), (RIGHT - LEFT, edges[1] - edges[0])))
        .collect();
    let mut canvas = Canvas::new((WIDTH, HEIGHT), &plot.title, &description(plot), &clips);
    figure.frame(&mut canvas);
    figure.limited(&mut canvas);
    figure.ceilings(&mut canvas);
    for panel in Panel::ALL {
        figure.curves(&mut canvas, panel);
    }
    figure.limits(&mut canvas);
    figure.labels(&mut canvas);
    callout::draw(&mut canvas, &figure, figure.legend_bottom());
    figure.legend(&mut canvas);
    figure.bottom(&mut canvas);
    canvas.finish()
}

/// The sentence that stands for the picture where it cannot be seen.
fn description(plot: &Plot) -> String {
    let mut text = String::from(
        "Receive rate, latency, receive loss and latency loss over a ramp of offered load.",
    );
    for series in &plot.series {
        text.push_str(&match series.marker {
            Some(marker) => format!(
                " {}: {} at {} before the thresholds.",
                series.label,
                number::bps(marker.rx_bps),
                number::latency(marker.latency_us),
            ),
            None => format!(" {}: above a threshold from the start.", series.label),
        });
    }
    text
}

/// The colour of curve `index`.
fn colour(index: usize) -> &'static str {
    COLOURS[index % COLOURS.len()]
}

fn dash(index: usize) -> &'static str {
    DASHES[(index / COLOURS.len()).min(DASHES.len() - 1)]
}

/// A plot with its scales worked out.
struct Figure<'a> {
    plot: &'a Plot,
    x: X,
    scales: [Scale; 4],
    /// Ceilings within the scale, from the lowest.
    near: Vec<&'a Ceiling>,
    /// Ceilings beyond it.
    beyond: Vec<&'a Ceiling>,
}

impl<'a> Figure<'a> {
    fn new(plot: &'a Plot) -> Figure<'a> {
        let points = || plot.series.iter().flat_map(|series| &series.points);
        let highest = points().map(|point| point.rx_bps).fold(0.0, f64::max);
        let highest = if highest > 0.0 { highest } else { 1e9 };
        let (mut near, beyond): (Vec<&Ceiling>, Vec<&Ceiling>) =
            plot.ceilings.iter().partition(|c| c.l2_bps <= highest * CEILING_REACH);
        near.sort_by(|a, b| a.l2_bps.total_cmp(&b.l2_bps));
        let top = near.iter().map(|ceiling| ceiling.l2_bps).fold(highest, f64::max) * HEADROOM;
        let thresholds = &plot.thresholds;
        let loss = |value: fn(&crate::plot::Point) -> f64, limit: f64| {
            let highest = points().map(value).fold(limit * 1.3, f64::max).clamp(0.1, 100.0);
            Scale::percent(highest)
        };
        let latencies = points().filter_map(|point| point.latency_us);
        let scales = [
            Scale::rate(top),
            Scale::latency(latencies, thresholds.latency_us_max),
            loss(|point| point.rx_loss_percent, thresholds.rx_loss_percent_max),
            loss(|point| point.latency_loss_percent, thresholds.latency_loss_percent_max),
        ];
        let longest = plot.series.iter().map(|series| series.points.len()).max().unwrap_or(0);
        Figure { plot, x: X::new(longest), scales, near, beyond }
    }

    /// Paper, title, frames, grids, ticks and axis titles.
    fn frame(&self, canvas: &mut Canvas) {
        canvas.rect((0.0, 0.0), (WIDTH, HEIGHT), "class=\"paper\" fill=\"#ffffff\"");
        let title = "class=\"ink\" fill=\"#222222\" font-size=\"20\" font-weight=\"bold\"";
        let text = fit(&self.plot.title, 20.0, true, WIDTH - 2.0 * LEFT);
        canvas.text(((LEFT + RIGHT) / 2.0, 38.0), Anchor::Middle, title, &text);
        for panel in Panel::ALL {
            panel.frame(canvas, &self.scales[panel as usize], &self.x_grid());
        }
    }

    /// The x positions where a step begins, thinned to what can be told apart, with the step's
    /// number and the middle of its stretch.
    fn steps(&self) -> Vec<(f64, f64, u32)> {
        let longest = self.plot.series.iter().max_by_key(|series| series.points.len());
        let points = longest.map_or(&[][..], |series| &series.points);
        let mut steps: Vec<(f64, f64, u32)> = Vec::new();
        for (index, point) in points.iter().enumerate() {
            match steps.last_mut() {
                Some((start, middle, step)) if *step == point.step => {
                    *middle = (*start + self.x.at(index)) / 2.0;
                }
                _ => steps.push((self.x.at(index), self.x.at(index), point.step)),
            }
        }
        steps
    }

    fn x_grid(&self) -> Vec<f64> {
        let steps = self.steps();
        let every = steps.len().div_ceil(40).max(1);
        steps.iter().step_by(every).map(|(start, _, _)| *start).collect()
    }

    fn curves(&self, canvas: &mut Canvas, panel: Panel) {
        let scale = &self.scales[panel as usize];
        canvas.open(&format!("clip-path=\"url(#panel{})\"", panel as usize));
        for (index, series) in self.plot.series.iter().enumerate() {
            let mut path = String::new();
            let mut pen_down = false;
            for (at, point) in series.points.iter().enumerate() {
                let y = panel.value(point).map(|value| panel.y(scale, value));
                if let Some(y) = y {
                    let command = if pen_down { 'L' } else { 'M' };
                    path.push_str(&format!("{command}{:.1} {:.1}", self.x.at(at), y));
                }
                pen_down = y.is_some();
            }
            if path.is_empty() {
                continue;
            }
            let dashes = match dash(index) {
                "" => String::new(),
                dashes => format!(" stroke-dasharray=\"{dashes}\""),
            };
            let width = if panel == Panel::Rate { 2.0 } else { 1.4 };
            let attributes = format!(
                "fill=\"none\" stroke=\"{}\" stroke-width=\"{width}\" \
                 stroke-linejoin=\"round\"{dashes}",
                colour(index)
            );
            canvas.path(&path, &attributes);
        }
        canvas.close();
    }

    /// Where the marker of a series is, if it has one.
    fn marker(&self, series: &Series) -> Option<(f64, f64)> {
        let marker = series.marker?;
        Some((self.x.at(marker.sample), Panel::Rate.y(&self.scales[0], marker.rx_bps)))
    }
}

#[cfg(test)]
mod tests;
