//! `peregrine bench`: single figures, as opposed to the lab's curves.

mod path;
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
    Path(path::Path),
    Xfrm(xfrm::Xfrm),
    /// The client of `bench xfrm --through-shim`
    #[command(hide = true)]
    XfrmClient,
}

impl Bench {
    /// Measures and prints.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.subject {
            Subject::Path(path) => path.run(),
            Subject::Xfrm(xfrm) => xfrm.run(),
            Subject::XfrmClient => xfrm::client(),
        }
    }
}
