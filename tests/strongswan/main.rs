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
mod kills;
mod liveness;
mod load;
mod nat;
mod own;
mod resources;
mod site;
#[path = "../speaker/mod.rs"]
mod speaker;
mod upgrade;

use authentication::*;
use counters::*;
use daemon::root::Root;
use establish::*;
use expiry::*;
use gateway::Cores;
use kills::*;
use liveness::*;
use load::*;
use nat::*;
use own::*;
use resources::*;
use site::Site;
use upgrade::*;

/// Each scenario for each version that has what it needs and can be had.
macro_rules! scenarios {
    (all { $($name:ident)* } since_6 { $($since:ident on $cores:expr;)* }) => {
        mod v5_9_8 {
            $(#[test] fn $name() { super::with("strongswan-5.9.8", super::Cores::Any(0), super::$name); })*
        }
        mod v6_1 {
            $(#[test] fn $name() { super::with("strongswan-6.1", super::Cores::Any(0), super::$name); })*
            $(#[test] fn $since() { super::with("strongswan-6.1", super::Cores::These(&$cores), super::$since); })*
        }

        #[test]
        fn the_table_in_the_docs_names_every_scenario() {
            let of = |version: &str, names: &[&str]| -> Vec<String> {
                names.iter().map(|name| format!("{version}::{name}")).collect()
            };
            let all = [$(stringify!($name)),*];
            let since_6 = [$(stringify!($since)),*];
            let named = [of("v5_9_8", &all), of("v6_1", &all), of("v6_1", &since_6)].concat();
            daemon::table::check("strongswan", &named);
        }
    };
}

fn with(name: &'static str, cores: Cores<'_>, scenario: fn(&mut Site)) {
    if let Some(root) = Root::find(name) {
        Site::new(&root, cores).run(scenario);
    }
}

scenarios! {
    all {
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
        packets_follow
        hundred_rekeys_under_load
        encapsulation_forced
        behind_a_nat
        nat_is_rebound_under_traffic
        mobike_moves_the_tunnel
        transport_mode
        virtual_address
        gateways_own_traffic
        own_packets_acquire
        gateway_is_killed
        gateway_stays_away_with_a_request
        limits_pass_without_a_gateway
        gateway_is_upgraded
    }
    since_6 {
        per_cpu_sas on [0, 1];
        per_cpu_sas_encapsulated on [0, 1];
    }
}
