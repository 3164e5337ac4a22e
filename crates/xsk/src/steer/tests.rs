//! Every decision of the steering program, run by the kernel on made-up packets
//! (`BPF_PROG_TEST_RUN`): a table by hand, every truncation, and a twin in plain Rust.

use std::os::fd::OwnedFd;

use libbpf_rs::ProgramInput;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;

mod lanes;

const OWN: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];
const OTHER: [u8; 6] = [0x02, 0, 0, 0, 0, 0x02];
const LOCAL_V4: [u8; 4] = [192, 0, 2, 1];
const REMOTE_V4: [u8; 4] = [198, 51, 100, 7];
const LOCAL_V6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const REMOTE_V6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];

const ABORTED: u32 = 0;
const DROP: u32 = 1;
const PASS: u32 = 2;
const REDIRECT: u32 = 4;

/// The loaded program with a socket on queue 0, which is where test runs arrive.
struct Bench {
    steer: Steer,
    _socket: OwnedFd,
}

impl Bench {
    fn new() -> Bench {
        let mut steer = Steer::load("lo").unwrap();
        steer.set_ethernet_address(OWN);
        steer.set_local_addresses(&[LOCAL_V4.into(), LOCAL_V6.into()]).unwrap();
        let socket = sys::xdp_socket().unwrap();
        let lane = Lane { queue: 0, index: 0, count: 1, socket: socket.as_fd() };
        steer.register(lane).unwrap();
        Bench { steer, _socket: socket }
    }

    /// Runs the program on a packet; what it returned and the name of the one counter that moved.
    fn run(&self, packet: &[u8]) -> (u32, &'static str) {
        let before = self.steer.counters();
        let input = ProgramInput { data_in: Some(packet), ..Default::default() };
        let program = &self.steer.skeleton.progs.peregrine_steer;
        let action = program.test_run(input).unwrap().return_value;
        let mut moved = Vec::new();
        for (old, new) in before.iter().zip(self.steer.counters()) {
            for _ in old.packets..new.packets {
                moved.push(new.name);
            }
        }
        assert_eq!(moved.len(), 1, "{moved:?} for {packet:02x?}");
        (action, moved[0])
    }

    fn expect(&self, what: &str, packet: &[u8], verdict: &str) {
        let (action, name) = self.run(packet);
        assert_eq!((action, name), (action_of(verdict), verdict), "{what}: {packet:02x?}");
    }
}

fn action_of(verdict: &str) -> u32 {
    match verdict.split('_').next() {
        Some("to") => REDIRECT,
        Some("pass") => PASS,
        Some("drop") => DROP,
        _ => ABORTED,
    }
}

fn ethernet(destination: [u8; 6], types: &[u16], payload: &[u8]) -> Vec<u8> {
    let mut packet = [destination, OTHER].concat();
    for (at, one) in types.iter().enumerate() {
        if at > 0 {
            packet.extend([0x00, 0x64]);
        }
        packet.extend(one.to_be_bytes());
    }
    packet.extend(payload);
    packet
}

fn ipv4(destination: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let len = (20 + payload.len()) as u16;
    let mut header = vec![0x45, 0, 0, 0, 0, 1, 0, 0, 64, protocol, 0, 0, 203, 0, 113, 9];
    header[2..4].copy_from_slice(&len.to_be_bytes());
    header.extend(destination);
    header.extend(payload);
    header
}

fn with_options(mut packet: Vec<u8>, options: &[u8]) -> Vec<u8> {
    packet[0] += (options.len() / 4) as u8;
    packet.splice(20..20, options.iter().copied());
    packet
}

fn with(mut packet: Vec<u8>, changes: &[(usize, u8)]) -> Vec<u8> {
    changes.iter().for_each(|&(at, value)| packet[at] = value);
    packet
}

/// An IPv6 packet with the extension headers (type, length in bytes) in front of the payload.
fn ipv6(destination: [u8; 16], extensions: &[(u8, usize)], last: u8, payload: &[u8]) -> Vec<u8> {
    let mut types: Vec<u8> = extensions.iter().map(|one| one.0).collect();
    types.push(last);
    let mut body = Vec::new();
    for (at, &(_, len)) in extensions.iter().enumerate() {
        let mut header = vec![0; len];
        header[0] = types[at + 1];
        header[1] = (len / 8 - 1) as u8;
        body.extend(header);
    }
    body.extend(payload);
    let mut packet = vec![0x60, 0, 0, 0, 0, 0, types[0], 64];
    packet[4..6].copy_from_slice(&(body.len() as u16).to_be_bytes());
    packet.extend(REMOTE_V6);
    packet.extend(destination);
    packet.extend(body);
    packet
}

fn udp(port: u16, payload: &[u8]) -> Vec<u8> {
    let mut datagram = vec![0x11, 0x94];
    datagram.extend(port.to_be_bytes());
    datagram.extend((8 + payload.len() as u16).to_be_bytes());
    datagram.extend([0, 0]);
    datagram.extend(payload);
    datagram
}

/// What a DHCP server sends to `client`, as the payload of a packet.
fn dhcp(client: [u8; 6]) -> Vec<u8> {
    let mut message = [&[2, 1, 6, 0][..], &[7; 24], &client, &[0; 202]].concat();
    message[16..20].copy_from_slice(&REMOTE_V4);
    let mut datagram = udp(68, &message);
    datagram[..2].copy_from_slice(&67u16.to_be_bytes());
    datagram
}

const ESP: [u8; 24] = {
    let mut esp = [7; 24];
    esp[0] = 0xc0;
    esp
};
const IKE_BEHIND_MARKER: [u8; 12] = [0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];

fn v4(payload: &[u8]) -> Vec<u8> {
    ethernet(OWN, &[0x0800], payload)
}

fn v6(payload: &[u8]) -> Vec<u8> {
    ethernet(OWN, &[0x86dd], payload)
}

#[test]
fn packets_for_nobody_here_and_for_the_host_go_to_the_kernel() {
    let bench = Bench::new();
    let syn = [0x30; 20];
    for (what, packet, verdict) in [
        ("ARP to us", ethernet(OWN, &[0x0806], &[0; 46]), "pass_not_ip"),
        ("ARP broadcast", ethernet([0xff; 6], &[0x0806], &[0; 46]), "pass_not_ip"),
        ("LLDP", ethernet([1, 0x80, 0xc2, 0, 0, 0xe], &[0x88cc], &[0; 46]), "pass_not_ip"),
        ("no payload at all", ethernet(OWN, &[0x0800], &[])[..13].to_vec().tap(7), "pass_not_ip"),
        (
            "three tags",
            ethernet(OWN, &[0x88a8, 0x8100, 0x8100, 0x800], &ipv4(REMOTE_V4, 17, &syn)),
            "pass_not_ip",
        ),
        ("tag cut short", ethernet(OWN, &[0x8100], &[0, 1]), "pass_not_ip"),
        (
            "IPv4 broadcast frame",
            ethernet([0xff; 6], &[0x0800], &ipv4([255; 4], 17, &syn)),
            "pass_not_ours",
        ),
        (
            "IPv4 multicast frame",
            ethernet([1, 0, 0x5e, 0, 0, 5], &[0x0800], &ipv4([224, 0, 0, 5], 89, &syn)),
            "pass_not_ours",
        ),
        (
            "transit to another MAC",
            ethernet(OTHER, &[0x0800], &ipv4(REMOTE_V4, 17, &syn)),
            "pass_not_ours",
        ),
        (
            "ESP to another MAC",
            ethernet(OTHER, &[0x0800], &ipv4(LOCAL_V4, 50, &ESP)),
            "pass_not_ours",
        ),
        (
            "ND solicitation frame",
            ethernet([0x33, 0x33, 0xff, 0, 0, 1], &[0x86dd], &ipv6(LOCAL_V6, &[], 58, &syn)),
            "pass_not_ours",
        ),
        ("ping to us", v4(&ipv4(LOCAL_V4, 1, &[8; 16])), "pass_local"),
        ("SSH to us", v4(&ipv4(LOCAL_V4, 6, &syn)), "pass_local"),
        ("IKE to us", v4(&ipv4(LOCAL_V4, 17, &udp(500, &[1; 28]))), "pass_local"),
        ("IKE on 4500", v4(&ipv4(LOCAL_V4, 17, &udp(4500, &IKE_BEHIND_MARKER))), "pass_local"),
        ("keep-alive", v4(&ipv4(LOCAL_V4, 17, &udp(4500, &[0xff]))), "pass_local"),
        ("ESP in UDP on no port of ours", v4(&ipv4(LOCAL_V4, 17, &udp(4500, &ESP))), "pass_local"),
        ("AH to us", v4(&ipv4(LOCAL_V4, 51, &ESP)), "pass_local"),
        ("options, to us", v4(&with_options(ipv4(LOCAL_V4, 1, &syn), &[1; 8])), "pass_local"),
        (
            "bad header length, to us",
            v4(&with(ipv4(LOCAL_V4, 50, &ESP), &[(0, 0x44)])),
            "pass_local",
        ),
        ("bad version, to us", v4(&with(ipv4(LOCAL_V4, 50, &ESP), &[(0, 0x65)])), "pass_local"),
        ("SPI 255", v4(&ipv4(LOCAL_V4, 50, &[0, 0, 0, 255, 0, 0, 0, 1])), "pass_esp_reserved"),
        ("SPI 0", v4(&ipv4(LOCAL_V4, 50, &[0; 8])), "pass_esp_reserved"),
        ("ESP without SPI", v4(&ipv4(LOCAL_V4, 50, &[9; 3])), "pass_esp_reserved"),
        (
            "first fragment of ESP",
            v4(&with(ipv4(LOCAL_V4, 50, &ESP), &[(6, 0x20)])),
            "pass_fragment",
        ),
        ("later fragment", v4(&with(ipv4(LOCAL_V4, 50, &ESP), &[(7, 0x01)])), "pass_fragment"),
        ("DHCP answer", v4(&ipv4([255; 4], 17, &udp(68, &[0; 9]))), "pass_control"),
        ("multicast to our MAC", v4(&ipv4([239, 1, 2, 3], 17, &syn)), "pass_control"),
        ("ping6 to us", v6(&ipv6(LOCAL_V6, &[], 58, &[128; 8])), "pass_local"),
        ("IKE over IPv6", v6(&ipv6(LOCAL_V6, &[], 17, &udp(500, &ESP))), "pass_local"),
        ("AH over IPv6", v6(&ipv6(LOCAL_V6, &[(60, 8)], 51, &ESP)), "pass_local"),
        ("IPv6 fragment to us", v6(&ipv6(LOCAL_V6, &[(0, 8), (44, 8)], 50, &ESP)), "pass_fragment"),
        ("nine extension headers", v6(&ipv6(LOCAL_V6, &[(60, 8); 9], 50, &ESP)), "pass_local"),
        ("IPv6 SPI 1", v6(&ipv6(LOCAL_V6, &[], 50, &[0, 0, 0, 1])), "pass_esp_reserved"),
        (
            "ND to link-local",
            v6(&ipv6([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], &[], 58, &[135; 24])),
            "pass_control",
        ),
        (
            "ESP to link-local",
            v6(&ipv6([0xfe, 0xbf, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], &[], 50, &ESP)),
            "pass_control",
        ),
        (
            "MLD",
            v6(&ipv6(
                [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x16],
                &[(0, 8)],
                58,
                &[143; 8],
            )),
            "pass_control",
        ),
    ] {
        bench.expect(what, &packet, verdict);
    }
}

#[test]
fn esp_and_transit_go_to_the_worker() {
    let mut bench = Bench::new();
    let syn = [0x30; 20];
    let transit = ipv4(REMOTE_V4, 6, &syn);
    for (what, packet, verdict) in [
        ("ESP", v4(&ipv4(LOCAL_V4, 50, &ESP)), "to_worker_esp"),
        ("SPI 256", v4(&ipv4(LOCAL_V4, 50, &[0, 0, 1, 0])), "to_worker_esp"),
        ("ESP, TTL 1", v4(&with(ipv4(LOCAL_V4, 50, &ESP), &[(8, 1)])), "to_worker_esp"),
        ("ESP, DF", v4(&with(ipv4(LOCAL_V4, 50, &ESP), &[(6, 0x40)])), "to_worker_esp"),
        (
            "ESP behind options",
            v4(&with_options(ipv4(LOCAL_V4, 50, &ESP), &[1; 40])),
            "to_worker_esp",
        ),
        (
            "ESP in a VLAN",
            ethernet(OWN, &[0x8100, 0x0800], &ipv4(LOCAL_V4, 50, &ESP)),
            "to_worker_esp",
        ),
        (
            "ESP in QinQ",
            ethernet(OWN, &[0x88a8, 0x8100, 0x0800], &ipv4(LOCAL_V4, 50, &ESP)),
            "to_worker_esp",
        ),
        ("ESP over IPv6", v6(&ipv6(LOCAL_V6, &[], 50, &ESP)), "to_worker_esp"),
        (
            "ESP over IPv6, QinQ",
            ethernet(OWN, &[0x8100, 0x8100, 0x86dd], &ipv6(LOCAL_V6, &[], 50, &ESP)),
            "to_worker_esp",
        ),
        (
            "ESP behind extensions",
            v6(&ipv6(LOCAL_V6, &[(0, 8), (60, 24), (43, 40), (135, 8)], 50, &ESP)),
            "to_worker_esp",
        ),
        ("ESP behind eight", v6(&ipv6(LOCAL_V6, &[(60, 8); 8], 50, &ESP)), "to_worker_esp"),
        ("transit", v4(&transit), "to_worker_transit"),
        ("transit, TTL 1", v4(&with(transit.clone(), &[(8, 1)])), "to_worker_transit"),
        ("transit, options", v4(&with_options(transit.clone(), &[1; 8])), "to_worker_transit"),
        ("transit, fragment", v4(&with(transit.clone(), &[(6, 0x20)])), "to_worker_transit"),
        ("transit, later fragment", v4(&with(transit.clone(), &[(7, 9)])), "to_worker_transit"),
        ("transit, header length 4", v4(&with(transit.clone(), &[(0, 0x44)])), "to_worker_transit"),
        ("transit, header too long", v4(&with(transit.clone(), &[(0, 0x4f)])), "to_worker_transit"),
        ("transit, version 5", v4(&with(transit.clone(), &[(0, 0x55)])), "to_worker_transit"),
        (
            "transit, bad total length",
            v4(&with(transit.clone(), &[(3, 0xff)])),
            "to_worker_transit",
        ),
        ("transit ESP", v4(&ipv4(REMOTE_V4, 50, &ESP)), "to_worker_transit"),
        ("transit IKE", v4(&ipv4(REMOTE_V4, 17, &udp(500, &ESP))), "to_worker_transit"),
        (
            "transit in QinQ",
            ethernet(OWN, &[0x8100, 0x8100, 0x0800], &transit),
            "to_worker_transit",
        ),
        ("loopback address", v4(&ipv4([127, 0, 0, 1], 17, &syn)), "to_worker_transit"),
        ("class E", v4(&ipv4([240, 0, 0, 1], 17, &syn)), "to_worker_transit"),
        (
            "old site-local",
            v6(&ipv6([0xfe, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], &[], 6, &syn)),
            "to_worker_transit",
        ),
        ("IPv4 header cut short", v4(&transit[..19]), "to_worker_transit"),
        ("transit6", v6(&ipv6(REMOTE_V6, &[], 6, &syn)), "to_worker_transit"),
        (
            "transit6, hop limit 1",
            v6(&with(ipv6(REMOTE_V6, &[], 6, &syn), &[(7, 1)])),
            "to_worker_transit",
        ),
        ("transit6, fragment", v6(&ipv6(REMOTE_V6, &[(44, 8)], 6, &syn)), "to_worker_transit"),
        ("transit6, hop-by-hop", v6(&ipv6(REMOTE_V6, &[(0, 8)], 6, &syn)), "to_worker_transit"),
        ("transit6, ND look-alike", v6(&ipv6(REMOTE_V6, &[], 58, &[135; 24])), "to_worker_transit"),
        (
            "transit6, version 4",
            v6(&with(ipv6(REMOTE_V6, &[], 6, &syn), &[(0, 0x40)])),
            "to_worker_transit",
        ),
        ("IPv6 header cut short", v6(&ipv6(REMOTE_V6, &[], 6, &syn)[..39]), "to_worker_transit"),
    ] {
        bench.expect(what, &packet, verdict);
    }
    bench.steer.set_esp_port(4500, true);
    for (what, packet, verdict) in [
        ("NAT-T", v4(&ipv4(LOCAL_V4, 17, &udp(4500, &ESP))), "to_worker_natt"),
        (
            "NAT-T over IPv6",
            v6(&ipv6(LOCAL_V6, &[(60, 8)], 17, &udp(4500, &ESP))),
            "to_worker_natt",
        ),
        (
            "NAT-T in a VLAN",
            ethernet(OWN, &[0x8100, 0x0800], &ipv4(LOCAL_V4, 17, &udp(4500, &ESP))),
            "to_worker_natt",
        ),
        ("IKE on 4500", v4(&ipv4(LOCAL_V4, 17, &udp(4500, &IKE_BEHIND_MARKER))), "pass_local"),
        ("keepalive", v4(&ipv4(LOCAL_V4, 17, &udp(4500, &[0xff]))), "pass_keepalive"),
        (
            "keepalive in a frame's padding",
            v4(&ipv4(LOCAL_V4, 17, &udp(4500, &[0xff]))).tap_to(60),
            "pass_keepalive",
        ),
        ("keepalive6", v6(&ipv6(LOCAL_V6, &[], 17, &udp(4500, &[0xff]))), "pass_keepalive"),
        ("one byte that is none", v4(&ipv4(LOCAL_V4, 17, &udp(4500, &[0xfe]))), "pass_local"),
        ("two such bytes", v4(&ipv4(LOCAL_V4, 17, &udp(4500, &[0xff; 2]))), "pass_local"),
        ("an SPI of ones", v4(&ipv4(LOCAL_V4, 17, &udp(4500, &[0xff; 24]))), "to_worker_natt"),
        (
            "NAT-T, SPI 255",
            v4(&ipv4(LOCAL_V4, 17, &udp(4500, &[0, 0, 0, 255, 0, 0, 0, 1]))),
            "pass_local",
        ),
        ("UDP header cut short", v4(&ipv4(LOCAL_V4, 17, &udp(4500, &[])[..7])), "pass_local"),
        (
            "NAT-T fragment",
            v4(&with(ipv4(LOCAL_V4, 17, &udp(4500, &ESP)), &[(6, 0x20)])),
            "pass_fragment",
        ),
        ("other port", v4(&ipv4(LOCAL_V4, 17, &udp(4501, &ESP))), "pass_local"),
    ] {
        bench.expect(what, &packet, verdict);
    }
}

#[test]
fn a_dhcp_answer_to_a_port_without_an_address_is_the_kernels() {
    let mut bench = Bench::new();
    let offer = ipv4(REMOTE_V4, 17, &dhcp(OWN));
    let at = |place: usize, value| v4(&with(offer.clone(), &[(place, value)]));
    bench.expect("the port has an address", &v4(&offer), "to_worker_transit");
    bench.steer.set_awaits_dhcp(true);
    for (what, packet, verdict) in [
        ("offer", v4(&offer), "pass_dhcp"),
        ("behind options", v4(&with_options(offer.clone(), &[1; 40])), "pass_dhcp"),
        ("in a VLAN", ethernet(OWN, &[0x8100, 0x0800], &offer), "pass_dhcp"),
        ("to our address", v4(&ipv4(LOCAL_V4, 17, &dhcp(OWN))), "pass_local"),
        ("to another MAC", ethernet(OTHER, &[0x0800], &offer), "pass_not_ours"),
        ("to another client", v4(&ipv4(REMOTE_V4, 17, &dhcp(OTHER))), "to_worker_transit"),
        ("to a relay", at(23, 67), "to_worker_transit"),
        ("from a client", at(21, 68), "to_worker_transit"),
        ("a request", at(28, 1), "to_worker_transit"),
        ("over no Ethernet", at(29, 6), "to_worker_transit"),
        ("of a longer address", at(30, 8), "to_worker_transit"),
        ("first fragment", at(6, 0x20), "to_worker_transit"),
        ("later fragment", at(7, 1), "to_worker_transit"),
        ("TCP", at(9, 6), "to_worker_transit"),
        ("bad version", at(0, 0x55), "to_worker_transit"),
        ("cut short", v4(&offer[..61]), "to_worker_transit"),
        ("to IPv6", v6(&ipv6(REMOTE_V6, &[], 17, &dhcp(OWN))), "to_worker_transit"),
    ] {
        bench.expect(what, &packet, verdict);
    }
    bench.steer.set_awaits_dhcp(false);
    bench.expect("it has one now", &v4(&offer), "to_worker_transit");
}

#[test]
fn ports_of_esp_in_udp_come_and_go() {
    let mut bench = Bench::new();
    let to = |port| v4(&ipv4(LOCAL_V4, 17, &udp(port, &ESP)));
    let ports = [0, 1, 63, 64, 500, 4500, 40_000, 65_535];
    for port in ports {
        bench.expect("not yet", &to(port), "pass_local");
        bench.steer.set_esp_port(port, true);
        bench.steer.set_esp_port(port, true);
    }
    for port in 0..=u16::MAX {
        let known = ports.contains(&port);
        // Each known port and a sample of the others: a run takes microseconds.
        if known || port % 251 == 0 {
            let verdict = if known { "to_worker_natt" } else { "pass_local" };
            bench.expect("on", &to(port), verdict);
        }
    }
    bench.steer.set_esp_port(4500, false);
    bench.steer.set_esp_port(4500, false);
    bench.expect("off", &to(4500), "pass_local");
    bench.expect("still on", &to(500), "to_worker_natt");
}

/// Lengthens a packet to 14 bytes and more: the kernel runs no shorter ones.
trait Tap {
    fn tap(self, with: u8) -> Self;
    /// To a length, with zeros.
    fn tap_to(self, len: usize) -> Self;
}

impl Tap for Vec<u8> {
    fn tap(mut self, with: u8) -> Vec<u8> {
        self.resize(self.len().max(14), with);
        self
    }

    fn tap_to(mut self, len: usize) -> Vec<u8> {
        self.resize(len, 0);
        self
    }
}

#[test]
fn addresses_and_sockets_come_and_go() {
    let mut bench = Bench::new();
    let esp = v4(&ipv4(LOCAL_V4, 50, &ESP));
    let ping = v6(&ipv6(LOCAL_V6, &[], 58, &[128; 8]));
    bench.expect("local", &ping, "pass_local");
    bench.steer.set_local_addresses(&[LOCAL_V4.into(), REMOTE_V6.into()]).unwrap();
    bench.expect("local no more", &ping, "to_worker_transit");
    bench.expect("still local", &esp, "to_worker_esp");
    bench.steer.remove_local_address(LOCAL_V4.into()).unwrap();
    bench.steer.remove_local_address(LOCAL_V4.into()).unwrap();
    bench.expect("removed", &esp, "to_worker_transit");
    bench.steer.add_local_address(LOCAL_V4.into()).unwrap();
    bench.steer.add_local_address(LOCAL_V4.into()).unwrap();
    bench.expect("back", &esp, "to_worker_esp");
    bench.steer.set_ethernet_address(OTHER);
    bench.expect("new MAC", &esp, "pass_not_ours");
    bench.steer.set_ethernet_address(OWN);

    let Bench { steer, _socket } = bench;
    drop(_socket);
    let bench = Bench { steer, _socket: sys::xdp_socket().unwrap() };
    bench.expect("socket gone: ESP", &esp, "drop_no_socket");
    bench.expect("socket gone: transit", &v4(&ipv4(REMOTE_V4, 17, &ESP)), "drop_no_socket");
    bench.expect("socket gone: cut short", &v4(&[0x45]), "drop_no_socket");
    bench.expect("socket gone: host", &v4(&ipv4(LOCAL_V4, 1, &ESP)), "pass_local");
}

#[test]
fn a_packet_in_several_buffers_is_dropped_unless_it_is_the_hosts() {
    let bench = Bench::new();
    let jumbo = vec![0xc0; 8000];
    bench.expect("transit", &v4(&ipv4(REMOTE_V4, 17, &jumbo)), "drop_oversize");
    bench.expect("ESP", &v4(&ipv4(LOCAL_V4, 50, &jumbo)), "drop_oversize");
    bench.expect("TCP to us", &v4(&ipv4(LOCAL_V4, 6, &jumbo)), "pass_local");
}

/// The stupid twin of steer.bpf.c: slices, options, no bounds in sight. Where ESP in UDP is known a DHCP
/// answer is awaited, too.
fn twin(packet: &[u8], esp_in_udp: bool) -> &'static str {
    judge(packet, esp_in_udp).unwrap_or("to_worker_transit")
}

fn judge(packet: &[u8], esp_in_udp: bool) -> Option<&'static str> {
    let mut l3 = 12;
    for _ in 0..2 {
        if matches!(packet.get(l3..l3 + 2), Some([0x81, 0x00] | [0x88, 0xa8])) {
            l3 += 4;
        }
    }
    let version = match packet.get(l3..l3 + 2) {
        Some([0x08, 0x00]) => 4,
        Some([0x86, 0xdd]) => 6,
        _ => return Some("pass_not_ip"),
    };
    if packet[..6] != OWN {
        return Some("pass_not_ours");
    }
    let ip = &packet[l3 + 2..];
    let (protocol, payload) = if version == 4 {
        let destination = ip.get(..20).map(|header| &header[16..20])?;
        if destination[0] & 0xf0 == 224 || destination == [255; 4] {
            return Some("pass_control");
        }
        let length = usize::from(ip[0] & 15) * 4;
        if destination != LOCAL_V4 {
            return (esp_in_udp && is_dhcp_for_us(ip, length)).then_some("pass_dhcp");
        }
        if ip[0] >> 4 != 4 || length < 20 {
            return Some("pass_local");
        }
        if ip[6] & 0x3f != 0 || ip[7] != 0 {
            return Some("pass_fragment");
        }
        (ip[9], ip.get(length..).unwrap_or(&[]))
    } else {
        let destination = ip.get(..40).map(|header| &header[24..40])?;
        if destination[0] == 0xff || (destination[0] == 0xfe && destination[1] & 0xc0 == 0x80) {
            return Some("pass_control");
        }
        if destination != LOCAL_V6 {
            return None;
        }
        if ip[0] >> 4 != 6 {
            return Some("pass_local");
        }
        match skip_extensions(ip[6], &ip[40..], 8) {
            Ok(found) => found,
            Err(verdict) => return Some(verdict),
        }
    };
    let spi = |bytes: &[u8]| bytes.first_chunk().map(|spi| u32::from_be_bytes(*spi));
    Some(match protocol {
        50 if spi(payload) >= Some(256) => "to_worker_esp",
        50 => "pass_esp_reserved",
        17 if esp_in_udp && payload.get(2..4) == Some(&[0x11, 0x94]) => {
            if let (Some([0, 9]), Some(0xff)) = (payload.get(4..6), payload.get(8)) {
                return Some("pass_keepalive");
            }
            match payload.get(8..).and_then(spi) {
                Some(256..) => "to_worker_natt",
                _ => "pass_local",
            }
        }
        _ => "pass_local",
    })
}

fn is_dhcp_for_us(ip: &[u8], length: usize) -> bool {
    let whole = ip[0] >> 4 == 4 && length >= 20 && ip[6] & 0x3f == 0 && ip[7] == 0 && ip[9] == 17;
    let Some(message) = ip.get(length..length + 42).filter(|_| whole) else { return false };
    message[..4] == [0, 67, 0, 68] && message[8..11] == [2, 1, 6] && message[36..] == OWN
}

fn skip_extensions(kind: u8, bytes: &[u8], left: u32) -> Result<(u8, &[u8]), &'static str> {
    match kind {
        44 => Err("pass_fragment"),
        0 | 43 | 60 | 135 if left == 0 || bytes.len() < 2 => Err("pass_local"),
        0 | 43 | 60 | 135 => {
            let rest = bytes.get((usize::from(bytes[1]) + 1) * 8..).unwrap_or(&[]);
            skip_extensions(bytes[0], rest, left - 1)
        }
        _ => Ok((kind, bytes)),
    }
}

/// Packets that come near every rule, so that mutations of them fall on both sides of it.
fn near_packets() -> impl Strategy<Value = Vec<u8>> {
    let tags = prop::sample::select(vec![vec![], vec![0x8100u16], vec![0x88a8, 0x8100]]);
    let protocol = prop::sample::select(vec![1u8, 6, 17, 44, 50, 51, 58]);
    let extension = (prop::sample::select(vec![0u8, 43, 44, 60, 135]), 1usize..6);
    let extensions =
        prop::collection::vec(extension.prop_map(|(kind, len)| (kind, len * 8)), 0..10);
    let payload = prop_oneof![
        Just(ESP.to_vec()),
        Just(udp(4500, &ESP)),
        Just(udp(4500, &IKE_BEHIND_MARKER)),
        Just(udp(4500, &[0xff])),
        Just(dhcp(OWN)),
        prop::collection::vec(any::<u8>(), 0..40),
    ];
    let words = 0usize..11;
    let parts = (any::<bool>(), any::<bool>(), tags, protocol, extensions, payload, words);
    parts.prop_map(|(version6, local, mut tags, protocol, extensions, payload, words)| {
        tags.push(if version6 { 0x86dd } else { 0x0800 });
        let ip = if version6 {
            let to = if local { LOCAL_V6 } else { REMOTE_V6 };
            ipv6(to, &extensions, protocol, &payload)
        } else {
            let to = if local { LOCAL_V4 } else { REMOTE_V4 };
            with_options(ipv4(to, protocol, &payload), &vec![1; words * 4])
        };
        ethernet(OWN, &tags, &ip)
    })
}

#[test]
fn the_program_decides_as_its_twin() {
    let mut bench = Bench::new();
    for esp_in_udp in [false, true] {
        bench.steer.set_esp_port(4500, esp_in_udp);
        bench.steer.set_awaits_dhcp(esp_in_udp);
        let mutation = (any::<prop::sample::Index>(), any::<u8>());
        let mutations = prop::collection::vec(mutation, 0..3);
        let cut = prop::option::of(any::<prop::sample::Index>());
        let mut runner = TestRunner::new(Config { cases: 1500, ..Config::default() });
        runner
            .run(&(near_packets(), mutations, cut), |(mut packet, mutations, cut)| {
                for (at, value) in mutations {
                    let at = at.index(packet.len());
                    packet[at] = value;
                }
                if let Some(cut) = cut {
                    packet.truncate(14 + cut.index(packet.len() - 13));
                }
                let expected = twin(&packet, esp_in_udp);
                prop_assert_eq!(bench.run(&packet), (action_of(expected), expected));
                Ok(())
            })
            .unwrap();
    }
}

#[test]
fn every_truncation_has_a_defined_fate() {
    let mut bench = Bench::new();
    bench.steer.set_esp_port(4500, true);
    bench.steer.set_awaits_dhcp(true);
    let packets = [
        v4(&with_options(ipv4(LOCAL_V4, 50, &ESP), &[1; 12])),
        v4(&ipv4(LOCAL_V4, 17, &udp(4500, &ESP))),
        v4(&ipv4(LOCAL_V4, 17, &udp(4500, &[0xff]))),
        ethernet(OWN, &[0x88a8, 0x8100, 0x0800], &ipv4(REMOTE_V4, 6, &[0; 20])),
        v4(&ipv4(REMOTE_V4, 17, &dhcp(OWN))),
        v6(&ipv6(LOCAL_V6, &[(0, 8), (60, 16)], 50, &ESP)),
        v6(&ipv6(LOCAL_V6, &[], 17, &udp(4500, &ESP))),
        v6(&ipv6(REMOTE_V6, &[(44, 8)], 6, &[0; 20])),
    ];
    for packet in packets {
        for len in 14..=packet.len() {
            bench.expect("cut", &packet[..len], twin(&packet[..len], true));
        }
    }
}
