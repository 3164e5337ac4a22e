//! Addresses and routes of a plan's hosts, as `ip -batch` reads them.
//!
//! Interfaces are named as in the published scripts. Where those route to nowhere or to a device
//! that not every kernel has, the errata in the plan's own files say what was mended.

use std::fmt::Write as _;
use std::net::IpAddr;

use super::plan::{Kind, Plan};
use crate::recipe::Net;

/// The hosts of a plan and what each is told.
pub fn hosts(plan: &Plan) -> Vec<(&'static str, String)> {
    match plan.request.kind {
        Kind::Test0 => test0(plan),
        Kind::Test4 => test4(plan),
        Kind::PerCpu => per_cpu(plan),
    }
}

/// Settings of the kernel that the published scripts make.
pub fn sysctl(kind: Kind) -> &'static str {
    match kind {
        Kind::PerCpu => {
            "net.ipv4.ip_forward = 1\n\
             # No event per SA and packet: at these rates they cost more than the packets.\n\
             net.core.xfrm_aevent_etime = 0xffffffff\n\
             net.core.xfrm_aevent_rseqth = 0xffffffff\n"
        }
        _ => "net.ipv4.ip_forward = 1\n",
    }
}

#[derive(Default)]
struct Batch(String);

impl Batch {
    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.0, "{line}");
    }

    fn up(&mut self, link: &str) {
        self.line(format_args!("link set dev {link} up"));
    }

    fn vlan(&mut self, link: &str, id: u32) -> String {
        let name = format!("{link}.{id}");
        self.line(format_args!("link add link {link} name {name} type vlan id {id}"));
        self.up(&name);
        name
    }

    fn address(&mut self, address: impl std::fmt::Display, prefix: u8, link: &str) {
        self.line(format_args!("address add {address}/{prefix} dev {link}"));
    }

    fn route(&mut self, to: impl std::fmt::Display, via: impl std::fmt::Display) {
        self.line(format_args!("route add {to} via {via}"));
    }

    fn endpoints(&mut self, plan: &Plan, group: u32, link: &str) {
        let mut last: Option<IpAddr> = None;
        for tunnel in plan.tunnels.iter().filter(|tunnel| tunnel.group == group) {
            let far = tunnel.ends.endpoints[1];
            if last.replace(far) != Some(far) {
                self.address(far, 16, link);
            }
        }
    }
}

fn test0(plan: &Plan) -> Vec<(&'static str, String)> {
    let layout = plan.request.kind.layout();
    let (near, far) = (layout.near_endpoint(0), layout.far_endpoint(0));
    let mut gateways = [Batch::default(), Batch::default()];
    for (index, batch) in gateways.iter_mut().enumerate() {
        batch.up("p0");
        batch.up("p1");
        batch.address(format_args!("{}.0.0.254", 10 + index), 24, "p1");
    }
    let [gw0, gw1] = &mut gateways;
    gw0.address(near, 16, "p0");
    gw0.route(layout.near_range(0), "10.0.0.1");
    gw0.route(layout.far_range(0), far);
    gw1.endpoints(plan, 0, "p0");
    gw1.route(layout.far_range(0), "11.0.0.1");
    gw1.route(layout.near_range(0), near);
    ["gw0", "gw1"].into_iter().zip(gateways.map(|batch| batch.0)).collect()
}

/// VLANs of the clear side: (gateway, group) → id.
const CLEAR_VLAN: [[u32; 2]; 2] = [[502, 504], [503, 505]];

fn test4(plan: &Plan) -> Vec<(&'static str, String)> {
    let layout = plan.request.kind.layout();
    let mut gateways = [Batch::default(), Batch::default()];
    let mut router = Batch::default();
    for (index, batch) in gateways.iter_mut().enumerate() {
        for group in 0..2 {
            let link = format!("p{group}");
            batch.up(&link);
            let clear = batch.vlan(&link, CLEAR_VLAN[index][group as usize]);
            batch.address(format_args!("{}.{group}.0.254", 10 + index), 24, &clear);
            // The second and fourth /16 after 123.0/16 are the far gateway's.
            let own = 2 * index as u32 + group;
            batch.address(format_args!("123.{own}.0.1"), 16, &link);
            if index == 1 {
                batch.endpoints(plan, group, &link);
            }
            let router_link = format!("r{own}");
            router.up(&router_link);
            router.address(format_args!("123.{own}.0.254"), 16, &router_link);
            let behind =
                if index == 0 { layout.near_range(group) } else { layout.far_range(group) };
            router.route(behind, format_args!("123.{own}.0.1"));
        }
        for group in 0..2 {
            let (own, peer) = (2 * index as u32 + group, 2 * (1 - index as u32) + group);
            let via = format!("123.{own}.0.254");
            let (behind, beyond) = if index == 0 {
                (layout.near_range(group), layout.far_range(group))
            } else {
                (layout.far_range(group), layout.near_range(group))
            };
            batch.route(format_args!("123.{peer}.0.0/16"), &via);
            batch.route(behind, format_args!("{}.{group}.0.1", 10 + index));
            // Clear packets need a route to be forwarded at all; policies catch them on the way.
            batch.route(beyond, &via);
        }
    }
    let mut hosts: Vec<_> = ["gw0", "gw1"].into_iter().zip(gateways.map(|batch| batch.0)).collect();
    hosts.push(("router", router.0));
    hosts
}

fn per_cpu(plan: &Plan) -> Vec<(&'static str, String)> {
    let layout = plan.request.kind.layout();
    let (west, east) = (layout.near_endpoint(0), layout.far_endpoint(0));
    let red = |third: u8| Net::new([10, 25, third, 0].into(), 24).map(|net| net.to_string());
    let (red_west, red_east) = (red(0).unwrap_or_default(), red(2).unwrap_or_default());
    let mut hosts = Vec::new();
    for (name, own, peer, third, beyond) in
        [("west", west, east, 0, red_east), ("east", east, west, 2, red_west)]
    {
        let mut batch = Batch::default();
        batch.up("black");
        batch.up("red");
        batch.address(own, 24, "black");
        batch.address(format_args!("10.25.{third}.254"), 24, "red");
        batch.route(beyond, peer);
        hosts.push((name, batch.0));
    }
    hosts
}
