//! Unmodified libreswan drives Peregrine: two gateways, each with a pluto of its own that knows
//! nothing of it, negotiate with each other. Every scenario runs for every version at hand;
//! docs/interop.md lists them.

#[path = "../daemon/mod.rs"]
mod daemon;
#[path = "../gateway/mod.rs"]
mod gateway;

mod authentication;
mod counters;
mod establish;
mod life;
mod mixed;
mod nat;
mod own;
mod site;

use authentication::*;
use counters::*;
use daemon::root::Root;
use establish::*;
use life::*;
use nat::*;
use own::*;
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
            #[test] fn keepalives_behind_a_nat() {
                super::with("libreswan-5.2", super::keepalives_behind_a_nat);
            }
        }

        #[test]
        fn the_table_in_the_docs_names_every_scenario() {
            let versions = ["v4_10", "v5_2"];
            let names = [$(stringify!($name),)* "with_strongswan"];
            let of = |version| names.map(|name| format!("{version}::{name}"));
            // Limits in packets and bytes came with libreswan 5, and 4.10 sends no keepalive.
            let newer = ["rekeys_by_packets", "rekeys_by_bytes", "keepalives_behind_a_nat"]
                .map(|name| format!("v5_2::{name}"));
            let all = [versions.map(of).concat(), newer.to_vec()].concat();
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
    packets_follow
    certificates
    certificates_of_elliptic_curves
    no_dpd_while_traffic_flows
    encapsulation_forced
    behind_a_nat
    nat_is_rebound
    mobike_moves_the_tunnel
    transport_mode
    virtual_address
    gateways_own_traffic
}
