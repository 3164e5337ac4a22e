//! A TCP stream between two namespaces, of which every byte is compared.

use std::time::Duration;

use lab::topology::{Namespace, Process};

/// How long the listener may take to begin on a busy machine.
const READY: Duration = Duration::from_secs(20);

/// Sends two megabytes over TCP from a namespace, and an address of it if it is said, to the address
/// `to` of `at` and their hash back; both ends see that it is whole. `account` is for the message of
/// a test that fails.
#[track_caller]
pub fn stream(
    (from, source): (&Namespace, Option<&str>),
    (at, to): (&Namespace, &str),
    account: impl Fn() -> String,
) {
    let source = source.map_or("None".to_owned(), |address| format!("('{address}',0)"));
    let family = if to.contains(':') { "AF_INET6" } else { "AF_INET" };
    let server = format!(
        "import socket,hashlib\n\
         s=socket.socket(socket.{family});s.setsockopt(1,2,1);s.bind(('{to}',7700));s.listen(1)\n\
         print('listening',flush=True)\n\
         c,_=s.accept();h=hashlib.sha256();n=0\n\
         while n<2000000:\n\
         \u{20}d=c.recv(65536);assert d;h.update(d);n+=len(d)\n\
         c.sendall(h.hexdigest().encode())\n"
    );
    let client = format!(
        "import socket,hashlib,os\n\
         d=os.urandom(2000000)\n\
         c=socket.create_connection(('{to}',7700),30,{source});c.sendall(d)\n\
         a=b''\n\
         while len(a)<64:\n\
         \u{20}p=c.recv(64);assert p;a+=p\n\
         assert a.decode()==hashlib.sha256(d).hexdigest()\n"
    );
    let directory = tempfile::tempdir().expect("a directory");
    let mut command = at.command("timeout");
    command.args(["60", "python3", "-c", &server]);
    let mut listener =
        Process::start("listener", command, directory.path().join("log")).expect("it starts");
    listener.wait_until(READY, |process| process.log().contains("listening")).expect("it listens");
    let done = from.run("timeout", &["60", "python3", "-c", &client]);
    assert!(done.is_ok(), "{done:?}\nlistener: {}\n{}", listener.log(), account());
}
