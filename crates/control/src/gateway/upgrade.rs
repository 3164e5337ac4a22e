//! Another binary in the place of this one, while its tunnels go on.
//!
//! 1. the new binary is asked whether it takes this configuration on this machine, and this journal, and
//!    whether it would look for it where it is: the configuration may have been changed since;
//! 2. the workers stop, and what is under way leaves; the XDP programs stay and drop;
//! 3. the process becomes the new binary (`execve`): the same process for whoever watches over it,
//!    every descriptor closed, nothing of its memory left;
//! 4. that one starts as after a crash, from journal and ledger, and counts from step 2 how long no
//!    packet was served.
//!
//! Until step 3 has happened everything can be taken back. Afterwards a start that fails fails
//! closed, as after a crash. This module does not fetch binaries.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use dataplane::clock::{Clock, unix_now};
use tracing::{error, info};

use super::{Gateway, GatewayError, system};
use crate::config::{Config, Control};
use crate::journal::{self, FORMAT};

/// When the last process stopped serving, on the clock that both share.
const STOPPED_NS: &str = "PEREGRINE_STOPPED_NS";

/// How long the new binary may look at the configuration and the machine; it takes a tenth of a
/// second. Requests wait meanwhile, and are answered before it takes over; packets do not.
const CHECK: Duration = Duration::from_secs(5);

/// Between two looks at it.
const CHECK_STEP: Duration = Duration::from_millis(2);

/// What the new binary may say that is passed on.
const WORDS_MAX: u64 = 2000;

/// The binary that this process was started from, as it is at that path now.
///
/// # Errors
/// The kernel does not say.
pub fn same_path() -> io::Result<PathBuf> {
    // What was replaced is shown with this behind its name.
    const DELETED: &[u8] = b" (deleted)";
    let path = std::env::current_exe()?;
    let bytes = path.as_os_str().as_bytes();
    Ok(match bytes.strip_suffix(DELETED) {
        Some(path) => PathBuf::from(OsString::from_vec(path.to_vec())),
        None => path,
    })
}

/// Where a gateway keeps what the next process goes on from. One that looks elsewhere takes itself for the
/// first, and forwards in clear what the last one protected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The run directory, which has the guard's file. It ends in the instance's name.
    pub run: PathBuf,
    /// The journal's.
    pub journal: PathBuf,
    /// The state directory, which has the epoch that the journal goes with.
    pub state: PathBuf,
}

impl Place {
    /// That of a gateway whose journal is there.
    pub fn held(config: &Config, journal: &Path) -> Place {
        let Control { run_dir, state_dir, .. } = &config.control;
        Place {
            run: run_dir.join(&config.name),
            journal: journal.to_owned(),
            state: state_dir.join(&config.name),
        }
    }

    /// Whether a gateway of this configuration would go on from here.
    ///
    /// # Errors
    ///
    /// What it would not find, and what to do, in words.
    pub fn check(&self, config: &Config) -> Result<(), String> {
        let lost = |what: &str, theirs: &Path, ours: &str| {
            format!(
                "the running gateway has its {what} in {} and this configuration {ours}: its SAs and \
                 policies would be lost, and forwarded in clear what they protect; put `name` and \
                 [control] back as they were, or stop the gateway and start it again, which ends its \
                 tunnels",
                theirs.display()
            )
        };
        let elsewhere = |path: &Path| format!("in {}", path.display());
        let found = Place::held(config, &self.journal);
        if found.run != self.run {
            return Err(lost("sockets and guard", &self.run, &elsewhere(&found.run)));
        }
        if found.state != self.state {
            return Err(lost("epoch", &self.state, &elsewhere(&found.state)));
        }
        match journal::find_directory(config, &self.run) {
            Ok(directory) if directory == self.journal => Ok(()),
            Ok(directory) => Err(lost("journal", &self.journal, &elsewhere(&directory))),
            Err(reason) => Err(lost("journal", &self.journal, &format!("none ({reason})"))),
        }
    }
}

/// Asks a binary whether it can take over from here; the reason if not.
pub fn check(binary: &Path, place: &Place) -> Result<(), String> {
    let mut command = Command::new(binary);
    command.args(std::env::args_os().skip(1));
    command.args(["--check", "--journal-format", &FORMAT.to_string()]);
    command.arg("--place").args([&place.run, &place.journal, &place.state]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let name = binary.display();
    let mut child = command.spawn().map_err(|error| format!("{name} does not run: {error}"))?;
    let end = Instant::now() + CHECK;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => {
                let mut words = String::new();
                if let Some(errors) = child.stderr.take() {
                    let _ = errors.take(WORDS_MAX).read_to_string(&mut words);
                }
                return Err(format!("{name} will not take over ({status}): {}", words.trim()));
            }
            Ok(None) if Instant::now() < end => std::thread::sleep(CHECK_STEP),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("{name} said nothing for {} s", CHECK.as_secs()));
            }
            Err(error) => return Err(format!("{name} cannot be watched: {error}")),
        }
    }
}

impl Gateway {
    /// Lets another binary take over. If it cannot be run this one goes on.
    pub(super) fn give_way(&mut self, binary: &Path) -> Result<(), GatewayError> {
        info!(binary = %binary.display(), "another binary takes over");
        // What was asked while that one looked is in force and answered before: it need not be asked again.
        self.clients.on_ready(&mut self.server, &mut self.forwarding, unix_now());
        if let Some(error) = self.forwarding.take_failure() {
            return Err(system("record what is protected")(error));
        }
        let stopped_ns = self.clock.now_ns();
        self.workers.stop();
        let error = become_it(binary, stopped_ns);
        self.workers.run()?;
        let refused = format!("{} could not be run: {error}", binary.display());
        error!(%refused, "no other binary took over");
        self.upgrade_refused = Some(refused);
        Ok(())
    }
}

/// Becomes the binary, with the arguments of this process. Returns only why it could not.
fn become_it(binary: &Path, stopped_ns: u64) -> io::Error {
    let mut command = Command::new(binary);
    command.args(std::env::args_os().skip(1)).env(STOPPED_NS, stopped_ns.to_string()).exec()
}

/// Microseconds since the process stopped serving whose place this one took, if there is one.
pub fn outage_us(clock: &Clock) -> Option<u64> {
    let stopped_ns: u64 = std::env::var(STOPPED_NS).ok()?.parse().ok()?;
    Some(clock.now_ns().checked_sub(stopped_ns)? / 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configured(lines: &str) -> Config {
        let ports = "[[port]]\ninterface = \"red0\"\n[[port]]\ninterface = \"black0\"";
        Config::parse(&format!("{lines}\n{ports}")).unwrap()
    }

    #[test]
    fn a_binary_that_refuses_is_believed_and_quoted() {
        let place = Place::held(&configured(""), Path::new("/run/peregrine/gw0"));
        assert_eq!(check(Path::new("/bin/true"), &place), Ok(()));
        let refusal = check(Path::new("/bin/ls"), &place).unwrap_err();
        assert!(refusal.contains("will not take over") && refusal.contains("--"), "{refusal}");
        let refusal = check(Path::new("/nonexistent"), &place).unwrap_err();
        assert!(refusal.contains("does not run"), "{refusal}");
    }

    #[test]
    fn who_would_not_find_the_journal_does_not_take_over() {
        let as_it_was = "name = \"west\"\ncontrol.journal_dir = \"/dev/shm/j\"";
        let place = Place::held(&configured(as_it_was), Path::new("/dev/shm/j/west"));
        let check = |lines: &str| place.check(&configured(lines));
        assert_eq!(check(as_it_was), Ok(()));
        assert_eq!(check(&format!("{as_it_was}\nhost.table = 7")), Ok(()));
        for (lines, named) in [
            ("name = \"renamed\"\ncontrol.journal_dir = \"/dev/shm/j\"", "/run/peregrine/renamed"),
            (&format!("{as_it_was}\ncontrol.run_dir = \"/run/p\""), "in /run/p/west"),
            (&format!("{as_it_was}\ncontrol.state_dir = \"/var/p\""), "in /var/p/west"),
            ("name = \"west\"\ncontrol.journal_dir = \"/dev/shm/k\"", "in /dev/shm/k/west"),
            ("name = \"west\"", "journal"),
            (&format!("{as_it_was}\ncontrol.journal = false"), "none (the configuration says"),
        ] {
            let refusal = check(lines).unwrap_err();
            assert!(refusal.contains(named) && refusal.contains("put"), "{lines}: {refusal}");
        }
    }

    #[test]
    fn without_a_name_it_is_the_binary_that_runs() {
        assert_eq!(same_path().unwrap(), std::env::current_exe().unwrap());
    }

    #[test]
    fn a_start_that_is_no_upgrade_has_no_outage() {
        assert_eq!(outage_us(&Clock), None);
    }
}
