//! A ruler for what a route of the kernel costs control, from the event to the view that workers get.
//!
//! Contents are fixed, so that runs are repeatable. Nothing here prints or judges, and no kernel is
//! asked: netlink's own part, some microseconds per message, is not in it.

use std::hint::black_box;
use std::net::IpAddr;
use std::time::Instant;

use dataplane::prefix::Prefix;
use dataplane::ruler::tables::Random;
use dataplane::view::View;

use super::groups::Groups;
use super::network::Network;
use super::vrfs::Leads;
use crate::route_feed::{Event, Kernel, NextHop, Placement, Route, RouteKind, Table};

/// What following routes takes.
#[derive(Clone, Copy, Debug)]
pub struct Following {
    /// Seconds to bring all of them into a view, which is what each change would take if all were
    /// brought anew.
    pub all_s: f64,
    /// Nanoseconds of one change while workers have the view before it: a route by another next hop.
    pub one_ns: f64,
}

/// With so many IPv4 routes in the kernel's main table, changed so many times, one after the other.
#[must_use]
pub fn following(routes: u32, changes: u32) -> Following {
    let mut network = Network::new(vec![1], Groups::default(), Leads::default());
    let (mut kernel, mut view, mut news) = (Kernel::default(), View::default(), Vec::new());
    for number in 0..routes {
        black_box(kernel.apply(Event::Route(route(number, 1), Placement::Append), &mut news));
        news.clear();
    }
    let start = Instant::now();
    network.fill(&kernel, &mut view);
    let all_s = start.elapsed().as_secs_f64();
    let mut random = Random::new(1);
    let start = Instant::now();
    for change in 0..changes {
        let used = view.clone();
        // Drawn: a stride would take few routes over and over where it divides their number.
        let number = random.below(routes.max(1) as usize) as u32;
        let event = Event::Route(route(number, 2 + change % 200), Placement::Replace);
        black_box(kernel.apply(event, &mut news));
        black_box(network.apply(&kernel, &mut view, &news));
        news.clear();
        drop(used);
    }
    let one_ns = start.elapsed().as_nanos() as f64 / f64::from(changes.max(1));
    Following { all_s, one_ns }
}

/// A route to 24 bits, of which the first ones differ most.
fn route(number: u32, gateway: u32) -> Route {
    let address = IpAddr::from((number.wrapping_mul(0x9e37_79b1) << 8).to_be_bytes());
    let gateway = Some(IpAddr::from((0xc0a8_0000 + gateway).to_be_bytes()));
    Route {
        table: Table::Main,
        prefix: Prefix::new(address, 24).unwrap_or(Prefix::host(address)),
        metric: 0,
        kind: RouteKind::Unicast,
        hops: vec![NextHop { gateway, ifindex: 1, weight: 1, dead: false, link_down: false }],
        preferred_source: None,
        mtu: None,
        protocol: 4,
        object: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_change_costs_less_than_all_routes() {
        let Following { all_s, one_ns } = following(20_000, 200);
        assert!(one_ns > 0.0 && one_ns < all_s * 1e9 / 20.0, "{one_ns} ns of {all_s} s");
    }
}
