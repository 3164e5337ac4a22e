//! The four panels: which value each shows, its frame, grid and ticks.

use super::axis::Scale;
use super::canvas::{Anchor, Canvas};
use super::{EDGES, LEFT, RIGHT};
use crate::plot::Point;

/// Half the height of a tick label; a label nearer to the edge would touch the next panel's.
const LABEL_HALF_PX: f64 = 7.0;

/// One panel, from the top.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Panel {
    Rate,
    Latency,
    RxLoss,
    LatencyLoss,
}

impl Panel {
    pub const ALL: [Panel; 4] = [Panel::Rate, Panel::Latency, Panel::RxLoss, Panel::LatencyLoss];

    fn title(self) -> &'static str {
        match self {
            Panel::Rate => "RX rate (L2, all ports)",
            Panel::Latency => "Latency (log)",
            Panel::RxLoss => "RX loss",
            Panel::LatencyLoss => "Latency loss",
        }
    }

    /// The value of a sample in this panel.
    pub fn value(self, point: &Point) -> Option<f64> {
        match self {
            Panel::Rate => Some(point.rx_bps),
            Panel::Latency => point.latency_us,
            Panel::RxLoss => Some(point.rx_loss_percent),
            Panel::LatencyLoss => Some(point.latency_loss_percent),
        }
    }

    /// The y of a value.
    pub fn y(self, scale: &Scale, value: f64) -> f64 {
        let (top, bottom) = self.edges();
        bottom - scale.share(value) * (bottom - top)
    }

    fn edges(self) -> (f64, f64) {
        (EDGES[self as usize], EDGES[self as usize + 1])
    }

    /// Grid, frame, ticks and title.
    pub fn frame(self, canvas: &mut Canvas, scale: &Scale, x_grid: &[f64]) {
        let (top, bottom) = self.edges();
        let grid = "class=\"grid\" stroke=\"#d9d9d9\" stroke-width=\"1\" stroke-dasharray=\"1 3\"";
        for &x in x_grid {
            canvas.line((x, top), (x, bottom), grid);
        }
        let ink = "class=\"ink\" fill=\"#222222\" font-size=\"12\"";
        for tick in &scale.ticks {
            let y = self.y(scale, tick.value);
            canvas.line((LEFT, y), (RIGHT, y), grid);
            canvas.line((LEFT - 5.0, y), (LEFT, y), "class=\"axis\" stroke=\"#555555\"");
            // The first panel's zero sits on the edge; the panel below keeps clear of it.
            let room = if self == Panel::Rate { 0.0 } else { LABEL_HALF_PX };
            if y - top >= room && bottom - y >= room.min(bottom - y + 1.0) {
                canvas.text((LEFT - 9.0, y + 4.0), Anchor::End, ink, &tick.label);
            }
        }
        let frame = "class=\"axis\" fill=\"none\" stroke=\"#555555\"";
        canvas.rect((LEFT, top), (RIGHT - LEFT, bottom - top), frame);
        let title = "class=\"ink\" fill=\"#222222\" font-size=\"13\"";
        canvas.upright_text((40.0, (top + bottom) / 2.0), title, self.title());
    }
}
