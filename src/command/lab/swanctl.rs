//! `peregrine lab swanctl`: a published address plan as files for strongSwan and `ip`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use lab::ike::{Auth, Responder};
use lab::swanctl::{self, Kind, Plan, Request};

use crate::command::Unfit;

/// Write the strongSwan files and address plans of a published test
///
/// For N tunnels, the files of both gateways: `swanctl.conf` in parts of at most 500 connections,
/// shared out to as many daemons as it takes to keep each at 1000 (a handshake costs a charon
/// more, the more connections it has to choose from); `ip -batch` scripts of every
/// host; and the plan itself as plan.json and tunnels.csv.
///
///   test0   Tests 0 to 3 of "Nvidia Bluefield-3 by numbers": two gateways back to back
///   test4   Test 4: two pairs of ports over a router
///   pcpu    "2025 Linux IPsec pCPU testing": RFC 9611 between west and east (strongSwan 6.0.2)
///
/// Where the published text is wrong, the files are right and README.md among them says what was
/// mended. The pre-shared key is the published one: use the files in a closed network. With
/// `--auth cert` every key is new, in files that only their owner reads; that of the authority is kept
/// nowhere.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
#[command(after_help = "\
Examples:
  peregrine lab swanctl --plan test0 --tunnels 500 --out plan
  peregrine lab swanctl --plan test4 --tunnels 8000 --shards 4 --responder any --out plan
  peregrine lab swanctl --plan test0 --tunnels 500 --auth cert --out plan
  peregrine lab swanctl --plan test0 --tunnels 2000 --prefix 26 --hw-offload packet --out plan")]
pub struct Swanctl {
    /// Which test
    #[arg(long)]
    plan: PlanName,
    /// All tunnels of the plan, both pairs of ports together
    #[arg(long, value_name = "N")]
    tunnels: u32,
    /// Daemons per gateway (default: as many as keep each at 1000 tunnels); with more than one,
    /// they listen at ports of their own
    #[arg(long, value_name = "S")]
    shards: Option<u32>,
    /// Prefix length of a tunnel's network on the far side, 16 to 32 (the scripts' BITS)
    #[arg(long, value_name = "BITS", default_value_t = 24)]
    prefix: u8,
    /// How the answering daemon finds a tunnel: `exact`, a connection for each, as published; `any`,
    /// one connection for all, whose cost there does not grow with the number of tunnels
    #[arg(long, value_name = "HOW", default_value = "exact", value_parser = responder)]
    responder: Responder,
    /// How the gateways know each other: `psk`, the published secret; `cert`, certificates of an
    /// authority made for this plan, one for each identity
    #[arg(long, value_name = "HOW", default_value = "psk", value_parser = auth)]
    auth: Auth,
    /// Ask the network card for the cryptography, as the published test does (strongSwan 5.9.10)
    #[arg(long, value_name = "MODE", value_parser = ["packet", "crypto"])]
    hw_offload: Option<String>,
    /// Folder for the files: new, or empty
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum PlanName {
    Test0,
    Test4,
    Pcpu,
}

impl Swanctl {
    /// Writes the files.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let kind = match self.plan {
            PlanName::Test0 => Kind::Test0,
            PlanName::Test4 => Kind::Test4,
            PlanName::Pcpu => Kind::PerCpu,
        };
        let plan = Plan::new(Request {
            kind,
            total: self.tunnels,
            shards: self.shards,
            prefix: self.prefix,
            auth: self.auth,
            responder: self.responder,
            hw_offload: self.hw_offload,
        })
        .map_err(|error| Unfit(error.to_string()))?;
        let files = swanctl::files(&plan)?;
        swanctl::write(&self.out, &files).map_err(|error| match error {
            swanctl::WriteError::NotEmpty(_) => Unfit(error.to_string()).into(),
            other => anyhow::Error::from(other),
        })?;
        println!(
            "{} tunnels, {} per gateway: {} files in {}; README.md says how to use them",
            self.tunnels,
            match plan.shards.count {
                1 => "one charon".to_owned(),
                count => format!("{count} charons"),
            },
            files.len(),
            self.out.display()
        );
        Ok(ExitCode::SUCCESS)
    }
}

/// `psk` or `cert`.
fn auth(text: &str) -> Result<Auth, String> {
    match text {
        "psk" => Ok(Auth::Psk),
        "cert" => Ok(Auth::Cert),
        _ => Err("write `psk` or `cert`".to_owned()),
    }
}

/// `exact` or `any`.
pub fn responder(text: &str) -> Result<Responder, String> {
    match text {
        "exact" => Ok(Responder::Exact),
        "any" => Ok(Responder::Any),
        _ => Err("write `exact` or `any`".to_owned()),
    }
}
