//! Which of several sockets of a queue a packet goes to: always one, the same for all packets of an
//! SA, and each its share of the SAs, whatever SPIs the daemons choose.

use super::*;

/// Murmur3's finalizer, and the share of the range that it falls into: what the program computes.
fn twin(whose: u32, count: u32) -> u32 {
    let mut key = whose;
    key = (key ^ (key >> 16)).wrapping_mul(0x85eb_ca6b);
    key = (key ^ (key >> 13)).wrapping_mul(0xc2b2_ae35);
    key ^= key >> 16;
    ((u64::from(key) * u64::from(count)) >> 32) as u32
}

/// Where an SA belongs: its SPI as it lies in the packet.
fn twin_of_spi(spi: u32, count: u32) -> u32 {
    twin(u32::from_ne_bytes(spi.to_be_bytes()), count)
}

/// The lane of each packet. Without its socket a packet dies, so each lane in turn is the only one that has
/// a socket.
fn lanes_of(bench: &mut Bench, packets: &[Vec<u8>], count: u32) -> Vec<u32> {
    let mut found: Vec<Vec<u32>> = vec![Vec::new(); packets.len()];
    for index in 0..count {
        // The kernel forgets it when it is closed; the one of `Bench::new` was lane 0.
        let socket = sys::xdp_socket().unwrap();
        let lane = Lane { queue: 0, index, count, socket: socket.as_fd() };
        bench.steer.register(lane).unwrap();
        for (packet, found) in packets.iter().zip(&mut found) {
            let input = ProgramInput { data_in: Some(packet), ..Default::default() };
            let program = &bench.steer.skeleton.progs.peregrine_steer;
            match program.test_run(input).unwrap().return_value {
                REDIRECT => found.push(index),
                DROP => {}
                other => panic!("action {other} for {packet:02x?}"),
            }
        }
    }
    let one = |found: Vec<u32>| match found[..] {
        [lane] => lane,
        _ => panic!("lanes {found:?}"),
    };
    found.into_iter().map(one).collect()
}

fn without_socket() -> Bench {
    let mut bench = Bench::new();
    // Nothing is registered any more.
    bench._socket = sys::xdp_socket().unwrap();
    bench
}

fn esp(spi: u32) -> Vec<u8> {
    [&spi.to_be_bytes()[..], &[7; 20]].concat()
}

/// SPIs as programs choose them: one after the other, in steps whose low bits never change, at random.
fn series() -> [(&'static str, Vec<u32>); 5] {
    const SPIS: u32 = 4096;
    let step = |first: u32, step: u32| (0..SPIS).map(|n| first.wrapping_add(n * step)).collect();
    // A linear congruential generator (Knuth's), of which the upper half is used.
    let mut state = 1u64;
    let mut random = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        0xc000_0000 | (state >> 34) as u32
    };
    [
        ("one after the other", step(0x1000, 1)),
        ("in steps of 2", step(0x101, 2)),
        ("in steps of 256", step(0xc000_0000, 256)),
        ("in steps of 65536", step(0x1000_0100, 65536)),
        ("at random, as strongSwan does", (0..SPIS).map(|_| random()).collect()),
    ]
}

#[test]
fn an_sa_has_one_lane_in_whatever_it_comes() {
    let mut bench = without_socket();
    bench.steer.set_esp_port(4500, true);
    let spis: Vec<u32> = series().iter().flat_map(|(_, spis)| spis[..24].to_vec()).collect();
    for count in [1, 2, 3, 7, 64] {
        let expected: Vec<u32> = spis.iter().map(|spi| twin_of_spi(*spi, count)).collect();
        let carriers: [fn(u32) -> Vec<u8>; 4] = [
            |spi| v4(&ipv4(LOCAL_V4, 50, &esp(spi))),
            |spi| v6(&ipv6(LOCAL_V6, &[], 50, &esp(spi))),
            |spi| v4(&ipv4(LOCAL_V4, 17, &udp(4500, &esp(spi)))),
            |spi| v6(&ipv6(LOCAL_V6, &[(0, 8)], 17, &udp(4500, &esp(spi)))),
        ];
        for carrier in carriers {
            let packets: Vec<Vec<u8>> = spis.iter().map(|spi| carrier(*spi)).collect();
            assert_eq!(lanes_of(&mut bench, &packets, count), expected, "{count} lanes");
        }
    }
}

#[test]
fn each_lane_has_its_share_of_the_sas() {
    for count in [2, 3, 4, 8, 16, 64] {
        for (what, spis) in series() {
            let mut shares = vec![0u32; count as usize];
            spis.iter().for_each(|spi| shares[twin_of_spi(*spi, count) as usize] += 1);
            // Of what is spread by chance a share is within five standard deviations.
            let mean = spis.len() as f64 / f64::from(count);
            let far = |share: &&u32| (f64::from(**share) - mean).abs() > 5.0 * mean.sqrt();
            assert_eq!(shares.iter().find(far), None, "{what}, {count} lanes: {shares:?}");
        }
    }
}

#[test]
fn what_is_to_be_forwarded_is_the_first_lanes_unless_it_may_be_spread() {
    let mut bench = without_socket();
    let to = |last: u8| [198, 51, 100, last];
    let mut packets: Vec<Vec<u8>> = (0..60).map(|n| v4(&ipv4(to(n), 6, &[n; 20]))).collect();
    packets.extend((0..20).map(|n| {
        v6(&ipv6(with(REMOTE_V6.to_vec(), &[(15, n)]).try_into().unwrap(), &[], 6, &[n; 20]))
    }));
    assert_eq!(lanes_of(&mut bench, &packets, 4), vec![0; packets.len()]);
    bench.steer.set_spread(true);
    let lanes = lanes_of(&mut bench, &packets, 4);
    assert!((0..4).all(|lane| lanes.contains(&lane)), "{lanes:?}");
    // Protocol, ports and fragments make no difference: a tunnel between two hosts stays together.
    let others: Vec<Vec<u8>> = (0..60)
        .map(|n| {
            let datagram = ipv4(to(n), 17, &udp(u16::from(n), &[1; 9]));
            v4(&if n % 2 == 0 { datagram } else { with(datagram, &[(6, 0x20)]) })
        })
        .collect();
    assert_eq!(lanes_of(&mut bench, &others, 4), lanes[..60]);
}
