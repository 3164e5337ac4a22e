//! Which worker answers for which CPU.
//!
//! An SA may be bound to a CPU (`XFRMA_SA_PCPU`, RFC 9611). The number is a Linux CPU's, not a
//! worker's: an IKE daemon that responds takes numbers from the CPUs that are online and does not
//! know where workers run. A CPU that runs a worker is that worker's; the others are dealt out among
//! the workers in turn, so that as many SAs as there are CPUs spread evenly over few workers.

use std::collections::BTreeMap;

/// The cores that run workers.
#[derive(Clone, Debug)]
pub struct Cpus {
    /// Worker by core.
    workers: BTreeMap<u32, usize>,
}

impl Cpus {
    /// Workers 0, 1, … run on these cores.
    pub fn new(cores: &[usize]) -> Cpus {
        let number =
            |(worker, core): (usize, &usize)| (u32::try_from(*core).ok()).zip(Some(worker));
        Cpus { workers: cores.iter().enumerate().filter_map(number).collect() }
    }

    /// How many workers there are.
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// The worker that uses the SAs of a CPU.
    pub fn worker_of(&self, cpu: u32) -> usize {
        if let Some(worker) = self.workers.get(&cpu) {
            return *worker;
        }
        // Its place among the CPUs that run no worker.
        let place = cpu as usize - self.workers.range(..cpu).count();
        place % self.workers().max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fold(cores: &[usize], cpus: u32) -> Vec<usize> {
        let table = Cpus::new(cores);
        (0..cpus).map(|cpu| table.worker_of(cpu)).collect()
    }

    #[test]
    fn a_worker_answers_for_its_own_cpu_and_the_rest_is_dealt_out() {
        assert_eq!(fold(&[0, 1], 2), [0, 1]);
        assert_eq!(fold(&[1, 0], 2), [1, 0], "workers are numbered in the order of the file");
        assert_eq!(fold(&[0], 4), [0; 4]);
        assert_eq!(fold(&[2, 3], 8), [0, 1, 0, 1, 0, 1, 0, 1]);
        assert_eq!(fold(&[1], 3), [0; 3]);
        assert_eq!(Cpus::new(&[0, 5]).worker_of(u32::MAX), (u32::MAX as usize - 2) % 2);
    }

    #[test]
    fn foreign_cpus_spread_evenly() {
        for cores in [&[0, 1, 2][..], &[7, 3], &[5, 0, 9, 2]] {
            let table = Cpus::new(cores);
            let mut load = vec![0; cores.len()];
            for cpu in (0..64).filter(|cpu| !cores.contains(&(*cpu as usize))) {
                load[table.worker_of(cpu)] += 1;
            }
            assert!(load.iter().max().unwrap() - load.iter().min().unwrap() <= 1, "{load:?}");
        }
    }
}
