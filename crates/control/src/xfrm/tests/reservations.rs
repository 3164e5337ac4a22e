//! ALLOCSPI, and what takes the place of a larval SA.

use rustix::io::Errno;
use wire::xfrm::algorithm::{Algorithm, AlgorithmAuth, Name};
use wire::xfrm::number::{IPPROTO_COMP, attr, group, msg, sa_direction, sa_extra_flag};
use wire::xfrm::sa::{UsersaId, UsersaInfo, UserspiInfo};
use zerocopy::IntoBytes;

use super::super::Change;
use super::bench::*;

#[test]
fn an_spi_is_reserved_and_completed() {
    let mut bench = Bench::new();
    let answer = bench.send(&allocate(0x9000, 0x9000));
    let info: UsersaInfo = messages(&answer.replies[0])[0].fixed().unwrap();
    assert_eq!(header(&answer.replies[0]).kind, msg::NEWSA);
    assert_eq!(info.id.spi.get(), 0x9000);
    assert_eq!(info.lft.hard_add_expires_seconds, 30);
    assert_eq!((info.sel.prefixlen_d, info.sel.prefixlen_s, info.sel.family), (32, 32, 0));
    assert!(answer.events.is_empty() && bench.changes().is_empty());
    // Taken, for any destination.
    bench.refuse(&allocate(0x9000, 0x9000), Errno::NOENT, "");
    bench.refuse(&new_sa(0x9000), Errno::EXIST, "");
    // The request that failed left a larval SA, which the next one completes.
    assert_eq!(bench.server.sizes().0, 2);
    bench.accept(&allocate(0x9001, 0x9001));
    assert_eq!(bench.server.sizes().0, 2);
    let answer = bench.accept(&update_sa(0x9000));
    assert_eq!(answer.kinds(), [(group::SA, msg::UPDSA)]);
    assert!(matches!(bench.changes()[..], [Change::SaInstalled(_)]));
    assert_eq!(bench.server.sizes().0, 2);
    assert_eq!(shown_sa(&mut bench, 0x9000).lft.hard_add_expires_seconds, 0);
}

#[test]
fn ranges_of_spis() {
    let mut bench = Bench::new();
    bench.refuse(&allocate(2, 1), Errno::INVAL, "");
    bench.refuse(&allocate(0, 0), Errno::NOENT, "");
    bench.refuse(&allocate(0, u32::MAX), Errno::NOENT, "");
    let proto = |proto: u8, max: u32| {
        allocate(1, max).change(|request: &mut UserspiInfo| request.info.id.proto = proto)
    };
    bench.refuse(&proto(17, 9), Errno::INVAL, "");
    bench.refuse(&proto(IPPROTO_COMP, 0x1_0000), Errno::INVAL, "");
    bench.accept(&proto(IPPROTO_COMP, 0xffff));
    let family = allocate(1, 9).change(|request: &mut UserspiInfo| request.info.family = 0);
    bench.refuse(&family, Errno::INVAL, "");
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..8 {
        let answer = bench.accept(&allocate(0x100, 0x107));
        let info: UsersaInfo = messages(&answer.replies[0])[0].fixed().unwrap();
        seen.insert(info.id.spi.get());
        // A kernel, too, picks at random and may miss the last ones of a small range.
        if seen.len() == 4 {
            break;
        }
    }
    assert!(seen.len() >= 4 && seen.iter().all(|spi| (0x100..=0x107).contains(spi)));
}

#[test]
fn a_new_sa_takes_the_place_of_a_larval_one() {
    let mut bench = Bench::new();
    bench.refuse(&allocate(0, 0), Errno::NOENT, "");
    assert_eq!(bench.server.sizes().0, 1);
    bench.accept(&new_sa(5));
    assert_eq!(bench.server.sizes().0, 1);
    // A larval SA that has an SPI stays.
    bench.accept(&allocate(6, 6));
    bench.accept(&new_sa(7));
    assert_eq!(bench.server.sizes().0, 3);
}

#[test]
fn direction_of_a_reservation_must_fit() {
    let mut bench = Bench::new();
    bench.accept(&allocate(6, 6).with(attr::SA_DIR, &sa_direction::IN));
    let out = update_sa(6).with(attr::SA_DIR, &sa_direction::OUT);
    bench.refuse(&out, Errno::SRCH, "");
    bench.accept(&update_sa(6).with(attr::SA_DIR, &sa_direction::IN));
    bench.refuse(&allocate(7, 7).with(attr::SA_PCPU, &4u32), Errno::INVAL, "pCPU number too big");
}

/// libreswan 5 asks in this way whether SAs may have a direction.
#[test]
fn an_sa_from_nowhere_to_nowhere_is_a_question() {
    let mut bench = Bench::new();
    let mut info = usersa(1);
    (info.saddr, info.id.daddr) = (address("0.0.0.0"), address("0.0.0.0"));
    let cipher = Algorithm { name: Name::new("aes"), key_len: 128 };
    let auth = AlgorithmAuth { name: Name::new("hmac(sha256)"), key_len: 256, trunc_len: 128 };
    let request = Request::new(msg::NEWSA, &info)
        .with(attr::SA_EXTRA_FLAGS, &sa_extra_flag::DONT_ENCAP_DSCP)
        .with(attr::ALG_AUTH_TRUNC, &[auth.as_bytes(), &[7; 32]].concat()[..])
        .with(attr::ALG_CRYPT, &[cipher.as_bytes(), &[7; 16]].concat()[..])
        .with(attr::SA_DIR, &sa_direction::OUT);
    bench.accept(&request);
    assert!(bench.changes().is_empty(), "the data plane does not hear of it");
    bench.accept(&Request::new(msg::DELSA, &UsersaId { daddr: info.id.daddr, ..sa_id(1) }));
}
