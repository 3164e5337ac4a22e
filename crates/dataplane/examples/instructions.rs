//! The work of the path for an instruction counter to watch: `instructions policy TUNNELS seal` sends a
//! fixed number of packets through a sealing gateway with that many tunnels, and as many through the
//! bare cipher; with `both` they are opened as well, with `policy-uncached` the policies have several shapes,
//! with `p2p` and `p2mp` routes lead into the tunnels, and with `plain` there are none: packets are forwarded in clear.
//! It measures nothing itself; `tests/instructions.rs` runs it under callgrind and divides.
//!
//! The engine is the portable one: callgrind knows neither AVX-512 nor VAES. What is judged is the
//! path beside the cipher, so that the engine matters little.

use std::process::ExitCode;

use crypto::{Cache, Engine};
use dataplane::cpu;
use dataplane::ruler::RulerError;
use dataplane::ruler::path::{CipherBench, Measured, PathBench, Selection};

/// Batches of 64 packets. With more tunnels than packets each SA is met for the first time: what is done then once
/// is counted for each, and what it saves later is not.
const ROUNDS: usize = 16;

/// Bytes of the inner packets: short, because the cipher is not what is counted.
const SIZE: usize = 100;

fn run(selection: Selection, tunnels: usize, measured: Measured) -> Result<u64, RulerError> {
    // Of the two that parts of the path are compiled for, the same one everywhere.
    cpu::fix_cache(Cache::First);
    let sizes = [SIZE];
    let engine = Engine::AwsLc;
    let path = PathBench::new(engine, selection, tunnels, measured, &sizes)?.run(ROUNDS)?;
    let cipher = CipherBench::new(engine, tunnels, measured, &sizes)?.run(ROUNDS);
    assert_eq!(path.packets, cipher.packets, "both must do the same work");
    Ok(path.packets)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let asked = match words[..] {
        [selection, tunnels, "seal"] => Some((selection, tunnels, Measured::Seal)),
        [selection, tunnels, "both"] => Some((selection, tunnels, Measured::Both)),
        _ => None,
    };
    let understood = asked.and_then(|(selection, tunnels, measured)| {
        let selection = Selection::ALL.into_iter().find(|one| one.name() == selection)?;
        Some((selection, tunnels.parse().ok()?, measured))
    });
    let Some((selection, tunnels, measured)) = understood else {
        eprintln!("usage: instructions policy|policy-uncached|p2p|p2mp|plain TUNNELS seal|both");
        return ExitCode::from(2);
    };
    match run(selection, tunnels, measured) {
        Ok(packets) => {
            println!("{packets}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("instructions: {error}");
            ExitCode::FAILURE
        }
    }
}
