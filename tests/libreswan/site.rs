//! Two gateways with a pluto each, for one scenario.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use serde_json::Value;

use crate::daemon::pair::{Pair, Side, account};
use crate::daemon::pluto::{Conn, Pluto, configuration};
use crate::daemon::root::Root;
use crate::gateway::Gateway;

/// Two gateways and two daemons.
pub struct Site {
    /// The west daemon.
    pub west: Pluto,
    /// The east daemon.
    pub east: Pluto,
    /// The network. Dropped last.
    pub pair: Pair,
}

impl Site {
    /// Both daemons run and have no connection.
    pub fn new(root: &Root) -> Site {
        let pair = Pair::new();
        let start = |side| {
            let end = pair.end(side);
            Pluto::start(root, &end.namespace, Some(&end.gateway), &configuration(&[]))
        };
        Site { west: start(Side::West), east: start(Side::East), pair }
    }

    /// Runs a scenario; says what daemons and gateways logged if it fails.
    pub fn run(mut self, scenario: fn(&mut Site)) {
        let result = catch_unwind(AssertUnwindSafe(|| scenario(&mut self)));
        if let Err(panic) = result {
            for (side, pluto) in [(Side::West, &mut self.west), (Side::East, &mut self.east)] {
                let gateway = account(&self.pair.end(side).gateway);
                let log = pluto.cell().log_tail(80);
                println!("=== {} gateway\n{gateway}\n=== {} pluto\n{log}", side.id(), side.id());
            }
            resume_unwind(panic);
        }
    }

    /// Gives both daemons these connections.
    #[track_caller]
    pub fn load(&self, conns: &[Conn]) {
        for pluto in [&self.west, &self.east] {
            pluto.load(&configuration(conns));
        }
    }

    /// Gives each daemon a connection of its own.
    #[track_caller]
    pub fn load_ends(&self, conn: impl Fn(Side) -> Conn) {
        for side in [Side::West, Side::East] {
            self.daemon(side).load(&configuration(&[conn(side)]));
        }
    }

    /// One of the daemons.
    pub fn daemon(&self, side: Side) -> &Pluto {
        match side {
            Side::West => &self.west,
            Side::East => &self.east,
        }
    }

    /// One of the gateways.
    pub fn gateway(&self, side: Side) -> &Gateway {
        &self.pair.end(side).gateway
    }

    /// The SAs of a gateway's data plane.
    pub fn data_plane(&self, side: Side) -> Vec<Value> {
        self.gateway(side).show("sa").as_array().expect("a list of SAs").clone()
    }

    /// The SPIs of those, in order.
    pub fn spis(&self, side: Side) -> Vec<u64> {
        let mut spis: Vec<u64> =
            self.data_plane(side).iter().filter_map(|sa| sa["spi"].as_u64()).collect();
        spis.sort_unstable();
        spis
    }

    /// Waits until the west gateway has two SAs, and neither of `old`.
    #[track_caller]
    pub fn renewed(&self, old: &[u64]) {
        self.gateway(Side::West).wait("other SAs alone", |_| {
            let now = self.spis(Side::West);
            now.len() == 2 && now.iter().all(|spi| !old.contains(spi))
        });
    }

    /// Waits until both gateways have so many SAs.
    #[track_caller]
    pub fn wait_sas(&self, count: usize) {
        for side in [Side::West, Side::East] {
            self.gateway(side).wait(&format!("{count} SAs at {}", side.id()), |gateway| {
                gateway.show("sa").as_array().is_some_and(|all| all.len() == count)
            });
        }
    }
}
