//! What remains on an interface when the gateway is gone, and what a new one does with it. The
//! gateway of these tests is this test program itself, started again as a child. Needs root.

mod namespace;

use std::convert::identity;
use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use namespace::{Namespace, run, veth};
use xsk::{
    AttachMode, AttachWish, Port, Steer, Umem, XdpOptions, XdpPort, XskError, remove_left,
    remove_stale,
};

/// Set in the child: the namespace to be the gateway of.
const GATEWAY: &str = "XSK_TEST_GATEWAY";

/// A sender, a gateway that would forward, a receiver.
struct Path {
    left: Namespace,
    gateway: Namespace,
    right: Namespace,
    sender: UdpSocket,
    receiver: UdpSocket,
}

impl Path {
    fn new() -> Path {
        let (left, gateway, right) =
            (Namespace::new("left"), Namespace::new("gateway"), Namespace::new("right"));
        veth((&left, "l0"), (&gateway, "a0"), 1, 1500);
        veth((&gateway, "b0"), (&right, "r0"), 1, 1500);
        left.run("ip addr add 10.1.0.2/24 dev l0");
        gateway.run("ip addr add 10.1.0.1/24 dev a0");
        gateway.run("ip addr add 10.2.0.1/24 dev b0");
        right.run("ip addr add 10.2.0.2/24 dev r0");
        left.run("ip route add default via 10.1.0.1");
        right.run("ip route add default via 10.2.0.1");
        gateway.run("sysctl -qw net.ipv4.ip_forward=1");
        let sender = left.enter(|| UdpSocket::bind("10.1.0.2:9000")).unwrap();
        let receiver = right.enter(|| UdpSocket::bind("10.2.0.2:9000")).unwrap();
        receiver.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        Path { left, gateway, right, sender, receiver }
    }

    /// Sends 20 packets through the gateway; how many arrive.
    fn transit(&self) -> usize {
        for _ in 0..20 {
            self.sender.send_to(b"to be protected", "10.2.0.2:9000").unwrap();
        }
        (0..20).take_while(|_| self.receiver.recv(&mut [0; 64]).is_ok()).count()
    }

    fn gateway_answers(&self) -> bool {
        self.left.try_run("ping -c 2 -i 0.2 -W 2 10.1.0.1")
            && self.right.try_run("ping -c 2 -i 0.2 -W 2 10.2.0.1")
    }
}

/// Loads, opens, registers and attaches as a gateway does.
fn serve(interface: &str, pool: &mut xsk::Pool) -> Result<(Port, Steer, AttachMode), XskError> {
    let mut steer = Steer::load(interface)?;
    let locals = ["10.1.0.1", "10.2.0.1"].map(|text| text.parse().unwrap());
    steer.set_local_addresses(&locals)?;
    let port = XdpPort::open(interface, 0, 1, pool, XdpOptions::default())?;
    port.lanes().try_for_each(|lane| steer.register(lane))?;
    let mode = steer.attach()?;
    Ok((Port::Xdp(port), steer, mode))
}

/// The child: a gateway that receives, says how much, and never stops by itself.
fn gateway(namespace: &str) -> ! {
    namespace::enter(namespace);
    let umem = Umem::new(16384, 2048, false).unwrap();
    let mut pool = umem.pool(0..16384);
    let mut ports: Vec<(Port, Steer, AttachMode)> =
        ["a0", "b0"].map(|interface| serve(interface, &mut pool).unwrap()).into();
    println!("ready");
    let (mut batch, mut total) = (Vec::new(), 0);
    loop {
        for (port, _, _) in &mut ports {
            total += port.receive(&mut pool, &mut batch, 64, identity).packets;
        }
        if !batch.is_empty() {
            println!("received {total}");
        }
        batch.drain(..).for_each(|frame| pool.give(frame));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Kills its process when dropped, so that a failed test leaves none.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_killed_gateway_lets_nothing_through_and_a_new_one_takes_over() {
    if let Ok(namespace) = std::env::var(GATEWAY) {
        gateway(&namespace);
    }
    let path = Path::new();
    assert_eq!(path.transit(), 20, "without a gateway the kernel forwards");

    let name = "a_killed_gateway_lets_nothing_through_and_a_new_one_takes_over";
    let child = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env(GATEWAY, path.gateway.name())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut child = Killed(child);
    let mut said = BufReader::new(child.0.stdout.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap() == "ready"));
    assert_eq!(path.transit(), 0, "the worker has it");
    assert!(said.any(|line| line.unwrap() == "received 20"));
    assert!(path.gateway_answers());

    // Killed while packets come: before, during and after, none gets through.
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| {
            for _ in 0..20_000 {
                let _ = path.sender.send_to(b"to be protected", "10.2.0.2:9000");
            }
        });
        std::thread::sleep(Duration::from_millis(5));
        child.0.kill().unwrap();
        child.0.wait().unwrap();
        flood.join().unwrap();
    });
    assert_eq!(path.transit(), 0, "the program stays and drops");
    assert!(path.gateway_answers(), "the host itself is reachable");

    // A new gateway replaces the program that the killed one left, without a gap.
    let umem = Umem::new(8192, 2048, false).unwrap();
    let mut pool = umem.pool(0..8192);
    let (mut port, mut steer, mode) =
        path.gateway.enter(|| serve("a0", &mut pool)).expect("to take over");
    assert!(matches!(mode, AttachMode::Native));
    assert_eq!(path.transit(), 0);
    let mut batch = Vec::new();
    assert_eq!(port.receive(&mut pool, &mut batch, 64, identity).packets, 20);
    assert!(path.gateway_answers());

    // A clean stop gives the interface back to the kernel; the other one is tidied up by hand.
    assert!(path.gateway.enter(|| steer.detach()).unwrap());
    assert!(!path.gateway.enter(|| steer.detach()).unwrap(), "not there any more");
    assert!(path.gateway.enter(|| remove_stale("b0")).unwrap());
    assert!(!path.gateway.enter(|| remove_stale("b0")).unwrap());
    assert_eq!(path.transit(), 20);
    assert!(!path.gateway.run("ip link show").contains("xdp"));
}

#[test]
fn a_program_of_somebody_else_is_left_alone() {
    let gateway = Namespace::new("gateway");
    veth((&gateway, "a0"), (&gateway, "a1"), 1, 1500);
    let object = std::env::temp_dir().join(format!("xsk-foreign-{}.o", std::process::id()));
    let source = object.with_extension("c");
    let program =
        "__attribute__((section(\"xdp\"), used)) int foreign_one(void *ctx) { return 2; }";
    std::fs::write(&source, program).unwrap();
    run(&format!("clang -O2 -target bpf -c {} -o {}", source.display(), object.display()));
    gateway.run(&format!("ip link set dev a0 xdpdrv obj {} sec xdp", object.display()));
    let umem = Umem::new(8192, 2048, false).unwrap();
    let mut pool = umem.pool(0..8192);
    let error = gateway.enter(|| serve("a0", &mut pool)).err().unwrap().to_string();
    assert!(error.contains("already runs the XDP program foreign_one (id "), "{error}");
    assert!(!gateway.enter(|| remove_stale("a0")).unwrap());
    assert!(gateway.run("ip -d link show a0").contains("foreign_one"));

    // Off, as the error says; then ours goes on, somebody replaces it, and we leave that alone too.
    gateway.run("ip link set dev a0 xdp off");
    let (_port, mut steer, _) = gateway.enter(|| serve("a0", &mut pool)).unwrap();
    gateway.run(&format!("ip -force link set dev a0 xdpdrv obj {} sec xdp", object.display()));
    assert!(!gateway.enter(|| steer.detach()).unwrap());
    assert!(gateway.run("ip -d link show a0").contains("foreign_one"));
    std::fs::remove_file(object).unwrap();
    std::fs::remove_file(source).unwrap();
}

#[test]
fn the_newer_of_two_programs_of_ours_stays() {
    let gateway = Namespace::new("gateway");
    veth((&gateway, "a0"), (&gateway, "a1"), 1, 1500);
    gateway.enter(|| {
        let mut first = Steer::load("a0").unwrap();
        let mut second = Steer::load("a0").unwrap();
        first.attach().unwrap();
        second.attach().unwrap();
        assert!(!first.detach().unwrap(), "it is not the one on the interface");
        let ((index, id), (_, newer)) = (first.id().unwrap(), second.id().unwrap());
        assert!(!remove_left("a0", index, id).unwrap(), "it is the newer one's now");
        assert!(remove_left("a0", index, newer).unwrap());
        assert!(!remove_left("a0", index, newer).unwrap());
        second.attach().unwrap();
        assert!(second.detach().unwrap());
        assert!(!remove_stale("a0").unwrap());
        first.attach().unwrap();
        drop(first);
        assert!(remove_stale("a0").unwrap(), "dropping does not detach");
    });
    assert!(matches!(gateway.enter(|| remove_stale("eth9")), Err(XskError::NoInterface { .. })));
}

#[test]
fn where_the_driver_cannot_the_network_stack_runs_the_program() {
    let (left, gateway) = (Namespace::new("left"), Namespace::new("gateway"));
    veth((&left, "l0"), (&gateway, "a0"), 1, 1500);
    // veth takes a native program only with as many queues as its peer sends to.
    gateway.run("ip link del a0");
    let (l0, a0) = (left.name(), gateway.name());
    run(&format!(
        "ip link add l0 netns {l0} numtxqueues 2 type veth peer name a0 netns {a0} numrxqueues 1"
    ));
    left.run("ip link set l0 up");
    gateway.run("ip link set a0 up");
    left.run("ip addr add 10.1.0.2/24 dev l0");
    gateway.run("ip addr add 10.1.0.1/24 dev a0");
    left.run("ip route add default via 10.1.0.1");
    let umem = Umem::new(8192, 2048, false).unwrap();
    let mut pool = umem.pool(0..8192);
    let (mut port, first, mode) = gateway.enter(|| serve("a0", &mut pool)).unwrap();
    let AttachMode::Generic(Some(refusal)) = mode else { panic!("{mode:?}") };
    assert_eq!(refusal.raw_os_error(), Some(28), "ENOSPC: too few queues");

    let sender = left.enter(|| UdpSocket::bind("10.1.0.2:9000")).unwrap();
    for _ in 0..20 {
        sender.send_to(b"to be protected", "10.2.0.2:9000").unwrap();
    }
    let mut batch = Vec::new();
    for _ in 0..100 {
        port.receive(&mut pool, &mut batch, 64, identity);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(batch.len(), 20);
    assert!(left.try_run("ping -c 2 -i 0.2 -W 2 10.1.0.1"));
    let transit = first.counters()[0];
    assert_eq!((transit.name, transit.packets), ("to_worker_transit", 20));

    // Where native is asked for, generic is no answer.
    gateway.run("ip link add c0 type veth peer name c1");
    gateway.run("ip link add e0 numtxqueues 2 type veth peer name e1 numrxqueues 1");
    gateway.enter(|| {
        let mut asked = Steer::load("e1").unwrap();
        let error = asked.attach_as(AttachWish::Native).unwrap_err();
        assert!(matches!(error, XskError::Kernel { .. }), "{error}");
        assert!(!asked.detach().unwrap());
        let mut asked = Steer::load("c0").unwrap();
        let mode = asked.attach_as(AttachWish::Generic).unwrap();
        assert!(matches!(mode, AttachMode::Generic(None)));
        assert!(asked.detach().unwrap());
        let mode = asked.attach_as(AttachWish::Native).unwrap();
        assert!(matches!(mode, AttachMode::Native));
    });

    // A new program takes the same place, and only its own owner takes it off.
    drop(port);
    let (_port, mut second, mode) = gateway.enter(|| serve("a0", &mut pool)).unwrap();
    assert!(matches!(mode, AttachMode::Generic(None)));
    assert!(gateway.enter(|| second.detach()).unwrap());
}
