//! A mass start: daemons up, connections in, every tunnel initiated, all SAs in place.
//!
//! ```text
//!   1 start      one daemon per shard on each gateway
//!   2 load       secrets and connections over VICI, one by one, all daemons at once
//!   3 initiate   by the near daemons, so many at once; each waits for its CHILD_SA
//!   4 wait       until both gateways hold every SA
//!   5 figures    time, memory, processor time
//! ```

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::daemon::{Daemon, Place};
use super::{Connection, Ends, IkeError, Keying, Responder, Settings, Shards, Terms};
use crate::dut::Dut;
use crate::progress::Display;
use crate::recipe::{Recipe, RecipeError, Side, Tunnel};
use crate::result::{HandshakeTime, Negotiation, NegotiationSide};
use crate::usage::Usage;
use crate::vici::{Client, Message};
use crate::wiring::{SIDES, Wiring};

/// Handshakes under way at once, shared among the near daemons. More only wait: each takes a few
/// milliseconds of both machines, and initiating blocks one of a daemon's 32 threads.
const PARALLEL: u32 = 16;
/// Longest handshake, in milliseconds: IKEv2's own retransmissions give up after 165 s, and on a
/// machine that is busy with other things the first may be needed.
const HANDSHAKE_MS_MAX: &str = "100000";
/// How long both gateways may lag behind the last answer; they install before daemons answer.
const INSTALL_PATIENCE: Duration = Duration::from_secs(30);
/// How often progress is shown.
const LOOK: Duration = Duration::from_millis(100);
/// With more tunnels than this, a daemon's log has its establishments and errors only.
const TALKATIVE_MAX: u32 = 100;

/// Everything a mass start needs.
#[derive(Clone, Copy)]
pub struct Stage<'a> {
    /// The test.
    pub recipe: &'a Recipe,
    /// Tunnels, from 1.
    pub tunnels: u32,
    /// How they are negotiated.
    pub keying: &'a Keying,
    /// The namespaces.
    pub wiring: &'a Wiring,
    /// The gateways, running.
    pub dut: &'a Dut,
    /// Folder for files that go with the run.
    pub scratch: &'a Path,
    /// Folder for logs that stay.
    pub logs: &'a Path,
    /// Unique among the run's mass starts.
    pub name: &'a str,
    /// Becomes true when the run is to end.
    pub stop: &'a AtomicBool,
    /// Where progress is shown.
    pub display: &'a Display,
}

/// The daemons of both gateways; killed when dropped.
#[derive(Debug)]
pub struct Daemons {
    sides: [Vec<Daemon>; 2],
    shards: Shards,
    version: String,
}

impl Daemons {
    /// Step 1: starts all daemons and waits until each answers.
    ///
    /// # Errors
    /// [`IkeError`]: files cannot be written, or a daemon does not start or answer.
    pub fn start(stage: &Stage<'_>) -> Result<Daemons, IkeError> {
        let mut shards = Shards::fitting(stage.tunnels);
        shards.count = stage.keying.shards.unwrap_or(shards.count).min(stage.tunnels);
        std::fs::create_dir_all(stage.logs).map_err(|source| IkeError::Io {
            what: format!("making {}", stage.logs.display()),
            source,
        })?;
        let launch = |index: usize| -> Result<Vec<Daemon>, IkeError> {
            let gateway = &stage.recipe.site(SIDES[index]).gateway;
            (0..shards.count)
                .map(|shard| {
                    let label = format!("{}-{gateway}-charon{shard}", stage.name);
                    let settings = Settings {
                        socket: stage.scratch.join(format!("{label}.vici")),
                        log: Some(stage.logs.join(format!("{label}.log"))),
                        log_level: u8::from(stage.tunnels <= TALKATIVE_MAX),
                        ports: shards.ports(shard),
                        tunnels: stage.tunnels / shards.count,
                    };
                    let namespace = stage.wiring.gateway(index);
                    let (dut, scratch) = (stage.dut, stage.scratch);
                    let root = stage.keying.root.as_deref();
                    let place = Place { namespace, dut, index, scratch, root };
                    Daemon::start(place, &label, &settings)
                })
                .collect()
        };
        // All are launched before any is waited for.
        let mut sides = [launch(0)?, launch(1)?];
        let mut version = String::new();
        for daemon in sides.iter_mut().flatten() {
            version = daemon.wait_until_ready()?;
        }
        Ok(Daemons { sides, shards, version })
    }

    /// The control sockets of the near gateway's daemons.
    pub fn near_sockets(&self) -> Vec<&Path> {
        self.sides[0].iter().map(Daemon::socket).collect()
    }

    /// Steps 2 to 5; nothing when it was stopped before all tunnels were up.
    ///
    /// # Errors
    /// [`IkeError`]: a daemon refused or ended, or a gateway does not hold as many SAs as were negotiated.
    pub fn negotiate(&self, stage: &Stage<'_>) -> Result<Option<Negotiation>, IkeError> {
        let terms = stage.recipe.terms(stage.keying.responder)?;
        let gateways_before = [0, 1].map(|index: usize| stage.dut.usage(index));
        let begin = Instant::now();
        self.load(stage, &terms)?;
        let load_s = begin.elapsed().as_secs_f64();

        let begin = Instant::now();
        let times_ms = self.initiate(stage)?;
        if stage.stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let held = [0, 1].map(|index: usize| wait_for_sas(stage, index));
        let negotiate_s = begin.elapsed().as_secs_f64();

        let mut gateways = Vec::new();
        for ((index, held), before) in held.into_iter().enumerate().zip(gateways_before) {
            let (sas, policies) = held?;
            let daemons: Usage =
                self.sides[index].iter().map(Daemon::usage).fold(Usage::default(), |a, b| a + b);
            let gateway = stage.dut.usage(index);
            gateways.push(NegotiationSide {
                gateway: stage.recipe.site(SIDES[index]).gateway.clone(),
                sas,
                policies,
                daemon_rss_bytes: daemons.rss_bytes,
                daemon_cpu_s: daemons.cpu_s,
                gateway_rss_bytes: gateway.rss_bytes,
                gateway_rss_before_bytes: before.rss_bytes,
                gateway_cpu_s: (gateway - before).cpu_s,
            });
        }
        let responder = match terms.responder {
            Responder::Exact => "exact",
            Responder::Any => "any",
        };
        Ok(Some(Negotiation {
            daemon: format!("strongSwan {}", self.version),
            proposals: format!("{}, {}", terms.proposals, terms.esp_proposals),
            responder: responder.to_owned(),
            daemons_per_gateway: self.shards.count,
            parallel: self.parallel() * self.shards.count,
            tunnels: stage.tunnels,
            load_s,
            negotiate_s,
            tunnels_per_s: f64::from(stage.tunnels) / negotiate_s,
            handshake: HandshakeTime::of(times_ms),
            gateways,
        }))
    }

    /// Handshakes at once per daemon.
    fn parallel(&self) -> u32 {
        (PARALLEL / self.shards.count).max(1)
    }

    /// Step 2: every daemon by a thread of its own.
    fn load(&self, stage: &Stage<'_>, terms: &Terms) -> Result<(), IkeError> {
        let loaded = AtomicU32::new(0);
        let total = 2 * stage.tunnels;
        stage.display.begin_count("loading connections", total.into());
        let mut jobs: Vec<Box<dyn FnOnce() -> Result<(), IkeError> + Send + '_>> = Vec::new();
        for (side, daemons) in SIDES.into_iter().zip(&self.sides) {
            for (daemon, shard) in daemons.iter().zip(0..) {
                let loaded = &loaded;
                let (recipe, shards, stop) = (stage.recipe, self.shards, stage.stop);
                jobs.push(Box::new(move || {
                    let load = Load { recipe, terms, shards, side, shard };
                    load.run(daemon, loaded, stop)
                }));
            }
        }
        watch(jobs, || stage.display.count(loaded.load(Ordering::Relaxed).into(), "loaded"))
    }

    /// Step 3: times of all handshakes, milliseconds.
    fn initiate(&self, stage: &Stage<'_>) -> Result<Vec<f64>, IkeError> {
        let begin = Instant::now();
        let (up, failed) = (AtomicU32::new(0), AtomicBool::new(false));
        let times = Mutex::new(Vec::new());
        // The next tunnel of each daemon.
        let queues: Vec<Mutex<std::vec::IntoIter<u32>>> = (0..self.shards.count)
            .map(|shard| {
                let own = (1..=stage.tunnels).filter(|&number| self.shards.of(number) == shard);
                Mutex::new(own.collect::<Vec<u32>>().into_iter())
            })
            .collect();
        stage.display.begin_count("negotiating", stage.tunnels.into());
        let mut jobs: Vec<Box<dyn FnOnce() -> Result<(), IkeError> + Send + '_>> = Vec::new();
        for (daemon, queue) in self.sides[0].iter().zip(&queues) {
            for _ in 0..self.parallel() {
                let (up, failed, times, recipe) = (&up, &failed, &times, stage.recipe);
                let stop = stage.stop;
                jobs.push(Box::new(move || {
                    let mut client = daemon.client()?;
                    let next = || queue.lock().ok()?.next();
                    while let Some(number) = next() {
                        if stop.load(Ordering::Relaxed) || failed.load(Ordering::Relaxed) {
                            break;
                        }
                        let time_ms = initiate(&mut client, recipe, number).map_err(|error| {
                            failed.store(true, Ordering::Relaxed);
                            daemon.error(format!("tunnel {number}: {error}"))
                        })?;
                        up.fetch_add(1, Ordering::Relaxed);
                        if let Ok(mut times) = times.lock() {
                            times.push(time_ms);
                        }
                    }
                    Ok(())
                }));
            }
        }
        watch(jobs, || {
            let up = up.load(Ordering::Relaxed);
            let rate = f64::from(up) / begin.elapsed().as_secs_f64().max(0.001);
            stage.display.count(up.into(), &format!("up, {rate:.0} per second"));
        })?;
        Ok(times.into_inner().unwrap_or_default())
    }
}

/// Runs jobs on threads of their own, and `look` until all have ended; the first error is returned.
fn watch<'a>(
    jobs: Vec<Box<dyn FnOnce() -> Result<(), IkeError> + Send + 'a>>,
    mut look: impl FnMut(),
) -> Result<(), IkeError> {
    thread::scope(|scope| {
        let threads: Vec<_> = jobs.into_iter().map(|job| scope.spawn(job)).collect();
        while threads.iter().any(|thread| !thread.is_finished()) {
            thread::sleep(LOOK);
            look();
        }
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|e| std::panic::resume_unwind(e)))
    })
}

/// What one daemon is told.
struct Load<'a> {
    recipe: &'a Recipe,
    terms: &'a Terms,
    shards: Shards,
    side: Side,
    shard: u32,
}

impl Load<'_> {
    fn run(&self, daemon: &Daemon, loaded: &AtomicU32, stop: &AtomicBool) -> Result<(), IkeError> {
        let mut client = daemon.client()?;
        let mut order = |command: &str, message: &Message| {
            client.order(command, message).map_err(|error| daemon.error(error))
        };
        let is_any = self.terms.responder == Responder::Any;
        let own = (1..=self.shards.tunnels).filter(|&number| self.shards.of(number) == self.shard);
        let mut pairs = Vec::new();
        for (count, number) in own.enumerate() {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let port = self.shards.ports(self.shard).map(|(port, _)| port);
            let tunnel = tunnel(self.recipe, number)?;
            let (ends, pair) = (self.recipe.ends(&tunnel, port), tunnel.pair);
            // With one identity for the far side there is one secret, and there one connection for
            // each pair of links.
            if count == 0 || !is_any {
                order("load-shared", &self.terms.secret(&ends).message())?;
            }
            let connection = match (self.side, is_any) {
                (Side::Near, _) => Some(self.terms.near(&ends)),
                (Side::Far, false) => Some(self.terms.near(&ends).mirrored()),
                (Side::Far, true) => self.any(&mut pairs, pair, &ends),
            };
            if let Some(connection) = connection {
                order("load-conn", &connection.message())?;
            }
            loaded.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Load<'_> {
    /// The connection that answers for all tunnels of a pair, the first time; `known` are the pairs
    /// that have theirs.
    fn any(&self, known: &mut Vec<u32>, pair: u32, ends: &Ends) -> Option<Connection> {
        if known.contains(&pair) {
            return None;
        }
        known.push(pair);
        let name = if self.recipe.pairs() == 1 { "any".to_owned() } else { format!("any-{pair}") };
        Some(self.terms.far_any(&name, ends, self.recipe.far.route_of(pair)?))
    }
}

/// A tunnel of a plan that was checked before.
fn tunnel(recipe: &Recipe, number: u32) -> Result<Tunnel, RecipeError> {
    recipe.tunnel(number).ok_or_else(|| RecipeError::Plan {
        tunnel: number,
        what: "addresses",
        found: "none".to_owned(),
        range: recipe.far.route,
    })
}

/// One handshake; its time in milliseconds.
fn initiate(client: &mut Client, recipe: &Recipe, number: u32) -> Result<f64, IkeError> {
    let ends = recipe.ends(&tunnel(recipe, number)?, None);
    let message = Message::new()
        .value("child", &ends.child)
        .value("ike", &ends.connection)
        .value("timeout", HANDSHAKE_MS_MAX)
        // No log lines on the socket.
        .value("loglevel", "-1");
    let begin = Instant::now();
    client.order("initiate", &message).map_err(IkeError::Vici)?;
    Ok(begin.elapsed().as_secs_f64() * 1e3)
}

/// Step 4 for one gateway: its numbers of SAs and policies.
fn wait_for_sas(stage: &Stage<'_>, index: usize) -> Result<(u64, u64), IkeError> {
    let expected = 2 * u64::from(stage.tunnels);
    let end = Instant::now() + INSTALL_PATIENCE;
    loop {
        let status = stage.dut.status_of(index).map_err(Box::new)?;
        let count = |key: &str| status[key].as_u64().unwrap_or(0);
        if count("sas") == expected {
            return Ok((expected, count("policies")));
        }
        if Instant::now() > end {
            let gateway = stage.recipe.site(SIDES[index]).gateway.clone();
            return Err(IkeError::Missing { gateway, found: count("sas"), expected });
        }
        thread::sleep(LOOK);
    }
}
