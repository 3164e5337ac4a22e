//! A BGP speaker: Debian's FRR, unpacked and not installed (`tests/daemon/provision`), so that no
//! routing daemon runs on the machine but those of a test.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lab::topology::{Namespace, Process};

/// A running bgpd.
pub struct Speaker {
    directory: tempfile::TempDir,
    process: Process,
}

impl Speaker {
    /// Speaks for `own` (number and address) with one peer, and announces one network. `root` is where
    /// FRR was unpacked.
    pub fn start(
        root: &Path,
        namespace: &Namespace,
        own: (u32, &str),
        peer: (u32, &str),
        network: &str,
    ) -> Speaker {
        let directory = tempfile::tempdir().expect("a directory");
        let text = format!(
            "router bgp {own_as}\n bgp router-id {own}\n no bgp ebgp-requires-policy\n \
             no bgp network import-check\n neighbor {peer} remote-as {peer_as}\n \
             neighbor {peer} ebgp-multihop 4\n neighbor {peer} update-source {own}\n \
             neighbor {peer} timers connect 1\n address-family ipv4 unicast\n  \
             network {network}\n exit-address-family\n",
            own_as = own.0,
            own = own.1,
            peer_as = peer.0,
            peer = peer.1
        );
        std::fs::write(directory.path().join("bgpd.conf"), text).expect("a configuration");
        for name in ["etc", "var", "run", "tmp", "root"] {
            std::fs::create_dir(directory.path().join(name)).expect("a directory");
        }
        let enter = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/daemon/enter");
        let mut command = namespace.command("unshare");
        command.args(["-m", "sh"]).arg(enter).arg(root).arg(directory.path());
        command.arg(directory.path()).args(["--", "/usr/lib/frr/bgpd", "-S", "-Z", "-P", "0"]);
        command.args(["-l", own.1, "--log", "stdout", "-f"]);
        command.arg(directory.path().join("bgpd.conf")).arg("-i");
        command.arg(directory.path().join("pid")).arg("--vty_socket").arg(directory.path());
        let process =
            Process::start("bgpd", command, directory.path().join("log")).expect("bgpd starts");
        let mut speaker = Speaker { directory, process };
        let socket = speaker.socket();
        speaker
            .process
            .wait_until(Duration::from_secs(20), |_| socket.exists())
            .unwrap_or_else(|error| panic!("{error}"));
        speaker
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("bgpd.vty")
    }

    /// What it answers to a command of its command line, asked as `vtysh` asks: a string with its
    /// final zero, answered by a text, three zeros and a result.
    pub fn ask(&self, question: &str) -> String {
        let mut stream = UnixStream::connect(self.socket()).expect("bgpd listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        stream.write_all(format!("{question}\0").as_bytes()).expect("bgpd reads");
        let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
        while !matches!(answer[..], [.., 0, 0, 0, _]) {
            let len = stream.read(&mut piece).expect("bgpd answers");
            assert!(len > 0, "bgpd hung up: {}", self.process.log());
            answer.extend(&piece[..len]);
        }
        String::from_utf8_lossy(&answer).into_owned()
    }
}

impl Drop for Speaker {
    fn drop(&mut self) {
        self.process.stop();
    }
}
