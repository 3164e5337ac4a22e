//! The sending half of the lab: one port's load and its latency probes.
//!
//! Frames are built in user space and leave through AF_XDP. The kernel's live-frame source
//! (`BPF_PROG_TEST_RUN`) would offer seven times as many frames, but it takes a whole core while
//! it runs, and the machines this lab is for have two cores that two gateways need: what it
//! offers beyond 1 Mpps the gateways could not take, and what it takes from them would show as
//! their loss. It also sends copies of one frame, while here every frame has its own addresses,
//! number, filler and checksum, so that the receiving side can tell apart every way to fail.
//!
//! A probe is sent before the load of the same turn and kicked at once: the time it would wait
//! behind the generator's own burst is not the gateway's latency.
//!
//! This file neither receives nor sleeps; [`crate::station`] turns it.

mod pace;

use std::time::Duration;

use xsk::{Frame, Pool, Port};

use crate::clock;
use crate::result::Counts;
use crate::traffic::{
    Cycle, FrameError, FrameSpec, Kind, Mix, PROBE_FRAME_BYTES, PROBES_PER_SECOND, Template,
    write_frame,
};

pub use pace::Pace;

/// Frames that one turn sends at most. One kick of a socket takes 256; after so many the received
/// frames have to be looked at, or their ring overflows while a late generator catches up.
const BURST_FRAMES_MAX: usize = 256;

/// What one port sends.
#[derive(Debug, Clone)]
pub struct Source {
    /// Port number, from 0.
    pub port: u8,
    /// The station that forwards the frames: the gateway's address on this link.
    pub destination_mac: [u8; 6],
    /// The port's own address.
    pub source_mac: [u8; 6],
    /// Inner IPv6.
    pub ipv6: bool,
    /// The addresses.
    pub cycle: Cycle,
    /// The sizes.
    pub mix: Mix,
}

/// How much a port sends in a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Load {
    /// Nothing, no probes either.
    Silent,
    /// Load frames per second, and probes beside them.
    Paced(f64),
    /// The same, but where the generator is late it catches up at no more than twice that. What a step ends without stays unsent.
    Even(f64),
    /// As fast as the port takes them, without probes.
    FlatOut,
}

/// One port's sender.
#[derive(Debug)]
pub struct Generator {
    source: Source,
    templates: Vec<Template>,
    probe_template: Template,
    load: Schedule,
    probes: Schedule,
    /// Written, and not taken by the port yet: the newest frames of the load.
    waiting: Vec<Frame>,
    /// L2 bytes (without FCS) of load frames that the port took, since the start.
    sent_bytes: u64,
}

/// One stream: where it is in the step, and in its numbers.
#[derive(Debug)]
struct Schedule {
    pace: Pace,
    /// The next frame's number; all below were taken by the port or wait.
    next: u64,
}

impl Schedule {
    fn new() -> Schedule {
        Schedule { pace: Pace::new(0.0, Duration::ZERO), next: 0 }
    }
}

impl Generator {
    /// Works out the templates.
    ///
    /// # Errors
    /// [`FrameError`] for a size that does not hold the headers and the stamp.
    pub fn new(source: Source) -> Result<Generator, FrameError> {
        let template = |kind, size| {
            Template::new(&FrameSpec {
                destination_mac: source.destination_mac,
                source_mac: source.source_mac,
                ipv6: source.ipv6,
                port: source.port,
                kind,
                size,
            })
        };
        let templates: Result<Vec<Template>, FrameError> =
            source.mix.sizes().map(|size| template(Kind::Load, size)).collect();
        Ok(Generator {
            templates: templates?,
            probe_template: template(Kind::Probe, PROBE_FRAME_BYTES)?,
            load: Schedule::new(),
            probes: Schedule::new(),
            waiting: Vec::with_capacity(BURST_FRAMES_MAX),
            sent_bytes: 0,
            source,
        })
    }

    /// What it sends.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Begins a step.
    pub fn begin(&mut self, load: Load, duration: Duration) {
        let silent = Pace::new(0.0, Duration::ZERO);
        let probes = Pace::new(PROBES_PER_SECOND.into(), duration);
        (self.load.pace, self.probes.pace) = match load {
            Load::Silent => (silent, silent),
            Load::Paced(pps) => (Pace::new(pps, duration), probes),
            Load::Even(pps) => (Pace::even(pps, duration), probes),
            Load::FlatOut => (Pace::flat_out(), silent),
        };
    }

    /// Sends what is due `elapsed` after the start of the step, at most one burst. Returns whether
    /// more is due than was sent.
    pub fn turn(&mut self, elapsed: Duration, port: &mut Port, pool: &mut Pool) -> bool {
        if self.probes.pace.due(elapsed, 1) > 0 {
            self.send_probe(port, pool);
        }
        if self.waiting.is_empty() {
            let due = self.load.pace.due(elapsed, BURST_FRAMES_MAX);
            self.write_burst(due, pool);
        }
        self.send_waiting(port, pool);
        !self.waiting.is_empty() || self.load.pace.due(elapsed, 1) > 0
    }

    /// Ends a step: what the port did not take goes back, and its numbers are given out again.
    pub fn end(&mut self, port: &mut Port, pool: &mut Pool) {
        port.flush(pool);
        self.send_waiting(port, pool);
        self.load.next -= self.waiting.len() as u64;
        self.waiting.drain(..).for_each(|frame| pool.give(frame));
    }

    /// Numbers given to load frames and to probes so far: all of them were sent, when no step runs.
    pub fn sequences(&self) -> (u64, u64) {
        (self.load.next - self.waiting.len() as u64, self.probes.next)
    }

    /// L2 bytes (without FCS) of the load frames sent so far.
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    /// Adds to `load` and `probes` what a step of `elapsed` asked for, and makes their sums right.
    pub fn expect(&self, elapsed: Duration, load: &mut Counts, probes: &mut Counts) {
        for (schedule, counts) in [(&self.load, load), (&self.probes, probes)] {
            counts.expected = schedule.pace.expected(elapsed);
            counts.lost = counts.expected.saturating_sub(counts.received);
        }
    }

    fn send_probe(&mut self, port: &mut Port, pool: &mut Pool) {
        let Some(mut frame) = pool.take() else { return };
        let number = self.probes.next;
        let addresses = self.source.cycle.addresses(number);
        let written = frame
            .push_back(self.probe_template.size())
            .map(|out| write_frame(&self.probe_template, out, &addresses, number, clock::now_ns()));
        if !matches!(written, Some(Ok(_))) {
            pool.give(frame);
            return;
        }
        let mut one = vec![frame];
        if port.send(&mut one, pool) == 1 {
            self.probes.next += 1;
            self.probes.pace.sent(1);
        }
        one.drain(..).for_each(|frame| pool.give(frame));
        port.flush(pool);
    }

    /// Writes `due` frames of the load into `waiting`, fewer when the pool is empty.
    fn write_burst(&mut self, due: usize, pool: &mut Pool) {
        if due == 0 {
            return;
        }
        let now_ns = clock::now_ns();
        for _ in 0..due {
            let Some(mut frame) = pool.take() else { break };
            let number = self.load.next;
            let template = &self.templates[self.source.mix.class(number)];
            let addresses = self.source.cycle.addresses(number);
            let written = frame
                .push_back(template.size())
                .map(|out| write_frame(template, out, &addresses, number, now_ns));
            if !matches!(written, Some(Ok(_))) {
                pool.give(frame);
                break;
            }
            self.load.next += 1;
            self.waiting.push(frame);
        }
    }

    fn send_waiting(&mut self, port: &mut Port, pool: &mut Pool) {
        if self.waiting.is_empty() {
            return;
        }
        let bytes = |frames: &[Frame]| frames.iter().map(|frame| frame.len() as u64).sum::<u64>();
        let before = bytes(&self.waiting);
        let sent = port.send(&mut self.waiting, pool);
        self.sent_bytes += before - bytes(&self.waiting);
        self.load.pace.sent(sent as u64);
        port.flush(pool);
    }
}
