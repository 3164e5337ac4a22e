//! The recipes against their published texts and against stupid twins of their address plans.

use super::*;
use crate::ike::{Auth, Responder};
use crate::swanctl::{Kind, Plan, Request};
use proptest::prelude::*;
use std::net::IpAddr;

fn test1() -> Recipe {
    Recipe::built_in("bf3-test1").unwrap()
}

#[test]
fn the_built_in_recipes_are_the_published_tests() {
    assert_eq!(
        Recipe::names().collect::<Vec<_>>(),
        ["bf3-test0", "bf3-test1", "bf3-test4", "pcpu"]
    );
    let test0 = Recipe::built_in("bf3-test0").unwrap();
    assert_eq!(test0.id, "bf3-test0");
    assert_eq!(test0.directions, [Direction::Unidirectional]);
    assert_eq!(test0.tunnels, [10, 50, 100, 500]);
    assert_eq!(test0.thresholds.latency_us_max, 1e6);
    let test1 = test1();
    assert_eq!(test1.id, "bf3-test1");
    assert_eq!(test1.directions, [Direction::Unidirectional, Direction::Bidirectional]);
    assert_eq!(test1.tunnels, [500]);
    assert_eq!(test1.thresholds.latency_us_max, 1e3);
    for recipe in [&test0, &test1] {
        assert_eq!(recipe.thresholds.rx_loss_percent_max, 5.0);
        assert_eq!(recipe.thresholds.latency_loss_percent_max, 8.0);
        assert_eq!((recipe.ramp.steps, recipe.ramp.step_time_s), (20, 10.0));
        assert_eq!(
            (&recipe.near.mix[..], &recipe.far.mix[..]),
            (
                &["imix2".to_owned(), "imix4".to_owned()][..],
                &["imix1".to_owned(), "imix3".to_owned()][..],
            )
        );
    }
    // Only what the tests vary differs; the topology is one.
    assert_eq!((&test0.near, &test0.far, &test0.esp), (&test1.near, &test1.far, &test1.esp));
}

/// The published shell arithmetic, where it has no holes.
#[test]
fn the_plan_is_the_published_one() {
    let recipe = test1();
    for i in 1..=253u32 {
        let tunnel = recipe.tunnel(i).unwrap();
        let endpoint = format!("123.0.{}.{}", i / 255, i % 255 + 1);
        assert_eq!(tunnel.far_endpoint.to_string(), endpoint);
        let selector = format!("48.{}.{}.0/24", (i - 1) / 255, (i - 1) % 255);
        assert_eq!(tunnel.far_selector.to_string(), selector);
        assert_eq!(tunnel.near_endpoint.to_string(), "123.0.0.1");
        assert_eq!(tunnel.near_selector.to_string(), "16.0.0.0/8");
    }
    let expected = [(254, "123.0.1.1", "48.0.253.0/24"), (256, "123.0.1.3", "48.0.255.0/24")];
    for (i, endpoint, selector) in expected {
        let tunnel = recipe.tunnel(i).unwrap();
        assert_eq!(tunnel.far_endpoint.to_string(), endpoint);
        assert_eq!(tunnel.far_selector.to_string(), selector);
    }
    assert_eq!(recipe.tunnel(0), None);
}

#[test]
fn the_text_for_the_near_gateway() {
    let recipe = test1();
    assert_eq!(
        recipe.network_batch(Side::Near, 500),
        "address add 10.0.0.254/24 dev p1\n\
         address add 123.0.0.1/16 dev p0\n\
         route add 16.0.0.0/8 via 10.0.0.1\n\
         route add 48.0.0.0/8 via 123.0.0.2\n"
    );
    assert_eq!(recipe.xfrm_batch(Side::Near, 1), include_str!("../../testdata/near-1-tunnel.txt"));
}

#[test]
fn the_text_for_the_far_gateway() {
    let recipe = test1();
    assert_eq!(
        recipe.network_batch(Side::Far, 2),
        "address add 11.0.0.254/24 dev p1\n\
         address add 123.0.0.2/16 dev p0\n\
         address add 123.0.0.3/16 dev p0\n\
         route add 48.0.0.0/8 via 11.0.0.1\n\
         route add 16.0.0.0/8 via 123.0.0.1\n"
    );
    assert_eq!(recipe.xfrm_batch(Side::Far, 2), include_str!("../../testdata/far-2-tunnels.txt"));
}

/// `lab run` and `lab swanctl` are two readers of one published plan.
#[test]
fn the_plan_of_test_4_is_that_of_its_files() {
    let recipe = Recipe::built_in("bf3-test4").unwrap();
    assert_eq!((recipe.pairs(), &recipe.tunnels[..]), (2, &[500, 2000, 4000, 8000][..]));
    let plan = Plan::new(Request {
        kind: Kind::Test4,
        total: 8000,
        shards: Some(1),
        prefix: 24,
        auth: Auth::Psk,
        responder: Responder::Exact,
        hw_offload: None,
    })
    .unwrap();
    for planned in &plan.tunnels {
        let tunnel = recipe.tunnel(planned.number).unwrap();
        assert_eq!(recipe.ends(&tunnel, None), planned.ends);
        assert_eq!(tunnel.pair, planned.group);
    }
}

#[test]
fn the_text_for_gateways_with_a_router_between_them() {
    let recipe = Recipe::built_in("bf3-test4").unwrap();
    let near = include_str!("../../testdata/test4-near.txt");
    assert_eq!(recipe.network_batch(Side::Near, 500), near);
    let far = include_str!("../../testdata/test4-far.txt");
    assert_eq!(recipe.network_batch(Side::Far, 3), far);
    assert_eq!(recipe.router_batch(), include_str!("../../testdata/test4-router.txt"));
    assert_eq!(test1().router_batch(), "");
}

#[test]
fn every_sa_has_a_number_of_its_own() {
    let recipe = Recipe::built_in("pcpu").unwrap();
    assert_eq!((recipe.cores, recipe.esp.per_cpu), (2, true));
    let sides = [Side::Near, Side::Far];
    let mut seen = std::collections::HashSet::new();
    for tunnel in [1, 2, 65_000].map(|number| recipe.tunnel(number)).into_iter().flatten() {
        for side in sides {
            assert!(seen.insert(tunnel.spi_from(side)));
            assert!((0..15).all(|position| seen.insert(tunnel.spi_of_cpu(side, position))));
        }
    }
    let crowded = Recipe { cores: 16, ..recipe.clone() };
    assert_eq!(crowded.check().unwrap_err().to_string(), "cores is 16, expected 1..=15");
    let odd = Recipe { ring: Some(3000), ..recipe.clone() };
    assert_eq!(odd.check().unwrap_err().to_string(), "ring is 3000, expected a power of two");
    let mut close = Recipe { cores: 15, ..recipe };
    close.check().unwrap();
    close.esp.spi_towards_near = 0x1f00_0000;
    assert!(close.check().unwrap_err().to_string().contains("away from spi_towards_far"));
}

#[test]
fn links_and_router_have_to_fit_together() {
    let sentence = |change: fn(&mut Recipe)| {
        let mut recipe = Recipe::built_in("bf3-test4").unwrap();
        change(&mut recipe);
        recipe.check().unwrap_err().to_string()
    };
    let found = sentence(|r| r.far.more_black_links.clear());
    assert!(found.starts_with("more_black_links is [\"p1\"] and [], expected as many"), "{found}");
    assert!(sentence(|r| r.router = None).contains("none without a router"));
    let found = sentence(|r| r.router.as_mut().unwrap().far = "123.9.0.254/16".parse().unwrap());
    assert_eq!(found, "router is 123.9.0.254/16, expected in the network of 123.2.1.2/16");
    let found = sentence(|r| r.far.route = "17.0.0.0/8".parse().unwrap());
    assert!(found.contains("outside 17.0.0.0/8"), "{found}");
}

#[test]
fn both_gateways_hold_the_same_sas() {
    let recipe = test1();
    let states = |side| {
        let mut lines: Vec<String> = recipe
            .xfrm_batch(side, 500)
            .lines()
            .filter(|line| line.starts_with("xfrm state"))
            .map(str::to_owned)
            .collect();
        lines.sort();
        lines
    };
    let near = states(Side::Near);
    assert_eq!(near.len(), 1000);
    assert_eq!(near, states(Side::Far));
    assert_eq!(recipe.xfrm_batch(Side::Near, 500).lines().count(), 2500);
}

#[test]
fn mixed_families_are_flagged() {
    let mut recipe = test1();
    recipe.near.endpoint = "fd00::1/64".parse().unwrap();
    recipe.far.endpoint = "fd00::2/64".parse().unwrap();
    recipe.check().unwrap();
    let text = recipe.xfrm_batch(Side::Near, 1);
    assert!(text.contains("src fd00::1 dst fd00::2 proto esp"), "{text}");
    assert!(text.contains(" flag esn af-unspec aead"), "{text}");
    let text = recipe.network_batch(Side::Near, 1);
    assert!(text.contains("route add 48.0.0.0/8 via inet6 fd00::2\n"), "{text}");
    recipe.esp.esn = false;
    assert!(recipe.xfrm_batch(Side::Near, 1).contains(" flag af-unspec aead"));
}

#[test]
fn what_does_not_fit_is_refused_in_one_sentence() {
    let sentence = |change: fn(&mut Recipe)| {
        let mut recipe = test1();
        change(&mut recipe);
        recipe.check().unwrap_err().to_string()
    };
    assert_eq!(sentence(|r| r.tunnels = vec![500, 0]), "tunnels is 0, expected 1..=65000");
    assert_eq!(sentence(|r| r.ramp.steps = 0), "steps is 0, expected 1..=1000");
    assert_eq!(
        sentence(|r| r.ramp.step_time_s = f64::NAN),
        "step_time_s is NaN, expected 0.5..=3600"
    );
    assert_eq!(
        sentence(|r| r.clients_per_tunnel = 255),
        "clients_per_tunnel is 255, expected 1..=254, the hosts of 48.0.0.0/24"
    );
    assert_eq!(
        sentence(|r| {
            r.far.selector = "48.255.0.0/24".parse().unwrap();
            r.tunnels = vec![257];
        }),
        "tunnel 257 needs selector 49.0.0.0/24, which lies outside 48.0.0.0/8; use fewer tunnels"
    );
    assert_eq!(
        sentence(|r| r.far.endpoint = "123.0.0.2/24".parse().unwrap()),
        "tunnel 500 needs endpoint 123.0.1.247, which lies outside 123.0.0.2/24; use fewer tunnels"
    );
    assert_eq!(
        sentence(|r| r.near.mix = vec!["64".into()]),
        "mix is 64, expected frames of at least 70 bytes"
    );
    assert_eq!(
        sentence(|r| r.esp.spi_towards_near = r.esp.spi_towards_far + 5),
        "spi_towards_near is 268435461, expected more than 65000 away from spi_towards_far"
    );
}

#[test]
fn unknown_names_and_newer_schemas_are_refused() {
    assert_eq!(
        Recipe::built_in("bf3").unwrap_err().to_string(),
        "recipe `bf3` is unknown; built in are bf3-test0, bf3-test1, bf3-test4, pcpu"
    );
    assert_eq!(Recipe::parse("schema = 2\nnew = true"), Err(RecipeError::NewerSchema(2)));
    let text = include_str!("../../../../recipes/bf3-test0.toml");
    let sentence = Recipe::parse(&text.replace("steps =", "stebs =")).unwrap_err().to_string();
    assert!(sentence.contains("missing field `steps`"), "{sentence}");
    let sentence = Recipe::parse(&text.replace("[esp]", "[esb]")).unwrap_err().to_string();
    assert!(sentence.contains("esb"), "{sentence}");
}

#[test]
fn the_hash_follows_what_is_run() {
    let recipe = test1();
    let mut changed = recipe.clone();
    assert_eq!(recipe.hash(), changed.hash());
    assert_eq!(recipe.hash().len(), 16);
    changed.ramp.steps = 10;
    assert_ne!(recipe.hash(), changed.hash());
}

proptest! {
    /// No holes and no overlaps: every address that the generator sends from or to lies in its
    /// tunnel's selectors and in no other tunnel's.
    #[test]
    fn every_client_is_protected_by_exactly_its_tunnel(
        tunnels in 1u32..3000,
        clients in 1u32..=254,
        n in any::<u64>(),
        other in any::<prop::sample::Index>(),
        back in any::<bool>(),
        routed in any::<bool>(),
    ) {
        let id = if routed { "bf3-test4" } else { "bf3-test1" };
        let mut recipe = Recipe::built_in(id).unwrap();
        recipe.tunnels = vec![tunnels];
        recipe.clients_per_tunnel = clients;
        recipe.check().unwrap();
        let side = if back { Side::Far } else { Side::Near };
        let frame = recipe.cycle(side, tunnels).unwrap().addresses(n);
        let (near, far) = if back { (frame.dst, frame.src) } else { (frame.src, frame.dst) };
        let own = recipe.tunnel(frame.tunnel + 1).unwrap();
        prop_assert!(own.near_selector.contains(near) && own.far_selector.contains(far));
        let other = recipe.tunnel(other.index(tunnels as usize) as u32 + 1).unwrap();
        prop_assert_eq!(other.far_selector.contains(far), other.number == own.number);
    }

    #[test]
    fn endpoints_are_different_and_never_look_like_networks(i in 1u32..65_000, j in 1u32..65_000) {
        let recipe = test1();
        let (a, b) = (recipe.tunnel(i).unwrap(), recipe.tunnel(j).unwrap());
        prop_assert_eq!(a.far_endpoint == b.far_endpoint, i == j);
        prop_assert_ne!(a.far_endpoint, a.near_endpoint);
        let IpAddr::V4(v4) = a.far_endpoint else { panic!("an IPv4 plan") };
        prop_assert!(!matches!(v4.octets()[3], 0 | 255));
        prop_assert!(recipe.far.endpoint.contains(a.far_endpoint));
    }

    #[test]
    fn arbitrary_text_never_panics(text in "\\PC*") {
        let _ = Recipe::parse(&text);
    }
}
