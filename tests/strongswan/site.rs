//! Two gateways with a charon each, for one scenario.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use serde_json::Value;

use crate::daemon::charon::Charon;
use crate::daemon::pair::{Pair, Side, account, surroundings};
use crate::daemon::root::Root;
use crate::daemon::swanctl::Connection;
use crate::gateway::{Cores, Gateway};

/// Two gateways and two daemons.
pub struct Site {
    /// The west daemon.
    pub west: Charon,
    /// The east daemon.
    pub east: Charon,
    /// The network. Dropped last.
    pub pair: Pair,
}

impl Site {
    /// Both daemons run and have no configuration; the gateways have a worker for each core.
    pub fn new(root: &Root, cores: Cores<'_>) -> Site {
        let pair = Pair::with(cores, "");
        let west = Charon::start(root, &pair.west.namespace, Some(&pair.west.gateway));
        let east = Charon::start(root, &pair.east.namespace, Some(&pair.east.gateway));
        Site { pair, west, east }
    }

    /// Runs a scenario; says what daemons and gateways logged if it fails.
    pub fn run(mut self, scenario: fn(&mut Site)) {
        let result = catch_unwind(AssertUnwindSafe(|| scenario(&mut self)));
        if let Err(panic) = result {
            for (side, charon) in [(Side::West, &mut self.west), (Side::East, &mut self.east)] {
                let end = self.pair.end(side);
                let gateway = account(&end.gateway) + &surroundings(end);
                let log = charon.cell().log_tail(80);
                println!("=== {} gateway\n{gateway}\n=== {} charon\n{log}", side.id(), side.id());
            }
            resume_unwind(panic);
        }
    }

    /// Gives both daemons their configuration.
    #[track_caller]
    pub fn load(&self, configuration: impl Fn(Connection) -> Connection) {
        self.load_over(false, configuration);
    }

    /// The same with IPv6 outside if `v6`.
    #[track_caller]
    pub fn load_over(&self, v6: bool, configuration: impl Fn(Connection) -> Connection) {
        for (side, charon) in [(Side::West, &self.west), (Side::East, &self.east)] {
            charon.load(&configuration(Connection::new(side, v6)).text());
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

    /// Waits until a gateway has so many SAs.
    #[track_caller]
    pub fn wait_sas(&self, side: Side, count: usize) {
        self.gateway(side).wait(&format!("{count} SAs at {}", side.id()), |gateway| {
            gateway.show("sa").as_array().is_some_and(|all| all.len() == count)
        });
    }

    /// Waits until neither gateway has an SA.
    #[track_caller]
    pub fn wait_no_sas(&self) {
        for side in [Side::West, Side::East] {
            self.wait_sas(side, 0);
        }
    }
}
