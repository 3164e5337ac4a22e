//! What workers forward by, and how it changes: tables, the view made of them, and its publication.
//!
//! A program that installs an SA or a policy is answered when the change is in force: the XFRM
//! server's socket layer hands changes over before it answers ([`Backend::commit`]), and they are
//! published here at once. Workers take the new view at their next turn. The steering programs are told
//! with it which packets are for workers.

use std::io;
use std::time::{Duration, Instant};

use dataplane::view::{Publisher, View};
use tracing::warn;

use super::group_devices::GroupDevices;
use super::host::Host;
use super::launch::Devices;
use super::network::{Network, Stale};
use super::ports::Ports;
use super::tables::Tables;
use crate::journal::{Health, Journal};
use crate::route_feed::{Change as NetworkChange, Kernel};
use crate::xfrm::{Backend, Change, Counters, PolicyCounters, PolicyId, SaCounters, SaId, Server};

/// How long after a change the tables are settled: ten times a second at most, which costs some ten
/// microseconds each, and soon enough that what settling saves packets is saved.
const SETTLE_AFTER: Duration = Duration::from_millis(100);

/// How long workers may take to let go of an SA that goes on with other numbers. A turn takes some microseconds; one
/// that is kept from its core has no packet in hand that it would count after that long.
const PARTING_MAX: Duration = Duration::from_secs(1);
/// Between two looks at them.
const PARTING_STEP: Duration = Duration::from_micros(50);

/// Tables, view and publisher.
pub struct Forwarding {
    /// SAs and policies.
    pub tables: Tables,
    /// The ports with their programs.
    pub ports: Ports,
    /// The view that was published last, to make the next one from.
    view: View,
    publisher: Publisher,
    /// When the first change came that no settling followed yet.
    unsettled: Option<Instant>,
    /// Where changes are written down; `None`: they end with the process.
    journal: Option<Journal>,
    /// The host's own traffic, unless that is the kernel's.
    pub host: Option<Host>,
    /// The devices of groups of tunnels.
    pub groups: Option<GroupDevices>,
    failure: Option<io::Error>,
}

impl Forwarding {
    /// Begins with a view that was given to the publisher already.
    pub fn new(
        tables: Tables,
        ports: Ports,
        view: View,
        publisher: Publisher,
        journal: Option<Journal>,
    ) -> Forwarding {
        Forwarding {
            tables,
            ports,
            view,
            publisher,
            unsettled: None,
            journal,
            host: None,
            groups: None,
            failure: None,
        }
    }

    /// With the host's own traffic, led by the policies that are there already.
    pub fn with(mut self, devices: Devices) -> Forwarding {
        let Devices { mut host, groups } = devices;
        self.groups = groups;
        if let Some(host) = &mut host {
            host.follow_all(&self.tables);
        }
        self.host = host;
        self
    }

    /// How the journal is.
    pub fn journal(&self) -> Option<Health> {
        self.journal.as_ref().map(Journal::health)
    }

    /// The epoch of IVs that was claimed last.
    pub fn set_epoch(&mut self, epoch: u16) {
        if let Some(journal) = &mut self.journal {
            journal.set_epoch(epoch);
        }
    }

    /// Ends the guard and the journal, each whatever becomes of the other: the gateway stops cleanly.
    pub fn end(self) -> io::Result<()> {
        self.tables.end().and(self.journal.map_or(Ok(()), Journal::end))
    }

    /// The view that was published last.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Changes the view and publishes it, if `change` says that it is different now.
    pub fn update(&mut self, change: impl FnOnce(&mut View) -> bool) {
        if change(&mut self.view) {
            self.publish();
        }
    }

    /// Brings what the kernel changed into the view; what of it is different. Routes may lead into tunnels
    /// that were not there before.
    pub fn follow_network(
        &mut self,
        network: &mut Network,
        kernel: &Kernel,
        changes: &[NetworkChange],
    ) -> Stale {
        let (different, stale) = network.apply(kernel, &mut self.view, changes);
        if stale.routes {
            self.tables.fill_tunnels(&mut self.view);
        }
        let readdressed = |change: &NetworkChange| matches!(change, NetworkChange::AddressAgain(_));
        if let Some(host) = &mut self.host
            && changes.iter().any(readdressed)
        {
            host.retry();
        }
        if different {
            self.publish();
        }
        stale
    }

    /// The addresses of this host, which the view has, have changed.
    pub fn follow_addresses(&mut self, kernel: &Kernel) {
        // An address too many is the host's loss (its packets end as `host_clear`), not the tunnels'.
        if let Err(error) = self.ports.follow_addresses(kernel) {
            warn!(%error, "not every address of this host is known to the steering programs");
        }
        self.tables.relocate(&mut self.view);
        self.publish();
        if let Some(host) = &mut self.host {
            host.follow_addresses(kernel, &self.tables);
        }
    }

    /// The interfaces have changed.
    pub fn follow_links(&mut self, kernel: &Kernel) {
        self.ports.follow_links(kernel);
        let interfaces: Vec<u32> = self.ports.ifindexes().collect();
        if let Some(host) = &mut self.host {
            host.follow_ports(&interfaces, kernel);
        }
        if let Some(groups) = &mut self.groups {
            groups.follow_ports(&interfaces, kernel);
        }
    }

    /// Takes SAs out of force that were kept while they moved.
    pub fn end_departures(&mut self) {
        if self.tables.end_departures(&mut self.view) {
            self.publish();
        }
    }

    /// Frees views that no worker holds any more, and with the last of them the places of SAs that
    /// are gone, as the journal knows since they went. Settles the view that workers do hold, and goes
    /// on with the journal, if there is something to do.
    pub fn turn(&mut self, server: &Server) {
        self.publisher.reclaim();
        if self.unsettled.is_some_and(|since| since.elapsed() >= SETTLE_AFTER) {
            self.update(View::settle);
            self.unsettled = None;
        }
        if self.failure.is_none() {
            self.tables.reclaim();
            if let Some(journal) = &mut self.journal {
                journal.turn(server, &self.tables);
            }
        }
    }

    /// Why changes could not be brought into force, if that ever happened: the gateway must end.
    pub fn take_failure(&mut self) -> Option<io::Error> {
        self.failure.take()
    }

    /// Sees that nobody has the SAs any more whose numbers others are about to go on from.
    fn part(&mut self, changes: &[Change]) {
        if self.tables.part(changes, &mut self.view) {
            self.publish();
            if !is_settled_within(&self.publisher, PARTING_MAX) {
                warn!("an SA is replaced while a worker that stands still may have it");
            }
        }
    }

    fn publish(&mut self) {
        // Changes that failed half-way are in the view: a policy may be gone and its successor not
        // there. Nobody may forward by it in the moment until the gateway ends.
        if self.failure.is_some() {
            return;
        }
        self.view.generation += 1;
        self.publisher.publish(self.view.clone());
        self.ports.follow_esp_ports(&self.view.encapsulation_ports);
        self.unsettled.get_or_insert_with(Instant::now);
    }
}

/// Whether every worker comes to have the current view in this time.
fn is_settled_within(publisher: &Publisher, longest: Duration) -> bool {
    let end = Instant::now() + longest;
    while !publisher.settled() {
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(PARTING_STEP);
    }
    true
}

impl Backend for Forwarding {
    fn commit(&mut self, server: &mut Server) -> bool {
        if self.failure.is_some() {
            return false;
        }
        let changes = server.take_changes();
        self.part(&changes);
        match self.tables.apply(&changes, &mut self.view) {
            Ok(()) => {
                // Before it is in force: no packet may leave by what the next process would not know.
                match &mut self.journal {
                    Some(journal) => journal.commit(server, &self.tables),
                    None => server.forget_touched(),
                }
                if !changes.is_empty() {
                    self.publish();
                    // After the workers know the policy: a packet led to them too early left in clear.
                    if let Some(host) = &mut self.host {
                        host.follow(&changes, &self.tables);
                    }
                }
                true
            }
            Err(error) => {
                self.failure = Some(error);
                false
            }
        }
    }
}

impl Counters for Forwarding {
    fn sa(&self, id: SaId) -> Option<SaCounters> {
        self.tables.sa(id)
    }

    fn traffic(&self, id: SaId) -> Option<SaCounters> {
        self.tables.traffic(id)
    }

    fn policy(&self, id: PolicyId) -> Option<PolicyCounters> {
        self.tables.policy(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::backstop::Backstop;
    use crate::gateway::guard::Guard;
    use crate::xfrm::{Client, Settings};
    use crypto::Engine;
    use dataplane::clock::Clock;
    use dataplane::nonce::NonceSpace;
    use wire::xfrm::Builder;
    use wire::xfrm::netlink::{Header, NLM_F_REQUEST};
    use wire::xfrm::number::default_action::{ACCEPT, BLOCK};
    use wire::xfrm::number::msg;
    use wire::xfrm::policy::UserpolicyDefault;

    #[test]
    fn a_worker_that_has_an_earlier_view_is_waited_for() {
        let mut publisher = Publisher::new(View::default());
        let mut reader = publisher.reader();
        let _ = reader.enter();
        publisher.publish(View::default());
        assert!(!is_settled_within(&publisher, PARTING_STEP), "it has the first one");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                let _ = reader.enter();
            });
            assert!(is_settled_within(&publisher, Duration::from_secs(60)));
        });
    }

    #[test]
    fn what_failed_half_way_is_never_published() {
        let directory = tempfile::tempdir().unwrap();
        let (guard, left) = Guard::open(directory.path(), Backstop::absent()).unwrap();
        let nonces = NonceSpace::new(|| Ok(1)).unwrap();
        let mut view = View::default();
        let tables = Tables::new(Engine::AwsLc, nonces, Clock, guard, &left, &mut view);
        let publisher = Publisher::new(view.clone());
        let mut reader = publisher.reader();
        let mut forwarding = Forwarding::new(tables, Ports::default(), view, publisher, None);
        let mut server = Server::new(Settings::default());
        let mut set = |output, forwarding: &mut Forwarding| {
            let wanted = UserpolicyDefault { input: ACCEPT, forward: ACCEPT, output };
            let header =
                Header { kind: msg::SETDEFAULT, flags: NLM_F_REQUEST, ..Header::default() };
            let mut bytes = Vec::new();
            Builder::new(&mut bytes, header).fixed(&wanted).finish();
            server.handle(&Client::default(), &bytes, 1, &());
            assert!(server.has_changes());
            forwarding.commit(&mut server)
        };
        // The guard has no directory to write to any more.
        drop(directory);
        assert!(!set(BLOCK, &mut forwarding));
        forwarding.update(|_| true);
        assert!(!set(ACCEPT, &mut forwarding));
        assert_eq!(reader.enter().generation, 0);
        assert!(forwarding.take_failure().is_some());
    }
}
