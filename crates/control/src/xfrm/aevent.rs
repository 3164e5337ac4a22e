//! GETAE and NEWAE: an SA's sequence numbers, window, counters and event thresholds.

use std::sync::Arc;

use rustix::io::Errno;
use wire::xfrm::lifetime::LifetimeCurrent;
use wire::xfrm::netlink::{Header, NLM_F_REPLACE};
use wire::xfrm::number::{ae, attr, group, msg};
use wire::xfrm::replay::{ReplayState, ReplayStateEsn};
use wire::xfrm::sa::AeventId;

use super::delivery::Delivery;
use super::failure::Failure;
use super::notice::{self, SaView};
use super::replay::ReplayValue;
use super::request::Request;
use super::sa::{AeventThresholds, Body, SaId};
use super::sa_request::bitmap;
use super::server::{Change, Server};

impl Server {
    /// GETAE.
    pub(super) fn get_aevent(
        &mut self,
        request: &Request<'_>,
        out: &mut Vec<Delivery>,
    ) -> Result<(), Failure> {
        let wanted: AeventId = request.fixed()?;
        let id = self.find_sa(&wanted.sa_id, request.mark()).ok_or(Errno::SRCH)?;
        let sa = self.sad.get(id).ok_or(Errno::SRCH)?;
        let header = self.event_header(request);
        let header = Header { kind: msg::NEWAE, ..header };
        let view = SaView::new(id, &sa, request.counters);
        out.push(Delivery::Reply(notice::aevent(header, &view, wanted.flags)));
        self.sad.edit(id, |sa| sa.numbers_read = Some(request.now));
        Ok(())
    }

    /// NEWAE.
    pub(super) fn set_aevent(
        &mut self,
        request: &Request<'_>,
        out: &mut Vec<Delivery>,
    ) -> Result<(), Failure> {
        let wanted: AeventId = request.fixed()?;
        let attributes = &request.attributes;
        let settable = [
            attr::LTIME_VAL,
            attr::REPLAY_VAL,
            attr::REPLAY_ESN_VAL,
            attr::ETIMER_THRESH,
            attr::REPLAY_THRESH,
        ];
        if !settable.iter().any(|&kind| attributes.has(kind))
            || request.header().flags & NLM_F_REPLACE == 0
        {
            return Err(Errno::INVAL.into());
        }
        let id = self.find_sa(&wanted.sa_id, request.mark()).ok_or(Errno::SRCH)?;
        let replay = self.replacement(id, request)?;
        self.set_usage(id, request);
        let changed = self.sad.edit(id, |sa| {
            let AeventThresholds { packets, ticks } = sa.thresholds;
            sa.thresholds = AeventThresholds {
                packets: attributes.read(attr::REPLAY_THRESH).unwrap_or(packets),
                ticks: attributes.read(attr::ETIMER_THRESH).unwrap_or(ticks),
            };
            let Body::Valid(record) = &mut sa.body else { return None };
            if let Some(age) = attributes.read(attr::MTIMER_THRESH) {
                Arc::make_mut(record).parameters.mapping_max_age_s = age;
            }
            Arc::make_mut(record).replay = replay?;
            Some(Change::SaReplaySet(Arc::clone(record)))
        });
        self.changes.extend(changed.ok_or(Errno::SRCH)?);
        let header = self.event_header(request);
        if let Some(sa) = self.sad.get(id) {
            let view = SaView::new(id, &sa, request.counters).with_stored_numbers();
            self.emit(out, group::AEVENTS, || notice::aevent(header, &view, ae::CU));
        }
        Ok(())
    }

    /// The sequence numbers that a NEWAE sets, checked against the SA's window; `None` when it
    /// sets none. A value in the form that the SA does not use is ignored.
    fn replacement(&self, id: SaId, request: &Request<'_>) -> Result<Option<ReplayValue>, Failure> {
        let sa = self.sad.get(id).ok_or(Errno::SRCH)?;
        let Some(record) = sa.record() else { return Err(Errno::INVAL.into()) };
        let attributes = &request.attributes;
        let ReplayValue::Wide { head: current, .. } = &record.replay else {
            let state: Option<ReplayState> = attributes.read(attr::REPLAY_VAL);
            return Ok(state.map(ReplayValue::Legacy));
        };
        let Some(attribute) = attributes.get(attr::REPLAY_ESN_VAL) else { return Ok(None) };
        let head: ReplayStateEsn = attribute.read().unwrap_or_default();
        if (attribute.payload.len() as u64) < head.wire_len()
            || head.bmp_len != current.bmp_len
            || head.replay_window > head.bmp_len.saturating_mul(32)
        {
            return Err(Errno::INVAL.into());
        }
        Ok(Some(ReplayValue::Wide { bitmap: bitmap(&head, attribute.payload), head }))
    }

    /// Sets the counters so that, with the data plane's added, they show what was asked for.
    fn set_usage(&mut self, id: SaId, request: &Request<'_>) {
        let Some(usage) = request.attributes.read::<LifetimeCurrent>(attr::LTIME_VAL) else {
            return;
        };
        let live = request.counters.sa(id).unwrap_or_default();
        let base = LifetimeCurrent {
            bytes: usage.bytes.wrapping_sub(live.bytes),
            packets: usage.packets.wrapping_sub(live.packets),
            ..usage
        };
        self.sad.edit(id, |sa| sa.base = base);
    }
}
