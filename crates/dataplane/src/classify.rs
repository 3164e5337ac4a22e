//! Third stage: is it ESP for this host, and which SA opens it?
//!
//! This is the look-up pass of opening: it touches the database for the whole batch before the
//! cipher runs. Transit packets stay as they are. Policies are asked later, by `inspect`.

use std::net::IpAddr;

use wire::Overlay;
use wire::esp;
use wire::flow::Fragment;
use wire::protocol;

use crate::batch::{Batch, Slot};
use crate::punt::punt;
use crate::verdict::Verdict;
use crate::view::View;

/// Finds the SA of every ESP packet for this host, and ends what else is for this host.
pub(crate) fn classify<'v>(batch: &mut Batch<'v>, view: &'v View) {
    for slot in batch.undecided().filter(|slot| !slot.is_hosts(view)) {
        if let Err(verdict) = classify_one(slot, view) {
            slot.decide(verdict);
        }
    }
}

fn classify_one<'v>(slot: &mut Slot<'v>, view: &'v View) -> Result<(), Verdict> {
    if !is_local(slot.flow.dst, view) {
        return Ok(());
    }
    if slot.flow.protocol != protocol::ESP {
        return Err(punt(false));
    }
    // RFC 4303 §3.4.1: a fragment must be reassembled before ESP; we do not reassemble.
    if slot.flow.fragment != Fragment::Whole {
        return Err(Verdict::FragmentEsp);
    }
    let payload = slot.frame.bytes().get(usize::from(slot.flow.header_len)..).unwrap_or(&[]);
    let (header, _) = esp::Header::over(payload).map_err(|_| Verdict::EspTruncated)?;
    let sa = view.sad.get(header.spi(), slot.flow.dst).ok_or(Verdict::NoState)?;
    slot.inbound = Some(sa);
    Ok(())
}

/// Whether an address is one of this host's.
#[inline]
pub(crate) fn is_local(address: IpAddr, view: &View) -> bool {
    view.local.get(&address).is_some()
}
