//! Keys in many hands: threads at once.

mod common;

use std::sync::Barrier;
use std::thread;

use common::{engines, keys, noise};
use crypto::{Key, NONCE_LEN, TAG_LEN};

/// One worker per core of a small gateway.
const THREADS: usize = 4;
const PACKETS: usize = 2000;

fn nonce(number: usize) -> [u8; NONCE_LEN] {
    let mut nonce = [0xa5; NONCE_LEN];
    nonce[4..].copy_from_slice(&(number as u64).to_be_bytes());
    nonce
}

/// Seals packet `number`, whose length and content follow from its number.
fn sealed(key: &Key, plain: &[u8], number: usize) -> (Vec<u8>, [u8; TAG_LEN]) {
    let mut data = plain[..number % plain.len()].to_vec();
    let mut tag = [0; TAG_LEN];
    key.seal(&nonce(number), &[7; 8], &mut data, &mut tag);
    (data, tag)
}

#[test]
fn one_key_used_by_four_threads_gives_what_it_gives_to_one() {
    let plain = noise(4, 1500);
    for key in keys(&noise(5, 32)) {
        let expected: Vec<_> = (0..PACKETS).map(|number| sealed(&key, &plain, number)).collect();
        let start = Barrier::new(THREADS);
        thread::scope(|scope| {
            for worker in 0..THREADS {
                let (key, plain, expected, start) = (&key, &plain, &expected, &start);
                scope.spawn(move || {
                    start.wait();
                    // Every worker handles every packet, each from another place in the list.
                    for step in 0..PACKETS {
                        let number = (step + worker * PACKETS / THREADS) % PACKETS;
                        let (mut data, tag) = sealed(key, plain, number);
                        assert!((&data, &tag) == (&expected[number].0, &expected[number].1));
                        assert!(key.open(&nonce(number), &[7; 8], &mut data, &tag));
                        assert_eq!(data, plain[..data.len()]);
                    }
                });
            }
        });
    }
}

/// Keys are also made while others are in use.
#[test]
fn keys_made_by_many_threads_at_once_are_right() {
    let plain = noise(6, 200);
    for engine in engines() {
        let expected: Vec<_> = (0..100u8)
            .map(|byte| sealed(&Key::new(engine, &[byte; 16]).unwrap(), &plain, 150))
            .collect();
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for (byte, expected) in (0..100u8).zip(&expected) {
                        let key = Key::new(engine, &[byte; 16]).unwrap();
                        assert!(sealed(&key, &plain, 150) == *expected);
                    }
                });
            }
        });
    }
}
