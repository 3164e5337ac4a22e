//! The questions and the replies. These types are the format: a field that is renamed or removed,
//! or whose meaning changes, needs a new [`SCHEMA`]; a field that is added does not.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::status::{Status, Upgrade};

/// The version of the replies' format.
pub const SCHEMA: u32 = 1;

/// What can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Show {
    /// The security associations.
    Sa,
    /// The policies.
    Policy,
    /// The ports and what they lost.
    Ports,
    /// The workers and how busy they are.
    Workers,
    /// Every end that packets met, by name.
    Drops,
    /// The routes that packets take.
    Routes,
    /// The neighbours.
    Neighbours,
    /// The instance itself.
    Status,
}

impl Show {
    /// Everything that can be asked.
    pub const ALL: [Self; 8] = [
        Self::Sa,
        Self::Policy,
        Self::Ports,
        Self::Workers,
        Self::Drops,
        Self::Routes,
        Self::Neighbours,
        Self::Status,
    ];

    /// The word for it, in requests and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sa => "sa",
            Self::Policy => "policy",
            Self::Ports => "ports",
            Self::Workers => "workers",
            Self::Drops => "drops",
            Self::Routes => "routes",
            Self::Neighbours => "neighbours",
            Self::Status => "status",
        }
    }
}

impl fmt::Display for Show {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Show {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|show| show.name() == word).ok_or_else(|| {
            let all: Vec<&str> = Self::ALL.iter().map(|show| show.name()).collect();
            format!("{word:?} cannot be shown; ask for one of {}", all.join(", "))
        })
    }
}

/// One request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// Show something.
    Show(Show),
    /// Let another binary take over.
    Upgrade(Upgrade),
}

/// One reply, with the version of its format.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Envelope {
    /// [`SCHEMA`] of the server.
    pub schema: u32,
    /// The reply.
    pub reply: Reply,
}

/// What was asked for, or why not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// The security associations.
    Sa(Vec<Sa>),
    /// The policies, in the order in which they are asked.
    Policy(Vec<Policy>),
    /// The ports.
    Ports(Vec<Port>),
    /// The workers.
    Workers(Vec<Worker>),
    /// Every end that packets met.
    Drops(Vec<DropCount>),
    /// The routes.
    Routes(Vec<Route>),
    /// The neighbours.
    Neighbours(Vec<Neighbour>),
    /// The instance.
    Status(Box<Status>),
    /// The path of the binary that takes over, at once.
    Upgrade(String),
    /// The request was not understood or cannot be served; one sentence.
    Error(String),
}

/// Where the replies come from. Each call may take a snapshot of running counters.
pub trait Facts {
    /// Names of all security associations, in the order of the reply.
    fn sa_names(&mut self) -> Vec<u64>;
    /// The security associations of these names that are still there.
    fn sas(&mut self, names: &[u64]) -> Vec<Sa>;
    /// Names of all policies, in the order in which they are asked.
    fn policy_names(&mut self) -> Vec<u64>;
    /// The policies of these names that are still there.
    fn policies(&mut self, names: &[u64]) -> Vec<Policy>;
    /// The ports.
    fn ports(&mut self) -> Vec<Port>;
    /// The workers.
    fn workers(&mut self) -> Vec<Worker>;
    /// Every end that packets met.
    fn drops(&mut self) -> Vec<DropCount>;
    /// The routes.
    fn routes(&mut self) -> Vec<Route>;
    /// The neighbours.
    fn neighbours(&mut self) -> Vec<Neighbour>;
    /// The instance.
    fn status(&mut self) -> Status;

    /// Whether another binary can take over; it does when this was answered.
    ///
    /// # Errors
    /// Why not, in a sentence.
    fn upgrade(&mut self, wanted: Upgrade) -> Result<String, String>;

    /// The names of the entries of a reply that may be long, and is therefore made in parts.
    fn names(&mut self, show: Show) -> Option<Vec<u64>> {
        match show {
            Show::Sa => Some(self.sa_names()),
            Show::Policy => Some(self.policy_names()),
            _ => None,
        }
    }

    /// A part of a reply that may be long: the entries of these names that are still there.
    fn part(&mut self, show: Show, names: &[u64]) -> Reply {
        match show {
            Show::Policy => Reply::Policy(self.policies(names)),
            _ => Reply::Sa(self.sas(names)),
        }
    }

    /// The whole reply to a request.
    fn reply(&mut self, show: Show) -> Reply {
        if let Some(names) = self.names(show) {
            return self.part(show, &names);
        }
        match show {
            Show::Sa | Show::Policy => Reply::Error("it has parts only".to_owned()),
            Show::Ports => Reply::Ports(self.ports()),
            Show::Workers => Reply::Workers(self.workers()),
            Show::Drops => Reply::Drops(self.drops()),
            Show::Routes => Reply::Routes(self.routes()),
            Show::Neighbours => Reply::Neighbours(self.neighbours()),
            Show::Status => Reply::Status(Box::new(self.status())),
        }
    }
}

/// One security association. There is no key here, by design.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sa {
    /// The Security Parameters Index.
    pub spi: u32,
    /// Outer source.
    pub src: IpAddr,
    /// Outer destination.
    pub dst: IpAddr,
    /// "in" or "out".
    pub direction: String,
    /// Links it to policies' templates.
    pub reqid: u32,
    /// The interface id (`if_id`) of its tunnel; 0 is none.
    #[serde(default)]
    pub if_id: u32,
    /// The mark that look-ups need for it, value and mask; absent when it has none.
    #[serde(default)]
    pub mark: Option<(u32, u32)>,
    /// "tunnel" or "transport".
    pub mode: String,
    /// As in RFC 4106 and `ip xfrm`: "rfc4106(gcm(aes))" with key and ICV length, never the key.
    pub algorithm: String,
    /// Key length in bits, without the salt.
    pub key_bits: u32,
    /// Length of the integrity check value in bits.
    pub icv_bits: u32,
    /// Extended (64-bit) sequence numbers.
    pub esn: bool,
    /// Anti-replay window in packets; 0 is off.
    pub replay_window_packets: u32,
    /// The last sequence number sent, or the highest accepted.
    pub sequence: u64,
    /// Packets carried.
    pub packets: u64,
    /// Bytes carried, as XFRM counts them.
    pub bytes: u64,
    /// Seconds since the SA was added.
    pub age_s: u64,
    /// Seconds since a packet last used it; absent when none has.
    pub last_use_age_s: Option<u64>,
    /// Packets that died at this SA.
    pub errors: SaErrors,
    /// UDP encapsulation's source and destination port, when used.
    pub encapsulation_ports: Option<(u16, u16)>,
    /// The worker that alone seals with it, when one does (RFC 9611).
    pub worker: Option<u32>,
    /// The CPU that it is bound to, as the IKE daemon said (`XFRMA_SA_PCPU`).
    #[serde(default)]
    pub cpu: Option<u32>,
}

/// What XFRM counts as an SA's errors (`struct xfrm_stats`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaErrors {
    /// Outside the anti-replay window.
    pub replay_window: u64,
    /// Seen before.
    pub replay: u64,
    /// Failed the integrity check.
    pub integrity: u64,
}

/// One policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    /// The kernel-style index.
    pub index: u32,
    /// "in", "out" or "fwd".
    pub direction: String,
    /// Lower is asked first.
    pub priority: u32,
    /// "protect", "bypass" or "discard".
    pub action: String,
    /// Source prefix of the selector.
    pub src: String,
    /// Destination prefix of the selector.
    pub dst: String,
    /// Protocol number; 0 is any.
    pub protocol: u8,
    /// Source port and mask; 0/0 is any.
    pub src_port: (u16, u16),
    /// Destination port and mask; 0/0 is any.
    pub dst_port: (u16, u16),
    /// The interface id (`if_id`) of the tunnel that it is for; 0 is none.
    #[serde(default)]
    pub if_id: u32,
    /// Its mark, value and mask; absent when it has none.
    #[serde(default)]
    pub mark: Option<(u32, u32)>,
    /// The transformations, in order.
    pub templates: Vec<Template>,
    /// Packets that it decided, but in route mode only those that it was asked for: docs/routes.md.
    pub packets: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Seconds since the policy was added.
    pub age_s: u64,
    /// Seconds since it last decided; absent when it never has.
    pub last_use_age_s: Option<u64>,
}

/// One template of a policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Template {
    /// Outer source.
    pub src: IpAddr,
    /// Outer destination.
    pub dst: IpAddr,
    /// "esp".
    pub protocol: String,
    /// "tunnel" or "transport".
    pub mode: String,
    /// Links it to SAs.
    pub reqid: u32,
    /// 0 is any.
    pub spi: u32,
    /// Packets may pass when there is no SA.
    pub optional: bool,
}

/// One port.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// The kernel's interface.
    pub interface: String,
    /// Its index.
    pub ifindex: u32,
    /// Its Ethernet address.
    pub mac: String,
    /// Its MTU in bytes.
    pub mtu_bytes: u32,
    /// Configured up, and the layer below is up.
    pub link_up: bool,
    /// "native" or "generic".
    pub xdp_mode: String,
    /// Packet memory is shared with the driver.
    pub zero_copy: bool,
    /// Receive queues served.
    pub queues: u32,
    /// The VRF that it is led to; absent for the main table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vrf: Option<String>,
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received, without the frame check sequence.
    pub rx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent, without the frame check sequence.
    pub tx_bytes: u64,
    /// What was lost between the driver and a worker, by name.
    pub losses: Vec<Loss>,
    /// What the XDP program did with packets, by name: to a worker, to the kernel, dropped.
    #[serde(default)]
    pub steering: Vec<Loss>,
}

/// A named count of packets of a port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// Its name.
    pub name: String,
    /// Packets.
    pub count: u64,
    /// One sentence: what it means.
    pub description: String,
}

/// One worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Worker {
    /// Its number.
    pub worker: u32,
    /// Its core.
    pub core: u32,
    /// Share of the turns that found packets, in the last second, from 0 to 1.
    pub busy_share: f64,
    /// Packets handled.
    pub packets: u64,
    /// Turns of its loop.
    pub turns: u64,
    /// Packets in a turn that had any, on average.
    pub batch_average: f64,
    /// How often it slept for want of packets.
    pub sleeps: u64,
    /// Packets for which it took an outbound SA of its own (RFC 9611).
    #[serde(default)]
    pub own_sa_packets: u64,
    /// Packets for which it took the SA for all, having none of its own where it should.
    #[serde(default)]
    pub fallback_sa_packets: u64,
    /// Packets that it sealed or opened just as those before them, or sealed into many tunnels, without asking of each
    /// what nearly all answer alike.
    #[serde(default)]
    pub followed_packets: u64,
}

/// One end that packets met.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DropCount {
    /// The verdict's name.
    pub name: String,
    /// Packets.
    pub count: u64,
    /// Packets per second, in the last second; 0 in the first after the start.
    pub per_s: f64,
    /// It is a loss; false for the ends that a packet should meet.
    pub loss: bool,
    /// One sentence: what it means.
    pub description: String,
    /// The counter's name in /proc/net/xfrm_stat, where Linux has one.
    pub linux_name: Option<String>,
}

/// One route that packets take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Destination prefix.
    pub prefix: String,
    /// The kernel's table.
    pub table: String,
    /// "unicast", "local", "blackhole", …
    pub kind: String,
    /// The metric.
    pub metric: u32,
    /// The next hop; absent when the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// The outgoing interface.
    pub interface: Option<String>,
    /// The outgoing port; absent when the interface is not the gateway's.
    pub port: Option<String>,
    /// Next hops that the kernel has for it, of which the first working one is used.
    pub hops: u32,
}

/// One neighbour.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Neighbour {
    /// Its address.
    pub address: IpAddr,
    /// The interface it is behind.
    pub interface: String,
    /// Its Ethernet address, when known.
    pub mac: Option<String>,
    /// The kernel's state for it: "reachable", "stale", …
    pub state: String,
    /// The gateway has it as it should be sent to; of interfaces that are no ports it has none.
    pub usable: bool,
}
