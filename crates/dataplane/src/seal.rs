//! Stage `seal`, between `choose` and `encrypt`: packets that are to be protected get their numbers, and then
//! `encrypt` does the rest.
//!
//! The steps of RFC 4303 §3.3:
//!
//! 1. see that the frame has room, so that no number is taken in vain;
//! 2. take a sequence number and an IV, which nobody gets again;
//! 3. put ESP and outer headers around the packet (`envelope`), encrypt, and write the ICV: `encrypt`.
//!
//! This stage is the serial part: whoever seals one SA's packets does so in their order, in a few
//! lines of each. Consecutive packets of one SA take their numbers in one step and are counted
//! together. What is left to do needs no order, and nothing but the slot.

use crate::batch::{Batch, Slot, Turn, is_same};
use crate::claim::Access;
use crate::cpu::asked_cache;
use crate::encrypt;
use crate::envelope::Room;
use crate::hold::Stay;
use crate::keys;
use crate::sa::{Numbers, Sa, SealRefusal};
use crate::verdict::Verdict;

/// Numbers for every packet that `choose` found an SA for.
pub(crate) fn seal(batch: &mut Batch<'_>, turn: &mut Turn<'_>) {
    if !batch.seals {
        return;
    }
    let cache = asked_cache();
    let mut asked: Option<&Sa> = None;
    for slot in &batch.slots {
        if slot.verdict.is_none()
            && let Some(sa) = slot.outbound
            && !is_same(asked, sa)
        {
            sa.prefetch_to_seal(cache);
            asked = Some(sa);
        }
    }
    keys::ask_first(&batch.slots, encrypt::need, cache);
    batch.seals = asked.is_some();
    if !batch.seals {
        return;
    }
    let mut rest = &mut batch.slots[..];
    while let Some((first, _)) = rest.split_first() {
        let Some(sa) = first.outbound.filter(|_| first.verdict.is_none()) else {
            rest = &mut rest[1..];
            continue;
        };
        let access = sa.access(turn);
        if access == Access::Wait {
            keep_back(rest, sa, turn);
            continue;
        }
        // Nearly every SA is far from limits, and this worker's alone.
        if access == Access::Alone && !sa.counts_each(true) {
            // Among many SAs mostly each packet has another.
            let is_one = rest.get(1).is_none_or(|next| !is_same(next.outbound, sa));
            if is_one {
                number_one(&mut rest[0], sa, turn);
                rest = &mut rest[1..];
            } else {
                let numbered = number_alone(rest, sa, turn);
                rest = &mut rest[numbered..];
            }
            continue;
        }
        let alone = access == Access::Alone;
        let run = fit_run(rest, sa, alone);
        let (now, later) = rest.split_at_mut(run.slots);
        number_run(now, &run, sa, alone, turn);
        rest = later;
    }
}

/// What [`fit_run`] and [`number_run`] do, in one go, for an SA far from limits that this worker has for itself.
/// How many slots are done with, at least one.
#[inline(always)]
fn number_alone(slots: &mut [Slot<'_>], sa: &Sa, turn: &Turn<'_>) -> usize {
    let room = Room::of(sa.hot());
    let (mut done, mut packets, mut bytes) = (0, 0, 0);
    let taken = sa.take_alone(|numbers| {
        for slot in &mut *slots {
            if slot.verdict.is_some() || !is_same(slot.outbound, sa) {
                break;
            }
            match room.fit(slot) {
                Ok(counted) => {
                    let Some(next) = numbers.next() else { break };
                    (slot.sequence, slot.iv) = next;
                    slot.counted = counted;
                    packets += 1;
                    bytes += u64::from(counted);
                }
                Err(verdict) => slot.refuse(Some(sa), verdict),
            }
            done += 1;
        }
    });
    if let Err(refusal) = taken {
        slots[0].refuse(Some(sa), refusal_verdict(refusal));
        return 1;
    }
    if packets != 0 {
        sa.count(packets, bytes, turn.now_ns, true);
    }
    done
}

/// What [`fit_run`] and [`number_run`] do, for a packet alone of an SA far from limits that this worker has
/// for itself.
#[inline]
fn number_one(slot: &mut Slot<'_>, sa: &Sa, turn: &Turn<'_>) {
    let numbered = Room::of(sa.hot()).fit(slot).and_then(|counted| {
        let numbers = sa.next_numbers(&mut { Numbers::NONE }, 1, true);
        numbers.map(|numbers| (counted, numbers)).map_err(refusal_verdict)
    });
    match numbered {
        Ok((counted, (sequence, iv))) => {
            slot.counted = counted;
            (slot.sequence, slot.iv) = (sequence, iv);
            sa.count(1, u64::from(counted), turn.now_ns, true);
        }
        Err(verdict) => slot.refuse(Some(sa), verdict),
    }
}

/// Another worker is about to leave the SA to all. Its packets wait for the next turn, all of them, so that
/// they stay in order.
#[cold]
fn keep_back(slots: &mut [Slot<'_>], sa: &Sa, turn: &Turn<'_>) {
    let waits = |slot: &&mut Slot<'_>| slot.verdict.is_none() && is_same(slot.outbound, sa);
    for slot in slots.iter_mut().filter(waits) {
        slot.stay = Some(Stay::briefly(slot, slot.policy, turn.now_ns));
        // It is counted when it comes again.
        if let Some(policy) = slot.policy {
            policy.count_back(turn.seat, 1, slot.frame.len() as u64);
        }
        slot.decide(Verdict::NoSa);
    }
}

/// Consecutive packets of one SA.
struct Fitting {
    slots: usize,
    /// Packets among them that have room for their envelope, and their bytes that the SA counts.
    packets: u32,
    bytes: u64,
}

/// The next run of an SA's packets: do they have room, in front and behind?
#[inline]
fn fit_run(slots: &mut [Slot<'_>], sa: &Sa, alone: bool) -> Fitting {
    let expired = sa.expired();
    let room = Room::of(sa.hot());
    // Where limits are counted, the packet that finds one reached is told from the one before.
    let slots_max = if sa.counts_each(alone) { 1 } else { usize::MAX };
    let mut run = Fitting { slots: 0, packets: 0, bytes: 0 };
    for slot in slots.iter_mut().take(slots_max) {
        if slot.verdict.is_some() || !is_same(slot.outbound, sa) {
            break;
        }
        run.slots += 1;
        match if expired { Err(Verdict::OutSaExpired) } else { room.fit(slot) } {
            Ok(counted) => {
                slot.counted = counted;
                run.packets += 1;
                run.bytes += u64::from(counted);
            }
            Err(verdict) => slot.refuse(Some(sa), verdict),
        }
    }
    run
}

/// Numbers for a run.
#[inline]
fn number_run(slots: &mut [Slot<'_>], run: &Fitting, sa: &Sa, alone: bool, turn: &mut Turn<'_>) {
    let Fitting { mut packets, mut bytes, .. } = *run;
    let mut wanted = packets;
    let mut numbers = Numbers::NONE;
    for slot in slots.iter_mut().filter(|slot| slot.verdict.is_none()) {
        match sa.next_numbers(&mut numbers, wanted, alone) {
            Ok((sequence, iv)) => (slot.sequence, slot.iv) = (sequence, iv),
            Err(refusal) => {
                packets -= 1;
                bytes -= u64::from(slot.counted);
                slot.refuse(Some(sa), refusal_verdict(refusal));
            }
        }
        wanted -= 1;
    }
    if packets != 0 {
        sa.count(u64::from(packets), bytes, turn.now_ns, alone);
        if let Some(token) = sa.limit_crossed() {
            turn.events.limit_reached(token, turn.counters);
        }
    }
}

fn refusal_verdict(refusal: SealRefusal) -> Verdict {
    match refusal {
        SealRefusal::SequenceExhausted => Verdict::SequenceExhausted,
        SealRefusal::NonceExhausted => Verdict::NonceExhausted,
    }
}
