//! A VPP that runs: one worker, interfaces of its own packet generator, no other traffic.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::capture;
use super::runtime::{self, NoFigure};
use super::script::{self, SINK, STREAM};
use crate::topology::Process;

/// For VPP to start, with heap and buffers to be made.
const START: Duration = Duration::from_secs(30);
/// For its last packets to be under way, and its clock to be right, before anything counts.
const SETTLE: Duration = Duration::from_millis(300);
/// For how long one figure is measured.
const WINDOW: Duration = Duration::from_millis(60);
/// Characters of a line, and of a complaint about it, that are told.
const TOLD_MAX: usize = 500;

/// Where it answers, in its folder, as its start-up file says.
const SOCKET: &str = "cli.sock";

/// How often a file that it writes is looked at.
const POLL: Duration = Duration::from_millis(50);

/// What the tunnels encrypt with, as VPP calls it, AAD of eight bytes included.
const ALGORITHM: &str = "aes-256-gcm-icv16-aad8 ";

/// Huge pages, of which VPP makes more for its buffers and leaves them.
const HUGE_PAGES: &str = "/proc/sys/vm/nr_hugepages";

/// Shared memory for programs that talk to it, which it makes without being asked and leaves: the folder, and what follows its prefix
/// in each name.
const SHARED_MEMORY: &str = "/dev/shm";
const SHARED: [&str; 2] = ["global_vm", "vpe-api"];

/// Why VPP was not measured.
#[derive(Debug, thiserror::Error)]
pub enum VppError {
    /// It, or what it needs, is not there.
    #[error("{path}: {source}; name VPP's own program with --vpp (vppctl is looked for beside it)")]
    Absent {
        /// What was looked for.
        path: PathBuf,
        /// What is wrong.
        source: io::Error,
    },
    /// It ended, or its socket did not come.
    #[error("VPP did not start: {0}")]
    Start(String),
    /// It did not take what it was told.
    #[error("VPP refused \"{line}\": {answer}")]
    Refused {
        /// What it was told.
        line: String,
        /// What it said.
        answer: String,
    },
    /// Its far ends did not make what it is to open.
    #[error("VPP captured {found} packets where {wanted} were asked for")]
    Captured {
        /// Packets that were to be in the file.
        wanted: u32,
        /// Packets that are.
        found: usize,
    },
    /// It counted nothing that can be used.
    #[error(transparent)]
    NoFigure(#[from] NoFigure),
    /// Files or processes.
    #[error("running VPP: {0}")]
    Io(#[from] io::Error),
}

/// A running VPP. It ends, and its folder and shared memory go, when this does.
pub struct Instance {
    vppctl: PathBuf,
    folder: PathBuf,
    process: Process,
    huge_pages: Option<String>,
}

impl Instance {
    /// Starts `program` in `folder`, which is made, and tells it some lines; `vppctl` lies beside the program.
    ///
    /// # Errors
    /// [`VppError`].
    pub fn start(program: &Path, folder: &Path, lines: &str) -> Result<Instance, VppError> {
        let vppctl = program.with_file_name("vppctl");
        for path in [program, &vppctl] {
            let absent = |source| VppError::Absent { path: path.to_owned(), source };
            fs::metadata(path).map_err(absent)?;
        }
        fs::create_dir(folder)?;
        let startup = folder.join("startup.conf");
        fs::write(&startup, script::startup(folder))?;
        let huge_pages = fs::read_to_string(HUGE_PAGES).ok();
        // Halted, it would outlive whoever is killed meanwhile.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program).arg("-c").arg(&startup);
        let process = Process::start("vpp", command, folder.join("output"))
            .map_err(|error| VppError::Start(error.to_string()))?;
        let mut instance = Instance { vppctl, folder: folder.to_owned(), process, huge_pages };
        instance.await_socket()?;
        instance.tell_all("lines.cli", lines)?;
        Ok(instance)
    }

    /// What it calls itself.
    ///
    /// # Errors
    /// [`VppError`].
    pub fn version(&self) -> Result<String, VppError> {
        let text = self.ask("show version")?;
        Ok(text.split(" built by").next().unwrap_or_default().trim().to_owned())
    }

    /// The engine that encrypts.
    ///
    /// # Errors
    /// [`VppError`].
    pub fn engine(&self) -> Result<String, VppError> {
        Ok(engine_in_use(&self.ask("show crypto handlers")?).unwrap_or("unknown").to_owned())
    }

    /// Cycles per packet, of so many short whiles in which it does with a stream called [`STREAM`] what it is set up for.
    ///
    /// # Errors
    /// [`VppError`].
    pub fn measure(&self, stream: &str, times: usize) -> Result<Vec<f64>, VppError> {
        self.begin(stream)?;
        let measured = (0..times).map(|_| self.measure_once()).collect::<Result<Vec<_>, _>>();
        self.end()?;
        measured
    }

    /// A file of so many packets that it makes of such a stream; `file` is not there yet.
    ///
    /// # Errors
    /// [`VppError`].
    pub fn capture(&self, stream: &str, packets: u32, file: &Path) -> Result<Vec<u8>, VppError> {
        self.begin(stream)?;
        let name = file.display();
        self.ask(&format!("packet-generator capture pg1 pcap {name} count {packets}"))?;
        let captured = self.await_capture(packets, file);
        self.end()?;
        self.ask("packet-generator capture pg1 disable")?;
        captured
    }

    /// A file that grows.
    fn await_capture(&self, packets: u32, file: &Path) -> Result<Vec<u8>, VppError> {
        let end = Instant::now() + START;
        loop {
            thread::sleep(POLL);
            let bytes = fs::read(file).unwrap_or_default();
            // It may end in the middle of a packet, for now.
            let found = capture::count(&bytes).unwrap_or(0);
            if found == packets as usize {
                return Ok(bytes);
            }
            if Instant::now() > end {
                return Err(VppError::Captured { wanted: packets, found });
            }
        }
    }

    fn begin(&self, stream: &str) -> Result<(), VppError> {
        self.tell(stream)?;
        self.ask(&format!("packet-generator enable-stream {STREAM}"))?;
        thread::sleep(SETTLE);
        Ok(())
    }

    fn end(&self) -> Result<(), VppError> {
        self.ask(&format!("packet-generator disable-stream {STREAM}"))?;
        self.ask(&format!("packet-generator delete {STREAM}"))?;
        Ok(())
    }

    fn measure_once(&self) -> Result<f64, VppError> {
        self.ask("clear runtime")?;
        thread::sleep(WINDOW);
        Ok(runtime::cycles_per_packet(&self.ask("show runtime")?, SINK)?)
    }

    /// Its worker takes all of a core, also where nothing comes: until [`Instance::resume`] it does not.
    ///
    /// # Errors
    /// If the process is gone.
    pub fn pause(&self) -> Result<(), VppError> {
        Ok(self.process.signal(Signal::STOP)?)
    }

    /// After [`Instance::pause`].
    ///
    /// # Errors
    /// If the process is gone.
    pub fn resume(&self) -> Result<(), VppError> {
        Ok(self.process.signal(Signal::CONT)?)
    }

    fn await_socket(&mut self) -> Result<(), VppError> {
        let Instance { vppctl, folder, process, .. } = self;
        let socket = folder.join(SOCKET);
        let answers = |_: &Process| {
            socket.exists()
                && ask(vppctl, folder, "show version").is_ok_and(|text| !text.is_empty())
        };
        if process.wait_until(START, answers).is_ok() {
            return Ok(());
        }
        Err(VppError::Start(match process.exit_status() {
            Some(status) => {
                let output = process.log();
                format!(
                    "{status}; it said last: {}",
                    output.lines().next_back().unwrap_or_default()
                )
            }
            None => format!("no {} in {START:?}", socket.display()),
        }))
    }

    /// Lines that answer nothing where all is well, but for the names of interfaces that they make.
    fn tell_all(&self, file: &str, lines: &str) -> Result<(), VppError> {
        let path = self.folder.join(file);
        fs::write(&path, lines)?;
        self.tell(&format!("exec {}", path.display()))
    }

    /// One line that answers nothing where all is well.
    fn tell(&self, line: &str) -> Result<(), VppError> {
        let answer = self.ask(line)?;
        if !answer.lines().map(str::trim).any(is_complaint) {
            return Ok(());
        }
        // Of all that it says about many tunnels, the beginning tells.
        let beginning = |text: &str| text.trim().chars().take(TOLD_MAX).collect();
        Err(VppError::Refused { line: beginning(line), answer: beginning(&answer) })
    }

    fn ask(&self, line: &str) -> Result<String, VppError> {
        Ok(ask(&self.vppctl, &self.folder, line)?)
    }
}

/// What the VPP in `folder` answers.
fn ask(vppctl: &Path, folder: &Path, line: &str) -> io::Result<String> {
    let output = Command::new(vppctl)
        .arg("-s")
        .arg(folder.join(SOCKET))
        .args(line.split(' '))
        .stdin(Stdio::null())
        .output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether a line is none of those that VPP answers where all is well: names of interfaces, numbers of policies, and that an
/// engine has not every algorithm there is.
fn is_complaint(line: &str) -> bool {
    let is_name = |kind| {
        line.strip_prefix(kind)
            .is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let is_expected = ["ipsec", "pg", "policy-index:"].into_iter().any(is_name);
    !(line.is_empty() || is_expected || line == "failed to set crypto engine!")
}

/// Of the engines in a line of `show crypto handlers`, the one with a star, which has a colour in front of it.
fn engine_in_use(handlers: &str) -> Option<&str> {
    let line = handlers.lines().find(|line| line.contains(ALGORITHM))?;
    let (before, _) = line.split_once('*')?;
    let word = before.split_whitespace().next_back()?;
    Some(
        word.strip_prefix('\x1b')
            .and_then(|rest| rest.split_once('m'))
            .map_or(word, |(_, name)| name),
    )
}

/// Where its shared memory is.
fn shared_memory() -> [PathBuf; 2] {
    let prefix = script::shared_memory_prefix();
    SHARED.map(|name| Path::new(SHARED_MEMORY).join(format!("{prefix}-{name}")))
}

impl Drop for Instance {
    fn drop(&mut self) {
        // It may be paused, and has nothing to save.
        self.process.kill();
        let _ = fs::remove_dir_all(&self.folder);
        for path in shared_memory() {
            let _ = fs::remove_file(path);
        }
        if let Some(before) = &self.huge_pages
            && fs::read_to_string(HUGE_PAGES).is_ok_and(|now| now != *before)
        {
            let _ = fs::write(HUGE_PAGES, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_engine_in_use_is_the_one_with_a_star() {
        let line = |name: &str, used: &str| {
            format!(
                "\x1b[1;32m{name}       \x1b[0m enc \x1b[0m openssl {used} native  \x1b[0m openssl {used}  \x1b[0m -\n"
            )
        };
        let coloured = line("aes-256-gcm", "\x1b[36mnative*\x1b[0m")
            + &line("aes-256-gcm-icv16-aad8", "\x1b[36mipsecmb*\x1b[0m");
        assert_eq!(engine_in_use(&coloured), Some("ipsecmb"));
        assert_eq!(engine_in_use(&line("aes-256-gcm-icv16-aad8", "ipsecmb*")), Some("ipsecmb"));
        assert_eq!(engine_in_use(&line("aes-256-gcm-icv16-aad8", "ipsecmb")), None);
        assert_eq!(engine_in_use(""), None);
    }

    #[test]
    fn only_what_vpp_says_when_all_is_well_is_no_complaint() {
        for line in ["", "pg0", "ipsec9999", "policy-index:17", "failed to set crypto engine!"] {
            assert!(!is_complaint(line), "{line}");
        }
        for line in ["ipsec sa: failed: -71", "exec: parse error: 'teib'", "pg: no", "policy-index"]
        {
            assert!(is_complaint(line), "{line}");
        }
    }

    #[test]
    fn what_is_not_there_is_named_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("vpp");
        let error = Instance::start(&program, &folder.path().join("vpp.run"), "").err().unwrap();
        let text = error.to_string();
        assert!(text.contains("vpp: No such file") && text.contains("--vpp"), "{text}");
    }

    #[test]
    fn a_program_that_ends_says_what_it_said_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("vpp");
        // It knows no option that VPP is started with.
        symlink("/bin/cat", &program).unwrap();
        symlink("/bin/true", program.with_file_name("vppctl")).unwrap();
        // As VPP itself would have left.
        shared_memory().iter().for_each(|path| fs::write(path, "shared").unwrap());
        let error = Instance::start(&program, &folder.path().join("run"), "").err().unwrap();
        let text = error.to_string();
        assert!(shared_memory().iter().all(|path| !path.exists()));
        assert!(text.contains("exit status: 1; it said last: Try '"), "{text}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
