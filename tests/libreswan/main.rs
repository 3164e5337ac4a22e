//! Unmodified libreswan drives Peregrine: two gateways, each with a pluto of its own that knows
//! nothing of it, negotiate with each other. Every scenario runs for every version at hand;
//! docs/interop.md lists them.

#[path = "../daemon/mod.rs"]
mod daemon;
#[path = "../gateway/mod.rs"]
mod gateway;

mod establish;
mod life;
mod mixed;
mod site;

use daemon::root::Root;
use establish::*;
use life::*;
use site::Site;

/// Each scenario for each version that can be had.
macro_rules! scenarios {
    ($($name:ident)*) => {
        mod v4_10 {
            $(#[test] fn $name() { super::with("libreswan-4.10", super::$name); })*
            #[test] fn with_strongswan() { super::beside("libreswan-4.10"); }
        }
        mod v5_2 {
            $(#[test] fn $name() { super::with("libreswan-5.2", super::$name); })*
            #[test] fn with_strongswan() { super::beside("libreswan-5.2"); }
            #[test] fn rekeys_by_packets() { super::with("libreswan-5.2", super::rekeys_by_packets); }
            #[test] fn rekeys_by_bytes() { super::with("libreswan-5.2", super::rekeys_by_bytes); }
        }

        #[test]
        fn the_table_in_the_docs_names_every_scenario() {
            let versions = ["v4_10", "v5_2"];
            let names = [$(stringify!($name),)* "with_strongswan"];
            let of = |version| names.map(|name| format!("{version}::{name}"));
            // Limits in packets and bytes came with libreswan 5.
            let limits = ["rekeys_by_packets", "rekeys_by_bytes"].map(|name| format!("v5_2::{name}"));
            let all = [versions.map(of).concat(), limits.to_vec()].concat();
            daemon::table::check("libreswan", &all);
        }
    };
}

fn with(name: &'static str, scenario: fn(&mut Site)) {
    if let Some(root) = Root::find(name) {
        Site::new(&root).run(scenario);
    }
}

fn beside(name: &'static str) {
    if let Some(root) = Root::find(name) {
        mixed::with_strongswan(&root);
    }
}

scenarios! {
    initiates
    responds
    several_children
    every_family_in_every_family
    without_esn
    deletes
    rekeys_by_time
    dead_peer_is_detected
    daemon_is_stopped_and_started
    daemon_is_killed_and_started
    trap_acquires
    real_counters
}
