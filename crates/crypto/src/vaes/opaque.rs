//! What the compiler must not see through: no instruction, and the value that goes in comes out.

use std::arch::asm;
use std::ptr;

/// The same word, but the compiler makes no single load of it and its neighbour: they were only just written one by one, in
/// other lengths, and a CPU hands a store on to a later load only if the load lies within it.
#[inline(always)]
pub fn apart(mut word: u32) -> u32 {
    // SAFETY: no instruction; the word stays what it was.
    unsafe {
        asm!("/* {0:e} */", inout(reg) word, options(pure, nomem, nostack, preserves_flags));
    }
    word
}

/// The same reference, but the compiler does not know that it is: what is read by it is read where it is used, once for each
/// group of units. It kept all round keys from the first to the last, for which there are too few
/// registers; the rest went to the stack, and packets of 556 bytes took 13 % longer to open (Zen 4).
#[inline(always)]
pub fn afresh<T>(reference: &T) -> &T {
    // SAFETY: the address of a reference that lives as long.
    unsafe { &*unseen(ptr::from_ref(reference).cast_mut()) }
}

/// The same for what is written as well.
#[inline(always)]
pub fn afresh_mut<T>(reference: &mut T) -> &mut T {
    // SAFETY: the address of a reference that lives as long, and that nobody else uses meanwhile.
    unsafe { &mut *unseen(reference) }
}

/// The same address.
#[inline(always)]
#[expect(clippy::pointers_in_nomem_asm_block, reason = "nothing is read or written by it")]
fn unseen<T>(mut address: *mut T) -> *mut T {
    // SAFETY: no instruction; the address stays what it was.
    unsafe { asm!("/* {0} */", inout(reg) address, options(nomem, nostack, preserves_flags)) };
    address
}
