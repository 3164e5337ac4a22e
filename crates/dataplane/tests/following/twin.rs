//! A gateway whose packets follow, and its stupid twin: the same packets where each turn has a view of its own, so that nobody
//! follows. The same leaves, in the same order between two hosts, and everything is counted alike.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use dataplane::bundles::Whose;
use dataplane::clock::Clock;
use dataplane::crew::{Lending, crew};
use dataplane::event::Event;
use dataplane::nonce::NonceSpace;
use dataplane::policy::{Action, Direction, Policy};
use dataplane::sa::{Sa, SaConfig};
use dataplane::verdict::Verdict;
use proptest::prelude::*;

use super::case::{BLOCKED_PORT, Case, Last, of_port};
use super::families::{self, Inside};
use super::fixture::*;
use super::flows::by_hosts;
use super::steps::{Arrivals, Step};

/// Packets that wait for a turn, at most.
const WAITING_MAX: usize = 60;

/// Packets of a turn of one who lends them: several turns' come back in one.
const LENT_AT_ONCE: usize = 20;

/// A gateway, and what left it.
pub struct Side {
    pub gateway: Gateway,
    /// Who does the work that it lends.
    helper: Option<Gateway>,
    nonces: Arc<NonceSpace>,
    /// Every SA that sealed.
    sas: Vec<Arc<Sa>>,
    pub left: [Vec<Vec<u8>>; 2],
}

impl Side {
    pub fn new(site: Site, case: &Case) -> Side {
        let nonces = nonces();
        let gateway = Gateway::new(case.view(site, &nonces));
        let bundles = &gateway.view.bundles;
        let of_all = (0..=3).filter_map(|slot| bundles.get(slot));
        let chosen = (0..=3).filter_map(|slot| bundles.choose(slot, 0));
        let own = chosen.filter(|(_, whose)| *whose == Whose::Own).map(|(sa, _)| sa);
        let sas = of_all.chain(own).cloned().collect();
        Side { gateway, helper: None, nonces, sas, left: Default::default() }
    }

    /// Forwards frames, in one turn unless they are lent.
    pub fn forward(&mut self, frames: &[(u16, Vec<u8>)]) {
        let at_once = if self.helper.is_some() { LENT_AT_ONCE } else { WAITING_MAX };
        for frames in frames.chunks(at_once) {
            for (port, frame) in frames {
                self.gateway.inject(*port, frame);
            }
            assert_eq!(self.gateway.worker.turn(), frames.len());
        }
        if let Some(helper) = &mut self.helper {
            // All that is lent is done before any comes back, of which some may be lent once more.
            while self.gateway.worker.has_worked() {
                helper.worker.turn();
                if !helper.worker.has_worked() {
                    self.gateway.worker.turn();
                }
            }
        }
        for port in [RED, BLACK] {
            while let Some(frame) = self.gateway.collect(port) {
                self.left[usize::from(port)].push(frame);
            }
        }
    }

    /// The same of a worker that lends all its work, and of another that does it.
    pub fn lending(site: Site, case: &Case) -> Side {
        let mut side = Side::new(site, case);
        let mut helper = Gateway::worker(1, 1, side.gateway.view.clone());
        let mut members = crew(2, Clock).unwrap();
        members[0].set_lending(Lending::Dispatch);
        helper.worker.join(members.remove(1));
        side.gateway.worker.join(members.remove(0));
        side.helper = Some(helper);
        side
    }

    fn rekey(&mut self, towards: Site, case: &Case) {
        let slot = if towards == Site::East && case.own.is_some() { 1 } else { 0 };
        let if_id = self.gateway.view.bundles.get(slot).unwrap().if_id();
        self.fill(slot, if_id, towards, case);
    }

    /// Gives a slot another SA.
    pub fn fill(&mut self, slot: u32, if_id: u32, towards: Site, case: &Case) {
        let spi = towards.spi() + self.sas.len() as u32;
        let config = SaConfig { spi, if_id, ..case.tunnel.sa(towards) };
        let sa = Arc::new(Sa::new(config).unwrap());
        sa.arm(&self.nonces).unwrap();
        self.sas.push(sa.clone());
        self.gateway.change(|view| {
            view.bundles.set(slot, Some(sa));
        });
    }

    pub fn block(&mut self, on: bool) {
        let policy = of_port(66, Direction::Out, BLOCKED_PORT, Action::Discard);
        let both = [families::policy(&policy), policy];
        self.gateway.change(|view| {
            for policy in both {
                match on {
                    true => drop(view.spd.insert(Arc::new(Policy::new(policy)))),
                    false => drop(view.spd.remove(&policy)),
                }
            }
        });
    }

    /// What was counted, but for the turns, with or without bytes of what went through SAs.
    fn counted(&self, in_bytes: bool) -> (Vec<u64>, Vec<Vec<u64>>, Vec<[u64; 3]>) {
        let snapshot = self.gateway.snapshot();
        // An old packet is one or the other, as the packets before it in the batch were accepted or not.
        let old = [
            Verdict::Replayed,
            Verdict::ReplayOld,
            Verdict::SequenceZero,
            Verdict::IntegrityFailed,
        ];
        let verdicts = Verdict::ALL.iter().filter(|verdict| !old.contains(verdict));
        let verdicts = verdicts.map(|verdict| snapshot.of(*verdict));
        let refused = old.iter().map(|verdict| snapshot.of(*verdict)).sum();
        // They are in no order.
        let mut inbound: Vec<_> = self.gateway.view.sad.iter().collect();
        inbound.sort_unstable_by_key(|sa| sa.spi());
        let sas = self.sas.iter().chain(inbound).map(|sa| {
            let stats = sa.stats();
            let old = stats.replayed + stats.replay_old + stats.integrity_failed;
            let numbers = [stats.sent, stats.received, u64::from(stats.replay_bitmap[0])];
            let bytes = if in_bytes { stats.usage.bytes } else { 0 };
            let counts = [stats.usage.packets, bytes, stats.other_errors, old];
            [&numbers[..], &counts].concat()
        });
        // A policy that welcomes all that comes through a tunnel is asked twice a second.
        let is_counted = |policy: &&Arc<Policy>| policy.config().if_id == 0;
        let policies = self.gateway.view.spd.iter().filter(is_counted).map(|policy| {
            let usage = policy.usage();
            let bytes = if in_bytes { usage.bytes } else { 0 };
            [u64::from(policy.config().index), usage.packets, bytes]
        });
        let by_sa = [snapshot.own_sa, snapshot.fallback_sa];
        let received =
            [snapshot.received, snapshot.received_bytes, refused].into_iter().chain(by_sa);
        // They are in no order.
        let mut policies: Vec<_> = policies.collect();
        policies.sort_unstable();
        (verdicts.chain(received).collect(), sas.collect(), policies)
    }

    /// Where control first heard that peers are now, by SPI: it hears of each again after a while.
    fn moved(&self) -> BTreeMap<u32, (IpAddr, u16)> {
        let mut moved = BTreeMap::new();
        for event in self.gateway.events.try_iter() {
            if let Event::MappingChanged { spi, source, source_port, .. } = event {
                moved.entry(spi).or_insert((source, source_port));
            }
        }
        moved
    }
}

/// The steps at a site: for packets that follow, there or with whoever has time, and for such that each lead.
pub fn run(site: Site, case: Case, lends: bool, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let side = if lends { Side::lending } else { Side::new };
    let (mut following, mut leading) = (side(site, &case), side(site, &case));
    let mut arrivals = Arrivals::new(site, case);
    let mut waiting = Vec::new();
    let each = |step| match step {
        Step::Burst { v6, host, count } => {
            vec![Step::Plain { v6, host, port: 5000, len: 90 }; count]
        }
        one => vec![one],
    };
    for step in steps.into_iter().chain([Step::Turn]).flat_map(each) {
        if step.waits() {
            waiting.push(arrivals.frame(step));
        }
        if !step.waits() || waiting.len() == WAITING_MAX {
            following.forward(&waiting);
            // What a view says may have changed, so nobody follows.
            leading.gateway.change(|_| {});
            leading.forward(&waiting);
            waiting.clear();
        }
        for side in [&mut following, &mut leading] {
            match step {
                Step::Rekey => side.rekey(site.peer(), &case),
                Step::Publish => side.gateway.change(|_| {}),
                Step::Block(on) => side.block(on),
                _ => {}
            }
        }
    }
    // Of several pairs of hosts, each in its order, it is open whose packet is the last before a limit.
    let has_limit = matches!(case.own, Some(Last::Limited | Last::Exhausted));
    let is_open = has_limit && (case.inside == Inside::Both || case.is_hub);
    for (followed, led) in following.left.iter().zip(&leading.left) {
        if is_open {
            prop_assert_eq!(followed.len(), led.len());
            continue;
        }
        let [followed, led] = [followed, led].map(|left| by_hosts(left, &case));
        let hosts: BTreeSet<_> = followed.keys().chain(led.keys()).collect();
        for hosts in hosts {
            let [followed, led] =
                [&followed, &led].map(|flows| flows.get(hosts).map_or(&[][..], Vec::as_slice));
            let same = followed.iter().zip(led).take_while(|(one, other)| one == other).count();
            prop_assert_eq!(
                followed.get(same),
                led.get(same),
                "packet {} between {:?}",
                same,
                hosts
            );
        }
    }
    let counted = [&following, &leading].map(|side| side.counted(!is_open));
    prop_assert_eq!(&counted[0], &counted[1]);
    prop_assert_eq!(following.moved(), leading.moved());
    prop_assert_eq!(leading.gateway.snapshot().followed, 0);
    Ok(())
}
