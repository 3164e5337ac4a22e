//! `peregrine run`: one gateway in the foreground.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use control::config::{Config, EngineChoice};
use control::gateway::{Gateway, GatewayError, Place, check};
use control::journal::FORMAT;
use control::signal::StopSignals;

use super::Unfit;

/// Run a gateway in the foreground until SIGTERM or Ctrl-C
///
/// Takes the interfaces of its configuration: ESP to this host's addresses and packets to be
/// forwarded go to Peregrine, everything else (ARP, IKE, SSH, the host's own traffic) stays with
/// the kernel, as do routes, addresses and neighbours. SAs and policies come through the XFRM
/// interface: see `peregrine exec`.
///
/// A clean stop gives the interfaces back to the kernel and leaves nothing behind. A gateway that
/// is killed fails closed: its XDP programs stay and drop what they would have delivered, and the
/// kernel is kept from forwarding what was protected, until a gateway of the same configuration
/// starts again. To give one up for good its XDP programs, devices, rules, routes and policies have to be
/// removed by hand: see "For good" in docs/operating.md.
#[derive(clap::Args)]
#[command(after_help = "\
Exit codes:
  0  stopped by a signal
  1  ended by a failure while running; the interfaces are left closed
  2  not started: the configuration, the machine or the rights are not fit; nothing was changed

Examples:
  peregrine run --example > gw.toml
  peregrine run --config gw.toml --check
  peregrine run --config gw.toml")]
pub struct Run {
    /// The configuration
    #[arg(long, short, value_name = "FILE", required_unless_present = "example")]
    config: Option<PathBuf>,
    /// Print a commented configuration to start from
    #[arg(long)]
    example: bool,
    /// Crypto engine, instead of the configuration's
    #[arg(long, value_name = "ENGINE",
        value_parser = clap::builder::PossibleValuesParser::new(EngineChoice::ALL.map(EngineChoice::label)))]
    engine: Option<String>,
    /// Check the configuration against this machine, and stop
    #[arg(long, requires = "config")]
    check: bool,
    /// With --check, of the gateway that asks: whether its place and its journal, of this format, can be
    /// taken
    #[arg(long, requires = "check", hide = true, value_name = "NUMBER")]
    journal_format: Option<u32>,
    /// With --check: where that gateway has its sockets, its journal and its epoch
    #[arg(long, requires = "check", hide = true, num_args = 3, value_name = "DIR")]
    place: Vec<PathBuf>,
}

impl Run {
    /// Runs the gateway.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let Some(path) = self.config.filter(|_| !self.example) else {
            print!("{}", Config::example());
            return Ok(ExitCode::SUCCESS);
        };
        let mut config = Config::read(&path).map_err(unfit)?;
        let asked = EngineChoice::ALL
            .into_iter()
            .find(|choice| self.engine.as_deref() == Some(choice.label()));
        config.engine = asked.unwrap_or(config.engine);
        if self.check {
            if let Some(format) = self.journal_format.filter(|format| *format != FORMAT) {
                return Err(Unfit(format!(
                    "the journal has format {format} and this peregrine knows format {FORMAT}: its \
                     SAs would end; stop the gateway, start the new one and rekey every tunnel"
                ))
                .into());
            }
            let mut machine = control::config::Machine::probe().map_err(unfit)?;
            if self.journal_format.is_some()
                && let Some(gateway) = rustix::process::getppid()
            {
                // Its place is to be taken, and its packet memory is free then.
                machine = machine.without_process(gateway.as_raw_nonzero().get() as u32);
            }
            check(&config, &machine).map_err(unfit)?;
            if let Ok([run, journal, state]) = <[PathBuf; 3]>::try_from(self.place) {
                Place { run, journal, state }.check(&config).map_err(Unfit)?;
            }
            println!("{}: fit for this machine", path.display());
            return Ok(ExitCode::SUCCESS);
        }
        tracing_subscriber::fmt()
            .with_writer(std::io::stderr)
            .with_ansi(has_colours(std::io::stderr().is_terminal()))
            .with_target(false)
            .init();
        // Packet memory and keys stay out of core dumps.
        rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
        let mut signals = StopSignals::subscribe()?;
        let mut gateway = Gateway::start(config).map_err(unfit)?;
        let summary = gateway.summary();
        let ports: Vec<String> =
            summary.ports.iter().map(|(name, mode)| format!("{name} ({mode})")).collect();
        eprintln!(
            "peregrine: gateway {} ready: ports {}, cores {:?}, {}, epoch {}",
            summary.name,
            ports.join(", "),
            summary.cores,
            summary.engine,
            summary.epoch
        );
        if let Err(error) = gateway.serve(&mut signals) {
            // No destructor runs: the interfaces stay closed, and what was protected is remembered.
            eprintln!(
                "peregrine: gateway {} ends: {error}; its interfaces stay closed",
                summary.name
            );
            std::process::exit(1);
        }
        gateway.stop()?;
        eprintln!("peregrine: gateway {} stopped", summary.name);
        Ok(ExitCode::SUCCESS)
    }
}

fn unfit(error: impl Into<GatewayError>) -> Unfit {
    Unfit(error.into().to_string())
}

/// Whether the log has colours: none in a file, and none for whoever wants none (no-color.org).
fn has_colours(is_terminal: bool) -> bool {
    is_terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
