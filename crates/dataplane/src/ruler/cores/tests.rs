//! The ordered pipeline under real threads, and under schedules that no real threads would find.

use std::collections::HashSet;

use proptest::prelude::*;
use wire::esp::{ESP_HEADER_LEN, GCM_IV_LEN};

use super::*;
use crate::batch::BATCH_PACKETS;

/// Room for a mark in the smallest, several cache lines in the largest, and nothing regular.
const SIZES: [usize; 5] = [36, 1428, 200, 64, 576];

fn bench(workers: usize, load: Load, measured: Measured) -> CoresBench {
    CoresBench::new(Engine::AwsLc, workers, load, measured, &SIZES).unwrap()
}

#[test]
fn one_tunnel_keeps_its_order_on_any_number_of_threads() {
    for measured in [Measured::Seal, Measured::Open] {
        for workers in 1..=4 {
            let mut bench = bench(workers, Load::Fat, measured);
            for _ in 0..3 {
                let sample = bench.run().unwrap();
                assert_eq!(sample.packets, ROUND_PACKETS as u64);
                assert!(sample.elapsed_ns > 0);
            }
        }
    }
}

#[test]
fn many_tunnels_come_through_each_in_its_order() {
    for measured in [Measured::Seal, Measured::Open] {
        let mut bench = bench(2, Load::Many(31), measured);
        for _ in 0..3 {
            assert_eq!(bench.run().unwrap().packets, 2 * ROUND_PACKETS as u64);
        }
    }
}

#[test]
fn the_parts_of_the_pipeline_are_measured() {
    let mut bench = bench(2, Load::Fat, Measured::Seal);
    let costs = bench.run_stages().unwrap();
    assert!(costs.serial_ns > 0.0 && costs.heavy_ns > 0.0);
    assert!(bench.run_dispatched().unwrap() > 0.0);
    bench.run().unwrap();
    assert!(self::bench(2, Load::Many(2), Measured::Seal).run_stages().is_err());
}

#[test]
fn impossible_requests_are_refused() {
    let refusal = |workers, load, measured, sizes: &[usize]| {
        CoresBench::new(Engine::AwsLc, workers, load, measured, sizes).err().map(|e| e.to_string())
    };
    let says = |refusal: Option<String>, what: &str| {
        let text = refusal.unwrap_or_default();
        assert!(text.contains(what), "{text}");
    };
    says(refusal(0, Load::Fat, Measured::Seal, &SIZES), "1 and 64 workers");
    says(refusal(2, Load::Fat, Measured::Both, &SIZES), "not both");
    says(refusal(2, Load::Many(1), Measured::Seal, &SIZES), "2 tunnels");
    says(refusal(2, Load::Fat, Measured::Seal, &[35]), "hold no mark");
}

/// A step of a made-up schedule.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A worker takes a turn and receives so many packets at most; the owner is worker 0.
    Turn(usize, usize),
    /// The owner lends from now on, or no more.
    Lend(bool),
    /// Control publishes a view.
    Publish,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => (0..3usize, 0..=BATCH_PACKETS).prop_map(|(worker, max)| Step::Turn(worker, max)),
        1 => any::<bool>().prop_map(Step::Lend),
        1 => Just(Step::Publish),
    ]
}

/// Plays a schedule on one thread, lets the workers finish, and checks every packet; how often a
/// newer view was in force before everything was through.
fn play(measured: Measured, steps: &[Step]) {
    let mut bench = bench(3, Load::Fat, measured);
    let way = bench.way;
    bench.feed.fill(&mut bench.workers, way).unwrap();
    for step in steps {
        match *step {
            Step::Turn(worker, max) => {
                bench.workers[worker].worker.turn_of(max, &mut ());
            }
            Step::Lend(true) => bench.workers[0].worker.set_lending(Lending::Always),
            Step::Lend(false) => bench.workers[0].worker.set_lending(Lending::Never),
            Step::Publish => bench.publish(),
        }
    }
    let owner = bench.workers[0].worker.counters();
    while owner.snapshot().received < ROUND_PACKETS as u64 || bench.workers[0].worker.waiting() != 0
    {
        bench.workers.iter_mut().for_each(|lane| {
            lane.worker.turn();
        });
    }
    // Nothing is out: every worker takes the newest view at its next turn, and the others are freed.
    bench.workers.iter_mut().for_each(|lane| {
        lane.worker.turn();
    });
    assert_eq!(bench.publisher.reclaim(), 0);

    let (mut left, mut came, mut nonces) = (Vec::new(), 0, HashSet::new());
    let lane = &mut bench.workers[0];
    let end = if way == Way::Seal { &mut lane.black } else { &mut lane.red };
    while end.collect(&mut left, BATCH_PACKETS) != 0 {
        if way == Way::Seal {
            let iv_at = feed::ESP_AT + ESP_HEADER_LEN;
            let ivs = left.iter().map(|frame| frame.bytes()[iv_at..iv_at + GCM_IV_LEN].to_vec());
            assert!(
                ivs.into_iter().all(|iv| nonces.insert(iv)),
                "a nonce came twice under one key"
            );
        }
        came += bench.feed.check_batch(&mut left, way).unwrap();
    }
    assert_eq!(came, ROUND_PACKETS);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whoever takes turns in whatever order, whenever lending begins and ends and views change: one
    /// tunnel's packets leave in order, with numbers that nobody had before, and all of them arrive.
    #[test]
    fn no_schedule_breaks_the_order(steps in prop::collection::vec(step(), 0..400)) {
        play(Measured::Seal, &steps);
        play(Measured::Open, &steps);
    }
}
