//! Requests cost the same whatever the tables hold.

use std::time::{Duration, Instant};

use wire::xfrm::number::direction;

use super::bench::*;

/// Far more than any machine needs for one request that walks no table, far less than one needs to
/// walk over 20 000 entries for each of 20 000 requests.
const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn twenty_thousand_tunnels() {
    const COUNT: u32 = 20_000;
    let mut bench = Bench::new();
    let started = Instant::now();
    for number in 0..COUNT {
        bench.handle(&new_sa(0x1000 + number).bytes());
        let to = std::net::Ipv4Addr::from(0x0a02_0000 + number).to_string();
        bench.handle(&new_policy(&to, direction::OUT).bytes());
    }
    assert_eq!(bench.server.sizes(), (COUNT as usize, COUNT as usize));
    assert_eq!(bench.changes().len(), 2 * COUNT as usize);
    for number in 0..COUNT {
        bench.handle(&get_sa(0x1000 + number).bytes());
        bench.handle(&delete_sa(0x1000 + number).bytes());
        bench.handle(&policy_index(0x14, number * 8 + 1, direction::OUT).bytes());
    }
    assert_eq!(bench.server.sizes(), (0, 0));
    assert!(started.elapsed() < LIMIT, "{:?}", started.elapsed());
}
