//! The UDP ports of this host on which ESP arrives (RFC 3948): the destination ports of the SAs that
//! end at one of its addresses, each for as long as there is such an SA.
//!
//! Linux learns these ports from sockets that an IKE daemon marked; the daemon's socket is the
//! kernel's here, and what it is marked for nobody can see. Its SAs say the same.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use dataplane::encapsulation::PortSet;
use dataplane::sa::Sa;

/// The receiving end of an SA in UDP.
type End = (IpAddr, u16);

/// Counts the SAs of each end.
#[derive(Debug, Default)]
pub struct EncapsulationPorts {
    /// SAs, and whether the address is this host's.
    ends: HashMap<End, (usize, bool)>,
    /// Ends at addresses of this host.
    local: BTreeMap<u16, usize>,
}

impl EncapsulationPorts {
    /// Counts an SA in.
    pub fn add(&mut self, sa: &Sa, is_local: impl Fn(IpAddr) -> bool, ports: &mut PortSet) {
        let Some(end) = end_of(sa) else { return };
        let (count, local) = self.ends.entry(end).or_insert_with(|| (0, is_local(end.0)));
        *count += 1;
        if *count == 1 && *local {
            *self.local.entry(end.1).or_default() += 1;
            ports.set(end.1, true);
        }
    }

    /// Counts an SA out that was counted in.
    pub fn remove(&mut self, sa: &Sa, ports: &mut PortSet) {
        let Some(end) = end_of(sa) else { return };
        let Some((count, local)) = self.ends.get_mut(&end) else { return };
        *count -= 1;
        if *count == 0 {
            let local = *local;
            self.ends.remove(&end);
            if local && let Some(ends) = self.local.get_mut(&end.1) {
                *ends -= 1;
                if *ends == 0 {
                    self.local.remove(&end.1);
                    ports.set(end.1, false);
                }
            }
        }
    }

    /// The addresses of this host have changed.
    pub fn relocate(&mut self, is_local: impl Fn(IpAddr) -> bool, ports: &mut PortSet) {
        let before = std::mem::take(&mut self.local);
        for ((address, port), (_, local)) in &mut self.ends {
            *local = is_local(*address);
            if *local {
                *self.local.entry(*port).or_default() += 1;
            }
        }
        for port in before.keys().chain(self.local.keys()) {
            ports.set(*port, self.local.contains_key(port));
        }
    }
}

fn end_of(sa: &Sa) -> Option<End> {
    sa.encapsulation().map(|udp| (sa.destination(), udp.destination_port))
}

#[cfg(test)]
mod tests {
    use super::*;

    use crypto::{Engine, SharedKey};
    use dataplane::encapsulation::UdpEncapsulation;
    use dataplane::sa::{HardLimits, Mode, SaConfig, SaFlags};

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const ALSO_HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));
    const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 3));

    fn sa(destination: IpAddr, port: Option<u16>) -> Sa {
        let encapsulation =
            port.map(|port| UdpEncapsulation { source_port: 1, destination_port: port });
        Sa::new(SaConfig {
            mode: Mode::Tunnel,
            spi: 0x101,
            source: THERE,
            destination,
            reqid: 1,
            key: SharedKey::new(Engine::AwsLc, &[7; 16]).unwrap(),
            salt: [0; 4],
            extended_sequence: false,
            replay_window: 0,
            selector: None,
            flags: SaFlags::default(),
            encapsulation,
            limits: HardLimits::NONE,
            sent: 0,
            received: 0,
            received_bitmap: None,
            if_id: 0,
            added_ns: 0,
        })
        .unwrap()
    }

    fn members(ports: &PortSet) -> Vec<u16> {
        (0..=u16::MAX).filter(|port| ports.contains(*port)).collect()
    }

    #[test]
    fn a_port_is_there_as_long_as_an_sa_that_ends_here() {
        let (mut counts, mut ports) = (EncapsulationPorts::default(), PortSet::default());
        let is_local = |address| address == HERE || address == ALSO_HERE;
        let sas = [
            sa(HERE, Some(4500)),
            sa(HERE, Some(4500)),
            sa(ALSO_HERE, Some(4500)),
            sa(ALSO_HERE, Some(61_000)),
            sa(THERE, Some(999)),
            sa(HERE, None),
        ];
        for one in &sas {
            counts.add(one, is_local, &mut ports);
        }
        assert_eq!(members(&ports), [4500, 61_000]);
        for (gone, left) in [
            (0, vec![4500, 61_000]),
            (1, vec![4500, 61_000]),
            (3, vec![4500]),
            (4, vec![4500]),
            (5, vec![4500]),
            (2, vec![]),
        ] {
            counts.remove(&sas[gone], &mut ports);
            assert_eq!(members(&ports), left, "after {gone}");
        }
        assert!(counts.ends.is_empty() && counts.local.is_empty());
    }

    #[test]
    fn ports_follow_the_hosts_addresses() {
        let (mut counts, mut ports) = (EncapsulationPorts::default(), PortSet::default());
        let sas = [sa(HERE, Some(4500)), sa(THERE, Some(4500)), sa(THERE, Some(999))];
        for one in &sas {
            counts.add(one, |_| false, &mut ports);
        }
        assert!(members(&ports).is_empty());
        counts.relocate(|address| address == THERE, &mut ports);
        assert_eq!(members(&ports), [999, 4500]);
        counts.relocate(|address| address == HERE, &mut ports);
        assert_eq!(members(&ports), [4500]);
        counts.remove(&sas[0], &mut ports);
        assert!(members(&ports).is_empty());
        counts.remove(&sas[1], &mut ports);
        counts.remove(&sas[2], &mut ports);
        assert!(counts.ends.is_empty());
    }
}
