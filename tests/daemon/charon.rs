//! strongSwan's daemon, and the verbs of `swanctl`.

use std::time::{Duration, Instant};

use lab::topology::Namespace;
use rustix::process::{Pid, Signal, kill_process};

use super::cell::Cell;
use super::listing::{self, ChildSa, IkeSa};
use super::root::Root;
use crate::gateway::Gateway;

/// How long a negotiation may take on a busy two-core machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// What is set besides Debian's own configuration. Retransmissions are few, so that a peer's death
/// shows within seconds, and a NAT is kept awake often; everything that is said goes to standard error, with what passes between
/// the daemon and its kernel.
const SETTINGS: &str = "
charon {
  load_modular = yes
  retransmit_tries = 3
  retransmit_timeout = 1.0
  retransmit_base = 1.2
  keep_alive = 3s
  plugins {
    include strongswan.d/charon/*.conf
    kernel-libipsec { load = no }
    bypass-lan { load = no }
    dhcp { load = no }
    farp { load = no }
    ha { load = no }
    error-notify { load = no }
  }
  filelog {
    stderr {
      time_format = %H:%M:%S
      ike_name = yes
      flush_line = yes
      default = 1
      knl = 2
      chd = 2
    }
  }
}
include strongswan.d/*.conf
";

/// A running charon.
pub struct Charon {
    cell: Cell,
}

impl Charon {
    /// Starts charon-systemd in `namespace` against `gateway`; waits until it listens.
    pub fn start(root: &Root, namespace: &Namespace, gateway: Option<&Gateway>) -> Charon {
        Charon::start_with(root, namespace, gateway, "")
    }

    /// The same with more of strongswan.conf.
    pub fn start_with(
        root: &Root,
        namespace: &Namespace,
        gateway: Option<&Gateway>,
        settings: &str,
    ) -> Charon {
        let cell = Cell::new(root, namespace, gateway);
        cell.write("etc/strongswan.conf", &format!("{SETTINGS}{settings}"));
        let mut charon = Charon { cell };
        charon.launch();
        charon
    }

    fn launch(&mut self) {
        let _ = std::fs::remove_file(self.cell.file("run/charon.vici"));
        self.cell.start("/usr/sbin/charon-systemd", &[], &[]);
        self.cell.wait_ready(PATIENCE, |cell| {
            cell.file("run/charon.vici").exists() && cell.log().contains("spawning")
        });
    }

    /// The place it runs in.
    pub fn cell(&mut self) -> &mut Cell {
        &mut self.cell
    }

    /// What it logged since it was started last.
    pub fn log(&self) -> String {
        self.cell.log()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.cell.pid()
    }

    /// How often its log says `text`.
    pub fn said(&self, text: &str) -> usize {
        self.log().matches(text).count()
    }

    /// Ends it by SIGTERM: it deletes its SAs.
    pub fn stop(&mut self) -> Option<i32> {
        self.cell.stop()
    }

    /// Ends it by SIGKILL: it deletes nothing.
    pub fn kill(&mut self) {
        self.cell.kill();
    }

    /// Stops it without its knowing (SIGSTOP).
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it run on (SIGCONT).
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.cell.pid() as i32).expect("a process id");
        kill_process(pid, signal).expect("it takes signals");
    }

    /// Starts it again with the configuration it had; nothing is loaded yet.
    pub fn restart(&mut self) {
        self.cell.stop();
        self.launch();
    }

    /// Runs `swanctl`, which must succeed; returns what it printed.
    #[track_caller]
    pub fn run(&self, args: &[&str]) -> String {
        self.cell.run("swanctl", args)
    }

    /// Makes `configuration` the whole of swanctl.conf and loads it.
    #[track_caller]
    pub fn load(&self, configuration: &str) {
        self.cell.write("etc/swanctl/swanctl.conf", configuration);
        self.run(&["--load-all", "--noprompt"]);
    }

    /// Negotiates a child of the configuration and waits for it.
    #[track_caller]
    pub fn initiate(&self, child: &str) {
        self.run(&["--initiate", "--child", child, "--timeout", "30"]);
    }

    /// Ends something: `["--child", "net"]`, `["--ike", "site"]`.
    #[track_caller]
    pub fn terminate(&self, what: &[&str]) {
        let mut args = vec!["--terminate", "--timeout", "30"];
        args.extend(what);
        self.run(&args);
    }

    /// What it lists.
    #[track_caller]
    pub fn sas(&self) -> Vec<IkeSa> {
        listing::sas(&self.run(&["--list-sas", "--raw"]))
    }

    /// Every CHILD_SA that it lists.
    #[track_caller]
    pub fn children(&self) -> Vec<ChildSa> {
        self.sas().into_iter().flat_map(|ike| ike.children).collect()
    }

    /// Its one installed CHILD_SA of this name.
    #[track_caller]
    pub fn child(&self, name: &str) -> ChildSa {
        let all = self.children();
        let mut found: Vec<&ChildSa> =
            all.iter().filter(|one| one.name() == name && one.state() == "INSTALLED").collect();
        assert!(found.len() == 1, "one installed {name} was expected in {all:#?}");
        found.remove(0).clone()
    }

    /// Waits until `ready` holds of what it lists; panics with its log when that takes too long.
    #[track_caller]
    pub fn wait(&self, what: &str, mut ready: impl FnMut(&[IkeSa]) -> bool) -> Vec<IkeSa> {
        let end = Instant::now() + PATIENCE;
        loop {
            let sas = self.sas();
            if ready(&sas) {
                return sas;
            }
            assert!(
                Instant::now() < end,
                "{what} did not happen; SAs: {sas:#?}\nits log:\n{}",
                self.cell.log_tail(80)
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until its log says `text` so many times.
    #[track_caller]
    pub fn wait_said(&self, text: &str, times: usize) {
        let end = Instant::now() + PATIENCE;
        while self.said(text) < times {
            assert!(
                Instant::now() < end,
                "it never said {text:?} {times} times; its log:\n{}",
                self.cell.log_tail(80)
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
