//! The plans against the published scripts, against stupid twins, and for holes and doubles.

use super::*;
use crate::ike::{Auth, Responder};
use proptest::prelude::*;
use std::collections::HashSet;
use std::os::unix::fs::PermissionsExt;

fn request(kind: Kind, total: u32) -> Request {
    Request {
        kind,
        total,
        shards: None,
        prefix: 24,
        auth: Auth::Psk,
        responder: Responder::Exact,
        hw_offload: None,
    }
}

fn plan(kind: Kind, total: u32) -> Plan {
    Plan::new(request(kind, total)).unwrap()
}

/// All files as one text, for comparison.
fn all(plan: &Plan) -> String {
    files(plan)
        .unwrap()
        .iter()
        .map(|file| {
            let mode = if file.is_secret { " (0600)" } else { "" };
            format!("==> {}{mode}\n{}\n", file.path.display(), file.text)
        })
        .collect()
}

/// Compares with a file of `testdata/`; `BLESS=1` writes it.
fn golden(name: &str, text: &str) {
    let path = format!("{}/testdata/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    assert!(text == expected, "{name} differs; look at the difference, then BLESS=1\n{text}");
}

#[test]
fn the_files_of_small_plans() {
    golden("swanctl-test0.txt", &all(&plan(Kind::Test0, 2)));
    golden("swanctl-test4.txt", &all(&plan(Kind::Test4, 3)));
    golden("swanctl-pcpu.txt", &all(&plan(Kind::PerCpu, 2)));
    let sharded = Plan::new(Request {
        shards: Some(2),
        responder: Responder::Any,
        hw_offload: Some("packet".into()),
        ..request(Kind::Test0, 3)
    });
    golden("swanctl-test0-shards.txt", &all(&sharded.unwrap()));
}

/// The published shell arithmetic, where it has no holes.
#[test]
fn the_first_tunnels_are_the_published_ones() {
    let test0 = plan(Kind::Test0, 253);
    for (tunnel, i) in test0.tunnels.iter().zip(1..) {
        assert_eq!(tunnel.ends.connection, format!("tunnel{i}"));
        assert_eq!(tunnel.ends.child, format!("tnl{i}"));
        assert_eq!(tunnel.ends.ids[1], format!("ipsecgw-{i}"));
        let far = format!("123.0.{}.{}", i / 255, i % 255 + 1);
        assert_eq!(tunnel.ends.endpoints.map(|end| end.to_string()), ["123.0.0.1", &far]);
        let network = format!("48.{}.{}.0/24", (i - 1) / 255, (i - 1) % 255);
        assert_eq!(tunnel.ends.selectors.map(|net| net.to_string()), ["16.0.0.0/8", &network]);
    }
    let test4 = plan(Kind::Test4, 506);
    for tunnel in &test4.tunnels {
        let (g, i) = (tunnel.group, (tunnel.number - 1) / 2 + 1);
        assert_eq!(tunnel.ends.connection, format!("tunnel-{g}-{i}"));
        let far = format!("123.{}.{}.{}", 2 + g, i / 255 + 1, i % 255 + 1);
        assert_eq!(tunnel.ends.endpoints.map(|e| e.to_string()), [format!("123.{g}.0.1"), far]);
        let network = format!("{}.{}.{}.0/24", 48 + g, (i - 1) / 255, (i - 1) % 255);
        let near = format!("{}.0.0.0/8", 16 + g);
        assert_eq!(tunnel.ends.selectors.map(|net| net.to_string()), [near, network]);
    }
    let per_cpu = &plan(Kind::PerCpu, 1).tunnels[0].ends;
    assert_eq!(per_cpu.endpoints.map(|end| end.to_string()), ["10.25.1.1", "10.25.1.2"]);
    assert_eq!(per_cpu.selectors.map(|net| net.to_string()), ["10.25.0.1/32", "10.25.2.2/32"]);
}

#[test]
fn what_does_not_fit_is_refused_with_what_would() {
    let sentence = |kind, total, change: fn(&mut Request)| {
        let mut request = request(kind, total);
        change(&mut request);
        Plan::new(request).unwrap_err().to_string()
    };
    assert_eq!(
        sentence(Kind::Test0, 65_024, |_| ()),
        "65024 tunnels do not fit: number 65024 of pair 0 has no endpoint left in 123.0.0.2/16; the \
         plan has room for 65023"
    );
    assert!(Plan::new(request(Kind::Test0, 65_023)).is_ok());
    assert!(sentence(Kind::Test0, 257, |r| r.prefix = 16).contains("room for 256"));
    assert!(sentence(Kind::Test4, 513, |r| r.prefix = 16).contains("room for 512"));
    assert!(Plan::new(Request { prefix: 16, ..request(Kind::Test4, 512) }).is_ok());
    assert!(sentence(Kind::PerCpu, 253, |_| ()).ends_with("the plan has room for 252"));
    assert_eq!(
        sentence(Kind::Test0, 0, |_| ()),
        "the number of tunnels is 0, expected 1 to 131070"
    );
    assert_eq!(
        sentence(Kind::Test0, 10, |r| r.shards = Some(11)),
        "the number of daemons is 11, expected 1 to 10"
    );
    assert!(sentence(Kind::Test0, 10, |r| r.prefix = 33).contains("expected 16 to 32"));
}

#[test]
fn files_stay_small_and_secrets_private() {
    let plan = plan(Kind::Test0, 4100);
    assert_eq!(plan.shards.count, 5);
    let folder = tempfile::tempdir().unwrap();
    let files = files(&plan).unwrap();
    write(folder.path(), &files).unwrap();
    let mut connections = 0;
    for file in &files {
        let metadata = folder.path().join(&file.path).metadata().unwrap();
        let is_secret = file.text.contains("secret =");
        assert_eq!(file.is_secret, is_secret, "{:?}", file.path);
        let mode = metadata.permissions().mode() & 0o777;
        assert_eq!(mode, if is_secret { 0o600 } else { 0o644 }, "{:?}", file.path);
        let own = file.text.matches("proposals = aes256-").count();
        assert!(own <= 500, "{:?}", file.path);
        connections += own;
    }
    assert_eq!(connections, 2 * 4100);
    let error = write(folder.path(), &files).unwrap_err().to_string();
    assert!(error.contains("is not empty"), "{error}");
}

#[test]
fn every_identity_has_a_certificate_and_a_key_that_only_its_owner_reads() {
    let request = Request { auth: Auth::Cert, shards: Some(2), ..request(Kind::Test4, 5) };
    let plan = Plan::new(request).unwrap();
    let files = files(&plan).unwrap();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &files).unwrap();
    let mut keys = HashSet::new();
    for file in &files {
        let mode = folder.path().join(&file.path).metadata().unwrap().permissions().mode() & 0o777;
        let is_key = file.text.contains("PRIVATE KEY");
        assert_eq!(mode, if is_key { 0o600 } else { 0o644 }, "{:?}", file.path);
        assert_eq!(file.path.to_string_lossy().contains("/private/"), is_key);
        assert!(!file.text.contains("TopSecret") && !file.text.contains("secret ="));
        assert!(!is_key || keys.insert(file.text.clone()), "{:?} has its own key", file.path);
    }
    // ipsecgw-0 for both near daemons; at the far ones each identity of their tunnels once.
    for shard in 0..2 {
        let path = folder.path().join(format!("gw1/charon-{shard:02}/private"));
        let found: HashSet<String> = path
            .read_dir()
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        let own = plan.of_shard(shard).map(|tunnel| format!("{}.pem", tunnel.ends.ids[1]));
        assert_eq!(found, own.collect());
    }
    assert!(folder.path().join("gw0/charon-01/private/ipsecgw-0.pem").exists());
}

fn kinds() -> impl Strategy<Value = (Kind, u32, u8)> {
    prop_oneof![
        (Just(Kind::Test0), 1u32..5000, 20u8..=32),
        (Just(Kind::Test4), 1u32..5000, 20u8..=32),
        (Just(Kind::PerCpu), 1u32..=252, Just(24u8)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// No holes, no overlaps, no two tunnels between the same endpoints and networks, and every
    /// tunnel known to both of its daemons.
    #[test]
    fn every_client_has_one_tunnel_and_every_tunnel_two_ends_of_its_own(
        (kind, total, prefix) in kinds(),
        shards in 1u32..9,
        at in any::<prop::sample::Index>(),
    ) {
        let shards = if kind == Kind::PerCpu { 1 } else { shards.min(total) };
        let plan = Plan::new(Request { prefix, shards: Some(shards), ..request(kind, total) });
        let Ok(plan) = plan else {
            // Only short networks run out of 48.0.0.0/8 this early.
            prop_assert!(total > 2 << (prefix - 8) >> 1, "{total} of /{prefix}");
            return Ok(());
        };
        prop_assert_eq!(plan.tunnels.len() as u32, total);
        // The far networks of a group, put side by side, are one range without a hole.
        for group in 0..2 {
            let own: Vec<_> = plan.tunnels.iter().filter(|t| t.group == group).collect();
            for pair in own.windows(2) {
                prop_assert_eq!(pair[0].ends.selectors[1].nth(1), Some(pair[1].ends.selectors[1]));
            }
        }
        let far: HashSet<_> = plan.tunnels.iter().map(|t| t.ends.endpoints[1]).collect();
        let near: HashSet<_> = plan.tunnels.iter().map(|t| t.ends.endpoints[0]).collect();
        prop_assert!(far.is_disjoint(&near));
        if kind != Kind::PerCpu {
            prop_assert_eq!(far.len() as u32, total);
        }
        // Any client of any tunnel, and all tunnels that would carry it.
        let client = at.get(&plan.tunnels).ends.selectors[1].address();
        let covering = plan.tunnels.iter().filter(|t| t.ends.selectors[1].contains(client)).count();
        prop_assert_eq!(covering, 1);
        // Every daemon has tunnels, none has more than its share, and names do not meet.
        for shard in 0..plan.shards.count {
            let own = plan.of_shard(shard).count() as u32;
            prop_assert!(own >= 1 && own <= total.div_ceil(plan.shards.count), "{own}");
            let names: HashSet<_> = plan
                .of_shard(shard)
                .map(|t| (t.ends.connection.clone(), t.ends.child.clone()))
                .collect();
            prop_assert_eq!(names.len() as u32, own);
        }
    }
}
