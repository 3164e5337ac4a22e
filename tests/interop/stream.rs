//! The traffic of the interoperability tests: an echo service and its clients, over UDP and TCP,
//! in varied sizes, every byte compared. One program for both ends, without any library, because
//! it also runs in a guest that has none; `provide` compiles it.
//!
//! It measures nothing; damage, and loss where it is not counted, end it with exit code 1 and a
//! sentence.
//!
//! usage: stream serve PORT                    echoes on every address
//!        stream udp ADDRESS PORT COUNT MAX    sends that many datagrams of up to MAX bytes, each
//!                                             after the other's echo
//!        stream while ADDRESS PORT MAX        sends such datagrams until its input ends, and prints
//!                                             how many had no echo
//!        stream tcp ADDRESS PORT BYTES        sends that many bytes while it reads their echo

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// An echo that takes longer is lost. Seconds, for an emulated machine that shares a busy one.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest single write to a TCP stream.
const WRITE_MAX: usize = 8192;

/// A reproducible stream of bytes and sizes (xorshift64).
struct Pattern(u64);

impl Pattern {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            *byte = (self.next() >> 24) as u8;
        }
    }
}

fn serve(port: u16) -> io::Result<()> {
    let any = SocketAddr::from(([0u16; 8], port));
    let udp = UdpSocket::bind(any)?;
    let tcp = TcpListener::bind(any)?;
    println!("serving");
    thread::spawn(move || {
        let mut buffer = [0; 65536];
        loop {
            if let Ok((length, from)) = udp.recv_from(&mut buffer) {
                let _ = udp.send_to(&buffer[..length], from);
            }
        }
    });
    for stream in tcp.incoming() {
        let stream = stream?;
        thread::spawn(move || {
            let _ = io::copy(&mut &stream, &mut &stream);
            let _ = stream.shutdown(Shutdown::Write);
        });
    }
    Ok(())
}

/// The first datagrams are the edges; the rest is anything between.
fn datagram_length(number: usize, max: usize, pattern: &mut Pattern) -> usize {
    let edges = [0, 1, 2, 3, 4, max - 1, max];
    edges.get(number).copied().unwrap_or_else(|| pattern.next() as usize % max)
}

/// Sends datagrams while it `goes_on` after so many, and until one came back. `lost` says whether one
/// without echo is borne.
fn udp(
    to: SocketAddr,
    max: usize,
    goes_on: impl Fn(usize) -> bool,
    mut lost: impl FnMut() -> bool,
) -> io::Result<()> {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut pattern = Pattern(0x9e37_79b9_7f4a_7c15);
    let (mut sent, mut echo) = (vec![0; max], vec![0; 65536]);
    let (mut number, mut came_back) = (0, true);
    while goes_on(number) || !came_back {
        let length = datagram_length(number, max, &mut pattern);
        pattern.fill(&mut sent[..length]);
        socket.send(&sent[..length])?;
        let described =
            |what| io::Error::other(format!("datagram {number} of {length} bytes: {what}"));
        came_back = match socket.recv(&mut echo) {
            Ok(got) if echo[..got] == sent[..length] => true,
            Ok(_) => return Err(described("damaged".to_string())),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && lost() => false,
            Err(error) => return Err(described(error.to_string())),
        };
        number += 1;
    }
    Ok(())
}

/// Whether the input has not ended, without waiting for it.
fn input_is_open() -> impl Fn() -> bool {
    let open = Arc::new(AtomicBool::new(true));
    let seen = open.clone();
    thread::spawn(move || {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        open.store(false, Ordering::Relaxed);
    });
    move || seen.load(Ordering::Relaxed)
}

fn tcp(to: SocketAddr, bytes: usize) -> io::Result<()> {
    const SEED: u64 = 0x2545_f491_4f6c_dd1d;
    let stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    let mut writer = stream.try_clone()?;
    let sender = thread::spawn(move || -> io::Result<()> {
        let (mut content, mut sizes) = (Pattern(SEED), Pattern(!SEED));
        let (mut left, mut buffer) = (bytes, [0; WRITE_MAX]);
        while left > 0 {
            let length = (sizes.next() as usize % WRITE_MAX + 1).min(left);
            content.fill(&mut buffer[..length]);
            writer.write_all(&buffer[..length])?;
            left -= length;
        }
        writer.shutdown(Shutdown::Write)
    });
    let (mut content, mut got) = (Pattern(SEED), 0);
    let (mut buffer, mut expected) = ([0; WRITE_MAX], [0; WRITE_MAX]);
    loop {
        let length = (&stream).read(&mut buffer)?;
        if length == 0 {
            break;
        }
        content.fill(&mut expected[..length]);
        if buffer[..length] != expected[..length] {
            return Err(io::Error::other(format!("damaged after {got} bytes")));
        }
        got += length;
    }
    sender.join().map_err(|_| io::Error::other("the sender panicked"))??;
    if got != bytes {
        return Err(io::Error::other(format!("{got} of {bytes} bytes came back")));
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments.get(at).and_then(|word| word.parse().ok());
    let target = || -> Option<SocketAddr> {
        let address: IpAddr = arguments.get(1)?.parse().ok()?;
        Some(SocketAddr::new(address, u16::try_from(number(2)?).ok()?))
    };
    let outcome = match (arguments.first().map(String::as_str), target(), number(3)) {
        (Some("serve"), ..) => serve(number(1).and_then(|n| u16::try_from(n).ok()).unwrap_or(0)),
        (Some("udp"), Some(to), Some(count)) => {
            udp(to, number(4).unwrap_or(1400).max(1), |sent| sent < count, || false)
        }
        (Some("while"), Some(to), Some(max)) => {
            let (open, mut lost) = (input_is_open(), 0);
            let bear = || {
                lost += 1;
                true
            };
            udp(to, max.max(1), |_| open(), bear).map(|()| println!("lost {lost}"))
        }
        (Some("tcp"), Some(to), Some(bytes)) => tcp(to, bytes),
        _ => Err(io::Error::other(
            "usage: stream serve PORT | udp|tcp ADDRESS PORT COUNT [MAX] | while ADDRESS PORT MAX",
        )),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("stream {}: {error}", arguments.join(" "));
            ExitCode::FAILURE
        }
    }
}
