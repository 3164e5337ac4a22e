//! Unmodified strongSwan drives Peregrine: two gateways, each with a charon of its own that knows
//! nothing of it, negotiate with each other. Every scenario runs for every version at hand;
//! docs/interop.md lists them.

#[path = "../daemon/mod.rs"]
mod daemon;
#[path = "../gateway/mod.rs"]
mod gateway;

mod authentication;
mod counters;
mod establish;
mod expiry;
mod liveness;
mod load;
mod site;

use authentication::*;
use counters::*;
use daemon::root::Root;
use establish::*;
use expiry::*;
use liveness::*;
use load::*;
use site::Site;

/// Each scenario for each version that can be had.
macro_rules! scenarios {
    ($($name:ident)*) => {
        mod v5_9_8 {
            $(#[test] fn $name() { super::with("strongswan-5.9.8", super::$name); })*
        }
        mod v6_1 {
            $(#[test] fn $name() { super::with("strongswan-6.1", super::$name); })*
        }

        #[test]
        fn the_table_in_the_docs_names_every_scenario() {
            let versions = ["v5_9_8", "v6_1"];
            let names = [$(stringify!($name)),*];
            let of = |version| names.map(|name| format!("{version}::{name}"));
            daemon::table::check("strongswan", &versions.map(of).concat());
        }
    };
}

fn with(name: &'static str, scenario: fn(&mut Site)) {
    if let Some(root) = Root::find(name) {
        Site::new(&root).run(scenario);
    }
}

scenarios! {
    initiates
    responds
    several_children
    every_family_in_every_family
    without_esn
    certificates
    rekeys_by_time
    rekeys_by_bytes
    rekeys_by_packets
    rekeys_the_ike_sa
    hard_expiry_by_time
    hard_expiry_by_packets
    no_dpd_while_traffic_flows
    dead_peer_is_detected
    deletes
    daemon_is_stopped_and_started
    daemon_is_killed_and_started
    trap_acquires
    real_counters
    hundred_rekeys_under_load
}
