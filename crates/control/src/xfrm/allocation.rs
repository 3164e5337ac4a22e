//! ALLOCSPI: reserves an SPI for an SA whose key is still being negotiated.

use rustix::io::Errno;
use wire::xfrm::address::{Address, Selector};
use wire::xfrm::lifetime::LifetimeConfig;
use wire::xfrm::number::{AF_INET, AF_INET6, IPPROTO_AH, IPPROTO_COMP, IPPROTO_ESP, attr};
use wire::xfrm::sa::{UsersaInfo, UserspiInfo};

use super::delivery::Delivery;
use super::failure::Failure;
use super::request::Request;
use super::sa::{Body, Direction, Sa, SaId, SaParameters};
use super::sad::LarvalKey;
use super::server::Server;

/// Random SPIs tried before a range counts as full. The kernel tries as many as the range has
/// numbers; a range this large cannot be full.
const ATTEMPTS_MAX: u32 = 1 << 20;

/// SplitMix64: SPIs need to differ from each other, not to be secret.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Below `bound`, which is not 0.
    fn below(&mut self, bound: u32) -> u32 {
        ((u64::from(self.next() as u32) * u64::from(bound)) >> 32) as u32
    }
}

impl Server {
    /// ALLOCSPI. Answers with the larval SA.
    pub(super) fn allocate_spi(
        &mut self,
        request: &Request<'_>,
        out: &mut Vec<Delivery>,
    ) -> Result<(), Failure> {
        let wanted: UserspiInfo = request.fixed()?;
        check_range(wanted.info.id.proto, wanted.min, wanted.max)?;
        // The kernel takes any family here and would keep an SA that nothing can use.
        if !matches!(wanted.info.family, AF_INET | AF_INET6) {
            return Err(Errno::INVAL.into());
        }
        let cpu = request.attributes.read::<u32>(attr::SA_PCPU);
        if cpu.is_some_and(|cpu| cpu >= self.settings.cpus) {
            return Err(Failure::invalid("pCPU number too big"));
        }
        let id = match self.waiting_sa(&wanted.info, request) {
            Some(id) => id,
            None => self.insert_larval(&wanted.info, cpu, request),
        };
        self.assign_spi(id, wanted.min, wanted.max)?;
        let direction = request.attributes.read(attr::SA_DIR).and_then(Direction::from_wire);
        if direction.is_some() {
            self.sad.edit(id, |sa| {
                if let Body::Larval(parameters) = &mut sa.body {
                    parameters.direction = direction;
                }
            });
        }
        self.reply_sa(id, request, out);
        Ok(())
    }

    /// The larval SA that an ACQUIRE or a failed ALLOCSPI left.
    fn waiting_sa(&self, wanted: &UsersaInfo, request: &Request<'_>) -> Option<SaId> {
        let mark = request.mark();
        let same_peer = |id: &SaId| {
            let found = self.sad.get(*id).map(|sa| sa.parameters().info.id.daddr);
            found.is_some_and(|daddr| {
                daddr.canonical(wanted.family) == wanted.id.daddr.canonical(wanted.family)
            })
        };
        let cpu = request.attributes.read(attr::SA_PCPU);
        let announced = (wanted.seq != 0)
            .then(|| self.sad.find_acquire(wanted.seq, mark.key(), cpu))
            .flatten()
            .filter(same_peer);
        announced.or_else(|| self.sad.find_larval(&LarvalKey::of(&larval(wanted, cpu, 0)), mark))
    }

    fn insert_larval(
        &mut self,
        wanted: &UsersaInfo,
        cpu: Option<u32>,
        request: &Request<'_>,
    ) -> SaId {
        let mut parameters = larval(wanted, cpu, self.settings.acquire_expires_s);
        parameters.mark = request.mark();
        parameters.if_id = request.number(attr::IF_ID);
        self.add_larval(parameters, request.now)
    }

    /// Adds a larval SA; it is gone after `acquire_expires_s` if nobody completes it.
    pub(super) fn add_larval(&mut self, parameters: SaParameters, now: u64) -> SaId {
        let mut sa = Sa::new(Body::Larval(Box::new(parameters)), now);
        sa.deadline = Some(now + self.settings.acquire_expires_s);
        self.sad.insert(&sa)
    }

    fn assign_spi(&mut self, id: SaId, min: u32, max: u32) -> Result<(), Failure> {
        let sa = self.sad.get(id).ok_or(Errno::NOENT)?;
        let info = sa.parameters().info;
        if info.id.spi.get() != 0 {
            return Ok(());
        }
        // Under one protocol an SPI is given once, whatever the destination: hardware and peers
        // tell SAs apart by it alone.
        let free = |server: &Self, spi: u32| !server.sad.has_number(spi, info.id.proto);
        let mut chosen = None;
        if min == max {
            chosen = free(self, min).then_some(min);
        } else {
            // Wraps to 0, "full", for all 2^32 numbers, as in the kernel.
            let count = max.wrapping_sub(min).wrapping_add(1);
            for _ in 0..count.min(ATTEMPTS_MAX) {
                let spi = min + self.random.below(count);
                if free(self, spi) {
                    chosen = Some(spi);
                    break;
                }
            }
        }
        // SPI 0 stands for "none" (RFC 4303 §2.1).
        let spi = chosen.filter(|&spi| spi != 0).ok_or(Errno::NOENT)?;
        self.sad.set_spi(id, spi);
        Ok(())
    }
}

fn check_range(proto: u8, min: u32, max: u32) -> Result<(), Failure> {
    let known = match proto {
        IPPROTO_AH | IPPROTO_ESP => true,
        IPPROTO_COMP => max < 0x1_0000,
        _ => false,
    };
    if known && min <= max { Ok(()) } else { Err(Errno::INVAL.into()) }
}

/// What a larval SA looks like: it accepts exactly its own addresses.
fn larval(wanted: &UsersaInfo, cpu: Option<u32>, expires_s: u64) -> SaParameters {
    let family = wanted.family;
    let prefix = if family == AF_INET6 { 128 } else { 32 };
    let canonical = |address: &Address| address.canonical(family);
    let mut info = UsersaInfo {
        sel: Selector {
            daddr: canonical(&wanted.id.daddr),
            saddr: canonical(&wanted.saddr),
            prefixlen_d: prefix,
            prefixlen_s: prefix,
            ..Selector::default()
        },
        saddr: canonical(&wanted.saddr),
        lft: LifetimeConfig { hard_add_expires_seconds: expires_s, ..LifetimeConfig::UNLIMITED },
        reqid: wanted.reqid,
        family,
        mode: wanted.mode,
        ..UsersaInfo::default()
    };
    info.id.daddr = canonical(&wanted.id.daddr);
    info.id.proto = wanted.id.proto;
    SaParameters { info, cpu, ..SaParameters::default() }
}
