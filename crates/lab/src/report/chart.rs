//! Lines over one axis, as SVG: cycles against sizes, against tunnels, rates against cores.
//!
//! ```text
//!     110                        1000        1380
//!   60 ┌───────────────────────────┐
//!      │                     lines │  legend
//!  690 └───────────────────────────┘
//!                 x title             footer below
//! ```
//!
//! What was measured here is drawn solid with dots, what others published dashed with rings, and
//! what no gateway can beat dotted: nothing depends on colour alone. It reads no files.

use super::svg::COLOURS;
use super::svg::axis::{plain, round_steps};
use super::svg::canvas::{Anchor, Canvas, fit};

const WIDTH: f64 = 1400.0;
const HEIGHT: f64 = 800.0;
const LEFT: f64 = 110.0;
const RIGHT: f64 = 1000.0;
const TOP: f64 = 60.0;
const BOTTOM: f64 = 690.0;
/// Where the legend starts, and how far its rows are apart.
const LEGEND_LEFT: f64 = RIGHT + 24.0;
const LEGEND_ROW: f64 = 22.0;
/// Free space inside the frame, as a share of its width and height.
const MARGIN: f64 = 0.04;
/// What fits below the axis.
const FOOTER_LINES_MAX: usize = 3;

/// A figure.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// The line on top.
    pub title: String,
    /// The x axis.
    pub x: Axis,
    /// The y axis.
    pub y: Axis,
    /// The lines, in legend order.
    pub lines: Vec<Line>,
    /// Sentences for the bottom.
    pub footer: Vec<String>,
}

/// An axis: its title and how values stand on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Axis {
    /// With the unit.
    pub title: String,
    /// Equal ratios are equally far apart; such an axis has no zero.
    pub logarithmic: bool,
}

/// One line; points from left to right.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// The name in the legend.
    pub label: String,
    /// Who says so.
    pub source: Source,
    /// x and y.
    pub points: Vec<(f64, f64)>,
}

/// Where a line comes from; decides how it is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Measured in this run.
    Measured,
    /// Calculated from what was measured in this run.
    Modelled,
    /// Taken from a table of somebody else's measurements.
    Published,
    /// What cannot be exceeded, whatever the gateway does.
    Ceiling,
}

impl Source {
    fn dashes(self) -> &'static str {
        match self {
            Source::Measured => "",
            Source::Modelled => " stroke-dasharray=\"12 3 2 3\"",
            Source::Published => " stroke-dasharray=\"7 4\"",
            Source::Ceiling => CEILING_DASHES[0],
        }
    }
}

/// Of the first ceiling, the second, and so on.
const CEILING_DASHES: [&str; 3] =
    [" stroke-dasharray=\"2 4\"", " stroke-dasharray=\"1 8\"", " stroke-dasharray=\"5 8\""];

/// An axis with its range: from values to shares of the frame.
struct Scale {
    low: f64,
    high: f64,
    logarithmic: bool,
    /// Values and labels.
    ticks: Vec<(f64, String)>,
}

impl Scale {
    fn new(axis: &Axis, values: impl Iterator<Item = f64>, from_zero: bool) -> Scale {
        let usable = |value: &f64| value.is_finite() && (!axis.logarithmic || *value > 0.0);
        let (mut low, mut high, mut whole) = (f64::INFINITY, f64::NEG_INFINITY, true);
        for value in values.filter(usable) {
            (low, high) = (low.min(value), high.max(value));
            whole &= value.fract() == 0.0;
        }
        if low > high {
            (low, high) = (1.0, 10.0);
        }
        if axis.logarithmic {
            return Scale::logarithmic(low, high);
        }
        let low = if from_zero { 0.0 } else { low };
        let high = if high > low { high } else { low + 1.0 };
        // Between two whole things there is nothing to mark.
        let fits = |value: &f64| *value >= low && (!whole || value.fract() == 0.0);
        let ticks = round_steps(high, 8).filter(fits).map(|value| (value, plain(value))).collect();
        Scale { low, high: high + (high - low) * MARGIN, logarithmic: false, ticks }
    }

    fn logarithmic(low: f64, high: f64) -> Scale {
        let (low, high) = (low.log10(), high.log10());
        let room = (high - low).max(0.3) * MARGIN;
        let (low, high) = (low - room, high + room);
        let decades = (low.floor() as i32)..=(high.ceil() as i32);
        // On more than three decades the steps between them would touch.
        let steps: &[f64] = if high - low > 3.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let values = decades.flat_map(|n| steps.iter().map(move |step| step * 10f64.powi(n)));
        let ticks = values
            .filter(|value| (low..=high).contains(&value.log10()))
            .map(|value| (value, grouped(value)))
            .collect();
        Scale { low, high, logarithmic: true, ticks }
    }

    fn share(&self, value: f64) -> Option<f64> {
        let value = if self.logarithmic { value.log10() } else { value };
        let share = (value - self.low) / (self.high - self.low);
        share.is_finite().then_some(share)
    }
}

/// Draws the figure.
pub fn draw(chart: &Chart) -> String {
    let points = || chart.lines.iter().flat_map(|line| &line.points);
    let x = Scale::new(&chart.x, points().map(|point| point.0), false);
    let y = Scale::new(&chart.y, points().map(|point| point.1), true);
    let clip = ((LEFT, TOP), (RIGHT - LEFT, BOTTOM - TOP));
    let mut canvas = Canvas::new((WIDTH, HEIGHT), &chart.title, &description(chart), &[clip]);
    frame(&mut canvas, chart, &x, &y);
    canvas.open("clip-path=\"url(#panel0)\"");
    // What was measured here lies on top of everything else.
    let own = |line: &Line| line.source == Source::Measured;
    let mut order: Vec<usize> = (0..chart.lines.len()).collect();
    order.sort_by_key(|index| own(&chart.lines[*index]));
    for index in order {
        curve(&mut canvas, (&chart.lines, index), &x, &y);
    }
    canvas.close();
    legend(&mut canvas, chart);
    for (row, text) in chart.footer.iter().take(FOOTER_LINES_MAX).enumerate() {
        let style = "class=\"ink\" fill=\"#555555\" font-size=\"12\"";
        let text = fit(text, 12.0, false, WIDTH - LEFT - 20.0);
        canvas.text((LEFT, BOTTOM + 66.0 + 16.0 * row as f64), Anchor::Start, style, &text);
    }
    canvas.finish()
}

/// The sentence that stands for the picture where it cannot be seen.
fn description(chart: &Chart) -> String {
    let mut text = format!("{} over {}.", chart.y.title, chart.x.title);
    for line in &chart.lines {
        let usable = line.points.iter().filter(|(x, y)| x.is_finite() && y.is_finite());
        let points: Vec<String> =
            usable.map(|(x, y)| format!("{} at {}", number(*y), grouped(*x))).collect();
        text.push_str(&format!(" {}: {}.", line.label, points.join(", ")));
    }
    text
}

fn frame(canvas: &mut Canvas, chart: &Chart, x: &Scale, y: &Scale) {
    canvas.rect((0.0, 0.0), (WIDTH, HEIGHT), "class=\"paper\" fill=\"#ffffff\"");
    let title = "class=\"ink\" fill=\"#222222\" font-size=\"20\" font-weight=\"bold\"";
    let text = fit(&chart.title, 20.0, true, WIDTH - LEFT - 20.0);
    canvas.text((LEFT, 38.0), Anchor::Start, title, &text);
    let (grid, ink) = ("class=\"grid\" stroke=\"#dddddd\"", "class=\"ink\" fill=\"#333333\"");
    let label = format!("{ink} font-size=\"13\"");
    for (value, text) in &x.ticks {
        let Some(at) = x_of(x, *value) else { continue };
        canvas.line((at, TOP), (at, BOTTOM), grid);
        canvas.text((at, BOTTOM + 20.0), Anchor::Middle, &label, text);
    }
    for (value, text) in &y.ticks {
        let Some(at) = y_of(y, *value) else { continue };
        canvas.line((LEFT, at), (RIGHT, at), grid);
        canvas.text((LEFT - 8.0, at + 4.5), Anchor::End, &label, text);
    }
    let axis = "class=\"axis\" fill=\"none\" stroke=\"#444444\"";
    canvas.rect((LEFT, TOP), (RIGHT - LEFT, BOTTOM - TOP), axis);
    let style = format!("{ink} font-size=\"14\"");
    canvas.text(((LEFT + RIGHT) / 2.0, BOTTOM + 42.0), Anchor::Middle, &style, &chart.x.title);
    canvas.upright_text((34.0, (TOP + BOTTOM) / 2.0), &style, &chart.y.title);
}

fn x_of(scale: &Scale, value: f64) -> Option<f64> {
    let margin = if scale.logarithmic { 0.0 } else { MARGIN };
    let share = (scale.share(value)? + margin) / (1.0 + margin);
    Some(LEFT + share * (RIGHT - LEFT))
}

fn y_of(scale: &Scale, value: f64) -> Option<f64> {
    Some(BOTTOM - scale.share(value)? * (BOTTOM - TOP))
}

/// The colour of a line of the chart, and its dashes. Ceilings are grey and take no colour from others.
fn look(lines: &[Line], index: usize) -> (&'static str, &'static str) {
    let is_ceiling = |line: &&Line| line.source == Source::Ceiling;
    let ceilings = lines[..index].iter().filter(is_ceiling).count();
    match lines[index].source {
        Source::Ceiling => ("#707070", CEILING_DASHES[ceilings % CEILING_DASHES.len()]),
        source => (COLOURS[(index - ceilings) % COLOURS.len()], source.dashes()),
    }
}

fn curve(canvas: &mut Canvas, (lines, index): (&[Line], usize), x: &Scale, y: &Scale) {
    let ((colour, dashes), line) = (look(lines, index), &lines[index]);
    let width = if line.source == Source::Measured { 2.6 } else { 1.7 };
    let at = |point: &(f64, f64)| Some((x_of(x, point.0)?, y_of(y, point.1)?));
    let places: Vec<(f64, f64)> = line.points.iter().filter_map(at).collect();
    let mut path = String::new();
    for (index, (x, y)) in places.iter().enumerate() {
        path.push_str(&format!("{}{x:.1} {y:.1}", if index == 0 { 'M' } else { 'L' }));
    }
    let style = format!("fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"{dashes}");
    canvas.path(&path, &style);
    for place in places {
        mark(canvas, place, colour, line.source);
    }
}

/// A dot for what was measured here, a ring for what others say, nothing for what has no points.
fn mark(canvas: &mut Canvas, (x, y): (f64, f64), colour: &str, source: Source) {
    let fill = match source {
        Source::Measured => colour,
        Source::Published => "#ffffff",
        Source::Modelled | Source::Ceiling => return,
    };
    let circle = format!(
        "M{:.1} {y:.1}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0",
        x - 4.0 // an arc starts at its left end
    );
    canvas.path(&circle, &format!("fill=\"{fill}\" stroke=\"{colour}\" stroke-width=\"1.6\""));
}

fn legend(canvas: &mut Canvas, chart: &Chart) {
    for (index, line) in chart.lines.iter().enumerate() {
        let y = TOP + 14.0 + LEGEND_ROW * index as f64;
        let (colour, dashes) = look(&chart.lines, index);
        let style = format!("stroke=\"{colour}\" stroke-width=\"2\"{dashes}");
        canvas.line((LEGEND_LEFT, y - 4.0), (LEGEND_LEFT + 34.0, y - 4.0), &style);
        mark(canvas, (LEGEND_LEFT + 17.0, y - 4.0), colour, line.source);
        let left = LEGEND_LEFT + 44.0;
        let text = fit(&line.label, 13.0, false, WIDTH - left - 8.0);
        let style = "class=\"ink\" fill=\"#222222\" font-size=\"13\"";
        canvas.text((left, y), Anchor::Start, style, &text);
    }
}

/// A value of the y axis in a sentence: no more digits than a measurement has.
fn number(value: f64) -> String {
    if value.abs() >= 100.0 { format!("{value:.0}") } else { plain((value * 10.0).round() / 10.0) }
}

/// Digits in groups of three.
fn grouped(value: f64) -> String {
    if value >= 10_000.0 { super::number::count(value as u64) } else { plain(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(logarithmic: bool, points: &[(f64, f64)]) -> Chart {
        let axis = |title: &str| Axis { title: title.to_owned(), logarithmic };
        let line =
            |label: &str, source| Line { label: label.to_owned(), source, points: points.to_vec() };
        Chart {
            title: "A & B".to_owned(),
            x: axis("tunnels"),
            y: axis("cycles"),
            lines: vec![
                line("ours", Source::Measured),
                line("theirs", Source::Published),
                line("the cipher", Source::Ceiling),
            ],
            footer: vec!["where".to_owned()],
        }
    }

    #[test]
    fn every_line_is_drawn_and_named() {
        let svg = draw(&chart(true, &[(1.0, 200.0), (50_000.0, 1000.0)]));
        assert!(svg.contains("A &amp; B") && svg.contains("where"));
        for label in ["ours", "theirs", "the cipher"] {
            // Once in the legend, once in the description.
            assert_eq!(svg.matches(label).count(), 2, "{label}");
        }
        assert!(svg.contains("1000 at 50\u{202f}000"), "{svg}");
        assert_eq!(svg.matches("a4 4 0 1 0 8 0").count(), 2 * (2 + 1));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn degenerate_charts_are_drawn_without_nonsense() {
        let cases: [&[(f64, f64)]; 4] =
            [&[], &[(1.0, 1.0)], &[(0.0, 0.0), (5.0, f64::NAN)], &[(3.0, 7.0), (3.0, 7.0)]];
        for points in cases {
            for logarithmic in [false, true] {
                let svg = draw(&chart(logarithmic, points));
                assert!(!svg.contains("NaN") && !svg.contains("inf"), "{points:?}");
            }
        }
    }

    #[test]
    fn whole_things_have_whole_ticks_and_ceilings_take_no_colour() {
        let axis = Axis { title: "cores".to_owned(), logarithmic: false };
        let scale = Scale::new(&axis, [1.0, 2.0, 4.0].into_iter(), false);
        let labels: Vec<&str> = scale.ticks.iter().map(|tick| tick.1.as_str()).collect();
        assert_eq!(labels, ["1", "2", "3", "4"]);
        let line = |source| Line { label: String::new(), source, points: vec![] };
        let lines =
            [Source::Measured, Source::Ceiling, Source::Ceiling, Source::Measured].map(line);
        let colours = [0, 1, 2, 3].map(|index| look(&lines, index));
        assert_eq!((colours[0].0, colours[3].0), (COLOURS[0], COLOURS[1]));
        assert_eq!(colours[1].0, colours[2].0);
        assert_ne!(colours[1].1, colours[2].1);
    }

    #[test]
    fn ticks_of_a_logarithmic_axis_are_round() {
        let scale = Scale::logarithmic(60.0, 3000.0);
        let labels: Vec<&str> = scale.ticks.iter().map(|tick| tick.1.as_str()).collect();
        assert_eq!(labels, ["100", "200", "500", "1000", "2000"]);
        let scale = Scale::logarithmic(1.0, 50_000.0);
        assert_eq!(scale.ticks.len(), 5);
    }
}
