//! `peregrine lab`: measure two gateways in network namespaces, redraw what was measured.

mod matrix;
mod swanctl;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use clap::{Subcommand, ValueEnum};
use control::signal::StopSignals;
use lab::ike::{Keying, Responder, SHARDS_MAX};
use lab::matrix::Matrix;
use lab::recipe::{Recipe, RecipeError, Speed};
use lab::report;
use lab::result::{Direction, Label};
use lab::run::{Options, Outcome};

use super::Unfit;

/// What the shell calls a program that Ctrl-C ended.
pub(super) const EXIT_INTERRUPTED: u8 = 130;
/// The programs that the lab runs, and the Debian packages that have them.
const PROGRAMS: [(&str, &str); 5] = [
    ("ip", "iproute2"),
    ("ethtool", "ethtool"),
    ("sysctl", "procps"),
    ("nsenter", "util-linux"),
    ("setpriv", "util-linux"),
];
/// The same where strongSwan negotiates the tunnels.
const IKE_PROGRAMS: [(&str, &str); 2] =
    [(lab::ike::PROGRAM, "charon-systemd"), ("swanctl", "strongswan-swanctl")];
/// How often the signals are looked at: quick for a finger, free for the machine.
const SIGNAL_POLL: Duration = Duration::from_millis(50);

/// Measure gateways: build a test network, load it, draw what happened
///
/// A recipe describes a published test: addresses, tunnels, sizes of frames, the ramp, the limits.
/// The lab builds its network out of namespaces, starts two gateways of this very program in it,
/// installs the tunnels through the XFRM interface, proves every tunnel, and offers a load that
/// grows step by step. Every frame carries a signature and a number, so loss, reordering,
/// duplication and damage are counted apart, and every lost packet has to be accounted for.
#[derive(clap::Args)]
pub struct Lab {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Run(Run),
    Plot(Plot),
    List(List),
    Swanctl(swanctl::Swanctl),
}

/// Run a recipe and write its folder
///
/// Needs root, the preload library as `peregrine exec` does, and `ip`, `ethtool`, `sysctl` and, with
/// --keys ike, strongSwan, which `./setup` installs. Networks, gateways and their files are made for
/// the run and are gone after it, also when it is interrupted. Ctrl-C ends the run early, and what
/// was measured so far is written and says that it was interrupted.
///
/// The folder then holds
///
///   report.html   the page: plot, tables, accounts, environment; needs nothing else
///   plot.svg, plot.png   the four panels
///   result.json   steps, markers, accounts    samples.csv   four rows per second    env.json
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
#[command(after_help = "\
Exit codes:
  0    measured, and every packet is accounted for
  1    failed, or measured with packets that nobody can account for
  2    not started: the recipe, an option or the machine is not fit
  130  interrupted; the folder holds what was measured

Examples:
  peregrine lab run bf3-test1 --tunnels 500
  peregrine lab run bf3-test0 --tunnels 10,50,100,500 --steps 20 --step-time 10s --max 2gbps
  peregrine lab run bf3-test1 --directions uni,both --mix 1428 --out long-frames
  peregrine lab run bf3-test1 --keys ike --tunnels 500
  peregrine lab run vpp-10k                            modes against cores, beside VPP's table
  peregrine lab run my-recipe.toml --json | jq '.curves[].conclusion.marker.rx_bps'")]
struct Run {
    /// A built-in recipe (see `peregrine lab list`) or a recipe's file
    recipe: String,
    /// Numbers of tunnels, one curve for each
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    tunnels: Vec<u32>,
    /// Directions: `uni` (first port sends), `both`, or `uni,both` for a curve of each
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = direction)]
    directions: Vec<Direction>,
    /// Steps of the ramp
    #[arg(long, value_name = "N")]
    steps: Option<u32>,
    /// Length of a step: `10s`, `500ms`
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    step_time: Option<f64>,
    /// Load per sending port at the last step: `auto`, or a rate such as `500mbps`, `2gbps` (with
    /// FCS) or `100kpps` (frames of the port's own sizes); `auto` looks for the knee first and ends
    /// the ramp 20 % beyond it
    #[arg(long, value_name = "RATE")]
    max: Option<String>,
    /// Sizes of frames for both ports: `imix1` to `imix4`, plain sizes, or several added up
    #[arg(long, value_name = "MIX,…", value_delimiter = ',')]
    mix: Vec<String>,
    /// Seed of the tunnels' test keys
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Where the tunnels' keys come from: `static` ones of the lab's, or `ike`: strongSwan, started
    /// under `peregrine exec` on both gateways, negotiates every tunnel; logs go to ike/ in the folder
    #[arg(long, value_name = "HOW", default_value = "static")]
    keys: Keys,
    /// With --keys ike: daemons per gateway (default: as many as keep each at 1000 tunnels)
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=i64::from(SHARDS_MAX)))]
    shards: Option<u32>,
    /// With --keys ike: how the answering daemon finds a tunnel, `exact` (a connection for each) or
    /// `any` (one for all)
    #[arg(long, value_name = "HOW", value_parser = swanctl::responder)]
    responder: Option<Responder>,
    /// With --keys ike: print `swanctl --list-sas` beside `peregrine show sa`, before and after the
    /// ramp
    #[arg(long)]
    show_sas: bool,
    /// With --keys ike: the strongSwan unpacked in this folder instead of the machine's own, such as
    /// tests/daemon/provision unpacks in target/daemons
    #[arg(long, value_name = "DIR")]
    daemon_root: Option<PathBuf>,
    /// Folder for the results (default: RECIPE-TIME here)
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print result.json instead of tables, and no progress
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Keys {
    Static,
    Ike,
}

/// Redraw a run, or draw several over each other
///
/// One folder is redrawn in place, page included; the plot of several goes to --out.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  peregrine lab plot demo
  peregrine lab plot before after --out compared")]
struct Plot {
    /// Folders of earlier runs
    #[arg(required = true, value_name = "DIR")]
    folders: Vec<PathBuf>,
    /// Folder for the plot of several runs
    #[arg(long, value_name = "DIR", default_value = "overlay")]
    out: PathBuf,
}

/// List the built-in recipes
#[derive(clap::Args)]
struct List {}

impl Lab {
    /// Does what was asked.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.verb {
            Verb::Run(verb) => verb.run(),
            Verb::Plot(verb) => verb.run(),
            Verb::List(_) => list(),
            Verb::Swanctl(verb) => verb.run(),
        }
    }
}

impl Run {
    fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(matrix) = Matrix::built_in(&self.recipe) {
            return self.run_matrix(matrix);
        }
        let recipe = self.changed_recipe()?;
        let keying = self.keying(&recipe)?;
        check_machine()?;
        if keying.is_some() {
            check_programs(&IKE_PROGRAMS)?;
        }
        let stop = Arc::new(AtomicBool::new(false));
        watch_signals(Arc::clone(&stop), "written")?;
        let out = self.out.clone().unwrap_or_else(|| default_out(&recipe));
        let binary = std::env::current_exe().context("finding this program's own file")?;
        let quiet = self.json;
        let options = Options { recipe, out: out.clone(), binary, stop, quiet, keying };
        let outcome = lab::run::run(&options)?;
        if self.json {
            println!("{}", serde_json::to_string_pretty(&outcome.run.result)?);
        } else {
            print(&outcome, &out);
        }
        Ok(exit_code(&outcome))
    }

    /// A table of modes against cores; most options are those of its run over veth.
    fn run_matrix(&self, matrix: Matrix) -> anyhow::Result<ExitCode> {
        let is_another = self.keys == Keys::Ike
            || self.asks_for_keying()
            || !self.mix.is_empty()
            || !self.tunnels.is_empty()
            || !self.directions.is_empty();
        if is_another {
            let sentence = format!(
                "{} has static keys, one direction, packets of {} bytes and as many tunnels as the table \
                 published beside it: leave out --keys, --shards, --responder, --daemon-root, --show-sas, \
                 --directions, --mix and --tunnels",
                matrix.id, matrix.size
            );
            return Err(Unfit(sentence).into());
        }
        let unfit = |error: RecipeError| Unfit(error.to_string());
        let recipe = self.change(matrix.recipe().map_err(unfit)?)?;
        let out = self.out.clone().unwrap_or_else(|| default_out(&recipe));
        matrix::run(&matrix::Asked { matrix, recipe, out, json: self.json })
    }

    /// Whether an option is about negotiated tunnels.
    fn asks_for_keying(&self) -> bool {
        self.shards.is_some()
            || self.responder.is_some()
            || self.daemon_root.is_some()
            || self.show_sas
    }

    /// How the tunnels are negotiated, if they are.
    fn keying(&self, recipe: &Recipe) -> Result<Option<Keying>, Unfit> {
        if self.keys == Keys::Static {
            let sentence = "--shards, --responder, --daemon-root and --show-sas are about \
                            negotiated tunnels: say --keys ike as well";
            return if self.asks_for_keying() { Err(Unfit(sentence.to_owned())) } else { Ok(None) };
        }
        let responder = self.responder.unwrap_or_default();
        recipe.terms(responder).map_err(|error| Unfit(error.to_string()))?;
        let root = self.daemon_root.clone();
        Ok(Some(Keying { root, shards: self.shards, responder, lists_sas: self.show_sas }))
    }

    /// The recipe with what the options change in it.
    fn changed_recipe(&self) -> anyhow::Result<Recipe> {
        self.change(read_recipe(&self.recipe)?)
    }

    fn change(&self, mut recipe: Recipe) -> anyhow::Result<Recipe> {
        let written = (recipe.tunnels.clone(), recipe.directions.clone());
        if !self.tunnels.is_empty() {
            recipe.tunnels.clone_from(&self.tunnels);
        }
        if !self.directions.is_empty() {
            recipe.directions.clone_from(&self.directions);
        }
        if written != (recipe.tunnels.clone(), recipe.directions.clone()) {
            recipe.retitle();
        }
        recipe.ramp.steps = self.steps.unwrap_or(recipe.ramp.steps);
        recipe.ramp.step_time_s = self.step_time.unwrap_or(recipe.ramp.step_time_s);
        recipe.ramp.settle_s = recipe.ramp.settle_s.min(recipe.ramp.step_time_s);
        recipe.seed = self.seed.unwrap_or(recipe.seed);
        if !self.mix.is_empty() {
            recipe.near.mix.clone_from(&self.mix);
            recipe.far.mix.clone_from(&self.mix);
        }
        if let Some(text) = &self.max {
            recipe.max = speed(text)?;
        }
        recipe.check().map_err(|error| Unfit(error.to_string()))?;
        Ok(recipe)
    }
}

impl Plot {
    fn run(self) -> anyhow::Result<ExitCode> {
        let drawn = report::redraw(&self.folders, &self.out)?;
        drawn.warnings.iter().for_each(|warning| eprintln!("peregrine: {warning}"));
        drawn.files.iter().for_each(|file| println!("{}", file.display()));
        Ok(ExitCode::SUCCESS)
    }
}

fn list() -> anyhow::Result<ExitCode> {
    for name in Recipe::names() {
        println!("{name:<18} {}", Recipe::built_in(name)?.title);
    }
    for matrix in Matrix::names().filter_map(Matrix::built_in) {
        println!("{:<18} {}", matrix.id, matrix.title);
    }
    Ok(ExitCode::SUCCESS)
}

/// A built-in recipe by its name, any other by its path.
fn read_recipe(name: &str) -> Result<Recipe, Unfit> {
    if Recipe::names().any(|known| known == name) || !name.contains(['.', '/']) {
        return Recipe::built_in(name).map_err(|error| Unfit(with_tables(error).to_string()));
    }
    let text = std::fs::read_to_string(name)
        .map_err(|error| Unfit(format!("cannot read the recipe {name}: {error}")))?;
    Recipe::parse(&text).map_err(|error| Unfit(format!("{name}: {error}")))
}

/// The same, with the tables among what there is.
fn with_tables(error: RecipeError) -> RecipeError {
    match error {
        RecipeError::Unknown { found, known } => {
            let tables = Matrix::names().collect::<Vec<_>>().join(", ");
            RecipeError::Unknown { found, known: format!("{known}, {tables}") }
        }
        other => other,
    }
}

/// `auto`, bits per second, or frames per second.
fn speed(text: &str) -> Result<Speed, Unfit> {
    text.parse().map_err(|_| {
        Unfit(format!(
            "--max {text} is not a load; write `auto`, bits per second such as `500mbps`, or \
             frames per second such as `100kpps`"
        ))
    })
}

fn direction(text: &str) -> Result<Direction, String> {
    match text.trim() {
        "uni" | "unidirectional" => Ok(Direction::Unidirectional),
        "both" | "bi" | "bidirectional" => Ok(Direction::Bidirectional),
        _ => Err("write `uni`, `both`, or `uni,both`".to_owned()),
    }
}

/// `10s`, `1.5s`, `500ms`, or a plain number of seconds.
fn seconds(text: &str) -> Result<f64, String> {
    let text = text.trim();
    let (number, factor) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => (number, 1e-3),
        (None, Some(number)) => (number, 1.0),
        (None, None) => (text, 1.0),
    };
    let seconds = number.trim().parse::<f64>().map(|number| number * factor);
    seconds
        .ok()
        .filter(|seconds| seconds.is_finite() && *seconds > 0.0)
        .ok_or_else(|| "write a time such as `10s` or `500ms`".to_owned())
}

fn default_out(recipe: &Recipe) -> PathBuf {
    // 2026-11-20T12:00:00Z without what shells and file systems dislike.
    let time: String =
        lab::clock::utc_now().chars().filter(|c| c.is_ascii_alphanumeric()).collect();
    PathBuf::from(format!("{}-{time}", recipe.id))
}

/// Everything that would otherwise fail half way.
pub(super) fn check_machine() -> Result<(), Unfit> {
    if !rustix::process::geteuid().is_root() {
        return Err(Unfit(
            "the lab makes network namespaces and attaches XDP programs: run it as root".to_owned(),
        ));
    }
    check_programs(&PROGRAMS)
}

/// Whether all these programs are installed.
fn check_programs(programs: &[(&str, &str)]) -> Result<(), Unfit> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = |program: &str| {
        std::env::split_paths(&path).any(|directory: PathBuf| directory.join(program).is_file())
    };
    match programs.iter().find(|(program, _)| !found(program)) {
        Some((program, package)) => Err(Unfit(format!(
            "the lab needs the program `{program}`; install the package {package}"
        ))),
        None => Ok(()),
    }
}

/// Makes `stop` true at the first signal, and says what becomes of what was measured. The thread ends with the process.
pub(super) fn watch_signals(stop: Arc<AtomicBool>, becomes: &'static str) -> anyhow::Result<()> {
    let mut signals = StopSignals::subscribe().context("subscribing to signals")?;
    std::thread::Builder::new().name("lab-signals".to_owned()).spawn(move || {
        loop {
            std::thread::sleep(SIGNAL_POLL);
            if signals.take() > 0 {
                stop.store(true, Ordering::Relaxed);
                eprintln!("peregrine: stopping; what was measured will be {becomes}");
            }
        }
    })?;
    Ok(())
}

fn print(outcome: &Outcome, out: &Path) {
    let result = &outcome.run.result;
    for curve in &result.curves {
        println!("{}\n", report::text::steps(curve).trim_end());
    }
    println!("{}\n", report::text::summary(result).trim_end());
    outcome.drawn.warnings.iter().for_each(|warning| eprintln!("peregrine: {warning}"));
    println!("Everything is in {}:", out.display());
    outcome.drawn.files.iter().for_each(|file| println!("  {}", file.display()));
}

fn exit_code(outcome: &Outcome) -> ExitCode {
    if outcome.interrupted {
        return ExitCode::from(EXIT_INTERRUPTED);
    }
    let open = |curve: &lab::result::Curve| curve.conclusion.labels.contains(&Label::Unaccounted);
    if outcome.run.result.curves.iter().any(open) {
        eprintln!("peregrine: the accounts do not close: see the accounting in the report");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_their_unit() {
        assert_eq!(seconds("10s"), Ok(10.0));
        assert_eq!(seconds("500ms"), Ok(0.5));
        assert_eq!(seconds("2"), Ok(2.0));
        for bad in ["", "s", "-1s", "0s", "10m", "nan", "inf"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_load_is_bits_or_frames_per_second() {
        assert_eq!(speed("auto").unwrap(), Speed::Auto);
        assert_eq!(speed("500mbps").unwrap(), Speed::L2Bps(5e8));
        assert_eq!(speed("100kpps").unwrap(), Speed::Pps(1e5));
        assert_eq!(speed("10pps").unwrap(), Speed::Pps(10.0));
        for bad in ["fast", "pps", "-1kpps", "0pps", "1xpps", "kpps"] {
            assert!(speed(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn unknown_recipes_are_named_with_what_there_is() {
        let message = read_recipe("bf3-test9").unwrap_err().to_string();
        for name in ["bf3-test9", "bf3-test0", "vpp-10k", "vpp-single-tunnel"] {
            assert!(message.contains(name), "{name}: {message}");
        }
        let message = read_recipe("./missing.toml").unwrap_err().to_string();
        assert!(message.contains("missing.toml"), "{message}");
    }

    #[test]
    fn options_change_the_recipe_and_are_checked_with_it() {
        let run = |tunnels: &[u32], step_time| Run {
            recipe: "bf3-test1".to_owned(),
            tunnels: tunnels.to_vec(),
            directions: vec![Direction::Bidirectional],
            steps: Some(3),
            step_time,
            max: Some("1gbps".to_owned()),
            mix: vec!["imix1".to_owned(), "1400".to_owned()],
            seed: Some(9),
            keys: Keys::Static,
            shards: None,
            responder: None,
            show_sas: false,
            daemon_root: None,
            out: None,
            json: false,
        };
        let recipe = run(&[7, 8], Some(1.0)).changed_recipe().unwrap();
        assert_eq!((recipe.tunnels.as_slice(), recipe.seed), (&[7, 8][..], 9));
        assert_eq!(recipe.directions, [Direction::Bidirectional]);
        assert_eq!(recipe.title, "Test 1: 7 and 8 tunnels, both directions");
        assert_eq!((recipe.ramp.steps, recipe.ramp.step_time_s), (3, 1.0));
        assert_eq!(recipe.far.mix, ["imix1", "1400"]);
        let error = run(&[0], None).changed_recipe().unwrap_err();
        assert!(error.downcast_ref::<Unfit>().is_some(), "{error}");
    }
}
