//! The gateway that is asked, and the traffic that it carries meanwhile.
//!
//! The lab's own wiring: two gateways in namespaces and the station at both ends. The near one is
//! the one that is measured; the far one is there to take its traffic.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::RatesError;
use super::search::Search;
use crate::accounting::{Ledger, lost};
use crate::calibration::total_rate;
use crate::dut::Dut;
use crate::generator::Load;
use crate::progress::bits;
use crate::recipe::Recipe;
use crate::result::{AccountingRow, Direction};
use crate::run::load::{of_bps, one_per_tunnel};
use crate::station::{Order, Station, StepBooks};
use crate::usage::status_bytes;
use crate::wiring::{GENERATOR_LINKS, Wiring};

/// Tunnels that carry the traffic. They are in the tables beside those that are installed.
pub const TRAFFIC_TUNNELS: u32 = 16;
/// The traffic flows from the near port to the far one: the gateway that is asked seals it.
const DIRECTION: Direction = Direction::Unidirectional;
/// A ceiling for the search of the highest rate: more than AF_XDP sends over a veth.
const CEILING_BPS: f64 = 10e9;
/// One trial of that search.
const TRIAL_TIME: Duration = Duration::from_millis(600);
/// Silence after frames, enough for a veth.
const DRAIN: Duration = Duration::from_millis(200);
/// Tries until every tunnel has carried a frame: an ARP request is repeated after a second.
const PRIME_TRIES: u32 = 20;
/// Descriptors of the gateways' rings. Workers, control, client and generator share a few cores here, so a worker
/// may be kept from running for some slices of the scheduler's: with 2048, a ring is full after 17 ms of 120 000
/// packets per second, and one installation of 50 000 tunnels in fifteen lost some.
const RING: u32 = 8192;

/// Longer than any measurement; the traffic is ended when that is over.
const TRAFFIC_TIME: Duration = Duration::from_secs(3600);

/// Two gateways, wired.
pub struct Rig {
    // Dropped in this order: what uses the network goes before the network.
    station: Option<Station>,
    dut: Dut,
    wiring: Wiring,
    recipe: Recipe,
    /// Ends the traffic that is under way.
    stop: Arc<AtomicBool>,
    /// Becomes true when what is measured is to end early.
    interrupt: Arc<AtomicBool>,
    /// What became of the search for the highest rate.
    search: Option<Search>,
}

/// The CPU time of a gateway's control thread, which is its process's first.
#[derive(Clone, Copy, Debug)]
pub struct ControlClock {
    pid: u32,
}

impl ControlClock {
    /// Nanoseconds on a CPU so far; 0 when the kernel does not tell (`CONFIG_SCHED_INFO`).
    pub fn cpu_ns(&self) -> u64 {
        let pid = self.pid;
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/schedstat"));
        let first = text.ok().and_then(|text| text.split(' ').next()?.parse().ok());
        first.unwrap_or(0)
    }
}

/// What the traffic was like.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Traffic {
    /// Frames per second that came through.
    pub pps: f64,
    /// The same in L2 bits per second.
    pub l2_bps: f64,
    /// The highest rate that the same gateways carried without loss beforehand, in L2 bits per second, if there was one.
    pub lossless_l2_bps: Option<f64>,
    /// The share of the frames, probes included, that did not.
    pub loss_ratio: f64,
    /// Where those were lost, by the counters of every place, the most first.
    pub losses: Vec<AccountingRow>,
}

impl Traffic {
    /// What came through as a share of what is carried without loss.
    pub fn load(&self) -> Option<f64> {
        self.lossless_l2_bps.map(|lossless| self.l2_bps / lossless)
    }
}

impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (", bits(self.l2_bps))?;
        match self.load() {
            Some(load) => write!(f, "{:.0} % of what is carried without loss", 100.0 * load)?,
            None => write!(f, "at no rate without loss")?,
        }
        write!(f, "), {:.4} % lost", 100.0 * self.loss_ratio)?;
        let places = self.losses.iter().map(|row| format!("{} {}", row.name, row.packets));
        let places: Vec<_> = places.collect();
        if places.is_empty() { Ok(()) } else { write!(f, " ({})", places.join(", ")) }
    }
}

impl Rig {
    /// Wires two gateways of `binary`, whose files go to `scratch`. `interrupt` becomes true when nothing is to be
    /// found out any more.
    pub fn build(
        binary: &Path,
        scratch: &Path,
        interrupt: &Arc<AtomicBool>,
    ) -> Result<Rig, RatesError> {
        let mut recipe = Recipe::built_in("bf3-test1")?;
        (recipe.tunnels, recipe.directions) = (vec![TRAFFIC_TUNNELS], vec![DIRECTION]);
        recipe.ring = Some(RING);
        recipe.check()?;
        let wiring = Wiring::build(&recipe)?;
        wiring.address(&recipe, TRAFFIC_TUNNELS)?;
        let dut = Dut::start(&wiring, &recipe, binary, scratch)?;
        let stop = Arc::new(AtomicBool::new(false));
        let interrupt = Arc::clone(interrupt);
        Ok(Rig { station: None, dut, wiring, recipe, stop, interrupt, search: None })
    }

    /// The XFRM socket of the gateway that is measured.
    pub fn socket(&self) -> PathBuf {
        self.dut.directory(0).join("xfrm.sock")
    }

    /// The name of its instance.
    pub fn instance(&self) -> &str {
        self.dut.instance(0)
    }

    /// Its resident memory in bytes.
    pub fn resident_bytes(&self) -> u64 {
        self.status_bytes("VmRSS")
    }

    /// The most that its resident memory ever was, in bytes.
    pub fn peak_bytes(&self) -> u64 {
        self.status_bytes("VmHWM")
    }

    /// The size of its journal in bytes; 0 if it has none.
    pub fn journal_bytes(&self) -> u64 {
        let here = self.dut.directory(0);
        let elsewhere = Path::new("/dev/shm/peregrine").join(self.instance());
        let mut files = [here, elsewhere].into_iter().map(|folder| folder.join("journal"));
        files.find_map(|file| Some(std::fs::metadata(file).ok()?.len())).unwrap_or(0)
    }

    fn status_bytes(&self, field: &str) -> u64 {
        status_bytes(self.dut.pids()[0], field).unwrap_or(0)
    }

    /// What tells how long its control thread has run.
    pub fn control_clock(&self) -> ControlClock {
        ControlClock { pid: self.dut.pids()[0] }
    }

    /// Does `work` while the gateway forwards half of what it carries without loss, which is found out first.
    pub fn under_traffic<T: Send>(
        &mut self,
        work: impl FnOnce() -> T + Send,
    ) -> Result<(T, Traffic), RatesError> {
        let bytes = self.recipe_bytes()?;
        let search = match self.search {
            Some(search) => search,
            None => self.find_highest(bytes)?,
        };
        self.search = Some(search);
        let load = even_load(search.half_bps(), bytes);
        let order = Order { load, duration: TRAFFIC_TIME, settle: Duration::ZERO, drain: DRAIN };
        let stop = Arc::clone(&self.stop);
        let before = self.ledger()?;
        let station = self.station()?;
        let (done, books) = std::thread::scope(|scope| {
            let traffic = scope.spawn(|| station.step(order, |_| {}));
            let done = work();
            stop.store(true, Ordering::Relaxed);
            (done, traffic.join())
        });
        self.stop.store(false, Ordering::Relaxed);
        let books = books.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let rate = total_rate(&books);
        let (sent, missing) = sent_and_missing(&books);
        let loss_ratio = missing as f64 / sent.max(1) as f64;
        let losses = match missing {
            0 => Vec::new(),
            _ => lost(GENERATOR_LINKS, &before, &self.ledger()?),
        };
        let (pps, l2_bps, lossless_l2_bps) = (rate.pps, rate.l2_bps, search.carried_bps());
        Ok((done, Traffic { pps, l2_bps, lossless_l2_bps, loss_ratio, losses }))
    }

    /// All counters, while no traffic is under way.
    fn ledger(&mut self) -> Result<Ledger, RatesError> {
        Ok(Ledger {
            station: self.station()?.counters()?,
            links: self.wiring.drops(&self.recipe)?,
            gateways: self.dut.settled_facts()?.into(),
        })
    }

    fn recipe_bytes(&self) -> Result<[f64; 2], RatesError> {
        Ok(self.wiring.ports(&self.recipe, TRAFFIC_TUNNELS)?.map(|p| p.source.mix.average_bytes()))
    }

    fn station(&mut self) -> Result<&mut Station, RatesError> {
        self.station.as_mut().ok_or(RatesError::NoTraffic)
    }

    /// Opens the station, sees every tunnel carry a frame, and searches for the highest rate without loss.
    fn find_highest(&mut self, bytes: [f64; 2]) -> Result<Search, RatesError> {
        self.dut.install(&self.recipe, TRAFFIC_TUNNELS)?;
        let ports = self.wiring.ports(&self.recipe, TRAFFIC_TUNNELS)?;
        let station = Station::open(self.wiring.generator(), ports, Arc::clone(&self.stop))?;
        let station = self.station.insert(station);
        let (load, duration) = one_per_tunnel(TRAFFIC_TUNNELS, DIRECTION);
        let order = Order { load, duration, settle: Duration::ZERO, drain: DRAIN };
        let mut lost = 1;
        for _ in 0..PRIME_TRIES {
            lost = station.step(order, |_| {})?.directions[0].load.lost;
            if lost == 0 {
                break;
            }
        }
        if lost != 0 {
            return Err(RatesError::NoTraffic);
        }
        let mut search = Search::new(CEILING_BPS);
        while let Some(bps) = search.next() {
            let (load, settle) = (even_load(bps, bytes), TRIAL_TIME / 5);
            let books =
                station.step(Order { load, duration: TRIAL_TIME, settle, drain: DRAIN }, |_| {})?;
            search.book(total_rate(&books).l2_bps, sent_and_missing(&books).1);
            if self.interrupt.load(Ordering::Relaxed) {
                break;
            }
        }
        Ok(search)
    }

    /// Stops the gateway that is measured; how long that took, if it ended well.
    pub fn stop_near(&mut self) -> Option<Duration> {
        self.station = None;
        self.dut.stop_one(0)
    }

    /// Stops both gateways.
    pub fn stop(mut self) {
        self.station = None;
        self.dut.stop();
    }
}

/// The load of a rate. A generator that shares its core is late at times, and would then offer more than that.
fn even_load(bps: f64, bytes: [f64; 2]) -> [Load; 2] {
    of_bps(bps, bytes, DIRECTION).loads.map(|load| match load {
        Load::Paced(pps) => Load::Even(pps),
        other => other,
    })
}

/// Frames that were sent and those of them that did not arrive, probes included: not what was due and not sent any more when a
/// step was over.
fn sent_and_missing(books: &StepBooks) -> (u64, u64) {
    let mut counts = books.directions[0].load;
    counts.add(&books.directions[0].probes);
    (counts.sent, counts.sent.saturating_sub(counts.received))
}
