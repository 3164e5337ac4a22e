//! Requests about SAs.

use rustix::io::Errno;
use wire::xfrm::address::Mark;
use wire::xfrm::algorithm::{Algorithm, AlgorithmAuth, Name};
use wire::xfrm::event::UserExpire;
use wire::xfrm::number::{
    AF_INET, AF_INET6, IPPROTO_AH, IPPROTO_COMP, IPPROTO_ESP, attr, group, mode, msg, sa_direction,
    sa_extra_flag, sa_flag,
};
use wire::xfrm::replay::ReplayState;
use wire::xfrm::sa::{UsersaFlush, UsersaInfo};
use zerocopy::IntoBytes;

use super::super::Change;
use super::bench::*;

fn auth_trunc(name: &str, trunc_len: u32) -> Vec<u8> {
    let head = AlgorithmAuth { name: Name::new(name), key_len: 160, trunc_len };
    [head.as_bytes(), &[7; 20]].concat()
}

fn plain(name: &str) -> Vec<u8> {
    let head = Algorithm { name: Name::new(name), key_len: 128 };
    [head.as_bytes(), &[7; 16]].concat()
}

#[test]
fn an_sa_is_installed_shown_and_deleted() {
    let mut bench = Bench::new();
    let answer = bench.accept(&new_sa(0x1000));
    assert_eq!(answer.kinds(), [(group::SA, msg::NEWSA)]);
    let changes = bench.changes();
    let [Change::SaInstalled(record)] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!(record.aead.key.expose(), KEY);
    assert_eq!(record.parameters.spi(), 0x1000);
    assert_eq!(record.parameters.destination().to_string(), "192.0.2.2");
    assert_eq!(record.parameters.source().to_string(), "192.0.2.1");
    assert!(!record.esn() && record.replay_window() == 0);
    assert!(!format!("{changes:?}").contains("0123456789"), "a key was printed");

    let answer = bench.send(&get_sa(0x1000));
    assert_eq!(header(&answer.replies[0]).pid, 77);
    let found = attributes(&answer.replies[0]);
    assert_eq!(found[&attr::ALG_AEAD], aead("rfc4106(gcm(aes))", &KEY, 128));
    assert_eq!(found[&attr::REPLAY_VAL], [0; 12]);
    let info = shown_sa(&mut bench, 0x1000);
    assert_eq!((info.curlft.add_time, info.curlft.use_time), (NOW, 0));
    assert_eq!(info.sel.family, 2, "the selector takes the SA's family");

    let answer = bench.accept(&delete_sa(0x1000));
    assert_eq!(answer.kinds(), [(group::SA, msg::DELSA)]);
    assert!(attributes(&answer.events[0].bytes).contains_key(&attr::SA));
    assert!(matches!(bench.changes()[..], [Change::SaDeleted(id)] if id == record.id));
    bench.refuse(&delete_sa(0x1000), Errno::SRCH, "");
    bench.refuse(&get_sa(0x1000), Errno::SRCH, "");
}

#[test]
fn the_same_sa_twice_and_an_update_of_none() {
    let mut bench = Bench::new();
    bench.accept(&new_sa(1));
    bench.refuse(&new_sa(1), Errno::EXIST, "");
    bench.refuse(&update_sa(2), Errno::SRCH, "");
    assert_eq!(bench.changes().len(), 1);
    // Another destination or protocol is another SA.
    bench.accept(&new_sa(1).change(|info: &mut UsersaInfo| info.id.daddr = address("192.0.2.3")));
}

#[test]
fn marks_tell_sas_apart() {
    let mut bench = Bench::new();
    let mark = |v, m| Mark { v, m };
    bench.accept(&new_sa(1).with(attr::MARK, &mark(1, 0xff)));
    bench.accept(&new_sa(1).with(attr::MARK, &mark(2, 0xff)));
    bench.refuse(&new_sa(1).with(attr::MARK, &mark(0x101, 0xff)), Errno::EXIST, "");
    bench.refuse(&get_sa(1), Errno::SRCH, "");
    let answer = bench.send(&get_sa(1).with(attr::MARK, &mark(2, 0xff)));
    assert_eq!(attributes(&answer.replies[0])[&attr::MARK], mark(2, 0xff).as_bytes());
    // One without a mark accepts every mark and is found first, being the newest.
    bench.accept(&new_sa(1));
    bench.refuse(&new_sa(1).with(attr::MARK, &mark(3, 0xff)), Errno::EXIST, "");
    // Bits outside of the mask are dropped.
    bench.accept(&new_sa(2).with(attr::MARK, &mark(0x12, 0x0f)));
    let answer = bench.send(&get_sa(2).with(attr::MARK, &mark(2, 0x0f)));
    assert_eq!(attributes(&answer.replies[0])[&attr::MARK], mark(2, 0x0f).as_bytes());
}

#[test]
fn an_update_changes_limits_and_nothing_else() {
    let mut bench = Bench::new();
    bench.accept(&new_sa(1));
    bench.changes();
    let other_key = aead("rfc4106(gcm(aes))", &[9; 36], 128);
    let request = update_sa(1)
        .without(attr::ALG_AEAD)
        .with(attr::ALG_AEAD, &other_key[..])
        .with(attr::IF_ID, &5u32)
        .with(attr::SET_MARK, &6u32)
        .with(attr::TFCPAD, &9u32)
        .change(|info: &mut UsersaInfo| {
            info.lft.hard_packet_limit = 10;
            info.reqid = 9;
            info.mode = mode::TRANSPORT;
        })
        .without(attr::TFCPAD);
    let answer = bench.accept(&request);
    assert_eq!(answer.kinds(), [(group::SA, msg::UPDSA)]);
    let changes = bench.changes();
    let [Change::SaUpdated(record)] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!(record.aead.key.expose(), KEY);
    assert_eq!((record.parameters.if_id, record.parameters.info.reqid), (5, 1));
    assert_eq!(record.parameters.output_mark, Mark { v: 6, m: u32::MAX });
    assert_eq!(shown_sa(&mut bench, 1).lft.hard_packet_limit, 10);
    assert_eq!(shown_sa(&mut bench, 1).mode, mode::TUNNEL);
}

#[test]
fn what_a_kernel_refuses() {
    let mut bench = Bench::new();
    let base = || new_sa(1);
    let edit = |edit: fn(&mut UsersaInfo)| base().change(edit);
    let short = aead("rfc4106(gcm(aes))", &KEY, 128)[..91].to_vec();
    let cases: Vec<(Request, &str)> = vec![
        (edit(|info| info.family = 7), "Invalid address family"),
        (
            edit(|info| info.sel.prefixlen_d = 33),
            "Invalid prefix length in selector (must be <= 32 for IPv4)",
        ),
        (
            edit(|info| (info.sel.family, info.sel.prefixlen_s) = (AF_INET6, 129)),
            "Invalid prefix length in selector (must be <= 128 for IPv6)",
        ),
        (edit(|info| info.sel.family = 3), "Invalid address family in selector"),
        (edit(|info| info.id.proto = 17), "Unsupported protocol"),
        (
            edit(|info| info.id.proto = IPPROTO_AH),
            "Missing required attribute for AH: AUTH_TRUNC or AUTH",
        ),
        (edit(|info| info.id.proto = IPPROTO_COMP), "Missing required attribute for COMP: COMP"),
        (base().with(attr::ALG_COMP, &plain("deflate")[..]), "Invalid attribute for ESP: COMP"),
        (
            base().without(attr::ALG_AEAD),
            "Missing required attribute for ESP: at least one of AUTH, AUTH_TRUNC, CRYPT, AEAD",
        ),
        (
            base().with(attr::ALG_CRYPT, &plain("cbc(aes)")[..]),
            concat!(
                "Invalid attribute combination for ESP: ",
                "AEAD can't be used with AUTH, AUTH_TRUNC, CRYPT",
            ),
        ),
        (
            edit(|info| info.mode = mode::TRANSPORT).with(attr::TFCPAD, &1u32),
            "TFC padding can only be used in tunnel mode",
        ),
        (base().with(attr::ALG_AEAD, &short[..]), "Invalid AEAD attribute length"),
        (base().with(attr::SEC_CTX, &[9u8; 8]), "Invalid security context length"),
        (edit(|info| info.flags = sa_flag::ESN), "Missing required attribute for ESN"),
        (edit(|info| info.mode = 9), "Unsupported mode"),
        (
            base().with(attr::MTIMER_THRESH, &1u32),
            "MTIMER_THRESH attribute can only be set on ENCAP states",
        ),
        (base().with(attr::ENCAP, &[2u8; 24]), "Unsupported encapsulation type for ESP"),
        (base().with(attr::OFFLOAD_DEV, &[4u8; 8]), "Unrecognized flags in offload request"),
    ];
    for (request, text) in cases {
        bench.refuse(&request, Errno::INVAL, text);
    }
    assert!(bench.changes().is_empty());
}

#[test]
fn padding_that_is_not_done_is_not_promised() {
    let mut bench = Bench::new();
    let padded = |by: u32| new_sa(1).with(attr::TFCPAD, &by);
    for by in [1, 1400, u32::MAX] {
        bench.refuse(&padded(by), Errno::OPNOTSUPP, "TFC padding is not done here");
    }
    assert!(bench.changes().is_empty());
    bench.accept(&padded(0));
}

#[test]
fn algorithms_that_are_not_carried() {
    let mut bench = Bench::new();
    let bare = || new_sa(1).without(attr::ALG_AEAD);
    for (name, key, icv) in [
        ("rfc4106(gcm(aes))", 20, 64),
        ("rfc4309(ccm(aes))", 19, 128),
        ("rfc7539esp(chacha20,poly1305)", 36, 128),
        ("no such thing", 20, 128),
    ] {
        let value = aead(name, &vec![1; key], icv);
        let request = bare().with(attr::ALG_AEAD, &value[..]);
        bench.refuse(&request, Errno::NOSYS, "Requested AEAD algorithm not found");
    }
    let encrypted = bare().with(attr::ALG_CRYPT, &plain("cbc(aes)")[..]);
    let both = encrypted.clone().with(attr::ALG_AUTH_TRUNC, &auth_trunc("hmac(sha256)", 128)[..]);
    bench.refuse(&both, Errno::NOSYS, "Requested CRYPT algorithm not found");
    for (auth, errno, text) in [
        (auth_trunc("bogus", 96), Errno::NOSYS, "Requested AUTH_TRUNC algorithm not found"),
        (auth_trunc("sha1", 161), Errno::INVAL, "Invalid length requested for truncated ICV"),
        (auth_trunc("hmac(sha1)", 96), Errno::INVAL, "ESP: AEAD or CRYPT must be provided"),
    ] {
        bench.refuse(&bare().with(attr::ALG_AUTH_TRUNC, &auth[..]), errno, text);
    }
    let auth = bare().with(attr::ALG_AUTH, &plain("bogus")[..]);
    bench.refuse(&auth, Errno::NOSYS, "Requested AUTH algorithm not found");
    let unsupported = Errno::PROTONOSUPPORT;
    let ah = bare()
        .with(attr::ALG_AUTH, &plain("md5")[..])
        .change(|info: &mut UsersaInfo| info.id.proto = IPPROTO_AH);
    bench.refuse(&ah, unsupported, "Requested type not found");
    let comp = |name| {
        bare()
            .with(attr::ALG_COMP, &plain(name)[..])
            .change(|info: &mut UsersaInfo| info.id.proto = IPPROTO_COMP)
    };
    bench.refuse(&comp("deflate"), unsupported, "Requested type not found");
    bench.refuse(&comp("lzs"), Errno::NOSYS, "Requested COMP algorithm not found");
    let transport = |selector_family| {
        new_sa(1).change(move |info: &mut UsersaInfo| {
            info.mode = mode::TRANSPORT;
            info.sel.family = selector_family;
        })
    };
    let text = "Only tunnel modes can accommodate a change of family";
    bench.refuse(&transport(AF_INET6), unsupported, text);
    bench.accept(&transport(AF_INET));
    for mode in [mode::BEET, mode::ROUTEOPTIMIZATION] {
        let request = new_sa(1).change(|info: &mut UsersaInfo| info.mode = mode);
        bench.refuse(&request, unsupported, "Requested mode not found");
    }
}

#[test]
fn only_the_three_key_lengths() {
    let mut bench = Bench::new();
    for len in 0..=40 {
        let value = aead("rfc4106(gcm(aes))", &vec![3; len], 128);
        let request =
            new_sa(len as u32 + 1).without(attr::ALG_AEAD).with(attr::ALG_AEAD, &value[..]);
        if [20, 28, 36].contains(&len) {
            bench.accept(&request);
        } else {
            let text = "Kernel was unable to initialize cryptographic operations";
            bench.refuse(&request, Errno::INVAL, text);
        }
    }
    // A length that wraps in 32 bits is no key at all.
    let mut value = aead("rfc4106(gcm(aes))", &KEY, 128);
    value[64..68].copy_from_slice(&u32::MAX.to_ne_bytes());
    let request = new_sa(99).without(attr::ALG_AEAD).with(attr::ALG_AEAD, &value[..]);
    let text = "Kernel was unable to initialize cryptographic operations";
    bench.refuse(&request, Errno::INVAL, text);
}

#[test]
fn windows() {
    let mut bench = Bench::new();
    let wide = |flags: u8, value: Vec<u8>| {
        new_sa(1)
            .with(attr::REPLAY_ESN_VAL, &value[..])
            .change(|info: &mut UsersaInfo| info.flags = flags)
    };
    for (value, text) in [
        (esn(32, 129), "ESN bitmap length must be <= 128"),
        (esn(64, 2)[..28].to_vec(), "ESN attribute is too short to fit the full bitmap length"),
        (esn(65, 2), "ESN replay window is too large for the chosen bitmap size"),
        (esn(0, 2), "ESN replay window must be > 0"),
    ] {
        bench.refuse(&wide(sa_flag::ESN, value), Errno::INVAL, text);
    }
    let both = wide(0, esn(32, 1)).change(|info: &mut UsersaInfo| info.replay_window = 1);
    bench.refuse(&both, Errno::INVAL, "ESN not compatible with legacy replay_window");
    // The bitmap may be left out, and a wide window needs no ESN.
    bench.accept(&wide(sa_flag::ESN, esn(4096, 128)[..24].to_vec()));
    bench.accept(
        &wide(0, esn(4096, 128))
            .change(|info: &mut UsersaInfo| info.id.spi = wire::xfrm::Be32::new(2)),
    );
    let legacy = new_sa(3).change(|info: &mut UsersaInfo| info.replay_window = 200);
    bench.accept(&legacy);
    let windows: Vec<_> = bench
        .changes()
        .iter()
        .map(|change| match change {
            Change::SaInstalled(record) => (record.esn(), record.replay_window()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(windows, [(true, 4096), (false, 4096), (false, 32)]);
}

#[test]
fn directions_forbid_what_the_other_needs() {
    let mut bench = Bench::new();
    let out = || new_sa(1).with(attr::SA_DIR, &sa_direction::OUT);
    let inbound = || new_sa(1).with(attr::SA_DIR, &sa_direction::IN);
    let flag =
        |request: Request, flag: u8| request.change(|info: &mut UsersaInfo| info.flags |= flag);
    let replay = ReplayState { seq: 1, ..ReplayState::default() };
    let extra = |flag: u32| inbound().with(attr::SA_EXTRA_FLAGS, &flag);
    for (request, text) in [
        (flag(out(), sa_flag::DECAP_DSCP), "Flag DECAP_DSCP should not be set for output SA"),
        (flag(out(), sa_flag::ICMP), "Flag ICMP should not be set for output SA"),
        (flag(out(), sa_flag::WILDRECV), "Flag WILDRECV should not be set for output SA"),
        (
            out().change(|info: &mut UsersaInfo| info.replay_window = 1),
            "Replay window should be 0 for output SA",
        ),
        (out().with(attr::REPLAY_VAL, &replay), "Replay seq and bitmap should be 0 for output SA"),
        (
            out().with(attr::REPLAY_ESN_VAL, &esn(32, 1)[..]),
            "Replay window should be 0 for output SA",
        ),
        (out().with(attr::REPLAY_ESN_VAL, &esn(0, 1)[..]), "Replay bmp_len should 0 for output SA"),
        (flag(inbound(), sa_flag::NOPMTUDISC), "Flag NOPMTUDISC should not be set for input SA"),
        (
            extra(sa_extra_flag::DONT_ENCAP_DSCP),
            "Flag DONT_ENCAP_DSCP should not be set for input SA",
        ),
        (extra(sa_extra_flag::OSEQ_MAY_WRAP), "Flag OSEQ_MAY_WRAP should not be set for input SA"),
    ] {
        bench.refuse(&request, Errno::INVAL, text);
    }
    let sealed = flag(out().with(attr::REPLAY_ESN_VAL, &esn(0, 0)[..]), sa_flag::ESN);
    bench.accept(&sealed);
    bench.refuse(&update_sa(1), Errno::SRCH, "");
}

#[test]
fn other_protocols_are_looked_for_by_address() {
    let mut bench = Bench::new();
    let id = |proto| Request::new(msg::GETSA, &wire::xfrm::sa::UsersaId { proto, ..sa_id(1) });
    bench.refuse(&id(0), Errno::INVAL, "");
    bench.refuse(&id(0).with(attr::SRCADDR, &address("192.0.2.1")), Errno::SRCH, "");
    bench.refuse(&id(255), Errno::SRCH, "");
}

#[test]
fn flushing() {
    let mut bench = Bench::new();
    let flush = |proto| Request::new(msg::FLUSHSA, &UsersaFlush { proto });
    assert!(bench.accept(&flush(0)).events.is_empty());
    for spi in 1..=3 {
        bench.accept(&new_sa(spi));
    }
    bench.changes();
    assert!(bench.accept(&flush(IPPROTO_AH)).events.is_empty());
    let answer = bench.accept(&flush(IPPROTO_ESP));
    assert_eq!(answer.kinds(), [(group::SA, msg::FLUSHSA)]);
    assert_eq!(bench.changes().len(), 3);
    assert_eq!(bench.server.sizes().0, 0);
}

#[test]
fn expiry_from_user_space() {
    let mut bench = Bench::new();
    let expire = |hard| {
        let body = UserExpire { state: usersa(1), hard, pad: [0; 7] };
        Request::new(msg::EXPIRE, &body)
    };
    bench.refuse(&expire(0), Errno::NOENT, "");
    bench.accept(&allocate(1, 1));
    bench.refuse(&expire(1), Errno::INVAL, "");
    bench.accept(&update_sa(1));
    assert_eq!(bench.accept(&expire(0)).kinds(), [(group::EXPIRE, msg::EXPIRE)]);
    assert_eq!(bench.server.sizes().0, 1);
    let answer = bench.accept(&expire(1));
    let body: UserExpire = messages(&answer.events[0].bytes)[0].fixed().unwrap();
    assert_eq!((body.hard, body.state.id.spi.get()), (1, 1));
    assert_eq!(bench.server.sizes().0, 0);
}
