//! What outlives the process: the epoch of its IVs, and the journal and the ledger of one gateway, taken
//! up at its start.
//!
//! 1. [`Found::read`] finds a place for them and reads what an earlier process left, changing nothing;
//! 2. [`claim_epochs`] takes the epoch, and the journal up in the same step: who is killed before it leaves
//!    all of that to the next process, and who is killed after it does;
//! 3. [`Lasting::recall`] brings it into the XFRM server, the tables and the first view, before any
//!    packet comes;
//! 4. from then on `forwarding` writes down each change before it is answered.
//!
//! Whatever fails here costs what it could have brought back and nothing else: the gateway starts,
//! says so, and the guard holds what was protected.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use dataplane::ledger::Ledger;
use dataplane::nonce::NonceSpace;
use dataplane::view::View;
use tracing::{info, warn};
use xsk::Region;

use super::tables::Tables;
use super::{GatewayError, system};
use crate::api::Restored as Report;
use crate::config::Config;
use crate::instance::{Claim, Epoch, Instance};
use crate::journal::{self, Journal, Left};
use crate::xfrm::{Change, SaId, Server};

/// Bits of a tag that an epoch leaves: what one process can give.
const EPOCH_SHIFT: u32 = 48;

/// What an earlier process left, as it left it.
pub struct Found {
    directory: PathBuf,
    on: Result<(Journal, Left), String>,
}

/// Journal and ledger, if this gateway has any.
pub struct Lasting {
    on: Result<(Journal, Left, Ledger), String>,
}

/// A gateway's state as an earlier process left it.
pub struct Recalled {
    /// The XFRM server.
    pub server: Server,
    /// What the data plane has of it.
    pub tables: Tables,
    /// Where changes are written down from now on.
    pub journal: Option<Journal>,
    /// What came back, and what did not.
    pub restored: Report,
}

impl Found {
    /// Reads it.
    pub fn read(config: &Config, instance: &Instance) -> Found {
        let (directory, on) = match journal::choose_directory(config, instance) {
            Ok(directory) => {
                let on = journal::boot_id().and_then(|boot| Journal::open(&directory, boot));
                (directory, on.map_err(|error| error.to_string()))
            }
            Err(reason) => (PathBuf::new(), Err(reason)),
        };
        Found { directory, on }
    }

    /// Takes it up. The epoch is this process's alone; the ledger's tags begin with it.
    fn take_up(self, claim: &Claim) -> Lasting {
        let on = self.on.and_then(|(mut journal, mut left)| {
            let taken = take_up(&mut journal, &mut left, claim);
            taken.map(|ledger| (journal, left, ledger)).map_err(|error| error.to_string())
        });
        let on = on.map_err(|reason| match self.directory.as_os_str().is_empty() {
            true => reason,
            false => format!("{}: {reason}", self.directory.display()),
        });
        if let Err(reason) = &on {
            warn!(%reason, "no journal: SAs and policies end with this process");
        }
        Lasting { on }
    }
}

impl Lasting {
    /// Brings back what an earlier process left, into a server and tables that have nothing yet.
    ///
    /// # Errors
    /// The guard cannot be written.
    pub fn recall(
        self,
        mut server: Server,
        mut tables: Tables,
        view: &mut View,
    ) -> Result<Recalled, GatewayError> {
        let (journal, restored) = self
            .restore(&mut server, &mut tables, view)
            .map_err(system("bring back what an earlier run left"))?;
        tables.fill_tunnels(view);
        Ok(Recalled { server, tables, journal, restored })
    }

    fn restore(
        self,
        server: &mut Server,
        tables: &mut Tables,
        view: &mut View,
    ) -> io::Result<(Option<Journal>, Report)> {
        let (mut journal, left, ledger) = match self.on {
            Ok(on) => on,
            Err(off) => return Ok((None, Report { off: Some(off), ..Report::default() })),
        };
        let began = Instant::now();
        let entries = left.entries();
        let restored = server.restore(&entries);
        let mut lost = restored.lost;
        let mut found = HashMap::new();
        let windows = windows(&restored.changes);
        for (id, place) in restored.places {
            match ledger.find(place, windows.get(&id).copied().unwrap_or(0)) {
                Some(entry) => drop(found.insert(id, entry)),
                None => {
                    server.give_up(id);
                    lost += 1;
                }
            }
        }
        ledger.sweep();
        let mut changes = restored.changes;
        changes.retain(|change| match change {
            Change::SaInstalled(record) => found.contains_key(&record.id),
            Change::SaDying(id) => found.contains_key(id),
            _ => true,
        });
        let sas = found.len();
        tables.keep_in(ledger, found);
        tables.apply(&changes, view)?;
        // Where it is not known what was protected, it is not known in the runs after this one either, whatever
        // their journals say: until it is protected again or taken back.
        let is_known = left.is_whole() && !entries.are_in_doubt();
        if is_known {
            tables.release_left(view)?;
        }
        server.set_in_doubt(!is_known && tables.holds_left());
        let (live_sas, live_policies) = entries.sizes();
        journal.count(live_sas + live_policies);
        let report = Report {
            sas: sas as u64,
            policies: restored.policies as u64,
            lost: lost as u64,
            tables_us: began.elapsed().as_micros() as u64,
            problem: left.problem.map(|problem| problem.to_string()),
            set_aside: left.set_aside.as_deref().map(|path| path.display().to_string()),
            ..Report::default()
        };
        tell(&report);
        Ok((Some(journal), report))
    }
}

/// The IVs of this run, each epoch stored before it is used, and the first epoch, under which what was found
/// is taken up.
pub fn claim_epochs(
    config: &Config,
    found: Found,
) -> Result<(Arc<NonceSpace>, u16, Lasting), GatewayError> {
    let (directory, name) = (config.control.state_dir.clone(), config.name.clone());
    let claim = Claim::begin(&directory, &name)?;
    let (first, lasting) = claim.finish(|claim| found.take_up(claim))?;
    let mut next = Some(first);
    let claim = move || match next.take() {
        Some(epoch) => Ok(epoch.get()),
        None => Epoch::claim(&directory, &name).map(Epoch::get).map_err(io::Error::other),
    };
    let nonces = NonceSpace::new(claim).map_err(system("claim an epoch"))?;
    Ok((nonces, first.get(), lasting))
}

fn take_up(journal: &mut Journal, left: &mut Left, claim: &Claim) -> io::Result<Ledger> {
    journal.take_up(left, claim.epoch(), |epoch| claim.follows(epoch))?;
    let first_tag = u64::from(claim.epoch()) << EPOCH_SHIFT | 1;
    Ok(Ledger::open(Region::open(journal.ledger(left)?)?, first_tag))
}

/// The replay window of each SA, which says how large its entry in the ledger is.
fn windows(changes: &[Change]) -> HashMap<SaId, u32> {
    let window = |change: &Change| match change {
        Change::SaInstalled(record) => Some((record.id, record.replay_window())),
        _ => None,
    };
    changes.iter().filter_map(window).collect()
}

fn tell(report: &Report) {
    if let Some(problem) = &report.problem {
        let set_aside = report.set_aside.as_deref().unwrap_or("nowhere");
        warn!(%problem, set_aside, "the journal of an earlier run is not whole: the rest is set aside");
    }
    let Report { sas, policies, lost, .. } = report;
    if sas + policies != 0 {
        info!(sas, policies, "an earlier run's SAs and policies are back");
    }
    if *lost != 0 {
        warn!(lost, "SAs or policies of an earlier run could not be brought back");
    }
}
