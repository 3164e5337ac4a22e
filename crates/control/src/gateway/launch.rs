//! Workers, programs and the host's device, brought up together or not at all.

use std::sync::mpsc::SyncSender;
use std::time::Instant;

use dataplane::clock::Clock;
use dataplane::event::Event;
use dataplane::view::Publisher;

use super::group_devices::GroupDevices;
use super::host::{self, Host};
use super::ports::Ports;
use super::workers::Workers;
use super::{GatewayError, system, upgrade};
use crate::api;
use crate::config::{Config, Sizes};
use crate::instance::Instance;
use crate::route_feed::Kernel;
use crate::xfrm::Clients;

/// What workers are made of, and what is known when they start.
pub struct Launch<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// Their memory.
    pub sizes: &'a Sizes,
    /// Their views.
    pub publisher: &'a Publisher,
    /// Where their events go.
    pub events: &'a SyncSender<Event>,
    /// Their clock.
    pub clock: Clock,
    /// The kernel as it was before.
    pub kernel: &'a Kernel,
    /// No earlier run left something protected.
    pub fresh: bool,
}

impl Launch<'_> {
    /// Starts the workers, sets up the host's device and puts the programs on the interfaces, in this
    /// order: packets come last.
    ///
    /// # Errors
    /// The machine is as it was then; what an earlier run left stays.
    pub fn go(&self, ports: &mut Ports) -> Result<(Workers, Devices), GatewayError> {
        let result = self.try_go(ports);
        if result.is_err() {
            let host = &self.config.host;
            let hosts = host.enable.then(|| host.device_of(&self.config.name));
            let groups = self.config.groups.iter().map(|group| group.device.clone());
            for device in hosts.into_iter().chain(groups) {
                if self.kernel.link_named(&device).is_none() {
                    host::remove_device(&device);
                }
            }
        }
        result
    }

    fn try_go(&self, ports: &mut Ports) -> Result<(Workers, Devices), GatewayError> {
        let &Launch { config, sizes, publisher, events, clock, fresh, .. } = self;
        let mut workers = Workers::open(config, sizes, ports, publisher, events, clock)?;
        workers.run()?;
        let mut opened = Devices::default();
        let result = self
            .open_devices(ports, &mut opened)
            .and_then(|()| ports.attach(config).map_err(GatewayError::from));
        if let Err(error) = result {
            if fresh {
                ports.detach();
                // What was set up a moment ago is taken back; a refusal has been told already.
                let _ = opened.host.map(Host::end);
                let _ = opened.groups.map(GroupDevices::end);
            }
            workers.stop();
            return Err(error);
        }
        Ok((workers, opened))
    }

    fn open_devices(&self, ports: &Ports, opened: &mut Devices) -> Result<(), GatewayError> {
        let Config { host, name, .. } = self.config;
        let interfaces: Vec<u32> = ports.ifindexes().collect();
        if host.enable {
            let host = Host::open(host, name, &interfaces, self.kernel);
            opened.host = Some(host.map_err(system("set up the host's device"))?);
        }
        opened.groups = GroupDevices::open(self.config, &interfaces, self.kernel)
            .map_err(system("set up the devices of groups of tunnels"))?;
        Ok(())
    }
}

/// The devices by which the host's own packets come.
#[derive(Default)]
pub struct Devices {
    /// Those that policies lead.
    pub host: Option<Host>,
    /// Those that routes lead.
    pub groups: Option<GroupDevices>,
}

/// The sockets of IKE daemons and of `peregrine show`.
pub fn listen(instance: &Instance) -> Result<(Clients, api::Server), GatewayError> {
    let clients = Clients::bind(&instance.xfrm_socket())?;
    let api = api::Server::bind(&instance.control_socket())
        .map_err(system("listen on the control socket"))?;
    Ok((clients, api))
}

/// Notes how long the start took, and how long packets waited for it. The time now.
pub fn time_start(restored: &mut api::Restored, began: Instant, clock: &Clock) -> Instant {
    let now = Instant::now();
    restored.ready_us = now.duration_since(began).as_micros() as u64;
    restored.outage_us = upgrade::outage_us(clock);
    now
}
