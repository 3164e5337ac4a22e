//! The state that workers forward by, as immutable versions.
//!
//! Control builds a [`View`] and publishes it with one pointer store; a worker takes the current one
//! once per turn. How a version replaces another, and when the old one ends, is in `publication.rs`. What
//! the tables mean is not this file's business either.

use std::ops::Range;
use std::sync::Arc;

use wire::ethernet::MacAddr;

use crate::bundles::Bundles;
use crate::encapsulation::PortSet;
use crate::fib::Fib;
use crate::local::Locals;
use crate::neighbour::Neighbours;
use crate::policy::Direction;
use crate::publication;
use crate::sad::Sad;
use crate::spd::Spd;
use crate::transport::TransportSlots;
use crate::tunnel::Tunnels;
use crate::vrfs::Vrfs;

/// One interface that the gateway forwards through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// The kernel's interface index.
    pub ifindex: u32,
    /// The interface's name.
    pub name: String,
    /// Its link-layer address.
    pub mac: MacAddr,
    /// Its MTU in bytes, without link layer headers.
    pub mtu: u32,
    /// Whether it is administratively up and has a carrier.
    pub up: bool,
}

/// Everything that forwarding depends on, at one moment.
#[derive(Clone, Default)]
pub struct View {
    /// Counts publications. For people, and for packets that wait until something changes.
    pub generation: u64,
    /// SAs that open.
    pub sad: Sad,
    /// Policies.
    pub spd: Spd,
    /// SAs that seal, by the slots that policies name.
    pub bundles: Bundles,
    /// The slots of SAs in transport mode, by whom they are between.
    pub transport: TransportSlots,
    /// Tunnels that routes lead into.
    pub tunnels: Tunnels,
    /// Routes.
    pub fib: Fib,
    /// The VRFs of ports and tunnels.
    pub vrfs: Vrfs,
    /// Link-layer addresses.
    pub neighbours: Neighbours,
    /// Somebody listens for ACQUIRE, so that a missing SA may come.
    pub acquire_is_heard: bool,
    /// The ports, in the order in which every worker holds them.
    pub ports: Arc<[PortInfo]>,
    /// The port of the host's own packets, beyond those of `ports`; it has no link layer.
    pub host: Option<u16>,
    /// More such ports, each the host's way into a group of tunnels.
    pub tunnel_devices: Range<u16>,
    /// The addresses of this host.
    pub local: Locals,
    /// The UDP ports of this host on which ESP arrives.
    pub encapsulation_ports: PortSet,
}

impl View {
    /// SAs in use: those that open, or those that seal, whichever are more. Most tunnels have one of each.
    pub(crate) fn sas(&self) -> usize {
        self.sad.len().max(self.bundles.len())
    }

    /// Whether any port is the host's own way in.
    #[inline]
    pub(crate) fn has_host(&self) -> bool {
        self.host.is_some() || !self.tunnel_devices.is_empty()
    }

    /// Whether a packet may have to go into a tunnel: its route leads into one, or the host sent it to the
    /// tunnels' device.
    #[inline]
    pub(crate) fn has_tunnels(&self) -> bool {
        !(self.tunnels.is_empty() && self.tunnel_devices.is_empty())
    }

    /// Whether every packet in clear may come in, as no policy can say anything of it.
    #[inline]
    pub(crate) fn welcomes_clear(&self) -> bool {
        self.spd.side(Direction::Forward).is_silent()
    }

    /// Brings the tables into the shape in which look-ups are fastest, which many small changes leave
    /// (see [`Table::settle`](crate::table::Table::settle)). Whether anything was to do; what the tables hold is the same.
    pub fn settle(&mut self) -> bool {
        self.sad.settle()
            | self.spd.settle()
            | self.fib.settle()
            | self.neighbours.settle()
            | self.local.settle()
            | self.transport.settle()
            | self.tunnels.settle()
    }
}

/// Control's end: publishes views, and frees old ones.
pub type Publisher = publication::Publisher<View>;

/// A worker's end: takes the current view, once per turn.
pub type Reader = publication::Reader<View>;

const _: () = {
    const fn shareable<T: Send + Sync>() {}
    shareable::<View>();
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::time::{Duration, Instant};

    fn view(generation: u64) -> View {
        View { generation, ..View::default() }
    }

    /// A view whose `ports` can be watched from outside.
    fn watched(generation: u64) -> (View, std::sync::Weak<[PortInfo]>) {
        let port = PortInfo {
            ifindex: generation as u32,
            name: format!("port{generation}"),
            mac: MacAddr::ZERO,
            mtu: 1500,
            up: true,
        };
        let ports: Arc<[PortInfo]> = Arc::new([port]);
        let weak = Arc::downgrade(&ports);
        (View { generation, ports, ..View::default() }, weak)
    }

    #[test]
    fn readers_take_the_newest_view() {
        let mut publisher = Publisher::new(view(1));
        let mut reader = publisher.reader();
        assert_eq!(reader.enter().generation, 1);
        publisher.publish(view(2));
        assert!(!publisher.settled());
        assert_eq!(reader.enter().generation, 2);
        assert!(publisher.settled());
    }

    #[test]
    fn a_stalled_reader_keeps_its_view_alive() {
        let (first, watch) = watched(1);
        let mut publisher = Publisher::new(first);
        let (mut stalled, mut lively) = (publisher.reader(), publisher.reader());
        let held = stalled.enter();
        for generation in 2..10 {
            publisher.publish(view(generation));
            lively.enter();
            assert_eq!(publisher.reclaim(), generation as usize - 1);
        }
        assert!(watch.upgrade().is_some());
        assert_eq!(held.ports[0].name, "port1");
        stalled.enter();
        assert_eq!(publisher.reclaim(), 0);
        assert!(watch.upgrade().is_none());
    }

    #[test]
    fn each_version_has_a_number_of_its_own() {
        let mut publisher = Publisher::new(view(1));
        let mut reader = publisher.reader();
        let mut last = 0;
        for generation in 1..20 {
            let (entered, number) = reader.enter_numbered();
            assert_eq!((entered.generation, number > last), (generation, true));
            assert_eq!(reader.enter_numbered().1, number, "the same version");
            reader.rest();
            assert_eq!(reader.enter_numbered().1, number, "the same version after a rest");
            last = number;
            publisher.publish(view(generation + 1));
            publisher.reclaim();
            if generation % 3 == 0 {
                reader.rest();
                publisher.reclaim();
            }
        }
    }

    #[test]
    fn a_reader_that_is_gone_keeps_nothing() {
        let (first, watch) = watched(1);
        let mut publisher = Publisher::new(first);
        let mut reader = publisher.reader();
        reader.enter();
        drop(reader);
        publisher.publish(view(2));
        assert_eq!(publisher.reclaim(), 0);
        assert!(watch.upgrade().is_none());
    }

    #[test]
    fn a_reader_that_rests_keeps_nothing_and_wakes_to_the_newest() {
        let (first, watch) = watched(1);
        let mut publisher = Publisher::new(first);
        let mut reader = publisher.reader();
        reader.enter();
        reader.rest();
        publisher.publish(view(2));
        assert!(watch.upgrade().is_none() && publisher.settled());
        assert_eq!(reader.enter().generation, 2);
        publisher.publish(view(3));
        assert_eq!(publisher.reclaim(), 1, "awake again, it keeps what it holds");
    }

    #[test]
    fn a_reader_that_lent_its_view_keeps_it_until_it_has_it_back() {
        let (first, watch) = watched(1);
        let mut publisher = Publisher::new(first);
        let mut reader = publisher.reader();
        reader.hold(true);
        assert_eq!(reader.enter().generation, 1, "there was nothing to hold yet");
        reader.hold(true);
        publisher.publish(view(2));
        assert!(reader.is_outdated() && !publisher.settled());
        assert_eq!(reader.enter().generation, 1);
        reader.rest();
        assert_eq!((publisher.reclaim(), reader.enter().generation), (1, 1));
        assert!(watch.upgrade().is_some());
        reader.hold(false);
        assert_eq!(reader.enter().generation, 2);
        assert!(!reader.is_outdated() && publisher.settled());
        assert_eq!(publisher.reclaim(), 0);
        assert!(watch.upgrade().is_none());
    }

    #[test]
    fn all_views_are_freed_at_the_end_whoever_goes_last() {
        for publisher_first in [true, false] {
            let (first, watch_first) = watched(1);
            let (second, watch_second) = watched(2);
            let mut publisher = Publisher::new(first);
            let mut reader = publisher.reader();
            reader.enter();
            publisher.publish(second);
            if publisher_first {
                drop(publisher);
                assert_eq!(reader.enter().generation, 2);
                drop(reader);
            } else {
                drop(reader);
                drop(publisher);
            }
            assert!(watch_first.upgrade().is_none() && watch_second.upgrade().is_none());
        }
    }

    #[test]
    fn readers_on_threads_never_see_a_freed_view() {
        let mut publisher = Publisher::new(watched(1).0);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let mut reader = publisher.reader();
                let stop = &stop;
                scope.spawn(move || {
                    let mut last = 0;
                    while !stop.load(Relaxed) {
                        let view = reader.enter();
                        assert!(view.generation >= last, "views only get newer");
                        last = view.generation;
                        // Reads through the pointer: a freed view would show another name.
                        assert_eq!(view.ports[0].name, format!("port{last}"));
                        assert_eq!(view.ports[0].ifindex, last as u32);
                        if last % 3 == 0 {
                            reader.rest();
                        }
                    }
                });
            }
            let until = Instant::now() + Duration::from_millis(300);
            let mut generation = 1;
            while Instant::now() < until {
                generation += 1;
                publisher.publish(watched(generation).0);
            }
            stop.store(true, Relaxed);
            assert!(generation > 100);
        });
        assert_eq!(publisher.reclaim(), 0);
    }
}
