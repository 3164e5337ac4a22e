//! Which routes, rules and blocks the host needs, given policies and addresses. Pure.
//!
//! A policy concerns the host only if one of the host's addresses is in its source selector: no other
//! packet of the host can meet it. Its destinations then are routed to the host's device. That is more
//! than the policy covers (ports, other sources); what is too much the data plane sends in clear.
//! What is too little would leave in clear, so nothing is left out.
//!
//! Policies that no address is in are not kept: a gateway has tens of thousands of them. When the
//! addresses change, all are looked at again.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use dataplane::policy::{Action, Direction, PolicyConfig};
use dataplane::prefix::Prefix;
use dataplane::selector::Selector;

use crate::xfrm::PolicyId;

/// Addresses whose packets are led past the host's table. Each costs a rule, which the kernel walks
/// past for every packet that it sends; beyond these, packets take the way through the data plane,
/// which sends them in clear all the same.
const EXEMPT_MAX: usize = 64;

/// A policy that protects.
#[derive(Clone, Copy, Debug)]
struct Protected {
    priority: u32,
    selector: Selector,
    /// In clear without an SA (`level use`): routed, but not blocked elsewhere.
    optional: bool,
}

/// Policies that an address of the host is in, addresses, and what has to be looked at again.
#[derive(Default)]
pub struct Model {
    policies: HashMap<PolicyId, Protected>,
    /// By destination; the one whose priority comes first says which source is preferred.
    by_destination: HashMap<Prefix, BTreeSet<(u32, PolicyId)>>,
    /// How many policies must be kept from leaving in clear, by selector.
    strict: HashMap<Selector, usize>,
    /// How many policies have this source.
    sources: HashMap<Prefix, usize>,
    /// The host's addresses, and how many of `sources` each is in.
    locals: BTreeMap<IpAddr, usize>,
    news: News,
}

/// What may be different since it was taken last.
#[derive(Default)]
pub struct News {
    /// Destinations.
    pub destinations: HashSet<Prefix>,
    /// Selectors.
    pub selectors: HashSet<Selector>,
    /// The exempt addresses.
    pub exempt: bool,
}

impl Model {
    /// A policy came, or another takes the place of one of the same id.
    pub fn install(&mut self, id: PolicyId, policy: &PolicyConfig) {
        let Action::Protect { template, .. } = policy.action else { return };
        // A tunnel's policies are for what routes lead there.
        if policy.direction != Direction::Out || policy.if_id != 0 {
            return;
        }
        self.remove(id);
        let PolicyConfig { priority, selector, .. } = *policy;
        if self.local_in(selector.source).is_none() {
            return;
        }
        let optional = template.optional;
        self.policies.insert(id, Protected { priority, selector, optional });
        self.by_destination.entry(selector.destination).or_default().insert((priority, id));
        if !optional {
            *self.strict.entry(selector).or_insert(0) += 1;
        }
        let users = self.sources.entry(selector.source).or_insert(0);
        *users += 1;
        if *users == 1 {
            self.cover(selector.source, |count| *count += 1);
        }
        self.touch(&selector);
    }

    /// A policy went.
    pub fn remove(&mut self, id: PolicyId) {
        let Some(Protected { priority, selector, optional }) = self.policies.remove(&id) else {
            return;
        };
        if let Some(others) = self.by_destination.get_mut(&selector.destination) {
            others.remove(&(priority, id));
            if others.is_empty() {
                self.by_destination.remove(&selector.destination);
            }
        }
        if !optional {
            leave(&mut self.strict, &selector);
        }
        if leave(&mut self.sources, &selector.source) {
            self.cover(selector.source, |count| *count -= 1);
        }
        self.touch(&selector);
    }

    fn touch(&mut self, selector: &Selector) {
        self.news.destinations.insert(selector.destination);
        self.news.selectors.insert(*selector);
    }

    fn cover(&mut self, source: Prefix, count: impl Fn(&mut usize)) {
        let within = self.locals.range_mut(source.address()..);
        for (_, covers) in within.take_while(|(address, _)| source.contains(**address)) {
            count(covers);
            self.news.exempt = true;
        }
    }

    /// The host's addresses are these now, and the policies these.
    pub fn set_locals(
        &mut self,
        addresses: impl Iterator<Item = IpAddr>,
        policies: impl Iterator<Item = (PolicyId, PolicyConfig)>,
    ) {
        let fresh: BTreeSet<IpAddr> = addresses.filter(|address| may_send_afar(*address)).collect();
        if fresh.iter().eq(self.locals.keys()) {
            return;
        }
        let Model { by_destination, strict, mut news, .. } = std::mem::take(self);
        news.destinations.extend(by_destination.into_keys());
        news.selectors.extend(strict.into_keys());
        news.exempt = true;
        self.news = news;
        self.locals = fresh.into_iter().map(|address| (address, 0)).collect();
        for (id, policy) in policies {
            self.install(id, &policy);
        }
    }

    /// What may be different.
    pub fn take_news(&mut self) -> News {
        std::mem::take(&mut self.news)
    }

    /// Whether a destination is routed to the host's device, and the source address to prefer there.
    /// A policy for every source prefers none.
    pub fn route(&self, destination: &Prefix) -> Option<Option<IpAddr>> {
        self.by_destination.get(destination)?.iter().find_map(|(_, id)| {
            let source = self.policies.get(id)?.selector.source;
            self.local_in(source).map(|address| (source.len() > 0).then_some(address))
        })
    }

    /// Whether packets of a selector must not leave but by the host's device.
    pub fn blocks(&self, selector: &Selector) -> bool {
        self.strict.contains_key(selector) && self.local_in(selector.source).is_some()
    }

    /// Everything that is to be blocked.
    pub fn blocked(&self) -> impl Iterator<Item = &Selector> {
        self.strict.keys().filter(|selector| self.blocks(selector))
    }

    /// The addresses whose packets no policy covers.
    pub fn exempt(&self) -> BTreeSet<IpAddr> {
        let free = self.locals.iter().filter(|(_, covers)| **covers == 0);
        free.map(|(address, _)| *address).take(EXEMPT_MAX).collect()
    }

    fn local_in(&self, source: Prefix) -> Option<IpAddr> {
        let (address, _) = self.locals.range(source.address()..).next()?;
        source.contains(*address).then_some(*address)
    }
}

/// Counts one less; whether none is left.
fn leave<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) -> bool {
    match counts.get_mut(key) {
        Some(count) if *count > 1 => {
            *count -= 1;
            false
        }
        Some(_) => counts.remove(key).is_some(),
        None => false,
    }
}

/// Whether packets from an address go further than this host or its links.
fn may_send_afar(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_unspecified(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unspecified() && !v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataplane::policy::Template;
    use dataplane::sa::Mode;

    fn prefix(text: &str) -> Prefix {
        let (address, len) = text.split_once('/').unwrap();
        Prefix::new(address.parse().unwrap(), len.parse().unwrap()).unwrap()
    }

    fn policy(source: &str, destination: &str, priority: u32) -> PolicyConfig {
        let nowhere = IpAddr::from([0; 4]);
        let template = Template {
            mode: Mode::Tunnel,
            source: nowhere,
            destination: nowhere,
            spi: 0,
            reqid: 1,
            optional: false,
        };
        PolicyConfig {
            index: 1,
            direction: Direction::Out,
            selector: Selector::between(prefix(source), prefix(destination)).unwrap(),
            priority,
            position: 0,
            own_sas: false,
            if_id: 0,
            action: Action::Protect { template, bundle: None },
        }
    }

    fn locals(addresses: &[&str]) -> impl Iterator<Item = IpAddr> {
        addresses.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>().into_iter()
    }

    #[test]
    fn only_policies_that_a_local_address_can_meet_make_routes() {
        let mut model = Model::default();
        let site = policy("10.1.0.0/16", "10.2.0.0/16", 5);
        let policies = || [(PolicyId(1), site.clone())].into_iter();
        model.set_locals(locals(&["192.0.2.1", "127.0.0.1", "fe80::1"]), [].into_iter());
        let far = prefix("10.2.0.0/16");
        model.install(PolicyId(1), &site);
        assert!(model.policies.is_empty(), "nobody here is in it");
        assert_eq!((model.route(&far), model.blocks(&site.selector)), (None, false));
        assert_eq!(model.exempt(), locals(&["192.0.2.1"]).collect());
        model.take_news();

        model.set_locals(locals(&["192.0.2.1", "10.1.0.1"]), policies());
        assert!(model.take_news().destinations.contains(&far));
        assert_eq!(model.route(&far), Some(locals(&["10.1.0.1"]).next()));
        assert!(model.blocks(&site.selector));
        assert_eq!(model.exempt(), locals(&["192.0.2.1"]).collect());

        model.set_locals(locals(&["192.0.2.1"]), policies());
        assert!(model.take_news().destinations.contains(&far));
        assert_eq!((model.route(&far), model.blocks(&site.selector)), (None, false));
    }

    #[test]
    fn a_route_lasts_as_long_as_one_policy_of_its_destination() {
        let mut model = Model::default();
        model.set_locals(locals(&["10.1.0.1", "10.9.0.1"]), [].into_iter());
        let far = prefix("10.2.0.0/16");
        model.install(PolicyId(1), &policy("10.1.0.0/16", "10.2.0.0/16", 7));
        model.install(PolicyId(2), &policy("10.9.0.0/16", "10.2.0.0/16", 3));
        assert_eq!(model.route(&far), Some(locals(&["10.9.0.1"]).next()), "the first in order");
        model.remove(PolicyId(2));
        assert_eq!(model.route(&far), Some(locals(&["10.1.0.1"]).next()));
        assert_eq!(model.exempt(), locals(&["10.9.0.1"]).collect());
        // The same again under its own id changes nothing.
        model.install(PolicyId(1), &policy("10.1.0.0/16", "10.2.0.0/16", 7));
        model.remove(PolicyId(1));
        assert_eq!((model.route(&far), model.blocked().count()), (None, 0));
        assert!(model.by_destination.is_empty() && model.sources.is_empty());
    }

    #[test]
    fn a_policy_for_every_source_prefers_none_and_level_use_blocks_nothing() {
        let mut model = Model::default();
        model.set_locals(locals(&["2001:db8::1", "10.1.0.1"]), [].into_iter());
        model.install(PolicyId(1), &policy("::/0", "2001:db8:2::/64", 7));
        assert_eq!(model.route(&prefix("2001:db8:2::/64")), Some(None));
        let mut optional = policy("10.1.0.0/16", "10.2.0.0/16", 7);
        if let Action::Protect { template, .. } = &mut optional.action {
            template.optional = true;
        }
        model.install(PolicyId(2), &optional);
        assert!(model.route(&prefix("10.2.0.0/16")).is_some());
        assert!(!model.blocks(&optional.selector));
        let bypass =
            PolicyConfig { action: Action::Bypass, ..policy("10.1.0.0/16", "10.3.0.0/16", 1) };
        model.install(PolicyId(3), &bypass);
        assert_eq!(model.route(&prefix("10.3.0.0/16")), None);
    }
}
