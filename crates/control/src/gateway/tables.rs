//! SAs and policies as the workers have them, kept equal to what the XFRM server says.
//!
//! The plan for each batch of changes, which ends in one view:
//!
//! 1. an SA goes into the SAD, where its SPI and destination find it;
//! 2. a policy that wants an SA gets a *slot*, shared by all policies that want the same; in transport
//!    mode, where the packet's addresses choose, each SA has its own;
//! 3. every slot that an SA came to or left is filled with the best SAs that fit, one for all
//!    workers and one for each that has its own, and they are given IVs before any worker can see
//!    them;
//! 4. what is protected or blocked is told to the guard before the view with it is published.
//!
//! SAs that are deleted or move to other addresses or ports are `departed`'s subject, the ports on which
//! ESP arrives `encapsulation`'s. It does not publish and does not know workers.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use crypto::Engine;
use dataplane::clock::Clock;
use dataplane::ledger::{Entry, Ledger};
use dataplane::nonce::NonceSpace;
use dataplane::policy::{Action, Direction, Policy, PolicyConfig};
use dataplane::prefix::Family;
use dataplane::sa::{Mode, Sa};
use dataplane::selector::Selector;
use dataplane::spd::DefaultAction;
use dataplane::view::View;
use tracing::{error, warn};

use super::cpus::Cpus;
use super::departed::Departed;
use super::encapsulation::EncapsulationPorts;
use super::guard::{Guard, Held};
use super::slots::{Offer, SlotKey, Slots};
use super::translate::{self, Wanted};
use super::tunnels::TunnelRows;
use crate::roster::Roster;
use crate::xfrm::{Change, Defaults, PolicyId, PolicyRecord, SaId, SaRecord};

/// An SA in force.
pub struct InstalledSa {
    /// What the data plane has.
    pub sa: Arc<Sa>,
    /// The worker that alone seals with it (RFC 9611).
    pub worker: Option<u16>,
    /// It reached a soft limit: others are preferred.
    dying: bool,
    /// Packets, which have no mark here, can use it.
    usable: bool,
    /// Packets and bytes that it counted as another SA of the interface's, before it moved.
    before: Option<Box<(u64, u64)>>,
}

impl InstalledSa {
    fn offer(&self, id: SaId) -> Offer<'_> {
        Offer { id, sa: &self.sa, worker: self.worker, dying: self.dying }
    }

    fn before(&self) -> (u64, u64) {
        self.before.as_deref().copied().unwrap_or_default()
    }
}

/// A policy in force.
pub struct InstalledPolicy {
    /// What the data plane has; `None` for policies that no packet can meet.
    pub policy: Option<Arc<Policy>>,
    /// When it was added, on the data plane's clock.
    pub added_ns: u64,
}

/// All SAs and policies.
pub struct Tables {
    engine: Engine,
    nonces: Arc<NonceSpace>,
    clock: Clock,
    guard: Guard,
    cpus: Cpus,
    /// The index of the policy that blocks what an earlier run left, until that is taken back.
    left: HashMap<Held, u32>,
    /// Where SAs' numbers are; `None`: in memory.
    ledger: Option<Ledger>,
    /// Numbers of an earlier process, for SAs that are about to be installed again.
    resumed: HashMap<SaId, Entry>,
    sas: Roster<InstalledSa>,
    policies: Roster<InstalledPolicy>,
    slots: Slots,
    tunnels: TunnelRows,
    departed: Departed,
    encapsulation: EncapsulationPorts,
}

impl Tables {
    /// No SA and no policy but the guard's: what an earlier run left protected is blocked.
    pub fn new(
        engine: Engine,
        nonces: Arc<NonceSpace>,
        clock: Clock,
        guard: Guard,
        left: &[Held],
        view: &mut View,
    ) -> Tables {
        let left: HashMap<Held, u32> =
            std::iter::zip(left.iter().copied(), (0..=u32::MAX).rev()).collect();
        for (held, index) in &left {
            view.spd.insert(Arc::new(Policy::new(guard_policy(*index, *held))));
        }
        Tables {
            engine,
            nonces,
            clock,
            guard,
            cpus: Cpus::new(&[0]),
            left,
            ledger: None,
            resumed: HashMap::new(),
            sas: Roster::default(),
            policies: Roster::default(),
            slots: Slots::default(),
            tunnels: TunnelRows::default(),
            departed: Departed::default(),
            encapsulation: EncapsulationPorts::default(),
        }
    }

    /// Says on which cores workers 0, 1, … run; without it there is one, on core 0.
    pub fn with_cores(self, cores: &[usize]) -> Tables {
        Tables { cpus: Cpus::new(cores), ..self }
    }

    /// Every SA, in the order of installation.
    pub fn sas(&self) -> impl Iterator<Item = (SaId, &InstalledSa)> {
        self.sas.iter().map(|(id, installed)| (SaId(id), installed))
    }

    /// One SA.
    pub fn sa_of(&self, id: SaId) -> Option<&InstalledSa> {
        self.sas.get(id.0)
    }

    /// One policy.
    pub fn policy_of(&self, id: PolicyId) -> Option<&InstalledPolicy> {
        self.policies.get(id.0)
    }

    /// Every policy, in the order of installation.
    pub fn policies(&self) -> impl Iterator<Item = (PolicyId, &InstalledPolicy)> {
        self.policies.iter().map(|(id, installed)| (PolicyId(id), installed))
    }

    /// Every policy that packets can meet, as the data plane has it.
    pub fn configs(&self) -> impl Iterator<Item = (PolicyId, PolicyConfig)> {
        self.policies()
            .filter_map(|(id, installed)| Some((id, installed.policy.as_ref()?.config())))
    }

    /// SAs and policies.
    pub fn sizes(&self) -> (usize, usize) {
        (self.sas.len(), self.policies.len())
    }

    /// Ends the guard: the gateway stops cleanly.
    pub fn end(self) -> io::Result<()> {
        self.guard.end()
    }

    /// Brings a batch of changes into a view.
    ///
    /// # Errors
    /// The guard cannot be written. The view must not be published then.
    pub fn apply(&mut self, changes: &[Change], view: &mut View) -> io::Result<()> {
        // A replaced policy is removed and installed in one batch: protecting first leaves no gap.
        for change in changes {
            if let Change::PolicyInstalled(record) = change
                && let Some(held) = held_by(record)
            {
                self.guard.protect(held)?;
            }
        }
        for change in changes {
            match change {
                Change::SaInstalled(record) => self.install_sa(record, view),
                Change::SaUpdated(record) => self.update_sa(record, view),
                Change::SaMoved(record) => self.move_sa(record, view),
                Change::SaReplaySet(record) => self.renumber_sa(record, view),
                Change::SaDying(id) => self.demote_sa(*id, view),
                Change::SaRemoved(id) => self.remove_sa(*id, view),
                Change::SaDeleted(id) => self.close_sa(*id, view),
                Change::SaDeparted(record) => self.depart(record),
                Change::PolicyInstalled(record) => self.install_policy(record, view),
                Change::PolicyRemoved(id) => self.remove_policy(*id, view)?,
                Change::DefaultsChanged(defaults) => self.set_defaults(defaults, view)?,
            }
        }
        self.guard.flush()
    }

    /// Other sequence numbers and another window for an SA, whose counters go on: its limits in bytes
    /// and packets do not begin anew.
    fn renumber_sa(&mut self, record: &Arc<SaRecord>, view: &mut View) {
        let known = self.sa_of(record.id).map(|known| (known.sa.clone(), known.dying));
        let Some((known, dying)) = known else { return self.install_sa(record, view) };
        match self.build(record) {
            Ok(sa) => self.put_sa(sa.counting_on(&known), record, dying, view),
            Err(reason) => {
                error!(spi = record.parameters.spi(), %reason, "an SA was not renumbered");
            }
        }
    }

    fn update_sa(&mut self, record: &Arc<SaRecord>, view: &mut View) {
        let Some(known) = self.sa_of(record.id) else { return self.install_sa(record, view) };
        let limits = translate::limits(record);
        let encapsulation = translate::encapsulation(record);
        match known.sa.with_changes(|config| {
            config.limits = limits;
            config.encapsulation = encapsulation;
            config.if_id = record.parameters.if_id;
        }) {
            Ok(sa) => self.put_sa(sa, record, false, view),
            Err(reason) => {
                error!(spi = record.parameters.spi(), %reason, "an SA was not updated");
            }
        }
    }

    /// Other ends for an SA, whose numbers, window and counters go on.
    fn move_sa(&mut self, record: &Arc<SaRecord>, view: &mut View) {
        let Some(known) = self.sa_of(record.id) else { return self.install_sa(record, view) };
        let (old, dying) = (known.sa.clone(), known.dying);
        let moved = old.with_changes(|config| {
            config.source = record.parameters.source();
            config.destination = record.parameters.destination();
            config.encapsulation = translate::encapsulation(record);
        });
        match moved {
            Ok(sa) => {
                self.unlist(&old, view);
                self.put_sa(sa, record, dying, view);
            }
            Err(reason) => {
                error!(spi = record.parameters.spi(), %reason, "an SA was not moved");
            }
        }
    }

    /// Takes an SA out of the SAD, if it is the one that is found there.
    fn unlist(&self, sa: &Sa, view: &mut View) {
        let listed = view.sad.get(sa.spi(), sa.destination());
        if listed.is_some_and(|listed| listed.same_runtime(sa)) {
            view.sad.remove(sa.spi(), sa.destination());
        }
    }

    /// Puts an SA in place of the one with its name, if there is one.
    fn put_sa(&mut self, sa: Sa, record: &Arc<SaRecord>, dying: bool, view: &mut View) {
        let sa = Arc::new(sa.with_alarm(translate::alarm(record)));
        let parameters = &record.parameters;
        let usable = translate::applies_to_packets(parameters.mark);
        if usable {
            view.sad.insert(sa.clone());
        }
        let is_local = |address| view.local.contains(&address);
        self.encapsulation.add(&sa, is_local, &mut view.encapsulation_ports);
        let worker = parameters.cpu.map(|cpu| self.cpus.worker_of(cpu) as u16);
        let before = self.sas.get_mut(record.id.0).and_then(|known| known.before.take());
        let installed = InstalledSa { sa: sa.clone(), worker, dying, usable, before };
        let old = self.sas.insert(record.id.0, installed);
        if let Some(old) = &old {
            self.encapsulation.remove(&old.sa, &mut view.encapsulation_ports);
            self.slots.withdraw(old.offer(record.id), view);
        }
        if usable && let Some(installed) = self.sas.get(record.id.0) {
            self.slots.offer(installed.offer(record.id), view);
        }
        if let Some(old) = old {
            // It may have been somewhere else.
            self.refill(&old.sa, view);
        }
        self.refill(&sa, view);
    }

    /// An SA that reached a soft limit is used where there is no other.
    fn demote_sa(&mut self, id: SaId, view: &mut View) {
        let Some(installed) = self.sas.get_mut(id.0) else { return };
        self.slots.withdraw(installed.offer(id), view);
        installed.dying = true;
        if installed.usable {
            self.slots.offer(installed.offer(id), view);
        }
        let sa = installed.sa.clone();
        self.refill(&sa, view);
    }

    /// Puts the best SAs into the slots that an SA fits.
    fn refill(&self, sa: &Sa, view: &mut View) {
        let armed = |id| armed(&self.sas, &self.nonces, id);
        self.slots.refill(sa, view, armed);
    }

    fn install_policy(&mut self, record: &Arc<PolicyRecord>, view: &mut View) {
        let wanted = translate::wanted(record);
        let number = match wanted {
            Wanted::Sa(template)
                if record.direction == wire::xfrm::number::direction::OUT
                    && template.mode == Mode::Tunnel
                    && translate::is_for_packets(record) =>
            {
                Some(self.take_slot(SlotKey::of(&template, record.if_id), view))
            }
            Wanted::Impossible => {
                warn!(
                    index = record.index,
                    "a policy asks for what is not carried (templates, mode or interface); it blocks"
                );
                None
            }
            _ => None,
        };
        let policy = translate::policy(record, wanted, number).map(|c| Arc::new(Policy::new(c)));
        if let Some(policy) = &policy {
            view.spd.insert(policy.clone());
            self.tunnels.install(&policy.config(), view);
        }
        let added_ns = self.clock.now_ns();
        self.policies.insert(record.id.0, InstalledPolicy { policy, added_ns });
    }

    fn take_slot(&mut self, key: SlotKey, view: &mut View) -> u32 {
        let (sas, nonces) = (&self.sas, &self.nonces);
        self.slots.take(key, view, |id| armed(sas, nonces, id))
    }

    fn remove_policy(&mut self, id: PolicyId, view: &mut View) -> io::Result<()> {
        let Some(gone) = self.policies.remove(id.0) else { return Ok(()) };
        let Some(policy) = &gone.policy else { return Ok(()) };
        let config = policy.config();
        view.spd.remove(&config);
        self.tunnels.remove(&config, view);
        if let Action::Protect { template, bundle: Some(_) } = &config.action {
            self.slots.leave(SlotKey::of(template, config.if_id), view);
        }
        held(&config).map_or(Ok(()), |held| self.release(held, view))
    }

    /// What was held need not be any more, neither by this run nor for an earlier one.
    fn release(&mut self, held: Held, view: &mut View) -> io::Result<()> {
        if self.guard.release(held)?
            && let Some(index) = self.left.remove(&held)
        {
            view.spd.remove(&guard_policy(index, held));
        }
        Ok(())
    }

    /// Sets what happens without a policy. To block is to hold everything.
    fn set_defaults(&mut self, defaults: &Defaults, view: &mut View) -> io::Result<()> {
        for (direction, wire) in [
            (Direction::In, defaults.input),
            (Direction::Forward, defaults.forward),
            (Direction::Out, defaults.output),
        ] {
            let action = translate::default_of(wire);
            if action == view.spd.default_action(direction) {
                continue;
            }
            view.spd.set_default(direction, action);
            for everything in [Selector::any(Family::V4), Selector::any(Family::V6)] {
                match action {
                    DefaultAction::Block => self.guard.protect((direction, everything))?,
                    DefaultAction::Accept => self.release((direction, everything), view)?,
                }
            }
        }
        Ok(())
    }
}

/// An SA by name, ready to seal. Without an IV to be had it is in force all the same: it opens, and its packets die
/// by name (`nonce_exhausted`) until an epoch can be claimed again, which the gateway tries and tells of.
fn armed(sas: &Roster<InstalledSa>, nonces: &Arc<NonceSpace>, id: SaId) -> Option<Arc<Sa>> {
    let installed = sas.get(id.0)?;
    let _ = installed.sa.arm(nonces);
    Some(installed.sa.clone())
}

/// What the guard holds of a policy that comes.
fn held_by(record: &PolicyRecord) -> Option<Held> {
    held(&translate::policy(record, translate::wanted(record), None)?)
}

/// What of a policy the guard holds: every selector that packets must not pass in clear. A tunnel's
/// policies are about what routes lead there, and no packet that they cover is meant elsewhere.
fn held(config: &PolicyConfig) -> Option<Held> {
    match config.action {
        Action::Protect { template, .. } if template.optional => None,
        Action::Bypass => None,
        Action::Protect { .. } | Action::Discard if config.if_id != 0 => None,
        Action::Protect { .. } | Action::Discard => Some((config.direction, config.selector)),
    }
}

/// A policy of the guard's: it blocks, after every other policy. The interface gives indexes from
/// below, the guard from above.
fn guard_policy(index: u32, (direction, selector): Held) -> PolicyConfig {
    PolicyConfig {
        index,
        direction,
        selector,
        priority: u32::MAX,
        position: u64::MAX,
        action: Action::Discard,
        own_sas: false,
        if_id: 0,
    }
}

mod keeping;
mod leaving;
mod moving;
mod routing;
#[cfg(test)]
mod tests;
