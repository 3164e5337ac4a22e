//! The ports as the kernel has them: interfaces with their steering programs.

mod attached;

use std::net::IpAddr;

use dataplane::encapsulation::PortSet;
use tracing::{error, warn};
use wire::ethernet::MacAddr;
use xsk::{AttachMode, AttachWish, Steer, XdpPort, XskError};

use self::attached::{Attached, Place};
use crate::config::{Config, Mode};
use crate::route_feed::{Kernel, Link};

/// One interface with its program.
pub struct PortProgram {
    /// The port's name.
    pub name: String,
    /// The interface's name when the gateway started.
    pub interface: String,
    /// Its index.
    pub ifindex: u32,
    /// The program.
    pub steer: Steer,
    /// "native" or "generic" once attached.
    pub mode: &'static str,
    /// Whether all sockets share memory with the driver.
    pub zero_copy: bool,
    /// Receive queues served.
    pub queues: u32,
    mac: MacAddr,
    /// It gets its packets from other interfaces of this host.
    stacked: bool,
    /// Its MTU is larger than frames hold, as has been told.
    outgrown: bool,
    /// What became of its interface.
    fate: Fate,
}

/// What becomes of a port's interface.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It is there.
    There,
    /// It was removed. Sockets and program went with it.
    Gone,
    /// Another one of its name came, which is not served.
    Followed,
}

impl PortProgram {
    /// Tells people that the interface is gone, and that another one came in its place. An interface that
    /// comes back from another network namespace may have its index again, but not its sockets.
    fn follow_fate(&mut self, kernel: &Kernel) {
        let Self { name, interface, .. } = self;
        if self.fate == Fate::There && kernel.link(self.ifindex).is_none() {
            self.fate = Fate::Gone;
            error!(
                port = name,
                interface,
                "the interface is gone, and the port is dead: make it anew, then run `peregrine upgrade`, \
                 or take the port out of the configuration"
            );
        }
        if self.fate == Fate::Gone && kernel.link_named(interface).is_some() {
            self.fate = Fate::Followed;
            error!(
                port = name,
                interface,
                "there is an interface of this name again, which the port does not serve: run \
                 `peregrine upgrade`, which takes it up while tunnels go on"
            );
        }
    }
}

/// All ports, in the order in which workers hold them.
#[derive(Default)]
pub struct Ports {
    programs: Vec<PortProgram>,
    /// The largest MTU that frames hold.
    mtu_max: u32,
    /// What the programs know of [`Ports::follow_esp_ports`].
    esp_ports: PortSet,
    attached: Attached,
}

impl Ports {
    /// Loads a program for each interface. Nothing is attached.
    pub fn load(config: &Config, kernel: &Kernel) -> Result<Ports, XskError> {
        let load = |port: &crate::config::PortConfig| {
            let mut steer = Steer::load(&port.interface)?;
            steer.set_spread(config.unordered);
            let link = kernel.link_named(&port.interface);
            Ok(PortProgram {
                name: port.label().to_owned(),
                interface: port.interface.clone(),
                ifindex: link.map_or(0, |link| link.ifindex),
                steer,
                mode: "none",
                zero_copy: true,
                queues: 0,
                mac: link.and_then(|link| link.mac).unwrap_or(MacAddr::ZERO),
                stacked: link.is_some_and(is_stacked),
                outgrown: false,
                fate: Fate::There,
            })
        };
        let programs = config.ports.iter().map(load).collect::<Result<_, XskError>>()?;
        Ok(Ports { programs, mtu_max: config.port_mtu_max(), ..Ports::default() })
    }

    /// Each port's program.
    pub fn iter(&self) -> impl Iterator<Item = &PortProgram> {
        self.programs.iter()
    }

    /// Each port's interface index.
    pub fn ifindexes(&self) -> impl Iterator<Item = u32> {
        self.programs.iter().map(|port| port.ifindex)
    }

    /// Each port's name and the mode of its program.
    pub fn modes(&self) -> impl Iterator<Item = (String, &'static str)> {
        self.programs.iter().map(|port| (port.name.clone(), port.mode))
    }

    /// Gives the packets of a port's queues to a worker's sockets.
    pub fn register(&mut self, port: usize, sockets: &XdpPort) -> Result<(), XskError> {
        let program = &mut self.programs[port];
        program.zero_copy &= sockets.is_zero_copy();
        for lane in sockets.lanes() {
            program.steer.register(lane)?;
            program.queues += u32::from(lane.index == 0);
        }
        Ok(())
    }

    /// Puts the programs on their interfaces: packets come from now on. Those of earlier processes on
    /// interfaces that are no ports any more are taken off.
    pub fn attach(&mut self, config: &Config) -> Result<(), XskError> {
        let own = self.places()?;
        self.attached = Attached::open(&config.control.run_dir.join(&config.name), &own);
        self.attach_own(config)?;
        self.attached.settle(&own);
        Ok(())
    }

    fn places(&self) -> Result<Vec<Place>, XskError> {
        let place = |port: &PortProgram| {
            let ((ifindex, program), interface) = (port.steer.id()?, port.interface.clone());
            Ok(Place { ifindex, program, interface })
        };
        self.programs.iter().map(place).collect()
    }

    fn attach_own(&mut self, config: &Config) -> Result<(), XskError> {
        for (program, port) in self.programs.iter_mut().zip(&config.ports) {
            let wish = match port.mode {
                Mode::Auto => AttachWish::Any,
                Mode::Native => AttachWish::Native,
                Mode::Generic => AttachWish::Generic,
            };
            program.mode = match program.steer.attach_as(wish)? {
                AttachMode::Native => "native",
                AttachMode::Generic(refusal) => {
                    if let Some(refusal) = refusal {
                        let interface = &program.interface;
                        warn!(interface, %refusal, "the driver has no XDP: generic mode");
                    }
                    "generic"
                }
            };
            if program.stacked && program.mode == "generic" {
                let interface = &program.interface;
                warn!(
                    interface,
                    "the interfaces below a port in generic mode must not merge packets, which would be \
                     lost as too long: ethtool -K LOWER gro off"
                );
            }
        }
        Ok(())
    }

    /// Takes the programs off: the kernel forwards again.
    pub fn detach(&mut self) {
        for program in &mut self.programs {
            if let Err(error) = program.steer.detach() {
                warn!(interface = program.interface, %error, "a program was not taken off");
            }
        }
        self.attached.end();
    }

    /// Tells every program which addresses are the host's own, and whether its port has one.
    pub fn follow_addresses(&mut self, kernel: &Kernel) -> Result<(), XskError> {
        let addresses = local_addresses(kernel);
        for port in &mut self.programs {
            port.steer.set_awaits_dhcp(awaits_dhcp(kernel, port.ifindex));
        }
        self.programs.iter_mut().try_for_each(|port| port.steer.set_local_addresses(&addresses))
    }

    /// Tells every program on which UDP ports ESP arrives. In force at once.
    pub fn follow_esp_ports(&mut self, ports: &PortSet) {
        for (port, on) in ports.changed_since(&self.esp_ports) {
            for program in &mut self.programs {
                program.steer.set_esp_port(port, on);
            }
        }
        self.esp_ports = ports.clone();
    }

    /// Tells every program its interface's Ethernet address, if that changed, and people what they should
    /// know of an interface.
    pub fn follow_links(&mut self, kernel: &Kernel) {
        for port in &mut self.programs {
            port.follow_fate(kernel);
            let Some(link) = kernel.link(port.ifindex) else { continue };
            if let Some(mac) = link.mac.filter(|mac| *mac != port.mac) {
                port.mac = mac;
                port.steer.set_ethernet_address(mac.0);
            }
            let outgrown = link.mtu > self.mtu_max;
            if outgrown && !port.outgrown {
                let (port, interface, mtu, limit) =
                    (&port.name, &link.name, link.mtu, self.mtu_max);
                warn!(
                    port,
                    interface,
                    mtu,
                    limit,
                    "the interface's MTU is larger than frames hold, and longer packets are lost (drop_oversize): \
                     lower it, or raise frame_size in the configuration and run `peregrine upgrade`"
                );
            }
            port.outgrown = outgrown;
        }
    }
}

/// Whether an interface has others below it, which merge packets (GRO) before a program in generic mode sees
/// them. `parent` does not tell: for a veth it is the far end.
fn is_stacked(link: &Link) -> bool {
    let kinds = ["vlan", "bond", "team", "bridge", "macvlan", "macvtap", "ipvlan", "ipvtap"];
    link.kind.as_deref().is_some_and(|kind| kinds.contains(&kind))
}

/// Whether an interface may be about to get an address by DHCP: it has none of IPv4. One that it gave itself
/// meanwhile (RFC 3927, 169.254.0.0/16) is none.
fn awaits_dhcp(kernel: &Kernel, ifindex: u32) -> bool {
    let is_one = |address| matches!(address, IpAddr::V4(one) if !one.is_link_local());
    !kernel.addresses().any(|one| one.ifindex == ifindex && is_one(one.address))
}

/// The host's addresses, what local routes make such, and the broadcast addresses of its networks.
fn local_addresses(kernel: &Kernel) -> Vec<IpAddr> {
    let routed = kernel.host_routes().map(|route| route.prefix.address());
    let mut addresses: Vec<IpAddr> =
        kernel.addresses().map(|address| address.address).chain(routed).collect();
    addresses.sort();
    addresses.dedup();
    addresses
}
