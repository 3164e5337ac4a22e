//! Timers: what happens to SAs and policies because time passed or traffic reached a limit.
//!
//! A server that goes on for one that was killed holds its tongue at first, until those who listened to
//! that one have noticed and are back: an IKE daemon that misses EXPIRE does not rekey. What was announced
//! before, and perhaps not heard, is announced once more then.
//!
//! Tunnels that were set up together expire together. What thousands of them have to say fits into no
//! program's queue, so it is said in parts, and who listens reads in between.

use std::collections::VecDeque;

use wire::xfrm::lifetime::LifetimeConfig;
use wire::xfrm::netlink::Header;
use wire::xfrm::number::{group, msg};

use super::clock::{Phase, policy_phase, sa_phase};
use super::counters::Counters;
use super::delivery::Delivery;
use super::notice::{self, SaView};
use super::policy::PolicyId;
use super::sa::SaId;
use super::server::{Change, Server};

/// How long nothing expires after a restoration. A daemon that sleeps in `poll` is back within
/// milliseconds, on a busy machine within a second; limits of time are hours.
const SETTLE_S: u64 = 2;

/// No SA counts so many packets or bytes while anybody watches: at a hundred gigabytes a second the bytes take 133 days. Of
/// limits beyond, which libreswan gives each of its SAs, the data plane says when they are reached, and nobody else looks.
const OUT_OF_REACH: u64 = 1 << 60;

/// SAs and policies of a part. What is said of them fits into half of what waits for a program that does not read
/// (`connection`), also of policies with six templates; and it keeps others waiting no longer than a part of a flush does.
const PART_ENTRIES: usize = 128;

/// One thing to look at.
#[derive(Clone, Copy, Debug)]
enum Look {
    /// An SA whose soft limit was announced to those who listened before a restoration.
    Dying(SaId),
    /// An SA that has a limit of time.
    Sa(SaId),
    /// A policy that has a limit of time.
    Policy(PolicyId),
    /// An SA that has a limit in bytes or packets.
    Traffic(SaId),
}

/// What is still to be looked at.
#[derive(Debug, Default)]
pub(super) struct Expiring {
    /// After a restoration: until when nothing expires, in seconds since the epoch, 0 if no clock was
    /// seen yet.
    pub(super) settles_at: Option<u64>,
    /// The rest of a round, in order. What was removed meanwhile is nothing, and what is not due any more stays.
    looks: VecDeque<Look>,
}

/// Whether somebody is to look every second whether traffic has reached a limit.
pub(super) fn watches_traffic(limits: &LifetimeConfig) -> bool {
    let bytes = [limits.soft_byte_limit, limits.hard_byte_limit];
    let packets = [limits.soft_packet_limit, limits.hard_packet_limit];
    bytes.into_iter().chain(packets).any(|limit| limit < OUT_OF_REACH)
}

impl Server {
    /// Does a part of what is due at `now` (seconds since the epoch): larval SAs that nobody completed,
    /// soft and hard limits of time, bytes and packets. To be called about once a second, and again as
    /// soon as those who listen have read, while it [`has more`](Server::has_more_due).
    pub fn tick(&mut self, now: u64, counters: &dyn Counters) -> Vec<Delivery> {
        let mut out = Vec::new();
        if self.expiring.looks.is_empty() {
            self.begin_round(now);
        }
        let mut left = PART_ENTRIES;
        while left > 0
            && let Some(look) = self.expiring.looks.pop_front()
        {
            match look {
                Look::Dying(id) => self.announce_expiry(id, false, 0, counters, &mut out),
                Look::Sa(id) => self.look_at_sa(id, now, counters, &mut out),
                Look::Policy(id) => self.look_at_policy(id, now, counters, &mut out),
                // Nearly all have reached nothing.
                Look::Traffic(id) if !self.check_traffic(id, counters, &mut out) => continue,
                Look::Traffic(_) => {}
            }
            left -= 1;
        }
        out
    }

    /// Whether [`Server::tick`] left a part of what was due.
    pub fn has_more_due(&self) -> bool {
        !self.expiring.looks.is_empty()
    }

    /// Finds what is to be looked at.
    fn begin_round(&mut self, now: u64) {
        // The memory of a long round is given back.
        let mut looks = VecDeque::new();
        if !self.settles(now, &mut looks) {
            looks.extend(self.sad.take_due(now).into_iter().map(Look::Sa));
            looks.extend(self.spd.due(now).map(Look::Policy));
            looks.extend(self.sad.limited().map(Look::Traffic));
        }
        self.expiring.looks = looks;
    }

    /// The same for one SA that the data plane saw reach a limit in bytes or packets.
    pub fn limit_reached(&mut self, id: SaId, counters: &dyn Counters) -> Vec<Delivery> {
        let mut out = Vec::new();
        // Until then the data plane alone keeps the hard limit; `tick` looks at all of them.
        if self.expiring.settles_at.is_none() {
            self.check_traffic(id, counters, &mut out);
        }
        out
    }

    /// Whether it is too early after a restoration. At the end of that time soft limits that were
    /// announced before are announced again.
    fn settles(&mut self, now: u64, looks: &mut VecDeque<Look>) -> bool {
        let settles_at = match self.expiring.settles_at {
            None => return false,
            Some(0) => now + SETTLE_S,
            Some(second) => second,
        };
        self.expiring.settles_at = (settles_at > now).then_some(settles_at);
        if settles_at > now {
            return true;
        }
        let is_dying = |id: &SaId| self.sad.get(*id).is_some_and(|sa| sa.dying);
        looks.extend(self.sad.ids().filter(is_dying).map(Look::Dying));
        false
    }

    /// When [`Server::tick`] has something to do next because of time.
    #[cfg(test)]
    pub fn next_deadline(&self) -> Option<u64> {
        let sas = self.sad.ids().filter_map(|id| self.sad.get(id)?.deadline);
        let policy = self.spd.next_deadline().map(|(deadline, _)| deadline);
        self.expiring.settles_at.or(sas.chain(policy).min())
    }

    fn look_at_sa(&mut self, id: SaId, now: u64, counters: &dyn Counters, out: &mut Vec<Delivery>) {
        let live = counters.sa(id);
        let looked = self.sad.edit(id, |sa| {
            let limits = sa.parameters().info.lft;
            let mut phase = sa_phase(&limits, &sa.usage(live.as_ref()), sa.dying, now);
            if phase == Phase::Expired
                && let Some(left) = sa.soft_left_s.take()
            {
                // The clock jumped over both limits. The soft one comes first all the same, so that
                // the IKE daemon may rekey; the hard one keeps its distance from it.
                sa.base.add_time = now.saturating_sub(left).saturating_sub(1);
                phase = sa_phase(&limits, &sa.usage(live.as_ref()), sa.dying, now);
            }
            let Phase::Alive { warn, soft_left_s, .. } = phase else { return (phase, false) };
            sa.soft_left_s = soft_left_s;
            let falls_ill = warn && !sa.dying;
            sa.dying |= warn;
            (phase, falls_ill)
        });
        let Some((phase, falls_ill)) = looked else { return };
        let Phase::Alive { warn, next, .. } = phase else {
            self.expire_hard(id, counters, out);
            return;
        };
        // Never before the next second: a deadline that stays due would stop the clock.
        self.sad.set_deadline(id, next.map(|next| next.max(now + 1)));
        if falls_ill {
            self.changes.push(Change::SaDying(id));
        }
        if warn {
            self.announce_expiry(id, false, 0, counters, out);
        }
    }

    fn expire_hard(&mut self, id: SaId, counters: &dyn Counters, out: &mut Vec<Delivery>) {
        self.announce_expiry(id, true, 0, counters, out);
        self.remove_sa(id);
    }

    /// Whether traffic has reached a limit that was not announced yet.
    fn check_traffic(
        &mut self,
        id: SaId,
        counters: &dyn Counters,
        out: &mut Vec<Delivery>,
    ) -> bool {
        let traffic = counters.traffic(id).filter(|live| live.total_packets != 0);
        let Some(live) = traffic else { return false };
        let Some(sa) = self.sad.get(id) else { return false };
        let usage = sa.usage(Some(&live));
        // The data plane goes by all that it counted, and lets nothing pass beyond a hard limit: one that
        // only what is shown had to reach would never be. What is shown may be less where an SA moved, and
        // where somebody set it.
        let bytes = usage.bytes.max(live.total_bytes);
        let packets = usage.packets.max(live.total_packets);
        let limits = sa.parameters().info.lft;
        if bytes >= limits.hard_byte_limit || packets >= limits.hard_packet_limit {
            self.expire_hard(id, counters, out);
            return true;
        }
        let soft = bytes >= limits.soft_byte_limit || packets >= limits.soft_packet_limit;
        let falls_ill = soft && !sa.dying;
        if falls_ill {
            self.sad.edit(id, |sa| sa.dying = true);
            self.changes.push(Change::SaDying(id));
            self.announce_expiry(id, false, 0, counters, out);
        }
        falls_ill
    }

    fn look_at_policy(
        &mut self,
        id: PolicyId,
        now: u64,
        counters: &dyn Counters,
        out: &mut Vec<Delivery>,
    ) {
        let Some(policy) = self.spd.get(id) else { return };
        match policy_phase(&policy.record.limits, &policy.usage(counters), now) {
            Phase::Expired => {
                self.announce_policy_expiry(id, true, 0, counters, out);
                self.remove_policy(id);
            }
            Phase::Alive { warn, next, .. } => {
                self.spd.set_deadline(id, next.map(|next| next.max(now + 1)));
                if warn {
                    self.announce_policy_expiry(id, false, 0, counters, out);
                }
            }
        }
    }

    /// EXPIRE, `port` being who asked for it.
    pub(super) fn announce_expiry(
        &self,
        id: SaId,
        hard: bool,
        port: u32,
        counters: &dyn Counters,
        out: &mut Vec<Delivery>,
    ) {
        let Some(sa) = self.sad.get(id) else { return };
        let header = Header { kind: msg::EXPIRE, pid: port, ..Header::default() };
        self.emit(out, group::EXPIRE, || {
            notice::sa_expired(header, &SaView::new(id, &sa, counters), hard)
        });
    }

    /// POLEXPIRE, `port` being who asked for it.
    pub(super) fn announce_policy_expiry(
        &self,
        id: PolicyId,
        hard: bool,
        port: u32,
        counters: &dyn Counters,
        out: &mut Vec<Delivery>,
    ) {
        let Some(policy) = self.spd.get(id) else { return };
        let header = Header { kind: msg::POLEXPIRE, pid: port, ..Header::default() };
        self.emit(out, group::EXPIRE, || {
            notice::policy_expired(header, &policy, &policy.info(counters), hard)
        });
    }
}
