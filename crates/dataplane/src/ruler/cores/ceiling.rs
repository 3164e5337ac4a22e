//! What the machine itself gives two cores: the cipher alone, on as many threads as there are workers.
//!
//! Each thread seals packets of its own in memory of its own, as many and as long as a worker's of a round,
//! trailer included, with a worker's cipher under one key. Nothing is shared but that key, which nobody writes. So whatever is lost from one
//! thread to two is the machine's: cores that share execution units, a clock, a cache or the way to memory.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Instant;

use crypto::{Engine, Key};
use wire::esp;

use super::{ROUND_PACKETS, pin};
use crate::ruler::RulerError;
use crate::ruler::path::gateways::key_bytes;
use crate::ruler::path::{CHUNK, check_sizes, plaintext_len};

/// Packets to encrypt, for each thread.
pub struct Ceiling {
    key: Key,
    /// Lengths of what is encrypted, over and over.
    lens: Vec<usize>,
    memory: Vec<Vec<u8>>,
}

impl Ceiling {
    /// For up to `threads` threads; `sizes` are lengths of packets, over and over.
    ///
    /// # Errors
    /// If a length is out of bounds, or the engine cannot be had.
    pub fn new(engine: Engine, threads: usize, sizes: &[usize]) -> Result<Ceiling, RulerError> {
        check_sizes(sizes)?;
        let key = Key::new(engine, &key_bytes(0))?;
        let memory = vec![vec![1; ROUND_PACKETS * CHUNK]; threads];
        let lens = sizes.iter().map(|size| plaintext_len(*size)).collect();
        Ok(Ceiling { key, lens, memory })
    }

    /// Seals a round of packets on each of `threads` threads: nanoseconds per packet, of all together.
    pub fn run(&mut self, threads: usize) -> f64 {
        let (ready, key, lens) = (AtomicUsize::new(0), &self.key, &self.lens);
        let count = threads.min(self.memory.len()).max(1);
        let ready = &ready;
        let work = |id: usize, memory: &mut [u8]| {
            pin(id);
            ready.fetch_add(1, SeqCst);
            while ready.load(SeqCst) < count {
                std::hint::spin_loop();
            }
            let began = Instant::now();
            let mut icv = [0; esp::ICV_LEN];
            for (number, chunk) in memory.chunks_exact_mut(CHUNK).enumerate() {
                let (len, number) = (lens[number % lens.len()], number as u64);
                let nonce = esp::gcm_nonce([0; 4], number.to_be_bytes());
                key.seal(&nonce, &esp::aad_esn(1, number), &mut chunk[..len], &mut icv);
            }
            (began, Instant::now())
        };
        let work = &work;
        let times: Vec<(Instant, Instant)> = thread::scope(|scope| {
            let memory = self.memory.iter_mut().take(count).enumerate();
            let threads: Vec<_> =
                memory.map(|(id, memory)| scope.spawn(move || work(id, memory))).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
        });
        let first = times.iter().map(|(began, _)| *began).min();
        let last = times.iter().map(|(_, ended)| *ended).max();
        let took = first.zip(last).map_or(0, |(first, last)| (last - first).as_nanos());
        took as f64 / (count * ROUND_PACKETS) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_works_on_its_own() {
        let mut ceiling = Ceiling::new(Engine::AwsLc, 2, &[64, 200]).unwrap();
        assert!(ceiling.run(2) > 0.0);
        assert!(ceiling.memory.iter().all(|memory| memory[..64] != [1; 64]));
        // Encrypted once more under the same nonces, it is what it was.
        assert!(ceiling.run(1) > 0.0);
        let first = |memory: &Vec<u8>| memory[..68] == [1; 68];
        assert_eq!(ceiling.memory.iter().map(first).collect::<Vec<_>>(), [true, false]);
        assert!(Ceiling::new(Engine::AwsLc, 2, &[1 << 20]).is_err());
    }

    #[test]
    fn the_cipher_is_that_of_the_workers() {
        let mut ceiling = Ceiling::new(Engine::AwsLc, 1, &[64]).unwrap();
        ceiling.run(1);
        // Padded, and with a trailer of two bytes, to a multiple of four.
        let mut packet = [1; 68];
        let nonce = esp::gcm_nonce([0; 4], 0u64.to_be_bytes());
        let key = Key::new(Engine::AwsLc, &key_bytes(0)).unwrap();
        key.seal(&nonce, &esp::aad_esn(1, 0), &mut packet, &mut [0; esp::ICV_LEN]);
        assert_eq!(ceiling.memory[0][..69], [&packet[..], &[1]].concat());
    }
}
