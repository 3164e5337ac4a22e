//! A peer that is a machine: a Debian kernel in QEMU, emulated, whose first process runs what the
//! second serial port says (`init`).
//!
//! ```text
//!   provide SUITE ─▶ target/interop/SUITE/{kernel,initramfs} ─▶ Guest::boot ─▶ run("ip xfrm …")
//! ```
//!
//! It knows nothing about IPsec. Its network card is a tap device of the namespace it boots in, and
//! every frame on it is written to a file of packets.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use lab::topology::{Namespace, Process};

/// How long an emulated machine may take to boot; idle it takes 6 s.
const BOOT_PATIENCE: Duration = Duration::from_secs(120);
/// How often one is booted at most.
const BOOTS_MAX: usize = 3;
/// How long one command in it may take.
const COMMAND_PATIENCE: Duration = Duration::from_secs(60);

/// Where the peers are kept between runs.
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target/interop")
}

/// What a peer consists of, as `provide` made it.
#[derive(Clone, Debug)]
pub struct Image {
    /// `linux 6.1.0-50-amd64` and the like, without the first word.
    pub kernel: String,
    /// Package version of the strongSwan inside.
    pub strongswan: String,
    path: PathBuf,
}

impl Image {
    /// Has the peer of a suite made, unless it is there.
    pub fn provide(suite: &str) -> Result<Image, String> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/provide");
        let made = Command::new(&script)
            .args([suite.as_ref(), directory().as_os_str()])
            .output()
            .map_err(|error| format!("{}: {error}", script.display()))?;
        if !made.status.success() {
            return Err(format!("provide {suite}: {}", String::from_utf8_lossy(&made.stderr)));
        }
        let path = directory().join(suite);
        let versions = std::fs::read_to_string(path.join("versions")).map_err(|e| e.to_string())?;
        let version = |package: &str| {
            let line = versions.lines().find_map(|line| line.strip_prefix(package));
            line.map(|version| version.trim().to_string())
                .ok_or_else(|| format!("{suite}: no version of {package}in {versions}"))
        };
        let (kernel, strongswan) = (version("linux ")?, version("charon-systemd ")?);
        Ok(Image { kernel, strongswan, path })
    }

    /// The traffic program, which runs here as well as in the guest.
    pub fn stream(&self) -> PathBuf {
        self.path.join("stream")
    }
}

/// A booted peer.
pub struct Guest {
    commands: UnixStream,
    answers: BufReader<UnixStream>,
    console: PathBuf,
    packets: PathBuf,
    process: Process,
}

impl Guest {
    /// Boots an image with `cpus` processors and the tap device `tap` of `namespace` as its `eth0`.
    /// Files of the run go to `scratch`.
    pub fn boot(
        image: &Image,
        network: (&Namespace, &str),
        cpus: usize,
        scratch: &Path,
    ) -> Result<Guest, String> {
        // Now and then a kernel panics under the emulator before it is up, and has met nothing of ours.
        for _ in 1..BOOTS_MAX {
            match Guest::start(image, network, cpus, scratch) {
                Err(story) if story.contains("Kernel panic") => {
                    println!("interop: the peer's kernel did not come up, once more: {story}");
                }
                end => return end,
            }
        }
        Guest::start(image, network, cpus, scratch)
    }

    /// The same, tried once.
    fn start(
        image: &Image,
        (namespace, tap): (&Namespace, &str),
        cpus: usize,
        scratch: &Path,
    ) -> Result<Guest, String> {
        let (console, packets) = (scratch.join("console"), scratch.join("packets.pcap"));
        let control = scratch.join("control");
        // One that did not come up leaves its own.
        let _ = std::fs::remove_file(&control);
        let listener = UnixListener::bind(&control).map_err(|e| e.to_string())?;
        let mut qemu = namespace.command_bound(Path::new("qemu-system-x86_64"));
        // The kernel's random numbers must not wait for entropy that an idle machine does not have,
        // and its test of the timer interrupt fails on an emulated machine that was not run for a while.
        qemu.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-m", "512", "-nodefaults"])
            .args(["-nographic", "-no-reboot", "-smp", &cpus.to_string()])
            .args(["-append", "console=ttyS0 panic=-1 quiet random.trust_cpu=on no_timer_check"])
            .args(["-kernel".as_ref(), image.path.join("kernel").as_os_str()])
            .args(["-initrd".as_ref(), image.path.join("initramfs").as_os_str()])
            .args(["-serial".to_string(), format!("file:{}", console.display())])
            .args(["-chardev".to_string(), format!("socket,id=control,path={}", control.display())])
            .args(["-serial", "chardev:control"])
            // No header for offloads: the guest finishes its checksums and cuts its own segments.
            .args(["-netdev".to_string(), nic_backend(tap)])
            .args(["-device", "virtio-net-pci,netdev=n0,mac=52:54:00:00:00:02"])
            .args(["-object".to_string(), dump(&packets)]);
        let process = Process::start("qemu", qemu, scratch.join("qemu.log"))
            .map_err(|error| error.to_string())?;
        let commands = accept(&listener, BOOT_PATIENCE)?;
        commands.set_read_timeout(Some(BOOT_PATIENCE)).map_err(|e| e.to_string())?;
        let answers = BufReader::new(commands.try_clone().map_err(|e| e.to_string())?);
        let mut guest = Guest { commands, answers, console, packets, process };
        guest.answer()?;
        guest.commands.set_read_timeout(Some(COMMAND_PATIENCE)).map_err(|e| e.to_string())?;
        Ok(guest)
    }

    /// The file with every frame that its network card sent and received, in libpcap's format.
    pub fn packets(&self) -> &Path {
        &self.packets
    }

    /// Runs one line of shell; returns what it printed, or that as the error if it failed.
    pub fn run(&mut self, line: &str) -> Result<String, String> {
        assert!(!line.contains('\n'), "one line: {line}");
        writeln!(self.commands, "{line}").map_err(|error| format!("{line}: {error}"))?;
        let (output, code) = self.answer()?;
        if code == 0 { Ok(output) } else { Err(format!("peer: `{line}`: exit {code}: {output}")) }
    }

    /// Runs lines of `ip` in one batch.
    pub fn ip(&mut self, lines: &[String]) -> Result<(), String> {
        self.run(&format!("printf '%s\\n' '{}' | ip -batch -", lines.join("' '"))).map(|_| ())
    }

    /// Writes a file of text without single quotes.
    pub fn write(&mut self, path: &str, text: &str) -> Result<(), String> {
        assert!(!text.contains('\''), "{text}");
        let lines: Vec<&str> = text.lines().collect();
        self.run(&format!("printf '%s\\n' '{}' >{path}", lines.join("' '"))).map(|_| ())
    }

    /// Waits until a command succeeds.
    pub fn wait(&mut self, line: &str) -> Result<String, String> {
        let end = Instant::now() + COMMAND_PATIENCE;
        loop {
            match self.run(line) {
                Err(error) if Instant::now() > end => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
                Ok(output) => return Ok(output),
            }
        }
    }

    fn answer(&mut self) -> Result<(String, i32), String> {
        let mut output = String::new();
        loop {
            let mut line = Vec::new();
            let got = self.answers.read_until(b'\n', &mut line);
            match got {
                Ok(length) if length > 0 => {}
                other => return Err(format!("the peer is silent ({other:?}): {}", self.story())),
            }
            let line = String::from_utf8_lossy(&line);
            if let Some(code) = line.strip_prefix("@@@ ") {
                return Ok((output.trim_end().to_string(), code.trim().parse().unwrap_or(-1)));
            }
            output.push_str(&line);
        }
    }

    /// The end of what console and emulator said.
    fn story(&self) -> String {
        let console = std::fs::read(&self.console).unwrap_or_default();
        let console = String::from_utf8_lossy(&console[console.len().saturating_sub(1000)..]);
        format!("console: {console}\nemulator: {}", self.process.log())
    }
}

fn nic_backend(tap: &str) -> String {
    format!("tap,id=n0,ifname={tap},script=no,downscript=no,vnet_hdr=off")
}

fn dump(packets: &Path) -> String {
    format!("filter-dump,id=dump,netdev=n0,file={}", packets.display())
}

fn accept(listener: &UnixListener, patience: Duration) -> Result<UnixStream, String> {
    listener.set_nonblocking(true).map_err(|e| e.to_string())?;
    let end = Instant::now() + patience;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).map_err(|e| e.to_string())?;
                return Ok(stream);
            }
            Err(error) if Instant::now() > end => return Err(format!("QEMU: {error}")),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}
