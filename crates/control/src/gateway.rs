//! One gateway: everything assembled, and the loop that keeps it.
//!
//! [`Gateway::start`] takes the machine step by step, in an order in which giving up leaves it as it
//! was; [`Gateway::serve`] is the control thread's loop; [`Gateway::stop`] gives the machine back.
//! A gateway that ends any other way fails closed: its XDP programs stay on the interfaces and
//! drop what is for the workers, the kernel goes on blocking what was protected, and the guard's
//! file remembers it.
//!
//! It decides nothing about packets (`dataplane`), requests (`xfrm`) or routes (`route_feed`).

mod attention;
mod backstop;
mod candidates;
mod cpus;
mod departed;
mod encapsulation;
mod facts;
mod forwarding;
mod group_devices;
mod groups;
mod guard;
mod host;
mod kernel_policy;
mod lasting;
mod launch;
mod lifetimes;
mod network;
mod patience;
mod ports;
mod rates;
mod rtnetlink;
pub mod ruler;
mod short;
mod slots;
mod tables;
mod translate;
mod tunnels;
mod upgrade;
mod vrfs;
mod workers;

use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use crypto::{Engine, EngineError};
use dataplane::clock::{Clock, unix_now};
use dataplane::event::{self, Event};
use dataplane::nonce::NonceSpace;
use dataplane::view::{Publisher, View};
use thiserror::Error;
use tracing::{error, info, warn};
use wire::xfrm::number::group;
use xsk::XskError;

use self::attention::Attention;
use self::backstop::Backstop;
use self::forwarding::Forwarding;
use self::group_devices::GroupDevices;
use self::guard::Guard;
use self::host::Host;
use self::lasting::{Found, Recalled, claim_epochs};
pub use self::launch::check;
use self::launch::{Launch, fit_machine, listen, time_start};
use self::network::Network;
use self::ports::Ports;
use self::rates::Rates;
use self::tables::Tables;
pub use self::upgrade::Place;
use self::workers::{Workers, WorkersError};
use crate::api;
use crate::config::{Config, ConfigError, owner_of};
use crate::instance::{Instance, InstanceError};
use crate::route_feed::{FeedError, RouteFeed};
use crate::signal::StopSignals;
use crate::xfrm::{Backend, Clients, Delivery, Flow, Mapping, SaId, Server, Settings, SocketError};

/// How often neighbours in use are confirmed. The kernel forgets a stale neighbour that it does not
/// use itself after a minute at the earliest (`gc_stale_time`).
const REFRESH: Duration = Duration::from_secs(10);

/// Blocks of IVs that must be left for workers that use up their own.
const BLOCKS_MIN: u64 = 1024;

/// Why a gateway cannot start, or must end.
#[derive(Debug, Error)]
pub enum GatewayError {
    /// The configuration is not fit, or not fit for this machine.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The instance's name or directories cannot be had.
    #[error(transparent)]
    Instance(#[from] InstanceError),
    /// No engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A port.
    #[error(transparent)]
    Port(#[from] XskError),
    /// A worker.
    #[error(transparent)]
    Workers(#[from] WorkersError),
    /// The kernel's tables.
    #[error(transparent)]
    Feed(#[from] FeedError),
    /// The XFRM socket.
    #[error(transparent)]
    Xfrm(#[from] SocketError),
    /// Something else of the system's.
    #[error("cannot {doing}: {source}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// Why not.
        source: io::Error,
    },
}

fn system(doing: &'static str) -> impl FnOnce(io::Error) -> GatewayError {
    move |source| GatewayError::System { doing, source }
}

/// What a gateway is once it runs, in a line for people.
#[derive(Debug, Clone)]
pub struct Summary {
    /// The instance.
    pub name: String,
    /// Engine and version.
    pub engine: String,
    /// Cores that run workers.
    pub cores: Vec<usize>,
    /// Ports with the mode of their XDP program.
    pub ports: Vec<(String, &'static str)>,
    /// The epoch of this run's IVs.
    pub epoch: u16,
}

/// A running gateway.
pub struct Gateway {
    config: Config,
    started: Instant,
    engine: Engine,
    epoch: u16,
    clock: Clock,
    server: Server,
    restored: api::Restored,
    successor: Option<PathBuf>,
    upgrade_refused: Option<String>,
    clients: Clients,
    api: api::Server,
    rates: Rates,
    feed: RouteFeed,
    network: Network,
    forwarding: Forwarding,
    nonces: std::sync::Arc<NonceSpace>,
    /// The next epoch could not be claimed when it was tried last.
    epoch_overdue: bool,
    events: Receiver<Event>,
    workers: Workers,
    refreshed: Instant,
    attention: Attention,
    /// When lifetimes were looked at last, in seconds since 1970.
    expired_at: u64,
    // The run directory is given back last.
    instance: Instance,
}

impl Gateway {
    /// Starts a gateway. On an error the machine is as it was.
    ///
    /// # Errors
    ///
    /// [`GatewayError`]: what is wrong, or cannot be had.
    pub fn start(config: Config) -> Result<Gateway, GatewayError> {
        let began = Instant::now();
        // 1. See that it can work here, changing nothing.
        let (machine, engine) = fit_machine(&config)?;
        let sizes = config.sizes(&machine)?;
        // 2. Take the name, and with it the epoch and what an earlier run left protected.
        let instance = Instance::hold(&config.control.run_dir, &config.name)?;
        let backstop = Backstop::open(owner_of(&config.name)).unwrap_or_else(|error| {
            warn!(%error, "the kernel has no XFRM: without its XDP programs it forwards in clear");
            Backstop::absent()
        });
        let (guard, left) =
            Guard::open(instance.directory(), backstop).map_err(system("open the guard's file"))?;
        let found = Found::read(&config, &instance);
        let (nonces, epoch, lasting) = claim_epochs(&config, found)?;
        // 3. What the kernel knows.
        let feed = RouteFeed::open()?;
        let clock = Clock;
        let mut ports = Ports::load(&config, feed.kernel())?;
        let mut network = Network::of(&config, ports.ifindexes().collect());
        let mut view = View::default();
        network.fill(feed.kernel(), &mut view);
        ports.follow_addresses(feed.kernel())?;
        let fresh = left.is_empty();
        let tables = Tables::new(engine, nonces.clone(), clock, guard, &left, &mut view)
            .with_cores(&config.cores)
            .with_shared_if_ids(network.shared_if_ids());
        let settings = Settings { cpus: crate::cpu::possible(), ..Settings::default() };
        let Recalled { server, tables, journal, mut restored } =
            lasting.recall(Server::new(settings), tables, &mut view)?;
        // 4. Sockets for programs, then workers, then packets.
        let (clients, api) = listen(&instance)?;
        let publisher = Publisher::new(view.clone());
        let (sender, events) = event::channel();
        let launch = Launch {
            config: &config,
            sizes: &sizes,
            publisher: &publisher,
            events: &sender,
            clock,
            kernel: feed.kernel(),
            fresh,
        };
        let (workers, devices) = launch.go(&mut ports, &view)?;
        let forwarding = Forwarding::new(tables, ports, view, publisher, journal).with(devices);
        let now = time_start(&mut restored, began, &clock);
        Ok(Gateway {
            started: now,
            refreshed: now,
            attention: Attention::new(),
            expired_at: 0,
            server,
            restored,
            successor: None,
            upgrade_refused: None,
            rates: Rates::new(now),
            config,
            engine,
            epoch,
            clock,
            clients,
            api,
            feed,
            network,
            forwarding,
            nonces,
            epoch_overdue: false,
            events,
            workers,
            instance,
        })
    }

    /// What it is.
    pub fn summary(&self) -> Summary {
        Summary {
            name: self.instance.name().to_owned(),
            engine: self.engine.version(),
            cores: self.config.cores.clone(),
            ports: self.forwarding.ports.modes().collect(),
            epoch: self.epoch,
        }
    }

    /// Serves until a stop signal comes.
    ///
    /// # Errors
    /// What cannot be gone on from. The caller must end the process without [`Gateway::stop`], so
    /// that it fails closed.
    pub fn serve(&mut self, signals: &mut StopSignals) -> Result<(), GatewayError> {
        let mut changes = Vec::new();
        let waiting = "wait for requests";
        let (feed, api) = (self.feed.as_fd(), self.api.as_fd());
        Attention::gather(&self.clients, feed, api, signals.as_fd()).map_err(system(waiting))?;
        loop {
            let has_more = self.expires_more();
            let ready =
                self.attention.wait(&mut self.clients, has_more).map_err(system(waiting))?;
            if ready.signals && signals.take() != 0 {
                return Ok(());
            }
            let now = unix_now();
            // News of the kernel. First: an IKE daemon that installs a virtual IP and then the policy
            // for it shall find the address known.
            if ready.feed {
                changes.clear();
                self.feed.poll(&mut changes)?;
                self.apply_network(&changes);
            }
            // Requests of IKE daemons and `ip xfrm`, each in force before it is answered.
            self.clients.on_ready(&mut self.server, &mut self.forwarding, now);
            let heard = self.server.is_heard(group::ACQUIRE);
            self.forwarding
                .update(|view| std::mem::replace(&mut view.acquire_is_heard, heard) != heard);
            self.expire(now);
            self.forwarding.end_departures();
            self.hear_workers(now);
            let counters = self.workers.counters().map(|(_, counters)| counters);
            self.rates.follow(Instant::now(), counters);
            if ready.api {
                self.answer_questions()?;
            }
            if let Some(binary) = self.successor.take() {
                self.give_way(&binary)?;
            }
            self.refresh_neighbours();
            self.forwarding.turn(&self.server);
            self.replenish_nonces();
            self.workers.check()?;
            if let Some(error) = self.forwarding.take_failure() {
                return Err(system("record what is protected")(error));
            }
        }
    }

    /// Gives the machine back: the kernel forwards again, nothing is left behind.
    ///
    /// # Errors
    ///
    /// [`GatewayError::System`]: the first thing that could not be given back or removed; everything else has been.
    pub fn stop(mut self) -> Result<(), GatewayError> {
        self.forwarding.ports.detach();
        let host = self.forwarding.host.take().map_or(Ok(()), Host::end);
        let groups = self.forwarding.groups.take().map_or(Ok(()), GroupDevices::end);
        self.workers.stop();
        let rest = self.forwarding.end();
        host.map_err(system("give the host's traffic back to the kernel"))
            .and(groups.map_err(system("remove the devices of groups of tunnels")))
            .and(rest.map_err(system("remove the guard's file and the journal")))
    }

    /// Brings into force what a timer or the data plane changed, and tells who listens.
    fn announce(&mut self, deliveries: Vec<Delivery>) {
        // What failed is kept, and ends the gateway in this very turn.
        let _ = !self.server.has_changes() || self.forwarding.commit(&mut self.server);
        self.clients.deliver(deliveries, &self.server, &self.forwarding);
    }

    /// Brings what the kernel changed into the view and the steering programs.
    fn apply_network(&mut self, changes: &[crate::route_feed::Change]) {
        let stale = self.forwarding.follow_network(&mut self.network, self.feed.kernel(), changes);
        if stale.local {
            self.forwarding.follow_addresses(self.feed.kernel());
        }
        if stale.ports {
            self.forwarding.follow_links(self.feed.kernel());
        }
    }

    /// What workers ask for and tell: neighbours of the kernel, SAs of whoever listens for ACQUIRE,
    /// limits of SAs, peers that moved.
    fn hear_workers(&mut self, now: u64) {
        for event in event::take_waiting(&self.events) {
            match event {
                Event::NeighbourNeeded { port, address } => self.solicit(port, address),
                Event::SaNeeded { policy, flow, cpu } => {
                    let Some(id) = self.server.policy_of_index(policy) else { continue };
                    let flow = Flow {
                        addresses: (flow.src, flow.dst),
                        protocol: flow.protocol,
                        ports: (flow.src_port, flow.dst_port),
                        cpu,
                    };
                    let acquire = self.server.acquire(id, &flow, now, &self.forwarding);
                    self.announce(acquire);
                }
                Event::LimitReached { token } => {
                    let expired = self.server.limit_reached(SaId(token), &self.forwarding);
                    self.announce(expired);
                }
                Event::MappingChanged { spi, destination, source, source_port } => {
                    let mapping = Mapping { spi, destination, source, port: source_port };
                    let news = self.server.mapping_changed(&mapping, now);
                    self.announce(news);
                }
            }
        }
    }

    fn solicit(&mut self, port: u16, address: std::net::IpAddr) {
        if let Some(ifindex) = self.network.ifindex(port)
            && let Err(error) = self.feed.solicit(ifindex, address)
        {
            info!(%address, %error, "the kernel was not asked for a neighbour");
        }
    }

    /// Has the kernel confirm the neighbours that packets went to lately.
    fn refresh_neighbours(&mut self) {
        if self.refreshed.elapsed() < REFRESH {
            return;
        }
        self.refreshed = Instant::now();
        let used: Vec<_> = self.forwarding.view().neighbours.take_used().collect();
        for (port, address) in used {
            self.solicit(port, address);
        }
    }

    /// Claims the next epoch ahead of time. What cannot be claimed now is tried again: workers have
    /// IVs for a long time yet, and a full disk must not end a gateway that can go on.
    fn replenish_nonces(&mut self) {
        let result = self.nonces.replenish(BLOCKS_MIN);
        if let Err(error) = &result
            && !self.epoch_overdue
        {
            let blocks = self.nonces.blocks_left();
            error!(%error, blocks, "no new epoch: once its IVs are used up, no SA seals any more");
        }
        self.epoch_overdue = result.is_err();
        self.forwarding.set_epoch(self.nonces.epoch());
    }

    fn answer_questions(&mut self) -> Result<(), GatewayError> {
        let mut facts = facts::View {
            config: &self.config,
            started: self.started,
            engine: self.engine,
            epoch: self.epoch,
            clock: self.clock,
            server: &self.server,
            tables: &self.forwarding.tables,
            host: self.forwarding.host.as_ref(),
            kernel: self.feed.kernel(),
            feed: self.feed.counters(),
            current: self.forwarding.view(),
            network: &self.network,
            ports: &self.forwarding.ports,
            workers: &self.workers,
            rates: &self.rates,
            restored: &self.restored,
            successor: &mut self.successor,
            upgrade_refused: &mut self.upgrade_refused,
            journal: self.forwarding.journal(),
        };
        self.api.serve(&mut facts, Instant::now()).map_err(system("serve the control socket"))
    }
}
