//! What was protected stays held back until it is protected again.
//!
//! While a gateway runs, the selectors that its policies protect or block are kept in a small file
//! beside its sockets. A gateway that starts after one that was not stopped cleanly reads them and
//! blocks those flows, below every policy that is installed from then on: between the crash and the
//! moment when the tunnels are back, nothing that was held back before is forwarded in clear.
//! Removing the policy once it is installed again, or a clean stop, ends that. All the while the
//! kernel, too, is kept from forwarding those flows (`backstop.rs`).
//!
//! The file is a log of lines, `+` or `-`, a direction and a selector. It appears with the first
//! such policy, so that a start that fails leaves nothing. It holds no keys and no SAs, and does not
//! bring policies back: that is the journal's work, not the guard's. Where the journal is lost or not
//! whole, the guard holds.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use dataplane::policy::Direction;
use dataplane::prefix::Prefix;
use dataplane::selector::{PortMatch, Selector};
use foldhash::HashMap;
use rustix::fs::{FallocateFlags, fallocate};

use super::backstop::{Backstop, forwarded};
use super::short::{KEY_BYTES_MAX, Parts, Short, put, put_address, take_address};
use crate::instance::files::{read_if_there, remove_if_there};

/// The file's name in the instance's run directory.
const FILE: &str = "guard";

/// Lines beyond four per held selector before the file is written anew. Small enough that the file
/// of an idle gateway stays below a megabyte, large enough that rekeying rarely rewrites it.
const SLACK_LINES: usize = 10_000;

/// Bytes of lines that room is kept for; a tunnel's policies have about 200.
const NEWS_KEPT: usize = 16 << 10;

/// Bytes that the file is given room for ahead, half of which (some 500 lines) is always there: what is protected
/// next can be written down when another program has filled the file system, and a gateway that cannot write it
/// down must end.
const ROOM_BYTES: u64 = 64 << 10;

/// A direction and what must not pass in clear in it.
pub type Held = (Direction, Selector);

/// A [`Held`] in few bytes: 12 of them for IPv4, if it is for all ports.
type HeldKey = Short<14>;
const _: () = assert!(12 + 2 * 16 <= KEY_BYTES_MAX);

/// The log of what is held.
pub struct Guard {
    path: PathBuf,
    /// `None` until something is held.
    log: Option<Log>,
    lines: usize,
    /// Lines that are to be written.
    news: String,
    /// Something among them is protected from now on.
    news_protect: bool,
    /// How many policies hold each.
    held: HashMap<HeldKey, u32>,
    /// What the kernel holds for us.
    backstop: Backstop,
}

impl Guard {
    /// Opens the log in a run directory, and returns what an earlier run that did not end cleanly
    /// had protected. That stays in the log until this run's policies protect it.
    pub fn open(directory: &Path, mut backstop: Backstop) -> io::Result<(Guard, Vec<Held>)> {
        let path = directory.join(FILE);
        let text = read_if_there(&path)?;
        // What a crash has cut was not in force yet.
        let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
        let left = replay(whole);
        let mut lines = whole.lines().count();
        // With nothing held there is nothing to keep, and an old log may go. One that is good goes on:
        // putting a new file in its place makes some file systems (ext4) wait for their disk, and
        // packets wait for this start. So does one for which there is no space to write it anew.
        let log = if left.is_empty() {
            remove_if_there(&path).map(|()| None)?
        } else if is_short(lines, left.len()) {
            Some(Log::open(&path, whole.len() as u64)?)
        } else if let Ok(log) = write_anew(&path, left.iter().copied()) {
            lines = left.len();
            Some(log)
        } else {
            Some(Log::open(&path, whole.len() as u64)?)
        };
        let mut held = HashMap::default();
        if !left.is_empty() {
            backstop.find_left();
        }
        for one in &left {
            if let Some(selector) = forwarded(*one)
                && !is_forwarded_otherwise(&held, *one)
            {
                backstop.block(&selector)?;
            }
            held.insert(key_of(*one), 0);
        }
        backstop.flush()?;
        backstop.forget_left();
        let (news, news_protect) = (String::new(), false);
        Ok((Guard { path, log, lines, news, news_protect, held, backstop }, left))
    }

    /// A policy that protects or blocks was installed. What it holds is held from the next
    /// [`flush`](Guard::flush) on.
    pub fn protect(&mut self, held: Held) -> io::Result<()> {
        let key = key_of(held);
        match self.held.get_mut(&key) {
            Some(count) => {
                *count += 1;
                Ok(())
            }
            None => {
                if let Some(selector) = forwarded(held)
                    && !is_forwarded_otherwise(&self.held, held)
                {
                    self.backstop.block(&selector)?;
                }
                self.held.insert(key, 1);
                self.note('+', held);
                Ok(())
            }
        }
    }

    /// A policy that protects or blocks was removed. Returns whether it was the last to hold this.
    pub fn release(&mut self, held: Held) -> io::Result<bool> {
        match self.held.get_mut(&key_of(held)) {
            Some(count) if *count > 1 => {
                *count -= 1;
                Ok(false)
            }
            Some(_) => {
                self.held.remove(&key_of(held));
                self.note('-', held);
                if let Some(selector) = forwarded(held)
                    && !is_forwarded_otherwise(&self.held, held)
                {
                    self.backstop.unblock(&selector)?;
                }
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// Writes down what changed, and has the kernel heed it. What is released may be written down later: were
    /// there another run before that, it would hold too much and not too little.
    ///
    /// # Errors
    /// What is protected cannot be written down, or the kernel refuses it.
    pub fn flush(&mut self) -> io::Result<()> {
        if !self.news.is_empty() {
            match self.write_news() {
                Ok(()) => {
                    self.news.clear();
                    self.news.shrink_to(NEWS_KEPT);
                    self.news_protect = false;
                }
                Err(error) if self.news_protect => return Err(error),
                Err(_) => {}
            }
        }
        self.backstop.flush()
    }

    fn write_news(&mut self) -> io::Result<()> {
        if let Some(log) = &mut self.log
            && is_short(self.lines, self.held.len())
        {
            return log.append(&self.news);
        }
        // What is held now has the changes in it already.
        let held = self.held.keys().filter_map(held_of);
        match (write_anew(&self.path, held), &mut self.log) {
            (Ok(anew), log) => {
                self.lines = self.held.len();
                *log = Some(anew);
                Ok(())
            }
            // A long log is better than none.
            (Err(_), Some(log)) => log.append(&self.news),
            (Err(error), None) => Err(error),
        }
    }

    /// What an earlier run left, and no policy of this one has protected yet.
    pub fn unprotected(&self) -> Vec<Held> {
        let unprotected = self.held.iter().filter(|(_, count)| **count == 0);
        unprotected.filter_map(|(key, _)| held_of(key)).collect()
    }

    /// Ends the protection: the gateway stops cleanly.
    ///
    /// # Errors
    /// The first refusal. Everything else is given up all the same, but the file stays if the kernel may still
    /// hold something, so that the next run knows of it.
    pub fn end(mut self) -> io::Result<()> {
        let keys: Vec<HeldKey> = self.held.keys().cloned().collect();
        let mut ended = Ok(());
        for key in keys {
            self.held.remove(&key);
            if let Some(held) = held_of(&key)
                && let Some(selector) = forwarded(held)
                && !is_forwarded_otherwise(&self.held, held)
            {
                ended = ended.and(self.backstop.unblock(&selector));
            }
        }
        ended = ended.and(self.backstop.flush());
        ended.and_then(|()| remove_if_there(&self.path))
    }

    fn note(&mut self, mark: char, held: Held) {
        write_line(&mut self.news, mark, held);
        self.news_protect |= mark == '+';
        self.lines += 1;
    }
}

/// The file, with whole lines in it.
struct Log {
    file: File,
    bytes: u64,
    /// To where it has room.
    room: u64,
}

impl Log {
    /// One that has so many bytes of whole lines. What a crash has left behind them goes.
    fn open(path: &Path, bytes: u64) -> io::Result<Log> {
        let file = OpenOptions::new().append(true).open(path)?;
        if file.metadata()?.len() != bytes {
            file.set_len(bytes)?;
        }
        let mut log = Log { file, bytes, room: 0 };
        log.make_room();
        Ok(log)
    }

    fn append(&mut self, lines: &str) -> io::Result<()> {
        if let Err(error) = self.file.write_all(lines.as_bytes()) {
            // What was written of them would spoil the line that comes next.
            let _ = self.file.set_len(self.bytes);
            self.room = self.bytes;
            return Err(error);
        }
        self.bytes += lines.len() as u64;
        self.make_room();
        Ok(())
    }

    /// Without it the log goes on all the same, as long as there is space.
    fn make_room(&mut self) {
        if self.room >= self.bytes + ROOM_BYTES / 2 {
            return;
        }
        let kept = FallocateFlags::KEEP_SIZE;
        if fallocate(&self.file, kept, self.bytes, ROOM_BYTES).is_ok() {
            self.room = self.bytes + ROOM_BYTES;
        }
    }
}

/// Whether the kernel blocks a selector for the sake of another direction.
fn is_forwarded_otherwise(all: &HashMap<HeldKey, u32>, (direction, selector): Held) -> bool {
    let other = match direction {
        Direction::Out => Direction::Forward,
        Direction::Forward => Direction::Out,
        Direction::In => return false,
    };
    all.contains_key(&key_of((other, selector)))
}

fn key_of((direction, selector): Held) -> HeldKey {
    let Selector { source, destination, protocol, source_port, destination_port } = selector;
    let mut parts = Parts::new();
    let (is_ipv4, ports) = (source.address().is_ipv4(), [source_port, destination_port]);
    let some_ports = ports != [PortMatch::ANY; 2];
    let what = direction as u8 | u8::from(is_ipv4) << 7 | u8::from(some_ports) << 6;
    put(&mut parts, &[what, source.len(), destination.len(), protocol]);
    for port in ports.iter().filter(|_| some_ports) {
        put(&mut parts, &port.port.to_ne_bytes());
        put(&mut parts, &port.mask.to_ne_bytes());
    }
    put_address(&mut parts, source.address());
    put_address(&mut parts, destination.address());
    Short::new(&parts)
}

/// What a key was made of; `None` for no key.
fn held_of(key: &HeldKey) -> Option<Held> {
    let (&[what, source_len, destination_len, protocol], mut rest) =
        key.bytes().split_first_chunk::<4>()?;
    let mut ports = [0; 8];
    if what >> 6 & 1 != 0 {
        (ports, rest) = rest.split_first_chunk::<8>().map(|(ports, rest)| (*ports, rest))?;
    }
    let word = |at: usize| u16::from_ne_bytes([ports[at], ports[at + 1]]);
    let source = take_address(&mut rest, what >> 7 != 0)?;
    let destination = take_address(&mut rest, what >> 7 != 0)?;
    let direction = Direction::ALL.into_iter().find(|one| *one as u8 == what & 0x3f)?;
    let selector = Selector {
        source: Prefix::new(source, source_len)?,
        destination: Prefix::new(destination, destination_len)?,
        protocol,
        source_port: PortMatch { port: word(0), mask: word(2) },
        destination_port: PortMatch { port: word(4), mask: word(6) },
    };
    Some((direction, selector))
}

/// Replaces the file as a whole, so that a crash in between leaves the old one. In pieces: all lines of 100 000 policies in memory at
/// once would be 5 MiB, in which whoever asks something meanwhile waits for new pages.
fn write_anew(path: &Path, held: impl Iterator<Item = Held>) -> io::Result<Log> {
    let fresh = path.with_extension("new");
    let file =
        OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&fresh)?;
    let (mut file, mut line) = (BufWriter::with_capacity(NEWS_KEPT, file), String::new());
    let mut bytes = 0;
    let mut written = Ok(());
    for held in held {
        line.clear();
        write_line(&mut line, '+', held);
        bytes += line.len() as u64;
        written = written.and_then(|()| file.write_all(line.as_bytes()));
    }
    let replaced = written.and_then(|()| file.flush()).and_then(|()| fs::rename(&fresh, path));
    if replaced.is_err() {
        // It would take the space that the old one may need.
        let _ = remove_if_there(&fresh);
    }
    replaced.and_then(|()| Log::open(path, bytes))
}

/// Whether a log of so many lines need not be written anew for what is held.
fn is_short(lines: usize, held: usize) -> bool {
    lines <= 4 * held + SLACK_LINES
}

/// What a log says is held. Lines that make no sense (a crash may cut the last one) are skipped.
fn replay(text: &str) -> Vec<Held> {
    let mut held = HashMap::default();
    for (number, line) in text.lines().enumerate() {
        match parse(line) {
            Some(('+', one)) => held.insert(one, number),
            Some(('-', one)) => held.remove(&one),
            _ => None,
        };
    }
    let mut held: Vec<(Held, usize)> = held.into_iter().collect();
    held.sort_by_key(|(_, number)| *number);
    held.into_iter().map(|(one, _)| one).collect()
}

fn write_line(out: &mut String, mark: char, (direction, selector): Held) {
    let direction = match direction {
        Direction::In => "in",
        Direction::Out => "out",
        Direction::Forward => "fwd",
    };
    let Selector { source, destination, protocol, source_port, destination_port } = selector;
    let mut number = itoa::Buffer::new();
    out.extend([mark, ' ']);
    out.push_str(direction);
    for prefix in [source, destination] {
        out.push(' ');
        write_address(out, prefix.address());
        out.push('/');
        out.push_str(number.format(prefix.len()));
    }
    out.push(' ');
    out.push_str(number.format(protocol));
    for port in [source_port, destination_port] {
        out.push(' ');
        out.push_str(number.format(port.port));
        out.push('/');
        out.push_str(number.format(port.mask));
    }
    out.push('\n');
}

/// Without the formatter, which took three hundredths of what it takes to install a tunnel.
fn write_address(out: &mut String, address: IpAddr) {
    match address {
        IpAddr::V4(v4) => {
            let mut number = itoa::Buffer::new();
            for (at, octet) in v4.octets().into_iter().enumerate() {
                out.push_str(if at == 0 { "" } else { "." });
                out.push_str(number.format(octet));
            }
        }
        // Writing to a string cannot fail.
        IpAddr::V6(v6) => drop(write!(out, "{v6}")),
    }
}

fn parse(line: &str) -> Option<(char, Held)> {
    let mut words = line.split(' ');
    let mark = words.next()?.chars().next()?;
    let direction = match words.next()? {
        "in" => Direction::In,
        "out" => Direction::Out,
        "fwd" => Direction::Forward,
        _ => return None,
    };
    let mut prefix = || {
        let (address, len) = words.next()?.split_once('/')?;
        Prefix::new(address.parse().ok()?, len.parse().ok()?)
    };
    let (source, destination) = (prefix()?, prefix()?);
    let protocol = words.next()?.parse().ok()?;
    let mut port = || {
        let (port, mask) = words.next()?.split_once('/')?;
        Some(PortMatch { port: port.parse().ok()?, mask: mask.parse().ok()? })
    };
    let (source_port, destination_port) = (port()?, port()?);
    let selector = Selector { source, destination, protocol, source_port, destination_port };
    (source.family() == destination.family()).then_some((mark, (direction, selector)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(direction: Direction, source: &str, destination: &str) -> Held {
        let prefix = |text: &str| {
            let (address, len) = text.split_once('/').unwrap();
            Prefix::new(address.parse().unwrap(), len.parse().unwrap()).unwrap()
        };
        (direction, Selector::between(prefix(source), prefix(destination)).unwrap())
    }

    fn open(directory: &Path) -> io::Result<(Guard, Vec<Held>)> {
        Guard::open(directory, Backstop::absent())
    }

    #[test]
    fn a_crash_leaves_what_was_protected_and_a_stop_does_not() {
        let directory = tempfile::tempdir().unwrap();
        let one = held(Direction::Out, "16.0.0.0/8", "48.0.0.0/24");
        let two = held(Direction::Forward, "fd48::/64", "fd16::/64");
        let (mut guard, left) = open(directory.path()).unwrap();
        assert!(left.is_empty());
        guard.protect(one).unwrap();
        guard.protect(two).unwrap();
        guard.protect(two).unwrap();
        assert!(!guard.release(two).unwrap(), "another policy still protects it");
        guard.flush().unwrap();
        drop(guard);

        let (mut guard, left) = open(directory.path()).unwrap();
        assert!(left.len() == 2 && left.contains(&one) && left.contains(&two));
        guard.protect(one).unwrap();
        guard.flush().unwrap();
        assert!(guard.release(one).unwrap());
        guard.flush().unwrap();
        drop(guard);

        let (guard, left) = open(directory.path()).unwrap();
        assert_eq!(left, [two], "what was taken back is not held; what nobody took back is");
        guard.end().unwrap();
        assert!(open(directory.path()).unwrap().1.is_empty());
    }

    #[test]
    fn a_start_that_holds_nothing_leaves_no_file() {
        let directory = tempfile::tempdir().unwrap();
        let files = || fs::read_dir(directory.path()).unwrap().count();
        let (mut guard, _) = open(directory.path()).unwrap();
        assert_eq!(files(), 0);
        let one = held(Direction::Out, "16.0.0.0/8", "48.0.0.0/24");
        guard.protect(one).unwrap();
        guard.flush().unwrap();
        guard.release(one).unwrap();
        guard.flush().unwrap();
        drop(guard);
        // All was taken back before the crash: the next start clears the log away.
        assert!(open(directory.path()).unwrap().1.is_empty());
        assert_eq!(files(), 0);
        open(directory.path()).unwrap().0.end().unwrap();
    }

    #[test]
    fn the_log_is_rewritten_before_it_grows_without_bound() {
        let directory = tempfile::tempdir().unwrap();
        let (mut guard, _) = open(directory.path()).unwrap();
        let one = held(Direction::In, "0.0.0.0/0", "48.0.0.0/8");
        for _ in 0..SLACK_LINES {
            guard.protect(one).unwrap();
            guard.release(one).unwrap();
            guard.flush().unwrap();
        }
        guard.protect(one).unwrap();
        guard.flush().unwrap();
        let lines = fs::read_to_string(directory.path().join(FILE)).unwrap().lines().count();
        assert!(lines <= SLACK_LINES + 4, "{lines} lines");
        drop(guard);
        assert_eq!(open(directory.path()).unwrap().1, [one]);
    }

    #[test]
    fn a_good_log_goes_on_and_one_that_was_cut_is_written_anew() {
        use std::os::unix::fs::MetadataExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        let file = || fs::metadata(&path).unwrap().ino();
        let one = held(Direction::Out, "16.0.0.0/8", "48.0.0.0/24");
        let two = held(Direction::Out, "16.0.0.0/8", "48.0.1.0/24");
        let (mut guard, _) = open(directory.path()).unwrap();
        guard.protect(one).unwrap();
        guard.flush().unwrap();
        drop(guard);
        let first = file();
        let (mut guard, left) = open(directory.path()).unwrap();
        assert_eq!((left, file()), (vec![one], first));
        guard.protect(two).unwrap();
        guard.flush().unwrap();
        drop(guard);
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 2);

        // Whether what is left of the line makes sense or not.
        for cut in [1, 5] {
            fs::write(&path, &text[..text.len() - cut]).unwrap();
            assert_eq!(open(directory.path()).unwrap().1, [one]);
        }
        let (mut guard, left) = open(directory.path()).unwrap();
        assert_eq!(left, [one], "what was cut was not in force, and nothing is written behind it");
        guard.protect(two).unwrap();
        guard.flush().unwrap();
        drop(guard);
        assert_eq!(open(directory.path()).unwrap().1, [one, two]);
    }

    #[test]
    fn without_space_what_is_released_waits_and_what_is_protected_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        let [one, two, three] =
            [0, 1, 2].map(|n| held(Direction::Out, "16.0.0.0/8", &format!("48.0.{n}.0/24")));
        let (mut guard, _) = open(directory.path()).unwrap();
        for held in [one, two] {
            guard.protect(held).unwrap();
            guard.flush().unwrap();
        }
        // A descriptor that refuses every write, as a full file system does.
        let good =
            std::mem::replace(&mut guard.log.as_mut().unwrap().file, File::open(&path).unwrap());
        guard.release(one).unwrap();
        guard.flush().unwrap();
        assert_eq!(replay(&fs::read_to_string(&path).unwrap()), [one, two]);
        guard.protect(three).unwrap();
        assert!(guard.flush().is_err());
        guard.log.as_mut().unwrap().file = good;
        guard.flush().unwrap();
        assert_eq!(replay(&fs::read_to_string(&path).unwrap()), [two, three]);
    }

    #[test]
    fn the_log_has_room_ahead() {
        use std::os::unix::fs::MetadataExt;
        let directory = tempfile::tempdir().unwrap();
        let (mut guard, _) = open(directory.path()).unwrap();
        for n in 0..=255 {
            let one = held(Direction::Out, "16.0.0.0/8", &format!("48.0.{n}.0/24"));
            guard.protect(one).unwrap();
            guard.flush().unwrap();
            let file = fs::metadata(directory.path().join(FILE)).unwrap();
            assert!(file.blocks() * 512 >= file.len() + ROOM_BYTES / 2, "{file:?}");
            assert_eq!(file.len(), guard.log.as_ref().unwrap().bytes);
        }
    }

    #[test]
    fn a_long_log_that_cannot_be_written_anew_goes_on() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        let [one, two] = ["48.0.0.0/24", "48.0.1.0/24"]
            .map(|destination| held(Direction::Out, "16.0.0.0/8", destination));
        let mut text = String::new();
        (0..SLACK_LINES * 2).for_each(|_| write_line(&mut text, '+', one));
        fs::write(&path, format!("{text}+ out 48.")).unwrap();
        // No file can be where a directory is.
        fs::create_dir(path.with_extension("new")).unwrap();
        let (mut guard, left) = open(directory.path()).unwrap();
        assert_eq!(left, [one]);
        guard.protect(two).unwrap();
        guard.flush().unwrap();
        drop(guard);
        write_line(&mut text, '+', two);
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }

    #[test]
    fn a_long_log_is_written_anew_in_pieces() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        let nth = |n: u32| {
            held(Direction::Out, "16.0.0.0/8", &format!("48.{}.{}.0/24", n / 256, n % 256))
        };
        let all: Vec<Held> = (0..2000).map(nth).collect();
        let mut text = String::new();
        all.iter().for_each(|one| write_line(&mut text, '+', *one));
        assert!(text.len() > 4 * NEWS_KEPT);
        fs::write(&path, format!("{}+ out 48.", text.repeat(10))).unwrap();
        assert_eq!(open(directory.path()).unwrap().1, all);
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }

    #[test]
    fn the_longest_line_is_read_as_it_was_written() {
        let address: IpAddr = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff".parse().unwrap();
        let prefix = Prefix::new(address, 128).unwrap();
        let port = PortMatch::exactly(u16::MAX);
        let selector = Selector {
            source: prefix,
            destination: prefix,
            protocol: u8::MAX,
            source_port: port,
            destination_port: port,
        };
        let mut text = String::new();
        write_line(&mut text, '+', (Direction::Forward, selector));
        assert!(text.len() <= 128, "{text}");
        assert_eq!(replay(&text), [(Direction::Forward, selector)]);
    }

    #[test]
    fn lines_that_make_no_sense_are_skipped() {
        let mut good = String::new();
        write_line(&mut good, '+', held(Direction::Out, "1.0.0.0/8", "2.0.0.0/8"));
        let cut = &good[..good.len() - 4];
        for bad in ["", "+", "+ out", "+ out 1.0.0.0/33 2.0.0.0/8 0 0/0 0/0", "+ up a b", cut] {
            assert_eq!(replay(&format!("{bad}\n{good}")).len(), 1, "{bad:?}");
        }
        assert!(replay("+ out 1.0.0.0/8 fd00::/8 0 0/0 0/0").is_empty(), "mixed families");
    }

    #[test]
    fn the_file_is_for_its_owner_only() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let (mut guard, _) = open(directory.path()).unwrap();
        guard.protect(held(Direction::Out, "1.0.0.0/8", "2.0.0.0/8")).unwrap();
        guard.flush().unwrap();
        let mode = fs::metadata(directory.path().join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_key_is_the_same_in_fewer_bytes() {
        let ports = |one: Held| {
            let source_port = PortMatch { port: 0x1200, mask: 0xff00 };
            (one.0, Selector { protocol: 17, source_port, ..one.1 })
        };
        let four = held(Direction::Forward, "16.0.0.0/8", "48.0.0.0/24");
        let six = held(Direction::In, "fd48::/64", "::/0");
        for one in [four, six, ports(four), ports(six)] {
            assert_eq!(held_of(&key_of(one)), Some(one));
        }
        assert_ne!(key_of(four), key_of((Direction::Out, four.1)));
        assert!(held_of(&Short::new(&[])).is_none());
    }
}
