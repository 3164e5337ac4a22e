//! libreswan's daemon, and the verbs of `ipsec` and `whack`.

use std::fmt::Write;

use lab::topology::Namespace;

use super::cell::Cell;
use super::charon::PATIENCE;
use super::pair::Side;
use super::root::Root;
use crate::gateway::Gateway;

/// What speaks to it.
const WHACK: &str = "/usr/libexec/ipsec/whack";

/// A running pluto.
pub struct Pluto {
    cell: Cell,
}

/// What pluto counts for one connection (`ipsec trafficstatus`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes opened.
    pub in_bytes: u64,
    /// Bytes sealed.
    pub out_bytes: u64,
}

impl Pluto {
    /// Starts pluto in `namespace` against `gateway`, with this ipsec.conf and the secret of all
    /// tests; waits until it listens.
    pub fn start(
        root: &Root,
        namespace: &Namespace,
        gateway: Option<&Gateway>,
        configuration: &str,
    ) -> Pluto {
        let cell = Cell::new(root, namespace, gateway);
        cell.write("etc/ipsec.conf", configuration);
        cell.write("etc/ipsec.secrets", ": PSK \"not the one of any other test\"\n");
        let mut pluto = Pluto { cell };
        pluto.launch();
        pluto
    }

    fn launch(&mut self) {
        // What Debian's service does before and with it.
        let script = "ipsec checknss >&2 && mkdir -p /run/pluto && \
                      exec /usr/libexec/ipsec/pluto --config /etc/ipsec.conf --nofork --stderrlog";
        self.cell.start("/bin/sh", &["-c", script], &[]);
        self.cell.wait_ready(PATIENCE, |cell| cell.log().contains("listening for IKE messages"));
    }

    /// What it logged since it was started last.
    pub fn log(&self) -> String {
        self.cell.log()
    }

    /// Whether its log says `text`.
    pub fn said(&self, text: &str) -> bool {
        self.log().contains(text)
    }

    /// The place it runs in.
    pub fn cell(&mut self) -> &mut Cell {
        &mut self.cell
    }

    /// Ends it as its service does: it deletes its SAs.
    pub fn stop(&mut self) -> Option<i32> {
        let _ = self.cell.command(WHACK).arg("--shutdown").output();
        self.cell.stop()
    }

    /// Ends it by SIGKILL: it deletes nothing.
    pub fn kill(&mut self) {
        self.cell.kill();
    }

    /// Starts it again after it was stopped or killed.
    pub fn restart(&mut self) {
        let _ = std::fs::remove_file(self.cell.file("run/pluto/pluto.ctl"));
        self.launch();
    }

    /// Runs `ipsec whack`, which must succeed; returns what it printed.
    #[track_caller]
    pub fn run(&self, args: &[&str]) -> String {
        self.cell.run(WHACK, args)
    }

    /// Makes `configuration` the whole of ipsec.conf, and loads every connection named in it.
    #[track_caller]
    pub fn load(&self, configuration: &str) {
        self.cell.write("etc/ipsec.conf", configuration);
        for name in names(configuration) {
            let addconn = "/usr/libexec/ipsec/addconn";
            self.cell.run(addconn, &["--config", "/etc/ipsec.conf", name]);
        }
    }

    /// Negotiates a connection and waits for it.
    #[track_caller]
    pub fn initiate(&self, name: &str) {
        self.run(&["--initiate", "--name", name]);
    }

    /// Takes a connection down.
    #[track_caller]
    pub fn terminate(&self, name: &str) {
        self.run(&["--terminate", "--name", name]);
    }

    /// Forgets a connection, and whatever policy it left.
    #[track_caller]
    pub fn forget(&self, name: &str) {
        self.run(&["--delete", "--name", name]);
    }

    /// Negotiates other SAs in the place of a connection's.
    #[track_caller]
    pub fn rekey(&self, name: &str) {
        let verb =
            if self.cell.root().is_at_least(5, 0) { "--rekey-child" } else { "--rekey-ipsec" };
        self.run(&[verb, "--name", name]);
    }

    /// Its count of a connection's traffic, summed over the connection's SAs.
    #[track_caller]
    pub fn traffic(&self, name: &str) -> Traffic {
        let text = self.run(&["--trafficstatus"]);
        let ours = format!("\"{name}\"");
        let mut sum = Traffic::default();
        for line in text.lines().filter(|line| line.contains(&ours)) {
            sum.in_bytes += number(line, "inBytes=");
            sum.out_bytes += number(line, "outBytes=");
        }
        sum
    }
}

/// The connections of an ipsec.conf.
fn names(configuration: &str) -> impl Iterator<Item = &str> {
    configuration.lines().filter_map(|line| line.strip_prefix("conn ")).map(str::trim)
}

fn number(line: &str, key: &str) -> u64 {
    let value = line.split_once(key).map(|(_, rest)| rest);
    let digits = value.and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// One connection of ipsec.conf, as `side` has it.
#[derive(Clone, Debug)]
pub struct Conn {
    text: String,
}

impl Conn {
    /// A connection `name` between the networks of number `n` with a shared secret; `v6` is the
    /// family outside, `inner_v6` the one inside. Both ends write the same: left is west.
    pub fn new(name: &str, v6: bool, n: u8, inner_v6: bool) -> Conn {
        let mut conn = Conn::between(name, v6);
        for (end, side) in [("left", Side::West), ("right", Side::East)] {
            let _ = writeln!(conn.text, "  {end}subnet={}", side.network(n, inner_v6));
        }
        conn
    }

    /// A connection with no networks of its own.
    pub fn between(name: &str, v6: bool) -> Conn {
        let mut text = format!("conn {name}\n");
        for (end, side) in [("left", Side::West), ("right", Side::East)] {
            let _ = writeln!(text, "  {end}={}\n  {end}id=@{}", side.outer(v6), side.id());
        }
        // `nm-configured` and the like stay at what Debian's package says.
        text += "  authby=secret\n  ikev2=yes\n  ike=aes_gcm256-sha2_256;dh31\n  \
                 esp=aes_gcm256\n  esn=yes\n  auto=ignore\n";
        Conn { text }
    }

    /// One more setting, or another value for one that is there.
    pub fn set(mut self, key: &str, value: &str) -> Conn {
        let start = format!("  {key}=");
        self.text = self
            .text
            .lines()
            .filter(|line| !line.starts_with(&start))
            .fold(String::new(), |text, line| text + line + "\n");
        let _ = writeln!(self.text, "{start}{value}");
        self
    }

    /// The section.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// A whole ipsec.conf of these connections.
pub fn configuration(conns: &[Conn]) -> String {
    let mut text = "config setup\n  logtime=no\n\n".to_owned();
    for conn in conns {
        text += conn.text();
        text.push('\n');
    }
    text
}
