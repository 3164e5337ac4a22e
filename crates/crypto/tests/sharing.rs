//! Keys in many hands: threads at once, and batches that mix keys and engines.

mod common;

use std::sync::Barrier;
use std::thread;

use common::{engines, keys, noise};
use crypto::{Key, NONCE_LEN, Open, Seal, TAG_LEN, open_batch, seal_batch};

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

#[test]
fn a_batch_does_what_single_calls_do_and_a_forgery_spoils_only_itself() {
    const FORGED: usize = 5;
    let plain = noise(7, 1500);
    // Three key sizes on every engine, in turns.
    let keys: Vec<Key> = [16, 24, 32].into_iter().flat_map(|len| keys(&noise(8, len))).collect();
    let lens = [0, 1, 15, 16, 17, 64, 100, 555, 1428, 1500];
    let mut data: Vec<Vec<u8>> = lens.iter().map(|len| plain[..*len].to_vec()).collect();
    let mut tags = vec![[0; TAG_LEN]; data.len()];

    let mut batch: Vec<Seal<'_>> = (data.iter_mut().zip(&mut tags))
        .enumerate()
        .map(|(number, (data, tag))| Seal {
            key: &keys[number % keys.len()],
            nonce: nonce(number),
            aad: &[9; 12],
            data,
            tag,
        })
        .collect();
    seal_batch(&mut batch);
    for (number, len) in lens.into_iter().enumerate() {
        let (mut single, mut tag) = (plain[..len].to_vec(), [0; TAG_LEN]);
        let key = &keys[number % keys.len()];
        key.seal(&nonce(number), &[9; 12], &mut single, &mut tag);
        assert_eq!((&single, tag), (&data[number], tags[number]), "packet {number}");
    }

    data[FORGED][3] ^= 0x10;
    let mut batch: Vec<Open<'_>> = (data.iter_mut().zip(&tags))
        .enumerate()
        .map(|(number, (data, tag))| Open {
            key: &keys[number % keys.len()],
            nonce: nonce(number),
            aad: &[9; 12],
            data,
            tag,
            genuine: number == FORGED, // the answer must be written either way
        })
        .collect();
    open_batch(&mut batch);
    let genuine: Vec<bool> = batch.iter().map(|packet| packet.genuine).collect();
    for (number, len) in lens.into_iter().enumerate() {
        assert_eq!(genuine[number], number != FORGED, "packet {number}");
        let expected = if number == FORGED { vec![0; len] } else { plain[..len].to_vec() };
        assert_eq!(data[number], expected, "packet {number}");
    }
}
