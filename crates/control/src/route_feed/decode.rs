//! From rtnetlink messages to events, and from wishes to rtnetlink requests.
//!
//! What the gateway does not follow is left out here: bridge tables, proxy and multicast-routing
//! entries, cached routes. Routes for one type of
//! service or one source prefix are left out too: without them the destination's other routes
//! apply, which is what packets without that mark or source get. A route whose way out only the
//! kernel can take (a tunnel encapsulation, an unexpanded next-hop object) stays, as
//! [`RouteKind::KernelOnly`]: leaving it out would send its packets by a less specific route.

use std::io;
use std::net::IpAddr;

use dataplane::prefix::{Family, Prefix};
use netlink_packet_core::{
    Emitable, NLM_F_APPEND, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkBuffer,
    ParseableParametrized,
};
use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::link::{
    InfoData, InfoVlan, InfoVrf, LinkAttribute, LinkExtentMask, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage,
    NeighbourState as NudState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteNextHop,
    RouteNextHopFlags, RouteType, RouteVia,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage, address::AddressAttribute};
use wire::ethernet::MacAddr;
use wire::xfrm::attribute::AttributeIter;

use super::kernel::{Event, Kind};
use super::model::{Address, Link, Neighbour, NeighbourState, NextHop, Route, RouteKind, Table};
use super::table::Placement;
use crate::netlink::{self, NetlinkSocket};

/// The question for one neighbour, RTM_GETNEIGH (linux/rtnetlink.h).
const GET_NEIGHBOUR: u16 = 30;
/// News of next-hop objects, RTM_…NEXTHOP (linux/rtnetlink.h), which the codec does not know.
const NEW_OBJECT: u16 = 104;
const DELETED_OBJECT: u16 = 105;
/// Bytes of `struct nhmsg` in front of the attributes, and the attribute that is the object's number
/// (linux/nexthop.h, NHA_ID).
const OBJECT_HEADER_BYTES: usize = 8;
const OBJECT_ID: u16 = 1;

/// What one message means.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decoded {
    /// News.
    Event(Event),
    /// Something that is not followed.
    Irrelevant,
    /// Not understood: a message that this version of the codec cannot read.
    Garbled,
}

/// Reads one message.
pub(super) fn decode(message: &NetlinkBuffer<&[u8]>, dump: bool) -> Decoded {
    let kind = message.message_type();
    if let NEW_OBJECT | DELETED_OBJECT = kind {
        let news = if kind == NEW_OBJECT { Event::Object } else { Event::ObjectGone };
        return object(message.payload()).map_or(Decoded::Garbled, |id| Decoded::Event(news(id)));
    }
    let Ok(parsed) = RouteNetlinkMessage::parse_with_param(message.payload(), kind) else {
        return Decoded::Garbled;
    };
    let event = match parsed {
        RouteNetlinkMessage::NewLink(m) => link(m).map(Event::Link),
        RouteNetlinkMessage::DelLink(m) => link(m).map(|link| Event::LinkGone(link.ifindex)),
        RouteNetlinkMessage::NewAddress(m) => address(&m).map(Event::Address),
        RouteNetlinkMessage::DelAddress(m) => address(&m).map(Event::AddressGone),
        RouteNetlinkMessage::NewRoute(m) => {
            let placement = if dump { Placement::Append } else { placement(message.flags()) };
            route(&m).map(|route| Event::Route(route, placement))
        }
        RouteNetlinkMessage::DelRoute(m) => route(&m).map(Event::RouteGone),
        RouteNetlinkMessage::NewNeighbour(m) => neighbour(&m).map(Event::Neighbour),
        RouteNetlinkMessage::DelNeighbour(m) => {
            neighbour(&m).map(|n| Event::NeighbourGone(n.ifindex, n.address))
        }
        _ => None,
    };
    event.map_or(Decoded::Irrelevant, Decoded::Event)
}

/// The number of the next-hop object that a message is about.
fn object(payload: &[u8]) -> Option<u32> {
    let mut attributes = AttributeIter::new(payload.get(OBJECT_HEADER_BYTES..)?);
    attributes.find(|attribute| attribute.kind == OBJECT_ID)?.read()
}

/// Asks for all things of a kind; the sequence number of the answers.
pub(super) fn request_dump(socket: &mut NetlinkSocket, kind: Kind) -> io::Result<u32> {
    let message = match kind {
        Kind::Links => {
            let mut message = LinkMessage::default();
            // Counters make up most of a link's message, and nobody here reads them.
            let mask = LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]);
            message.attributes.push(mask);
            RouteNetlinkMessage::GetLink(message)
        }
        Kind::Addresses => RouteNetlinkMessage::GetAddress(AddressMessage::default()),
        Kind::Routes => RouteNetlinkMessage::GetRoute(RouteMessage::default()),
        Kind::Neighbours => RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default()),
    };
    send(socket, &message, NLM_F_REQUEST | NLM_F_DUMP)
}

/// Makes the kernel resolve a neighbour, or confirm one that has not been confirmed lately:
/// NTF_USE means "as if a packet were about to be sent to it" (neigh_event_send).
pub(super) fn request_resolution(
    socket: &mut NetlinkSocket,
    ifindex: u32,
    address: IpAddr,
) -> io::Result<u32> {
    let mut message = named(ifindex, address);
    message.header.flags = NeighbourFlags::Use;
    send(socket, &RouteNetlinkMessage::NewNeighbour(message), NLM_F_REQUEST | NLM_F_CREATE)
}

/// Asks for one neighbour as it is now. The answer reads like news.
pub(super) fn request_neighbour(
    socket: &mut NetlinkSocket,
    ifindex: u32,
    address: IpAddr,
) -> io::Result<u32> {
    let message = RouteNetlinkMessage::GetNeighbour(named(ifindex, address));
    send(socket, &message, NLM_F_REQUEST)
}

/// A message about one neighbour.
fn named(ifindex: u32, address: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = match Family::of(address) {
        Family::V4 => AddressFamily::Inet,
        Family::V6 => AddressFamily::Inet6,
    };
    message.header.ifindex = ifindex;
    message.header.state = NudState::None;
    message.attributes.push(NeighbourAttribute::Destination(address.into()));
    message
}

/// Whether a refusal is that of [`request_neighbour`].
pub(super) fn refuses_neighbour(refusal: &[u8]) -> bool {
    netlink::refused_type(refusal) == Some(GET_NEIGHBOUR)
}

fn send(socket: &mut NetlinkSocket, message: &RouteNetlinkMessage, flags: u16) -> io::Result<u32> {
    let mut payload = vec![0; message.buffer_len()];
    message.emit(&mut payload);
    socket.send(message.message_type(), flags, &payload)
}

fn placement(flags: u16) -> Placement {
    if flags & NLM_F_REPLACE != 0 {
        Placement::Replace
    } else if flags & NLM_F_APPEND != 0 {
        Placement::Append
    } else {
        Placement::Prepend
    }
}

fn link(message: LinkMessage) -> Option<Link> {
    // Bridge ports are told about a second time under their own family.
    if message.header.interface_family != AddressFamily::Unspec {
        return None;
    }
    let flags = message.header.flags;
    let mut link = Link {
        ifindex: message.header.index,
        name: String::new(),
        kind: None,
        mac: None,
        mtu: 0,
        up: flags.contains(LinkFlags::Up),
        carrier: flags.contains(LinkFlags::LowerUp),
        parent: None,
        vlan: None,
        master: None,
        vrf_table: None,
        rx_queues: 1,
    };
    let mut elsewhere = false;
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name = name,
            LinkAttribute::Address(bytes) => link.mac = mac(&bytes),
            LinkAttribute::Mtu(mtu) => link.mtu = mtu,
            LinkAttribute::Link(parent) => link.parent = Some(parent).filter(|&p| p != 0),
            LinkAttribute::LinkNetNsId(_) => elsewhere = true,
            LinkAttribute::Controller(master) => link.master = Some(master).filter(|&m| m != 0),
            LinkAttribute::NumRxQueues(queues) => link.rx_queues = queues,
            LinkAttribute::LinkInfo(infos) => link_info(&infos, &mut link),
            _ => {}
        }
    }
    if elsewhere {
        // The parent's index counts in another namespace, where it may be a number in use here.
        link.parent = None;
    }
    Some(link)
}

fn link_info(infos: &[LinkInfo], link: &mut Link) {
    for info in infos {
        match info {
            LinkInfo::Kind(kind) => link.kind = Some(kind.to_string()),
            LinkInfo::Data(InfoData::Vlan(vlan)) => {
                let tag = |info: &InfoVlan| match info {
                    InfoVlan::Id(id) => Some(*id),
                    _ => None,
                };
                link.vlan = vlan.iter().find_map(tag);
            }
            LinkInfo::Data(InfoData::Vrf(vrf)) => {
                let table = |info: &InfoVrf| match info {
                    InfoVrf::TableId(table) => Some(*table),
                    _ => None,
                };
                link.vrf_table = vrf.iter().find_map(table);
            }
            _ => {}
        }
    }
}

fn mac(bytes: &[u8]) -> Option<MacAddr> {
    bytes.try_into().ok().map(MacAddr)
}

fn address(message: &AddressMessage) -> Option<Address> {
    let (mut local, mut any) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            // On a point-to-point link IFA_ADDRESS is the peer, and IFA_LOCAL is the host.
            AddressAttribute::Local(address) => local = Some(*address),
            AddressAttribute::Address(address) => any = Some(*address),
            _ => {}
        }
    }
    let address = local.or(any)?;
    Some(Address {
        ifindex: message.header.index,
        address,
        prefix_length: message.header.prefix_len,
        peer: any.filter(|peer| *peer != address && address.is_ipv4()),
    })
}

fn route(message: &RouteMessage) -> Option<Route> {
    let header = &message.header;
    let family = family(header.address_family)?;
    let special = header.tos != 0 || header.source_prefix_length != 0;
    if special || header.flags.contains(RouteFlags::Cloned) {
        return None;
    }
    let mut table = u32::from(header.table);
    let mut destination = Prefix::any(family).address();
    let mut parts = Parts::default();
    let (mut metric, mut source, mut mtu) = (0, None, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::Destination(address) => destination = ip(address)?,
            RouteAttribute::Priority(priority) => metric = *priority,
            RouteAttribute::PrefSource(address) => source = ip(address),
            RouteAttribute::Metrics(metrics) => mtu = mtu_of(metrics),
            other => parts.take(other),
        }
    }
    let prefix = Prefix::new(destination, header.destination_prefix_length)?;
    let hops = parts.hops(header.flags);
    Some(Route {
        table: Table::from_number(table)?,
        prefix,
        metric,
        kind: route_kind(header.kind, &parts, &hops)?,
        hops,
        preferred_source: source,
        mtu,
        protocol: header.protocol.into(),
        object: parts.object,
    })
}

/// The attributes that make up the ways out of a route.
#[derive(Default)]
struct Parts {
    gateway: Option<IpAddr>,
    ifindex: Option<u32>,
    multipath: Vec<NextHop>,
    encapsulated: bool,
    object: Option<u32>,
}

impl Parts {
    fn take(&mut self, attribute: &RouteAttribute) {
        match attribute {
            RouteAttribute::Gateway(address) => self.gateway = ip(address),
            RouteAttribute::Via(RouteVia::Inet(v4)) => self.gateway = Some((*v4).into()),
            RouteAttribute::Via(RouteVia::Inet6(v6)) => self.gateway = Some((*v6).into()),
            RouteAttribute::Oif(ifindex) => self.ifindex = Some(*ifindex),
            RouteAttribute::MultiPath(hops) => {
                self.multipath = hops.iter().map(|hop| self.hop(hop)).collect();
            }
            RouteAttribute::EncapType(_) | RouteAttribute::Encap(_) => self.encapsulated = true,
            RouteAttribute::NhId(id) => self.object = Some(*id),
            _ => {}
        }
    }

    fn hop(&mut self, hop: &RouteNextHop) -> NextHop {
        let mut inner = Self::default();
        hop.attributes.iter().for_each(|attribute| inner.take(attribute));
        self.encapsulated |= inner.encapsulated;
        NextHop {
            gateway: inner.gateway,
            ifindex: hop.interface_index,
            weight: u16::from(hop.hops) + 1,
            dead: hop.flags.contains(RouteNextHopFlags::Dead),
            link_down: hop.flags.contains(RouteNextHopFlags::Linkdown),
        }
    }

    /// All of them; those of a single one are the route's flags.
    fn hops(&self, flags: RouteFlags) -> Vec<NextHop> {
        if !self.multipath.is_empty() {
            return self.multipath.clone();
        }
        let hop = |ifindex| NextHop {
            gateway: self.gateway,
            ifindex,
            weight: 1,
            dead: flags.contains(RouteFlags::Dead),
            link_down: flags.contains(RouteFlags::Linkdown),
        };
        self.ifindex.map(hop).into_iter().collect()
    }
}

fn route_kind(kind: RouteType, parts: &Parts, hops: &[NextHop]) -> Option<RouteKind> {
    Some(match kind {
        RouteType::Unicast if parts.encapsulated => RouteKind::KernelOnly("tunnel encapsulation"),
        RouteType::Unicast if hops.is_empty() && parts.object.is_some() => {
            RouteKind::KernelOnly("next-hop object (sysctl net.ipv4.nexthop_compat_mode is 0)")
        }
        RouteType::Unicast if hops.is_empty() => RouteKind::KernelOnly("no interface"),
        RouteType::Unicast => RouteKind::Unicast,
        RouteType::Local | RouteType::Anycast => RouteKind::Local,
        RouteType::Broadcast => RouteKind::Broadcast,
        RouteType::Multicast => RouteKind::Multicast,
        RouteType::BlackHole => RouteKind::Blackhole,
        RouteType::Unreachable => RouteKind::Unreachable,
        RouteType::Prohibit => RouteKind::Prohibit,
        RouteType::Throw => RouteKind::Throw,
        // NAT and external resolution are not in any kernel of this century.
        _ => return None,
    })
}

fn mtu_of(metrics: &[RouteMetric]) -> Option<u32> {
    metrics.iter().find_map(|metric| match metric {
        RouteMetric::Mtu(mtu) => Some(*mtu),
        _ => None,
    })
}

fn neighbour(message: &NeighbourMessage) -> Option<Neighbour> {
    family(message.header.family)?;
    if message.header.flags.contains(NeighbourFlags::Proxy) {
        return None;
    }
    let (mut address, mut hardware) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => {
                address = Some(IpAddr::V4(*v4));
            }
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => {
                address = Some(IpAddr::V6(*v6));
            }
            NeighbourAttribute::LinkLayerAddress(bytes) => hardware = mac(bytes),
            _ => {}
        }
    }
    Some(Neighbour {
        ifindex: message.header.ifindex,
        address: address?,
        mac: hardware,
        state: neighbour_state(message.header.state),
    })
}

fn neighbour_state(state: NudState) -> NeighbourState {
    match state {
        NudState::Incomplete => NeighbourState::Incomplete,
        NudState::Reachable => NeighbourState::Reachable,
        NudState::Stale => NeighbourState::Stale,
        NudState::Delay => NeighbourState::Delay,
        NudState::Probe => NeighbourState::Probe,
        NudState::Failed => NeighbourState::Failed,
        NudState::Noarp => NeighbourState::NoArp,
        NudState::Permanent => NeighbourState::Permanent,
        _ => NeighbourState::None,
    }
}

fn family(family: AddressFamily) -> Option<Family> {
    match family {
        AddressFamily::Inet => Some(Family::V4),
        AddressFamily::Inet6 => Some(Family::V6),
        _ => None,
    }
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some((*v4).into()),
        RouteAddress::Inet6(v6) => Some((*v6).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::DefaultNla;
    use netlink_packet_route::link::InfoKind;

    use super::*;

    /// A message as it would come from the kernel, decoded.
    fn through(message: RouteNetlinkMessage, flags: u16) -> Decoded {
        let length = 16 + message.buffer_len();
        let mut bytes = vec![0; length];
        message.emit(&mut bytes[16..]);
        let mut header = NetlinkBuffer::new(&mut bytes[..]);
        header.set_length(length as u32);
        header.set_message_type(message.message_type());
        header.set_flags(flags);
        decode(&NetlinkBuffer::new(&bytes[..]), false)
    }

    fn link_message(attributes: Vec<LinkAttribute>) -> RouteNetlinkMessage {
        let mut message = LinkMessage::default();
        message.header.index = 9;
        message.header.flags = LinkFlags::Up | LinkFlags::LowerUp;
        message.attributes = attributes;
        RouteNetlinkMessage::NewLink(message)
    }

    fn route_message(attributes: Vec<RouteAttribute>) -> RouteMessage {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet;
        message.header.destination_prefix_length = 8;
        message.header.table = 254;
        message.header.kind = RouteType::Unicast;
        let destination = RouteAddress::Inet([10, 1, 2, 3].into());
        message.attributes = vec![RouteAttribute::Destination(destination)];
        message.attributes.extend(attributes);
        message
    }

    fn route_of(message: RouteMessage) -> Option<Route> {
        match through(RouteNetlinkMessage::NewRoute(message), 0) {
            Decoded::Event(Event::Route(route, Placement::Prepend)) => Some(route),
            Decoded::Irrelevant => None,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_vlan_names_its_tag_and_its_parent() {
        let info = |kind| {
            let data = InfoData::Vlan(vec![InfoVlan::Id(7)]);
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind), LinkInfo::Data(data)])
        };
        let name = || LinkAttribute::IfName("p0.7".to_owned());
        let mut attributes = vec![name(), LinkAttribute::Link(3), info(InfoKind::Vlan)];
        let link = |attributes| match through(link_message(attributes), 0) {
            Decoded::Event(Event::Link(link)) => link,
            other => panic!("{other:?}"),
        };
        let vlan = link(attributes.clone());
        assert_eq!((vlan.ifindex, vlan.name.as_str(), vlan.up), (9, "p0.7", true));
        assert_eq!(
            (vlan.kind.as_deref(), vlan.vlan, vlan.parent),
            (Some("vlan"), Some(7), Some(3))
        );
        attributes.push(LinkAttribute::LinkNetNsId(1));
        assert_eq!(link(attributes).parent, None, "the parent is in another namespace");
    }

    #[test]
    fn a_bridges_view_of_a_port_is_not_a_link() {
        let RouteNetlinkMessage::NewLink(mut message) = link_message(vec![]) else { panic!() };
        message.header.interface_family = AddressFamily::Bridge;
        let decoded = through(RouteNetlinkMessage::DelLink(message), 0);
        assert_eq!(decoded, Decoded::Irrelevant);
    }

    #[test]
    fn a_vrf_device_has_a_table_and_its_parts_have_it_for_a_master() {
        let vrf = vec![
            LinkInfo::Kind(InfoKind::Vrf),
            LinkInfo::Data(InfoData::Vrf(vec![InfoVrf::TableId(10)])),
        ];
        let attributes = vec![LinkAttribute::IfName("blue".into()), LinkAttribute::LinkInfo(vrf)];
        let Decoded::Event(Event::Link(blue)) = through(link_message(attributes), 0) else {
            panic!("a link");
        };
        assert_eq!((blue.kind.as_deref(), blue.vrf_table), (Some("vrf"), Some(10)));
        let attributes = vec![LinkAttribute::IfName("red0".into()), LinkAttribute::Controller(9)];
        let Decoded::Event(Event::Link(part)) = through(link_message(attributes), 0) else {
            panic!("a link");
        };
        assert_eq!((part.master, part.vrf_table), (Some(blue.ifindex), None));
    }

    #[test]
    fn ways_that_only_the_kernel_knows_are_marked() {
        let kind = |attributes| route_of(route_message(attributes)).unwrap().kind;
        let oif = || RouteAttribute::Oif(2);
        assert_eq!(kind(vec![oif()]), RouteKind::Unicast);
        let encapsulation = RouteAttribute::EncapType(1.into());
        assert!(matches!(kind(vec![oif(), encapsulation]), RouteKind::KernelOnly(_)));
        assert!(matches!(kind(vec![RouteAttribute::NhId(1)]), RouteKind::KernelOnly(_)));
        assert_eq!(kind(vec![oif(), RouteAttribute::NhId(1)]), RouteKind::Unicast);
        assert!(matches!(kind(vec![]), RouteKind::KernelOnly(_)));
    }

    #[test]
    fn next_hop_objects_are_known_by_their_numbers() {
        let told = |kind: u16, body: &[u8]| {
            let mut bytes = vec![0; 16 + body.len()];
            bytes[16..].copy_from_slice(body);
            let mut header = NetlinkBuffer::new(&mut bytes[..]);
            header.set_length(16 + body.len() as u32);
            header.set_message_type(kind);
            decode(&NetlinkBuffer::new(&bytes[..]), false)
        };
        // Through 10.9.0.2 (NHA_GATEWAY), then the number.
        let mut body = vec![2, 0, 0, 0, 0, 0, 0, 0, 8, 0, 6, 0, 10, 9, 0, 2, 8, 0, 1, 0];
        body.extend(700_u32.to_ne_bytes());
        assert_eq!(told(104, &body), Decoded::Event(Event::Object(700)));
        assert_eq!(told(105, &body), Decoded::Event(Event::ObjectGone(700)));
        assert_eq!(told(105, &body[..16]), Decoded::Garbled);
        assert_eq!(told(105, &body[..7]), Decoded::Garbled);
    }

    #[test]
    fn routes_for_some_packets_only_are_left_out() {
        let with = |change: fn(&mut RouteMessage)| {
            let mut message = route_message(vec![RouteAttribute::Oif(2)]);
            change(&mut message);
            route_of(message).map(|route| (route.table, route.prefix.to_string()))
        };
        assert_eq!(with(|_| ()), Some((Table::Main, "10.0.0.0/8".to_owned())));
        assert_eq!(with(|m| m.header.tos = 16), None);
        assert_eq!(with(|m| m.header.source_prefix_length = 8), None);
        assert_eq!(with(|m| m.header.flags = RouteFlags::Cloned), None);
        assert_eq!(with(|m| m.header.address_family = AddressFamily::Mpls), None);
        assert_eq!(with(|m| m.header.table = 0), None);
        let table = |number| Some((Table::Other(number), "10.0.0.0/8".to_owned()));
        assert_eq!(with(|m| m.header.table = 220), table(220));
        assert_eq!(with(|m| m.attributes.push(RouteAttribute::Table(1000))), table(1000));
        assert_eq!(with(|m| m.header.destination_prefix_length = 33), None);
        let local = with(|m| m.attributes.push(RouteAttribute::Table(255)));
        assert_eq!(local.map(|(table, _)| table), Some(Table::Local));
    }

    #[test]
    fn flags_say_where_a_route_goes() {
        assert_eq!(placement(NLM_F_REPLACE | NLM_F_APPEND), Placement::Replace);
        assert_eq!(placement(NLM_F_CREATE | NLM_F_APPEND), Placement::Append);
        assert_eq!(placement(NLM_F_CREATE), Placement::Prepend);
    }

    #[test]
    fn proxies_and_foreign_messages_are_left_out_and_nonsense_is_told() {
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Inet;
        let address = NeighbourAddress::Inet([10, 0, 0, 1].into());
        message.attributes.push(NeighbourAttribute::Destination(address));
        let told = |message: &NeighbourMessage| {
            through(RouteNetlinkMessage::NewNeighbour(message.clone()), 0)
        };
        assert!(matches!(told(&message), Decoded::Event(Event::Neighbour(_))));
        message.header.flags = NeighbourFlags::Proxy;
        assert_eq!(told(&message), Decoded::Irrelevant);
        let mut odd = route_message(vec![]);
        let short = DefaultNla::new(4, vec![1]);
        odd.attributes.push(RouteAttribute::Other(short));
        assert_eq!(through(RouteNetlinkMessage::NewRoute(odd), 0), Decoded::Garbled);
    }
}
