//! MAPPING: the peer of an SA in UDP sends from another address or port than the SA says, because a
//! NAT between forgot or the peer moved. The IKE daemon hears of it and moves the SA.

use std::net::IpAddr;

use wire::xfrm::address::family_of;
use wire::xfrm::number::{IPPROTO_ESP, group};

use super::delivery::Delivery;
use super::notice;
use super::sad::SpiKey;
use super::server::Server;

/// Where authentic packets of an SA came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The SA's SPI.
    pub spi: u32,
    /// The SA's destination.
    pub destination: IpAddr,
    /// The address they came from.
    pub source: IpAddr,
    /// The UDP port they came from.
    pub port: u16,
}

impl Server {
    /// Says that packets of an SA come from elsewhere. As in the kernel's `km_new_mapping`, an SA
    /// with a maximum age (`XFRMA_MTIMER_THRESH`) has the same port announced again only after it.
    /// Unlike there, the largest age is taken at its word: never. Nothing if the SA is gone, is not
    /// in UDP, or was moved there meanwhile.
    pub fn mapping_changed(&mut self, mapping: &Mapping, now: u64) -> Vec<Delivery> {
        let Mapping { spi, destination, source, port } = *mapping;
        let mut out = Vec::new();
        let key = SpiKey::new(&destination.into(), spi, IPPROTO_ESP, family_of(destination));
        let found = self.sad.find(&key, 0);
        let Some((id, sa)) = found.and_then(|id| Some((id, self.sad.get(id)?))) else { return out };
        let parameters = sa.parameters();
        let expected = parameters.encapsulation.map(|encap| encap.encap_sport.get());
        let max_age_s = parameters.mapping_max_age_s;
        if expected.is_none()
            || (expected, parameters.source()) == (Some(port), source)
            || max_age_s == u32::MAX
        {
            return out;
        }
        let known = sa.announced.is_some_and(|(announced, at)| {
            announced == port && now.saturating_sub(at) <= max_age_s.into()
        });
        if max_age_s != 0 && known {
            return out;
        }
        self.sad.edit(id, |sa| sa.announced = Some((port, now)));
        self.emit(&mut out, group::MAPPING, || notice::mapping(sa.parameters(), source, port));
        out
    }
}
