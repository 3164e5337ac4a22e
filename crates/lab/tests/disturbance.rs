//! A path that misbehaves in known ways: each way has to show under its own name, exactly.

mod bench;

use std::convert::identity;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bench::{TUNNELS, mac, order, station};
use lab::generator::Load;
use lab::topology::{Namespace, Veth};
use lab::traffic::{Kind, SIGNATURE, parse_frame};
use xsk::{Frame, Pool, Port, Sink, Umem, XdpOptions, XdpPort};

/// What a forwarder did to load frames on purpose.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Deeds {
    dropped: u64,
    duplicated: u64,
    flipped: u64,
    delayed: u64,
    sent_back: u64,
}

/// Forwards between two interfaces until told to stop, and disturbs what comes in at the first.
struct Forwarder {
    ports: [Port; 2],
    _programs: [Sink; 2],
    pool: Pool,
    deeds: Deeds,
    /// A frame held back, and the number after which it may go.
    held: Option<(Frame, u64)>,
}

impl Forwarder {
    fn open(interfaces: [&str; 2]) -> Forwarder {
        let umem = Umem::new(16_384, 2048, false).unwrap();
        let mut pool = umem.pool(0..16_384);
        let mut open = |interface: &str| {
            let mut program = Sink::load(interface, SIGNATURE).unwrap();
            let port = XdpPort::open(interface, 0, 1, &mut pool, XdpOptions::default()).unwrap();
            for (queue, socket) in port.queues() {
                program.register(queue, socket).unwrap();
            }
            program.attach().unwrap();
            (Port::Xdp(port), program)
        };
        let ((one, program_one), (two, program_two)) = (open(interfaces[0]), open(interfaces[1]));
        Forwarder {
            ports: [one, two],
            _programs: [program_one, program_two],
            pool,
            deeds: Deeds::default(),
            held: None,
        }
    }

    fn run(mut self, stop: &AtomicBool) -> Deeds {
        let (mut arrived, mut back) = (Vec::new(), Vec::new());
        while !stop.load(Ordering::Relaxed) {
            self.ports[1].receive(&mut self.pool, &mut back, 64, identity);
            self.send(0, &mut back);
            self.ports[0].receive(&mut self.pool, &mut arrived, 64, identity);
            let mut onward = Vec::new();
            for frame in arrived.drain(..) {
                self.disturb(frame, &mut onward, &mut back);
            }
            self.send(1, &mut onward);
            self.send(0, &mut back);
            std::thread::sleep(Duration::from_micros(100));
        }
        self.deeds
    }

    fn send(&mut self, port: usize, frames: &mut Vec<Frame>) {
        while !frames.is_empty() {
            self.ports[port].send(frames, &mut self.pool);
            self.ports[port].flush(&mut self.pool);
        }
    }

    /// By the frame's number: what happens once in a hundred is written down.
    fn disturb(&mut self, mut frame: Frame, onward: &mut Vec<Frame>, back: &mut Vec<Frame>) {
        let stamp = parse_frame(frame.bytes()).expect("only signed frames come here");
        if stamp.kind == Kind::Probe {
            onward.push(frame);
            return;
        }
        match stamp.sequence % 100 {
            10 => {
                self.deeds.duplicated += 1;
                onward.push(copy(&frame, &mut self.pool));
            }
            20 => {
                self.deeds.dropped += 1;
                self.pool.give(frame);
                return;
            }
            30 => {
                self.deeds.flipped += 1;
                // The first byte of the filler.
                frame.bytes_mut()[14 + 20 + 8 + 28] ^= 0x40;
            }
            40 => {
                self.deeds.delayed += 1;
                self.held = Some((frame, stamp.sequence + u64::from(TUNNELS)));
                return;
            }
            60 => {
                self.deeds.sent_back += 1;
                back.push(frame);
                return;
            }
            _ => {}
        }
        onward.push(frame);
        // After a later frame of its own tunnel: only that is reordering.
        if let Some((held, _)) = self.held.take_if(|(_, after)| stamp.sequence >= *after) {
            onward.push(held);
        }
    }
}

fn copy(frame: &Frame, pool: &mut Pool) -> Frame {
    let mut copy = pool.take().expect("a free frame");
    copy.push_back(frame.len()).unwrap().copy_from_slice(frame.bytes());
    copy
}

#[test]
fn every_disturbance_has_its_own_count() {
    let (generator, between) = (Namespace::new("gen").unwrap(), Namespace::new("mid").unwrap());
    Veth::new((&generator, "p0"), (&between, "f0"), 1).unwrap();
    Veth::new((&generator, "p1"), (&between, "f1"), 1).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let gateways = [mac(&between, "f0"), mac(&between, "f1")];
    let mut station = station(&generator, ["p0", "p1"], gateways, &stop);

    let enough = AtomicBool::new(false);
    let (ready, is_ready) = std::sync::mpsc::channel();
    let (books, before, after, deeds) = std::thread::scope(|scope| {
        let forwarder = scope.spawn(|| {
            between.enter().unwrap();
            let forwarder = Forwarder::open(["f0", "f1"]);
            ready.send(()).unwrap();
            forwarder.run(&enough)
        });
        is_ready.recv().unwrap();
        let before = station.counters().unwrap();
        // Slow enough that no ring overflows on a busy machine: nothing else may lose a frame.
        let load = [Load::Paced(2_500.0), Load::Paced(500.0)];
        let books = station.step(order(load, Duration::from_secs(2)), |_| {}).unwrap();
        let after = station.counters().unwrap();
        enough.store(true, Ordering::Relaxed);
        (books, before, after, forwarder.join().unwrap())
    });

    let lost: u64 = [0, 1].map(|port| bench::lost_on_links(port, &before, &after)).iter().sum();
    assert_eq!(lost, 0, "a link lost frames: {before:?} {after:?}");
    let counts = books.directions[0].load;
    assert_eq!(counts.sent, 5_000);
    let fifty = Deeds { dropped: 50, duplicated: 50, flipped: 50, delayed: 50, sent_back: 50 };
    assert_eq!(deeds, fifty);
    assert_eq!(counts.duplicated, deeds.duplicated);
    assert_eq!(counts.corrupted, deeds.flipped);
    assert_eq!(counts.reordered, deeds.delayed);
    assert_eq!(counts.misrouted, deeds.sent_back);
    assert_eq!(counts.lost, deeds.dropped + deeds.flipped + deeds.sent_back);
    assert_eq!((counts.received, counts.late), (5_000 - counts.lost, 0));
    // The other way, and the probes, nobody disturbed anything.
    for clean in [books.directions[1].load, books.directions[0].probes, books.directions[1].probes]
    {
        assert_eq!((clean.lost, clean.received), (0, clean.sent), "{clean:?}");
        assert_eq!(clean.duplicated + clean.reordered + clean.corrupted + clean.misrouted, 0);
        assert!(clean.sent > 0);
    }
}
