//! Interoperability with peers that are not Peregrine: the ESP of Debian's kernels, booted in QEMU,
//! and the daemons that drive them.
//!
//! A program instead of a set of `#[test]` functions, because one booted peer serves many
//! scenarios, and because what came of them is a table. Without arguments it runs what is quick
//! enough for `make test`: one kernel and SAs that are typed in; a machine that cannot have that
//! kernel says so and passes. With `--all` (`make interop`) it runs everything, and everything has
//! to be there, as it has with PEREGRINE_DAEMONS_REQUIRED set. It exits with failure if any scenario
//! failed, or if nothing was tested that was asked for.
//!
//! usage: cargo test --test interop -- [--all] [--suite SUITE]... [PART OF A SCENARIO'S NAME]
//!
//! A name alone is one that `cargo test NAME` gives to every program of tests, and none of a scenario.

#[path = "../gateway/mod.rs"]
mod gateway;

#[path = "../daemon/mod.rs"]
mod daemon;

mod bench;
mod charons;
mod counters;
mod frames;
mod guest;
mod libipsec;
mod pairs;
mod resources;
mod statics;
mod summary;
mod transport;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bench::Bench;
use guest::Image;
use summary::{Row, Summary};

/// The suites whose kernels are peers: oldest first. Together they bracket what is deployed.
const SUITES: [&str; 3] = ["bookworm", "trixie", "sid"];
/// The one whose kernel (6.13 and newer) and strongSwan (6.0.2 and newer) know SAs of single CPUs.
const PER_CPU_SUITE: &str = "sid";
/// How many peers are booted at the same time: each keeps one core busy.
const PEERS_AT_ONCE: usize = 2;

/// What one scenario achieved: packets that both sides counted.
type Outcome = Result<u64, String>;

/// What was asked for on the command line.
struct Options {
    suites: Vec<String>,
    all: bool,
    /// Something in particular is to be tested: nothing is not enough.
    asked: bool,
    filter: Option<String>,
}

impl Options {
    /// Reads the command line; options of `cargo test` that mean nothing here are passed over.
    fn read() -> Result<Options, String> {
        let mut options = Options { suites: Vec::new(), all: false, asked: false, filter: None };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            match word.as_str() {
                "--all" => (options.all, options.asked) = (true, true),
                "--suite" => {
                    options.suites.push(words.next().ok_or("--suite wants the name of a suite")?);
                    options.asked = true;
                }
                "--test-threads" | "--color" | "--format" => drop(words.next()),
                other if other.starts_with('-') => {}
                filter => options.filter = Some(filter.to_string()),
            }
        }
        // `cargo test NAME` gives the name to every test program; scenarios are not meant by it.
        if !options.asked && options.filter.take().is_some_and(|name| !"interop".contains(&name)) {
            return Ok(options);
        }
        if options.suites.is_empty() {
            let count = if options.all { SUITES.len() } else { 1 };
            options.suites = SUITES[..count].iter().map(|suite| suite.to_string()).collect();
        }
        Ok(options)
    }

    /// Whether a peer that this machine cannot have is a failure, and not only said.
    fn require(&self) -> bool {
        self.all || std::env::var_os("PEREGRINE_DAEMONS_REQUIRED").is_some()
    }

    /// Whether a scenario is wanted.
    fn wants(&self, name: &str) -> bool {
        self.filter.as_ref().is_none_or(|filter| name.contains(filter))
    }

    fn why_nothing(&self) -> String {
        let filter = self.filter.as_ref();
        filter.map_or_else(String::new, |part| format!(": no scenario's name contains \"{part}\""))
    }
}

/// Runs scenarios against one peer and keeps their rows.
struct Recorder<'a> {
    options: &'a Options,
    peer: String,
    rows: Vec<Row>,
}

impl Recorder<'_> {
    /// Whether anything failed so far.
    fn failed(&self) -> bool {
        self.rows.iter().any(|row| row.outcome.is_err())
    }

    /// Runs a group of scenarios. A panic between them ends the group, and is a failure of it.
    fn group(&mut self, name: &str, run: impl FnOnce(&mut Self)) {
        let begun = Instant::now();
        if catch_unwind(AssertUnwindSafe(|| run(&mut *self))).is_err() {
            let error = Err("it panicked, see above".to_string());
            let row = Row::new(&self.peer, name, error, begun.elapsed());
            println!("{}", row.line());
            self.rows.push(row);
        }
    }

    /// A daemon that this machine cannot have: said, and a failure if all are required.
    fn without(&mut self, what: &str, name: &str) {
        eprintln!("interop: NOT TESTED, {name} cannot be had on this machine");
        if self.options.require() {
            self.scenario(what, || Err(format!("{name} cannot be had")));
        }
    }

    /// Runs one scenario if it is wanted. A panic in it is its failure and nobody else's.
    fn scenario(&mut self, name: &str, run: impl FnOnce() -> Outcome) {
        if !self.options.wants(name) {
            return;
        }
        let begun = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            Err(text.unwrap_or_else(|| "it panicked".to_string()))
        });
        let row = Row::new(&self.peer, name, outcome, begun.elapsed());
        println!("{}", row.line());
        self.rows.push(row);
    }
}

/// What is done with one booted peer.
#[derive(Clone, Debug)]
struct Job {
    suite: String,
    /// Processors of the peer, workers of the gateway.
    cpus: usize,
    /// Instead of booting, this strongSwan's own ESP.
    libipsec: Option<&'static str>,
}

/// Everything about one booted peer.
fn peer(job: &Job, options: &Options) -> Vec<Row> {
    let suite = &job.suite;
    let failed = |error: String| {
        let row = Row::new(suite, "boot", Err(error), Duration::ZERO);
        println!("{}", row.line());
        vec![row]
    };
    let image = match Image::provide(suite) {
        Ok(image) => image,
        Err(error) if options.require() => return failed(error),
        Err(error) => {
            eprintln!("interop: NOT TESTED, no kernel to test with: {error}");
            return Vec::new();
        }
    };
    let peer = format!("Linux {}", image.kernel);
    let mut recorder = Recorder { options, peer, rows: Vec::new() };
    if let Some(name) = job.libipsec {
        recorder.group("libipsec", |recorder| libipsec::run(name, &image, recorder));
        return recorder.rows;
    }
    match catch_unwind(|| Bench::new(image, job.cpus)) {
        Ok(Ok(mut bench)) if job.cpus > 1 => {
            recorder.group("SAs of CPUs", |recorder| resources::run(&mut bench, recorder));
        }
        Ok(Ok(mut bench)) => {
            recorder.group("typed in", |recorder| statics::run(&mut bench, recorder));
            recorder.group("transport mode", |recorder| transport::run(&mut bench, recorder));
            if options.all {
                recorder.group("strongSwan", |recorder| charons::run(&mut bench, recorder));
            }
        }
        Ok(Err(error)) => return failed(error),
        Err(_) => return failed("the gateway did not start".to_string()),
    }
    recorder.rows
}

/// The peers to boot.
fn jobs(options: &Options) -> Vec<Job> {
    let job = |cpus| move |suite: &String| Job { suite: suite.clone(), cpus, libipsec: None };
    let mut jobs: Vec<Job> = options.suites.iter().map(job(1)).collect();
    if options.all {
        let with_cpus = options.suites.iter().filter(|suite| *suite == PER_CPU_SUITE);
        jobs.extend(with_cpus.map(job(2)));
        let alone = |name| Job { suite: SUITES[0].to_string(), cpus: 1, libipsec: Some(name) };
        if options.suites.iter().any(|suite| suite == SUITES[0]) {
            jobs.extend(["strongswan-5.9.8", "strongswan-6.1"].map(alone));
        }
    }
    jobs
}

fn main() -> ExitCode {
    let options = match Options::read() {
        Ok(options) => options,
        Err(error) => {
            eprintln!("interop: {error}");
            return ExitCode::from(2);
        }
    };
    if options.suites.is_empty() {
        return ExitCode::SUCCESS;
    }
    let waiting = Mutex::new(jobs(&options).into_iter());
    let rows = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..PEERS_AT_ONCE {
            scope.spawn(|| {
                loop {
                    let next = waiting.lock().expect("nobody panics with it").next();
                    let Some(job) = next else { break };
                    let found = peer(&job, &options);
                    rows.lock().expect("nobody panics with it").extend(found);
                }
            });
        }
    });
    let rows = rows.into_inner().expect("nobody panics with it");
    if rows.is_empty() {
        // What the last run found out stays.
        eprintln!("interop: nothing was tested{}", options.why_nothing());
        return if options.asked { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    }
    let summary = Summary::new(rows);
    println!("{summary}");
    summary.write(&guest::directory().join("results.json"))
}
