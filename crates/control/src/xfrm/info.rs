//! Sizes of the databases, hash thresholds, and the default actions.

use rustix::io::Errno;
use wire::xfrm::Builder;
use wire::xfrm::netlink::Header;
use wire::xfrm::number::{default_action, direction, group, msg, sad_attr, spd_attr};
use wire::xfrm::policy::UserpolicyDefault;
use wire::xfrm::statistics::{SadHashInfo, SpdHashInfo, SpdHashThreshold, SpdInfo};

use super::delivery::Delivery;
use super::failure::Failure;
use super::policy::Defaults;
use super::request::Request;
use super::secret::Bytes;
use super::server::{Change, Server};
use super::spd::BUCKETS_MAX;

/// Hash buckets of the kernel's SAD at the start.
const SAD_BUCKETS_MIN: usize = 8;

/// Prefix lengths from which a kernel would hash policies. Kept because they are shown: our tables
/// need no tuning.
#[derive(Clone, Copy, Debug)]
pub(super) struct Thresholds {
    v4: SpdHashThreshold,
    v6: SpdHashThreshold,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            v4: SpdHashThreshold { lbits: 32, rbits: 32 },
            v6: SpdHashThreshold { lbits: 128, rbits: 128 },
        }
    }
}

impl Thresholds {
    /// For the journal.
    pub(super) fn to_bytes(self) -> [u8; 4] {
        [self.v4.lbits, self.v4.rbits, self.v6.lbits, self.v6.rbits]
    }

    /// From the journal.
    pub(super) fn from_bytes([v4_left, v4_right, v6_left, v6_right]: [u8; 4]) -> Self {
        Self {
            v4: SpdHashThreshold { lbits: v4_left, rbits: v4_right },
            v6: SpdHashThreshold { lbits: v6_left, rbits: v6_right },
        }
    }
}

fn reply_header(request: &Request<'_>, kind: u16) -> Header {
    let (seq, pid) = (request.header().seq, request.client.port);
    Header { kind, seq, pid, ..Header::default() }
}

impl Server {
    /// GETSADINFO.
    pub(super) fn get_sad_info(
        &mut self,
        request: &Request<'_>,
        out: &mut Vec<Delivery>,
    ) -> Result<(), Failure> {
        let flags: u32 = request.fixed()?;
        let count = self.sad.len();
        // The kernel doubles when there are more SAs than buckets less one.
        let buckets = (self.sad.most() + 1).next_power_of_two();
        let buckets = buckets.clamp(SAD_BUCKETS_MIN, BUCKETS_MAX as usize);
        let mut bytes = Bytes::for_reply();
        Builder::new(bytes.vec(), reply_header(request, msg::NEWSADINFO))
            .fixed(&flags)
            .attribute(sad_attr::CNT, &u32::try_from(count).unwrap_or(u32::MAX))
            .attribute(sad_attr::HINFO, &SadHashInfo { count: buckets as u32, max: BUCKETS_MAX })
            .finish();
        out.push(Delivery::Reply(bytes));
        Ok(())
    }

    /// GETSPDINFO.
    pub(super) fn get_spd_info(
        &mut self,
        request: &Request<'_>,
        out: &mut Vec<Delivery>,
    ) -> Result<(), Failure> {
        let flags: u32 = request.fixed()?;
        let info = SpdInfo {
            input: self.spd.count_of(direction::IN),
            output: self.spd.count_of(direction::OUT),
            forward: self.spd.count_of(direction::FWD),
            ..SpdInfo::default()
        };
        let mut bytes = Bytes::for_reply();
        Builder::new(bytes.vec(), reply_header(request, msg::NEWSPDINFO))
            .fixed(&flags)
            .attribute(spd_attr::INFO, &info)
            .attribute(
                spd_attr::HINFO,
                &SpdHashInfo { count: self.spd.index_mask(), max: BUCKETS_MAX },
            )
            .attribute(spd_attr::IPV4_HTHRESH, &self.thresholds.v4)
            .attribute(spd_attr::IPV6_HTHRESH, &self.thresholds.v6)
            .finish();
        out.push(Delivery::Reply(bytes));
        Ok(())
    }

    /// NEWSPDINFO: new thresholds.
    pub(super) fn set_spd_info(&mut self, request: &Request<'_>) -> Result<(), Failure> {
        let v4: Option<SpdHashThreshold> = request.attributes.read(spd_attr::IPV4_HTHRESH);
        let v6: Option<SpdHashThreshold> = request.attributes.read(spd_attr::IPV6_HTHRESH);
        if v4.is_some_and(|v4| v4.lbits > 32 || v4.rbits > 32)
            || v6.is_some_and(|v6| v6.lbits > 128 || v6.rbits > 128)
        {
            return Err(Errno::INVAL.into());
        }
        self.thresholds.v4 = v4.unwrap_or(self.thresholds.v4);
        self.thresholds.v6 = v6.unwrap_or(self.thresholds.v6);
        self.marks_touched = true;
        Ok(())
    }

    /// What happens to packets without a policy.
    pub fn defaults(&self) -> Defaults {
        self.defaults
    }

    /// SETDEFAULT. Values that mean nothing leave the old ones.
    pub(super) fn set_defaults(
        &mut self,
        request: &Request<'_>,
        out: &mut Vec<Delivery>,
    ) -> Result<(), Failure> {
        let wanted: UserpolicyDefault = request.fixed()?;
        let choose = |new: u8, old: u8| match new {
            default_action::BLOCK | default_action::ACCEPT => new,
            _ => old,
        };
        self.defaults = Defaults {
            input: choose(wanted.input, self.defaults.input),
            forward: choose(wanted.forward, self.defaults.forward),
            output: choose(wanted.output, self.defaults.output),
        };
        self.changes.push(Change::DefaultsChanged(self.defaults));
        self.marks_touched = true;
        let header = Header { kind: msg::GETDEFAULT, ..Header::default() };
        self.emit(out, group::POLICY, || self.defaults_message(header));
        Ok(())
    }

    /// GETDEFAULT.
    pub(super) fn get_defaults(
        &mut self,
        request: &Request<'_>,
        out: &mut Vec<Delivery>,
    ) -> Result<(), Failure> {
        let header = reply_header(request, msg::GETDEFAULT);
        out.push(Delivery::Reply(self.defaults_message(header)));
        Ok(())
    }

    fn defaults_message(&self, header: Header) -> Bytes {
        let Defaults { input, forward, output } = self.defaults;
        let mut bytes = Bytes::for_reply();
        Builder::new(bytes.vec(), header)
            .fixed(&UserpolicyDefault { input, forward, output })
            .finish();
        bytes
    }
}
