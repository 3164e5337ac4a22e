//! The feed against the kernel, in network namespaces of its own. Root and iproute2 are needed, as
//! for the gateway itself.
//!
//! The oracle for "the feed followed" is a second feed, opened afterwards, that reads everything.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REQUEST, NLMSG_NOOP};
use proptest::prelude::*;
use proptest::test_runner::{Config as RunnerConfig, TestRunner};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::*;

/// How long the kernel may take to tell about something. Only a failing test waits this long.
const PATIENCE: Duration = Duration::from_secs(20);

/// Two namespaces, `near` and `far`, joined by the veth pair v0-v0; removed on drop.
struct Pair {
    near: String,
    far: String,
}

impl Pair {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let id = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let pair = Self { near: format!("pgfeed-n{id}"), far: format!("pgfeed-f{id}") };
        for namespace in [&pair.near, &pair.far] {
            run(&["netns", "add", namespace], "");
            run(&["-n", namespace, "link", "set", "lo", "up"], "");
        }
        let (near, far) = (&pair.near, &pair.far);
        pair.near("link add v0 type veth peer name v1");
        run(&["-n", near, "link", "set", "v1", "netns", far, "name", "v0"], "");
        pair.near("address add 10.9.0.1/24 dev v0");
        pair.far("address add 10.9.0.2/24 dev v0");
        pair.near("link set v0 up");
        pair.far("link set v0 up");
        pair
    }

    /// Runs one `ip` command in the near namespace.
    fn near(&self, words: &str) {
        run(&["-n", &self.near, "-batch", "-"], words);
    }

    fn far(&self, words: &str) {
        run(&["-n", &self.far, "-batch", "-"], words);
    }

    /// Runs many `ip` commands in the near namespace, one a line; those that fail are skipped.
    fn near_batch(&self, lines: &str) {
        run(&["-n", &self.near, "-force", "-batch", "-"], lines);
    }

    /// Runs a test in a thread inside the near namespace.
    fn inside<T: Send>(&self, test: impl FnOnce(&Self) -> T + Send) -> T {
        let file = std::fs::File::open(format!("/run/netns/{}", self.near)).unwrap();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                move_into_link_name_space(
                    std::os::fd::AsFd::as_fd(&file),
                    Some(LinkNameSpaceType::Network),
                )
                .unwrap();
                test(self)
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl std::ops::Drop for Pair {
    fn drop(&mut self) {
        for namespace in [&self.near, &self.far] {
            let _ = Command::new("ip").args(["netns", "del", namespace]).status();
        }
    }
}

fn run(words: &[&str], input: &str) {
    let mut child = Command::new("ip")
        .args(words)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("iproute2 is installed");
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    let forced = words.contains(&"-force");
    assert!(forced || out.status.success(), "ip {words:?} {input}: {out:?}");
}

impl RouteFeed {
    /// Follows until something holds, and the feed is settled.
    #[track_caller]
    fn follow_until(&mut self, what: &str, holds: impl Fn(&Kernel) -> bool) -> Vec<Change> {
        let deadline = Instant::now() + PATIENCE;
        let mut changes = Vec::new();
        loop {
            self.poll(&mut changes).unwrap();
            if self.settled() && holds(self.kernel()) {
                return changes;
            }
            assert!(Instant::now() < deadline, "never: {what}; have {:#?}", self.kernel());
            let moment = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
            poll(&mut [PollFd::new(&*self, PollFlags::IN)], Some(&moment)).unwrap();
        }
    }

    /// Follows until the feed knows what a fresh one reads.
    #[track_caller]
    fn follow_to_the_present(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let moment = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
            self.poll(&mut Vec::new()).unwrap();
            if poll(&mut [PollFd::new(&*self, PollFlags::IN)], Some(&moment)).unwrap() == 0 {
                let fresh = RouteFeed::open().unwrap();
                let (here, there) = (picture(self.kernel()), picture(fresh.kernel()));
                if here == there {
                    return;
                }
                let only = |a: &BTreeSet<String>, b| a.difference(b).cloned().collect::<Vec<_>>();
                assert!(
                    Instant::now() < deadline,
                    "only followed: {:#?}\nonly read afresh: {:#?}",
                    only(&here, &there),
                    only(&there, &here)
                );
            }
        }
    }
}

/// What must be equal, one line each: routes with their place among those of their prefix.
/// Neighbours change by the clock, so they are left out.
fn picture(kernel: &Kernel) -> BTreeSet<String> {
    let mut routes: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for route in kernel.routes() {
        let way = |hop: &NextHop| (hop.gateway, hop.ifindex, hop.weight, hop.dead, hop.link_down);
        let hops: Vec<_> = route.hops.iter().map(way).collect();
        let told = (route.metric, route.kind, hops, route.preferred_source, route.mtu);
        let told = format!("{told:?}");
        routes.entry(format!("{:?} {}", route.table, route.prefix)).or_default().push(told);
    }
    let routes = routes.into_iter().flat_map(|(prefix, list)| {
        let number = move |(i, told)| format!("{prefix} #{i} {told}");
        list.into_iter().enumerate().map(number)
    });
    let links = kernel.links().map(|link| format!("{link:?}"));
    links.chain(kernel.addresses().map(|address| format!("{address:?}"))).chain(routes).collect()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn route_to<'a>(kernel: &'a Kernel, address: &str) -> Option<&'a Route> {
    kernel.lookup(ip(address))
}

fn via(kernel: &Kernel, address: &str) -> Option<IpAddr> {
    route_to(kernel, address)?.first_hop()?.gateway
}

#[test]
fn the_first_reading_is_complete() {
    Pair::new().inside(|pair| {
        pair.near("route add blackhole 10.66.0.0/16");
        let feed = RouteFeed::open().unwrap();
        let kernel = feed.kernel();
        let v0 = kernel.link_named("v0").unwrap();
        assert_eq!((v0.kind.as_deref(), v0.mtu, v0.up), (Some("veth"), 1500, true));
        assert!(v0.mac.is_some() && v0.parent.is_none(), "{v0:?}");
        assert!(kernel.addresses().any(|a| a.address == ip("10.9.0.1") && a.prefix_length == 24));
        assert_eq!(route_to(kernel, "10.9.0.1").unwrap().kind, RouteKind::Local);
        assert_eq!(route_to(kernel, "10.9.0.255").unwrap().kind, RouteKind::Broadcast);
        let on_link = route_to(kernel, "10.9.0.77").unwrap();
        assert_eq!((on_link.kind, on_link.hops[0].ifindex), (RouteKind::Unicast, v0.ifindex));
        assert_eq!(on_link.preferred_source, Some(ip("10.9.0.1")));
        assert_eq!(route_to(kernel, "10.66.1.1").unwrap().kind, RouteKind::Blackhole);
        assert_eq!(route_to(kernel, "10.7.0.1"), None);
        assert_eq!(feed.counters().dumps, 4);
        assert_eq!(feed.counters().garbled, 0);
        assert_eq!(links().unwrap(), kernel.links().cloned().collect::<Vec<_>>());
    });
}

#[test]
fn changes_are_followed() {
    Pair::new().inside(|pair| {
        let mut feed = RouteFeed::open().unwrap();
        let v0 = feed.kernel().link_named("v0").unwrap().ifindex;

        pair.near("route add 10.50.0.0/16 via 10.9.0.2 metric 10");
        let changes = feed.follow_until("a route", |k| via(k, "10.50.1.1") == Some(ip("10.9.0.2")));
        let prefix = dataplane::prefix::Prefix::new(ip("10.50.0.0"), 16).unwrap();
        assert!(changes.contains(&Change::Route(Table::Main, prefix)));
        pair.near("route add 10.50.0.0/16 via 10.9.0.3 metric 5");
        feed.follow_until("a better one", |k| via(k, "10.50.1.1") == Some(ip("10.9.0.3")));
        pair.near("route del 10.50.0.0/16 via 10.9.0.3 metric 5");
        feed.follow_until("the other again", |k| via(k, "10.50.1.1") == Some(ip("10.9.0.2")));
        pair.near("route del 10.50.0.0/16");
        feed.follow_until("none", |k| route_to(k, "10.50.1.1").is_none());

        pair.near("address add 10.8.0.1/16 dev v0");
        let own = Address { ifindex: v0, address: ip("10.8.0.1"), prefix_length: 16, peer: None };
        let changes = feed.follow_until("an address", |k| k.addresses().any(|&a| a == own));
        assert!(changes.contains(&Change::Address(own)));
        pair.near("route add 10.51.0.0/16 via 10.9.0.2 src 10.8.0.1");
        feed.follow_until("a route with source", |k| route_to(k, "10.51.1.1").is_some());
        pair.near("address del 10.8.0.1/16 dev v0");
        feed.follow_until("its address gone", |k| {
            !k.addresses().any(|&a| a == own) && route_to(k, "10.51.1.1").is_none()
        });

        // One address towards two far ends, and one whose far end changes.
        let count = |k: &Kernel, own| k.addresses().filter(|a| a.address == ip(own)).count();
        for peer in ["10.7.0.2", "10.7.0.3"] {
            pair.near(&format!("address add 10.7.0.1 peer {peer} dev v0"));
        }
        feed.follow_until("both", |k| count(k, "10.7.0.1") == 2);
        pair.near("address del 10.7.0.1 peer 10.7.0.2 dev v0");
        feed.follow_until("the other is left", |k| count(k, "10.7.0.1") == 1);
        pair.near("address del 10.7.0.1 peer 10.7.0.3 dev v0");
        feed.follow_until("none is left", |k| count(k, "10.7.0.1") == 0);
        pair.near("address add fd07::1 peer fd07::2 dev v0 nodad");
        pair.near("address change fd07::1 peer fd07::3 dev v0 nodad");
        feed.follow_to_the_present();
        pair.near("address del fd07::1 peer fd07::3 dev v0");
        feed.follow_until("no address", |k| count(k, "fd07::1") == 0);

        pair.near("link set v0 mtu 1400");
        let changes = feed.follow_until("an MTU", |k| k.link(v0).unwrap().mtu == 1400);
        assert!(changes.contains(&Change::Link(v0)));
        pair.near("neighbour replace 10.9.0.9 lladdr 02:00:00:00:00:09 dev v0");
        let changes = feed.follow_until("a neighbour", |k| {
            let known = k.neighbour(v0, ip("10.9.0.9")).and_then(Neighbour::usable_mac);
            known == Some(wire::ethernet::MacAddr([2, 0, 0, 0, 0, 9]))
        });
        assert!(changes.contains(&Change::Neighbour(v0, ip("10.9.0.9"))));
        pair.near("neighbour del 10.9.0.9 dev v0");
        feed.follow_until("no neighbour", |k| {
            k.neighbour(v0, ip("10.9.0.9")).is_none_or(|n| n.usable_mac().is_none())
        });
    });
}

#[test]
fn what_the_kernel_changes_in_silence_is_noticed() {
    Pair::new().inside(|pair| {
        pair.near("link add d0 type veth peer name e0");
        pair.near("link set e0 up");
        pair.near("address add 10.3.0.1/24 dev d0");
        pair.near("link set d0 up");
        pair.near("route add 10.50.0.0/16 via 10.9.0.2");
        pair.near("route add 10.51.0.0/16 nexthop via 10.9.0.2 weight 3 nexthop via 10.3.0.2");
        let mut feed = RouteFeed::open().unwrap();
        let both = route_to(feed.kernel(), "10.51.1.1").unwrap();
        assert_eq!(both.hops.iter().map(|h| h.weight).collect::<Vec<_>>(), [3, 1]);

        // IPv4 routes go with their interface, and hops die and revive, without a word.
        pair.near("link set v0 down");
        feed.follow_until("the link and its routes gone", |k| {
            !k.link_named("v0").unwrap().up
                && route_to(k, "10.50.1.1").is_none()
                && via(k, "10.51.1.1") == Some(ip("10.3.0.2"))
        });
        pair.near("link set v0 up");
        feed.follow_until("the hop alive", |k| via(k, "10.51.1.1") == Some(ip("10.9.0.2")));
        pair.far("link set v0 down");
        feed.follow_until("no carrier, and the other hop", |k| {
            !k.link_named("v0").unwrap().carrier && via(k, "10.51.1.1") == Some(ip("10.3.0.2"))
        });
        pair.near("link set e0 down");
        feed.follow_until("no hop has a carrier", |k| via(k, "10.51.1.1") == Some(ip("10.9.0.2")));
        pair.far("link set v0 up");
        feed.follow_until("carrier", |k| {
            k.link_named("v0").unwrap().carrier && via(k, "10.51.1.1") == Some(ip("10.9.0.2"))
        });
        pair.near("link del v0");
        feed.follow_to_the_present();
        assert!(feed.kernel().link_named("v0").is_none());
    });
}

#[test]
fn what_another_program_does_is_no_part_of_a_dump() {
    Pair::new().inside(|pair| {
        // More than the kernel lists at once: the rest is made when this has been read.
        let neighbour = |i| {
            let (net, host) = (i / 250, i % 250);
            format!("neighbour add 10.5.{net}.{host} lladdr 02:00:00:00:00:09 dev v0\n")
        };
        pair.near_batch(&(0..1000).map(neighbour).collect::<String>());
        let mut feed = RouteFeed::open().unwrap();
        let asked = decode::request_dump(&mut feed.socket, Kind::Neighbours).unwrap();
        feed.dump = Some((Kind::Neighbours, asked));
        feed.replica.begin(Kind::Neighbours);
        // That program counts its requests, as the feed does: "ip route add blackhole 10.60.0.0/16".
        let mut other = NetlinkSocket::open(NETLINK_ROUTE, 0).unwrap();
        let mut route = vec![2, 16, 0, 0, 254, 4, 0, 6, 0, 0, 0, 0, 8, 0, 1, 0];
        route.extend([10, 60, 0, 0]);
        while other.send(NLMSG_NOOP, 0, &[]).unwrap() + 1 < asked {}
        assert_eq!(other.send(24, NLM_F_REQUEST | NLM_F_CREATE, &route).unwrap(), asked);
        feed.follow_until("the route", |k| route_to(k, "10.60.1.1").is_some());
        feed.follow_to_the_present();
    });
}

#[test]
fn neighbours_are_resolved_by_the_kernel_on_request() {
    Pair::new().inside(|pair| {
        pair.near("address add fd00:9::1/64 dev v0 nodad");
        pair.far("address add fd00:9::2/64 dev v0 nodad");
        let mut feed = RouteFeed::open().unwrap();
        let v0 = feed.kernel().link_named("v0").unwrap().ifindex;
        for there in ["10.9.0.2", "fd00:9::2"] {
            let is = |feed: &RouteFeed, wanted: fn(&Neighbour) -> bool| {
                feed.kernel().neighbour(v0, ip(there)).is_some_and(wanted)
            };
            // A far end whose link is only just up may not answer in time. Who has packets asks again.
            let deadline = Instant::now() + PATIENCE;
            while !is(&feed, |n| n.usable_mac().is_some()) {
                assert!(
                    Instant::now() < deadline,
                    "{there}: {:?}",
                    feed.kernel().neighbour(v0, ip(there))
                );
                feed.solicit(v0, ip(there)).unwrap();
                let end = Instant::now() + Duration::from_millis(100);
                while Instant::now() < end && !is(&feed, |n| n.usable_mac().is_some()) {
                    feed.poll(&mut Vec::new()).unwrap();
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            // One that the kernel knows and the feed does not: who asks is told without any news.
            feed.replica.event(Event::NeighbourGone(v0, ip(there)), &mut Vec::new());
            assert!(!is(&feed, |_| true));
            feed.solicit(v0, ip(there)).unwrap();
            feed.follow_until("one that is known", |k| {
                k.neighbour(v0, ip(there)).is_some_and(|n| n.usable_mac().is_some())
            });
        }
        feed.solicit(v0, ip("10.9.0.77")).unwrap();
        feed.follow_until("nobody there", |k| {
            k.neighbour(v0, ip("10.9.0.77")).is_some_and(|n| n.state == NeighbourState::Failed)
        });
        assert_eq!(feed.counters().solicit_errors, 0);
        feed.solicit(9999, ip("10.9.0.2")).unwrap();
        let deadline = Instant::now() + PATIENCE;
        while feed.counters().solicit_errors == 0 && Instant::now() < deadline {
            feed.poll(&mut Vec::new()).unwrap();
        }
        assert_eq!(feed.counters().solicit_errors, 1, "an interface that does not exist");
    });
}

#[test]
fn a_flood_overruns_the_socket_and_is_repaired() {
    Pair::new().inside(|pair| {
        let mut feed = RouteFeed::open().unwrap();
        // The kernel's own may come in between: those of a link's address, once nobody else has that.
        let count = |kernel: &Kernel| {
            let is_ours = |route: &&Route| match route.prefix.address() {
                IpAddr::V4(net) => (100..120).contains(&net.octets()[1]),
                IpAddr::V6(_) => false,
            };
            kernel.routes().filter(is_ours).count()
        };
        feed.socket.shrink_receive_buffer(64 << 10);
        let routes: String = (0..5000)
            .map(|i| format!("route add 10.{}.{}.0/24 via 10.9.0.2\n", 100 + i / 250, i % 250))
            .collect();
        pair.near_batch(&routes);
        let changes = feed.follow_until("all routes", |k| count(k) == 5000);
        assert!(feed.counters().overruns > 0, "{:?}", feed.counters());
        assert!(changes.len() >= 5000);
        feed.follow_to_the_present();

        pair.near_batch(&routes.replace("route add", "route del"));
        feed.follow_until("no routes", |k| count(k) == 0);
        // With the default buffer the same flood fits, and is followed event by event.
        let mut roomy = RouteFeed::open().unwrap();
        pair.near_batch(&routes);
        roomy.follow_until("all routes", |k| count(k) == 5000);
        assert_eq!((roomy.counters().overruns, roomy.counters().dumps), (0, 4));
    });
}

#[test]
fn routes_that_only_the_kernel_can_follow_are_kept_apart() {
    Pair::new().inside(|pair| {
        let mut feed = RouteFeed::open().unwrap();
        pair.near_batch(
            "route add 10.70.0.0/16 via 10.9.0.2 tos 0x10\n\
             route add 10.71.0.0/16 via 10.9.0.2 table 220\n\
             route add unreachable 10.72.0.0/16\n\
             route add prohibit 10.73.0.0/16\n\
             route add throw 10.74.0.0/16\n\
             route add 10.75.0.0/16 via inet6 fe80::99 dev v0\n\
             route add 10.77.0.0/16 via 10.9.0.2\n",
        );
        feed.follow_until("the last", |k| route_to(k, "10.77.1.1").is_some());
        let kernel = feed.kernel();
        assert_eq!(route_to(kernel, "10.70.1.1"), None);
        assert_eq!(route_to(kernel, "10.71.1.1"), None);
        assert_eq!(route_to(kernel, "10.72.1.1").unwrap().kind, RouteKind::Unreachable);
        assert_eq!(route_to(kernel, "10.73.1.1").unwrap().kind, RouteKind::Prohibit);
        assert_eq!(route_to(kernel, "10.74.1.1"), None);
        assert!(kernel.routes().any(|r| r.kind == RouteKind::Throw));
        assert_eq!(via(kernel, "10.75.1.1"), Some(ip("fe80::99")));

        // A next-hop object, where the kernel has them, is seen through the route that uses it.
        pair.near_batch("nexthop add id 1 via 10.9.0.5 dev v0\nroute add 10.76.0.0/16 nhid 1\n");
        feed.follow_until("through the object", |k| via(k, "10.76.1.1") == Some(ip("10.9.0.5")));
        pair.near_batch("nexthop replace id 1 via 10.9.0.6 dev v0\n");
        feed.follow_until("the object changed", |k| via(k, "10.76.1.1") == Some(ip("10.9.0.6")));
        // Whatever the kernel does with routes when their object goes, it does in silence.
        pair.near_batch(
            "nexthop add id 2 via 10.9.0.7 dev v0\n\
             nexthop add id 3 group 1/2\n\
             route add 10.78.0.0/16 nhid 3\n\
             route add 10.76.0.0/16 via 10.9.0.8 metric 9\n",
        );
        feed.follow_until("a group", |k| via(k, "10.78.1.1") == Some(ip("10.9.0.6")));
        pair.near("nexthop del id 1");
        let changes = feed.follow_until("the object gone", |k| {
            via(k, "10.76.1.1") == Some(ip("10.9.0.8"))
                && via(k, "10.78.1.1") == Some(ip("10.9.0.7"))
        });
        let prefix = dataplane::prefix::Prefix::new(ip("10.76.0.0"), 16).unwrap();
        assert!(changes.contains(&Change::Route(Table::Main, prefix)));
        pair.near("nexthop del id 3");
        feed.follow_until("the group gone", |k| route_to(k, "10.78.1.1").is_none());
        // Nobody's object is worth no reading.
        let dumps = feed.counters().dumps;
        pair.near("nexthop replace id 2 via 10.9.0.9 dev v0");
        pair.near("nexthop del id 2");
        feed.follow_to_the_present();
        assert_eq!((feed.counters().dumps, feed.counters().garbled), (dumps, 0));
    });
}

/// One random `ip route` command over a handful of prefixes and gateways.
fn route_command() -> impl Strategy<Value = String> {
    let verb = prop_oneof![
        3 => Just("add"), 2 => Just("append"), 2 => Just("prepend"), 2 => Just("replace"),
        3 => Just("del"),
    ];
    let route =
        (verb, any::<bool>(), 0..2_u8, 1..3_u8, prop::collection::vec((0..3_u8, 1..3_u8), 1..3))
            .prop_map(|(verb, v6, net, metric, hops)| {
                let hop = |(link, host): (u8, u8)| match v6 {
                    true => format!("via fd00:{link}::{} dev d{link}", host + 1),
                    false => format!("via 10.20{link}.0.{} dev d{link}", host + 1),
                };
                let (flag, prefix) = if v6 {
                    ("-6 ", format!("fd01:{net}::/32"))
                } else {
                    ("", format!("10.5{net}.0.0/16"))
                };
                let hops: Vec<String> = hops.into_iter().map(hop).collect();
                let hops = match &hops[..] {
                    [one] => one.clone(),
                    several => format!("nexthop {}", several.join(" nexthop ")),
                };
                format!("{flag}route {verb} {prefix} metric {metric} {hops}\n")
            });
    let plain = (prop_oneof![Just("add"), Just("del")], 0..3_u8)
        .prop_map(|(verb, net)| format!("-6 route {verb} fd01:{net}::/32 metric 1 dev d{net}\n"));
    prop_oneof![8 => route, 1 => plain]
}

/// One random command about a link or an address.
fn link_command() -> impl Strategy<Value = String> {
    let link = (0..3_u8, any::<bool>())
        .prop_map(|(link, up)| format!("link set d{link} {}\n", if up { "up" } else { "down" }));
    let address = (prop_oneof![Just("add"), Just("del")], 0..3_u8, any::<bool>()).prop_map(
        |(verb, link, v6)| match v6 {
            true => format!("address {verb} fd00:{link}::1/64 dev d{link} nodad\n"),
            false => format!("address {verb} 10.20{link}.0.1/24 dev d{link}\n"),
        },
    );
    prop_oneof![2 => link, 1 => address]
}

/// One random command about next-hop objects, groups of them, and routes by them.
fn object_command() -> impl Strategy<Value = String> {
    let object = (prop_oneof![Just("add"), Just("replace")], 1..5_u8, 0..3_u8, 1..3_u8);
    let object = object.prop_map(|(verb, id, link, host)| match id {
        1 => format!("nexthop {verb} id 1 via fd00:{link}::{} dev d{link}\n", host + 1),
        _ => format!("nexthop {verb} id {id} via 10.20{link}.0.{} dev d{link}\n", host + 1),
    });
    let group = (prop_oneof![Just("add"), Just("replace")], 2..5_u8, 2..5_u8)
        .prop_map(|(verb, a, b)| format!("nexthop {verb} id 5 group {a}/{b}\n"));
    let end = (1..6_u8).prop_map(|id| format!("nexthop del id {id}\n"));
    let verb = prop_oneof![Just("add"), Just("append"), Just("replace"), Just("del")];
    let route = (verb, 0..2_u8, 1..3_u8, 1..6_u8).prop_map(|(verb, net, metric, id)| match id {
        1 => format!("-6 route {verb} fd01:{net}::/32 metric {metric} nhid 1\n"),
        _ => format!("route {verb} 10.5{net}.0.0/16 metric {metric} nhid {id}\n"),
    });
    prop_oneof![3 => object, 1 => group, 2 => end, 3 => route, 1 => route_command()]
}

/// Follows random commands, and compares with a fresh reading at the end.
fn follow(command: impl Strategy<Value = String> + Send) {
    Pair::new().inside(|pair| {
        let mut runner = TestRunner::new(RunnerConfig {
            cases: 24,
            max_shrink_iters: 8,
            failure_persistence: None,
            ..RunnerConfig::default()
        });
        let sequences = prop::collection::vec(command, 1..40);
        runner
            .run(&sequences, |commands| {
                let mut start = String::new();
                for link in 0..3 {
                    start += &format!(
                        "link add d{link} type veth peer name e{link}\n\
                         link set e{link} up\nlink set d{link} up\n\
                         address add 10.20{link}.0.1/24 dev d{link}\n\
                         address add fd00:{link}::1/64 dev d{link} nodad\n"
                    );
                }
                pair.near_batch(&start);
                let mut feed = RouteFeed::open().unwrap();
                pair.near_batch(&commands.concat());
                feed.follow_to_the_present();
                pair.near_batch("link del d0\nlink del d1\nlink del d2\n");
                feed.follow_to_the_present();
                Ok(())
            })
            .unwrap();
    });
}

#[test]
fn any_sequence_of_route_commands_is_followed() {
    follow(route_command());
}

#[test]
fn any_sequence_of_commands_about_next_hop_objects_is_followed() {
    follow(prop_oneof![8 => object_command(), 1 => link_command()]);
}

#[test]
fn any_sequence_of_route_and_link_commands_is_followed() {
    follow(prop_oneof![3 => route_command(), 1 => link_command()]);
}

#[test]
fn channels_are_counted_in_the_callers_namespace() {
    Pair::new().inside(|pair| {
        pair.near("link add w0 numrxqueues 4 numtxqueues 4 type veth peer name w1");
        let machine = crate::config::Machine::probe().unwrap();
        let queues = |name| machine.interfaces.iter().find(|i| i.name == name).unwrap().queues;
        assert_eq!((queues("w0"), queues("v0")), (4, 1));
        assert_eq!(machine.interfaces.len(), 4, "lo, v0, w0, w1 and nothing of the host's");
    });
}
