//! Listing large tables: every entry once, whatever changes meanwhile, in memory that does not depend
//! on how many there are. The only test of its binary, for it watches the memory of its process.

#[path = "xfrm_socket/world.rs"]
#[allow(dead_code, reason = "shared with the other tests of the socket")]
mod world;

use wire::xfrm::netlink::{Datagram, NLM_F_ACK, NLM_F_DUMP, NLMSG_DONE};
use wire::xfrm::number::msg;
use wire::xfrm::policy::UserpolicyInfo;
use wire::xfrm::sa::UsersaInfo;
use zerocopy::{FromBytes, IntoBytes};

use world::*;

const SAS: u32 = 100_000;
const POLICIES: u32 = 150_000;

/// What the process may grow by while a table is listed: a thousandth of what the list itself takes.
/// The allocator asks the system for no less than 128 KiB at a time.
const GROWTH_MAX_BYTES: u64 = 1 << 20;

fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
}

/// A policy for one destination.
fn policy(number: u32) -> UserpolicyInfo {
    let mut info = UserpolicyInfo {
        lft: wire::xfrm::lifetime::LifetimeConfig::UNLIMITED,
        dir: (number % 3) as u8,
        ..UserpolicyInfo::default()
    };
    info.sel.daddr = std::net::IpAddr::from((0x0a00_0000 + number).to_be_bytes()).into();
    (info.sel.family, info.sel.prefixlen_d) = (wire::xfrm::number::AF_INET, 32);
    info
}

/// Reads a dump to its end and counts how often each entry was in it; `number` says which it is.
/// `disturb` is called after every part. Returns the largest growth of the process meanwhile, too.
fn list(
    world: &mut World,
    kind: u16,
    count: u32,
    number: impl Fn(&[u8]) -> u32,
    mut disturb: impl FnMut(&mut World, usize),
) -> (Vec<u8>, u64) {
    let program = world.connect();
    let mut seen = vec![0_u8; count as usize + 1];
    seen.iter_mut().for_each(|count| *count = 0);
    let (before, mut grown) = (resident_bytes(), 0);
    program.send(&request(kind, NLM_F_DUMP, &[]));
    for part in 0.. {
        world.settle();
        let bytes = program.receive().expect("the dump goes on while it is read");
        for (header, message) in Datagram::new(&bytes) {
            if header.kind == NLMSG_DONE {
                return (seen, grown);
            }
            // What came while the dump ran is no concern of the counts.
            if let Some(count) = seen.get_mut(number(&message[16..]) as usize) {
                *count += 1;
            }
        }
        disturb(world, part);
        if part % 64 == 0 {
            grown = grown.max(resident_bytes().saturating_sub(before));
        }
    }
    unreachable!("a dump has an end")
}

#[test]
fn a_list_of_a_hundred_thousand_takes_no_memory_and_leaves_nothing_out() {
    let mut world = World::new();
    world.fill(SAS);
    for n in 0..POLICIES {
        let bytes = request(msg::NEWPOLICY, 0, policy(n).as_bytes());
        world.server.handle(&Default::default(), &bytes, NOW, &());
    }
    world.server.take_changes();
    assert_eq!(world.server.sizes(), (SAS as usize, POLICIES as usize));
    // Whatever the process takes for its first dump, it takes before it is watched.
    list(&mut world, msg::GETPOLICY, POLICIES, |_| u32::MAX, |_, _| {});

    let spi = |body: &[u8]| UsersaInfo::read_from_prefix(body).unwrap().0.id.spi.get();
    let (seen, grown) = list(&mut world, msg::GETSA, SAS, spi, |_, _| {});
    assert!(seen[1..].iter().all(|count| *count == 1));
    assert!(grown <= GROWTH_MAX_BYTES, "{grown} bytes for a list of SAs");

    let destination = |body: &[u8]| {
        let info = UserpolicyInfo::read_from_prefix(body).unwrap().0;
        u32::from_be_bytes(info.sel.daddr.0[..4].try_into().unwrap()) - 0x0a00_0000
    };
    let (seen, grown) = list(&mut world, msg::GETPOLICY, POLICIES, destination, |_, _| {});
    assert!(seen[..POLICIES as usize].iter().all(|count| *count == 1));
    assert!(grown <= GROWTH_MAX_BYTES, "{grown} bytes for a list of policies");

    // SAs come and go while they are listed: what was there all the time is shown once.
    let asker = world.connect();
    let gone = |part: usize| (part as u32 * 7) % SAS + 1;
    let mut deleted = std::collections::HashSet::new();
    let (seen, _) = list(&mut world, msg::GETSA, SAS, spi, |world, part| {
        let spi = gone(part);
        if deleted.insert(spi) {
            asker.send(&delete_sa(spi));
            asker.send(&new_sa(SAS + 1000 + part as u32));
            world.settle();
            assert_eq!((asker.errno(), asker.errno()), (0, 0));
        }
    });
    assert!(deleted.len() > 1000, "the list was too short to be disturbed");
    for spi in 1..=SAS {
        let count = seen[spi as usize];
        assert!(count == 1 || (count == 0 && deleted.contains(&spi)), "{spi}: {count}");
    }
    // An acknowledged request on the same connection comes through in the middle of all that.
    asker.send(&request(msg::GETSADINFO, NLM_F_ACK, &0_u32.to_ne_bytes()));
    world.settle();
    assert_eq!(header(&asker.receive().unwrap()).kind, msg::NEWSADINFO);
}
