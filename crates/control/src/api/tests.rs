//! A server and its clients over real sockets, good ones and bad ones.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;

/// Facts about nothing in particular; `sas` of them are the size of the largest reply.
struct Fixed {
    sas: u32,
}

fn sa(spi: u32) -> Sa {
    Sa {
        spi,
        src: "192.0.2.1".parse().unwrap(),
        dst: "2001:db8::1".parse().unwrap(),
        direction: "out".into(),
        reqid: 7,
        if_id: 42,
        mark: Some((1, u32::MAX)),
        mode: "tunnel".into(),
        algorithm: "rfc4106(gcm(aes))".into(),
        key_bits: 256,
        icv_bits: 128,
        esn: true,
        replay_window_packets: 64,
        sequence: 1 << 40,
        packets: 10,
        bytes: u64::MAX,
        age_s: 60,
        last_use_age_s: None,
        errors: SaErrors { replay_window: 1, replay: 2, integrity: 3 },
        encapsulation_ports: Some((4500, 4500)),
        worker: Some(1),
        cpu: Some(1),
    }
}

impl Facts for Fixed {
    fn sa_names(&mut self) -> Vec<u64> {
        (0..self.sas.into()).collect()
    }
    fn sas(&mut self, names: &[u64]) -> Vec<Sa> {
        // Of many, whole parts have gone since they were named, the first among them.
        let gone = |spi: &u32| self.sas > 1000 && spi & 0x100 == 0;
        names.iter().map(|name| *name as u32).filter(|spi| !gone(spi)).map(sa).collect()
    }
    fn policy_names(&mut self) -> Vec<u64> {
        vec![9]
    }
    fn policies(&mut self, names: &[u64]) -> Vec<Policy> {
        if names.is_empty() {
            return Vec::new();
        }
        let template = Template {
            src: "192.0.2.1".parse().unwrap(),
            dst: "192.0.2.2".parse().unwrap(),
            protocol: "esp".into(),
            mode: "tunnel".into(),
            reqid: 7,
            spi: 0,
            optional: false,
        };
        vec![Policy {
            index: 9,
            direction: "fwd".into(),
            priority: 100,
            action: "protect".into(),
            src: "10.0.0.0/24".into(),
            dst: "10.1.0.0/24".into(),
            protocol: 0,
            src_port: (0, 0),
            dst_port: (80, 0xffff),
            if_id: 42,
            mark: None,
            templates: vec![template],
            packets: 1,
            bytes: 2,
            age_s: 3,
            last_use_age_s: Some(0),
        }]
    }
    fn ports(&mut self) -> Vec<Port> {
        let loss = Loss { name: "ring_full".into(), count: 3, description: "Full.".into() };
        vec![Port {
            name: "red0".into(),
            interface: "eth0".into(),
            ifindex: 2,
            mac: "02:00:00:00:00:01".into(),
            mtu_bytes: 1500,
            link_up: true,
            xdp_mode: "native".into(),
            zero_copy: false,
            vrf: None,
            queues: 2,
            rx_packets: 1,
            rx_bytes: 64,
            tx_packets: 2,
            tx_bytes: 128,
            losses: vec![loss],
            steering: Vec::new(),
        }]
    }
    fn workers(&mut self) -> Vec<Worker> {
        vec![Worker {
            worker: 0,
            core: 1,
            busy_share: 0.25,
            packets: 5,
            turns: 6,
            batch_average: 1.5,
            sleeps: 2,
            own_sa_packets: 3,
            fallback_sa_packets: 4,
            followed_packets: 5,
        }]
    }
    fn drops(&mut self) -> Vec<DropCount> {
        vec![DropCount {
            name: "replayed".into(),
            count: 3,
            per_s: 0.5,
            loss: true,
            description: "Seen before.".into(),
            linux_name: Some("XfrmInStateSeqError".into()),
        }]
    }
    fn routes(&mut self) -> Vec<Route> {
        vec![Route {
            prefix: "::/0".into(),
            table: "main".into(),
            kind: "unicast".into(),
            metric: 1024,
            gateway: Some("fe80::1".parse().unwrap()),
            interface: Some("eth0".into()),
            port: None,
            hops: 1,
        }]
    }
    fn neighbours(&mut self) -> Vec<Neighbour> {
        vec![Neighbour {
            address: "192.0.2.9".parse().unwrap(),
            interface: "eth0".into(),
            mac: None,
            state: "incomplete".into(),
            usable: false,
        }]
    }
    fn status(&mut self) -> Status {
        Status {
            name: "gw0".into(),
            version: "0.1.0".into(),
            pid: 1,
            uptime_s: 2,
            epoch: 3,
            engine: "aws-lc".into(),
            cores: vec![0, 1],
            ports: 2,
            sas: self.sas.into(),
            policies: 1,
            default_actions: DefaultActions::default(),
            routes: 1,
            neighbours: 1,
            route_feed: crate::route_feed::FeedCounters::default(),
            received_packets: 10,
            accounted_packets: 10,
            guard: "none".into(),
            journal: "off".into(),
            restored: Restored::default(),
            upgrade_refused: None,
            host: None,
        }
    }
    fn upgrade(&mut self, wanted: Upgrade) -> Result<String, String> {
        let binary = wanted.binary.ok_or("nothing new there")?;
        Ok(binary.display().to_string())
    }
}

struct Bench {
    server: Server,
    facts: Fixed,
    path: PathBuf,
    now: Instant,
    _directory: tempfile::TempDir,
}

impl Bench {
    fn new(sas: u32) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let server = Server::bind(&path).unwrap();
        Self { server, facts: Fixed { sas }, path, now: Instant::now(), _directory: directory }
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        stream
    }

    /// Serves until there is nothing to do for a moment.
    fn serve(&mut self) {
        let moment = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        let ready =
            |server: &Server| poll(&mut [PollFd::new(server, PollFlags::IN)], Some(&moment));
        while ready(&self.server).unwrap() > 0 {
            self.server.serve(&mut self.facts, self.now).unwrap();
        }
    }

    /// Serves in this thread while a client works in another.
    fn during<T: Send>(&mut self, client: impl FnOnce(&Path) -> T + Send) -> T {
        let path = self.path.clone();
        std::thread::scope(|scope| {
            let client = scope.spawn(move || client(&path));
            while !client.is_finished() {
                self.serve();
            }
            client.join().unwrap()
        })
    }
}

fn line(stream: &UnixStream) -> String {
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line
}

#[test]
fn everything_that_can_be_shown_is_answered() {
    let mut bench = Bench::new(3);
    for show in Show::ALL {
        assert_eq!(show.name().parse(), Ok(show));
        let answer = bench.during(move |path| ask(path, show)).unwrap();
        assert_eq!(answer.reply, bench.facts.reply(show));
        let start = format!("{{\"schema\":1,\"reply\":{{\"{show}\":");
        assert!(answer.json.starts_with(&start), "{}", answer.json);
    }
    assert!("keys".parse::<Show>().unwrap_err().contains("sa, policy, ports"));
}

#[test]
fn the_socket_is_for_its_owner_only() {
    let mut bench = Bench::new(0);
    let mode = std::fs::metadata(&bench.path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    // Somebody who gets at the socket all the same is hung up on.
    let directory = bench.path.parent().unwrap();
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&bench.path, std::fs::Permissions::from_mode(0o666)).unwrap();
    let answer = bench.during(|path| {
        let nobody = rustix::process::Uid::from_raw(65_534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        ask(path, Show::Status)
    });
    let error = answer.unwrap_err().to_string();
    assert!(error.contains("has no end") || error.contains("cannot"), "{error}");
    assert!(bench.during(|path| ask(path, Show::Status)).is_ok());
}

#[test]
fn a_large_reply_arrives_whole_while_others_are_served() {
    let mut bench = Bench::new(20_000);
    let mut slow = bench.connect();
    slow.write_all(b"{\"show\":\"sa\"}\n").unwrap();
    bench.serve();
    let quick = bench.during(|path| ask(path, Show::Status)).unwrap();
    assert!(matches!(quick.reply, Reply::Status(_)));
    let read = bench.during(move |_| line(&slow));
    let envelope: Envelope = serde_json::from_str(&read).unwrap();
    assert_eq!(envelope.reply, bench.facts.reply(Show::Sa));
}

#[test]
fn requests_in_one_piece_are_answered_in_order() {
    let mut bench = Bench::new(1);
    let mut stream = bench.connect();
    let words = ["drops", "sa", "status", "ports"];
    let requests: String = words.iter().map(|w| format!("{{\"show\":\"{w}\"}}\n")).collect();
    stream.write_all(requests.as_bytes()).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    bench.serve();
    let mut replies = String::new();
    stream.read_to_string(&mut replies).unwrap();
    let lines: Vec<&str> = replies.lines().collect();
    assert_eq!(lines.len(), words.len());
    for (line, word) in lines.iter().zip(words) {
        assert!(line.contains(&format!("{{\"{word}\":")), "{line}");
    }
}

#[test]
fn a_request_in_pieces_is_put_together() {
    let mut bench = Bench::new(1);
    let mut stream = bench.connect();
    for piece in ["{\"sh", "ow\":\"dr", "ops\"}", "\n"] {
        stream.write_all(piece.as_bytes()).unwrap();
        bench.serve();
    }
    assert!(line(&stream).contains("\"drops\""));
}

#[test]
fn nonsense_is_answered_by_a_sentence() {
    let mut bench = Bench::new(1);
    for bad in ["", "show", "{}", "{\"show\":\"keys\"}", "{\"show\":\"sa\",\"x\":1}", "\u{0}"] {
        let mut stream = bench.connect();
        stream.write_all(format!("{bad}\n").as_bytes()).unwrap();
        bench.serve();
        let reply = line(&stream);
        assert!(reply.contains("\"error\":\"the request is not understood"), "{bad}: {reply}");
    }
    let mut endless = bench.connect();
    endless.write_all(&[b' '; 4096]).unwrap();
    bench.serve();
    assert!(line(&endless).contains("longer than 4096 bytes"));
    let mut rest = String::new();
    assert_eq!(endless.read_to_string(&mut rest).unwrap(), 0, "and the stream is at its end");
}

#[test]
fn clients_beyond_the_limit_are_refused_until_one_stalls() {
    let mut bench = Bench::new(1);
    let mut clients: Vec<UnixStream> = (0..CLIENTS_MAX).map(|_| bench.connect()).collect();
    bench.serve();
    let error = bench.during(|path| ask(path, Show::Status)).unwrap_err();
    assert!(error.to_string().contains("16 clients are being served"), "{error}");

    // Half a minute later one client speaks, and another is taken for dead when a place is needed.
    bench.now += Duration::from_secs(31);
    clients[0].write_all(b"{\"show\":\"drops\"}\n").unwrap();
    bench.serve();
    assert!(bench.during(|path| ask(path, Show::Status)).is_ok());
    assert!(line(&clients[0]).contains("drops"));
    assert_eq!(clients[1].read(&mut [0; 1]).unwrap(), 0, "the stalled one was hung up on");

    clients.clear();
    bench.serve();
    let again: Vec<UnixStream> = (0..CLIENTS_MAX).map(|_| bench.connect()).collect();
    bench.serve();
    let places = bench.server.clients();
    assert_eq!(places, again.len());
}

#[test]
fn a_client_that_does_not_read_costs_one_reply_and_no_time() {
    let mut bench = Bench::new(5000);
    let mut stuck = bench.connect();
    for _ in 0..100 {
        stuck.write_all(b"{\"show\":\"sa\"}\n").unwrap();
    }
    bench.serve();
    let started = Instant::now();
    assert!(bench.during(|path| ask(path, Show::Status)).is_ok());
    assert!(started.elapsed() < Duration::from_secs(5));
    drop(stuck);
    bench.serve();
    assert_eq!(bench.server.clients(), 0);
}

#[test]
fn replies_that_are_not_ours_are_errors() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control.sock");
    let missing = ask(&path, Show::Sa).unwrap_err().to_string();
    assert!(missing.contains("cannot connect to") && missing.contains("control.sock"));
    let listener = UnixListener::bind(&path).unwrap();
    let said = |words: &'static str| {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(words.as_bytes()).unwrap();
                let _ = line(&stream);
            });
            ask(&path, Show::Sa).unwrap_err().to_string()
        })
    };
    assert!(said("{\"schema\":2,\"reply\":{\"novel\":[]}}\n").contains("format 2"));
    assert!(said("{\"schema\":1,\"reply\":{\"sa\":[{}]}}\n").contains("not a reply"));
    assert!(said("hello\n").contains("not a reply"));
    assert!(said("{\"schema\":1").contains("no end"));
    assert!(said("{\"schema\":1,\"reply\":{\"error\":\"no\"}}\n").contains("answers: no"));
}
