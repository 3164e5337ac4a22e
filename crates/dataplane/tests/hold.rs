//! Packets that wait for an SA: who waits, how many, how long, and how they leave.

mod fixture;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::bundles::Bundle;
use dataplane::event::Event;
use dataplane::fib::{NextHop, Route};
use dataplane::policy::{Action, Direction, Policy, PolicyConfig, Template};
use dataplane::prefix::{Family, Prefix};
use dataplane::sa::{Mode, Sa, SaConfig};
use dataplane::selector::{PortMatch, Selector};
use dataplane::transport::Ends;
use dataplane::verdict::Verdict;
use dataplane::view::View;
use fixture::*;
use wire::protocol;

/// Frames of the gateways here: the holds' and a reserve for receiving.
const MANY_FRAMES: usize = 1024;

/// Packets that wait for one policy, and in all, at most: the documented bounds.
const PER_POLICY: usize = 16;
const IN_ALL: usize = 128;

/// West, whose SA is missing, with somebody who may bring it.
fn view() -> View {
    let mut view = PLAIN.view(Site::West, &nonces());
    view.acquire_is_heard = true;
    view.bundles.set(0, None);
    view
}

fn sa() -> Arc<Sa> {
    let sa = Sa::new(PLAIN.sa(Site::East)).unwrap();
    sa.arm(&nonces()).unwrap();
    Arc::new(sa)
}

/// A packet that can be told from others.
fn numbered(number: u8) -> Vec<u8> {
    let payload = vec![number; 20];
    Packet { payload, ..Packet::towards(Site::East, false, 20) }.frame(RED)
}

/// What arrived at the other end: each packet's number, in order of arrival.
fn arrived(gateway: &mut Gateway) -> Vec<u8> {
    let sealed = std::iter::from_fn(|| gateway.collect(BLACK));
    let opened = sealed
        .map(|frame| Opened::from(&unframe(BLACK, &frame), &PLAIN.sa(Site::East), 0))
        .map(|opened| (opened.sequence, opened.plaintext[28]));
    let (sequences, numbers): (Vec<_>, Vec<_>) = opened.unzip();
    assert!(sequences.is_sorted(), "in the order of their numbers");
    numbers
}

#[test]
fn packets_wait_and_leave_in_order_ahead_of_what_is_new() {
    let mut west = Gateway::with_frames(view(), MANY_FRAMES);
    for number in 0..10 {
        west.inject(RED, &numbered(number));
        west.worker.turn();
    }
    assert_eq!((west.worker.waiting(), west.snapshot().decided()), (10, 0));
    assert_eq!(west.events.try_iter().count(), 1, "asked for once");
    west.change(|view| assert!(view.bundles.set(0, Some(sa()))));
    for number in 10..20 {
        west.inject(RED, &numbered(number));
        west.worker.turn();
    }
    west.turn_until_nothing_waits();
    assert_eq!(arrived(&mut west), (0..20).collect::<Vec<_>>());
    let counts = west.snapshot();
    assert_eq!((counts.of(Verdict::Sealed), counts.decided()), (20, counts.received));
    assert_eq!(west.worker.pool().free(), MANY_FRAMES);
}

#[test]
fn views_that_change_all_the_time_do_not_change_the_order() {
    let mut west = Gateway::with_frames(view(), MANY_FRAMES);
    let mut number = 0;
    for turn in 0..60 {
        // The tries are paced, so the SA lands between two of them more often than not.
        west.change(|view| {
            if turn == 30 {
                assert!(view.bundles.set(0, Some(sa())));
            }
        });
        if turn % 4 == 0 {
            west.inject(RED, &numbered(number));
            number += 1;
        }
        west.worker.turn();
    }
    west.turn_until_nothing_waits();
    assert_eq!(arrived(&mut west), (0..number).collect::<Vec<_>>());
}

#[test]
fn what_waits_is_bounded_per_policy_in_all_and_by_the_frames_that_are_free() {
    let mut west = Gateway::with_frames(view(), MANY_FRAMES);
    let policies = 10;
    let host = |policy: u8| -> std::net::IpAddr { [198, 51, 100, policy].into() };
    west.change(|view| {
        for policy in 0..policies {
            let config = PLAIN.policy(Direction::Out, Site::East);
            let mut selector = config.selector;
            selector.destination = dataplane::prefix::Prefix::host(host(policy));
            let index = 100 + 8 * u32::from(policy);
            let config = PolicyConfig { index, selector, priority: 1, ..config };
            view.spd.insert(Arc::new(Policy::new(config)));
        }
    });
    for policy in 0..policies {
        for _ in 0..PER_POLICY + 1 {
            let dst = host(policy);
            west.inject(RED, &Packet { dst, ..Packet::towards(Site::East, false, 20) }.frame(RED));
            west.worker.turn();
        }
    }
    assert_eq!(west.worker.waiting(), IN_ALL);
    let lost = usize::from(policies) * (PER_POLICY + 1) - IN_ALL;
    assert_eq!(west.snapshot().of(Verdict::HoldFull), lost as u64);
    assert_eq!(west.snapshot().decided(), lost as u64);

    // Few frames: receiving goes on, and nothing waits.
    let mut west = Gateway::with_frames(view(), 64);
    for _ in 0..100 {
        west.inject(RED, &numbered(1));
        west.worker.turn();
    }
    assert_eq!((west.worker.waiting(), west.worker.pool().free()), (0, 64));
    assert_eq!(west.snapshot().of(Verdict::HoldFull), 100);
}

#[test]
fn nothing_waits_for_ever() {
    let mut west = Gateway::with_frames(view(), MANY_FRAMES);
    west.worker.set_hold_time(Duration::from_millis(30));
    west.inject(RED, &numbered(1));
    west.worker.turn();
    let start = Instant::now();
    west.turn_until_nothing_waits();
    assert!(start.elapsed() >= Duration::from_millis(20), "it waited at all");
    assert_eq!(west.snapshot().of(Verdict::HoldExpired), 1);
    // Views that change do not begin the wait anew.
    west.inject(RED, &numbered(1));
    west.worker.turn();
    let start = Instant::now();
    while west.worker.waiting() != 0 {
        assert!(start.elapsed() < Duration::from_secs(10), "it waits for ever");
        west.change(|_| {});
        west.worker.turn();
    }
    assert_eq!(west.snapshot().of(Verdict::HoldExpired), 2);
    assert_eq!(west.worker.pool().free(), MANY_FRAMES);
}

#[test]
fn a_question_that_was_lost_is_asked_again_while_the_packet_waits() {
    let mut west = Gateway::with_frames(view(), MANY_FRAMES);
    west.inject(RED, &numbered(1));
    west.worker.turn();
    let end = Instant::now() + Duration::from_secs(10);
    let mut asked = 0;
    while asked < 3 {
        assert!(Instant::now() < end, "asked {asked} times");
        asked += west.events.try_iter().count();
        west.worker.turn();
    }
    west.change(|view| assert!(view.bundles.set(0, Some(sa()))));
    west.turn_until_nothing_waits();
    assert_eq!(arrived(&mut west), [1]);
}

#[test]
fn nobody_waits_where_nobody_is_asked_or_no_sa_would_do() {
    let mut deaf = view();
    deaf.acquire_is_heard = false;
    let mut west = Gateway::with_frames(deaf, MANY_FRAMES);
    west.inject(RED, &numbered(1));
    west.worker.turn();
    assert_eq!((west.worker.waiting(), west.snapshot().of(Verdict::NoSa)), (0, 1));
    // The listener comes, a packet waits, and the listener goes.
    west.change(|view| view.acquire_is_heard = true);
    west.inject(RED, &numbered(1));
    west.worker.turn();
    assert_eq!(west.worker.waiting(), 1);
    west.change(|view| view.acquire_is_heard = false);
    west.turn_until_nothing_waits();
    assert_eq!(west.snapshot().of(Verdict::NoSa), 2);

    let mut impossible = view();
    let policy = PLAIN.policy(Direction::Out, Site::East);
    let action = Action::Protect { template: PLAIN.template(Site::East), bundle: None };
    impossible.spd.insert(Arc::new(Policy::new(PolicyConfig { action, ..policy })));
    let mut west = Gateway::with_frames(impossible, MANY_FRAMES);
    west.inject(RED, &numbered(1));
    west.worker.turn();
    assert_eq!((west.worker.waiting(), west.snapshot().of(Verdict::NoSa)), (0, 1));
}

#[test]
fn a_packet_that_waited_never_leaves_in_clear() {
    let policy = PLAIN.policy(Direction::Out, Site::East);
    let becomes = |action: Option<Action>| {
        let mut west = Gateway::with_frames(view(), MANY_FRAMES);
        west.inject(RED, &numbered(1));
        west.worker.turn();
        west.change(|view| {
            view.spd.remove(&policy);
            if let Some(action) = action {
                let config = PolicyConfig { action, ..policy.clone() };
                view.spd.insert(Arc::new(Policy::new(config)));
            }
        });
        west.turn_until_nothing_waits();
        assert!(west.collect(BLACK).is_none() && west.collect(RED).is_none());
        *Verdict::ALL.iter().find(|verdict| west.snapshot().of(**verdict) != 0).unwrap()
    };
    assert_eq!(becomes(None), Verdict::HoldPolicyGone);
    assert_eq!(becomes(Some(Action::Bypass)), Verdict::HoldPolicyGone);
    assert_eq!(becomes(Some(Action::Discard)), Verdict::OutPolicyBlock);
    let mut template = PLAIN.template(Site::East);
    template.optional = true;
    let optional = Action::Protect { template, bundle: Some(0) };
    assert_eq!(becomes(Some(optional)), Verdict::HoldPolicyGone);
}

#[test]
fn another_policy_that_takes_over_has_it_sealed() {
    let mut west = Gateway::with_frames(view(), MANY_FRAMES);
    west.inject(RED, &numbered(7));
    west.worker.turn();
    // As an IKE daemon does that negotiates a narrower selector than its trap's, with its own slot.
    west.change(|view| {
        let action = Action::Protect { template: PLAIN.template(Site::East), bundle: Some(5) };
        let config = PLAIN.policy(Direction::Out, Site::East);
        let config = PolicyConfig { index: 200, priority: 1, action, ..config };
        view.spd.insert(Arc::new(Policy::new(config)));
        assert!(view.bundles.set(5, Some(sa())));
    });
    west.turn_until_nothing_waits();
    assert_eq!(arrived(&mut west), [7]);
}

#[test]
fn a_worker_whose_sa_is_another_workers_waits() {
    let mut own = view();
    own.bundles.set_bundle(0, Bundle::new(None, vec![None, Some(sa())]));
    let mut west = Gateway::with_frames(own, MANY_FRAMES);
    west.inject(RED, &numbered(1));
    west.worker.turn();
    assert_eq!(west.worker.waiting(), 1);
    let asked: Vec<Event> = west.events.try_iter().collect();
    assert!(matches!(asked[..], [Event::SaNeeded { cpu: None, .. }]));
    west.change(|view| {
        let bundle = Bundle::new(None, vec![Some(sa()), None]);
        assert!(view.bundles.set_bundle(0, bundle));
    });
    west.turn_until_nothing_waits();
    assert_eq!(arrived(&mut west), [1]);
}

#[test]
fn an_sa_past_its_limits_ends_the_wait_by_its_own_name() {
    let mut west = Gateway::with_frames(view(), MANY_FRAMES);
    west.inject(RED, &numbered(1));
    west.worker.turn();
    let spent = SaConfig { sent: u64::MAX, extended_sequence: true, ..PLAIN.sa(Site::East) };
    let spent = Sa::new(spent).unwrap();
    spent.arm(&nonces()).unwrap();
    let spent = Arc::new(spent);
    west.change(|view| assert!(view.bundles.set(0, Some(spent.clone()))));
    west.turn_until_nothing_waits();
    assert_eq!(west.snapshot().of(Verdict::SequenceExhausted), 1);
}

/// West with a policy for transport mode to whomever, and an SA to east's host alone, for what its own selector admits.
fn with_transport_for(selector: Option<Selector>) -> Gateway {
    let mut view = View { spd: Default::default(), ..view() };
    let template = Template { mode: Mode::Transport, ..PLAIN.template(Site::East) };
    view.spd.insert(Arc::new(Policy::new(PolicyConfig {
        selector: Selector::any(Family::V4),
        action: Action::Protect { template, bundle: None },
        ..PLAIN.policy(Direction::Out, Site::East)
    })));
    let config = SaConfig {
        mode: Mode::Transport,
        source: Site::West.host(false),
        destination: Site::East.host(false),
        selector,
        ..PLAIN.sa(Site::East)
    };
    let SaConfig { source, destination, if_id, reqid, .. } = config;
    let sa = Sa::new(config).unwrap();
    sa.arm(&nonces()).unwrap();
    view.bundles.set(7, Some(Arc::new(sa)));
    view.transport.insert(Ends { source, destination, if_id, reqid, spi: 0 }, 7);
    let hop = NextHop { port: BLACK, gateway: Some(Site::East.outer(false)) };
    view.fib.insert(Site::East.inner(false), Route::Via(hop));
    Gateway::with_frames(view, MANY_FRAMES)
}

fn with_transport() -> Gateway {
    with_transport_for(None)
}

/// From west's host to one of east's network.
fn towards(dst: &str) -> Vec<u8> {
    let src = Site::West.host(false);
    Packet { src, dst: ip(dst), ..Packet::towards(Site::East, false, 20) }.frame(RED)
}

#[test]
fn who_waits_for_one_far_end_in_transport_mode_is_in_nobody_elses_way() {
    let mut west = with_transport();
    for _ in 0..PER_POLICY {
        west.inject(RED, &towards("10.2.0.99"));
        west.worker.turn();
    }
    let there = Site::East.host(false).to_string();
    for _ in 0..50 {
        for _ in 0..32 {
            west.inject(RED, &towards(&there));
        }
        west.worker.turn();
        while west.collect(BLACK).is_some() {}
    }
    let counts = west.snapshot();
    assert_eq!((counts.of(Verdict::Sealed), counts.of(Verdict::HoldFull)), (1600, 0));
    assert_eq!(west.worker.waiting(), PER_POLICY);
    // And others may wait as well.
    west.inject(RED, &towards("10.2.0.98"));
    west.worker.turn();
    assert_eq!(west.worker.waiting(), PER_POLICY + 1);
}

#[test]
fn who_waits_as_the_sa_is_not_for_it_is_in_nobody_elses_way() {
    let ends = (Site::West.host(false), Site::East.host(false));
    let selector = Selector {
        protocol: protocol::UDP,
        destination_port: PortMatch::exactly(5000),
        ..Selector::between(Prefix::host(ends.0), Prefix::host(ends.1)).unwrap()
    };
    let mut west = with_transport_for(Some(selector));
    let to_port = |port| Packet::udp(ends.0, ends.1, 4000, port, 20).frame(RED);
    west.inject(RED, &to_port(22));
    west.worker.turn();
    for _ in 0..50 {
        for _ in 0..32 {
            west.inject(RED, &to_port(5000));
        }
        west.worker.turn();
        while west.collect(BLACK).is_some() {}
    }
    let counts = west.snapshot();
    assert_eq!((counts.of(Verdict::Sealed), counts.of(Verdict::HoldFull)), (1600, 0));
    assert_eq!(west.worker.waiting(), 1);
}

/// Who scans what one policy is for is asked for at a bounded rate, and the others as ever.
#[test]
fn a_policy_with_many_far_ends_silences_no_other() {
    let mut west = with_transport();
    let (own, host) = (200, Prefix::host(ip("10.2.0.99")));
    west.change(|view| {
        let template = Template { mode: Mode::Transport, ..PLAIN.template(Site::East) };
        view.spd.insert(Arc::new(Policy::new(PolicyConfig {
            index: own,
            priority: 1,
            selector: Selector::between(Site::West.inner(false), host).unwrap(),
            action: Action::Protect { template, bundle: None },
            ..PLAIN.policy(Direction::Out, Site::East)
        })));
    });
    let begun = Instant::now();
    let (mut scanned, mut asked, mut waits) = (0u32, [0; 2], false);
    while asked[1] < 3 {
        assert!(begun.elapsed() < Duration::from_secs(20), "{asked:?} of {scanned}");
        for _ in 0..32 {
            scanned += 1;
            let far = format!("10.2.{}.{}", 1 + scanned / 250 % 250, scanned % 250);
            west.inject(RED, &towards(&far));
        }
        // When every place is taken.
        if !waits && scanned > 1000 {
            west.inject(RED, &towards("10.2.0.99"));
            waits = true;
        }
        west.worker.turn();
        for event in west.events.try_iter() {
            if let Event::SaNeeded { policy, .. } = event {
                asked[usize::from(policy == own)] += 1;
            }
        }
    }
    // 128 and one more in each tenth of a second.
    let tenths = begun.elapsed().as_millis() as usize / 100 + 1;
    assert!(asked[0] <= tenths * 129, "{asked:?} in {tenths}");
}

#[test]
fn each_far_end_in_transport_mode_is_asked_for() {
    let mut west = with_transport();
    let end = Instant::now() + Duration::from_millis(450);
    let mut asked = std::collections::BTreeMap::<IpAddr, usize>::new();
    for dst in ["10.2.0.98", "10.2.0.99"] {
        west.inject(RED, &towards(dst));
    }
    while Instant::now() < end {
        west.worker.turn();
        for event in west.events.try_iter() {
            if let Event::SaNeeded { flow, .. } = event {
                *asked.entry(flow.dst).or_default() += 1;
            }
        }
    }
    // Each some four times, at most once in a tenth of a second.
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert!(asked.values().all(|times| (2..=5).contains(times)), "{asked:?}");
}

#[test]
fn what_waits_does_not_wait_longer_where_every_packet_follows_another() {
    let mut view = PLAIN.view(Site::West, &nonces());
    view.acquire_is_heard = true;
    let config = PLAIN.policy(Direction::Out, Site::East);
    let selector = Selector { destination: prefix("198.51.100.0/24"), ..config.selector };
    let Action::Protect { template, .. } = config.action else { unreachable!() };
    let action = Action::Protect { template, bundle: Some(5) };
    view.spd.insert(Arc::new(Policy::new(PolicyConfig {
        index: 200,
        selector,
        action,
        priority: 1,
        ..config
    })));
    let mut west = Gateway::with_frames(view, MANY_FRAMES);
    west.worker.set_hold_time(Duration::from_millis(300));
    let follow = |west: &mut Gateway| {
        (0..4).for_each(|_| west.inject(RED, &numbered(1)));
        west.worker.turn();
        while west.collect(BLACK).is_some() {}
    };
    (0..5).for_each(|_| follow(&mut west));
    west.inject(RED, &towards("198.51.100.1"));
    west.worker.turn();
    assert_eq!(west.worker.waiting(), 1);
    let limit = Instant::now() + Duration::from_secs(10);
    while west.worker.waiting() != 0 {
        assert!(Instant::now() < limit, "it waits for ever");
        follow(&mut west);
    }
    assert_eq!(west.snapshot().of(Verdict::HoldExpired), 1);
    assert!(west.snapshot().followed > 100, "and the others followed");
    assert!(west.events.try_iter().count() > 1, "its SA was asked for again");
}

/// `level use`: as in Linux in clear while there is no SA, for which somebody is asked all the same.
#[test]
fn an_optional_sa_is_asked_for_while_packets_leave_in_clear() {
    let mut view = View { spd: Default::default(), ..view() };
    let config = PLAIN.policy(Direction::Out, Site::East);
    let Action::Protect { template, bundle } = config.action else { unreachable!() };
    let action = Action::Protect { template: Template { optional: true, ..template }, bundle };
    view.spd.insert(Arc::new(Policy::new(PolicyConfig { action, ..config })));
    let hop = NextHop { port: BLACK, gateway: Some(Site::East.outer(false)) };
    view.fib.insert(Site::East.inner(false), Route::Via(hop));
    let mut west = Gateway::with_frames(view, MANY_FRAMES);
    for number in 0..20 {
        west.inject(RED, &numbered(number));
        west.worker.turn();
    }
    let counts = west.snapshot();
    assert_eq!((counts.of(Verdict::Forwarded), west.worker.waiting()), (20, 0));
    assert_eq!(west.events.try_iter().count(), 1, "at once, and once in a tenth of a second");
}
