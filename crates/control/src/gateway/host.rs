//! The host's own traffic: what leads it to the data plane, and what keeps it from going past.
//!
//! ```text
//!   socket ─► rules ─┬─ from an IKE port, or an address that no policy covers ─► the kernel's routes
//!                    └─ else our table ─┬─ a protected destination ─► device ─► data plane
//!                                       └─ any other ─► the kernel's routes
//! ```
//!
//! The device is a TUN of the instance, a queue for each worker (`xsk::TunPort`). A table of the
//! instance has a route to it for every destination of a policy that packets of this host can meet
//! (`model`), written in batches (`rtnetlink`); policies of the kernel keep such packets from leaving
//! in clear by another way (`shield`). All of that outlives a gateway that is killed, so that the
//! host's packets die where they would go, and the next run takes it over. A clean stop removes it.
//!
//! What happens to a packet the data plane decides; this module only sees that it gets there. It
//! writes nothing that `route_feed` follows.

mod device;
mod model;
mod place;
mod shield;

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::IpAddr;

use dataplane::prefix::{Family, Prefix};
use tracing::warn;

pub use self::device::{mtu_of, remove_device, settle_device};
use self::model::{Model, News};
use self::place::{Note, Place};
use self::shield::Shield;
use super::rtnetlink::{Act, OUR_PROTOCOL, Of, Route, Rule, Way, Writer};
use super::tables::{InstalledPolicy, Tables};
use crate::config::{Config, HostConfig, owner_of};
use crate::route_feed::Kernel;
use crate::xfrm::Change;

/// The metric of our routes: programs that read all tables, as charon does to find the way to a peer,
/// prefer any other route for the same prefix.
const METRIC: u32 = 32_000;
/// The metric of what holds a destination should somebody remove the device.
pub(super) const METRIC_HELD: u32 = 64_000;

/// Everything that leads the host's packets to the data plane.
pub struct Host {
    config: HostConfig,
    device: String,
    index: u32,
    mtu: u32,
    mtu_max: u32,
    writer: Writer,
    shield: Shield,
    model: Model,
    /// Destinations routed to the device, by this run or an earlier one.
    routes: HashMap<Prefix, Option<IpAddr>>,
    /// Those of them that the kernel may have refused to lead there, so that nothing but the hold is in its
    /// table: it takes no IPv6 address for a source as long as that is tentative.
    refused: HashSet<Prefix>,
    rules: HashSet<Rule>,
    note: Note,
    /// Destinations of an earlier run that no policy of this one has claimed yet.
    left: HashSet<Prefix>,
    /// The addresses that the earlier run led past the table. As long as something is left, no others
    /// are: which of them the missing policies cover is not known.
    exempt_before: HashSet<IpAddr>,
}

/// What `show` says of it.
#[derive(Clone, Debug)]
pub struct HostSummary {
    /// The device.
    pub device: String,
    /// Its MTU.
    pub mtu: u32,
    /// The routing table.
    pub table: u32,
    /// Routes to the device.
    pub routes: usize,
    /// Blocks in the kernel.
    pub blocks: usize,
}

impl Host {
    /// Sets up the device, whose queues are open, and takes over what an earlier run left.
    ///
    /// # Errors
    /// The kernel refuses something, or the table or its priorities are in use.
    pub fn open(config: &Config, ports: &[u32], kernel: &Kernel) -> io::Result<Host> {
        let mtu_max = config.device_mtu_max();
        let Config { host: config, name, control, .. } = config;
        let device = config.device_of(name);
        settle_device(&device)?;
        let mut writer = Writer::open()?;
        let index = writer.index_of(&device)?;
        let mtu = mtu_of(config.mtu, mtu_max, ports, kernel);
        writer.set_link(index, mtu)?;
        let mut host = Host {
            config: config.clone(),
            device,
            index,
            mtu,
            mtu_max,
            writer,
            shield: Shield::open(owner_of(name), ports.to_vec(), &config.ike_ports)?,
            model: Model::default(),
            routes: HashMap::new(),
            refused: HashSet::new(),
            rules: HashSet::new(),
            note: Note::of(&control.run_dir.join(name)),
            left: HashSet::new(),
            exempt_before: HashSet::new(),
        };
        host.adopt()?;
        let addresses = kernel.addresses().map(|one| one.address);
        host.model.set_locals(addresses, std::iter::empty());
        host.model.take_news();
        host.write_rules()?;
        if let Err(error) = host.note.write(Place::of(&host.config)) {
            warn!(%error, "after a crash, a start with another table or priority will be refused");
        }
        Ok(host)
    }

    /// Whether the table is this instance's to use. Nothing is changed.
    ///
    /// # Errors
    /// It is not, or the kernel does not say.
    pub fn check(config: &Config) -> io::Result<()> {
        let Config { host: config, name, .. } = config;
        let mut writer = Writer::open()?;
        let index = writer.index_of(&config.device_of(name)).ok();
        match writer.routes(config.table)?.iter().any(|route| is_of_others(route, index)) {
            true => Err(in_use(config.table)),
            false => Ok(()),
        }
    }

    /// What it is, for people.
    pub fn summary(&self) -> HostSummary {
        HostSummary {
            device: self.device.clone(),
            mtu: self.mtu,
            table: self.config.table,
            routes: self.routes.len(),
            blocks: self.shield.len(),
        }
    }

    /// Follows policies, which the workers know already. What the kernel refuses is told and not
    /// followed: no tunnel depends on it.
    pub fn follow(&mut self, changes: &[Change], tables: &Tables) {
        for change in changes {
            match change {
                Change::PolicyInstalled(record) => match tables.policy_of(record.id) {
                    Some(InstalledPolicy { policy: Some(policy), .. }) => {
                        self.model.install(record.id, &policy.config());
                    }
                    _ => self.model.remove(record.id),
                },
                Change::PolicyRemoved(id) => self.model.remove(*id),
                _ => {}
            }
        }
        self.write();
    }

    /// Follows all policies that are there already.
    pub fn follow_all(&mut self, tables: &Tables) {
        tables.configs().for_each(|(id, policy)| self.model.install(id, &policy));
        self.write();
    }

    /// Follows the host's addresses.
    pub fn follow_addresses(&mut self, kernel: &Kernel, tables: &Tables) {
        let addresses: HashSet<IpAddr> = kernel.addresses().map(|one| one.address).collect();
        // The kernel has removed the routes that prefer an address which is gone.
        let prefers_gone = |source: &mut Option<IpAddr>| {
            source.take_if(|address| !addresses.contains(address)).is_some()
        };
        let table = self.config.table;
        for (prefix, source) in &mut self.routes {
            if prefers_gone(source) {
                let way = Way::Device(self.index, None);
                let _ = self.writer.add_route(table, &our_route(*prefix, way));
            }
        }
        self.model.set_locals(addresses.into_iter(), tables.configs());
        self.write();
    }

    /// Follows the ports' interfaces.
    pub fn follow_ports(&mut self, ports: &[u32], kernel: &Kernel) {
        let mtu = mtu_of(self.config.mtu, self.mtu_max, ports, kernel);
        if mtu != self.mtu {
            self.mtu = mtu;
            self.tell("set the device's MTU", |host| host.writer.set_link(host.index, mtu));
        }
        let model = &self.model;
        let result = self.shield.set_ports(ports.to_vec(), model.blocked());
        self.tell("block clear packets", |_| result);
    }

    /// Gives everything back.
    ///
    /// # Errors
    /// The first refusal. Everything else is given back all the same.
    pub fn end(mut self) -> io::Result<()> {
        let rules = rules_in_order(&self.rules).into_iter().rev();
        let ended = for_each(rules, |rule| self.writer.delete_rule(&rule));
        let table = self.config.table;
        let routes = std::mem::take(&mut self.routes).into_keys();
        ended
            .and(for_each(routes, |prefix| self.remove_route(prefix)))
            .and(self.writer.delete_route(table, &multicast()))
            .and(self.writer.flush())
            .and(self.shield.end())
            .and(self.writer.delete_link(self.index))
            .and_then(|()| self.note.remove())
    }

    /// Takes over the routes and rules of an earlier run, which hold what it protected.
    fn adopt(&mut self) -> io::Result<()> {
        let table = self.config.table;
        for route in self.writer.routes(table)? {
            if is_of_others(&route, Some(self.index)) {
                return Err(in_use(table));
            }
            match route.way {
                Way::Device(_, source) => {
                    self.routes.insert(route.prefix, source);
                }
                Way::Blackhole => {
                    self.routes.entry(route.prefix).or_insert(None);
                }
                Way::Gateway(..) | Way::Throw => {}
            }
        }
        let rules = self.writer.rules()?;
        let (place, noted) = (Place::of(&self.config), self.note.read());
        place.check(noted, &rules)?;
        self.rules = rules.into_iter().filter(|rule| place.has(rule)).collect();
        self.left = self.routes.keys().copied().collect();
        // The device may have been made anew: what only a blackhole held is led there again.
        for (prefix, source) in self.routes.clone() {
            self.put_route(prefix, source)?;
        }
        self.writer.add_route(table, &multicast())?;
        self.writer.flush()?;
        let source = |rule: &Rule| match rule.of {
            Of::Source(address) => Some(address),
            _ => None,
        };
        self.exempt_before = self.rules.iter().filter_map(source).collect();
        Ok(())
    }

    /// Brings the kernel in line with the model.
    fn write(&mut self) {
        let News { destinations, selectors, exempt } = self.model.take_news();
        if destinations.is_empty() && selectors.is_empty() && !exempt {
            return;
        }
        for selector in &selectors {
            let blocked = self.model.blocks(selector);
            self.tell("block clear packets", |host| host.shield.set(selector, blocked));
        }
        self.tell("block clear packets", |host| host.shield.flush());
        let had_left = !self.left.is_empty();
        self.left.retain(|prefix| !destinations.contains(prefix));
        let none_left = had_left && self.left.is_empty();
        self.tell("write routes", |host| host.write_routes(destinations));
        if exempt || none_left {
            self.tell("write rules", Host::write_rules);
        }
    }

    fn tell(&mut self, doing: &'static str, what: impl FnOnce(&mut Host) -> io::Result<()>) {
        if let Err(error) = what(self) {
            let device = &self.device;
            warn!(%error, device, "the host's traffic: the kernel refused to {doing}");
        }
    }

    /// Offers the kernel again what it refused: an address has news, and may be one that routes prefer.
    pub fn retry(&mut self) {
        let refused = self.refused.clone();
        if refused.is_empty() || self.write_routes(refused).is_ok() {
            return;
        }
        for prefix in self.refused.clone() {
            // It was told when it was refused first.
            let _ = self.write_routes(HashSet::from([prefix]));
        }
    }

    /// Writes what is wanted of destinations. Which of many was refused is not known afterwards.
    fn write_routes(&mut self, destinations: HashSet<Prefix>) -> io::Result<()> {
        let written = for_each(&destinations, |prefix| self.write_route(*prefix));
        let written = written.and(self.writer.flush());
        if written.is_err() {
            let routes = &self.routes;
            self.refused.extend(destinations.iter().filter(|prefix| routes.contains_key(prefix)));
        }
        written
    }

    fn write_route(&mut self, prefix: Prefix) -> io::Result<()> {
        let was_refused = self.refused.remove(&prefix);
        match (self.model.route(&prefix), self.routes.get(&prefix)) {
            (Some(wanted), Some(known)) if wanted == *known && !was_refused => Ok(()),
            (Some(wanted), _) => {
                self.routes.insert(prefix, wanted);
                self.put_route(prefix, wanted)
            }
            (None, Some(_)) => {
                self.routes.remove(&prefix);
                self.remove_route(prefix)
            }
            (None, None) => Ok(()),
        }
    }

    fn put_route(&mut self, prefix: Prefix, source: Option<IpAddr>) -> io::Result<()> {
        let table = self.config.table;
        for_each(self.routes_to(prefix, source), |route| self.writer.add_route(table, &route))
    }

    fn remove_route(&mut self, prefix: Prefix) -> io::Result<()> {
        let table = self.config.table;
        for_each(self.routes_to(prefix, None), |route| self.writer.delete_route(table, &route))
    }

    /// What leads a destination to the device, and what holds it.
    fn routes_to(&self, prefix: Prefix, source: Option<IpAddr>) -> [Route; 2] {
        [Way::Device(self.index, source), Way::Blackhole].map(|way| our_route(prefix, way))
    }

    fn write_rules(&mut self) -> io::Result<()> {
        let wanted = self.wanted_rules();
        let (added, removed) = (&wanted - &self.rules, &self.rules - &wanted);
        // The place to go to first, the way into the table last: nobody is led astray meanwhile.
        for rule in rules_in_order(&added) {
            self.writer.add_rule(&rule)?;
        }
        for rule in &removed {
            self.writer.delete_rule(rule)?;
        }
        self.rules = wanted;
        self.writer.flush()
    }

    fn wanted_rules(&self) -> HashSet<Rule> {
        let HostConfig { priority, table, .. } = self.config;
        let end = priority + 3;
        let mut rules = HashSet::new();
        for family in [Family::V4, Family::V6] {
            let rule = |place, of, action| Rule { family, priority: priority + place, of, action };
            rules.insert(rule(3, Of::Nobody, Act::Nop));
            rules.insert(rule(2, Of::Host, Act::Lookup(table)));
            let exempt = self.model.exempt().into_iter();
            let may_pass = |address: &IpAddr| {
                Family::of(*address) == family
                    && (self.left.is_empty() || self.exempt_before.contains(address))
            };
            let exempt = exempt.filter(may_pass);
            rules.extend(exempt.map(|address| rule(1, Of::Source(address), Act::Goto(end))));
            let ports = self.config.ike_ports.iter();
            rules.extend(ports.map(|port| rule(0, Of::Port(*port), Act::Goto(end))));
        }
        rules
    }
}

/// Writes all of something, also behind one that is refused; the first refusal. A full batch is sent before the next is put, and what
/// was refused is then mostly another one.
pub(super) fn for_each<T>(
    all: impl IntoIterator<Item = T>,
    mut write: impl FnMut(T) -> io::Result<()>,
) -> io::Result<()> {
    let mut written = Ok(());
    for one in all {
        written = written.and(write(one));
    }
    written
}

/// Rules in the order in which they are added; they are removed the other way round.
fn rules_in_order(rules: &HashSet<Rule>) -> Vec<Rule> {
    let mut rules: Vec<Rule> = rules.iter().copied().collect();
    rules.sort_by_key(|rule| match rule.action {
        Act::Nop => 0,
        Act::Goto(_) => 1,
        Act::Lookup(_) => 2,
    });
    rules
}

fn our_route(prefix: Prefix, way: Way) -> Route {
    let metric = if way == Way::Blackhole { METRIC_HELD } else { METRIC };
    Route { prefix, metric, way, protocol: OUR_PROTOCOL }
}

/// IPv4 multicast stays with the kernel, whatever the policies: OSPF and VRRP speak on their link. For
/// IPv6 the kernel's local table sees to that.
fn multicast() -> Route {
    let prefix = Prefix::new([224, 0, 0, 0].into(), 4);
    our_route(prefix.unwrap_or(Prefix::any(Family::V4)), Way::Throw)
}

/// Whether a route of our table is not this instance's, whose device has this index, if there is one.
fn is_of_others(route: &Route, index: Option<u32>) -> bool {
    let leads_elsewhere = match route.way {
        Way::Device(to, _) => Some(to) != index,
        Way::Gateway(..) => true,
        Way::Blackhole | Way::Throw => false,
    };
    route.protocol != OUR_PROTOCOL || leads_elsewhere
}

fn in_use(table: u32) -> io::Error {
    let text = format!(
        "routing table {table} has routes of others; choose another with `table` in [host]"
    );
    io::Error::new(io::ErrorKind::AddrInUse, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_behind_a_refusal_is_written_as_well() {
        let mut written = Vec::new();
        let refused = for_each(1..=5, |n| {
            written.push(n);
            if n % 2 == 0 { Err(io::Error::from_raw_os_error(n)) } else { Ok(()) }
        });
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(2));
        assert_eq!(written, [1, 2, 3, 4, 5]);
        assert!(for_each(0..0, |_| Err(io::ErrorKind::Other.into())).is_ok());
    }
}
