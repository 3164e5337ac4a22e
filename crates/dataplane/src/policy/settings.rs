//! What control says of a policy, and the form in which it is kept: packed, as nobody but people and a
//! few packets in a thousand ask for it.

use std::net::{IpAddr, Ipv4Addr};

use super::{Hot, Kind, NO_BUNDLE};
use crate::prefix::Prefix;
use crate::sa::{Mode, Sa};
use crate::selector::{PortMatch, Selector};

/// Where a policy applies, numbered as `XFRM_POLICY_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Traffic for this host.
    In = 0,
    /// Traffic that leaves, the host's own or forwarded.
    Out = 1,
    /// Traffic that is forwarded, as it comes in.
    Forward = 2,
}

impl Direction {
    /// All three, in the order of their numbers.
    pub const ALL: [Direction; 3] = [Direction::In, Direction::Out, Direction::Forward];
}

/// The SA that a protect policy asks for: ESP between two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Template {
    /// Tunnel or transport. In transport mode the two ends are the packet's own, and those below
    /// say nothing, as in Linux.
    pub mode: Mode,
    /// Outer source; unspecified matches any.
    pub source: IpAddr,
    /// Outer destination; unspecified matches any.
    pub destination: IpAddr,
    /// The SA's SPI; 0 matches any.
    pub spi: u32,
    /// The SA's reqid; 0 matches any.
    pub reqid: u32,
    /// `level use`: without an SA, traffic passes in clear.
    pub optional: bool,
}

impl Template {
    /// Whether a packet that came through `sa` is what the template asks for.
    pub fn accepts(&self, sa: &Sa) -> bool {
        let same_ends = self.mode == Mode::Transport
            || (self.source.is_unspecified() || self.source == sa.source())
                && (self.destination.is_unspecified() || self.destination == sa.destination());
        self.mode == sa.mode()
            && (self.reqid == 0 || self.reqid == sa.reqid())
            && (self.spi == 0 || self.spi == sa.spi())
            && same_ends
    }
}

/// What a policy does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Forward in clear.
    Bypass,
    /// Drop.
    Discard,
    /// Require the template's SA. Outbound, the SA is in the slot of
    /// [`View::bundles`](crate::view::View::bundles) that `bundle` names; inbound it is not used.
    Protect {
        /// The SA that is asked for.
        template: Template,
        /// The slot of the outbound SA.
        bundle: Option<u32>,
    },
}

/// Everything control says about a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyConfig {
    /// The kernel's index of the policy, unique among all directions.
    pub index: u32,
    /// Where it applies.
    pub direction: Direction,
    /// The tunnel whose packets it is for, as XFRM's interfaces name them; 0 for all that no tunnel
    /// of route mode concerns.
    pub if_id: u32,
    /// What it selects.
    pub selector: Selector,
    /// The lowest value wins.
    pub priority: u32,
    /// Among equal priorities the lowest value wins. Control numbers policies as they are added,
    /// and a policy keeps its position when it is updated.
    pub position: u64,
    /// What is done.
    pub action: Action,
    /// `XFRM_POLICY_CPU_ACQUIRE`: a worker that has no SA of its own asks for one (RFC 9611).
    pub own_sas: bool,
}

impl PolicyConfig {
    /// A policy that lets its flows pass in clear, preferred to all others that select them.
    pub fn bypass(index: u32, direction: Direction, selector: Selector) -> PolicyConfig {
        PolicyConfig {
            index,
            direction,
            if_id: 0,
            selector,
            priority: 0,
            position: 0,
            action: Action::Bypass,
            own_sas: false,
        }
    }
}

/// What of a [`PolicyConfig`] is not in the hot line: the selector, the template if there is one, and the
/// `if_id`.
#[derive(Debug)]
pub(super) enum Details {
    /// All addresses are IPv4 and there is no `if_id`, as in nearly every policy of nearly every gateway.
    Ipv4(Ipv4Details),
    Any(Box<(Selector, Option<Template>, u32)>),
}

/// Mode and level of the template are in the hot line.
#[derive(Debug)]
pub(super) struct Ipv4Details {
    prefix_lens: [u8; 2],
    protocol: u8,
    ports: [PortMatch; 2],
    prefixes: [Ipv4Addr; 2],
    template_ends: [Ipv4Addr; 2],
    reqid: u32,
    spi: u32,
}

const _: () = assert!(size_of::<Details>() == 40);

impl Details {
    pub(super) fn of(config: &PolicyConfig) -> Details {
        let template = match config.action {
            Action::Protect { template, .. } => Some(template),
            Action::Bypass | Action::Discard => None,
        };
        let ipv4 = Details::ipv4(&config.selector, template).filter(|_| config.if_id == 0);
        ipv4.unwrap_or_else(|| Details::Any(Box::new((config.selector, template, config.if_id))))
    }

    fn ipv4(selector: &Selector, template: Option<Template>) -> Option<Details> {
        let v4 = |address| match address {
            IpAddr::V4(v4) => Some(v4),
            IpAddr::V6(_) => None,
        };
        let Selector { source, destination, protocol, source_port, destination_port } = *selector;
        let template_ends = match template {
            Some(template) => [v4(template.source)?, v4(template.destination)?],
            None => [Ipv4Addr::UNSPECIFIED; 2],
        };
        Some(Details::Ipv4(Ipv4Details {
            prefix_lens: [source.len(), destination.len()],
            protocol,
            ports: [source_port, destination_port],
            prefixes: [v4(source.address())?, v4(destination.address())?],
            template_ends,
            reqid: template.map_or(0, |template| template.reqid),
            spi: template.map_or(0, |template| template.spi),
        }))
    }

    /// The `if_id`.
    pub(super) fn if_id(&self) -> u32 {
        match self {
            Details::Any(any) => any.2,
            Details::Ipv4(_) => 0,
        }
    }

    /// The selector.
    pub(super) fn selector(&self) -> Selector {
        match self {
            Details::Any(any) => any.0,
            Details::Ipv4(v4) => {
                let [source, destination] = [0, 1].map(|at| {
                    let address = v4.prefixes[at].into();
                    Prefix::new(address, v4.prefix_lens[at]).unwrap_or(Prefix::host(address))
                });
                let [source_port, destination_port] = v4.ports;
                let protocol = v4.protocol;
                Selector { source, destination, protocol, source_port, destination_port }
            }
        }
    }

    /// The template of the policy whose hot line this is, if it has one.
    pub(super) fn template(&self, hot: &Hot) -> Option<Template> {
        if hot.kind != Kind::Protect {
            return None;
        }
        match self {
            Details::Any(any) => any.1,
            Details::Ipv4(v4) => Some(Template {
                mode: if hot.transport { Mode::Transport } else { Mode::Tunnel },
                source: v4.template_ends[0].into(),
                destination: v4.template_ends[1].into(),
                spi: v4.spi,
                reqid: v4.reqid,
                optional: hot.optional,
            }),
        }
    }

    /// What the policy whose hot line this is does.
    pub(super) fn action(&self, hot: &Hot) -> Action {
        let bundle = (hot.bundle != NO_BUNDLE).then_some(hot.bundle);
        match self.template(hot) {
            Some(template) => Action::Protect { template, bundle },
            None if hot.kind == Kind::Bypass => Action::Bypass,
            None => Action::Discard,
        }
    }
}
