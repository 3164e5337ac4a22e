//! The caches of a core, for which memory is asked ahead of its use.

/// One of the two caches that a core has for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Level 1.
    First,
    /// Level 2.
    Second,
}

impl Cache {
    /// Both.
    pub const ALL: [Cache; 2] = [Cache::First, Cache::Second];

    /// One of them. So that a function may be compiled for each: a `const` argument cannot be a [`Cache`].
    #[must_use]
    #[inline(always)]
    pub const fn second_if(second: bool) -> Cache {
        if second { Cache::Second } else { Cache::First }
    }

    /// What it is called on a command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Cache::First => "l1",
            Cache::Second => "l2",
        }
    }

    /// Asks for the line in which an address lies; a hint without any other effect, whatever is there.
    #[inline(always)]
    pub fn ask(self, address: *const u8) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
            // SAFETY: a prefetch has no effect but on the caches, whatever the address; every x86-64 has it.
            unsafe {
                match self {
                    Cache::First => _mm_prefetch::<_MM_HINT_T0>(address.cast()),
                    Cache::Second => _mm_prefetch::<_MM_HINT_T1>(address.cast()),
                }
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (self, address);
    }
}
