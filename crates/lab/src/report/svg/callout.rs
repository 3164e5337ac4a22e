//! Call-outs: a box of figures per curve, joined to a mark on the curve.
//!
//! The boxes stand in a column on the left, in the order of their markers' times. Of the two
//! directions of that order, the one whose connectors cross less is taken.

use super::canvas::{Anchor, Canvas, text_width};
use super::{EDGES, Figure, LEFT, colour};
use crate::report::number;
use crate::result::Marker;

/// Text size of the boxes.
const SIZE_PX: f64 = 12.0;
const LINE_PX: f64 = 15.0;
const PADDING_PX: f64 = 7.0;
const GAP_PX: f64 = 9.0;
/// Where the column starts.
const COLUMN_LEFT: f64 = LEFT + 12.0;
/// Below this the ramps' first steps run.
const COLUMN_BOTTOM: f64 = EDGES[1] - 62.0;
/// Radius of the elbow.
const BEND_PX: f64 = 9.0;
/// Between connectors that go to the same time.
const TRACK_PX: f64 = 13.0;
/// Figures in full while that many boxes fit, in two lines beyond.
const FULL_MAX: usize = 5;
/// More boxes than this would cover the plot; the tables have the rest.
const BOXES_MAX: usize = 8;

/// One box.
struct Callout {
    /// Index of the series: colour and shape.
    series: usize,
    /// The marker on the curve.
    mark: (f64, f64),
    lines: Vec<String>,
}

/// Draws connectors, boxes and marks, all below `top`.
pub(super) fn draw(canvas: &mut Canvas, figure: &Figure<'_>, top: f64) {
    let marked: Vec<(usize, (f64, f64), &Marker)> = figure
        .plot
        .series
        .iter()
        .enumerate()
        .filter_map(|(index, series)| {
            Some((index, figure.marker(series)?, series.marker.as_ref()?))
        })
        .collect();
    let in_full = marked.len() <= FULL_MAX;
    let mut callouts: Vec<Callout> = marked
        .iter()
        .map(|&(series, mark, marker)| Callout { series, mark, lines: lines(marker, in_full) })
        .collect();
    callouts.sort_by(|a, b| a.mark.0.total_cmp(&b.mark.0).then(b.mark.1.total_cmp(&a.mark.1)));
    let left_over = callouts.split_off(callouts.len().min(BOXES_MAX));

    let width = callouts
        .iter()
        .flat_map(|callout| &callout.lines)
        .map(|line| text_width(line, SIZE_PX, false))
        .fold(0.0, f64::max)
        + 2.0 * PADDING_PX
        + 14.0;
    let count = callouts.first().map_or(0, |callout| callout.lines.len());
    let height = count as f64 * LINE_PX + 2.0 * PADDING_PX - 2.0;
    let gap = gap(callouts.len(), height, top);
    let box_top = |place: usize| top + GAP_PX + place as f64 * (height + gap);
    let middle = |place: usize| box_top(place) + height / 2.0;
    if crossings(&callouts, middle, true) < crossings(&callouts, middle, false) {
        callouts.reverse();
    }
    let right = COLUMN_LEFT + width;
    for (place, callout) in callouts.iter().enumerate() {
        let taken = callouts[..place].iter().filter(|other| shares_time(other, callout)).count();
        connect(canvas, callout, (right, middle(place)), taken as f64 * TRACK_PX);
    }
    for (place, callout) in callouts.iter().enumerate() {
        boxed(canvas, callout, (COLUMN_LEFT, box_top(place)), (width, height));
    }
    for callout in callouts.iter().chain(&left_over) {
        shape(canvas, callout.series, callout.mark, 6.0);
    }
}

/// The figures of a marker: four lines as published, or two where room is short.
fn lines(marker: &Marker, in_full: bool) -> Vec<String> {
    let rate = number::bps(marker.rx_bps);
    let latency = number::latency(marker.latency_us);
    let rx = number::percent(marker.rx_loss_percent);
    let probe = number::percent(marker.latency_loss_percent);
    if in_full {
        vec![
            rate,
            format!("latency {latency}"),
            format!("RX loss {rx}"),
            format!("latency loss {probe}"),
        ]
    } else {
        vec![format!("{rate} · {latency}"), format!("loss {rx} · {probe}")]
    }
}

/// The space between boxes: the usual, or what is left when the column is full.
fn gap(boxes: usize, height: f64, top: f64) -> f64 {
    let gaps = boxes.saturating_sub(1).max(1) as f64;
    let left = COLUMN_BOTTOM - top - GAP_PX - boxes as f64 * height;
    (left / gaps).clamp(3.0, GAP_PX)
}

/// How often a connector's vertical part crosses another's horizontal part.
fn crossings(callouts: &[Callout], middle: impl Fn(usize) -> f64, reversed: bool) -> usize {
    let last = callouts.len().saturating_sub(1);
    let y = |index: usize| middle(if reversed { last - index } else { index });
    let mut count = 0;
    for (a, vertical) in callouts.iter().enumerate() {
        for (b, horizontal) in callouts.iter().enumerate() {
            let (low, high) = (vertical.mark.1.min(y(a)), vertical.mark.1.max(y(a)));
            let crosses =
                a != b && horizontal.mark.0 > vertical.mark.0 && low < y(b) && y(b) < high;
            count += usize::from(crosses);
        }
    }
    count
}

/// Whether two marks are so near in time that their connectors would run on each other.
fn shares_time(a: &Callout, b: &Callout) -> bool {
    (a.mark.0 - b.mark.0).abs() < TRACK_PX / 2.0
}

/// From the box to the right, one rounded bend, to the mark. Where another connector already runs
/// up or down to the same time, this one keeps `aside` pixels to the left and bends once more.
fn connect(canvas: &mut Canvas, callout: &Callout, from: (f64, f64), aside: f64) {
    let (mark_x, mark_y) = callout.mark;
    let bend = BEND_PX.min((mark_y - from.1).abs() / if aside > 0.0 { 2.0 } else { 1.0 });
    let toward = if mark_y > from.1 { 1.0 } else { -1.0 };
    let path = if mark_x - aside > from.0 + BEND_PX {
        let turn = mark_x - aside;
        let rest = if aside > 0.0 {
            format!(
                "V{:.1}Q{turn:.1} {mark_y:.1} {:.1} {mark_y:.1}H{mark_x:.1}",
                mark_y - toward * bend,
                turn + bend.min(aside),
            )
        } else {
            format!("V{mark_y:.1}")
        };
        format!(
            "M{:.1} {:.1}H{:.1}Q{turn:.1} {:.1} {turn:.1} {:.1}{rest}",
            from.0,
            from.1,
            turn - bend,
            from.1,
            from.1 + toward * bend,
        )
    } else {
        // The mark lies under or left of the column: out to the right and back.
        let out = from.0 + BEND_PX;
        format!(
            "M{:.1} {:.1}Q{out:.1} {:.1} {out:.1} {:.1}V{:.1}Q{out:.1} {mark_y:.1} {:.1} \
             {mark_y:.1}H{mark_x:.1}",
            from.0,
            from.1,
            from.1,
            from.1 + toward * bend,
            mark_y - toward * bend,
            out - bend,
        )
    };
    let halo = "class=\"halo\" fill=\"none\" stroke=\"#ffffff\" stroke-width=\"4\" \
                stroke-opacity=\"0.75\"";
    canvas.path(&path, halo);
    let line = format!("fill=\"none\" stroke=\"{}\" stroke-width=\"1.4\"", colour(callout.series));
    canvas.path(&path, &line);
}

fn boxed(canvas: &mut Canvas, callout: &Callout, corner: (f64, f64), size: (f64, f64)) {
    let style = format!(
        "class=\"paper\" rx=\"7\" fill=\"#ffffff\" fill-opacity=\"0.93\" stroke=\"{}\" \
         stroke-width=\"1.6\"",
        colour(callout.series)
    );
    canvas.rect(corner, size, &style);
    shape(canvas, callout.series, (corner.0 + size.0 - 13.0, corner.1 + 13.0), 4.5);
    for (index, line) in callout.lines.iter().enumerate() {
        let baseline = corner.1 + PADDING_PX + LINE_PX * (index as f64 + 1.0) - 4.0;
        let weight = if index == 0 { " font-weight=\"bold\"" } else { "" };
        let style = format!("class=\"ink\" fill=\"#222222\" font-size=\"{SIZE_PX}\"{weight}");
        canvas.text((corner.0 + PADDING_PX + 1.0, baseline), Anchor::Start, &style, line);
    }
}

/// The shape of a series, so that colour is never the only difference.
pub(super) fn shape(canvas: &mut Canvas, series: usize, at: (f64, f64), radius: f64) {
    let (x, y) = at;
    let r = radius;
    let polygon = |points: &[(f64, f64)]| {
        let mut path = String::new();
        for (index, (dx, dy)) in points.iter().enumerate() {
            let command = if index == 0 { 'M' } else { 'L' };
            path.push_str(&format!("{command}{:.1} {:.1}", x + dx * r, y + dy * r));
        }
        path + "Z"
    };
    let path = match series % 6 {
        0 => format!(
            "M{:.1} {y:.1}a{r:.1} {r:.1} 0 1 0 {:.1} 0a{r:.1} {r:.1} 0 1 0 {:.1} 0Z",
            x - r,
            2.0 * r,
            -2.0 * r
        ),
        1 => polygon(&[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)]),
        2 => polygon(&[(0.0, -1.2), (1.1, 0.8), (-1.1, 0.8)]),
        3 => polygon(&[(0.0, -1.25), (1.25, 0.0), (0.0, 1.25), (-1.25, 0.0)]),
        4 => polygon(&[(0.0, 1.2), (1.1, -0.8), (-1.1, -0.8)]),
        _ => {
            polygon(&[(-1.2, 0.0), (-0.6, -1.0), (0.6, -1.0), (1.2, 0.0), (0.6, 1.0), (-0.6, 1.0)])
        }
    };
    let style = format!(
        "class=\"mark\" fill=\"{}\" stroke=\"#ffffff\" stroke-width=\"1.2\"",
        colour(series)
    );
    canvas.path(&path, &style);
}
