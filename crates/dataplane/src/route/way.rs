//! A way out: a port, and the link header with which packets leave by it.

use wire::Overlay;
use wire::ethernet::{EtherType, HEADER_LEN, Header, MacAddr};
use xsk::Frame;

use crate::batch::Slot;
use crate::plain::PlainHeader;
use crate::verdict::Verdict;
use crate::view::PortInfo;

/// Where packets leave, and how.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Way {
    port: u16,
    mtu: usize,
    /// The link header's first eight bytes, and its last.
    header: [u64; 2],
}

/// Leaves of a frame so many bytes of it behind its first `at`, and room for a link header in front of them.
#[inline(always)]
pub(crate) fn leave_framed(frame: &mut Frame, at: usize, len: usize) -> Option<&mut [u8]> {
    frame.narrow(at.checked_sub(HEADER_LEN)?, HEADER_LEN + len)
}

impl Way {
    /// By a port to a neighbour, whose packets are of this kind; `None` if there is no room for a link header.
    pub(super) fn by(
        port: u16,
        info: &PortInfo,
        mac: MacAddr,
        ethertype: EtherType,
    ) -> Option<Way> {
        let mut header = [0; HEADER_LEN];
        Header::new(mac, info.mac, ethertype).emit(&mut header).ok()?;
        let piece = |bytes: &[u8]| bytes.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
        let header = [piece(&header)?, piece(&header[HEADER_LEN - 8..])?];
        Some(Way { port, mtu: info.mtu as usize, header })
    }

    /// The bytes that a packet may have, without a link header.
    #[inline(always)]
    pub(crate) fn mtu(&self) -> usize {
        self.mtu
    }

    /// The port that packets leave by.
    #[inline(always)]
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Writes a packet's link header.
    #[inline(always)]
    pub(crate) fn write(&self, link: &mut [u8; HEADER_LEN]) {
        link[..8].copy_from_slice(&self.header[0].to_ne_bytes());
        link[HEADER_LEN - 8..].copy_from_slice(&self.header[1].to_ne_bytes());
    }

    /// Takes a hop from the packet that begins behind the first `at` bytes of a frame, gives it a link header in the last of
    /// those, and says where it leaves. It was found to be plain before, with such a header.
    #[inline(always)]
    pub(crate) fn pass_on(
        &self,
        slot: &mut Slot<'_>,
        at: usize,
        header: &impl PlainHeader,
    ) -> Result<(), Verdict> {
        let len = usize::from(header.total_len());
        if len > self.mtu {
            return Err(Verdict::TooBig);
        }
        let framed = leave_framed(&mut slot.frame, at, len);
        self.lead(framed.ok_or(Verdict::EthernetTruncated)?, header)?;
        slot.egress = Some(self.port);
        Ok(())
    }

    /// The same of one that has room for a link header in front of it, and nothing else around it.
    #[inline(always)]
    pub(crate) fn pass_on_framed(
        &self,
        slot: &mut Slot<'_>,
        header: &impl PlainHeader,
    ) -> Result<(), Verdict> {
        if slot.frame.len() > HEADER_LEN + self.mtu {
            return Err(Verdict::TooBig);
        }
        self.lead(slot.frame.bytes_mut(), header)?;
        slot.egress = Some(self.port);
        Ok(())
    }

    /// Takes a hop from a packet behind its link header, and writes that.
    #[inline(always)]
    fn lead(&self, framed: &mut [u8], header: &impl PlainHeader) -> Result<(), Verdict> {
        let (link, packet) = framed.split_first_chunk_mut().ok_or(Verdict::EthernetTruncated)?;
        header.take_hop_of(packet).ok_or(Verdict::TtlExpired)?;
        self.write(link);
        Ok(())
    }

    /// Gives a packet its link header, and says where it leaves.
    #[inline(always)]
    pub(crate) fn send_off(&self, slot: &mut Slot<'_>) -> Result<(), Verdict> {
        if slot.frame.len() > self.mtu {
            return Err(Verdict::TooBig);
        }
        let room = slot.frame.push_front(HEADER_LEN).and_then(|room| room.first_chunk_mut());
        self.write(room.ok_or(Verdict::NoRoom)?);
        slot.egress = Some(self.port);
        Ok(())
    }
}
