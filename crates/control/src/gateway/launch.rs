//! Workers, programs and the host's device, brought up together or not at all.

use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use crypto::Engine;
use dataplane::clock::Clock;
use dataplane::event::Event;
use dataplane::view::{Publisher, View};

use super::group_devices::GroupDevices;
use super::host::{self, Host};
use super::ports::Ports;
use super::workers::Workers;
use super::{GatewayError, system, upgrade};
use crate::api;
use crate::config::{Config, ConfigError, Machine, Sizes};
use crate::instance::Instance;
use crate::route_feed::Kernel;
use crate::xfrm::Clients;

/// How long huge pages are waited for that are there and not free: the kernel frees the packet memory of a
/// process that has ended from a work queue, once its sockets are gone (as long as those are waited for).
const PAGES_WAIT: Duration = Duration::from_secs(5);
/// Between two looks at them.
const PAGES_PAUSE: Duration = Duration::from_millis(10);

/// The machine as it is when the configuration fits it, and the engine on it.
pub fn fit_machine(config: &Config) -> Result<(Machine, Engine), GatewayError> {
    let machine = await_pages(config, Machine::probe, PAGES_WAIT)?;
    let engine = check(config, &machine)?;
    Ok((machine, engine))
}

/// Whether a gateway of this configuration can start on a machine, as far as that can be seen without changing
/// anything; the engine that it would have.
///
/// # Errors
///
/// [`GatewayError`]: what a start would refuse.
pub fn check(config: &Config, machine: &Machine) -> Result<Engine, GatewayError> {
    config.check(machine)?;
    let engine = Engine::select(config.engine.name())?;
    if config.host.enable {
        Host::check(config).map_err(system("have the host's own traffic"))?;
    }
    Ok(engine)
}

fn await_pages(
    config: &Config,
    mut probe: impl FnMut() -> Result<Machine, ConfigError>,
    longest: Duration,
) -> Result<Machine, ConfigError> {
    let begin = Instant::now();
    loop {
        let machine = probe()?;
        match config.check(&machine) {
            Ok(()) => return Ok(machine),
            Err(ConfigError::Hugepages { needed, .. })
                if machine.hugepages_total >= needed && begin.elapsed() < longest =>
            {
                std::thread::sleep(PAGES_PAUSE);
            }
            Err(error) => return Err(error),
        }
    }
}

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
    /// order: packets come last. `view` is the workers' first.
    ///
    /// # Errors
    /// The machine is as it was then; what an earlier run left stays.
    pub fn go(&self, ports: &mut Ports, view: &View) -> Result<(Workers, Devices), GatewayError> {
        // What came back is published already, and nothing else may be for a long time.
        ports.follow_esp_ports(&view.encapsulation_ports);
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
        let interfaces: Vec<u32> = ports.ifindexes().collect();
        if self.config.host.enable {
            let host = Host::open(self.config, &interfaces, self.kernel);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Interface;

    /// A machine with so many huge pages free, of so many.
    fn machine(free: u64, total: u64) -> Machine {
        let interface = |name: &str| Interface {
            name: name.to_owned(),
            ifindex: 2,
            mtu: 1500,
            queues: 1,
            transmit_queues: 1,
            kind: None,
        };
        Machine {
            interfaces: vec![interface("red0"), interface("black0")],
            cores: [0].into(),
            cores_allowed: [0].into(),
            hugepages_free: Some(free),
            hugepages_total: total,
            ..Machine::default()
        }
    }

    #[test]
    fn huge_pages_of_a_process_that_ended_are_waited_for() {
        let text = "hugepages = true
            cores = [0]
            frames = 16384
            [[port]]
            interface = \"red0\"
            [[port]]
            interface = \"black0\"";
        let config = Config::parse(text).unwrap();
        let mut looks = 0;
        let mut coming_back = || {
            looks += 1;
            Ok(machine(if looks < 3 { 0 } else { 16 }, 32))
        };
        assert!(await_pages(&config, &mut coming_back, PAGES_WAIT).is_ok());
        assert_eq!(looks, 3);
        let taken = await_pages(&config, || Ok(machine(0, 32)), PAGES_PAUSE);
        assert!(matches!(taken, Err(ConfigError::Hugepages { needed: 16, free: 0 })), "{taken:?}");
        let mut looks = 0;
        let too_few = || {
            looks += 1;
            Ok(machine(15, 15))
        };
        assert!(await_pages(&config, too_few, PAGES_WAIT).is_err());
        assert_eq!(looks, 1, "they do not come");
    }
}
