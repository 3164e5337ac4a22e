//! `peregrine bench`: single figures, as opposed to the lab's curves.

mod all;
mod cipher;
mod control;
mod cores;
pub(super) mod machine;
mod measuring;
mod output;
pub(super) mod parts;
mod path;
mod tables;
mod vpp;
mod xfrm;

use std::process::ExitCode;

/// Measure the data path without a kernel, or the XFRM interface with everything
#[derive(clap::Args)]
pub struct Bench {
    #[command(subcommand)]
    subject: Subject,
}

#[derive(clap::Subcommand)]
enum Subject {
    All(all::All),
    Cipher(cipher::Cipher),
    Path(path::Path),
    Scale(path::Scale),
    #[command(visible_alias = "policy")]
    Tables(tables::Tables),
    Xfrm(xfrm::Xfrm),
    Control(control::Control),
    Cores(cores::Cores),
    Vpp(vpp::Vpp),
    /// The client of `bench xfrm`
    #[command(hide = true)]
    XfrmClient,
}

impl Bench {
    /// Measures and prints.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.subject {
            Subject::All(all) => all.run(),
            Subject::Cipher(cipher) => cipher.run(),
            Subject::Path(path) => path.run(),
            Subject::Scale(scale) => scale.run(),
            Subject::Tables(tables) => tables.run(),
            Subject::Xfrm(xfrm) => xfrm.run(),
            Subject::Control(control) => control.run(),
            Subject::Cores(cores) => cores.run(),
            Subject::Vpp(vpp) => vpp.run(),
            Subject::XfrmClient => xfrm::client(),
        }
    }
}
