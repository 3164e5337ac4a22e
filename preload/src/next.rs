//! The libc functions that ours stand in front of.
//!
//! Each is looked up once, when the library is loaded; a program whose constructors run earlier
//! looks them up itself. A libc that lacks one (`closefrom` is young) makes ours fail with
//! `ENOSYS`.

use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    c_int, c_uint, c_void, iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t, timespec,
};

/// One function: its name and, once looked up, its address.
struct Next {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Next {
    const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(std::ptr::null_mut()) }
    }

    #[inline]
    fn address(&self) -> *mut c_void {
        let address = self.address.load(Ordering::Relaxed);
        if address.is_null() { self.look_up() } else { address }
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        // SAFETY: the name is a C string; RTLD_NEXT asks for the definition behind this library.
        let address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(address, Ordering::Relaxed);
        address
    }
}

/// Declares functions that call the next definition of the same name. The type ends in `...` where
/// C's does.
macro_rules! next {
    ($($symbol:literal $name:ident ($($argument:ident: $kind:ty),*) -> $result:ty
        $(, as $variadic:ty)?;)*) => {
        mod slot {
            use super::Next;
            $(#[allow(non_upper_case_globals)] pub static $name: Next = Next::new($symbol);)*
        }

        /// Looks up everything, so that no hook has to inside a signal handler.
        fn look_up_all() {
            $(slot::$name.look_up();)*
        }

        $(
            #[doc = concat!("The next `", stringify!($name), "`.")]
            ///
            /// # Safety
            ///
            /// As in C.
            #[inline]
            pub unsafe fn $name($($argument: $kind),*) -> $result {
                let address = slot::$name.address();
                if address.is_null() {
                    crate::errno::set(libc::ENOSYS);
                    return -1;
                }
                next!(@kind Function, ($($kind),*), $result $(, $variadic)?);
                // SAFETY: libc defines this name with this type, and the address is not null.
                let function = unsafe { std::mem::transmute::<*mut c_void, Function>(address) };
                // SAFETY: the caller's promise.
                unsafe { function($($argument),*) }
            }
        )*
    };
    (@kind $alias:ident, ($($kind:ty),*), $result:ty) => {
        type $alias = unsafe extern "C-unwind" fn($($kind),*) -> $result;
    };
    (@kind $alias:ident, ($($kind:ty),*), $result:ty, $variadic:ty) => {
        type $alias = $variadic;
    };
}

next! {
    c"socket" socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    c"bind" bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    c"connect" connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    c"getsockname" getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    c"getpeername" getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    c"setsockopt" setsockopt(
        fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    c"getsockopt" getsockopt(
        fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    c"send" send(fd: c_int, data: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    c"sendto" sendto(fd: c_int, data: *const c_void, len: size_t, flags: c_int,
        to: *const sockaddr, to_len: socklen_t) -> ssize_t;
    c"sendmsg" sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    c"write" write(fd: c_int, data: *const c_void, len: size_t) -> ssize_t;
    c"writev" writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    c"recv" recv(fd: c_int, data: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    c"recvfrom" recvfrom(fd: c_int, data: *mut c_void, len: size_t, flags: c_int,
        from: *mut sockaddr, from_len: *mut socklen_t) -> ssize_t;
    c"recvmsg" recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    c"sendmmsg" sendmmsg(
        fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    c"recvmmsg" recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int,
        limit: *mut timespec) -> c_int;
    c"read" read(fd: c_int, data: *mut c_void, len: size_t) -> ssize_t;
    c"readv" readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    c"__recv_chk" recv_chk(
        fd: c_int, data: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t;
    c"__recvfrom_chk" recvfrom_chk(fd: c_int, data: *mut c_void, len: size_t, room: size_t,
        flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t) -> ssize_t;
    c"__read_chk" read_chk(fd: c_int, data: *mut c_void, len: size_t, room: size_t) -> ssize_t;
    c"dup" dup(fd: c_int) -> c_int;
    c"dup2" dup2(fd: c_int, to: c_int) -> c_int;
    c"dup3" dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
    c"fcntl" fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int,
        as unsafe extern "C-unwind" fn(c_int, c_int, ...) -> c_int;
    c"fcntl64" fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int,
        as unsafe extern "C-unwind" fn(c_int, c_int, ...) -> c_int;
    c"epoll_ctl" epoll_ctl(
        set: c_int, operation: c_int, fd: c_int, event: *mut libc::epoll_event) -> c_int;
    c"close" close(fd: c_int) -> c_int;
    c"close_range" close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
}

/// Set by `peregrine exec` to learn whether the loader takes this library, of which it only complains otherwise.
const PROBED: &CStr = c"PEREGRINE_XFRM_PROBE";
/// The exit code that says so, in the place of the program.
const PRESENT: c_int = 86;

/// Runs when the library is loaded, before the program.
extern "C" fn load() {
    // SAFETY: a C string; and nothing has begun yet that would have to end.
    unsafe {
        if !libc::getenv(PROBED.as_ptr()).is_null() {
            libc::_exit(PRESENT);
        }
    }
    look_up_all();
}

#[used]
// SAFETY: the section holds pointers to functions of this type.
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;
