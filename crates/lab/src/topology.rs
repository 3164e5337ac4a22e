//! Network namespaces, veth pairs and the processes inside them.
//!
//! A [`Namespace`] and a [`Process`] are taken down again when they are dropped: processes by their own pid,
//! namespaces with their links. Names carry the pid and a serial, so that several labs live side by side.
//!
//! It does not know about IPsec, traffic or gateways; it is `ip`, `ethtool` and `sysctl` with an owner.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// How long a process gets between SIGTERM and SIGKILL when a topology is taken down.
/// Long enough for a gateway to detach from its interfaces: measured below 100 ms, but several seconds where
/// both cores are busy otherwise, as the kernel waits for each of them a dozen times.
const STOP_PATIENCE: Duration = Duration::from_secs(20);

/// What went wrong while building or using a topology; says which command failed and how.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// A command could not be started or ended with a failure.
    #[error("`{command}` failed: {reason}")]
    Command {
        /// The command line.
        command: String,
        /// Its standard error, or why it could not be started.
        reason: String,
    },
    /// A file or namespace could not be used.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
}

fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> TopologyError {
    let what = what.into();
    move |source| TopologyError::Io { what, source }
}

/// A command in a process group of its own: Ctrl-C in the terminal is for the lab, which ends what
/// it has begun in order, and not for the `ip` that is installing half of its tunnels.
pub fn command_apart(name: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(name);
    command.process_group(0);
    command
}

fn finish(command: &str, output: io::Result<Output>) -> Result<String, TopologyError> {
    let failed = |reason: String| TopologyError::Command { command: command.to_string(), reason };
    let output = output.map_err(|e| failed(e.to_string()))?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr).trim().to_string();
        return Err(failed(if reason.is_empty() { output.status.to_string() } else { reason }));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// One network namespace. It disappears, with every link in it, when dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes a namespace whose loopback is up and which does no duplicate address detection
    /// (IPv6 addresses would otherwise be unusable for their first second).
    ///
    /// # Errors
    /// [`TopologyError`] with what the failed command said; mostly the process lacks the privilege.
    pub fn new(label: &str) -> Result<Namespace, TopologyError> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let name = format!("pg{}-{serial}-{label}", std::process::id());
        let command = format!("ip netns add {name}");
        finish(&command, command_apart("ip").args(["netns", "add", &name]).output())?;
        let namespace = Namespace { name };
        namespace.ip("link set lo up")?;
        for knob in ["all", "default"] {
            namespace.sysctl(&format!("net.ipv6.conf.{knob}.accept_dad"), "0")?;
        }
        Ok(namespace)
    }

    /// The name `ip netns` knows it by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file that stands for the namespace.
    pub fn path(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.name)
    }

    /// A command that runs inside. The mount namespace stays the caller's, so that /sys/fs/bpf and
    /// /run are the same files inside and outside (`ip netns exec` would hide them).
    pub fn command(&self, program: &str) -> Command {
        let mut command = command_apart("nsenter");
        command.arg(format!("--net={}", self.path().display()));
        command.arg("--").arg(program);
        command
    }

    /// The same for a long-running program, which gets SIGTERM when the calling thread ends:
    /// whatever kills this process, its gateways do not stay behind.
    pub fn command_bound(&self, program: &Path) -> Command {
        let mut command = command_apart("setpriv");
        command.args(["--pdeathsig", "TERM", "--", "nsenter"]);
        command.arg(format!("--net={}", self.path().display()));
        command.arg("--").arg(program);
        command
    }

    /// Runs `program args…` inside and returns its standard output.
    ///
    /// # Errors
    /// [`TopologyError`] with the command line and what it said, if it failed.
    pub fn run(&self, program: &str, args: &[&str]) -> Result<String, TopologyError> {
        let line = format!("[{}] {program} {}", self.name, args.join(" "));
        finish(&line, self.command(program).args(args).output())
    }

    /// Runs `ip` with arguments separated by spaces.
    ///
    /// # Errors
    /// As of [`Namespace::run`].
    pub fn ip(&self, args: &str) -> Result<String, TopologyError> {
        self.run("ip", &args.split_whitespace().collect::<Vec<_>>())
    }

    /// Feeds many lines to one `ip -batch`.
    ///
    /// # Errors
    /// [`TopologyError`] with what `ip` said of the first line that failed.
    pub fn ip_batch(&self, lines: &[String]) -> Result<(), TopologyError> {
        if lines.is_empty() {
            return Ok(());
        }
        let command = self.command("ip");
        batch(command, &["-batch", "-"], lines).map(|_| ())
    }

    /// Sets one kernel setting of the namespace (dots or slashes).
    ///
    /// # Errors
    /// As of [`Namespace::run`]: there is no such setting, or not this value.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<(), TopologyError> {
        self.run("sysctl", &["-q", "-w", &format!("{key}={value}")]).map(|_| ())
    }

    /// Moves the calling thread inside. The thread should belong to the lab and end with it.
    ///
    /// # Errors
    /// [`TopologyError`] if the namespace is gone, or the process lacks the privilege.
    pub fn enter(&self) -> Result<(), TopologyError> {
        Namespace::enter_path(&self.path())
    }

    /// The same by the namespace's [`Namespace::path`], for a thread that may outlive its owner.
    ///
    /// # Errors
    /// As of [`Namespace::enter`].
    pub fn enter_path(path: &Path) -> Result<(), TopologyError> {
        let failed =
            |e: rustix::io::Errno| io_error(format!("entering namespace {path:?}"))(e.into());
        let file: OwnedFd = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(failed)?;
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).map_err(failed)
    }

    /// Runs `work` on a thread of its own inside the namespace and waits for it.
    ///
    /// # Errors
    /// As of [`Namespace::enter`]; `work` has not run then.
    pub fn scope<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, TopologyError> {
        thread::scope(|scope| {
            let inside = scope.spawn(|| self.enter().map(|()| work()));
            match inside.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = command_apart("ip").args(["netns", "del", &self.name]).output();
    }
}

/// Runs a command that reads `lines` on its standard input, and returns its standard output.
///
/// # Errors
/// [`TopologyError`] if the command cannot be started, or with what it said, if it failed.
pub fn batch(
    mut command: Command,
    args: &[&str],
    lines: &[String],
) -> Result<String, TopologyError> {
    let name = format!("{:?} {}", command.get_program(), args.join(" "));
    let mut child = command
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(io_error(format!("starting {name}")))?;
    let stdin = child.stdin.take();
    let text = lines.join("\n") + "\n";
    // The writer has its own thread: a command that answers while it reads must not block us.
    let writer = thread::spawn(move || {
        if let Some(mut stdin) = stdin {
            let _ = stdin.write_all(text.as_bytes());
        }
    });
    let output = child.wait_with_output();
    let _ = writer.join();
    finish(&name, output)
}

/// A veth pair's two ends, made in two namespaces.
#[derive(Debug, Clone)]
pub struct Veth {
    /// Interface name in the first namespace.
    pub left: String,
    /// Interface name in the second namespace.
    pub right: String,
}

impl Veth {
    /// Makes and raises a pair with `queues` queues each way. Transmit checksum offload is switched
    /// off: a veth would otherwise deliver packets of kernel senders with unfinished checksums.
    ///
    /// # Errors
    /// [`TopologyError`] with what `ip` or `ethtool` said, if it failed.
    pub fn new(
        (left_ns, left): (&Namespace, &str),
        (right_ns, right): (&Namespace, &str),
        queues: u32,
    ) -> Result<Veth, TopologyError> {
        let (l, r) = (left_ns.name(), right_ns.name());
        let args = format!(
            "link add {left} netns {l} numrxqueues {queues} numtxqueues {queues} type veth \
             peer name {right} netns {r} numrxqueues {queues} numtxqueues {queues}"
        );
        let args: Vec<&str> = args.split_whitespace().collect();
        finish("ip link add", command_apart("ip").args(&args).output())?;
        for (namespace, name) in [(left_ns, left), (right_ns, right)] {
            namespace.run("ethtool", &["-K", name, "tx", "off"])?;
            namespace.ip(&format!("link set {name} up"))?;
        }
        Ok(Veth { left: left.to_string(), right: right.to_string() })
    }
}

/// A process of the lab's own, ended (SIGTERM, then SIGKILL) when dropped.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command` with both outputs going to the file `log`.
    ///
    /// # Errors
    /// [`TopologyError`] if the log cannot be made or the program not be started.
    pub fn start(name: &str, mut command: Command, log: PathBuf) -> Result<Process, TopologyError> {
        let file = fs::File::create(&log).map_err(io_error(format!("creating {log:?}")))?;
        let errors = file.try_clone().map_err(io_error("sharing the log"))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(errors)
            .spawn()
            .map_err(io_error(format!("starting {name}")))?;
        Ok(Process { name: name.to_string(), child, log })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it printed so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// How it ended, if it has.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// If it has ended.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// Waits until `ready` says so; fails if the process ends first or the time is over.
    ///
    /// # Errors
    /// [`TopologyError`] with its output, if it ended before, or was not ready in time.
    pub fn wait_until(
        &mut self,
        patience: Duration,
        mut ready: impl FnMut(&Process) -> bool,
    ) -> Result<(), TopologyError> {
        let end = Instant::now() + patience;
        while !ready(self) {
            let reason = if !self.is_running() {
                format!("it ended early; its output was:\n{}", self.log())
            } else if Instant::now() > end {
                format!("not ready after {patience:?}; its output was:\n{}", self.log())
            } else {
                thread::sleep(Duration::from_millis(10));
                continue;
            };
            return Err(TopologyError::Command { command: self.name.clone(), reason });
        }
        Ok(())
    }

    /// Ends the process at once, as a crash would (`kill -9`), and waits for it.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Asks the process to stop and waits; returns its exit code (`None` if a signal ended it).
    pub fn stop(&mut self) -> Option<i32> {
        self.stop_within(STOP_PATIENCE)
    }

    fn stop_within(&mut self, patience: Duration) -> Option<i32> {
        if self.is_running() {
            let _ = self.signal(Signal::TERM);
            let end = Instant::now() + patience;
            while self.is_running() && Instant::now() < end {
                thread::sleep(Duration::from_millis(5));
            }
            if self.is_running() {
                self.log_late_end(patience);
                self.kill();
            }
        }
        self.child.wait().ok().and_then(|status| status.code())
    }

    /// Leaves in the log of a process that does not end what its threads do, for whoever has to find out why.
    fn log_late_end(&self, patience: Duration) {
        let file = fs::OpenOptions::new().append(true).open(&self.log);
        let threads = threads(self.pid()).join(", ");
        let _ = file.and_then(|mut file| {
            writeln!(file, "{}: not ended {patience:?} after SIGTERM; {threads}", self.name)
        });
    }
}

/// A process's threads: the name of each, its state as `ps` has it, and where in the kernel it waits.
fn threads(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
    let thread = |task: fs::DirEntry| {
        let stat = read(task.path().join("stat"));
        let state = stat.rsplit(") ").next().and_then(|rest| rest.get(..1)).unwrap_or("?");
        let name = read(task.path().join("comm"));
        format!("{} {state} {}", name.trim_end(), read(task.path().join("wchan")))
    };
    tasks.map(thread).collect()
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_end_is_ended_and_its_log_says_where_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' TERM; echo deaf; while :; do sleep 1; done"]);
        let mut process = Process::start("late", command, directory.path().join("log")).unwrap();
        process
            .wait_until(Duration::from_secs(20), |process| process.log().contains("deaf"))
            .unwrap();
        assert_eq!(process.stop_within(Duration::from_millis(200)), None);
        let log = process.log();
        assert!(log.contains("late: not ended 200ms after SIGTERM; sh S "), "{log}");
    }
}
