//! What control says of a policy, and the form in which it is kept: packed, as nobody but people and a
//! few packets in a thousand ask for it.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::AtomicU64;

use super::{BriefV4, Hot, Kind, Marks, NO_BUNDLE};
use crate::sa::{Mode, Sa};
use crate::selector::Selector;

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
    /// Whether a packet that came through `sa` is what the template asks for. Which of this host's addresses the SA ends at
    /// is not asked, as in Linux (`xfrm_state_addr_cmp`): of two SAs from one peer a daemon's policy names the newer one's.
    pub fn accepts(&self, sa: &Sa) -> bool {
        let same_peer = self.mode == Mode::Transport
            || self.source.is_unspecified()
            || self.source == sa.source();
        self.mode == sa.mode()
            && (self.reqid == 0 || self.reqid == sa.reqid())
            && (self.spi == 0 || self.spi == sa.spi())
            && same_peer
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

/// What of a policy is in neither line.
#[derive(Debug)]
pub(super) struct Details {
    pub(super) first_use_ns: AtomicU64,
    /// When control was last asked for this policy's SA.
    pub(super) asked_ns: AtomicU64,
    settings: Settings,
}

/// What of a [`PolicyConfig`] is not in the lines: the selector and the template.
#[derive(Debug)]
enum Settings {
    /// The hot line has [all](BriefV4::selector) of the selector, and the template's ends are of IPv4, as in nearly
    /// every policy of nearly every gateway. Mode and level of the template are marks.
    Brief {
        ends: [Ipv4Addr; 2],
        reqid: u32,
        spi: u32,
    },
    Any(Box<(Selector, Option<Template>)>),
}

const _: () = assert!(size_of::<Details>() == 40);

impl Details {
    pub(super) fn of(config: &PolicyConfig) -> Details {
        let template = match config.action {
            Action::Protect { template, .. } => Some(template),
            Action::Bypass | Action::Discard => None,
        };
        let settings = Settings::brief(config, template)
            .unwrap_or_else(|| Settings::Any(Box::new((config.selector, template))));
        Details { first_use_ns: AtomicU64::new(0), asked_ns: AtomicU64::new(0), settings }
    }

    /// The selector of the policy whose hot line this is.
    pub(super) fn selector(&self, hot: &Hot) -> Selector {
        match &self.settings {
            Settings::Any(any) => any.0,
            Settings::Brief { .. } => hot.brief.selector(),
        }
    }

    /// The template of the policy whose hot line this is, if it has one.
    fn template(&self, hot: &Hot) -> Option<Template> {
        if hot.kind != Kind::Protect {
            return None;
        }
        match self.settings {
            Settings::Any(ref any) => any.1,
            Settings::Brief { ends: [source, destination], reqid, spi } => Some(Template {
                mode: if hot.marks.has(Marks::TRANSPORT) { Mode::Transport } else { Mode::Tunnel },
                source: source.into(),
                destination: destination.into(),
                spi,
                reqid,
                optional: hot.marks.has(Marks::OPTIONAL),
            }),
        }
    }

    /// What the policy whose hot line this is does.
    #[inline(always)]
    pub(super) fn action(&self, hot: &Hot) -> Action {
        let bundle = (hot.bundle != NO_BUNDLE).then_some(hot.bundle);
        match self.template(hot) {
            Some(template) => Action::Protect { template, bundle },
            None if hot.kind == Kind::Bypass => Action::Bypass,
            None => Action::Discard,
        }
    }
}

impl Settings {
    fn brief(config: &PolicyConfig, template: Option<Template>) -> Option<Settings> {
        let told = BriefV4::of_config(config).map(|brief| brief.selector());
        let v4 = |address| match address {
            IpAddr::V4(v4) => Some(v4),
            IpAddr::V6(_) => None,
        };
        let [source, destination] = match template {
            Some(template) => [v4(template.source)?, v4(template.destination)?],
            None => [Ipv4Addr::UNSPECIFIED; 2],
        };
        (told == Some(config.selector)).then(|| Settings::Brief {
            ends: [source, destination],
            reqid: template.map_or(0, |template| template.reqid),
            spi: template.map_or(0, |template| template.spi),
        })
    }
}
