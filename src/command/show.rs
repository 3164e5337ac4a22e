//! `peregrine show`: what a gateway is doing, as a table or as JSON.

mod table;

use std::net::IpAddr;
use std::process::ExitCode;

use comfy_table::{Cell, Table};
use control::api::{self, Reply, Show as What};

use self::table::{ago, grouped, hide_unused, print, table};
use super::Instance;

/// Show what a running gateway is doing
///
/// sa          security associations: counters, sequence numbers, errors (never keys)
/// policy      policies in the order in which they are asked
/// ports       interfaces: traffic, how packets were steered, and every named loss
/// workers     cores and how busy they are: busy turns are those of the last second
/// drops       how packets ended, by name, with the name Linux has for it; rates are those of the last second
/// routes      the kernel's routes that packets take
/// neighbours  who answers on the links, and whether packets are sent to them
/// status      the gateway itself, and whether its packet accounts close
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
#[command(after_help = "\
Examples:
  peregrine show sa
  peregrine show drops --all
  peregrine show ports --json | jq '.[].losses'")]
pub struct Show {
    /// What to show
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(
        ["sa", "policy", "ports", "workers", "drops", "routes", "neighbours", "status"]))]
    what: String,
    #[command(flatten)]
    instance: Instance,
    /// Print JSON, for programs (the fields are those of the control socket)
    #[arg(long)]
    json: bool,
    /// Also show what is zero
    #[arg(long)]
    all: bool,
}

impl Show {
    /// Asks and prints.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let what: What = self.what.parse().map_err(super::Unfit)?;
        let socket = self.instance.directory()?.join(control::instance::CONTROL_SOCKET);
        let answer = api::ask(&socket, what).map_err(|error| super::Unfit(error.to_string()))?;
        if self.json {
            println!("{}", json(&answer.reply)?);
            return Ok(ExitCode::SUCCESS);
        }
        match answer.reply {
            Reply::Sa(sas) => print(sa_table(&sas), "no SA is installed"),
            Reply::Policy(policies) => print(policy_table(&policies), "no policy is installed"),
            Reply::Ports(ports) => print_ports(&ports, self.all),
            Reply::Workers(workers) => print(worker_table(&workers), "no worker runs"),
            Reply::Drops(drops) => print_drops(&drops, self.all),
            Reply::Routes(routes) => print(route_table(&routes), "no route is known"),
            Reply::Neighbours(list) => print(neighbour_table(&list), "no neighbour is known"),
            Reply::Status(status) => print_status(&status),
            Reply::Upgrade(path) => println!("{path} takes over"),
            Reply::Error(sentence) => anyhow::bail!("{sentence}"),
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The reply without its envelope.
fn json(reply: &Reply) -> anyhow::Result<String> {
    Ok(match reply {
        Reply::Sa(list) => serde_json::to_string_pretty(list)?,
        Reply::Policy(list) => serde_json::to_string_pretty(list)?,
        Reply::Ports(list) => serde_json::to_string_pretty(list)?,
        Reply::Workers(list) => serde_json::to_string_pretty(list)?,
        Reply::Drops(list) => serde_json::to_string_pretty(list)?,
        Reply::Routes(list) => serde_json::to_string_pretty(list)?,
        Reply::Neighbours(list) => serde_json::to_string_pretty(list)?,
        Reply::Status(status) => serde_json::to_string_pretty(status)?,
        Reply::Upgrade(path) => serde_json::to_string_pretty(path)?,
        Reply::Error(sentence) => anyhow::bail!("{sentence}"),
    })
}

fn sa_table(sas: &[api::Sa]) -> Table {
    let mut table = table(&[
        "SPI",
        "dir",
        "outer",
        "mode",
        "UDP",
        ">reqid",
        "if_id",
        "mark",
        "CPU",
        "algorithm",
        ">window",
        ">sequence",
        ">packets",
        ">bytes",
        "last use",
        ">errors",
    ]);
    for sa in sas {
        let errors = sa.errors.integrity + sa.errors.replay + sa.errors.replay_window;
        let esn = if sa.esn { ", ESN" } else { "" };
        table.add_row([
            format!("{:#010x}", sa.spi),
            sa.direction.clone(),
            format!("{} → {}", sa.src, sa.dst),
            if sa.mode == "tunnel" { String::new() } else { sa.mode.clone() },
            sa.encapsulation_ports.map_or_else(String::new, |(from, to)| format!("{from}→{to}")),
            sa.reqid.to_string(),
            if_id_text(sa.if_id),
            mark_text(sa.mark),
            cpu_text(sa),
            format!("{} {}/{}{esn}", sa.algorithm, sa.key_bits, sa.icv_bits),
            sa.replay_window_packets.to_string(),
            grouped(sa.sequence),
            grouped(sa.packets),
            grouped(sa.bytes),
            ago(sa.last_use_age_s),
            grouped(errors),
        ]);
    }
    hide_unused(&mut table, &["mode", "UDP", "if_id", "mark"]);
    table
}

/// As `ip xfrm` writes it; nothing where there is none.
fn if_id_text(if_id: u32) -> String {
    if if_id == 0 { String::new() } else { format!("{if_id:#x}") }
}

/// The same of a mark.
fn mark_text(mark: Option<(u32, u32)>) -> String {
    mark.map_or_else(String::new, |(value, mask)| format!("{value:#x}/{mask:#x}"))
}

/// The CPU that an SA is bound to, and the worker that seals with it.
fn cpu_text(sa: &api::Sa) -> String {
    match (sa.cpu, sa.worker) {
        (Some(cpu), Some(worker)) => format!("{cpu} (worker {worker})"),
        (Some(cpu), None) => cpu.to_string(),
        (None, _) => "any".to_owned(),
    }
}

fn policy_table(policies: &[api::Policy]) -> Table {
    let mut table = table(&[
        "dir",
        ">priority",
        "source",
        "destination",
        "traffic",
        "if_id",
        "mark",
        "action",
        "through",
        ">packets",
        ">bytes",
        "last use",
    ]);
    for policy in policies {
        let through: Vec<String> = policy.templates.iter().map(template_text).collect();
        table.add_row([
            policy.direction.clone(),
            policy.priority.to_string(),
            policy.src.clone(),
            policy.dst.clone(),
            traffic_text(policy),
            if_id_text(policy.if_id),
            mark_text(policy.mark),
            policy.action.clone(),
            through.join(" + "),
            grouped(policy.packets),
            grouped(policy.bytes),
            ago(policy.last_use_age_s),
        ]);
    }
    hide_unused(&mut table, &["if_id", "mark"]);
    table
}

fn template_text(template: &api::Template) -> String {
    let optional = if template.optional { " if there is one" } else { "" };
    let (protocol, mode) = (&template.protocol, &template.mode);
    format!(
        "{protocol} {mode} {} → {} reqid {}{optional}",
        template.src, template.dst, template.reqid
    )
}

/// Protocol and ports of a policy; ports only where they matter.
fn traffic_text(policy: &api::Policy) -> String {
    let protocol = match policy.protocol {
        0 => "any".to_owned(),
        1 => "ICMP".to_owned(),
        6 => "TCP".to_owned(),
        17 => "UDP".to_owned(),
        58 => "ICMPv6".to_owned(),
        other => format!("protocol {other}"),
    };
    let port = |(port, mask): (u16, u16)| match mask {
        0 => String::new(),
        u16::MAX => port.to_string(),
        mask => format!("{port:#x}/{mask:#x}"),
    };
    match (port(policy.src_port), port(policy.dst_port)) {
        (from, to) if from.is_empty() && to.is_empty() => protocol,
        (from, to) => format!("{protocol} {from}→{to}"),
    }
}

fn worker_table(workers: &[api::Worker]) -> Table {
    let mut table = table(&[
        ">worker",
        ">core",
        ">busy turns",
        ">packets",
        ">packets a batch",
        ">turns",
        ">sleeps",
        ">by own SA",
        ">by fallback",
        ">followed",
    ]);
    for worker in workers {
        table.add_row([
            worker.worker.to_string(),
            worker.core.to_string(),
            format!("{:.1} %", 100.0 * worker.busy_share),
            grouped(worker.packets),
            format!("{:.1}", worker.batch_average),
            grouped(worker.turns),
            grouped(worker.sleeps),
            grouped(worker.own_sa_packets),
            grouped(worker.fallback_sa_packets),
            grouped(worker.followed_packets),
        ]);
    }
    table
}

fn route_table(routes: &[api::Route]) -> Table {
    let mut table = table(&["prefix", "kind", "next hop", "interface", "port", ">metric", "table"]);
    for route in routes {
        let on_link = if route.kind == "unicast" { "on link" } else { "" };
        table.add_row([
            route.prefix.clone(),
            route.kind.clone(),
            route.gateway.map_or_else(|| on_link.to_owned(), |hop: IpAddr| hop.to_string()),
            route.interface.clone().unwrap_or_default(),
            route.port.clone().unwrap_or_else(|| "–".to_owned()),
            route.metric.to_string(),
            route.table.clone(),
        ]);
    }
    table
}

fn neighbour_table(neighbours: &[api::Neighbour]) -> Table {
    let mut table = table(&["address", "interface", "Ethernet address", "state", "usable"]);
    for neighbour in neighbours {
        table.add_row([
            neighbour.address.to_string(),
            neighbour.interface.clone(),
            neighbour.mac.clone().unwrap_or_else(|| "unknown".to_owned()),
            neighbour.state.clone(),
            if neighbour.usable { "yes" } else { "no" }.to_owned(),
        ]);
    }
    table
}

fn print_ports(ports: &[api::Port], all: bool) {
    let mut traffic = table(&[
        "port",
        "interface",
        "link",
        ">MTU",
        "XDP",
        ">queues",
        "VRF",
        ">received",
        ">bytes in",
        ">sent",
        ">bytes out",
    ]);
    for port in ports {
        traffic.add_row([
            port.name.clone(),
            format!("{} ({})", port.interface, port.mac),
            if port.link_up { "up" } else { "down" }.to_owned(),
            port.mtu_bytes.to_string(),
            format!("{}{}", port.xdp_mode, if port.zero_copy { ", zero copy" } else { "" }),
            port.queues.to_string(),
            port.vrf.clone().unwrap_or_default(),
            grouped(port.rx_packets),
            grouped(port.rx_bytes),
            grouped(port.tx_packets),
            grouped(port.tx_bytes),
        ]);
    }
    print(traffic, "no port is served");
    for (title, pick) in [
        ("Steering", (|port| &port.steering) as fn(&api::Port) -> &Vec<api::Loss>),
        ("Losses", |port| &port.losses),
    ] {
        let mut counts = table(&["port", "name", ">packets", "meaning"]);
        for port in ports {
            for one in pick(port).iter().filter(|one| all || one.count != 0) {
                let meaning = one.description.clone();
                counts.add_row([port.name.clone(), one.name.clone(), grouped(one.count), meaning]);
            }
        }
        println!("\n{title}");
        print(counts, "none");
    }
}

fn print_drops(drops: &[api::DropCount], all: bool) {
    let mut counts = table(&["verdict", "", ">packets", ">per second", "Linux", "meaning"]);
    for one in drops.iter().filter(|one| all || one.count != 0) {
        counts.add_row([
            Cell::new(&one.name),
            Cell::new(if one.loss { "dropped" } else { "delivered" }),
            Cell::new(grouped(one.count)),
            Cell::new(format!("{:.0}", one.per_s)),
            Cell::new(one.linux_name.as_deref().unwrap_or("–")),
            Cell::new(&one.description),
        ]);
    }
    print(counts, "no packet has been received yet");
}

/// What an earlier run left, if it left anything.
fn print_restored(restored: &api::Restored) {
    if restored.sas + restored.policies + restored.lost != 0 {
        println!(
            "restored   {} SAs and {} policies in {:.1} ms, the whole start {:.1} ms",
            grouped(restored.sas),
            grouped(restored.policies),
            restored.tables_us as f64 / 1000.0,
            restored.ready_us as f64 / 1000.0
        );
    }
    if restored.lost != 0 {
        println!("lost       {} SAs and policies of an earlier run", grouped(restored.lost));
    }
    if let Some(problem) = &restored.problem {
        let rest = restored.set_aside.as_deref().unwrap_or("nowhere");
        println!("set aside  {rest}: a part of an earlier run's journal, because {problem}");
    }
}

fn print_status(status: &api::Status) {
    let cores: Vec<String> = status.cores.iter().map(u32::to_string).collect();
    let open = status.received_packets - status.accounted_packets.min(status.received_packets);
    println!("gateway    {} (pid {}), up {} s", status.name, status.pid, status.uptime_s);
    println!("version    peregrine {}, {}, epoch {}", status.version, status.engine, status.epoch);
    println!("cores      {}", cores.join(", "));
    println!("ports      {}", status.ports);
    println!("SAs        {}", grouped(status.sas));
    println!("policies   {}", grouped(status.policies));
    let defaults = &status.default_actions;
    println!(
        "without    {} in, {} forwarded, {} out: packets that no policy is for",
        defaults.input, defaults.forward, defaults.output
    );
    println!("routes     {}, neighbours {}", grouped(status.routes), grouped(status.neighbours));
    let feed = &status.route_feed;
    println!(
        "news       {} of the kernel's tables, lost {} times, {} unreadable, {} neighbours refused",
        grouped(feed.events),
        grouped(feed.overruns),
        grouped(feed.garbled),
        grouped(feed.solicit_errors)
    );
    println!(
        "packets    {} received, {} accounted for, {open} under way",
        grouped(status.received_packets),
        grouped(status.accounted_packets)
    );
    match &status.host {
        Some(host) => println!(
            "host       {} (MTU {}), {} routes in table {}, {} packets in, {} out, {} lost",
            host.device,
            host.mtu_bytes,
            grouped(host.routes),
            host.table,
            grouped(host.tx_packets),
            grouped(host.rx_packets),
            grouped(host.lost_packets)
        ),
        None => println!("host       its own traffic takes no tunnel"),
    }
    println!("if killed  {}", status.guard);
    println!("journal    {}", status.journal);
    print_restored(&status.restored);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sa(more: serde_json::Value) -> api::Sa {
        let mut sa = serde_json::json!({
            "spi": 256, "src": "192.0.2.1", "dst": "192.0.2.2", "direction": "out", "reqid": 7,
            "mode": "tunnel", "algorithm": "rfc4106(gcm(aes))", "key_bits": 256, "icv_bits": 128,
            "esn": true, "replay_window_packets": 64, "sequence": 1, "packets": 1, "bytes": 1,
            "age_s": 1, "errors": { "replay_window": 0, "replay": 0, "integrity": 0 },
        });
        let fields = more.as_object().unwrap().clone();
        sa.as_object_mut().unwrap().extend(fields);
        serde_json::from_value(sa).unwrap()
    }

    #[test]
    fn what_few_sas_have_is_shown_where_one_has_it() {
        let usual = sa(serde_json::json!({}));
        let text = |sas: &[api::Sa]| sa_table(sas).to_string();
        for column in ["mode", "UDP", "if_id", "mark"] {
            assert!(!text(std::slice::from_ref(&usual)).contains(column), "{column}");
        }
        for (fields, column, cell) in [
            (serde_json::json!({ "if_id": 42 }), "if_id", "0x2a"),
            (serde_json::json!({ "mark": [1, 255] }), "mark", "0x1/0xff"),
            (serde_json::json!({ "mode": "transport" }), "mode", "transport"),
            (serde_json::json!({ "encapsulation_ports": [4500, 1024] }), "UDP", "4500→1024"),
        ] {
            let text = text(&[usual.clone(), sa(fields)]);
            assert!(text.contains(column) && text.contains(cell), "{text}");
        }
    }
}
