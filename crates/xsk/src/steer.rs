//! Loads `bpf/steer.bpf.c` for one interface and tells it what it needs to know.
//!
//! The order that loses nothing: load, set the addresses, open the ports and register their
//! sockets, and only then attach. Opening the ports first also refuses an interface that another
//! gateway serves, before its program is replaced. Dropping a [`Steer`] does **not** detach: only
//! [`Steer::detach`] does, so that every way to die but a clean stop fails closed.

use std::collections::HashSet;
use std::fmt;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::AsFd;

use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{MapCore, MapFlags};

use crate::error::XskError;
use crate::program::{self, AttachMode, AttachWish, Interface, VerdictCount};
use crate::sys;
use crate::xdp::Lane;

/// Generated from the C program.
#[allow(unsafe_code, missing_docs, clippy::all, clippy::undocumented_unsafe_blocks)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/steer.skel.rs"));
}

/// Names and meanings of the program's counters, in the order of `enum verdict` in steer.bpf.c.
const VERDICTS: [(&str, &str); 13] = [
    ("to_worker_transit", "To a worker: to be forwarded."),
    ("to_worker_esp", "To a worker: ESP to a local address."),
    ("to_worker_natt", "To a worker: ESP in UDP to a local address."),
    ("pass_not_ip", "To the kernel: neither IPv4 nor IPv6."),
    ("pass_not_ours", "To the kernel: addressed to another Ethernet address."),
    ("pass_local", "To the kernel: to a local address, and not ESP."),
    ("pass_keepalive", "To the kernel, which ignores it: a keepalive on a port of ESP in UDP."),
    ("pass_fragment", "To the kernel: a fragment to a local address."),
    ("pass_esp_reserved", "To the kernel: ESP with a reserved SPI, or cut short before it."),
    ("pass_control", "To the kernel: IPv6 link-local, multicast or IPv4 broadcast."),
    ("pass_dhcp", "To the kernel: a DHCP answer to the port itself, which has no IPv4 address."),
    ("drop_oversize", "Dropped: for a worker, and longer than one receive buffer."),
    ("drop_no_socket", "Dropped: for a worker, whose socket is gone or not yet registered."),
];

/// Sockets that a queue may have, as in steer.bpf.c.
const LANES_MAX: u32 = 64;

/// The steering program of one interface.
pub struct Steer {
    skeleton: skeleton::SteerSkel<'static>,
    interface: Interface,
    local: HashSet<IpAddr>,
}

impl fmt::Debug for Steer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steer").field("interface", &self.interface).finish_non_exhaustive()
    }
}

impl Steer {
    /// Loads the program for `interface`, of the calling thread's network namespace, and tells it
    /// the interface's Ethernet address. Nothing is attached yet.
    ///
    /// # Errors
    ///
    /// When there is no such interface, or the kernel does not load the program.
    pub fn load(interface: &str) -> Result<Steer, XskError> {
        let interface = Interface::find(interface)?;
        let mac = sys::interface_mac(interface.name())
            .map_err(|error| XskError::interface(interface.name(), error))?;
        let load_error = program::capture_loader_messages("peregrine_steer");
        // The loader wants a place that outlives it for one pointer; programs are loaded a few
        // times per process.
        let place = Box::leak(Box::new(MaybeUninit::uninit()));
        let open = skeleton::SteerSkelBuilder::default().open(place).map_err(&load_error)?;
        let skeleton = open.load().map_err(&load_error)?;
        let mut steer = Steer { skeleton, interface, local: HashSet::new() };
        steer.set_ethernet_address(mac);
        Ok(steer)
    }

    /// Tells the program that the interface's Ethernet address has changed.
    pub fn set_ethernet_address(&mut self, address: [u8; 6]) {
        let mut bytes = [0; 8];
        bytes[..6].copy_from_slice(&address);
        if let Some(variables) = &mut self.skeleton.maps.bss_data {
            variables.own_address = u64::from_ne_bytes(bytes);
        }
    }

    /// Whether ESP in UDP that comes to a port of a local address goes to the workers; no port's does
    /// at first. In force for the next packet.
    pub fn set_esp_port(&mut self, port: u16, on: bool) {
        if let Some(variables) = &mut self.skeleton.maps.bss_data {
            let word = &mut variables.esp_ports[usize::from(port) / 64];
            let bit = 1 << (port % 64);
            *word = if on { *word | bit } else { *word & !bit };
        }
    }

    /// Adds a local address: what is sent to it is not forwarded. Broadcast addresses of local
    /// networks count, they are the host's own.
    ///
    /// # Errors
    ///
    /// When the program's table (65 536 addresses of each family) is full.
    pub fn add_local_address(&mut self, address: IpAddr) -> Result<(), XskError> {
        if self.local.contains(&address) {
            return Ok(());
        }
        let result = match address {
            IpAddr::V4(address) => {
                self.skeleton.maps.local_v4.update(&address.octets(), &[1], MapFlags::ANY)
            }
            IpAddr::V6(address) => {
                self.skeleton.maps.local_v6.update(&address.octets(), &[1], MapFlags::ANY)
            }
        };
        result.map_err(|error| self.map_error("add a local address", &error))?;
        self.local.insert(address);
        Ok(())
    }

    /// Removes a local address; one that is not there is no error.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn remove_local_address(&mut self, address: IpAddr) -> Result<(), XskError> {
        if !self.local.contains(&address) {
            return Ok(());
        }
        let result = match address {
            IpAddr::V4(address) => self.skeleton.maps.local_v4.delete(&address.octets()),
            IpAddr::V6(address) => self.skeleton.maps.local_v6.delete(&address.octets()),
        };
        result.map_err(|error| self.map_error("remove a local address", &error))?;
        self.local.remove(&address);
        Ok(())
    }

    /// Makes the local addresses exactly these; new ones are added before old ones are removed.
    ///
    /// # Errors
    ///
    /// As [`Steer::add_local_address`].
    pub fn set_local_addresses(&mut self, addresses: &[IpAddr]) -> Result<(), XskError> {
        for &address in addresses {
            self.add_local_address(address)?;
        }
        let new: HashSet<IpAddr> = addresses.iter().copied().collect();
        let old: Vec<IpAddr> = self.local.difference(&new).copied().collect();
        old.into_iter().try_for_each(|address| self.remove_local_address(address))
    }

    /// Gives the packets of a queue, or a worker's share of them, to a socket, as
    /// [`XdpPort::lanes`](crate::XdpPort::lanes) lists them. The kernel forgets it when the socket is
    /// closed. Packets of lanes that are not registered die, so attach when all are.
    ///
    /// # Errors
    ///
    /// When the kernel refuses, the queue is not below 256, or it has more than 64 sockets.
    pub fn register(&mut self, lane: Lane<'_>) -> Result<(), XskError> {
        let Lane { queue, index, count, socket } = lane;
        let variables = self.skeleton.maps.bss_data.as_mut();
        let lanes = variables.and_then(|variables| variables.lanes.get_mut(queue as usize));
        let Some(lanes) = lanes.filter(|_| index < LANES_MAX) else {
            let source = std::io::Error::other("at most 256 queues with 64 sockets each");
            return Err(XskError::kernel("register a socket", self.interface.name(), source));
        };
        *lanes = count.clamp(1, LANES_MAX) as u8;
        let key = queue * LANES_MAX + index;
        program::register(&self.skeleton.maps.xsks, self.interface.name(), key, socket)
    }

    /// Whether DHCP answers to the interface itself go to the kernel although what they are sent to is no
    /// local address: a server sends them to the address that it offers. Not so at first. For as long as
    /// the interface has no IPv4 address; the client's address in them is the interface's.
    pub fn set_awaits_dhcp(&mut self, on: bool) {
        if let Some(variables) = &mut self.skeleton.maps.bss_data {
            variables.awaits_dhcp = on.into();
        }
    }

    /// Whether packets to be forwarded are spread over a queue's sockets by their addresses. If not, as at
    /// first, the queue's first socket gets them all, in their order.
    pub fn set_spread(&mut self, on: bool) {
        if let Some(variables) = &mut self.skeleton.maps.bss_data {
            variables.spread = on.into();
        }
    }

    /// Puts the program on the interface, in place of an older one of ours.
    ///
    /// # Errors
    ///
    /// [`XskError::ForeignProgram`] when another one is there, [`XskError::NoXdp`],
    /// [`XskError::Permission`].
    pub fn attach(&mut self) -> Result<AttachMode, XskError> {
        self.attach_as(AttachWish::Any)
    }

    /// As [`Steer::attach`], where it is wished.
    ///
    /// # Errors
    ///
    /// As [`Steer::attach`].
    pub fn attach_as(&mut self, wish: AttachWish) -> Result<AttachMode, XskError> {
        self.interface.attach(self.skeleton.progs.peregrine_steer.as_fd(), wish)
    }

    /// Takes the program off, if it still is on the interface: from then on the kernel forwards.
    /// Returns whether it was.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn detach(&mut self) -> Result<bool, XskError> {
        self.interface.detach(self.skeleton.progs.peregrine_steer.as_fd())
    }

    /// The index of the interface, and the id of the program, by which the kernel tells it from all others since
    /// it started.
    ///
    /// # Errors
    ///
    /// When the kernel does not say.
    pub fn id(&self) -> Result<(u32, u32), XskError> {
        let info = sys::program_info(self.skeleton.progs.peregrine_steer.as_fd());
        let (id, _) = info.map_err(|error| self.interface.error(error))?;
        Ok((self.interface.index(), id))
    }

    /// What became of the packets since loading; the counts add up to the packets seen.
    pub fn counters(&self) -> [VerdictCount; VERDICTS.len()] {
        program::read_counters(&self.skeleton.maps.counters, VERDICTS)
    }

    fn map_error(&self, doing: &'static str, error: &libbpf_rs::Error) -> XskError {
        program::map_error(doing, self.interface.name(), error)
    }
}

#[cfg(test)]
mod tests;
