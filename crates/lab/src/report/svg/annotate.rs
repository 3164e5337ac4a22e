//! Everything on the plot that is neither frame nor curve: thresholds, ceilings, hatching, legend,
//! captions. Call-outs have their own file.

use std::collections::BTreeSet;

use super::canvas::{Anchor, Canvas, fit, text_width};
use super::panel::Panel;
use super::{EDGES, Figure, LEFT, RIGHT, WIDTH, callout, colour};
use crate::report::number;

const LIMIT_COLOUR: &str = "#d00000";
const GREY: &str = "#8a8a8a";
const LABEL_SIZE_PX: f64 = 12.0;
const LABEL_ROW_PX: f64 = 15.0;
/// A legend entry longer than this is cut; two columns then take the left half of the plot.
const LEGEND_ENTRY_MAX_PX: f64 = 240.0;
const LEGEND_LEFT: f64 = LEFT + 12.0;
const LEGEND_TOP: f64 = EDGES[0] + 10.0;
const LEGEND_ROW_PX: f64 = 19.0;
const LEGEND_SIZE_PX: f64 = 13.0;
/// From the start of a legend entry to its text.
const LEGEND_KEY_PX: f64 = 34.0;
/// What fits between the caption and the lower edge.
const FOOTER_LINES_MAX: usize = 3;
/// The small print.
const FOOTER_SIZE_PX: f64 = 11.0;

impl Figure<'_> {
    /// The thresholds: red dashes in the three lower panels, each with its value.
    pub(super) fn limits(&self, canvas: &mut Canvas) {
        let thresholds = &self.plot.thresholds;
        for (panel, limit, text) in [
            (
                Panel::Latency,
                thresholds.latency_us_max,
                number::round_microseconds(thresholds.latency_us_max),
            ),
            (
                Panel::RxLoss,
                thresholds.rx_loss_percent_max,
                format!("{} %", thresholds.rx_loss_percent_max),
            ),
            (
                Panel::LatencyLoss,
                thresholds.latency_loss_percent_max,
                format!("{} %", thresholds.latency_loss_percent_max),
            ),
        ] {
            let y = panel.y(&self.scales[panel as usize], limit);
            let style = format!(
                "class=\"limit\" stroke=\"{LIMIT_COLOUR}\" stroke-width=\"1.4\" stroke-dasharray=\"6 4\""
            );
            canvas.line((LEFT, y), (RIGHT, y), &style);
            // Outside the frame, where no curve runs.
            let style = format!("class=\"limit-name\" fill=\"{LIMIT_COLOUR}\" font-size=\"12\"");
            canvas.text((RIGHT + 6.0, y + 4.0), Anchor::Start, &style, &text);
        }
    }

    /// Dotted grey lines, under the curves.
    pub(super) fn ceilings(&self, canvas: &mut Canvas) {
        let style = format!("stroke=\"{GREY}\" stroke-width=\"1.6\" stroke-dasharray=\"2 4\"");
        for ceiling in &self.near {
            let y = Panel::Rate.y(&self.scales[0], ceiling.l2_bps);
            canvas.line((LEFT, y), (RIGHT, y), &style);
        }
    }

    /// Hatching over the samples that the generator could not fill, under the curves.
    pub(super) fn limited(&self, canvas: &mut Canvas) {
        for (start, end, _) in self.limited_stretches() {
            let (left, right) = (self.x.at(start), self.x.at(end));
            let size = ((right - left).max(2.0), EDGES[1] - EDGES[0]);
            canvas.rect((left, EDGES[0]), size, "fill=\"url(#hatch)\"");
        }
    }

    /// The names of ceilings and hatchings, over the curves; moved apart where they would touch.
    pub(super) fn labels(&self, canvas: &mut Canvas) {
        let mut previous = f64::INFINITY;
        for ceiling in &self.near {
            let y = Panel::Rate.y(&self.scales[0], ceiling.l2_bps);
            let baseline = (y - 5.0).min(previous - LABEL_ROW_PX);
            previous = baseline;
            let text = format!("{} · {}", ceiling.name, number::bps(ceiling.l2_bps));
            let style = format!("font-size=\"{LABEL_SIZE_PX}\"");
            canvas.halo_text((RIGHT - 8.0, baseline), Anchor::End, &style, &text);
        }
        let mut baseline = EDGES[1] - 10.0;
        for (start, end, names) in self.limited_stretches() {
            let names: Vec<&str> =
                names.iter().map(|&index| self.plot.series[index].label.as_str()).collect();
            let text = if names.len() == self.plot.series.len() {
                "generator-limited".to_owned()
            } else {
                format!("generator-limited: {}", names.join(", "))
            };
            let text = fit(&text, LABEL_SIZE_PX, false, (RIGHT - LEFT) / 2.0);
            let half = text_width(&text, LABEL_SIZE_PX, false) / 2.0 + 8.0;
            let middle = (self.x.at(start) + self.x.at(end)) / 2.0;
            let at = (middle.clamp(LEFT + half, RIGHT - half), baseline);
            let style = format!("font-size=\"{LABEL_SIZE_PX}\" font-style=\"italic\"");
            canvas.halo_text(at, Anchor::Middle, &style, &text);
            baseline -= LABEL_ROW_PX;
        }
    }

    /// Disjoint stretches of samples and the curves that were limited somewhere in them.
    fn limited_stretches(&self) -> Vec<(usize, usize, BTreeSet<usize>)> {
        let mut all: Vec<(usize, usize, usize)> = Vec::new();
        for (index, series) in self.plot.series.iter().enumerate() {
            all.extend(series.limited.iter().map(|&(start, end)| (start, end, index)));
        }
        all.sort_unstable();
        let mut stretches: Vec<(usize, usize, BTreeSet<usize>)> = Vec::new();
        for (start, end, index) in all {
            match stretches.last_mut() {
                Some((_, last, names)) if start <= *last + 1 => {
                    *last = (*last).max(end);
                    names.insert(index);
                }
                _ => stretches.push((start, end, [index].into())),
            }
        }
        stretches
    }

    /// Rows and width of a column of the legend.
    fn legend_grid(&self) -> (usize, f64) {
        let widest = self
            .plot
            .series
            .iter()
            .map(|series| text_width(&series.label, LEGEND_SIZE_PX, false))
            .fold(60.0, f64::max)
            .min(LEGEND_ENTRY_MAX_PX);
        (self.plot.series.len().div_ceil(2).max(1), widest + LEGEND_KEY_PX + 18.0)
    }

    pub(super) fn legend_bottom(&self) -> f64 {
        LEGEND_TOP + self.legend_grid().0 as f64 * LEGEND_ROW_PX + 10.0
    }

    /// Top left, two columns, filled column by column.
    pub(super) fn legend(&self, canvas: &mut Canvas) {
        let (rows, column) = self.legend_grid();
        let columns = if self.plot.series.len() > 1 { 2.0 } else { 1.0 };
        let corner = (LEGEND_LEFT, LEGEND_TOP);
        let size = (column * columns + 8.0, self.legend_bottom() - LEGEND_TOP);
        canvas.rect(
            corner,
            size,
            "class=\"paper\" rx=\"5\" fill=\"#ffffff\" fill-opacity=\"0.88\" stroke=\"#cccccc\"",
        );
        for (index, series) in self.plot.series.iter().enumerate() {
            let x = LEGEND_LEFT + 10.0 + column * (index / rows) as f64;
            let y = LEGEND_TOP + 5.0 + (index % rows) as f64 * LEGEND_ROW_PX + LEGEND_ROW_PX / 2.0;
            let style = format!("stroke=\"{}\" stroke-width=\"2.4\"", colour(index));
            canvas.line((x, y), (x + 26.0, y), &style);
            callout::shape(canvas, index, (x + 13.0, y), 4.5);
            let style = format!("class=\"ink\" fill=\"#222222\" font-size=\"{LEGEND_SIZE_PX}\"");
            let label = fit(&series.label, LEGEND_SIZE_PX, false, LEGEND_ENTRY_MAX_PX);
            canvas.text((x + LEGEND_KEY_PX, y + 4.5), Anchor::Start, &style, &label);
        }
    }

    /// Step numbers, the caption of the x axis, and the small print.
    pub(super) fn bottom(&self, canvas: &mut Canvas) {
        let steps = self.steps();
        let every = steps.len().div_ceil(30).max(1);
        let style = "class=\"ink\" fill=\"#444444\" font-size=\"12\"";
        for (_, middle, step) in steps.iter().skip(every - 1).step_by(every) {
            canvas.text((*middle, EDGES[4] + 17.0), Anchor::Middle, style, &step.to_string());
        }
        let ramp = &self.plot.ramp;
        let caption = format!(
            "step of the ramp ({} s each; step k of {} offers k/{} of the maximum)",
            ramp.step_time_s, ramp.steps, ramp.steps
        );
        let style = "class=\"ink\" fill=\"#222222\" font-size=\"13\"";
        canvas.text(((LEFT + RIGHT) / 2.0, EDGES[4] + 37.0), Anchor::Middle, style, &caption);
        let mut lines = Vec::new();
        if !self.beyond.is_empty() {
            let names: Vec<String> = self
                .beyond
                .iter()
                .map(|ceiling| format!("{} {}", ceiling.name, number::bps(ceiling.l2_bps)))
                .collect();
            lines.push(format!("Ceilings beyond this scale: {}", names.join(", ")));
        }
        let room = FOOTER_LINES_MAX - lines.len();
        if self.plot.footer.len() > room {
            lines.extend(self.plot.footer.iter().take(room - 1).cloned());
            lines.push(format!(
                "and {} more lines in the results",
                self.plot.footer.len() + 1 - room
            ));
        } else {
            lines.extend(self.plot.footer.iter().cloned());
        }
        let style = format!("class=\"ink\" fill=\"#666666\" font-size=\"{FOOTER_SIZE_PX}\"");
        for (index, line) in lines.iter().enumerate() {
            let y = EDGES[4] + 57.0 + index as f64 * 13.0;
            let line = fit(line, FOOTER_SIZE_PX, false, WIDTH - LEFT - 10.0);
            canvas.text((LEFT, y), Anchor::Start, &style, &line);
        }
    }
}
