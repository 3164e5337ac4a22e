//! What `peregrine show` is told: the gateway's state in the words of `api`.

use std::path::PathBuf;
use std::time::Instant;

use crypto::Engine;
use dataplane::clock::Clock;
use dataplane::policy::Direction;
use dataplane::sa::Mode;
use dataplane::verdict::{Outcome, Verdict};
use dataplane::view;
use wire::xfrm::address::Mark;
use wire::xfrm::number::default_action;
use xsk::CounterKind;

use super::host::{Host, HostSummary};
use super::network::Network;
use super::ports::{PortProgram, Ports};
use super::rates::{self, Rates};
use super::tables::{InstalledPolicy, InstalledSa, Tables};
use super::upgrade::{self, Place};
use super::workers::Workers;
use crate::api;
use crate::api::{
    DropCount, Facts, HostDevice, Loss, Neighbour, Policy, Port, Route, Sa, SaErrors, Status,
    Template, Worker,
};
use crate::config::Config;
use crate::journal::Health;
use crate::route_feed::{FeedCounters, Kernel, Route as KernelRoute, Table};
use crate::xfrm::{Defaults, PolicyId, SaId, Server};

/// A look at the gateway, for one question.
pub struct View<'a> {
    /// Its configuration.
    pub config: &'a Config,
    /// When it started.
    pub started: Instant,
    /// Its engine.
    pub engine: Engine,
    /// Its epoch.
    pub epoch: u16,
    /// The data plane's clock.
    pub clock: Clock,
    /// SAs and policies.
    pub server: &'a Server,
    pub tables: &'a Tables,
    /// The host's own traffic.
    pub host: Option<&'a Host>,
    /// The kernel's tables.
    pub kernel: &'a Kernel,
    /// How following them goes.
    pub feed: FeedCounters,
    /// What workers have.
    pub current: &'a view::View,
    /// Which interface is which port.
    pub network: &'a Network,
    /// The programs.
    pub ports: &'a Ports,
    /// The workers.
    pub workers: &'a Workers,
    /// What was counted in the last second.
    pub rates: &'a Rates,
    /// What an earlier run left.
    pub restored: &'a api::Restored,
    /// How the journal is.
    pub journal: Option<Health>,
    /// The binary that is to take over, once that was answered.
    pub successor: &'a mut Option<PathBuf>,
    /// Why the last one did not.
    pub upgrade_refused: &'a mut Option<String>,
}

impl View<'_> {
    fn age_s(&self, since_ns: u64) -> u64 {
        self.clock.now_ns().saturating_sub(since_ns) / 1_000_000_000
    }

    fn last_use_age_s(&self, last_use_ns: u64) -> Option<u64> {
        (last_use_ns != 0).then(|| self.age_s(last_use_ns))
    }

    fn one_sa(&self, id: SaId, installed: &InstalledSa) -> Sa {
        let record = self.server.sa_record(id);
        let (config, stats) = (installed.sa.config(), installed.sa.stats());
        let inbound = self.current.local.contains(&config.destination);
        Sa {
            spi: config.spi,
            src: config.source,
            dst: config.destination,
            direction: if inbound { "in" } else { "out" }.to_owned(),
            reqid: config.reqid,
            if_id: record.as_ref().map_or(0, |record| record.parameters.if_id),
            mark: record.as_ref().and_then(|record| mark_words(record.parameters.mark)),
            mode: match config.mode {
                Mode::Tunnel => "tunnel",
                Mode::Transport => "transport",
            }
            .to_owned(),
            algorithm: record.as_ref().map_or("", |record| record.aead.name).to_owned(),
            key_bits: config.key.bits().into(),
            icv_bits: record.as_ref().map_or(0, |record| record.aead.icv_bits),
            esn: config.extended_sequence,
            replay_window_packets: config.replay_window,
            sequence: if inbound { stats.received } else { stats.sent },
            packets: stats.usage.packets,
            bytes: stats.usage.bytes,
            age_s: self.age_s(stats.added_ns),
            last_use_age_s: self.last_use_age_s(stats.usage.last_use_ns),
            errors: SaErrors {
                replay_window: stats.replay_old,
                replay: stats.replayed,
                integrity: stats.integrity_failed,
            },
            encapsulation_ports: config
                .encapsulation
                .map(|udp| (udp.source_port, udp.destination_port)),
            worker: installed.worker.map(u32::from),
            cpu: record.and_then(|record| record.parameters.cpu),
        }
    }

    fn one_policy(&self, id: PolicyId, installed: &InstalledPolicy) -> Option<Policy> {
        let record = self.server.policy_record(id);
        let policy = installed.policy.as_ref()?;
        let (config, usage) = (policy.config(), policy.usage());
        let selector = &config.selector;
        let port = |of: dataplane::selector::PortMatch| (of.port, of.mask);
        let templates = record.iter().flat_map(|record| &record.templates).filter_map(|template| {
            Some(Template {
                src: template.saddr.ip(template.family)?,
                dst: template.id.daddr.ip(template.family)?,
                protocol: protocol_name(template.id.proto),
                mode: mode_name(template.mode),
                reqid: template.reqid,
                spi: template.id.spi.get(),
                optional: template.optional != 0,
            })
        });
        Some(Policy {
            index: config.index,
            direction: direction_name(config.direction).to_owned(),
            priority: config.priority,
            action: match config.action {
                dataplane::policy::Action::Bypass => "bypass",
                dataplane::policy::Action::Discard => "discard",
                dataplane::policy::Action::Protect { .. } => "protect",
            }
            .to_owned(),
            src: selector.source.to_string(),
            dst: selector.destination.to_string(),
            protocol: selector.protocol,
            src_port: port(selector.source_port),
            dst_port: port(selector.destination_port),
            if_id: record.as_ref().map_or(0, |record| record.if_id),
            mark: record.as_ref().and_then(|record| mark_words(record.mark)),
            templates: templates.collect(),
            packets: usage.packets,
            bytes: usage.bytes,
            age_s: self.age_s(installed.added_ns),
            last_use_age_s: self.last_use_age_s(self.tables.last_use_ns(policy)),
        })
    }

    fn one_port(&self, program: &PortProgram, counters: &xsk::PortCounters) -> Port {
        let link = self.kernel.link(program.ifindex);
        let port = self.network.port(program.ifindex);
        // As workers have it: a link that came back is up, and its port is not.
        let current = port.and_then(|port| self.current.ports.get(usize::from(port)));
        let loss = |name: &str, count: u64, description: &str| Loss {
            name: name.to_owned(),
            count,
            description: description.to_owned(),
        };
        let losses = counters.list().into_iter().filter(|one| one.kind == CounterKind::Loss);
        Port {
            name: program.name.clone(),
            interface: link.map_or_else(|| program.interface.clone(), |link| link.name.clone()),
            ifindex: program.ifindex,
            mac: link.and_then(|link| link.mac).map_or_else(String::new, |mac| mac.to_string()),
            mtu_bytes: link.map_or(0, |link| link.mtu),
            link_up: current.is_some_and(|port| port.up),
            xdp_mode: program.mode.to_owned(),
            zero_copy: program.zero_copy,
            queues: program.queues,
            vrf: port.and_then(|port| self.network.vrf_name(port, &self.current.vrfs, self.kernel)),
            rx_packets: counters.rx_packets,
            rx_bytes: counters.rx_bytes,
            tx_packets: counters.tx_packets,
            tx_bytes: counters.tx_bytes,
            losses: losses.map(|one| loss(one.name, one.value, one.meaning)).collect(),
            steering: program
                .steer
                .counters()
                .iter()
                .map(|one| loss(one.name, one.packets, one.meaning))
                .collect(),
        }
    }

    fn host_device(&self) -> Option<Box<HostDevice>> {
        let HostSummary { device, mtu, table, routes, blocks } = self.host?.summary();
        // The device is the last port of every worker.
        let counters = self.workers.port_counters(self.ports.iter().count() + 1).pop()?;
        Some(Box::new(HostDevice {
            device,
            mtu_bytes: mtu,
            table,
            routes: routes as u64,
            blocks: blocks as u64,
            rx_packets: counters.rx_packets,
            tx_packets: counters.tx_packets,
            lost_packets: counters.lost(),
        }))
    }

    fn one_route(&self, route: &KernelRoute) -> Route {
        let hop = route.first_hop();
        let port = hop.and_then(|hop| self.network.port(hop.ifindex));
        Route {
            prefix: route.prefix.to_string(),
            table: route.table.name(),
            kind: route.kind.name().to_owned(),
            metric: route.metric,
            gateway: hop.and_then(|hop| hop.gateway),
            interface: hop
                .and_then(|hop| self.kernel.link(hop.ifindex))
                .map(|link| link.name.clone()),
            port: port
                .and_then(|port| self.ports.iter().nth(port.into()))
                .map(|port| port.name.clone()),
            hops: route.hops.len() as u32,
        }
    }
}

fn direction_name(direction: Direction) -> &'static str {
    match direction {
        Direction::In => "in",
        Direction::Out => "out",
        Direction::Forward => "fwd",
    }
}

impl Facts for View<'_> {
    fn sa_names(&mut self) -> Vec<u64> {
        self.tables.sas().map(|(id, _)| id.0).collect()
    }

    fn sas(&mut self, names: &[u64]) -> Vec<Sa> {
        let one = |name: &u64| Some(self.one_sa(SaId(*name), self.tables.sa_of(SaId(*name))?));
        names.iter().filter_map(one).collect()
    }

    fn policy_names(&mut self) -> Vec<u64> {
        let configs = self.tables.configs();
        let mut keys: Vec<_> = configs
            .map(|(id, config)| {
                (direction_name(config.direction), config.priority, config.position, id.0)
            })
            .collect();
        // As they are asked: one that was updated has a new name and its old place.
        keys.sort_unstable();
        keys.into_iter().map(|(.., name)| name).collect()
    }

    fn policies(&mut self, names: &[u64]) -> Vec<Policy> {
        let one = |name: &u64| {
            let id = PolicyId(*name);
            self.one_policy(id, self.tables.policy_of(id)?)
        };
        names.iter().filter_map(one).collect()
    }

    fn ports(&mut self) -> Vec<Port> {
        let counters = self.workers.port_counters(self.ports.iter().count());
        self.ports.iter().zip(&counters).map(|(port, sums)| self.one_port(port, sums)).collect()
    }

    fn workers(&mut self) -> Vec<Worker> {
        let counters = self.workers.counters().enumerate();
        counters
            .map(|(number, (core, now))| Worker {
                worker: number as u32,
                core: core as u32,
                busy_share: self.rates.busy_share(number),
                packets: now.received,
                turns: now.turns,
                batch_average: now.received as f64 / now.busy_turns.max(1) as f64,
                sleeps: now.sleeps,
                own_sa_packets: now.own_sa,
                fallback_sa_packets: now.fallback_sa,
                followed_packets: now.followed,
            })
            .collect()
    }

    fn drops(&mut self) -> Vec<DropCount> {
        let counts = rates::verdicts(self.workers.counters().map(|(_, counters)| counters));
        Verdict::ALL
            .iter()
            .enumerate()
            .map(|(index, verdict)| DropCount {
                name: verdict.name().to_owned(),
                count: counts[index],
                per_s: self.rates.per_s(index),
                loss: verdict.outcome() == Outcome::Dropped,
                description: verdict.description().to_owned(),
                linux_name: verdict.linux().map(str::to_owned),
            })
            .collect()
    }

    fn routes(&mut self) -> Vec<Route> {
        let mut routes = self.kernel.selected_routes();
        let vrfs = self.network.vrf_tables().flat_map(|table| self.kernel.routes_in(table));
        routes.extend(vrfs);
        routes.sort_by_key(|route| {
            (matches!(route.table, Table::Other(_)), route.table, route.prefix)
        });
        routes.into_iter().map(|route| self.one_route(route)).collect()
    }

    fn neighbours(&mut self) -> Vec<Neighbour> {
        let mut neighbours: Vec<_> = self.kernel.neighbours().collect();
        neighbours.sort_by_key(|neighbour| (neighbour.ifindex, neighbour.address));
        neighbours
            .into_iter()
            .map(|neighbour| Neighbour {
                address: neighbour.address,
                interface: self
                    .kernel
                    .link(neighbour.ifindex)
                    .map_or_else(String::new, |link| link.name.clone()),
                mac: neighbour.mac.map(|mac| mac.to_string()),
                state: neighbour.state.name().to_owned(),
                usable: self.network.port(neighbour.ifindex).is_some_and(|port| {
                    self.current.neighbours.mac(port, neighbour.address).is_some()
                }),
            })
            .collect()
    }

    fn status(&mut self) -> Status {
        let counters: Vec<_> = self.workers.counters().map(|(_, counters)| counters).collect();
        Status {
            name: self.config.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs(),
            epoch: self.epoch,
            engine: self.engine.version(),
            cores: self.config.cores.iter().map(|core| *core as u32).collect(),
            ports: self.ports.iter().count() as u32,
            sas: self.tables.sizes().0 as u64,
            policies: self.tables.sizes().1 as u64,
            default_actions: self.default_actions(),
            routes: self.kernel.route_count() as u64,
            neighbours: self.kernel.neighbours().count() as u64,
            route_feed: self.feed,
            received_packets: counters.iter().map(|one| one.received).sum(),
            accounted_packets: counters.iter().map(|one| one.decided()).sum(),
            guard: "the XDP programs stay and drop what is for the workers, and the kernel blocks \
                    what is protected"
                .to_owned(),
            journal: self.journal_words(),
            restored: self.restored.clone(),
            upgrade_refused: self.upgrade_refused.clone(),
            host: self.host_device(),
        }
    }

    fn upgrade(&mut self, wanted: api::Upgrade) -> Result<String, String> {
        let Some(Health { directory, broken: None, .. }) = &self.journal else {
            let journal = self.journal_words();
            return Err(format!("there is no journal that SAs could go on from: {journal}"));
        };
        let place = Place::held(self.config, directory);
        let same = |error| format!("the kernel does not say where this binary is: {error}");
        let binary = wanted.binary.map_or_else(|| upgrade::same_path().map_err(same), Ok)?;
        upgrade::check(&binary, &place)?;
        let path = binary.display().to_string();
        *self.upgrade_refused = None;
        *self.successor = Some(binary);
        Ok(path)
    }
}

impl View<'_> {
    fn default_actions(&self) -> api::DefaultActions {
        let name = |action| match action {
            default_action::BLOCK => "block".to_owned(),
            _ => "accept".to_owned(),
        };
        let Defaults { input, forward, output } = self.server.defaults();
        api::DefaultActions { input: name(input), forward: name(forward), output: name(output) }
    }

    /// What becomes of SAs and policies when the gateway dies.
    fn journal_words(&self) -> String {
        match (&self.journal, &self.restored.off) {
            (Some(Health { broken: Some(reason), .. }), _) => {
                format!("broken ({reason}): what is installed ends with this process")
            }
            (Some(health), _) => {
                format!("{} ({} KiB)", health.directory.display(), health.bytes.div_ceil(1024))
            }
            (None, Some(reason)) => format!("off: {reason}"),
            (None, None) => "off".to_owned(),
        }
    }
}

/// Value and mask of a mark that says anything.
fn mark_words(mark: Mark) -> Option<(u32, u32)> {
    (mark != Mark::default()).then_some((mark.v, mark.m))
}

fn protocol_name(protocol: u8) -> String {
    use wire::xfrm::number::{IPPROTO_AH, IPPROTO_COMP, IPPROTO_ESP};
    match protocol {
        IPPROTO_ESP => "esp".to_owned(),
        IPPROTO_AH => "ah".to_owned(),
        IPPROTO_COMP => "comp".to_owned(),
        other => other.to_string(),
    }
}

fn mode_name(wire: u8) -> String {
    use wire::xfrm::number::mode;
    match wire {
        mode::TRANSPORT => "transport".to_owned(),
        mode::TUNNEL => "tunnel".to_owned(),
        mode::BEET => "beet".to_owned(),
        mode::IPTFS => "iptfs".to_owned(),
        other => other.to_string(),
    }
}
