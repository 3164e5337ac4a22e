//! `peregrine`: one binary, one verb per file in `command/`.
//!
//! Exit codes: 0 success; 1 the job failed; 2 the command line, the configuration or the machine
//! is not fit for it (the message says what to do); `exec` passes on the code of what it ran. 141: nobody reads
//! what it prints any more.
#![forbid(unsafe_code)]

mod command;
mod heap;

use std::panic;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A multi-core IPsec gateway for Linux, and the lab that measures it.
#[derive(Parser)]
#[command(name = "peregrine", version, max_term_width = 100, propagate_version = true)]
#[command(after_help = "\
Examples:
  peregrine run --config gw.toml               run a gateway in the foreground
  peregrine exec -- ip xfrm state list         any XFRM program, against the gateway
  peregrine show drops                         what was dropped, and why
  peregrine upgrade                            replace the gateway's binary, tunnels go on
  peregrine lab run bf3-test1 --tunnels 500    measure two gateways in namespaces
  peregrine bench path                         cycles per packet, without a kernel
  peregrine bench all                          every bench, and which aims are met
  peregrine bench xfrm                         requests per second of the XFRM interface")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Run(command::run::Run),
    Exec(command::exec::Exec),
    Show(command::show::Show),
    Upgrade(command::upgrade::Upgrade),
    Lab(command::lab::Lab),
    Bench(command::bench::Bench),
}

/// What a shell says of a program that wrote to a pipe which nobody reads: 128, and the signal's number.
const NO_READER: i32 = 128 + 13;

/// Ends the program without a word when whoever reads what it prints has gone (`peregrine … | head`). Everything
/// else that panics says so.
fn end_with_the_reader() {
    let otherwise = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let message = info.payload().downcast_ref::<String>().map_or("", String::as_str);
        if message.starts_with("failed printing to stdout") && message.contains("Broken pipe") {
            std::process::exit(NO_READER);
        }
        otherwise(info);
    }));
}

fn main() -> ExitCode {
    end_with_the_reader();
    let arguments = Arguments::parse();
    if matches!(arguments.verb, Verb::Run(_) | Verb::Bench(_)) {
        heap::in_huge_pages();
    }
    let outcome = match arguments.verb {
        Verb::Run(verb) => verb.run(),
        Verb::Exec(verb) => verb.run(),
        Verb::Show(verb) => verb.run(),
        Verb::Upgrade(verb) => verb.run(),
        Verb::Lab(verb) => verb.run(),
        Verb::Bench(verb) => verb.run(),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("peregrine: {error:#}");
            error.downcast_ref::<command::Unfit>().map_or(ExitCode::from(1), |_| ExitCode::from(2))
        }
    }
}
