//! What VPP is told: its start-up file, and the lines of its command line that make tunnels and packets.
//!
//! One interface of its packet generator sends, another takes what comes out. Each tunnel has two SAs, an outer address and a
//! destination inside of its own.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;

/// What its streams are called.
pub const STREAM: &str = "s";

/// The node behind which packets are VPP's no longer.
pub const SINK: &str = "pg1-tx";

/// The most tunnels that there are addresses for.
pub const TUNNELS_MAX: u32 = 100_000;

/// The first destination inside of what is sealed and of what is opened, the first far end, and the first next hop of far ends that
/// share an interface.
const INSIDE: u32 = u32::from_be_bytes([172, 16, 0, 0]);
const INSIDE_NET: &str = "172.16.0.0/12";
const CONTENT: u32 = u32::from_be_bytes([10, 128, 0, 0]);
const CONTENT_NET: &str = "10.128.0.0/9";
const FAR_ENDS: u32 = u32::from_be_bytes([20, 0, 1, 0]);
const FAR_NET: &str = "20.0.0.0/8";
const NEXT_HOPS: u32 = u32::from_be_bytes([30, 1, 0, 0]);

const NEAR_END: &str = "192.168.1.1";
const ROUTER: &str = "192.168.1.2";
const SENDER: &str = "10.0.0.2";
const SENDING_MAC: &str = "02:00:00:00:00:01";
const ROUTER_MAC: &str = "02:00:00:00:00:12";

/// Bytes of a frame in front of the generator's payload: Ethernet, IPv4, UDP.
const HEADERS_LEN: usize = 42;

/// How packets find their tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selection {
    /// There is none.
    Plain,
    /// By an interface for each.
    PointToPoint,
    /// By an interface for all, and a next hop for each.
    PointToMultipoint,
    /// By policies, in the hash table that VPP calls fast path.
    Policies,
}

impl Selection {
    /// All of them.
    pub const ALL: [Selection; 4] = [
        Selection::Plain,
        Selection::PointToPoint,
        Selection::PointToMultipoint,
        Selection::Policies,
    ];

    /// What it is called in figures of VPP's.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Selection::Plain => "plain",
            Selection::PointToPoint => "p2p",
            Selection::PointToMultipoint => "p2mp",
            Selection::Policies => "policy-fastpath",
        }
    }

    /// What the gateway's own bench calls it.
    #[must_use]
    pub fn own_name(self) -> &'static str {
        match self {
            Selection::Policies => "policy",
            other => other.name(),
        }
    }
}

/// In which order packets use the tunnels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// One after the other.
    Turns,
    /// At random.
    Random,
}

impl Order {
    /// Both.
    pub const ALL: [Order; 2] = [Order::Turns, Order::Random];

    /// What it is called on a command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Order::Turns => "turns",
            Order::Random => "random",
        }
    }
}

/// What a gateway does with the packets that are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// It seals them.
    Seal,
    /// It opens them.
    Open,
}

impl Direction {
    /// Both.
    pub const ALL: [Direction; 2] = [Direction::Seal, Direction::Open];

    /// What it is called in figures and on a command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Direction::Seal => "seal",
            Direction::Open => "open",
        }
    }
}

/// What a gateway has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setup {
    /// How packets find their tunnel.
    pub selection: Selection,
    /// Of which so many are there.
    pub tunnels: u32,
    /// What is counted.
    pub direction: Direction,
}

/// What the names of its shared memory begin with, so that no other VPP's are meant.
#[must_use]
pub fn shared_memory_prefix() -> String {
    format!("peregrine-{}", std::process::id())
}

/// The start-up file of a VPP that lives in `folder`, with a worker on the second core.
#[must_use]
pub fn startup(folder: &Path) -> String {
    let folder = folder.display();
    let mut text = format!(
        "unix {{ nodaemon cli-listen {folder}/cli.sock log {folder}/log runtime-dir {folder} }}\n\
         cpu {{ main-core 0 corelist-workers 1 }}\n\
         memory {{ main-heap-size 2G }}\n\
         buffers {{ buffers-per-numa 32768 }}\n\
         statseg {{ size 512M }}\n\
         api-segment {{ prefix {} }}\n",
        shared_memory_prefix()
    );
    text.push_str(
        "ipsec { ipv4-outbound-spd-fast-path on ipv4-inbound-spd-fast-path on spd-fast-path-num-buckets 32768 }\n",
    );
    text
}

/// The gateway that is measured: interfaces, routes and tunnels; AES-256-GCM without extended sequence numbers or protection against
/// replay, by the engine `ipsecmb`, which is VPP's quickest.
#[must_use]
pub fn gateway(setup: Setup) -> String {
    let mut text = interfaces(NEAR_END, ROUTER, ROUTER_MAC);
    let routed = match (setup.selection, setup.direction) {
        (Selection::Plain, _) => &[][..],
        (Selection::Policies, Direction::Seal) => &[FAR_NET, INSIDE_NET],
        (_, Direction::Seal) => &[FAR_NET],
        // What has no route back is not taken.
        (_, Direction::Open) => &[FAR_NET, CONTENT_NET],
    };
    for net in routed {
        add(&mut text, format_args!("ip route add {net} via {ROUTER} pg1"));
    }
    match (setup.selection, setup.direction) {
        (Selection::Plain | Selection::PointToPoint, _) => {}
        (Selection::PointToMultipoint, _) => text.push_str(
            "ipsec itf create p2mp\n\
             set interface state ipsec0 up\n\
             set interface ip address ipsec0 30.0.0.1/8\n",
        ),
        // What has its envelope meets the policies once more.
        (Selection::Policies, Direction::Seal) => text.push_str(
            "ipsec spd add 1\n\
             set interface ipsec spd pg1 1\n\
             ipsec policy add spd 1 outbound priority 100 action bypass protocol 50 \
             local-ip-range 0.0.0.0 - 255.255.255.255 remote-ip-range 0.0.0.0 - 255.255.255.255\n",
        ),
        (Selection::Policies, Direction::Open) => {
            text.push_str("ipsec spd add 1\nset interface ipsec spd pg0 1\n");
        }
    }
    for tunnel in 0..setup.tunnels {
        add_tunnel(&mut text, setup, tunnel);
    }
    text
}

/// All far ends of a gateway that is to open, in one VPP: what comes out of it is for the gateway's first interface.
#[must_use]
pub fn far_ends(tunnels: u32) -> String {
    let mut text = interfaces("192.168.1.9", NEAR_END, SENDING_MAC);
    for tunnel in 0..tunnels {
        let (sent, taken) = sas(tunnel);
        add_sas(&mut text, tunnel, Direction::Open);
        add_interface(&mut text, tunnel, (sent, taken));
        let content = nth(CONTENT, tunnel);
        add(&mut text, format_args!("ip route add {content}/32 via ipsec{tunnel}"));
    }
    text
}

/// Both interfaces of the packet generator, and what lies behind the second; the cipher's engine.
fn interfaces(address: &str, neighbour: &str, neighbour_mac: &str) -> String {
    format!(
        "create packet-generator interface pg0\n\
         create packet-generator interface pg1\n\
         set interface mac address pg0 {SENDING_MAC}\n\
         set interface ip address pg0 10.0.0.1/24\n\
         set interface ip address pg1 {address}/24\n\
         set interface state pg0 up\n\
         set interface state pg1 up\n\
         set ip neighbor pg1 {neighbour} {neighbour_mac}\n\
         set crypto handler all both ipsecmb\n"
    )
}

/// One tunnel of the gateway's.
fn add_tunnel(text: &mut String, setup: Setup, tunnel: u32) {
    let [inside, far_end, next_hop] = [INSIDE, FAR_ENDS, NEXT_HOPS].map(|first| nth(first, tunnel));
    if setup.selection == Selection::Plain {
        return add(text, format_args!("ip route add {inside}/32 via {ROUTER} pg1"));
    }
    let (sent, taken) = sas(tunnel);
    add_sas(text, tunnel, Direction::Seal);
    let way = match setup.selection {
        Selection::PointToPoint => {
            add_interface(text, tunnel, (taken, sent));
            format!("ipsec{tunnel}")
        }
        Selection::PointToMultipoint => {
            add(text, format_args!("create teib ipsec0 peer {next_hop} nh {far_end}"));
            add(
                text,
                format_args!(
                    "ipsec tunnel protect ipsec0 {next_hop} sa-in {taken} sa-out {sent} add"
                ),
            );
            format!("{next_hop} ipsec0")
        }
        Selection::Plain | Selection::Policies => {
            let (direction, sa, near, far) = match setup.direction {
                Direction::Seal => ("outbound", sent, SENDER.to_owned(), inside),
                Direction::Open => ("inbound", taken, NEAR_END.to_owned(), far_end),
            };
            return add(
                text,
                format_args!(
                    "ipsec policy add spd 1 {direction} priority 10 action protect sa {sa} \
                     local-ip-range {near} - {near} remote-ip-range {far} - {far}"
                ),
            );
        }
    };
    if setup.direction == Direction::Seal {
        add(text, format_args!("ip route add {inside}/32 via {way}"));
    }
}

/// The numbers of a tunnel's SAs: the one that the gateway seals with, and the one that it opens with.
fn sas(tunnel: u32) -> (u32, u32) {
    (2 * tunnel, 2 * tunnel + 1)
}

/// Both, as they are at the gateway, or at the far end: the one that only opens says so.
fn add_sas(text: &mut String, tunnel: u32, direction: Direction) {
    let (sent, taken) = sas(tunnel);
    let far_end = nth(FAR_ENDS, tunnel).to_string();
    let inbound = match direction {
        Direction::Seal => taken,
        Direction::Open => sent,
    };
    for (id, source, destination) in [(sent, NEAR_END, &*far_end), (taken, &*far_end, NEAR_END)] {
        let flag = if id == inbound { " inbound" } else { "" };
        add(
            text,
            format_args!(
                "ipsec sa add {id} spi {} esp crypto-alg aes-gcm-256 crypto-key {:064x} salt 0x{:08x} \
                 tunnel src {source} dst {destination}{flag}",
                1000 + id,
                id + 1,
                id + 1,
            ),
        );
    }
}

/// An interface for one tunnel.
fn add_interface(text: &mut String, tunnel: u32, (sa_in, sa_out): (u32, u32)) {
    add(
        text,
        format_args!(
            "ipsec itf create instance {tunnel}\n\
             ipsec tunnel protect ipsec{tunnel} sa-in {sa_in} sa-out {sa_out} add\n\
             set interface state ipsec{tunnel} up\n\
             set interface unnumbered ipsec{tunnel} use pg1"
        ),
    );
}

/// One line, or some.
fn add(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{line}");
}

/// Packets without end for a gateway that seals: frames of `size` bytes without checksum.
#[must_use]
pub fn stream(tunnels: u32, order: Order, size: usize) -> String {
    let destinations = match (tunnels, order) {
        (0 | 1, _) => nth(INSIDE, 0).to_string(),
        (_, Order::Turns) => range(INSIDE, tunnels, '-'),
        (_, Order::Random) => range(INSIDE, tunnels, '+'),
    };
    new_stream(&destinations, size)
}

/// The same for the far ends, tunnel by tunnel.
#[must_use]
pub fn content(tunnels: u32, size: usize) -> String {
    let destinations = match tunnels {
        0 | 1 => nth(CONTENT, 0).to_string(),
        _ => range(CONTENT, tunnels, '-'),
    };
    new_stream(&destinations, size)
}

/// Packets of a file, over and over.
#[must_use]
pub fn replay(file: &Path) -> String {
    format!(
        "packet-generator new {{ name {STREAM} limit -1 node ethernet-input interface pg0 worker 0 pcap {} }}",
        file.display()
    )
}

/// What a stream counts through, or takes from at random.
fn range(first: u32, tunnels: u32, sign: char) -> String {
    format!("{} {sign} {}", nth(first, 0), nth(first, tunnels - 1))
}

fn new_stream(destinations: &str, size: usize) -> String {
    let payload_len = size.saturating_sub(HEADERS_LEN);
    format!(
        "packet-generator new {{ name {STREAM} limit -1 size {size}-{size} node ethernet-input interface pg0 worker 0 \
         data {{ IP4: 02:00:00:00:00:02 -> {SENDING_MAC} UDP: {SENDER} -> {destinations} \
         UDP: 1000 -> 2000 incrementing {payload_len} }} }}"
    )
}

fn nth(first: u32, number: u32) -> Ipv4Addr {
    Ipv4Addr::from(first + number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(selection: Selection, direction: Direction) -> Setup {
        Setup { selection, tunnels: 2, direction }
    }

    #[test]
    fn every_tunnel_has_two_sas_and_a_way_into_it() {
        for (selection, way) in [
            (Selection::PointToPoint, "ip route add 172.16.0.1/32 via ipsec1"),
            (Selection::PointToMultipoint, "ip route add 172.16.0.1/32 via 30.1.0.1 ipsec0"),
            (
                Selection::Policies,
                "outbound priority 10 action protect sa 2 local-ip-range 10.0.0.2 - 10.0.0.2 \
                 remote-ip-range 172.16.0.1 - 172.16.0.1",
            ),
        ] {
            let text = gateway(setup(selection, Direction::Seal));
            assert_eq!(text.matches("ipsec sa add").count(), 4, "{text}");
            assert!(text.lines().any(|line| line.ends_with(way)), "{way} in {text}");
            assert!(text.contains("src 192.168.1.1 dst 20.0.1.1\n"), "{text}");
            assert!(text.contains("src 20.0.1.1 dst 192.168.1.1 inbound\n"), "{text}");
        }
        assert!(!gateway(setup(Selection::Plain, Direction::Seal)).contains("ipsec sa"));
    }

    #[test]
    fn far_ends_seal_what_the_gateway_opens() {
        let sa = |text: &str, id: u32| {
            let start = format!("ipsec sa add {id} ");
            let line = text.lines().find(|line| line.starts_with(&start)).unwrap().to_owned();
            (line.trim_end_matches(" inbound").to_owned(), line.ends_with(" inbound"))
        };
        let far_ends = far_ends(2);
        for selection in
            [Selection::PointToPoint, Selection::PointToMultipoint, Selection::Policies]
        {
            let gateway = gateway(setup(selection, Direction::Open));
            for id in 0..4 {
                let ((near, near_opens), (far, far_opens)) = (sa(&gateway, id), sa(&far_ends, id));
                assert_eq!(near, far);
                assert!(near_opens != far_opens, "one opens with it: {near}");
            }
            assert!(!gateway.contains("172.16."), "nothing is sealed: {gateway}");
        }
        assert!(
            far_ends.contains("ipsec tunnel protect ipsec1 sa-in 2 sa-out 3 add"),
            "{far_ends}"
        );
        let policies = gateway(setup(Selection::Policies, Direction::Open));
        assert!(
            policies.contains("inbound priority 10 action protect sa 3 local-ip-range 192.168.1.1"),
            "{policies}"
        );
    }

    #[test]
    fn no_two_sas_share_a_key() {
        let setup = Setup { tunnels: 100, ..setup(Selection::PointToPoint, Direction::Seal) };
        let text = gateway(setup);
        let keys = text.split_whitespace().filter(|word| word.len() == 64);
        assert_eq!(keys.collect::<std::collections::HashSet<_>>().len(), 200);
    }

    #[test]
    fn a_stream_is_as_long_and_as_wide_as_asked() {
        let turns = stream(300, Order::Turns, 114);
        assert!(turns.contains("size 114-114 ") && turns.contains(" incrementing 72 "), "{turns}");
        assert!(turns.contains("-> 172.16.0.0 - 172.16.1.43 UDP"), "{turns}");
        assert!(stream(300, Order::Random, 114).contains("172.16.0.0 + 172.16.1.43"));
        assert!(stream(1, Order::Random, 114).contains("-> 172.16.0.0 UDP"));
    }

    #[test]
    fn addresses_of_the_most_tunnels_do_not_run_into_each_other() {
        let last = |first| nth(first, TUNNELS_MAX - 1).octets();
        assert!(last(INSIDE)[1] < 32 && last(CONTENT)[0] == 10);
        assert!(last(FAR_ENDS)[0] == 20 && last(NEXT_HOPS)[0] == 30);
    }
}
