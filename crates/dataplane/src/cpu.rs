//! What only the processor itself can do: fetch memory ahead of its use, and count cycles.
//!
//! A batch visits many packets' table entries, SAs and keys, each somewhere else in memory. Asked for
//! one pass ahead, the lines of all of them come at the same time instead of one after another. They
//! come into the cache of level 1, each asked for once. To level 2 a core fetches more lines at once, some
//! fifty instead of some twenty; but then each has to be asked for again, or waited for.
//! Nothing is read here, and a reference is the only proof that is taken of an address.

#![allow(unsafe_code)]

/// Bytes of a cache line.
pub const LINE: usize = 64;

/// Asks for the line in which a value begins.
#[inline(always)]
pub fn prefetch<T: ?Sized>(value: &T) {
    prefetch_at((&raw const *value).cast(), 0);
}

/// Asks for the line behind that in which a value begins, whatever is there.
#[inline(always)]
pub fn prefetch_next<T: ?Sized>(value: &T) {
    prefetch_at((&raw const *value).cast(), LINE);
}

#[inline(always)]
fn prefetch_at(start: *const u8, offset: usize) {
    let line = start.wrapping_add(offset);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no effect but on the cache, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
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
