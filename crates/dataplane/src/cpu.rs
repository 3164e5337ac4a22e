//! What only the processor itself can do: fetch memory ahead of its use, and count cycles.
//!
//! A batch visits many packets' table entries, SAs and keys, each somewhere else in memory. Asked for
//! one pass ahead, the lines of all of them come at the same time instead of one after another. Each is
//! asked for once, and into one cache: into that of level 1, or into that of level 2, to which a core fetches
//! more lines at once, and then reads them from there. Which of the two is quicker is the processor's.
//! Nothing is read here, and a reference is the only proof that is taken of an address.

#![allow(unsafe_code)]

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

pub use crypto::Cache;

/// Bytes of a cache line.
pub const LINE: usize = 64;

/// Asks for the line in which a value begins.
#[inline(always)]
pub fn prefetch<T: ?Sized>(value: &T, cache: Cache) {
    cache.ask((&raw const *value).cast());
}

/// Asks for the line behind that in which a value begins, whatever is there.
#[inline(always)]
pub fn prefetch_next<T: ?Sized>(value: &T, cache: Cache) {
    cache.ask((&raw const *value).cast::<u8>().wrapping_add(LINE));
}

/// Into which cache this process asks for memory.
static IS_SECOND: AtomicBool = AtomicBool::new(false);

/// Whether somebody has said so.
static IS_FIXED: AtomicBool = AtomicBool::new(false);

/// As many SAs have their memory mostly in a core's own caches, out of which it comes soon, however few lines at once.
pub const NEAR_SAS: usize = 2048;

/// The cache into which memory is asked for. To be asked for before a loop and not in it, as that counts for two cycles of a
/// hundred.
#[inline(always)]
pub fn asked_cache() -> Cache {
    Cache::second_if(IS_SECOND.load(Relaxed))
}

/// Says into which cache this process asks for memory from now on: for who compares them.
pub fn fix_cache(cache: Cache) {
    IS_FIXED.store(true, Relaxed);
    IS_SECOND.store(cache == Cache::Second, Relaxed);
}

/// Asks for memory from now on into the cache for so many SAs, which is that.
#[inline]
pub fn suit_cache(sas: usize) -> Cache {
    let cache = cache_for(sas);
    if asked_cache() != cache {
        IS_SECOND.store(cache == Cache::Second, Relaxed);
    }
    cache
}

/// The cache into which memory is to be asked for where there are so many SAs: what somebody has said, or else the one that this
/// processor is quicker with (docs/measurements.md, "Into which cache").
#[inline]
pub fn cache_for(sas: usize) -> Cache {
    static IS_OF_AMD: LazyLock<bool> = LazyLock::new(is_of_amd);
    match IS_FIXED.load(Relaxed) {
        true => asked_cache(),
        false => Cache::second_if(sas > NEAR_SAS && *IS_OF_AMD),
    }
}

fn is_of_amd() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        let leaf = std::arch::x86_64::__cpuid(0);
        // And its licensee.
        let maker = [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes).concat();
        maker == b"AuthenticAMD" || maker == b"HygonGenuine"
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Does some work, and counts bits in it by the processor's own instruction where there is one: what is compiled
/// for every x86-64 takes a dozen others for it. The work should be long enough to ask for that first.
#[inline]
pub(crate) fn counting_bits<R>(work: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "popcnt")]
        fn quickly<R>(work: impl FnOnce() -> R) -> R {
            work()
        }
        if std::arch::is_x86_feature_detected!("popcnt") {
            // SAFETY: the processor has the instruction, as was just found out.
            return unsafe { quickly(work) };
        }
    }
    work()
}

/// The processor's cycle counter: on x86_64 that of the time stamp, which ticks at one rate whatever
/// the core does; elsewhere nanoseconds. Only differences on one core mean something.
#[inline(always)]
pub fn cycles() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86_64 processor has the instruction, and it touches no memory.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_sas_are_near_and_what_somebody_says_is_asked() {
        assert_eq!(cache_for(NEAR_SAS), Cache::First);
        assert_eq!(cache_for(NEAR_SAS + 1), Cache::second_if(is_of_amd()));
        for cache in Cache::ALL {
            fix_cache(cache);
            for sas in [1, 50_000] {
                assert_eq!((suit_cache(sas), asked_cache()), (cache, cache));
            }
        }
    }
}
