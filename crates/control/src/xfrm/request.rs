//! From bytes to a request whose lengths were checked as the kernel checks them.

use rustix::io::Errno;
use wire::xfrm::address::Mark;
use wire::xfrm::attribute::{Attribute, Attributes};
use wire::xfrm::message::{Message, fixed_len};
use wire::xfrm::netlink::Header;
use wire::xfrm::number::{attr, msg, sa_direction, spd_attr};
use zerocopy::FromBytes;

use super::client::Client;
use super::counters::Counters;
use super::failure::{Expected, Failure};
use super::sa::Direction;

/// One request.
pub(super) struct Request<'a> {
    pub(super) client: &'a Client,
    pub(super) message: Message<'a>,
    pub(super) attributes: Attributes<'a>,
    pub(super) counters: &'a dyn Counters,
    /// Seconds since the epoch.
    pub(super) now: u64,
}

impl<'a> Request<'a> {
    /// Checks lengths: the fixed part first, then each attribute in order.
    pub(super) fn parse(
        client: &'a Client,
        header: Header,
        bytes: &'a [u8],
        counters: &'a dyn Counters,
        now: u64,
    ) -> Result<Self, Failure> {
        let fixed = fixed_len(header.kind).ok_or(Errno::INVAL)?;
        let message =
            Message::new(header, bytes, fixed).ok_or(Failure::invalid("Invalid header length"))?;
        let attributes = parse_attributes(&message)?;
        refuse_unused(header.kind, &attributes)?;
        Ok(Self { client, message, attributes, counters, now })
    }

    pub(super) fn header(&self) -> Header {
        self.message.header
    }

    /// The fixed part.
    pub(super) fn fixed<T: FromBytes>(&self) -> Result<T, Failure> {
        self.message.fixed().ok_or(Failure::new(Errno::INVAL))
    }

    /// `XFRMA_MARK`, zero when absent.
    pub(super) fn mark(&self) -> Mark {
        self.attributes.read(attr::MARK).unwrap_or_default()
    }

    /// A u32 attribute, zero when absent.
    pub(super) fn number(&self, kind: u16) -> u32 {
        self.attributes.read(kind).unwrap_or_default()
    }
}

/// Attributes that mean something in some requests are refused in all others (since Linux 6.10).
fn refuse_unused(kind: u16, attributes: &Attributes<'_>) -> Result<(), Failure> {
    let states = matches!(kind, msg::NEWSA | msg::UPDSA | msg::ALLOCSPI);
    if kind == msg::NEWSPDINFO {
        return Ok(());
    }
    if attributes.has(attr::SA_DIR) && !states {
        return Err(Failure::invalid("Invalid attribute SA_DIR"));
    }
    if attributes.has(attr::SA_PCPU) && !states && kind != msg::ACQUIRE {
        return Err(Failure::invalid("Invalid attribute SA_PCPU"));
    }
    Ok(())
}

/// What the kernel demands of an attribute's value.
#[derive(Clone, Copy)]
enum Rule {
    /// At least so many bytes; more are allowed and ignored.
    AtLeast(usize),
    /// An integer of at least so many bytes; more are allowed and ignored.
    Integer(usize),
    /// Exactly so many bytes (attributes since Linux 6.10 are checked strictly).
    Exactly(usize),
    /// One byte, a direction.
    Direction,
    /// A flag.
    Flag,
}

const fn rule(kind: u16) -> Rule {
    match kind {
        attr::ALG_AUTH | attr::ALG_CRYPT | attr::ALG_COMP => Rule::AtLeast(68),
        attr::ALG_AUTH_TRUNC | attr::ALG_AEAD => Rule::AtLeast(72),
        attr::ENCAP | attr::REPLAY_ESN_VAL => Rule::AtLeast(24),
        attr::TMPL => Rule::AtLeast(64),
        attr::SA => Rule::AtLeast(224),
        attr::POLICY => Rule::AtLeast(168),
        attr::SEC_CTX | attr::MARK | attr::OFFLOAD_DEV => Rule::AtLeast(8),
        attr::LASTUSED => Rule::Integer(8),
        attr::LTIME_VAL => Rule::AtLeast(32),
        attr::REPLAY_VAL => Rule::AtLeast(12),
        attr::SRCADDR | attr::COADDR => Rule::AtLeast(16),
        attr::POLICY_TYPE => Rule::AtLeast(6),
        attr::MIGRATE => Rule::AtLeast(76),
        attr::KMADDRESS => Rule::AtLeast(40),
        attr::PROTO => Rule::Integer(1),
        attr::ADDRESS_FILTER => Rule::AtLeast(36),
        attr::REPLAY_THRESH | attr::ETIMER_THRESH | attr::TFCPAD | attr::SA_EXTRA_FLAGS => {
            Rule::Integer(4)
        }
        attr::SET_MARK | attr::SET_MARK_MASK | attr::IF_ID | attr::MTIMER_THRESH => {
            Rule::Integer(4)
        }
        attr::SA_DIR => Rule::Direction,
        attr::NAT_KEEPALIVE_INTERVAL
        | attr::SA_PCPU
        | attr::IPTFS_DROP_TIME
        | attr::IPTFS_INIT_DELAY
        | attr::IPTFS_MAX_QSIZE
        | attr::IPTFS_PKT_SIZE => Rule::Exactly(4),
        attr::IPTFS_REORDER_WINDOW => Rule::Exactly(2),
        attr::IPTFS_DONT_FRAG => Rule::Flag,
        _ => Rule::AtLeast(0),
    }
}

fn check(attribute: &Attribute<'_>, rule: Rule) -> Result<(), Failure> {
    let integer = |bytes: usize| Expected { bytes, min: 0, max: u64::MAX >> (64 - 8 * bytes) };
    let direction =
        Expected { min: sa_direction::IN.into(), max: sa_direction::OUT.into(), ..integer(1) };
    let len = attribute.payload.len();
    let (bytes, expected) = match rule {
        Rule::AtLeast(min) => return too_short_if(len < min, None),
        Rule::Integer(min) => return too_short_if(len < min, Some(integer(min))),
        Rule::Flag => return too_short_if(len > 0, None),
        Rule::Exactly(exact) => (exact, integer(exact)),
        Rule::Direction => (1, direction),
    };
    let refuse = |errno, message| {
        Err(Failure { expected: Some(expected), ..Failure::because(errno, message) })
    };
    if len != bytes {
        return refuse(Errno::INVAL, "invalid attribute length");
    }
    if attribute.nested {
        return refuse(Errno::INVAL, "NLA_F_NESTED isn't expected");
    }
    let value = attribute.payload.first().copied().unwrap_or_default();
    if matches!(rule, Rule::Direction) && Direction::from_wire(value).is_none() {
        return refuse(Errno::RANGE, "integer out of range");
    }
    Ok(())
}

fn too_short_if(condition: bool, expected: Option<Expected>) -> Result<(), Failure> {
    const POLICY: Failure = Failure::because(Errno::RANGE, "Attribute failed policy validation");
    if condition { Err(Failure { expected, ..POLICY }) } else { Ok(()) }
}

/// The attributes of a request, each checked.
pub(super) fn parse_attributes<'a>(message: &Message<'a>) -> Result<Attributes<'a>, Failure> {
    let spd = message.header.kind == msg::NEWSPDINFO;
    let max = if spd { spd_attr::MAX } else { attr::MAX };
    Attributes::parse(message.attribute_bytes(), max, |attribute| {
        let rule = match attribute.kind {
            spd_attr::IPV4_HTHRESH | spd_attr::IPV6_HTHRESH if spd => Rule::AtLeast(2),
            _ if spd => Rule::AtLeast(0),
            kind => rule(kind),
        };
        check(attribute, rule).map_err(|failure| Failure {
            offset: u32::try_from(message.attributes_offset() + attribute.offset).ok(),
            ..failure
        })
    })
}
