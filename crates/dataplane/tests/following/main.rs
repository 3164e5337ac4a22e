//! Packets that become just what those before them became (`follow.rs`), against their stupid twins (`twin.rs`), and how many of
//! them do.

mod case;
mod clear;
mod families;
#[path = "../fixture/mod.rs"]
mod fixture;
mod flows;
mod steps;
mod twin;

use std::sync::Arc;
use std::time::Duration;

use case::{BLOCKED_PORT, Case, Last, SIMPLE, Tables, case, case_in_clear, host_of};
use clear::Third;
use dataplane::clock::Clock;
use dataplane::policy::{Direction, Policy, PolicyConfig};
use dataplane::selector::Selector;
use dataplane::verdict::Verdict;
use families::Inside;
use fixture::*;
use flows::by_hosts;
use proptest::prelude::*;
use steps::{Arrivals, Esp, Odd, Step, step, udp};
use twin::{Side, run};
use wire::protocol;

/// A port that packets go to from behind the far end that a route leads to, as do each fourth one further on.
const FROM_FAR_END: u16 = 5000;

proptest! {
    #[test]
    fn whoever_follows_is_sealed_as_who_leads(
        case in case(),
        steps in prop::collection::vec(step(), 1..300),
    ) {
        run(Site::West, case, false, steps)?;
    }

    #[test]
    fn whoever_follows_is_opened_as_who_leads(
        case in case(),
        steps in prop::collection::vec(step(), 1..300),
    ) {
        run(Site::East, case, false, steps)?;
    }

    #[test]
    fn who_is_sealed_by_whoever_has_time_is_sealed_as_who_leads(
        case in case(),
        steps in prop::collection::vec(step(), 1..300),
    ) {
        run(Site::West, case, true, steps)?;
    }

    #[test]
    fn who_is_opened_by_whoever_has_time_is_opened_as_who_leads(
        case in case(),
        steps in prop::collection::vec(step(), 1..300),
    ) {
        run(Site::East, case, true, steps)?;
    }

    #[test]
    fn whoever_follows_is_forwarded_as_who_leads(
        case in case_in_clear(),
        steps in prop::collection::vec(step(), 1..300),
    ) {
        run(Site::West, case, false, steps)?;
    }
}

/// With policies of what is forwarded or without, by policies or by routes, plain and in UDP, over IPv4 and over IPv6.
fn ways() -> Vec<(bool, Tunnel)> {
    let mut ways = Vec::new();
    for (udp, outer_v6) in [(None, false), (Some((4500, 61_000)), false), (None, true)] {
        for (forward, if_id) in [(false, 0), (true, 0), (false, 5), (true, 5)] {
            ways.push((forward, Tunnel { if_id, udp, outer_v6, ..PLAIN }));
        }
    }
    ways
}

/// The same with packets of either family inside, and of both in turns.
fn cases() -> impl Iterator<Item = Case> {
    let of_ways = |inside| {
        let case = move |(forward, tunnel)| Case { tunnel, inside, forward, ..SIMPLE };
        ways().into_iter().map(case)
    };
    [Inside::V4, Inside::V6, Inside::Both].into_iter().flat_map(of_ways)
}

/// A gateway without VRFs, and the same in some.
fn with_vrfs(case: Case) -> [Case; 2] {
    [case, Case { tables: Tables::Vrfs, ..case }]
}

/// The frame of a packet behind the gateway of the west, of which each second one is of IPv6 where there are both.
fn frame_of(n: u16, packet: Packet, case: &Case) -> Vec<u8> {
    let is_v6 = case.inside == Inside::V6 || case.inside == Inside::Both && n % 2 == 1;
    if is_v6 { families::packet(packet) } else { packet }.frame(RED)
}

/// The same with a tunnel for each host, by policies with others of other shapes or without.
fn of_many(case: Case) -> impl Iterator<Item = Case> {
    let several = if case.tunnel.if_id == 0 { vec![false, true] } else { vec![false] };
    let own = Some(Last::Nothing);
    several.into_iter().map(move |is_it| Case { bypasses: is_it, forbids: is_it, own, ..case })
}

/// A worker that does all itself, and one that lends its work.
const SIDES: [fn(Site, &Case) -> Side; 2] = [Side::new, Side::lending];

/// Who lets in what comes through an SA of route mode is remembered until half a second by the clock is over
/// (`inspect/standing.rs`), and the packets behind that follow nobody: waits for the next one, if the end is near.
fn begin_early() {
    const HALF_A_SECOND_NS: u64 = 1 << 29;
    let left = HALF_A_SECOND_NS - Clock.now_ns() % HALF_A_SECOND_NS;
    if left < HALF_A_SECOND_NS / 4 {
        std::thread::sleep(Duration::from_nanos(left));
    }
}

/// The side that opens, for who counts what follows.
fn opening_side(case: &Case) -> Side {
    begin_early();
    Side::new(Site::East, case)
}

/// As many as may follow do.
#[test]
fn most_of_a_fat_tunnels_packets_are_sealed_as_those_before() {
    let cases = cases().flat_map(with_vrfs);
    for (case, new) in cases.flat_map(|case| SIDES.map(|new| (case, new))) {
        let mut side = new(Site::West, &case);
        let frame = |n| frame_of(n, udp(n as u8 / 2 % 2, 5000 + n, 100), &case);
        let frames: Vec<_> = (0..60).map(|n| (RED, frame(n))).collect();
        side.forward(&frames);
        assert_eq!(side.gateway.snapshot().followed, 0, "there is nobody to follow yet");
        side.forward(&frames);
        side.forward(&frames);
        assert_eq!(side.gateway.snapshot().followed, 120, "{case:?}");
        // A view that may say something else ends the trail, and the next turn leaves another.
        side.gateway.change(|_| {});
        side.forward(&frames);
        assert_eq!(side.gateway.snapshot().followed, 120);
        side.forward(&frames);
        assert_eq!(side.gateway.snapshot().followed, 180);
        assert_eq!(side.gateway.snapshot().of(Verdict::Sealed), 300);
    }
}

/// Three turns of 60 frames each: none of the first follows, and all of the others do.
fn follow_from_the_second_turn(
    side: &mut Side,
    case: &Case,
    mut frames: impl FnMut() -> Vec<(u16, Vec<u8>)>,
) {
    for followed in [0, 60, 120] {
        side.forward(&frames());
        assert_eq!(side.gateway.snapshot().followed, followed, "{case:?}");
    }
}

/// Fragments follow as whole packets do, as long as no policy looks at ports, of which they may show none.
#[test]
fn fragments_follow_where_no_policy_looks_at_ports() {
    for (forward, tunnel) in ways() {
        let case = Case { tunnel, forward, ..SIMPLE };
        // What comes out of a tunnel is welcome by a policy of what is forwarded.
        let sites = if forward { vec![Site::West, Site::East] } else { vec![Site::West] };
        for site in sites {
            let (mut side, mut arrivals) = (Side::new(site, &case), Arrivals::new(site, case));
            let mut frames = || -> Vec<_> {
                let first_and_later = [1 << 13, 1 << 13 | 6].into_iter().cycle();
                let part = |bits| Step::Part { host: 1, bits, protocol: protocol::UDP };
                first_and_later.take(60).map(|bits| arrivals.frame(part(bits))).collect()
            };
            follow_from_the_second_turn(&mut side, &case, &mut frames);
            side.block(true);
            side.forward(&frames());
            side.forward(&frames());
            assert_eq!(side.gateway.snapshot().followed, 120, "{case:?}");
        }
    }
}

/// By an SA for this worker alone as by one for all.
#[test]
fn packets_by_a_workers_own_sa_follow() {
    for if_id in [0, 5] {
        let tunnel = Tunnel { if_id, ..PLAIN };
        let case = Case { tunnel, own: Some(Last::HasOwn), ..SIMPLE };
        let mut side = Side::new(Site::West, &case);
        let frames: Vec<_> = (0..60).map(|n| (RED, udp(2, 5000 + n, 100).frame(RED))).collect();
        follow_from_the_second_turn(&mut side, &case, || frames.clone());
        let snapshot = side.gateway.snapshot();
        assert_eq!((snapshot.own_sa, snapshot.fallback_sa), (180, 0));
    }
}

/// What comes through the tunnel is welcome: by the word of policies, or of routes where no policy says anything.
fn ways_in() -> Vec<Case> {
    let case = |case: Case| {
        let is_hub = !case.forward && case.tunnel.if_id != 0;
        (case.forward || is_hub).then_some(Case { is_hub, ..case })
    };
    cases().filter_map(case).collect()
}

#[test]
fn most_of_a_fat_tunnels_packets_are_opened_as_those_before() {
    let cases = ways_in().into_iter().flat_map(with_vrfs);
    for (case, new) in cases.flat_map(|case| SIDES.map(|new| (case, new))) {
        begin_early();
        let mut side = new(Site::East, &case);
        let mut arrivals = Arrivals::new(Site::East, case);
        for followed in [0, 60, 120] {
            let mut one = |v6, port| arrivals.frame(Step::Plain { v6, host: 0, port, len: 100 });
            let frames: Vec<_> = (0..60).map(|n| one(n % 2 == 1, FROM_FAR_END + 4 * n)).collect();
            side.forward(&frames);
            assert_eq!(side.gateway.snapshot().followed, followed, "{case:?}");
        }
        // The last of them once more: none is opened, whoever they follow.
        let again = arrivals.sealed(0, &udp(0, 5000, 100).bytes());
        side.forward(&[(BLACK, again.clone()), (BLACK, again.clone()), (BLACK, again)]);
        let snapshot = side.gateway.snapshot();
        assert_eq!((snapshot.of(Verdict::Opened), snapshot.of(Verdict::Replayed)), (181, 2));
        assert_eq!(side.gateway.inbound().stats().replayed, 2);
    }
}

/// So do those of many tunnels, whichever each is for, and by the word of policies or of routes.
#[test]
fn most_packets_of_many_tunnels_need_no_stages() {
    for case in cases().flat_map(of_many).flat_map(with_vrfs) {
        let mut side = Side::new(Site::West, &case);
        let frame = |n| frame_of(n, udp((n % 3) as u8, 5000 + n, 100), &case);
        let frames: Vec<_> = (0..60).map(|n| (RED, frame(n))).collect();
        follow_from_the_second_turn(&mut side, &case, || frames.clone());
        // With one that takes the stages come those behind it that are between the same hosts.
        let odd = (RED, Odd::LastHop.frame(false));
        let mut followed = 120;
        for count in [7, 8] {
            let (before, behind) = frames[..59].split_at(count);
            let is_same = |frame: &&(u16, Vec<u8>)| frame.1[26..34] == odd.1[26..34];
            followed += 59 - behind.iter().filter(is_same).count() as u64;
            side.forward(&[before, std::slice::from_ref(&odd), behind].concat());
            assert_eq!(side.gateway.snapshot().followed, followed, "{case:?}");
        }
        assert_eq!(side.gateway.snapshot().of(Verdict::Sealed), 3 * 60 + 2 * 59);
    }
}

/// Nor where whoever has time encrypts them, though others be among them that are in clear.
#[test]
fn most_packets_of_many_tunnels_that_are_lent_need_no_stages() {
    for case in cases().flat_map(of_many).flat_map(with_vrfs) {
        let mut side = Side::lending(Site::West, &case);
        let frame = |n| frame_of(n, udp((n % 3) as u8, 5000 + n, 100), &case);
        let frames: Vec<_> = (0..60).map(|n| (RED, frame(n))).collect();
        follow_from_the_second_turn(&mut side, &case, || frames.clone());
        assert_eq!(side.gateway.snapshot().of(Verdict::Sealed), 3 * 60);
    }
    let case = Case { clear: Some(Third::Protected), ..SIMPLE };
    let mut side = Side::lending(Site::West, &case);
    let frame = |n: u16| udp((n % 3) as u8, 5000 + n, 100).frame(RED);
    let frames: Vec<_> = (0..60).map(|n| (RED, frame(n))).collect();
    (0..3).for_each(|_| side.forward(&frames));
    let snapshot = side.gateway.snapshot();
    let became = [Verdict::Sealed, Verdict::Forwarded].map(|verdict| snapshot.of(verdict));
    assert_eq!((snapshot.followed, became), (40, [60, 120]));
}

/// Nor do those that are forwarded in clear, whichever neighbour each goes to, though there be policies of others.
#[test]
fn most_packets_in_clear_need_no_stages() {
    let each = [(Third::Back, 3), (Third::Protected, 2)];
    for (case, (third, hosts)) in cases().flat_map(|case| each.map(|one| (case, one))) {
        if third == Third::Protected && case.tunnel.if_id != 0 {
            continue;
        }
        let case = Case { clear: Some(third), ..case };
        let mut side = Side::new(Site::West, &case);
        let frame = |n| frame_of(n, udp((n % hosts) as u8, 5000 + n, 100), &case);
        let frames: Vec<_> = (0..60).map(|n| (RED, frame(n))).collect();
        follow_from_the_second_turn(&mut side, &case, || frames.clone());
        assert_eq!(side.gateway.snapshot().of(Verdict::Forwarded), 180);
    }
}

/// Where others are for a tunnel, behind them or among them, each goes its way.
#[test]
fn packets_in_clear_and_for_a_tunnel_need_no_stages() {
    let behind = |n: u16| if n < 40 { n % 2 } else { 2 };
    let among = |n: u16| n % 3;
    let hosts: [fn(u16) -> u16; 2] = [behind, among];
    for (case, host) in cases().flat_map(|case| hosts.map(|host| (case, host))) {
        let third = if case.tunnel.if_id == 0 { Third::Protected } else { Third::AsBefore };
        let case = Case { clear: Some(third), ..case };
        let mut side = Side::new(Site::West, &case);
        let frame = |n| frame_of(n, udp(host(n) as u8, 5000 + n, 100), &case);
        let frames: Vec<_> = (0..60).map(|n| (RED, frame(n))).collect();
        (0..3).for_each(|_| side.forward(&frames));
        let snapshot = side.gateway.snapshot();
        let became = [Verdict::Sealed, Verdict::Forwarded].map(|verdict| snapshot.of(verdict));
        assert_eq!((snapshot.followed, became), (120, [60, 120]), "{case:?}");
    }
}

/// Nor do they with an ICMP packet among them, of either family, into one tunnel or many, and out of them.
#[test]
fn a_ping_leaves_nobody_to_the_stages() {
    let inside = [Inside::V4, Inside::V6];
    let kinds = inside.iter().flat_map(|inside| [(*inside, None), (*inside, Some(Last::Nothing))]);
    for (inside, own) in kinds {
        let case = Case { inside, own, ..SIMPLE };
        for site in [Site::West, Site::East] {
            let mut side = Side::new(site, &case);
            let mut arrivals = Arrivals::new(site, case);
            let host = |n: u8| if own.is_some() { n % 3 } else { 1 };
            let step = |n| match n {
                30 => Step::Odd(false, Odd::Echo),
                _ => Step::Plain { v6: false, host: host(n), port: 5000, len: 100 },
            };
            let frames = || (0..60).map(|n| arrivals.frame(step(n))).collect();
            follow_from_the_second_turn(&mut side, &case, frames);
        }
    }
}

/// Where a route leads IPv6 into a tunnel that has an SA for IPv4 alone, nothing of it leaves by that.
#[test]
fn what_has_no_sa_for_its_family_is_not_sealed() {
    let tunnel = Tunnel { if_id: 5, ..PLAIN };
    let case = Case { tunnel, inside: Inside::V6, own: Some(Last::OnlyV4), ..SIMPLE };
    let mut side = Side::new(Site::West, &case);
    for hosts in [2, 2, 3] {
        let frame = |n: u16| frame_of(n, udp((n % hosts) as u8, 5000 + n, 100), &case);
        let frames: Vec<_> = (0..60).map(|n| (RED, frame(n))).collect();
        side.forward(&frames);
    }
    // The second batch went by the lane, and of the third what was not for that tunnel.
    let snapshot = side.gateway.snapshot();
    assert_eq!((snapshot.of(Verdict::Sealed), snapshot.followed), (160, 100));
}

/// What is dropped keeps no ESP from the lane that comes behind it.
#[test]
fn esp_behind_what_is_dropped_needs_no_stages() {
    for (_, tunnel) in ways() {
        let case = Case { tunnel, forward: true, own: Some(Last::Nothing), ..SIMPLE };
        let mut side = Side::new(Site::West, &case);
        let mut arrivals = Arrivals::new(Site::West, case);
        side.block(true);
        // Where routes lead into tunnels and there are policies, too, what is sealed has no lane, but follows.
        let batches = [(5000, 0), (5000, 60), (BLOCKED_PORT, 90)];
        for (port, followed) in batches {
            let there = |n: u8| (RED, udp(n % 3, port, 100).frame(RED));
            let mut frames: Vec<_> = (0..30).map(there).collect();
            frames.extend((0..30).map(|_| arrivals.frame(Step::Back(false))));
            side.forward(&frames);
            assert_eq!(side.gateway.snapshot().followed, followed, "{case:?}");
        }
        assert_eq!(side.gateway.snapshot().of(Verdict::OutPolicyBlock), 30);
    }
}

/// Where packets wait for an SA, those with one need no stages, whichever they come behind; once it is there, those that waited go first.
#[test]
fn who_waits_for_an_sa_keeps_nobody_else() {
    for (_, tunnel) in ways() {
        let case = Case { tunnel, own: Some(Last::Missing), ..SIMPLE };
        let mut side = Side::new(Site::West, &case);
        side.gateway.change(|view| view.acquire_is_heard = true);
        let mut port = 5000;
        let mut batch = |hosts: u8| -> Vec<_> {
            let ports = port..port + 30;
            port += 30;
            ports.map(|port| (RED, udp(port as u8 % hosts, port, 100).frame(RED))).collect()
        };
        // Of the first batch all take the stages, and of each other those without an SA.
        for followed in [0, 20, 40] {
            side.forward(&batch(3));
            assert_eq!(side.gateway.snapshot().followed, followed, "{case:?}");
        }
        assert_eq!(side.gateway.worker.waiting(), 16);
        side.forward(&batch(2));
        assert_eq!(side.gateway.snapshot().followed, 70);
        // It is there as soon as those that wait were tried, which they are not anew for a while.
        side.gateway.change(|_| {});
        side.forward(&batch(2));
        let if_id = if tunnel.if_id == 0 { 0 } else { tunnel.if_id + 3 };
        side.fill(3, if_id, Site::East, &case);
        [2, 3].into_iter().for_each(|hosts| side.forward(&batch(hosts)));
        std::thread::sleep(std::time::Duration::from_millis(2));
        (0..3).for_each(|_| side.forward(&batch(3)));
        assert_eq!(side.gateway.worker.waiting(), 0);
        for sealed in by_hosts(&side.left[usize::from(BLACK)], &case).values() {
            // A hundred bytes of data leave two of padding, and the ports are as far from the end of all.
            let port = |packet: &Vec<u8>| packet[packet.len() - 132 + 22..][..2].to_vec();
            assert!(sealed.is_sorted_by_key(port), "{case:?}");
        }
        let waited = side.gateway.snapshot().of(Verdict::HoldFull);
        assert_eq!(side.gateway.snapshot().of(Verdict::Sealed) + waited, 10 * 30);
    }
}

/// Where it is asked what lets in all that comes through a tunnel, the policy that does is told.
#[test]
fn who_is_welcome_is_counted_where_that_is_asked() {
    let case = Case { tunnel: Tunnel { if_id: 5, ..PLAIN }, own: Some(Last::Nothing), ..SIMPLE };
    let mut side = opening_side(&case);
    let mut arrivals = Arrivals::new(Site::East, case);
    for (hosts, followed) in [(0..2, 0), (0..2, 40), (2..3, 60)] {
        let step = |host| Step::Plain { v6: false, host, port: 5000, len: 100 };
        let frames = (0..20).flat_map(|_| hosts.clone()).map(step);
        let frames: Vec<_> = frames.map(|step| arrivals.frame(step)).collect();
        side.forward(&frames);
        assert_eq!(side.gateway.snapshot().followed, followed);
    }
    let policies = side.gateway.view.spd.iter().filter(|policy| policy.config().if_id > 5);
    let packets: Vec<_> = policies.map(|policy| policy.usage().packets).collect();
    assert!(packets.len() == 3 && packets.iter().all(|packets| *packets > 0), "{packets:?}");
}

/// What comes from where no route leads into the tunnel is welcome nowhere, whoever it comes behind.
#[test]
fn whom_no_route_leads_back_to_follows_nobody() {
    let inside = [Inside::V4, Inside::V6, Inside::Both];
    let kinds = inside.iter().flat_map(|inside| [(*inside, None), (*inside, Some(Last::Nothing))]);
    for (inside, own) in kinds {
        let tunnel = Tunnel { if_id: 5, ..PLAIN };
        let case = Case { tunnel, inside, forward: false, is_hub: true, own, ..SIMPLE };
        let mut side = opening_side(&case);
        let mut arrivals = Arrivals::new(Site::East, case);
        let hosts = if own.is_some() { 3 } else { 1 };
        let mut arrive = |n: u8, port| {
            arrivals.frame(Step::Plain { v6: n % 2 == 1, host: n % hosts, port, len: 100 })
        };
        let stranger = FROM_FAR_END + 3;
        for from_40 in [FROM_FAR_END, FROM_FAR_END, stranger] {
            let port = |n| if n == 40 { from_40 } else { FROM_FAR_END };
            let frames: Vec<_> = (0..60).map(|n| arrive(n, port(n))).collect();
            side.forward(&frames);
        }
        let snapshot = side.gateway.snapshot();
        assert_eq!(snapshot.followed, 60 + 40, "{case:?}");
        assert_eq!((snapshot.of(Verdict::Opened), snapshot.of(Verdict::NoPolicy)), (179, 1));
    }
}

/// So do ESP packets of many tunnels, by the word of policies or as all is welcome that comes through a tunnel; from the first
/// on that carries something else they wait for the stages.
#[test]
fn most_packets_out_of_many_tunnels_need_no_stages() {
    for case in ways_in().into_iter().flat_map(of_many).flat_map(with_vrfs) {
        let mut side = opening_side(&case);
        let mut arrivals = Arrivals::new(Site::East, case);
        let port = |n: u8| FROM_FAR_END + 4 * u16::from(n);
        let step = |n| Step::Plain { v6: n % 2 == 1, host: n % 3, port: port(n), len: 100 };
        let mut frames =
            |count: u8| -> Vec<_> { (0..count).map(|n| arrivals.frame(step(n))).collect() };
        follow_from_the_second_turn(&mut side, &case, || frames(60));
        // One that is in clear takes the stages alone.
        let last_hop = Packet { ttl: 1, ..udp(1, 5000, 40) };
        let clear = (BLACK, last_hop.frame(BLACK));
        side.forward(&[frames(7), vec![clear.clone()], frames(51)].concat());
        assert_eq!(side.gateway.snapshot().followed, 178, "{case:?}");
        side.forward(&[frames(8), vec![clear], frames(51)].concat());
        assert_eq!(side.gateway.snapshot().followed, 237);
        let before = frames(40);
        let odd = (BLACK, arrivals.sealed(1, &last_hop.bytes()));
        side.forward(&[before, vec![odd]].concat());
        let snapshot = side.gateway.snapshot();
        assert_eq!(snapshot.followed, 277);
        assert_eq!(snapshot.of(Verdict::Opened), 3 * 60 + 58 + 59 + 40);
        let dropped = [Verdict::TtlExpired, Verdict::ClearOfProtected];
        assert_eq!(dropped.iter().map(|verdict| snapshot.of(*verdict)).sum::<u64>(), 3);
    }
}

/// In VRFs those of several tunnels follow as soon as many are of each, in whatever order.
#[test]
fn packets_of_several_tunnels_follow_in_vrfs() {
    let in_vrf = |case| Case { own: Some(Last::Nothing), tables: Tables::Vrfs, ..case };
    for case in cases().map(in_vrf) {
        let mut side = Side::new(Site::West, &case);
        let frame = |n| frame_of(n, udp((n % 3) as u8, 5000 + n, 100), &case);
        let frames: Vec<_> = (0..60).map(|n| (RED, frame(n))).collect();
        follow_from_the_second_turn(&mut side, &case, || frames.clone());
    }
    for case in ways_in().into_iter().map(in_vrf) {
        let mut side = opening_side(&case);
        let mut arrivals = Arrivals::new(Site::East, case);
        let port = |n: u8| FROM_FAR_END + 4 * u16::from(n);
        let step = |n| Step::Plain { v6: n % 2 == 1, host: n % 3, port: port(n), len: 100 };
        let frames = || (0..60).map(|n| arrivals.frame(step(n))).collect();
        follow_from_the_second_turn(&mut side, &case, frames);
    }
}

/// Packets that policies tell apart may go by one SA: its numbers rise all the same, and each policy counts its own.
#[test]
fn packets_of_several_policies_share_the_numbers_of_an_sa() {
    let mut side = Side::new(Site::West, &SIMPLE);
    let policy = SIMPLE.tunnel.policy(Direction::Out, Site::East);
    side.gateway.change(|view| {
        view.spd.remove(&policy).unwrap();
        for n in 1..=3 {
            let selector = Selector::between(Site::West.inner(false), host_of(n)).unwrap();
            let policy = PolicyConfig { index: 100 + n, selector, ..policy.clone() };
            view.spd.insert(Arc::new(Policy::new(policy)));
        }
    });
    // The last packet of each is for another host than that of the one before.
    for first in (0..64).map(|batch| batch % 3) {
        let there = |n: u8| (RED, udp(n % 3, 5000, 100).frame(RED));
        let frames: Vec<_> = (first..60 + first).map(there).collect();
        side.forward(&frames);
    }
    assert_eq!(side.gateway.snapshot().followed, 63 * 60);
    // That the numbers rise is looked at there.
    let flows = by_hosts(&side.left[usize::from(BLACK)], &SIMPLE);
    assert_eq!(flows.values().map(Vec::len).collect::<Vec<_>>(), [64 * 20; 3]);
    let policies = side.gateway.view.spd.iter().filter(|policy| policy.config().index > 100);
    let packets: Vec<_> = policies.map(|policy| policy.usage().packets).collect();
    assert_eq!(packets, [64 * 20; 3]);
}

/// What comes of one SA by two ports is opened once, though each port's packets follow each other.
#[test]
fn esp_that_comes_by_two_ports_is_opened_once() {
    let mut side = opening_side(&SIMPLE);
    let mut arrivals = Arrivals::new(Site::East, SIMPLE);
    let by = |port: u16, frame: &[u8]| (port, [&port_mac(port).0, &frame[6..]].concat());
    let step = Step::Plain { v6: false, host: 0, port: FROM_FAR_END, len: 100 };
    let mut fresh = || -> Vec<_> { (0..30).map(|_| arrivals.frame(step).1).collect() };
    for batch in 0..64 {
        // The last of each batch has come by another port than that of the one before.
        let ports = if batch % 2 == 0 { [RED, BLACK] } else { [BLACK, RED] };
        let frames = ports.iter().flat_map(|port| fresh().into_iter().map(|one| by(*port, &one)));
        side.forward(&frames.collect::<Vec<_>>());
    }
    let before = side.gateway.snapshot();
    assert_eq!(before.of(Verdict::Opened), 64 * 60);
    // Something else is the first, so that none follows before all are looked at.
    let odd = Packet { ttl: 1, ..udp(1, 5000, 40) }.frame(RED);
    let frames = fresh();
    let twice = [RED, BLACK].iter().flat_map(|port| frames.iter().map(|one| by(*port, one)));
    side.forward(&[(RED, odd)].into_iter().chain(twice).collect::<Vec<_>>());
    let after = side.gateway.snapshot();
    assert_eq!(after.of(Verdict::Opened) - before.of(Verdict::Opened), 30);
    assert_eq!(after.of(Verdict::Replayed), 30);
}

/// Who sends what was sent before keeps nobody from the short ways: of one tunnel, of several, and of all in a lane.
#[test]
fn replays_need_no_stages() {
    let many = Case { own: Some(Last::Nothing), ..SIMPLE };
    for (case, hosts) in [(SIMPLE, 1), (many, 3)] {
        let mut side = opening_side(&case);
        let mut arrivals = Arrivals::new(Site::East, case);
        let step = |n: u8| Step::Plain { v6: false, host: n % hosts, port: FROM_FAR_END, len: 100 };
        let mut before: Vec<(u16, Vec<u8>)> = Vec::new();
        for batch in 0u64..40 {
            let fresh: Vec<_> = (0..30).map(|n| arrivals.frame(step(n))).collect();
            side.forward(&before.iter().chain(&fresh).cloned().collect::<Vec<_>>());
            let snapshot = side.gateway.snapshot();
            assert_eq!(snapshot.of(Verdict::Opened), 30 * (batch + 1));
            assert_eq!(snapshot.of(Verdict::Replayed), 30 * batch);
            assert_eq!(snapshot.followed, 60 * batch, "{case:?}");
            before = fresh;
        }
    }
}

/// Nor does who sends for an SA that is not there, or in another form than the SA says, or whose packets were marked on their way.
#[test]
fn marks_and_esp_for_nobody_need_no_stages() {
    let many = Case { own: Some(Last::InUdp), ..SIMPLE };
    for (case, hosts) in [(SIMPLE, 1), (many, 3)] {
        let mut side = opening_side(&case);
        let mut arrivals = Arrivals::new(Site::East, case);
        let plain = |host| Step::Plain { v6: false, host, port: FROM_FAR_END, len: 100 };
        for batch in 1..=40 {
            let frames = (0..48).map(|n: u8| {
                // What is inside of the marked ones is for host 1.
                let host = if hosts > 1 { n % hosts } else { 1 };
                arrivals.frame(match n % 8 {
                    1 => Step::Esp(false, host, Esp::OfNobody),
                    3 if hosts > 1 => Step::Esp(false, host, Esp::Mistaken),
                    4 => Step::Esp(false, 1, Esp::Marked),
                    5 => Step::Esp(false, 1, Esp::MarkedOtherwise),
                    _ => plain(host),
                })
            });
            side.forward(&frames.collect::<Vec<_>>());
            let snapshot = side.gateway.snapshot();
            let verdicts = [Verdict::Opened, Verdict::NoState, Verdict::EncapsulationMismatch];
            let counts = verdicts.map(|verdict| snapshot.of(verdict));
            let mistaken = if hosts > 1 { 6 } else { 0 };
            let expected = [42 - mistaken, 6, mistaken];
            assert_eq!(counts, expected.map(|count| count * batch), "{case:?}");
            assert_eq!(snapshot.followed, 48 * (batch - 1), "{case:?}");
            let left = &side.left[usize::from(RED)];
            let marked = |ecn| left.iter().filter(|frame| frame[15] & 3 == ecn).count() as u64;
            assert_eq!([1, 2, 3].map(marked), [6 * batch, 0, 6 * batch]);
        }
    }
}

/// An SA that has few numbers left gives them all, and to nobody else's loss.
#[test]
fn the_last_numbers_of_an_sa_among_others_are_used() {
    let case = Case { own: Some(Last::Exhausted), ..SIMPLE };
    let mut side = Side::new(Site::West, &case);
    for _ in 0..6 {
        let frames: Vec<_> = (0..60).map(|n| (RED, udp(n % 3, 5000, 100).frame(RED))).collect();
        side.forward(&frames);
    }
    let snapshot = side.gateway.snapshot();
    let counts = [Verdict::Sealed, Verdict::SequenceExhausted].map(|verdict| snapshot.of(verdict));
    assert_eq!(counts, [6 * 40 + 60, 60]);
}

/// Behind a packet that stays behind, those between the same hosts do, though it be an SA for which it stays.
#[test]
fn who_stays_behind_for_an_sa_keeps_its_hosts_behind() {
    let case = Case { clear: Some(Third::Behind), forward: false, ..SIMPLE };
    let clear = |host, len| Step::Plain { v6: false, host, port: 5000, len };
    let odd = |odd| Step::Odd(false, odd);
    let mixed = [odd(Odd::MartianEsp), odd(Odd::TransitEsp), clear(1, 4)];
    let steps = [&[clear(0, 0), clear(0, 0), Step::Turn][..], &mixed];
    for lends in [false, true] {
        run(Site::West, case, lends, steps.concat()).unwrap();
    }
}

/// What comes of one SA stays in order, wherever it comes from and whatever of it needs the stages, as its window may be short.
#[test]
fn esp_of_a_peer_that_moves_stays_in_order() {
    let clear = |count| vec![Step::Plain { v6: false, host: 0, port: 5000, len: 0 }; count];
    let esp = |esp| Step::Esp(false, 0, esp);
    let back = vec![esp(Esp::Short), Step::Back(false), esp(Esp::FarAhead)];
    let moved = vec![esp(Esp::Moved)];
    let steps = [clear(9), vec![Step::Turn], clear(2), back, clear(1), moved, clear(1)];
    for lends in [false, true] {
        run(Site::West, SIMPLE, lends, steps.concat()).unwrap();
    }
}
