//! Ports and the steering program on real veth pairs: forwarding without a copy, exact accounts
//! under overload, several queues, and the errors of setting up. Needs root.

mod namespace;

use std::collections::HashSet;
use std::convert::identity;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use namespace::{Namespace, frame, number, veth};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use xsk::{
    AttachMode, CopyMode, Frame, Lane, Pool, Port, PortCounters, Sink, Steer, Umem, XdpOptions,
    XdpPort, XskError,
};

const SMALL: XdpOptions = XdpOptions { ring_entries: 64, copy: CopyMode::Auto };

/// Opens a port in a namespace, without a program.
fn open(inside: &Namespace, interface: &str, pool: &mut Pool, options: XdpOptions) -> Port {
    Port::Xdp(inside.enter(|| XdpPort::open(interface, 0, 1, pool, options)).expect(interface))
}

/// Opens a port in a namespace behind an attached steering program.
fn steered(
    inside: &Namespace,
    interface: &str,
    pool: &mut Pool,
    options: XdpOptions,
) -> (Port, Steer) {
    inside.enter(|| {
        let port = XdpPort::open(interface, 0, 1, pool, options).expect(interface);
        let mut steer = Steer::load(interface).expect("to load");
        for lane in port.lanes() {
            steer.register(lane).expect("to register");
        }
        assert!(matches!(steer.attach().expect("to attach"), AttachMode::Native));
        (Port::Xdp(port), steer)
    })
}

fn counted(steer: &Steer, name: &str) -> u64 {
    steer.counters().iter().find(|one| one.name == name).expect(name).packets
}

fn to_worker(steer: &Steer) -> u64 {
    let counters = steer.counters();
    counters.iter().filter(|one| one.name.starts_with("to_worker")).map(|one| one.packets).sum()
}

/// Sends a batch and waits until the kernel has taken it.
fn send_all(port: &mut Port, pool: &mut Pool, packets: impl IntoIterator<Item = Vec<u8>>) {
    let mut batch = Vec::new();
    for packet in packets {
        let mut frame = pool.take().expect("a frame to send");
        frame.push_back(packet.len()).expect("room").copy_from_slice(&packet);
        batch.push(frame);
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        port.send(&mut batch, pool);
        if port.flush(pool) == 0 && batch.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "the interface takes no packets");
    }
}

/// Receives until nothing has come for a tenth of a second.
fn drain(port: &mut Port, pool: &mut Pool, mut each: impl FnMut(&Frame)) {
    let mut batch = Vec::new();
    let mut quiet = Instant::now();
    while quiet.elapsed() < Duration::from_millis(100) {
        if port.receive(pool, &mut batch, 64, identity).packets > 0 {
            quiet = Instant::now();
        }
        batch.drain(..).for_each(|frame| {
            each(&frame);
            pool.give(frame);
        });
    }
}

#[test]
fn ten_thousand_frames_cross_two_interfaces_without_a_copy() {
    const FRAMES: u64 = 10_000;
    let (left, gateway, right) =
        (Namespace::new("left"), Namespace::new("gateway"), Namespace::new("right"));
    veth((&left, "l0"), (&gateway, "a0"), 1, 1500);
    veth((&gateway, "b0"), (&right, "r0"), 1, 1500);
    let umem = Umem::new(16384, 2048, true).unwrap();
    let mut outside = umem.pool(0..8192);
    let mut pool = umem.pool(8192..16384);
    let mut source = open(&left, "l0", &mut outside, XdpOptions::default());
    let (mut a0, a0_steer) = steered(&gateway, "a0", &mut pool, XdpOptions::default());
    let (mut b0, _b0_steer) = steered(&gateway, "b0", &mut pool, XdpOptions::default());
    let (mut target, target_steer) = steered(&right, "r0", &mut outside, XdpOptions::default());
    let (to_gateway, to_right) = (gateway.mac("a0"), right.mac("r0"));

    let mut seen = HashSet::new();
    let mut batch = Vec::new();
    for first in (0..FRAMES).step_by(50) {
        let packets = (first..first + 50)
            .map(|n| frame(to_gateway, [10, 2, 0, 2], 60 + n as usize % 1400, n));
        send_all(&mut source, &mut outside, packets);
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut left = 50;
        while left > 0 {
            assert!(Instant::now() < deadline, "{left} of a batch at {first} are missing");
            left -= a0.receive(&mut pool, &mut batch, 64, identity).packets;
            for frame in &mut batch {
                frame.bytes_mut()[..6].copy_from_slice(&to_right);
            }
            // The very same frames: what A received is what B sends.
            b0.send(&mut batch, &mut pool);
            b0.flush(&mut pool);
            assert!(batch.is_empty());
        }
        while seen.len() < first as usize + 50 {
            assert!(Instant::now() < deadline, "the target got {} frames", seen.len());
            target.receive(&mut outside, &mut batch, 64, identity);
            for frame in batch.drain(..) {
                let n = number(frame.bytes());
                assert_eq!(frame.len(), 60 + n as usize % 1400);
                assert!(seen.insert(n), "frame {n} twice");
                outside.give(frame);
            }
        }
    }
    for (port, steer) in [(&a0, &a0_steer), (&target, &target_steer)] {
        let counters = port.counters();
        assert_eq!((counters.rx_packets, counters.lost()), (FRAMES, 0));
        assert_eq!(counted(steer, "to_worker_transit"), FRAMES);
        assert_eq!(counted(steer, "drop_no_socket"), 0);
    }
    let sent = b0.counters();
    assert_eq!((sent.tx_packets, sent.lost()), (FRAMES, 0));
    assert_eq!(sent.tx_bytes, a0.counters().rx_bytes);
    // Every frame came back: four fill rings are what is missing from the pools.
    b0.flush(&mut pool);
    source.flush(&mut outside);
    assert_eq!((pool.free(), outside.free()), (8192 - 2 * 2048, 8192 - 2 * 2048));
}

/// Redirected by the program = received by the port + lost by name, whatever the load.
fn assert_closed(steer: &Steer, counters: PortCounters) {
    let lost = counters.rx_ring_full + counters.rx_no_frame + counters.rx_oversize;
    assert_eq!(to_worker(steer), counters.rx_packets + lost, "{counters:?}");
}

#[test]
fn accounts_close_under_overload() {
    let (left, gateway) = (Namespace::new("left"), Namespace::new("gateway"));
    veth((&left, "l0"), (&gateway, "a0"), 1, 9000);
    left.run("ip addr add 10.1.0.2/24 dev l0");
    left.run("ip route add 10.2.0.0/24 via 10.1.0.1");
    let umem = Umem::new(8192, 4096, false).unwrap();
    let mut outside = umem.pool(0..8192);
    let mut source = open(&left, "l0", &mut outside, XdpOptions::default());
    // Few frames and short rings, in chunks that a long packet does not fit.
    let small = Umem::new(160, 2048, false).unwrap();
    let mut pool = small.pool(0..160);
    let (mut port, steer) = steered(&gateway, "a0", &mut pool, SMALL);
    let mac = gateway.mac("a0");
    let mac_text = gateway.run("cat /sys/class/net/a0/address");
    left.run(&format!("ip neigh add 10.1.0.1 lladdr {} dev l0", mac_text.trim()));

    // Ring full: nobody reads.
    let packets = |len: usize| (0..256).map(move |n| frame(mac, [10, 2, 0, 2], len, n));
    (0..10).for_each(|_| send_all(&mut source, &mut outside, packets(60)));
    drain(&mut port, &mut pool, |_| {});
    let full = port.counters();
    assert_eq!(full.rx_packets, 64, "what the ring holds");
    assert!(full.rx_ring_full + full.rx_no_frame > 1000, "{full:?}");
    assert_closed(&steer, full);

    // No frame: the reader keeps what it reads until the pool is empty.
    let mut kept = Vec::new();
    for _ in 0..10 {
        send_all(&mut source, &mut outside, packets(60));
        while port.receive(&mut pool, &mut kept, 64, identity).packets > 0 {}
    }
    assert_eq!((kept.len(), pool.free()), (160, 0));
    let starved = port.counters();
    assert!(starved.rx_no_frame > full.rx_no_frame, "{starved:?}");
    assert_closed(&steer, starved);
    kept.drain(..).for_each(|frame| pool.give(frame));

    // Longer than a chunk has room for, mixed with others.
    drain(&mut port, &mut pool, |_| {});
    let before = port.counters();
    for _ in 0..20 {
        send_all(&mut source, &mut outside, packets(1900).take(10));
        send_all(&mut source, &mut outside, packets(1792).take(10));
        drain(&mut port, &mut pool, |frame| assert_eq!(frame.len(), 1792));
    }
    let long = port.counters() - before;
    assert_eq!((long.rx_oversize, long.rx_packets, long.lost()), (200, 200, 200));
    assert_closed(&steer, port.counters());

    // In several buffers: dropped by the program itself, under its own name.
    let socket = left.enter(|| UdpSocket::bind("10.1.0.2:0")).unwrap();
    for _ in 0..5 {
        assert_eq!(socket.send_to(&[7; 8000], "10.2.0.2:9").unwrap(), 8000);
    }
    drain(&mut port, &mut pool, |_| panic!("nothing arrives"));
    assert_eq!(counted(&steer, "drop_oversize"), 5);
    assert_closed(&steer, port.counters());

    // Flooded while reading, at full speed on both sides.
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (0..800).for_each(|_| send_all(&mut source, &mut outside, packets(60)));
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        let mut batch = Vec::new();
        while !stop.load(std::sync::atomic::Ordering::Relaxed) {
            port.receive(&mut pool, &mut batch, 8, identity);
            batch.drain(..).for_each(|frame| pool.give(frame));
        }
    });
    drain(&mut port, &mut pool, |_| {});
    let flooded = port.counters();
    assert_closed(&steer, flooded);
    let offered = source.counters();
    let seen: u64 = steer.counters().iter().map(|one| one.packets).sum();
    let sent = offered.tx_packets - offered.tx_dropped + 5;
    // Between the two lies veth's own queue of 256 packets, with its own count of drops.
    let veth_dropped: u64 =
        left.run("cat /sys/class/net/l0/statistics/tx_dropped").trim().parse().unwrap();
    assert!(seen <= sent && sent <= seen + veth_dropped, "{sent} {seen} {veth_dropped}");
}

#[test]
fn each_worker_gets_its_own_queues() {
    let (left, gateway) = (Namespace::new("left"), Namespace::new("gateway"));
    veth((&left, "l0"), (&gateway, "a0"), 3, 1500);
    let umem = Umem::new(4096, 2048, false).unwrap();
    let mut outside = umem.pool(0..2048);
    let mut pools = [umem.pool(2048..3072), umem.pool(3072..4096)];
    let mut sources: Vec<Port> = (0..3)
        .map(|worker| left.enter(|| XdpPort::open("l0", worker, 3, &mut outside, SMALL)).unwrap())
        .map(Port::Xdp)
        .collect();
    let mut steer = gateway.enter(|| Steer::load("a0")).unwrap();
    let mut workers = Vec::new();
    for (worker, pool) in pools.iter_mut().enumerate() {
        let port = gateway.enter(|| XdpPort::open("a0", worker, 2, pool, SMALL)).unwrap();
        let queues: Vec<u32> = port.queues().map(|one| one.0).collect();
        assert_eq!(queues, [vec![0, 2], vec![1]][worker]);
        port.lanes().for_each(|lane| steer.register(lane).unwrap());
        workers.push(Port::Xdp(port));
    }
    assert!(matches!(gateway.enter(|| steer.attach()).unwrap(), AttachMode::Native));
    let mac = gateway.mac("a0");
    for (queue, source) in sources.iter_mut().enumerate() {
        let first = queue as u64 * 100;
        let packets = (first..first + 20).map(|n| frame(mac, [10, 2, 0, 2], 64, n));
        send_all(source, &mut outside, packets);
    }
    for (worker, expected) in [vec![0, 2], vec![1]].into_iter().enumerate() {
        let (port, pool) = (&mut workers[worker], &mut pools[worker]);
        // One descriptor tells of all the queues.
        let fd = port.as_fd().unwrap();
        let wait = Timespec { tv_sec: 5, tv_nsec: 0 };
        let ready = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&wait)).unwrap();
        assert_eq!(ready, 1);
        let mut batch = Vec::new();
        assert_eq!(port.receive(pool, &mut batch, 10, identity).packets, 10);
        if worker == 0 {
            let from_first = batch.iter().filter(|frame| number(frame.bytes()) < 100).count();
            assert_eq!(from_first, 5, "both queues have their share of a batch");
        }
        let mut got: Vec<u64> = batch.iter().map(|frame| number(frame.bytes())).collect();
        batch.drain(..).for_each(|frame| pool.give(frame));
        drain(port, pool, |frame| got.push(number(frame.bytes())));
        got.sort_unstable();
        let all = expected.into_iter().flat_map(|queue| queue * 100..queue * 100 + 20);
        assert_eq!(got, all.collect::<Vec<u64>>());
    }
    assert_eq!(to_worker(&steer), 60);
}

/// Two workers that share the one queue of `a0`, and get what is to be forwarded by its addresses.
fn shared(gateway: &Namespace, pools: &mut [Pool; 2]) -> (Vec<Port>, Steer) {
    let mut steer = gateway.enter(|| Steer::load("a0")).unwrap();
    let mut workers: Vec<Port> = Vec::new();
    for (worker, pool) in pools.iter_mut().enumerate() {
        let port = gateway.enter(|| XdpPort::open("a0", worker, 2, pool, SMALL)).unwrap();
        let lanes: Vec<(u32, u32, u32)> =
            port.lanes().map(|lane| (lane.queue, lane.index, lane.count)).collect();
        assert_eq!(lanes, [(0, worker as u32, 2)]);
        port.lanes().for_each(|lane| steer.register(lane).unwrap());
        workers.push(Port::Xdp(port));
    }
    steer.set_spread(true);
    assert!(workers[0].feeds_others() && !workers[1].feeds_others());
    assert!(matches!(gateway.enter(|| steer.attach()).unwrap(), AttachMode::Native));
    (workers, steer)
}

#[test]
fn workers_share_a_queue_and_its_frames() {
    const ROUNDS: u64 = 40;
    let (left, gateway) = (Namespace::new("left"), Namespace::new("gateway"));
    veth((&left, "l0"), (&gateway, "a0"), 1, 1500);
    let umem = Umem::new(2048, 2048, false).unwrap();
    let mut outside = umem.pool(0..1024);
    let mut pools = [umem.pool(1024..1536), umem.pool(1536..2048)];
    let mut source = open(&left, "l0", &mut outside, SMALL);
    // What the second one gets is the first one's, so that one would run dry alone.
    pools[0].share(512);
    pools[1].share(0);
    let (mut workers, steer) = shared(&gateway, &mut pools);
    let mac = gateway.mac("a0");
    let mut owners = [0u64; 32];
    let mut received = [0u64; 2];
    for round in 0..ROUNDS {
        let packets = (0..32u8).map(|n| frame(mac, [10, 2, 0, n], 64, round * 32 + u64::from(n)));
        send_all(&mut source, &mut outside, packets);
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut batch: Vec<Frame> = Vec::new();
        let before = received;
        while received[0] + received[1] < (round + 1) * 32 {
            assert!(Instant::now() < deadline, "{received:?} of round {round}: frames ran out");
            for worker in 0..2 {
                let (port, pool) = (&mut workers[worker], &mut pools[worker]);
                received[worker] += port.receive(pool, &mut batch, 64, identity).packets as u64;
                // Whoever received it sends it back, from a frame that the first one fed.
                batch
                    .iter()
                    .for_each(|frame| owners[number(frame.bytes()) as usize % 32] |= 1 << worker);
                while !batch.is_empty() {
                    port.send(&mut batch, pool);
                    port.flush(pool);
                }
            }
        }
        assert!((0..2).all(|worker| received[worker] > before[worker]), "{received:?}");
    }
    assert!(owners.iter().all(|workers| matches!(workers, 1 | 2)), "one worker each: {owners:?}");
    assert_eq!(received[0] + received[1], ROUNDS * 32);
    let back = left.run("cat /sys/class/net/l0/statistics/rx_packets");
    assert!(back.trim().parse::<u64>().unwrap() >= ROUNDS * 32, "{back} came back");
    assert_eq!(to_worker(&steer), ROUNDS * 32);
    assert_eq!(counted(&steer, "drop_no_socket"), 0);
    for port in &workers {
        assert_eq!(port.counters().lost(), 0);
    }
}

/// Both sockets of a queue lose packets in both ways, and the kernel tells each of them of all that found
/// the fill ring empty.
#[test]
fn long_packets_and_missing_frames_of_a_shared_queue_are_told_apart() {
    const FRAMES: usize = 80;
    let (left, gateway) = (Namespace::new("left"), Namespace::new("gateway"));
    veth((&left, "l0"), (&gateway, "a0"), 1, 9000);
    let umem = Umem::new(4096, 4096, false).unwrap();
    let mut outside = umem.pool(0..4096);
    let mut source = open(&left, "l0", &mut outside, XdpOptions::default());
    // Chunks that a long packet does not fit.
    let small = Umem::new(FRAMES + 1, 2048, false).unwrap();
    let mut pools = [small.pool(0..FRAMES), small.pool(FRAMES..FRAMES + 1)];
    let (mut workers, steer) = shared(&gateway, &mut pools);
    let mac = gateway.mac("a0");
    let sum = |workers: &[Port]| workers[0].counters() + workers[1].counters();
    let mut kept = Vec::new();
    let mut sent = 0;
    let mut offer = |workers: &mut [Port], len: usize, rounds: u64| {
        for _ in 0..rounds {
            let packets = (0..64u8).map(|n| frame(mac, [10, 2, 0, n], len, n.into()));
            send_all(&mut source, &mut outside, packets);
            sent += 64;
            let deadline = Instant::now() + Duration::from_secs(10);
            let is_open = |workers: &[Port]| {
                let all = sum(workers);
                all.rx_packets + all.rx_ring_full + all.rx_no_frame + all.rx_oversize < sent
            };
            while is_open(workers) {
                assert!(Instant::now() < deadline, "{sent} sent, {:?}", sum(workers));
                for (port, pool) in workers.iter_mut().zip(&mut pools) {
                    port.receive(pool, &mut kept, 64, identity);
                }
            }
        }
    };
    // What is received is kept, until there is no frame.
    offer(&mut workers, 60, 10);
    let starved = sum(&workers);
    assert_eq!((starved.rx_oversize, starved.rx_ring_full), (0, 0), "{starved:?}");
    assert_eq!(starved.rx_no_frame, 640 - FRAMES as u64);
    offer(&mut workers, 1900, 3);
    let long = sum(&workers) - starved;
    assert_eq!((long.rx_oversize, long.lost()), (192, 192), "{long:?}");
    assert_eq!(workers[1].counters().rx_oversize, 0, "the first one counts for both");
    assert_closed(&steer, sum(&workers));
}

#[test]
fn the_sink_takes_the_runs_frames_and_stamps_them() {
    const SIGNATURE: [u8; 8] = *b"\xfePRGRN\x00\x01";
    let (left, right) = (Namespace::new("left"), Namespace::new("right"));
    veth((&left, "l0"), (&right, "r0"), 1, 1500);
    right.run("ip addr add 10.2.0.2/24 dev r0");
    let umem = Umem::new(1024, 2048, false).unwrap();
    let (mut outside, mut pool) = (umem.pool(0..512), umem.pool(512..1024));
    let mut source = open(&left, "l0", &mut outside, SMALL);
    let (mut target, mut sink) = right.enter(|| {
        let port = XdpPort::open("r0", 0, 1, &mut pool, SMALL).unwrap();
        let mut sink = Sink::load("r0", SIGNATURE).unwrap();
        port.queues().for_each(|(queue, socket)| sink.register(queue, socket).unwrap());
        sink.attach().unwrap();
        (Port::Xdp(port), sink)
    });
    let kernel = right.enter(|| UdpSocket::bind("10.2.0.2:12288")).unwrap();
    kernel.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mac = right.mac("r0");
    let ours = frame(mac, [10, 2, 0, 2], 64, u64::from_be_bytes(SIGNATURE));
    let other = frame(mac, [10, 2, 0, 2], 64, 1);
    // The same signature over IPv6, and behind IPv4 options, which the generator never sends.
    let mut ours_v6 = vec![0; 70];
    ours_v6[..6].copy_from_slice(&mac);
    ours_v6[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
    ours_v6[20] = 17;
    ours_v6[62..70].copy_from_slice(&SIGNATURE);
    let mut options = ours.clone();
    options[14] = 0x46;

    let before = monotonic_ns();
    for packet in [&other, &ours, &options, &ours_v6] {
        send_all(&mut source, &mut outside, [packet.clone()]);
    }
    let mut seen = Vec::new();
    let mut last = before;
    drain(&mut target, &mut pool, |frame| {
        let time = frame.metadata_u64().unwrap();
        assert!(last <= time && time <= monotonic_ns(), "{last} {time}");
        last = time;
        seen.push(frame.bytes().to_vec());
    });
    assert_eq!(seen, [ours, ours_v6]);
    assert_eq!(kernel.recv(&mut [0; 100]).unwrap(), 22, "the other frame went to the kernel");
    let counts = sink.counters().map(|one| (one.name, one.packets));
    assert_eq!(counts[0], ("to_socket", 2));
    assert!(counts[1].0 == "pass" && counts[1].1 >= 2);
    assert_eq!(counts[2..].iter().map(|one| one.1).sum::<u64>(), 0);
    assert!(right.enter(|| sink.detach()).unwrap());
}

fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[test]
fn an_interface_that_is_down_costs_no_unnamed_packet() {
    let (left, right) = (Namespace::new("left"), Namespace::new("right"));
    veth((&left, "l0"), (&right, "r0"), 1, 1500);
    let umem = Umem::new(512, 2048, false).unwrap();
    let mut pool = umem.pool(0..512);
    let mut port = open(&left, "l0", &mut pool, SMALL);
    let mut batch = Vec::new();
    let mut load = |pool: &mut Pool, count: usize, len: usize| {
        for n in 0..count {
            let mut one = pool.take().unwrap();
            let bytes = frame([2; 6], [10, 2, 0, 2], 64, n as u64);
            one.push_back(len).unwrap().copy_from_slice(&bytes[..len]);
            batch.push(one);
        }
        std::mem::take(&mut batch)
    };
    let free = pool.free();

    // An empty packet is no packet.
    let mut frames = load(&mut pool, 1, 0);
    assert_eq!(port.send(&mut frames, &mut pool), 1);
    assert_eq!((port.counters().tx_invalid, port.counters().tx_packets), (1, 0));

    // The peer is down: no carrier, the device drops and says so.
    right.run("ip link set r0 down");
    let mut frames = load(&mut pool, 10, 64);
    assert_eq!(port.send(&mut frames, &mut pool), 10);
    assert_eq!(port.flush(&mut pool), 0);
    let counters = port.counters();
    assert_eq!((counters.tx_packets, counters.tx_dropped), (10, 10), "{counters:?}");
    assert_eq!(pool.free(), free);

    // We are down: packets wait in the ring, and none is left for the worker to wait for.
    left.run("ip link set l0 down");
    let mut frames = load(&mut pool, 100, 64);
    assert_eq!(port.send(&mut frames, &mut pool), 64);
    // The quickest of some: on a busy machine another program may come in between.
    let mut flush = || {
        let begin = Instant::now();
        assert_eq!(port.flush(&mut pool), 0);
        begin.elapsed()
    };
    let quickest = (0..5).map(|_| flush()).min();
    assert!(quickest < Some(Duration::from_millis(100)), "flush does not wait");
    assert_eq!((frames.len(), port.counters().tx_ring_full), (36, 36));
    assert_eq!(port.send(&mut frames, &mut pool), 36);
    assert_eq!((port.counters().tx_dropped, port.flush(&mut pool)), (46, 0));

    // Up again: what waited leaves.
    right.run("ip link set r0 up");
    left.run("ip link set l0 up");
    let deadline = Instant::now() + Duration::from_secs(5);
    while pool.free() < free || port.flush(&mut pool) > 0 {
        assert!(Instant::now() < deadline);
        port.flush(&mut pool);
    }
    assert_eq!(port.counters().tx_packets, 110);
    let mut frames = load(&mut pool, 10, 64);
    assert_eq!(port.send(&mut frames, &mut pool), 10);
    while port.flush(&mut pool) > 0 {
        assert!(Instant::now() < deadline);
    }
    assert_eq!(port.counters().tx_packets, 120);
}

#[test]
fn a_port_outlives_its_interface_going_down_and_going_away() {
    let (left, gateway) = (Namespace::new("left"), Namespace::new("gateway"));
    veth((&left, "l0"), (&gateway, "a0"), 1, 1500);
    veth((&left, "l1"), (&gateway, "b0"), 1, 1500);
    let umem = Umem::new(2048, 2048, false).unwrap();
    let (mut outside, mut pool) = (umem.pool(0..1024), umem.pool(1024..2048));
    let (mut port, mut steer) = steered(&gateway, "a0", &mut pool, SMALL);
    let mut source = open(&left, "l0", &mut outside, SMALL);
    let mac = gateway.mac("a0");
    let mut crosses = |port: &mut Port, pool: &mut Pool| {
        let packets = (0..10).map(|n| frame(mac, [10, 2, 0, 2], 64, n));
        send_all(&mut source, &mut outside, packets);
        let mut count = 0;
        drain(port, pool, |_| count += 1);
        count
    };
    assert_eq!(crosses(&mut port, &mut pool), 10);
    gateway.run("ip link set a0 down");
    drain(&mut port, &mut pool, |_| panic!("nothing arrives"));
    gateway.run("ip link set a0 up");
    assert_eq!(crosses(&mut port, &mut pool), 10, "down and up changes nothing");

    gateway.run("ip link del a0");
    drain(&mut port, &mut pool, |_| panic!("nothing arrives"));
    let mut batch = vec![pool.take().unwrap()];
    batch[0].push_back(60).unwrap();
    assert_eq!(port.send(&mut batch, &mut pool), 1);
    assert_eq!(port.flush(&mut pool), 0, "it waits for no interface that never returns");
    batch.push(pool.take().unwrap());
    batch[0].push_back(60).unwrap();
    let free = pool.free();
    assert_eq!(port.send(&mut batch, &mut pool), 1);
    assert_eq!((port.flush(&mut pool), pool.free()), (0, free + 1));
    let counters = port.counters();
    assert_eq!((counters.rx_packets, counters.tx_packets, counters.tx_dropped), (20, 2, 2));
    assert!(!gateway.enter(|| steer.detach()).unwrap());
    // A new port cannot join the dead one's memory registration, and works all the same.
    let mut other = open(&gateway, "b0", &mut pool, SMALL);
    assert_eq!(other.receive(&mut pool, &mut batch, 64, identity).packets, 0);
}

#[test]
fn setting_up_fails_with_a_sentence() {
    let gateway = Namespace::new("gateway");
    veth((&gateway, "a0"), (&gateway, "a1"), 1, 1500);
    let umem = Umem::new(1024, 2048, false).unwrap();
    let mut pool = umem.pool(0..1024);
    let mut open = |interface: &str, workers| {
        gateway.enter(|| XdpPort::open(interface, 0, workers, &mut pool, SMALL))
    };
    let error = open("eth9", 1).unwrap_err().to_string();
    assert!(error.starts_with("interface eth9 not found; interfaces here: lo, a"), "{error}");
    assert!(matches!(open("an-interface-name-too-long", 1), Err(XskError::NoInterface { .. })));
    assert!(matches!(gateway.enter(|| Steer::load("eth9")), Err(XskError::NoInterface { .. })));

    let first = open("a0", 1).unwrap();
    let begin = Instant::now();
    let error = open("a0", 1).unwrap_err();
    assert!(matches!(error, XskError::QueueBusy { queue: 0, .. }), "{error}");
    assert!(begin.elapsed() >= Duration::from_secs(1), "a restart gets a second");
    // A quick restart: the kernel has not yet freed the queue when we bind again.
    assert!(first.queues().count() == 1 && !first.is_zero_copy());
    drop(first);
    let again = open("a0", 1).unwrap();
    assert_eq!(again.queues().next().unwrap().0, 0);
    // A live socket whose memory is joined by another interface's.
    let other = open("a1", 1).unwrap();
    drop(again);
    drop(other);
    open("a0", 1).unwrap();
}

#[test]
fn without_privileges_the_missing_capability_is_named() {
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
    let only = |effective: CapabilitySet| {
        let inheritable = CapabilitySet::empty();
        let sets = CapabilitySets { effective, permitted: effective, inheritable };
        set_capabilities(None, sets).unwrap();
    };
    let gateway = Namespace::new("gateway");
    veth((&gateway, "a0"), (&gateway, "a1"), 1, 1500);
    let umem = Umem::new(256, 2048, false).unwrap();
    let mut pool = umem.pool(0..256);
    gateway.enter(|| {
        only(CapabilitySet::empty());
        let error = XdpPort::open("a0", 0, 1, &mut pool, SMALL).unwrap_err().to_string();
        assert!(error.contains("CAP_NET_RAW"), "{error}");
        let error = Steer::load("a0").unwrap_err().to_string();
        assert!(error.contains("CAP_BPF"), "{error}");
    });
    // 64 MiB are above the usual limit on locked memory, which CAP_IPC_LOCK lifts.
    let mut large = Umem::new(32768, 2048, false).unwrap().pool(0..32768);
    gateway.enter(|| {
        use rustix::process::{Resource, Rlimit, setrlimit};
        let limit = Rlimit { current: Some(8 << 20), maximum: Some(8 << 20) };
        setrlimit(Resource::Memlock, limit).unwrap();
        only(CapabilitySet::NET_RAW | CapabilitySet::NET_ADMIN);
        let error = XdpPort::open("a0", 0, 1, &mut large, SMALL).unwrap_err().to_string();
        assert!(error.contains("too low for 64 MiB"), "{error}");
    });
    gateway.enter(|| {
        let mut steer = Steer::load("a0").unwrap();
        only(CapabilitySet::NET_RAW);
        let error = steer.attach().unwrap_err().to_string();
        assert!(error.contains("CAP_NET_ADMIN"), "{error}");
    });
    let mut steer = gateway.enter(|| Steer::load("a0")).unwrap();
    let socket = gateway.enter(|| XdpPort::open("a0", 0, 1, &mut pool, SMALL)).unwrap();
    let lane = socket.lanes().next().unwrap();
    assert!(steer.register(Lane { queue: 256, ..lane }).is_err());
    assert!(steer.register(Lane { index: 64, ..lane }).is_err());
}
