//! The calling thread's `errno`.

use libc::c_int;

/// Its value.
pub fn get() -> c_int {
    // SAFETY: libc returns a valid pointer to the calling thread's errno.
    unsafe { *libc::__errno_location() }
}

/// Sets it.
pub fn set(value: c_int) {
    // SAFETY: as in `get`; no other thread uses this location.
    unsafe { *libc::__errno_location() = value }
}

/// Sets it and returns -1, as a failing call does.
pub fn fail(value: c_int) -> c_int {
    set(value);
    -1
}

/// The same for calls that return a length.
pub fn fail_len(value: c_int) -> libc::ssize_t {
    set(value);
    -1
}
