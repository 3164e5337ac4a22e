//! One curve: gateways up, tunnels in, every tunnel proven, the ramp, the accounts, gateways down.

use std::path::Path;
use std::time::{Duration, Instant};

use super::{Options, RunError, is_stopped, load, step};
use crate::accounting::{Fates, Ledger, account};
use crate::calibration::total_rate;
use crate::dut::Dut;
use crate::environment;
use crate::generator::Load;
use crate::ike::{self, Daemons, IkeError, Stage};
use crate::progress::{Display, bits};
use crate::recipe::{Recipe, Speed};
use crate::report::number;
use crate::result::{Ceiling, Conclusion, Curve, Direction, Environment, Negotiation, Sample};
use crate::station::{Order, SAMPLE_TIME, Station};
use crate::wiring::Wiring;

/// How often the tunnels are tried before they count as dead. The first frame to an unresolved
/// neighbour may be lost, an ARP request is repeated after a second, and each try takes half of one.
const PRIME_TRIES: u32 = 20;
/// Silence after a try.
const PRIME_DRAIN: Duration = Duration::from_millis(200);
/// One trial of the search for a maximum; its first fifth is left out.
const CLIMB_TIME: Duration = Duration::from_millis(600);
/// Silence before counters are read for the accounts: whatever still waits anywhere has moved on.
const REST: Duration = Duration::from_millis(500);
/// Where the IKE daemons' logs stay, in the folder of the run.
const LOGS_FOLDER: &str = "ike";
/// A ceiling for the search when the calibration found none: more than AF_XDP sends over a veth.
const CEILING_BPS: f64 = 10e9;

/// Everything that stays from curve to curve.
pub struct Rig<'a> {
    recipe: &'a Recipe,
    wiring: &'a Wiring,
    station: Station,
    display: &'a Display,
    options: &'a Options,
    scratch: &'a Path,
    /// What the loop carries in each direction of the recipe, all ports together.
    ceilings: Vec<Ceiling>,
    /// Maxima found by searching, so that curves of one direction share their axis.
    found_bps: Vec<(Direction, f64)>,
}

/// What one curve gave.
pub struct Measured {
    /// The curve; none when it was stopped before its first step.
    pub curve: Option<Curve>,
    /// Its samples.
    pub samples: Vec<Sample>,
}

/// A ramp as far as it went.
#[derive(Default)]
struct Ramp {
    steps: Vec<crate::result::Step>,
    samples: Vec<Sample>,
    fates: Fates,
}

impl<'a> Rig<'a> {
    /// A rig on a station that is open.
    pub fn new(
        recipe: &'a Recipe,
        wiring: &'a Wiring,
        station: Station,
        display: &'a Display,
        options: &'a Options,
        scratch: &'a Path,
        ceilings: &[Ceiling],
    ) -> Rig<'a> {
        let (ceilings, found_bps) = (ceilings.to_vec(), Vec::new());
        Rig { recipe, wiring, station, display, options, scratch, ceilings, found_bps }
    }

    /// Measures one curve, from starting the gateways to stopping them.
    pub fn measure(
        &mut self,
        tunnels: u32,
        direction: Direction,
        environment: &mut Environment,
    ) -> Result<Measured, RunError> {
        let nothing = Measured { curve: None, samples: Vec::new() };
        let name = self.name(tunnels, direction);
        self.display.say(&format!("{name}: starting two gateways"));
        self.wiring.address(self.recipe, tunnels)?;
        let mut dut = Dut::start(self.wiring, self.recipe, &self.options.binary, self.scratch)?;
        environment::add_gateway(environment, &dut.status()?);
        let Some(keys) = self.key(&name, tunnels, &dut, environment)? else { return Ok(nothing) };
        let sources = self.wiring.ports(self.recipe, tunnels)?.map(|port| port.source);
        let average_bytes = [0, 1].map(|port: usize| sources[port].mix.average_bytes());
        self.station.replace(sources)?;
        self.prime(tunnels, direction, &dut)?;
        self.list_sas(&keys, &dut)?;
        self.warm_up(direction, average_bytes)?;
        let top = self.maximum(direction, average_bytes)?;
        let shape = load::Shape::new(self.recipe.max, average_bytes, direction);
        if is_stopped(self.options) {
            return Ok(nothing);
        }
        let before = self.ledger(&dut)?;
        let ramp = self.ramp(&name, direction, &shape, top)?;
        let after = self.ledger(&dut)?;
        self.list_sas(&keys, &dut)?;
        let negotiation = keys.map(|(_daemons, negotiation)| negotiation);
        dut.stop();
        let ports = [self.recipe.near.port.as_str(), self.recipe.far.port.as_str()];
        Ok(Measured {
            curve: Some(Curve {
                name,
                tunnels,
                direction,
                max_l2_bps_per_port: shape.load(top).per_port.l2_bps,
                negotiation,
                steps: ramp.steps,
                conclusion: Conclusion::default(),
                accounting: account(ports, &before, &after, &ramp.fates),
            }),
            samples: ramp.samples,
        })
    }

    /// Puts the tunnels into both gateways; nothing when it was stopped meanwhile. The daemons that
    /// negotiated them, if any, stay as long as the answer.
    fn key(
        &self,
        name: &str,
        tunnels: u32,
        dut: &Dut,
        environment: &mut Environment,
    ) -> Result<Option<Option<(Daemons, Negotiation)>>, RunError> {
        let Some(keying) = &self.options.keying else {
            dut.install(self.recipe, tunnels)?;
            return Ok(Some(None));
        };
        let file_name: String =
            name.chars().filter(|c| *c != ',').map(|c| if c == ' ' { '-' } else { c }).collect();
        let stage = Stage {
            recipe: self.recipe,
            tunnels,
            keying,
            wiring: self.wiring,
            dut,
            scratch: self.scratch,
            logs: &self.options.out.join(LOGS_FOLDER),
            name: &file_name,
            stop: &self.options.stop,
            display: self.display,
        };
        let daemons = Daemons::start(&stage)?;
        let Some(negotiation) = daemons.negotiate(&stage)? else { return Ok(None) };
        self.display.say(&format!("  {}", negotiation.sentence()));
        environment.versions.insert("IKE daemon".to_owned(), negotiation.daemon.clone());
        Ok(Some(Some((daemons, negotiation))))
    }

    /// Shows what the near daemons and their gateway list, if that was asked for.
    fn list_sas(&self, keys: &Option<(Daemons, Negotiation)>, dut: &Dut) -> Result<(), RunError> {
        let asked = self.options.keying.as_ref().is_some_and(|keying| keying.lists_sas);
        if let Some((daemons, _)) = keys.as_ref().filter(|_| asked) {
            let listed = ike::list(&daemons.near_sockets()).map_err(IkeError::from)?;
            let shown = ike::shown(&dut.sas(0)?);
            let gateway = &self.recipe.near.gateway;
            self.display.say(&format!("{gateway}:\n{}", ike::compare(&listed, &shown)));
        }
        Ok(())
    }

    /// Unique within the run; the direction is part of it only where curves differ in it.
    fn name(&self, tunnels: u32, direction: Direction) -> String {
        let way = match (self.recipe.directions.len(), direction) {
            (1, _) => "",
            (_, Direction::Unidirectional) => ", one way",
            (_, Direction::Bidirectional) => ", both ways",
        };
        format!("{tunnels} tunnel{}{way}", number::plural(tunnels))
    }

    /// One frame through every tunnel, until each has delivered: neighbours are resolved, and no
    /// part of the path is dead.
    fn prime(&mut self, tunnels: u32, direction: Direction, dut: &Dut) -> Result<(), RunError> {
        let (load, duration) = load::one_per_tunnel(tunnels, direction);
        let order = Order { load, duration, settle: Duration::ZERO, drain: PRIME_DRAIN };
        for round in 1..=PRIME_TRIES {
            let books = self.station.step(order, |_| {})?;
            let missing = |index: usize| {
                let load = books.directions[index].load;
                (load.lost, load.sent)
            };
            let dead = [0, 1].into_iter().find(|&index: &usize| missing(index).0 > 0);
            let Some(index) = dead.filter(|_| !is_stopped(self.options)) else { return Ok(()) };
            if round == PRIME_TRIES {
                let facts = dut.facts()?;
                let ports = [&self.recipe.near.port, &self.recipe.far.port];
                return Err(RunError::Path {
                    from: ports[index].clone(),
                    to: ports[1 - index].clone(),
                    missing: missing(index).0,
                    frames: missing(index).1,
                    tries: PRIME_TRIES,
                    counters: facts.map(|gateway| gateway.losses_in_words()).join("\n"),
                    logs: dut.logs(),
                });
            }
        }
        Ok(())
    }

    /// Uncounted traffic, for as long as the recipe asks for.
    fn warm_up(&mut self, direction: Direction, average_bytes: [f64; 2]) -> Result<(), RunError> {
        let duration = Duration::from_secs_f64(self.recipe.warm_up_s);
        if duration.is_zero() {
            return Ok(());
        }
        // Enough to warm caches, too little to overload anything: 1 kpps of long frames.
        let load = load::of_bps(1e7, average_bytes, direction).loads;
        let order = Order { load, duration, settle: Duration::ZERO, drain: self.drain() };
        self.station.step(order, |_| {})?;
        Ok(())
    }

    /// Load per port at the last step: frames per second where the recipe says so, L2 bits otherwise.
    fn maximum(&mut self, direction: Direction, average_bytes: [f64; 2]) -> Result<f64, RunError> {
        let max_bps = match self.recipe.max {
            Speed::L2Bps(top) | Speed::Pps(top) => return Ok(top),
            Speed::Auto => self.found_bps.iter().find(|(of, _)| *of == direction),
        };
        if let Some((_, bps)) = max_bps {
            return Ok(*bps);
        }
        let ceiling = self.ceilings.iter().find(|ceiling| ceiling.direction == Some(direction));
        let ceiling_bps = ceiling.map_or(CEILING_BPS, |ceiling| ceiling.l2_bps);
        let mut climb = load::Climb::new(ceiling_bps / f64::from(direction.senders()));
        while let Some(bps) = climb.next().filter(|_| !is_stopped(self.options)) {
            let load = load::of_bps(bps, average_bytes, direction).loads;
            let order =
                Order { load, duration: CLIMB_TIME, settle: CLIMB_TIME / 5, drain: self.drain() };
            let books = self.station.step(order, |_| {})?;
            climb.book(total_rate(&books).l2_bps / f64::from(direction.senders()));
        }
        let found = climb.maximum_bps();
        self.display.say(&format!("  the ramp goes to {} per port", bits(found)));
        self.found_bps.push((direction, found));
        Ok(found)
    }

    fn ramp(
        &mut self,
        name: &str,
        direction: Direction,
        shape: &load::Shape,
        top: f64,
    ) -> Result<Ramp, RunError> {
        let planned = &self.recipe.ramp;
        let (step_time, steps) = (Duration::from_secs_f64(planned.step_time_s), planned.steps);
        let ports = [self.recipe.near.port.as_str(), self.recipe.far.port.as_str()];
        let samples_per_step = step_time.as_nanos().div_ceil(SAMPLE_TIME.as_nanos()) as u64;
        self.display.begin(name, u64::from(steps) * samples_per_step);
        let begin = Instant::now();
        let mut ramp = Ramp::default();
        for number in 1..=steps {
            let offered = shape.step(planned, number, top);
            let order = Order {
                load: offered.loads,
                duration: step_time,
                settle: Duration::from_secs_f64(planned.settle_s),
                drain: self.drain(),
            };
            let offered_bps = offered.per_port.l2_bps * f64::from(direction.senders());
            let begin_s = begin.elapsed().as_secs_f64();
            let mut sampler = step::Sampler::new(name, number, begin_s, offered_bps);
            let (display, samples) = (self.display, &mut ramp.samples);
            let books = self.station.step(order, |snapshot| {
                let sample = sampler.sample(snapshot);
                display.sample(&sample, steps);
                samples.push(sample);
            })?;
            ramp.fates.add(&books);
            // A step that was cut short counts in the accounts and the samples, not as a step.
            if books.interrupted {
                break;
            }
            let step = step::step(number, &offered, direction, ports, &books);
            self.display.step(&step, direction.senders(), steps);
            ramp.steps.push(step);
        }
        // Frames later than every drain are still the curve's.
        let books = self.station.step(self.silence(), |_| {})?;
        ramp.fates.add(&books);
        Ok(ramp)
    }

    /// All counters, once nothing moves.
    fn ledger(&mut self, dut: &Dut) -> Result<Ledger, RunError> {
        self.station.step(self.silence(), |_| {})?;
        Ok(Ledger {
            station: self.station.counters()?,
            links: self.wiring.drops(self.recipe)?,
            gateways: dut.settled_facts()?.into(),
        })
    }

    fn silence(&self) -> Order {
        Order {
            load: [Load::Silent; 2],
            duration: Duration::ZERO,
            settle: Duration::ZERO,
            drain: REST,
        }
    }

    fn drain(&self) -> Duration {
        Duration::from_millis(self.recipe.ramp.drain_ms.into())
    }
}
