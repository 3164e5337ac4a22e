//! Routes, rules and links as rtnetlink's bytes (linux/rtnetlink.h, linux/fib_rules.h), and back.
//!
//! Only what the gateway writes of them, and reads again after a restart. Pure: no socket, and no message headers.

use std::net::IpAddr;

use dataplane::prefix::{Family, Prefix};
use wire::xfrm::attribute::{Attribute as WireAttribute, AttributeIter};

use crate::netlink::Attribute;

/// Who made a route or a rule (RTPROT_…): a number that nobody has registered, `P`.
pub const OUR_PROTOCOL: u8 = 80;

// linux/rtnetlink.h, linux/fib_rules.h, linux/if_link.h.
pub const RTM_NEWLINK: u16 = 16;
pub const RTM_DELLINK: u16 = 17;
pub const RTM_NEWROUTE: u16 = 24;
pub const RTM_DELROUTE: u16 = 25;
pub const RTM_GETROUTE: u16 = 26;
pub const RTM_NEWRULE: u16 = 32;
pub const RTM_DELRULE: u16 = 33;
pub const RTM_GETRULE: u16 = 34;
pub const RTA_DST: u16 = 1;
pub const RTA_OIF: u16 = 4;
pub const RTA_GATEWAY: u16 = 5;
pub const RTA_PRIORITY: u16 = 6;
pub const RTA_PREFSRC: u16 = 7;
pub const RTA_TABLE: u16 = 15;
pub const RTA_VIA: u16 = 18;
pub const RTNH_F_ONLINK: u32 = 4;
pub const FRA_SRC: u16 = 2;
pub const FRA_IIFNAME: u16 = 3;
pub const FRA_GOTO: u16 = 4;
pub const FRA_PRIORITY: u16 = 6;
pub const FRA_TABLE: u16 = 15;
pub const FRA_PROTOCOL: u16 = 21;
pub const FRA_IP_PROTO: u16 = 22;
pub const FRA_SPORT_RANGE: u16 = 23;
pub const FR_ACT_TO_TBL: u8 = 1;
pub const FR_ACT_GOTO: u8 = 2;
pub const FR_ACT_NOP: u8 = 3;
pub const IFLA_MTU: u16 = 4;
pub const IFF_UP: u32 = 1;
pub const RTN_UNICAST: u8 = 1;
pub const RTN_BLACKHOLE: u8 = 6;
pub const RTN_THROW: u8 = 9;
pub const SCOPE_LINK: u8 = 253;
pub const SCOPE_UNIVERSE: u8 = 0;
/// Of a route that is to be removed: any.
pub const SCOPE_NOWHERE: u8 = 255;
/// Where a route's fixed part has its scope.
pub const SCOPE_AT: usize = 6;

/// Where a route leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// To an interface, with a source address for those who have chosen none.
    Device(u32, Option<IpAddr>),
    /// By an interface to a next hop that is there, whatever the interface's addresses.
    Gateway(u32, IpAddr),
    /// Nowhere: packets die.
    Blackhole,
    /// To the next table.
    Throw,
}

/// A route; which table it is in is said beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The destinations.
    pub prefix: Prefix,
    /// Among routes of one prefix the lowest is taken.
    pub metric: u32,
    /// Where it leads.
    pub way: Way,
    /// Who made it.
    pub protocol: u8,
}

/// A rule for packets that this host sends, of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// The family.
    pub family: Family,
    /// Its place.
    pub priority: u32,
    /// Which packets.
    pub of: Of,
    /// What with them.
    pub action: Act,
}

/// Which of the host's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Of {
    /// All.
    Host,
    /// UDP from a port.
    Port(u16),
    /// From an address.
    Source(IpAddr),
    /// None: only a place to go to.
    Nobody,
}

/// What a rule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Act {
    /// Look into a table.
    Lookup(u32),
    /// Go on with the rule of this priority.
    Goto(u32),
    /// Nothing.
    Nop,
}

/// The fixed part and the attributes of a route's message.
pub fn route_body(table: u32, route: &Route) -> ([u8; 12], Vec<Attribute>) {
    let (scope, which) = match route.way {
        Way::Device(..) => (SCOPE_LINK, RTN_UNICAST),
        Way::Gateway(..) => (SCOPE_UNIVERSE, RTN_UNICAST),
        Way::Blackhole => (SCOPE_UNIVERSE, RTN_BLACKHOLE),
        Way::Throw => (SCOPE_UNIVERSE, RTN_THROW),
    };
    let family = family_number(route.prefix.family());
    let flags = if matches!(route.way, Way::Gateway(..)) { RTNH_F_ONLINK } else { 0 };
    let [f0, f1, f2, f3] = flags.to_ne_bytes();
    let head = [family, route.prefix.len(), 0, 0, 0, route.protocol, scope, which, f0, f1, f2, f3];
    let mut attributes = vec![
        (RTA_DST, octets(route.prefix.address())),
        (RTA_TABLE, table.to_ne_bytes().to_vec()),
        (RTA_PRIORITY, route.metric.to_ne_bytes().to_vec()),
    ];
    match route.way {
        Way::Device(index, source) => {
            attributes.push((RTA_OIF, index.to_ne_bytes().to_vec()));
            attributes.extend(source.map(|source| (RTA_PREFSRC, octets(source))));
        }
        Way::Gateway(index, hop) if Family::of(hop) == route.prefix.family() => {
            attributes.push((RTA_OIF, index.to_ne_bytes().to_vec()));
            attributes.push((RTA_GATEWAY, octets(hop)));
        }
        Way::Gateway(index, hop) => {
            attributes.push((RTA_OIF, index.to_ne_bytes().to_vec()));
            let of = u16::from(family_number(Family::of(hop))).to_ne_bytes();
            attributes.push((RTA_VIA, [&of[..], &octets(hop)].concat()));
        }
        Way::Blackhole | Way::Throw => {}
    }
    (head, attributes)
}

/// The fixed part and the attributes of a rule's message.
pub fn rule_body(rule: &Rule) -> ([u8; 12], Vec<Attribute>) {
    let mut attributes = vec![
        (FRA_PRIORITY, rule.priority.to_ne_bytes().to_vec()),
        (FRA_PROTOCOL, vec![OUR_PROTOCOL]),
    ];
    if rule.of != Of::Nobody {
        attributes.push((FRA_IIFNAME, b"lo\0".to_vec()));
    }
    let mut source_len = 0;
    match rule.of {
        Of::Port(port) => {
            let range = [port.to_ne_bytes(), port.to_ne_bytes()].concat();
            attributes.push((FRA_IP_PROTO, vec![wire::protocol::UDP]));
            attributes.push((FRA_SPORT_RANGE, range));
        }
        Of::Source(address) => {
            source_len = Family::of(address).bits();
            attributes.push((FRA_SRC, octets(address)));
        }
        Of::Host | Of::Nobody => {}
    }
    let action = match rule.action {
        Act::Lookup(table) => {
            attributes.push((FRA_TABLE, table.to_ne_bytes().to_vec()));
            FR_ACT_TO_TBL
        }
        Act::Goto(priority) => {
            attributes.push((FRA_GOTO, priority.to_ne_bytes().to_vec()));
            FR_ACT_GOTO
        }
        Act::Nop => FR_ACT_NOP,
    };
    let family = family_number(rule.family);
    ([family, 0, source_len, 0, 0, 0, 0, action, 0, 0, 0, 0], attributes)
}

/// The fixed part of a link's message: its index, and flags to set.
pub fn link_header(index: u32, flags: u32) -> Vec<u8> {
    let mut head = vec![0; 4];
    head.extend(index.to_ne_bytes());
    head.extend(flags.to_ne_bytes());
    head.extend(flags.to_ne_bytes());
    head
}

/// AF_INET or AF_INET6.
pub fn family_number(family: Family) -> u8 {
    match family {
        Family::V4 => 2,
        Family::V6 => 10,
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn number(value: &[u8]) -> u32 {
    value.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

fn address(value: &[u8]) -> Option<IpAddr> {
    let v4 = || <[u8; 4]>::try_from(value).ok().map(IpAddr::from);
    <[u8; 16]>::try_from(value).ok().map(IpAddr::from).or_else(v4)
}

/// The route of a message; `None` if it makes no sense.
pub fn read_route(family: Family, head: &[u8; 12], rest: &[u8]) -> Option<Route> {
    let any = Prefix::any(family);
    let (mut destination, mut metric, mut index, mut source) = (any.address(), 0, 0, None);
    let mut hop = None;
    for WireAttribute { kind, payload: value, .. } in AttributeIter::new(rest) {
        match kind {
            RTA_DST => destination = address(value)?,
            RTA_PRIORITY => metric = number(value),
            RTA_OIF => index = number(value),
            RTA_PREFSRC => source = address(value),
            RTA_GATEWAY => hop = address(value),
            RTA_VIA => hop = address(value.get(2..)?),
            _ => {}
        }
    }
    let way = match head[7] {
        RTN_BLACKHOLE => Way::Blackhole,
        RTN_THROW => Way::Throw,
        _ => hop.map_or(Way::Device(index, source), |hop| Way::Gateway(index, hop)),
    };
    Some(Route { prefix: Prefix::new(destination, head[1])?, metric, way, protocol: head[5] })
}

/// The rule of a message, if it is one of ours.
pub fn read_rule(family: Family, head: &[u8; 12], rest: &[u8]) -> Option<Rule> {
    let (mut priority, mut target, mut of) = (0, 0, Of::Nobody);
    let mut is_ours = false;
    for WireAttribute { kind, payload: value, .. } in AttributeIter::new(rest) {
        match kind {
            FRA_PRIORITY => priority = number(value),
            FRA_TABLE | FRA_GOTO if number(value) != 0 => target = number(value),
            FRA_PROTOCOL => is_ours = value == [OUR_PROTOCOL],
            FRA_IIFNAME if of == Of::Nobody => of = Of::Host,
            FRA_SRC => of = Of::Source(address(value)?),
            FRA_SPORT_RANGE => {
                of = Of::Port(value.first_chunk().map_or(0, |bytes| u16::from_ne_bytes(*bytes)));
            }
            _ => {}
        }
    }
    let action = match head[7] {
        FR_ACT_TO_TBL => Act::Lookup(target),
        FR_ACT_GOTO => Act::Goto(target),
        FR_ACT_NOP => Act::Nop,
        _ => return None,
    };
    is_ours.then_some(Rule { family, priority, of, action })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flat(attributes: &[Attribute]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (name, value) in attributes {
            bytes.extend((4 + value.len() as u16).to_ne_bytes());
            bytes.extend(name.to_ne_bytes());
            bytes.extend(value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn routes_and_rules_come_back_as_they_went() {
        let source = Some(IpAddr::from([10, 1, 0, 1]));
        let prefix = Prefix::new([10, 2, 0, 0].into(), 16).unwrap();
        let hops = [IpAddr::from([10, 0, 0, 1]), IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0, 7])];
        let [v4, v6] = hops.map(|hop| Way::Gateway(7, hop));
        let devices = [Way::Device(7, source), Way::Device(7, None)];
        for way in [devices[0], devices[1], v4, v6, Way::Blackhole, Way::Throw] {
            let route = Route { prefix, metric: 9, way, protocol: OUR_PROTOCOL };
            let (head, attributes) = route_body(20_551, &route);
            assert_eq!(read_route(Family::V4, &head, &flat(&attributes)), Some(route));
        }
        let address = "fd01::1".parse().unwrap();
        for (of, action) in [
            (Of::Nobody, Act::Nop),
            (Of::Host, Act::Lookup(20_551)),
            (Of::Port(4500), Act::Goto(203)),
            (Of::Source(address), Act::Goto(203)),
        ] {
            let rule = Rule { family: Family::V6, priority: 200, of, action };
            let (head, attributes) = rule_body(&rule);
            assert_eq!(read_rule(Family::V6, &head, &flat(&attributes)), Some(rule));
            // A rule of somebody else's.
            let others: Vec<_> =
                attributes.into_iter().filter(|(name, _)| *name != FRA_PROTOCOL).collect();
            assert_eq!(read_rule(Family::V6, &head, &flat(&others)), None);
        }
        // Whatever comes, nothing panics.
        for len in 0..8 {
            assert_eq!(read_rule(Family::V4, &[0xff; 12], &vec![0xff; len]), None);
            assert_eq!(read_route(Family::V4, &[0xff; 12], &vec![0xff; len]), None);
        }
    }
}
