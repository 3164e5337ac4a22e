//! The connection to the gateway that stands behind a program's socket.
//!
//! Opens it, tells the server what the socket is, and replaces it when the server was restarted. The
//! program's own bytes do not pass here.

use std::ffi::CStr;
use std::time::{Duration, Instant};

use libc::{c_int, c_void};

use crate::answer::{self, First};
use crate::frame::Frame;
use crate::table::{NetlinkOption, Slot};
use crate::{errno, next, table};

/// Where the gateway listens if the environment does not say: one whose configuration names neither itself nor
/// a directory.
const DEFAULT_PATH: &CStr = c"/run/peregrine/gw0/xfrm.sock";

/// Longest wait for the server to take a frame, which it does in microseconds: who joins a group, or does not want
/// to be answered, goes on after this.
const TAKE_MS_MAX: u64 = 2000;

/// Longest wait for a gateway that has gone: a restart with 50 000 tunnels takes less. A request
/// that finds it gone is an IKE daemon's, which would have to give a tunnel up.
pub const RETURN_MS_MAX: u64 = 5000;

/// The same for who asked not to wait, and would go round in circles on a closed connection: it serves
/// everything else four times a second.
pub const RETURN_NONBLOCKING_MS_MAX: u64 = 250;

/// Between two looks for it: a restart takes a tenth of a second.
const RETURN_STEP_MS: c_int = 2;

/// Connects. Returns a descriptor that is not in the table yet, or -1 with errno set:
/// `ECONNREFUSED` for whatever keeps the server out of reach.
pub fn open(flags: c_int) -> c_int {
    let fd = try_open(flags);
    if fd < 0 {
        report(errno::get());
        errno::set(libc::ECONNREFUSED);
    }
    fd
}

/// The same without a word, and with the errno of what failed.
fn try_open(flags: c_int) -> c_int {
    // A connect that must not block fails while the server is busy accepting others.
    let blocking = libc::SOCK_SEQPACKET | (flags & libc::SOCK_CLOEXEC);
    // SAFETY: plain arguments.
    let fd = unsafe { next::socket(libc::AF_UNIX, blocking, 0) };
    if fd < 0 {
        return fd;
    }
    if let Err(reason) = connect(fd) {
        return abandon(fd, reason);
    }
    if flags & libc::SOCK_NONBLOCK != 0 && !set_nonblocking(fd) {
        return abandon(fd, libc::ECONNREFUSED);
    }
    fd
}

fn abandon(fd: c_int, reason: c_int) -> c_int {
    // SAFETY: the descriptor is ours and nobody else knows it.
    unsafe { next::close(fd) };
    errno::fail(reason)
}

fn set_nonblocking(fd: c_int) -> bool {
    // SAFETY: these commands take no pointer.
    unsafe {
        let flags = next::fcntl(fd, libc::F_GETFL, std::ptr::null_mut());
        flags >= 0 && next::fcntl(fd, libc::F_SETFL, flag_argument(flags | libc::O_NONBLOCK)) == 0
    }
}

/// An integer where a variadic function wants a word.
fn flag_argument(flags: c_int) -> *mut c_void {
    std::ptr::without_provenance_mut(flags as usize)
}

fn path() -> &'static CStr {
    // SAFETY: a C string; the result lives until the program changes its environment, which no
    // program may do while other threads read it.
    let named = unsafe { libc::getenv(c"PEREGRINE_XFRM".as_ptr()) };
    if named.is_null() {
        return DEFAULT_PATH;
    }
    // SAFETY: libc returns C strings.
    let named = unsafe { CStr::from_ptr(named) };
    if named.is_empty() { DEFAULT_PATH } else { named }
}

/// Connects to the server; the error is an errno.
fn connect(fd: c_int) -> Result<(), c_int> {
    let path = path().to_bytes_with_nul();
    // SAFETY: a structure of integers, for which zeros are a value.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    if path.len() > address.sun_path.len() {
        return Err(libc::ENAMETOOLONG);
    }
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, from) in address.sun_path.iter_mut().zip(path) {
        *to = *from as libc::c_char;
    }
    let len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    loop {
        // SAFETY: an address and its length.
        let status = unsafe { next::connect(fd, (&raw const address).cast(), len) };
        if status == 0 {
            return Ok(());
        }
        if errno::get() != libc::EINTR {
            return Err(errno::get());
        }
    }
}

/// One line for the person who wonders why there is no server; only on request, because a
/// program's standard error is the program's.
#[cold]
fn report(reason: c_int) {
    // SAFETY: C strings; what `strerror` returns stays until this thread's next call.
    let (wanted, reason) = unsafe {
        let wanted = !libc::getenv(c"PEREGRINE_XFRM_DEBUG".as_ptr()).is_null();
        (wanted, CStr::from_ptr(libc::strerror(reason)))
    };
    if !wanted {
        return;
    }
    let line: [&[u8]; 5] = [
        b"peregrine: no XFRM server at ",
        path().to_bytes(),
        b": ",
        reason.to_bytes(),
        b"; is `peregrine run` running?\n",
    ];
    let parts = line
        .map(|text| libc::iovec { iov_base: text.as_ptr().cast_mut().cast(), iov_len: text.len() });
    // SAFETY: five buffers that live until the call returns.
    unsafe { next::writev(libc::STDERR_FILENO, parts.as_ptr(), parts.len() as c_int) };
}

/// Tells the server something; whether it could. Waits for room, so that nothing is lost on a socket
/// that must not block; keeps errno.
pub fn tell(fd: c_int, frame: Frame) -> bool {
    let saved = errno::get();
    let (bytes, len) = frame.bytes();
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    let deadline = Deadline::start();
    loop {
        // SAFETY: a buffer and the count of its bytes that matter.
        let sent = unsafe { next::send(fd, bytes.as_ptr().cast(), len, flags) };
        let again = sent < 0 && matches!(errno::get(), libc::EAGAIN | libc::EINTR);
        if !again || !wait_for(fd, libc::POLLOUT, &deadline) {
            errno::set(saved);
            return sent >= 0;
        }
    }
}

/// Tells a new connection everything the program's socket is.
pub fn introduce(fd: c_int, slot: &Slot) {
    for option in NetlinkOption::ALL {
        tell(fd, Frame::Option { name: option_name(option), on: slot.option(option) });
    }
    if let Some(port) = slot.port() {
        tell(fd, Frame::Bind { port, groups: slot.groups() });
    } else {
        let joined = (1..=32).filter(|group| slot.groups() & (1 << (group - 1)) != 0);
        for group in joined {
            tell(fd, Frame::Membership { group, on: true });
        }
    }
}

/// The number of an option under `SOL_NETLINK`.
pub fn option_name(option: NetlinkOption) -> u32 {
    match option {
        NetlinkOption::CapAck => libc::NETLINK_CAP_ACK as u32,
        NetlinkOption::ExtAck => libc::NETLINK_EXT_ACK as u32,
    }
}

/// Whether something can be read now. Keeps errno.
pub fn is_readable(fd: c_int) -> bool {
    poll(fd, libc::POLLIN, 0)
}

/// Whether the program's descriptor must not block.
pub fn is_nonblocking(fd: c_int) -> bool {
    // SAFETY: this command takes no pointer.
    let status = unsafe { next::fcntl(fd, libc::F_GETFL, std::ptr::null_mut()) };
    status > 0 && status & libc::O_NONBLOCK != 0
}

/// Whether the server has gone, whatever is left to read. Keeps errno.
pub fn has_hung_up(fd: c_int) -> bool {
    // That is told without being asked for.
    poll(fd, 0, 0)
}

/// A connection, as soon as there is a server, or -1 when that takes too long.
fn open_when_back(flags: c_int, deadline: &Deadline) -> c_int {
    loop {
        let fd = try_open(flags);
        if fd >= 0 {
            return fd;
        }
        if deadline.left_ms() == 0 {
            report(errno::get());
            return fd;
        }
        pause();
    }
}

/// Between two looks for a server that has gone.
pub fn pause() {
    // SAFETY: no descriptor is passed; this only sleeps.
    unsafe { libc::poll(std::ptr::null_mut(), 0, RETURN_STEP_MS) };
}

/// Replaces a connection whose server has gone, under the same descriptor, waiting a while for the
/// server to come back. Whether there is one again. The epoll set that holds the descriptor gets the
/// new one; copies of the descriptor keep the old.
///
/// One thread does it; others that find the server gone wait for that one, and have what it made.
pub fn replace(fd: c_int, slot: &Slot, wait_ms: u64) -> bool {
    let deadline = Deadline::after(wait_ms);
    while !slot.claim() {
        if deadline.left_ms() == 0 {
            return false;
        }
        pause();
    }
    let generation = slot.generation();
    let is_open = table::find(fd).is_some();
    let back = is_open && (!has_hung_up(fd) || exchange(fd, slot, generation, &deadline));
    slot.release();
    back
}

/// Puts a new connection in the place of the one of a generation; whether it could.
fn exchange(fd: c_int, slot: &Slot, generation: u32, deadline: &Deadline) -> bool {
    // SAFETY: this command takes no pointer.
    let descriptor = unsafe { next::fcntl(fd, libc::F_GETFD, std::ptr::null_mut()) };
    let nonblocking = is_nonblocking(fd);
    let flags = if nonblocking { libc::SOCK_NONBLOCK } else { 0 };
    let fresh = open_when_back(libc::SOCK_CLOEXEC | flags, deadline);
    if fresh < 0 {
        return false;
    }
    // Before other threads send requests on it, and before anybody is told that events were missed.
    introduce(fresh, slot);
    if slot.groups() != 0 {
        answer::synchronise(fresh);
    }
    if !is_read(fd, deadline) {
        tell(fresh, Frame::Lost);
    }
    let close_on_exec = descriptor > 0 && descriptor & libc::FD_CLOEXEC != 0;
    let flags = if close_on_exec { libc::O_CLOEXEC } else { 0 };
    // The program may have closed the socket meanwhile, and the number be another file's.
    // SAFETY: `fresh` is ours; `fd` is what the caller is using.
    let replaced = slot.advance(generation) && unsafe { next::dup3(fresh, fd, flags) } == fd;
    // SAFETY: as above, and nobody else knows it.
    unsafe { next::close(fresh) };
    if replaced && let Some((set, mut event)) = slot.watched() {
        // Closing the old connection took it out of the set. Nothing can be done about a failure.
        // SAFETY: an event that lives until the call returns.
        unsafe { next::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
    }
    replaced
}

/// Whether what came on a connection that has ended was read by then; who is about to do it, in another thread, has
/// a while for it. The rest goes with the connection, and the program has to be told.
fn is_read(fd: c_int, deadline: &Deadline) -> bool {
    let patience = Deadline::after(answer::UNREAD_MS_MAX);
    while matches!(answer::first(fd), First::Numbered(_)) {
        if patience.left_ms() == 0 || deadline.left_ms() == 0 {
            return false;
        }
        pause();
    }
    true
}

/// An end to waiting.
pub struct Deadline(Instant);

impl Deadline {
    /// That of a frame.
    pub fn start() -> Self {
        Self::after(TAKE_MS_MAX)
    }

    /// So many milliseconds from now.
    pub fn after(milliseconds: u64) -> Self {
        Self(Instant::now() + Duration::from_millis(milliseconds))
    }

    /// Milliseconds until then, rounded up.
    pub fn left_ms(&self) -> c_int {
        let left = self.0.saturating_duration_since(Instant::now());
        left.as_micros().div_ceil(1000) as c_int
    }
}

/// Waits for an event, across signals; whether it came. Keeps errno.
fn wait_for(fd: c_int, events: i16, deadline: &Deadline) -> bool {
    loop {
        let left_ms = deadline.left_ms();
        if poll(fd, events, left_ms) {
            return true;
        }
        if left_ms == 0 {
            return false;
        }
    }
}

/// Waits for an event for so long, or until a signal comes; whether there is one. Keeps errno.
pub fn poll(fd: c_int, events: i16, timeout_ms: c_int) -> bool {
    let saved = errno::get();
    let mut wanted = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: one structure.
    let ready = unsafe { libc::poll(&raw mut wanted, 1, timeout_ms) };
    errno::set(saved);
    ready > 0
}

#[cfg(test)]
mod tests {
    use super::DEFAULT_PATH;

    #[test]
    fn the_default_is_the_gateway_of_the_example() {
        let example = include_str!("../../crates/control/src/config/example.toml");
        let value = |key: &str| {
            let of = |line: &'static str| line.strip_prefix(key)?.split('"').next();
            example.lines().find_map(of).unwrap()
        };
        let path = format!("{}/{}/xfrm.sock", value("# run_dir = \""), value("name = \""));
        assert_eq!(DEFAULT_PATH.to_str(), Ok(&path[..]));
    }
}
