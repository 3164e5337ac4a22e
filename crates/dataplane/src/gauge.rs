//! How much work a worker has, and when it should be helped.
//!
//! ```text
//!   alone ──(at its limit for 2 ms, and somebody is idle)──► helped
//!     ▲                                                        │
//!     └──(no more than 60 % of one worker's work for 100 ms, ──┘
//!          or nobody helped for as long)
//! ```
//!
//! Work is time: that of the worker's own turns with packets, and that which others spent on its
//! packets. So the measure is the same in both states, and a load that one worker can just carry does
//! not swing between them. Pure arithmetic over times that the caller reads; who helps, and how, is
//! `crew.rs`.

use crate::batch::BATCH_PACKETS;

/// The time over which load is judged. A millisecond is some 80 full turns of 12 µs: enough to tell a
/// load from a burst that one receive ring takes.
const WINDOW_NS: u64 = 1_000_000;

/// Share of a window, in thousandths, that a worker at its limit is busy. Not all of it: the first turn
/// after each interruption finds nothing.
const LIMIT_PERMILLE: u64 = 900;

/// Packets per turn at the limit. A worker that is never idle and finds half a batch every time
/// could take twice as many in about the same time.
const LIMIT_TURN_PACKETS: u64 = BATCH_PACKETS as u64 * 3 / 4;

/// Windows at the limit before help is called: a burst of one window is not worth it.
const HOT_WINDOWS: u32 = 2;

/// Work, in thousandths of a worker, below which no help is needed. With help, work costs a fifth more
/// (what moves between cores), so 900 alone is about 1080 with help, and 600 is far from both.
const CALM_PERMILLE: u64 = 600;

/// Windows of calm before help is sent away. Calling it again costs two windows at the limit, so
/// this keeps that below 2 %.
const CALM_WINDOWS: u32 = 100;

/// A worker whose load is below this, in thousandths, has time for others.
pub(crate) const IDLE_PERMILLE: u64 = 500;

/// What the end of a window asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// To go on as it is.
    Stay,
    /// Help.
    Help,
    /// No more help.
    Alone,
}

/// The load of one worker.
#[derive(Debug, Default)]
pub(crate) struct Gauge {
    window_began_ns: u64,
    /// When the last turn began, and whether it had work.
    turn: Option<(u64, bool)>,
    busy_ns: u64,
    helped_ns: u64,
    packets: u64,
    busy_turns: u64,
    hot: u32,
    calm: u32,
    unhelped: u32,
    /// Thousandths of the last window.
    load: u64,
}

impl Gauge {
    /// Thousandths of the last window that the worker itself was busy.
    pub(crate) fn load(&self) -> u64 {
        self.load
    }

    /// Time that others spent on this worker's packets.
    #[inline]
    pub(crate) fn add_help(&mut self, ns: u64) {
        self.helped_ns += ns;
    }

    /// Lets the window end with the next turn.
    pub(crate) fn cut_window(&mut self) {
        self.window_began_ns = 0;
    }

    /// A turn begins. `true` if a window is over and [`Gauge::close`] is due.
    #[inline]
    pub(crate) fn begin_turn(&mut self, now_ns: u64) -> bool {
        if let Some((began_ns, true)) = self.turn {
            self.busy_ns += now_ns.saturating_sub(began_ns);
        }
        self.turn = Some((now_ns, false));
        now_ns.saturating_sub(self.window_began_ns) >= WINDOW_NS
    }

    /// The turn brought `packets` new packets, or other work of this worker's own.
    #[inline]
    pub(crate) fn end_turn(&mut self, packets: usize, worked: bool) {
        self.packets += packets as u64;
        self.busy_turns += u64::from(packets != 0);
        if let Some((_, busy)) = &mut self.turn {
            *busy = worked || packets != 0;
        }
    }

    /// Judges the window that is over and begins the next.
    pub(crate) fn close(&mut self, now_ns: u64, is_helped: bool, somebody_is_idle: bool) -> Wish {
        let window_ns = now_ns.saturating_sub(self.window_began_ns).max(1);
        self.load = (self.busy_ns * 1000 / window_ns).min(1000);
        let work = (self.busy_ns + self.helped_ns) * 1000 / window_ns;
        let at_limit = self.load >= LIMIT_PERMILLE
            && self.packets >= LIMIT_TURN_PACKETS * self.busy_turns.max(1);
        let unhelped = self.helped_ns == 0;
        (self.busy_ns, self.helped_ns, self.packets, self.busy_turns) = (0, 0, 0, 0);
        self.window_began_ns = now_ns;

        let count = |counter: &mut u32, on: bool| *counter = if on { *counter + 1 } else { 0 };
        count(&mut self.hot, !is_helped && at_limit && somebody_is_idle);
        count(&mut self.calm, is_helped && work <= CALM_PERMILLE);
        count(&mut self.unhelped, is_helped && unhelped);
        let wish = match is_helped {
            false if self.hot >= HOT_WINDOWS => Wish::Help,
            true if self.calm.max(self.unhelped) >= CALM_WINDOWS => Wish::Alone,
            _ => return Wish::Stay,
        };
        (self.hot, self.calm, self.unhelped) = (0, 0, 0);
        wish
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker under a load that takes `work` thousandths of one worker, for some windows; what it
    /// wished for, and after how many windows.
    fn run(gauge: &mut Gauge, work: u64, helped: bool, idle: bool, windows: u64) -> (Wish, u64) {
        const TURN_NS: u64 = 10_000;
        let mut now = gauge.window_began_ns;
        let mut seen = 0;
        // With help, four fifths of the work are done by others, and all of it costs a fifth more.
        let own = if helped { work / 5 + work / 25 } else { work };
        while seen < windows {
            if gauge.begin_turn(now) {
                seen += 1;
                match gauge.close(now, helped, idle) {
                    Wish::Stay => {}
                    wish => return (wish, seen),
                }
            }
            // The turns of a window are busy from its beginning on.
            let busy = (now - gauge.window_began_ns) * 1000 / WINDOW_NS < own;
            gauge.end_turn(if busy { 64 } else { 0 }, false);
            if helped && idle {
                gauge.add_help(TURN_NS * work * 24 / 25 / 1000);
            }
            now += TURN_NS;
        }
        (Wish::Stay, seen)
    }

    #[test]
    fn help_comes_at_the_limit_and_goes_only_when_one_worker_is_plainly_enough() {
        let mut gauge = Gauge { window_began_ns: 1_000_000_000, ..Gauge::default() };
        assert_eq!(run(&mut gauge, 850, false, true, 500), (Wish::Stay, 500));
        assert_eq!(gauge.load(), 850);
        assert_eq!(run(&mut gauge, 1000, false, false, 500).0, Wish::Stay, "nobody is idle");
        assert_eq!(run(&mut gauge, 1000, false, true, 500), (Wish::Help, 2));
        // What one worker can just carry swings neither way.
        assert_eq!(run(&mut gauge, 900, true, true, 1000).0, Wish::Stay);
        assert_eq!(run(&mut gauge, 550, true, true, 99).0, Wish::Stay);
        assert_eq!(run(&mut gauge, 800, true, true, 1).0, Wish::Stay);
        assert_eq!(run(&mut gauge, 400, true, true, 500), (Wish::Alone, 100));
    }

    #[test]
    fn who_is_not_helped_goes_on_alone() {
        let mut gauge = Gauge { window_began_ns: 1_000_000_000, ..Gauge::default() };
        assert_eq!(run(&mut gauge, 5000, true, false, 500), (Wish::Alone, 100));
    }

    #[test]
    fn small_turns_are_no_limit() {
        let mut gauge = Gauge::default();
        for turn in 0..10_000u64 {
            if gauge.begin_turn(turn * 1000) {
                assert_eq!(gauge.close(turn * 1000, false, true), Wish::Stay);
            }
            // Always busy, with eight packets at a time: polling costs most of it.
            gauge.end_turn(8, false);
        }
        assert_eq!(gauge.load(), 1000);
    }
}
