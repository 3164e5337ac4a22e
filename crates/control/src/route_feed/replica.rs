//! Keeps a [`Kernel`] equal to the kernel's own tables although events get lost.
//!
//! The plan:
//!
//! 1. Each kind of thing is read by a dump, one kind at a time, and events go on meanwhile: they are
//!    applied to what is known *and* to what is being read, so at the end of the dump what was read is
//!    complete. It then takes the place of what was known, and the differences are told. Both come
//!    through one socket, but not in the order in which the kernel made them: it reads a part without a
//!    lock against events, and may queue one of a later change first. So of a thing that events have
//!    told of since the dump was asked for, what the dump says counts for nothing. Routes are another
//!    matter, as their order for one prefix is that of the dump: events before the first part are in it
//!    already, when it comes to a prefix it overrules the events before, and when an event comes in the
//!    middle of a prefix, the dump is repeated.
//! 2. When events were lost (the socket's buffer overran), everything is read again, but not before
//!    the socket has been seen empty: until then the kernel goes on losing events in silence.
//! 3. When an event leaves the routes in doubt, the routes are read again. The end of a next-hop object
//!    is told before its routes go, and a reading may still find them: it is repeated.
//! 4. A dump that the kernel calls interrupted may lack entries and is repeated, a few times: under
//!    steady change it would be interrupted for ever, and the events fill most of the gaps.
//!
//! Pure: it is told what was read and says what to ask for.

use std::collections::HashSet;

use dataplane::prefix::Prefix;

use super::kernel::{Change, Event, Kernel, Key, Kind};
use super::model::Table;

/// How often an interrupted dump is repeated before its result is taken as it is.
const REPEATS_MAX: u32 = 3;

/// The replica and what it still has to read.
#[derive(Debug, Default)]
pub(super) struct Replica {
    kernel: Kernel,
    /// The kinds to be read, once each.
    wanted: Vec<Kind>,
    reading: Option<Reading>,
    overrun: bool,
    /// How often in a row the last dumps of each kind had to be repeated.
    repeats: [u32; Kind::ALL.len()],
}

/// A dump under way.
#[derive(Debug)]
struct Reading {
    kind: Kind,
    fresh: Kernel,
    /// The first part has come.
    started: bool,
    /// What events have told of meanwhile, but for routes.
    told: HashSet<Key>,
    /// The prefixes whose routes the dump has come to, and the one that it came to last.
    listed: HashSet<(Table, Prefix)>,
    last: Option<(Table, Prefix)>,
    interrupted: bool,
    /// Events were lost meanwhile, or the dump broke off: its result counts for nothing.
    spoilt: bool,
}

impl Reading {
    fn event(&mut self, event: &Event) {
        self.interrupted |= matches!(event, Event::ObjectGone(_));
        match event.key() {
            Some(key) => _ = self.told.insert(key),
            None if !self.started => return,
            None => {}
        }
        self.interrupted |= self.last.is_some() && self.last == event.route_key();
        // Doubts about what is being read are normal: it is not complete. They are about what is
        // known only if they also arise there.
        let _ = self.fresh.apply(event.clone(), &mut Vec::new());
    }

    fn entry(&mut self, event: Event) {
        self.started = true;
        if event.key().is_some_and(|key| self.told.contains(&key)) {
            return;
        }
        if let Some(key) = event.route_key() {
            if self.listed.insert(key) {
                self.fresh.forget_routes(key);
            }
            self.last = Some(key);
        }
        let _ = self.fresh.apply(event, &mut Vec::new());
    }
}

impl Replica {
    /// A replica that knows nothing and wants to read everything.
    pub(super) fn new() -> Self {
        Self { wanted: Kind::ALL.to_vec(), ..Self::default() }
    }

    pub(super) fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Whether everything has been read and nothing is in doubt.
    pub(super) fn settled(&self) -> bool {
        self.wanted.is_empty() && self.reading.is_none() && !self.overrun
    }

    /// The kind to ask for next. The caller sends the request and reports it by
    /// [`begin`](Self::begin).
    pub(super) fn next(&self) -> Option<Kind> {
        if self.reading.is_some() || self.overrun { None } else { self.wanted.first().copied() }
    }

    /// A dump of a kind was asked for.
    pub(super) fn begin(&mut self, kind: Kind) {
        self.wanted.retain(|&wanted| wanted != kind);
        self.reading = Some(Reading {
            kind,
            fresh: Kernel::default(),
            started: false,
            told: HashSet::new(),
            listed: HashSet::new(),
            last: None,
            interrupted: false,
            spoilt: false,
        });
    }

    /// An event came.
    pub(super) fn event(&mut self, event: Event, changes: &mut Vec<Change>) {
        if let Some(reading) = self.reading.as_mut().filter(|r| r.kind == event.kind()) {
            reading.event(&event);
        }
        let reading_routes = self.reading.as_ref().is_some_and(|r| r.kind == Kind::Routes);
        let silent = event.route_key().is_none();
        // A misfit route event during a read of the routes is settled by that read. The silent
        // changes that follow another are not: they may be behind the dump already.
        if self.kernel.apply(event, changes) && (!reading_routes || silent) {
            self.want(Kind::Routes);
        }
    }

    /// An entry of the dump under way came.
    pub(super) fn entry(&mut self, event: Event) {
        if let Some(reading) = self.reading.as_mut().filter(|r| r.kind == event.kind()) {
            reading.entry(event);
        }
    }

    /// A part of the dump under way says that the table changed while it was read.
    pub(super) fn interrupted(&mut self) {
        if let Some(reading) = &mut self.reading {
            reading.interrupted = true;
        }
    }

    /// The dump under way broke off. False when it did so too often in a row: give up.
    #[must_use]
    pub(super) fn failed(&mut self) -> bool {
        self.reading.take().is_none_or(|reading| self.repeat(reading.kind))
    }

    /// The dump under way is at its end.
    pub(super) fn end(&mut self, changes: &mut Vec<Change>) {
        let Some(mut reading) = self.reading.take() else {
            return;
        };
        if reading.spoilt {
            self.want(reading.kind);
        } else if !reading.interrupted || !self.repeat(reading.kind) {
            self.repeats[reading.kind as usize] = 0;
            self.kernel.replace(reading.kind, &mut reading.fresh, changes);
        }
    }

    /// Wants a kind again, unless that happened too often in a row.
    fn repeat(&mut self, kind: Kind) -> bool {
        let repeats = &mut self.repeats[kind as usize];
        *repeats += 1;
        let again = *repeats <= REPEATS_MAX;
        if again {
            self.want(kind);
        }
        again
    }

    /// Events were lost.
    pub(super) fn overrun(&mut self) {
        self.overrun = true;
        if let Some(reading) = &mut self.reading {
            reading.spoilt = true;
        }
    }

    /// The socket was seen empty.
    pub(super) fn empty(&mut self) {
        if std::mem::take(&mut self.overrun) {
            self.want_all();
        }
    }

    /// Read everything again.
    pub(super) fn want_all(&mut self) {
        Kind::ALL.into_iter().for_each(|kind| self.want(kind));
    }

    fn want(&mut self, kind: Kind) {
        if !self.wanted.contains(&kind) {
            self.wanted.push(kind);
            self.wanted.sort_unstable();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, VecDeque};
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::super::model::{Neighbour, NeighbourState, NextHop, Route, RouteKind};
    use super::super::table::Placement;
    use super::*;

    enum Message {
        Event(Event),
        Entry(Event),
        Interrupted,
        End,
    }

    /// A kernel with nothing but neighbours, and a socket that loses events as netlink does: after
    /// an overrun nothing is queued until the reader has seen the queue empty.
    struct Simulation {
        truth: BTreeMap<u32, Neighbour>,
        queue: VecDeque<Message>,
        capacity: usize,
        congested: bool,
        overrun: bool,
        /// The dump under way: its kind, and the next key to list.
        dump: Option<(Kind, u32)>,
        /// The part that was read and is not queued yet.
        part: Vec<Message>,
    }

    impl Simulation {
        fn tell(&mut self, event: Event) {
            if self.congested {
                return;
            }
            if self.queue.len() >= self.capacity {
                (self.congested, self.overrun) = (true, true);
                return;
            }
            self.queue.push_back(Message::Event(event));
        }

        fn set(&mut self, id: u32, state: NeighbourState) {
            let address = IpAddr::from(id.to_be_bytes());
            let neighbour = Neighbour { ifindex: 1, address, mac: None, state };
            self.truth.insert(id, neighbour);
            self.tell(Event::Neighbour(neighbour));
        }

        fn delete(&mut self, id: u32) {
            if let Some(gone) = self.truth.remove(&id) {
                self.tell(Event::NeighbourGone(gone.ifindex, gone.address));
            }
        }

        /// Queues the part that was read, when there is room, and reads the next one, of two entries.
        fn list(&mut self, interrupt: bool) {
            if self.queue.len() >= self.capacity {
                return;
            }
            self.queue.extend(self.part.drain(..));
            let Some((kind, from)) = self.dump else { return };
            let all = if kind == Kind::Neighbours { &self.truth } else { &BTreeMap::new() };
            let part: Vec<(u32, Neighbour)> =
                all.range(from..).take(2).map(|(&id, &n)| (id, n)).collect();
            if interrupt {
                self.part.push(Message::Interrupted);
            }
            match part.last() {
                Some(&(last, _)) => self.dump = Some((kind, last + 1)),
                None => self.dump = None,
            }
            let ended = part.is_empty();
            let entries = part.into_iter().map(|(_, n)| Message::Entry(Event::Neighbour(n)));
            self.part.extend(entries);
            if ended {
                self.part.push(Message::End);
            }
        }

        /// One read of the socket by the replica, as the feed does it.
        fn read(&mut self, replica: &mut Replica, changes: &mut Vec<Change>, interrupt: bool) {
            if let Some(kind) = replica.next() {
                assert!(self.dump.is_none(), "one dump at a time");
                self.dump = Some((kind, 0));
                replica.begin(kind);
                self.list(false);
            }
            if std::mem::take(&mut self.overrun) {
                replica.overrun();
                return;
            }
            match self.queue.pop_front() {
                Some(Message::Event(event)) => replica.event(event, changes),
                Some(Message::Entry(event)) => replica.entry(event),
                Some(Message::Interrupted) => replica.interrupted(),
                Some(Message::End) => replica.end(changes),
                None => {
                    self.congested = false;
                    replica.empty();
                }
            }
            self.list(interrupt);
        }
    }

    proptest! {
        #[test]
        fn the_replica_ends_up_equal_whatever_is_lost(
            capacity in 1..12_usize,
            steps in prop::collection::vec((0..8_u8, 0..12_u32, 0..3_u8), 0..200),
        ) {
            let mut simulation = Simulation {
                truth: BTreeMap::new(),
                queue: VecDeque::new(),
                capacity,
                congested: false,
                overrun: false,
                dump: None,
                part: Vec::new(),
            };
            let mut replica = Replica::new();
            let mut changes = Vec::new();
            for (step, id, state) in steps {
                let states =
                    [NeighbourState::Reachable, NeighbourState::Stale, NeighbourState::Failed];
                match step {
                    0..=2 => simulation.set(id, states[usize::from(state)]),
                    3 => simulation.delete(id),
                    _ => simulation.read(&mut replica, &mut changes, step == 7 && id == 0),
                }
            }
            for _ in 0..1000 {
                simulation.read(&mut replica, &mut changes, false);
                if replica.settled() && simulation.queue.is_empty() {
                    break;
                }
            }
            prop_assert!(replica.settled());
            let known: BTreeMap<IpAddr, Neighbour> =
                replica.kernel().neighbours().map(|n| (n.address, *n)).collect();
            let truth: BTreeMap<IpAddr, Neighbour> =
                simulation.truth.values().map(|n| (n.address, *n)).collect();
            prop_assert_eq!(&known, &truth);
            // Who only follows the changes has heard of everything that is there.
            for address in truth.keys() {
                prop_assert!(changes.contains(&Change::Neighbour(1, *address)));
            }
        }
    }

    #[test]
    fn the_order_of_routes_is_that_of_the_dump() {
        let route = |host| {
            let (ifindex, gateway) = (2, Some(IpAddr::from([10, 0, 0, host])));
            Route {
                table: Table::Main,
                prefix: Prefix::new(IpAddr::from([10, 9, 0, 0]), 16).unwrap(),
                metric: 0,
                kind: RouteKind::Unicast,
                hops: vec![NextHop { gateway, ifindex, weight: 1, dead: false, link_down: false }],
                preferred_source: None,
                mtu: None,
                protocol: 4,
                object: None,
            }
        };
        let order =
            |replica: &Replica| -> Vec<Route> { replica.kernel().routes().cloned().collect() };
        let append = |host| Event::Route(route(host), Placement::Append);
        let mut replica = Replica::new();
        let mut changes = Vec::new();

        // The dump was made after the event for 3, whatever the event says about its place.
        replica.begin(Kind::Routes);
        replica.event(append(3), &mut changes);
        [1, 2, 3].into_iter().for_each(|host| replica.entry(append(host)));
        replica.end(&mut changes);
        assert_eq!(order(&replica), [route(1), route(2), route(3)]);

        // An event between parts, before the dump comes to the prefix.
        replica.begin(Kind::Routes);
        let elsewhere = Route { table: Table::Local, ..route(9) };
        replica.entry(Event::Route(elsewhere.clone(), Placement::Append));
        replica.event(Event::Route(route(4), Placement::Prepend), &mut changes);
        [4, 1, 2, 3].into_iter().for_each(|host| replica.entry(append(host)));
        replica.event(Event::RouteGone(elsewhere), &mut changes);
        replica.end(&mut changes);
        assert_eq!(order(&replica), [route(4), route(1), route(2), route(3)]);
        assert_ne!(replica.next(), Some(Kind::Routes));

        // An event in the middle of the prefix: what the dump goes on with is anyone's guess.
        replica.begin(Kind::Routes);
        replica.entry(append(4));
        replica.event(Event::RouteGone(route(4)), &mut changes);
        replica.end(&mut changes);
        assert!(replica.wanted.contains(&Kind::Routes));
    }

    #[test]
    fn what_was_read_while_events_were_lost_counts_for_nothing() {
        let mut replica = Replica::new();
        let mut changes = Vec::new();
        let address = IpAddr::from([10, 0, 0, 1]);
        let state = NeighbourState::Reachable;
        replica.event(
            Event::Neighbour(Neighbour { ifindex: 1, address, mac: None, state }),
            &mut changes,
        );
        replica.begin(Kind::Neighbours);
        replica.overrun();
        replica.end(&mut changes);
        assert!(replica.kernel().neighbour(1, address).is_some(), "an empty reading is not taken");
        assert_eq!(replica.next(), None, "not before the socket was seen empty");
        replica.empty();
        assert_eq!(replica.next(), Some(Kind::Links));
    }

    #[test]
    fn what_is_read_before_a_change_and_queued_behind_its_news_counts_for_nothing() {
        let mut replica = Replica::new();
        let mut changes = Vec::new();
        let at = |host| IpAddr::from([10, 0, 0, host]);
        let neighbour = |host, state| Neighbour { ifindex: 1, address: at(host), mac: None, state };
        let entry = |host, state| Event::Neighbour(neighbour(host, state));
        let (old, new) = (NeighbourState::Incomplete, NeighbourState::Reachable);

        replica.begin(Kind::Neighbours);
        // One before any part, one whose end is told of, and one between parts.
        replica.event(entry(1, new), &mut changes);
        replica.event(Event::NeighbourGone(1, at(2)), &mut changes);
        [1, 2].into_iter().for_each(|host| replica.entry(entry(host, old)));
        replica.event(entry(3, new), &mut changes);
        [3, 4].into_iter().for_each(|host| replica.entry(entry(host, old)));
        replica.end(&mut changes);

        let known = |host| replica.kernel().neighbour(1, at(host)).copied();
        assert_eq!(known(1), Some(neighbour(1, new)));
        assert_eq!(known(2), None);
        assert_eq!(known(3), Some(neighbour(3, new)));
        assert_eq!(known(4), Some(neighbour(4, old)));
    }

    #[test]
    fn a_dump_that_is_always_interrupted_is_taken_in_the_end() {
        let mut replica = Replica::new();
        let mut dumps = 0;
        while let Some(kind) = replica.next() {
            replica.begin(kind);
            replica.interrupted();
            replica.end(&mut Vec::new());
            dumps += 1;
        }
        assert_eq!(dumps, Kind::ALL.len() as u32 * (1 + REPEATS_MAX));
        assert!(replica.settled());
    }

    #[test]
    fn a_dump_that_always_fails_is_given_up() {
        let mut replica = Replica::new();
        for _ in 0..REPEATS_MAX {
            replica.begin(replica.next().unwrap());
            assert!(replica.failed());
        }
        replica.begin(replica.next().unwrap());
        assert!(!replica.failed());
    }
}
