//! The preload library in unmodified programs: Debian's `ip`, and a C program that uses netlink
//! sockets in every way there is. The server behind it is scripted; the real one is tested with
//! the gateway.

mod server;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use server::{Script, Server, error, message};
use wire::xfrm::shim::{BIND, MEMBERSHIP, OPTION, OPTION_CAP_ACK, OPTION_EXT_ACK};

/// The library, built for this profile.
fn library() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let test = std::env::current_exe().unwrap();
        let profile = test.parent().and_then(Path::parent).unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", "peregrine-preload"]);
        cargo.arg("--target-dir").arg(profile.parent().unwrap());
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success(), "the library does not build");
        profile.join("libperegrine_xfrm.so")
    })
}

fn shimmed(program: impl AsRef<std::ffi::OsStr>, server: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", library()).env("PEREGRINE_XFRM", server);
    command
}

fn run(server: &Server, arguments: &str) -> Output {
    shimmed("ip", server.path()).args(arguments.split(' ')).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// An SA between two documentation addresses, as GETSA returns it.
fn sa(spi: u32) -> Vec<u8> {
    let mut body = vec![0; 224];
    body[40..42].copy_from_slice(&2_u16.to_ne_bytes()); // selector: AF_INET
    body[56..60].copy_from_slice(&[192, 0, 2, 2]);
    body[72..76].copy_from_slice(&spi.to_be_bytes());
    body[76] = 50;
    body[80..84].copy_from_slice(&[192, 0, 2, 1]);
    body[212..214].copy_from_slice(&2_u16.to_ne_bytes());
    body[214] = 1; // tunnel
    body
}

#[test]
fn ip_counts() {
    // flags, then XFRMA_SAD_CNT.
    let info = [0, 0, 0, 0, 8, 0, 1, 0, 42, 0, 0, 0];
    let server = Server::start("count", Script::from([(0x23, vec![message(0x22, 0, &info)])]));
    let output = run(&server, "xfrm state count");
    assert_eq!(stdout(&output), "\t SAD count 42\n", "{}", stderr(&output));
    assert!(output.status.success());
}

#[test]
fn ip_lists_a_dump_of_several_datagrams() {
    let multi = 2;
    let part = |spis: &[u32]| -> Vec<u8> {
        spis.iter().flat_map(|spi| message(0x10, multi, &sa(*spi))).collect()
    };
    let done = message(3, multi, &[0; 4]);
    let dump = vec![part(&[0x100, 0x101]), part(&[0x102]), done];
    let server = Server::start("list", Script::from([(0x12, dump)]));
    let output = run(&server, "xfrm state list");
    let spis: Vec<String> = stdout(&output)
        .lines()
        .filter_map(|line| line.trim().strip_prefix("proto esp spi ").map(str::to_string))
        .collect();
    assert_eq!(spis.len(), 3, "{}{}", stdout(&output), stderr(&output));
    assert!(spis[2].starts_with("0x00000102 reqid 0 mode tunnel"), "{spis:?}");
    assert!(output.status.success());
}

#[test]
fn ip_reports_an_error_with_its_exit_code() {
    let server = Server::start("error", Script::from([(0x11, vec![error(3)])]));
    let output = run(&server, "xfrm state delete src 192.0.2.1 dst 192.0.2.2 proto esp spi 1");
    assert_eq!(stderr(&output), "RTNETLINK answers: No such process\n");
    assert_eq!(output.status.code(), Some(2));
    // The server was told the port and that `ip` wants texts with errors, before the request.
    let received = server.received();
    let order = |kind, first| {
        received.iter().position(|r| r.kind == kind && r.words().first() == Some(&first))
    };
    let texts = received.iter().rposition(|r| r.kind == OPTION && r.words() == [OPTION_EXT_ACK, 1]);
    let bound = received.iter().find(|r| r.kind == BIND).unwrap();
    assert_eq!(bound.words()[1], 0);
    assert!(texts.is_some() && texts < received.iter().position(|r| r.kind == 0x11));
    // Options start as they do on a netlink socket: off.
    assert!(order(OPTION, OPTION_CAP_ACK).is_some(), "{received:?}");
}

#[test]
fn ip_monitors_events() {
    let server = Server::start("monitor", Script::new());
    // Bounded, so that a monitor that prints nothing fails the test.
    let mut monitor = shimmed("timeout", server.path())
        .args(["20", "ip", "xfrm", "monitor"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let bound = server.await_frame(|frame| frame.kind == BIND);
    assert_ne!(bound.words()[1] & 0b10_0010, 0, "groups {:#x}", bound.words()[1]);
    server.broadcast(&message(0x11, 0, &deleted()));
    let mut line = String::new();
    let mut lines = BufReader::new(monitor.stdout.take().unwrap());
    lines.read_line(&mut line).unwrap();
    monitor.kill().unwrap();
    monitor.wait().unwrap();
    assert_eq!(line, "Deleted src 192.0.2.1 dst 192.0.2.2\n");
}

/// The body of a deletion event: the SA's identity, and the SA as an attribute.
fn deleted() -> Vec<u8> {
    let whole = sa(7);
    let mut body = vec![0; 24];
    body[..20].copy_from_slice(&whole[56..76]);
    body.extend(228_u16.to_ne_bytes());
    body.extend(6_u16.to_ne_bytes()); // XFRMA_SA
    body.extend(&whole);
    body
}

#[test]
fn without_a_server_the_socket_is_refused() {
    let nowhere = Path::new("/nonexistent/xfrm.sock");
    let quiet = shimmed("ip", nowhere).args(["xfrm", "state", "count"]).output().unwrap();
    assert_eq!(stderr(&quiet), "Cannot open netlink socket: Connection refused\n");
    assert!(!quiet.status.success());
    let loud = shimmed("ip", nowhere)
        .args(["xfrm", "state", "count"])
        .env("PEREGRINE_XFRM_DEBUG", "1")
        .output()
        .unwrap();
    let expected = "peregrine: no XFRM server at /nonexistent/xfrm.sock: No such file or directory";
    assert!(stderr(&loud).starts_with(expected), "{}", stderr(&loud));
    // A path that no Unix socket can have is no server either.
    let long = PathBuf::from(format!("/{}", "x".repeat(200)));
    let long = shimmed("ip", &long).args(["xfrm", "state", "count"]).output().unwrap();
    assert_eq!(stderr(&long), "Cannot open netlink socket: Connection refused\n");
}

#[test]
fn other_programs_do_not_notice() {
    let nowhere = Path::new("/nonexistent/xfrm.sock");
    let link = shimmed("ip", nowhere).args(["link", "show", "lo"]).output().unwrap();
    assert!(stdout(&link).starts_with("1: lo:"), "{}", stderr(&link));
    let script = "printf '%s\\n' one two | sort -r | { read x; exec 7<&0; read y <&7; echo $x$y; }";
    let shell = shimmed("sh", nowhere).args(["-c", script]).output().unwrap();
    assert_eq!(stdout(&shell), "twoone\n", "{}", stderr(&shell));
}

/// `peregrine exec` asks so before it trusts the loader with a program.
#[test]
fn the_library_says_that_it_is_there() {
    let nowhere = Path::new("/nonexistent/xfrm.sock");
    let probed = shimmed("true", nowhere).env("PEREGRINE_XFRM_PROBE", "1").status().unwrap();
    assert_eq!(probed.code(), Some(86));
}

/// The C program, with the compiler's buffer checks as Debian's packages have them.
fn probe(server_name: &str, check: &str) -> Server {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/probe.c");
        let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("probe");
        let compiled = Command::new("cc")
            .args(["-O2", "-D_FORTIFY_SOURCE=2", "-Wall", "-pthread", "-o"])
            .args([&program, &source])
            .status()
            .unwrap();
        assert!(compiled.success());
        program
    });
    let script = Script::from([
        (0x12, vec![message(0x10, 0, &sa(9))]),
        (0x1c, vec![message(0x1c, 0, &[50])]),
        (0x21, vec![message(4, 0, &[])]),
        (0x23, vec![message(0x22, 0, &[0, 0, 0, 0, 8, 0, 1, 0, 42, 0, 0, 0])]),
    ]);
    let server = Server::start(server_name, script);
    let output = shimmed(program, server.path()).arg(check).output().unwrap();
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    assert!(stdout(&output).ends_with(&format!("{check} holds\n")), "{}", stdout(&output));
    server
}

#[test]
fn addresses_are_netlink_addresses() {
    probe("names", "names");
}

#[test]
fn options_are_netlink_options() {
    let server = probe("options", "options");
    // The program may have ended before its last frame was read.
    server.await_frame(|frame| frame.kind == MEMBERSHIP && frame.words() == [3, 0]);
    let joined = server.received().into_iter().filter(|frame| frame.kind == MEMBERSHIP);
    assert_eq!(joined.map(|frame| frame.words()).collect::<Vec<_>>(), [[3, 1], [3, 0]]);
}

#[test]
fn an_answer_is_there_when_send_returns() {
    probe("waits", "waits");
}

#[test]
fn every_way_to_send_sends() {
    probe("sends", "sends");
}

#[test]
fn every_way_to_receive_receives() {
    probe("receives", "receives");
}

#[test]
fn several_messages_go_with_one_call() {
    probe("several", "several");
}

#[test]
fn a_connection_that_fork_shares_answers_both() {
    probe("forked", "forked");
}

#[test]
fn copies_and_closed_descriptors_are_followed() {
    probe("copies", "copies");
}

#[test]
fn children_have_their_own_sockets() {
    probe("children", "children");
}

#[test]
fn device_requests_work_on_the_socket() {
    probe("requests", "requests");
}

#[test]
fn a_thread_can_be_cancelled_while_it_receives() {
    probe("cancel", "cancel");
}

#[test]
fn a_server_that_comes_back_is_told_again() {
    let server = probe("restart", "restart");
    let binds = server.received().into_iter().filter(|frame| frame.kind == BIND);
    let groups: Vec<u32> = binds.map(|frame| frame.words()[1]).collect();
    assert_eq!(groups, [0x22, 0x22, 0x22]);
    let options = server
        .received()
        .into_iter()
        .filter(|f| f.kind == OPTION && f.words()[0] == OPTION_CAP_ACK);
    let cap_ack: Vec<u32> = options.map(|frame| frame.words()[1]).collect();
    assert_eq!(cap_ack, [0, 1, 1, 1]);
}

#[test]
fn a_program_that_waits_with_epoll_waits_for_the_new_connection() {
    probe("watched", "watched");
}

#[test]
fn a_server_that_went_before_it_answered_is_asked_again() {
    let server = probe("asked-again", "asked_again");
    assert_eq!(server.received().into_iter().filter(|frame| frame.kind == 0x26).count(), 2);
}

#[test]
fn a_request_that_nobody_answers_fails() {
    probe("away", "away");
}

#[test]
fn an_answer_that_another_thread_reads_is_an_answer() {
    probe("heard", "heard_elsewhere");
}

#[test]
fn a_request_is_asked_again_whichever_thread_reconnects() {
    let server = probe("both", "both_see_the_end");
    // Each of 60 requests was asked twice; one that came as the connection was exchanged, once more.
    let asked = server.received().into_iter().filter(|frame| frame.kind == 0x26).count();
    assert!(asked >= 120, "{asked}");
}

#[test]
fn a_server_that_goes_after_a_long_time_is_asked_again() {
    let server = probe("stalled", "stalled");
    assert_eq!(server.received().into_iter().filter(|frame| frame.kind == 0x29).count(), 2);
}

#[test]
fn what_came_before_the_end_is_read_before_it() {
    probe("unread", "unread");
}

#[test]
fn what_goes_with_its_connection_is_told_to_be_lost() {
    probe("thrown", "thrown_away");
}

#[test]
fn an_answer_is_its_own_request_s_only() {
    probe("own", "not_ones_own");
}

#[test]
fn groups_are_joined_when_the_call_returns() {
    let server = probe("joins", "joins");
    let kinds = server.received().into_iter().filter_map(|frame| match frame.kind {
        BIND if frame.words()[1] != 0 => Some("bind"),
        MEMBERSHIP => Some("join"),
        0x11 => Some("request"),
        _ => None,
    });
    let expected = ["bind", "request", "join", "request"].repeat(20);
    assert_eq!(kinds.collect::<Vec<_>>(), expected);
}

#[test]
fn lost_events_are_reported_as_netlink_does() {
    probe("lose", "lose");
}

#[test]
fn other_sockets_are_the_kernels() {
    probe("others", "others");
}

#[test]
fn threads_do_not_disturb_each_other() {
    probe("threads", "threads");
}
