//! Gateways of the west where no policy says anything of most of what leaves, so that routes say what becomes of it, in clear.

use std::sync::Arc;

use dataplane::fib::{NextHop, Route};
use dataplane::policy::{Action, Direction, Policy, PolicyConfig};
use dataplane::selector::Selector;
use dataplane::view::View;
use wire::ethernet::MacAddr;

use super::case::host_of;
use super::families::likeness;
use super::fixture::*;

/// Where the third of the hosts is. The first is behind a router, and the second beside the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Third {
    /// Where the first or the second is.
    Behind,
    Beside,
    /// Behind a router that has an address of IPv6 alone.
    BehindV6,
    /// Where packets come from.
    Back,
    /// The same, but that port is down, or takes short packets only.
    Down,
    Narrow,
    /// Nobody knows the link address, there or of the router.
    Unresolved,
    UnresolvedRouter,
    /// In the tunnel, as a policy says, and there are others of all hosts.
    Protected,
    /// In the tunnel in route mode, nowhere else.
    AsBefore,
    Local,
    Blackhole,
    NotAPort,
}

pub const THIRDS: [Third; 13] = [
    Third::Behind,
    Third::Beside,
    Third::BehindV6,
    Third::Back,
    Third::Down,
    Third::Narrow,
    Third::Unresolved,
    Third::UnresolvedRouter,
    Third::Protected,
    Third::AsBefore,
    Third::Local,
    Third::Blackhole,
    Third::NotAPort,
];

impl Third {
    /// The routes and neighbours of one gateway; what they are like in IPv6 is not all known by IPv4's.
    pub fn reach_in_clear(self, view: &mut View) {
        let said: Vec<_> = view.spd.iter().map(|policy| policy.config()).collect();
        let is_out =
            |policy: &&PolicyConfig| policy.direction == Direction::Out && policy.if_id == 0;
        for policy in said.iter().filter(is_out) {
            view.spd.remove(policy);
            if self == Third::Protected {
                let of_all = matches!(policy.action, Action::Protect { .. });
                let destination = if of_all { host_of(3) } else { policy.selector.destination };
                let selector = Selector { destination, ..policy.selector };
                let policy = PolicyConfig { selector, ..policy.clone() };
                view.spd.insert(Arc::new(Policy::new(policy)));
            }
        }
        let peer = |v6| Site::West.peer().outer(v6);
        let behind = |gateway| Route::Via(NextHop { port: BLACK, gateway: Some(gateway) });
        let beside = |port| Route::Via(NextHop { port, gateway: None });
        view.fib.insert(host_of(1), behind(peer(false)));
        view.fib.insert(host_of(2), beside(BLACK));
        let third = match self {
            Third::Behind | Third::Protected => Some(behind(peer(false))),
            Third::Beside | Third::Unresolved => Some(beside(BLACK)),
            Third::BehindV6 => Some(behind(peer(true))),
            Third::Back | Third::Down | Third::Narrow => Some(beside(RED)),
            Third::UnresolvedRouter => Some(behind(ip("192.0.2.99"))),
            Third::AsBefore => None,
            Third::Local => Some(Route::Local),
            Third::Blackhole => Some(Route::Blackhole),
            Third::NotAPort => Some(Route::NotAPort),
        };
        match third {
            Some(route) => drop(view.fib.insert(host_of(3), route)),
            None => drop(view.fib.remove(host_of(3))),
        }
        let is_known = |n: u8| n == 2 || n == 3 && self != Third::Unresolved;
        for n in (1..=3).filter(|n| is_known(*n)) {
            let host = host_of(n.into()).address();
            for (port, host) in [(BLACK, host), (BLACK, likeness(host)), (RED, host)] {
                view.neighbours.set(port, host, MacAddr([2, 0, 0, 0, 3, n]));
            }
        }
        let mut ports = view.ports.to_vec();
        let red = &mut ports[usize::from(RED)];
        match self {
            Third::Down => red.up = false,
            Third::Narrow => red.mtu = 200,
            _ => {}
        }
        view.ports = ports.into();
    }
}
