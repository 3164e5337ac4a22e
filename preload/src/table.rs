//! Which descriptors are XFRM sockets, and what a netlink socket knows of itself.
//!
//! One slot per descriptor, all atomic and without order among slots: a program that uses a
//! descriptor in one thread while another closes it gets from us what it gets from the kernel, one
//! or the other. The table does not own descriptors.
//!
//! It belongs to one process. `fork` gives the child a table of its own. The child of a `vfork`
//! closes and copies its own descriptors, but shares its parent's memory: from there nothing
//! changes the table.

use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use libc::{c_int, epoll_event};

/// Descriptors that can be XFRM sockets. Debian gives services 524 288 at most, daemons that speak
/// XFRM use some hundreds and the kernel hands out the lowest; beyond this `socket` fails with
/// `EMFILE`. A slot takes 104 bytes of zero pages that exist when touched.
pub const DESCRIPTORS_MAX: usize = 65_536;

/// Sequence numbers that a slot remembers: more than threads that have requests under way on one socket. A program that
/// has more sees an answer late now and then.
const HEARD: usize = 16;

const OPEN: u8 = 1;
const DATAGRAM: u8 = 2;
const BOUND: u8 = 4;
const EXT_ACK: u8 = 8;
const CAP_ACK: u8 = 16;

/// One descriptor.
pub struct Slot {
    state: AtomicU8,
    port: AtomicU32,
    groups: AtomicU32,
    /// The epoll set that waits for it, plus 1; what for, and what that set calls it.
    set: AtomicI32,
    events: AtomicU32,
    data: AtomicU64,
    generation: AtomicU32,
    /// Sequence numbers of the messages that the program received last, each where its low digits say.
    heard: [AtomicU32; HEARD],
    /// The thread that replaces the connection; 0 for none.
    replacer: AtomicI32,
}

/// An option of a netlink socket that changes what it receives.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum NetlinkOption {
    /// Errors do not quote the request.
    CapAck,
    /// Errors carry texts.
    ExtAck,
}

impl NetlinkOption {
    /// Both.
    pub const ALL: [Self; 2] = [Self::CapAck, Self::ExtAck];

    fn bit(self) -> u8 {
        match self {
            Self::CapAck => CAP_ACK,
            Self::ExtAck => EXT_ACK,
        }
    }
}

impl Slot {
    const fn empty() -> Self {
        Self {
            state: AtomicU8::new(0),
            port: AtomicU32::new(0),
            groups: AtomicU32::new(0),
            set: AtomicI32::new(0),
            events: AtomicU32::new(0),
            data: AtomicU64::new(0),
            generation: AtomicU32::new(0),
            heard: [const { AtomicU32::new(0) }; HEARD],
            replacer: AtomicI32::new(0),
        }
    }

    /// How often the descriptor was opened, closed or given another connection, by which a thread learns what
    /// others did to it meanwhile. Wraps.
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// Nothing with this sequence number was received so far. Before it is sent.
    pub fn expect(&self, number: u32) {
        let (place, mark) = self.place(number);
        let _ = place.compare_exchange(mark, 0, Ordering::AcqRel, Ordering::Acquire);
    }

    /// The program has received a message with this sequence number.
    pub fn hear(&self, number: u32) {
        let (place, mark) = self.place(number);
        place.store(mark, Ordering::Release);
    }

    /// Whether a thread has received a message with this sequence number since it was expected. `false`, too, when
    /// so many others came since that this one is forgotten.
    pub fn has_heard(&self, number: u32) -> bool {
        let (place, mark) = self.place(number);
        place.load(Ordering::Acquire) == mark
    }

    fn place(&self, number: u32) -> (&AtomicU32, u32) {
        let count = HEARD as u32;
        // Never 0, which stands for none.
        (&self.heard[(number % count) as usize], number / count + 1)
    }

    /// Begins the generation after this one. `false`: it is over already.
    pub fn advance(&self, from: u32) -> bool {
        let next = from.wrapping_add(1);
        self.generation.compare_exchange(from, next, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Makes the calling thread the one that replaces the connection. `false`: another is at it.
    ///
    /// A thread that was cancelled meanwhile, or that `fork` did not copy, is at nothing any more.
    pub fn claim(&self) -> bool {
        let (own, holder) = (thread(), self.replacer.load(Ordering::Acquire));
        let free = holder == 0 || holder == own || !lives(holder);
        let claim = || {
            self.replacer.compare_exchange(holder, own, Ordering::AcqRel, Ordering::Acquire).is_ok()
        };
        free && claim()
    }

    /// The calling thread is done with what it claimed.
    pub fn release(&self) {
        self.replacer.store(0, Ordering::Release);
    }

    /// An epoll set waits for it from now on.
    pub fn watch(&self, set: c_int, event: epoll_event) {
        self.events.store(event.events, Ordering::Release);
        self.data.store(event.u64, Ordering::Release);
        self.set.store(set + 1, Ordering::Release);
    }

    /// A set does not wait for it any more.
    pub fn unwatch(&self, set: c_int) {
        let _ = self.set.compare_exchange(set + 1, 0, Ordering::AcqRel, Ordering::Acquire);
    }

    /// The set that waits for it, and what for.
    pub fn watched(&self) -> Option<(c_int, epoll_event)> {
        let set = self.set.load(Ordering::Acquire).checked_sub(1).filter(|set| *set >= 0)?;
        let (events, data) =
            (self.events.load(Ordering::Acquire), self.data.load(Ordering::Acquire));
        Some((set, epoll_event { events, u64: data }))
    }

    fn has(&self, bit: u8) -> bool {
        self.state.load(Ordering::Acquire) & bit != 0
    }

    fn put(&self, bit: u8, on: bool) {
        if on {
            self.state.fetch_or(bit, Ordering::AcqRel);
        } else {
            self.state.fetch_and(!bit, Ordering::AcqRel);
        }
    }

    /// Whether the program asked for `SOCK_DGRAM`; else for `SOCK_RAW`.
    pub fn is_datagram(&self) -> bool {
        self.has(DATAGRAM)
    }

    /// The netlink port it is bound to.
    pub fn port(&self) -> Option<u32> {
        self.has(BOUND).then(|| self.port.load(Ordering::Acquire))
    }

    /// Binds it.
    pub fn bind(&self, port: u32) {
        self.port.store(port, Ordering::Release);
        self.put(BOUND, true);
    }

    /// The groups it listens to, as a mask.
    pub fn groups(&self) -> u32 {
        self.groups.load(Ordering::Acquire)
    }

    /// Replaces the groups.
    pub fn set_groups(&self, mask: u32) {
        self.groups.store(mask, Ordering::Release);
    }

    /// Joins or leaves the groups of a mask.
    pub fn change_groups(&self, mask: u32, on: bool) {
        if on {
            self.groups.fetch_or(mask, Ordering::AcqRel);
        } else {
            self.groups.fetch_and(!mask, Ordering::AcqRel);
        }
    }

    /// Whether an option is set.
    pub fn option(&self, option: NetlinkOption) -> bool {
        self.has(option.bit())
    }

    /// Sets or clears an option.
    pub fn set_option(&self, option: NetlinkOption, on: bool) {
        self.put(option.bit(), on);
    }
}

static SLOTS: [Slot; DESCRIPTORS_MAX] = [const { Slot::empty() }; DESCRIPTORS_MAX];

/// One more than the highest descriptor that ever was an XFRM socket: where sweeps end.
static SWEEP_END: AtomicUsize = AtomicUsize::new(0);

/// The process whose descriptors these are; 0 before the first socket.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// The descriptor that is bound to the port that equals the process's number, plus 1; 0 for none.
static OWN_PORT_HOLDER: AtomicI32 = AtomicI32::new(0);

/// The next port for a second socket without a wish: the kernel, too, counts down from -4097.
static NEXT_PORT: AtomicU32 = AtomicU32::new(4097_u32.wrapping_neg());

/// The slot of a descriptor that is an XFRM socket: the one look that every call costs.
#[inline]
pub fn find(fd: c_int) -> Option<&'static Slot> {
    let slot = SLOTS.get(usize::try_from(fd).ok()?)?;
    slot.has(OPEN).then_some(slot)
}

/// Makes a descriptor an XFRM socket. `false`: the table has no room for this number.
pub fn open(fd: c_int, datagram: bool) -> bool {
    adopt(fd, OPEN | if datagram { DATAGRAM } else { 0 }, 0, 0)
}

/// Makes a copy of a descriptor an XFRM socket. `false`: the table has no room for this number.
///
/// What either of them changes later, the other does not learn; programs bind before they copy.
pub fn copy(from: &Slot, fd: c_int) -> bool {
    adopt(fd, from.state.load(Ordering::Acquire), from.port.load(Ordering::Acquire), from.groups())
}

fn adopt(fd: c_int, state: u8, port: u32, groups: u32) -> bool {
    own();
    let Some((index, slot)) = usize::try_from(fd).ok().and_then(|i| Some((i, SLOTS.get(i)?)))
    else {
        return false;
    };
    if !owned() {
        return true;
    }
    slot.port.store(port, Ordering::Release);
    slot.groups.store(groups, Ordering::Release);
    slot.set.store(0, Ordering::Release);
    slot.generation.fetch_add(1, Ordering::AcqRel);
    slot.state.store(state, Ordering::Release);
    SWEEP_END.fetch_max(index + 1, Ordering::AcqRel);
    true
}

/// Forgets a descriptor that is about to be closed or replaced.
pub fn forget(fd: c_int) {
    if find(fd).is_some() && owned() {
        clear(fd as usize);
    }
}

/// Forgets every descriptor from `first` to `last`.
pub fn forget_range(first: u32, last: u32) {
    let end = SWEEP_END.load(Ordering::Acquire).min((last as usize).saturating_add(1));
    if (first as usize) < end && owned() {
        (first as usize..end).for_each(clear);
    }
}

fn clear(index: usize) {
    if let Some(slot) = SLOTS.get(index) {
        slot.state.store(0, Ordering::Release);
        slot.generation.fetch_add(1, Ordering::AcqRel);
        let holder = index as c_int + 1;
        let _ = OWN_PORT_HOLDER.compare_exchange(holder, 0, Ordering::AcqRel, Ordering::Acquire);
    }
}

/// A port for a socket that asked for none: the process's number for the first, as the kernel does.
pub fn choose_port(fd: c_int) -> u32 {
    let first = OWN_PORT_HOLDER.compare_exchange(0, fd + 1, Ordering::AcqRel, Ordering::Acquire);
    match first {
        Ok(_) => process() as u32,
        Err(holder) if holder == fd + 1 => process() as u32,
        Err(_) => NEXT_PORT.fetch_sub(1, Ordering::AcqRel),
    }
}

fn process() -> c_int {
    // SAFETY: no argument, cannot fail.
    unsafe { libc::getpid() }
}

fn thread() -> c_int {
    // SAFETY: no argument, cannot fail.
    unsafe { libc::gettid() }
}

/// Whether a thread of this process is still there.
fn lives(thread: c_int) -> bool {
    // SAFETY: signal 0 is none; it is only looked whether it could be sent.
    unsafe { libc::syscall(libc::SYS_tgkill, process(), thread, 0) == 0 }
}

fn owned() -> bool {
    OWNER.load(Ordering::Acquire) == process()
}

fn own() {
    let first = OWNER.compare_exchange(0, process(), Ordering::AcqRel, Ordering::Acquire).is_ok();
    if first {
        // SAFETY: the function has the type libc expects and lives as long as the process.
        // Without memory for the registration, children of `fork` keep descriptors they close.
        unsafe { libc::pthread_atfork(None, None, Some(own_copy)) };
    }
}

/// Runs in the child of a `fork`: its table is a copy, and its number is another.
extern "C" fn own_copy() {
    OWNER.store(process(), Ordering::Release);
    OWN_PORT_HOLDER.store(0, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    // Numbers no descriptor of the test program has.
    const FD: c_int = 60_000;

    #[test]
    fn a_descriptor_is_found_until_forgotten() {
        assert!(find(FD).is_none());
        assert!(open(FD, true));
        let slot = find(FD).unwrap();
        assert!(slot.is_datagram());
        assert_eq!(slot.port(), None);
        forget(FD);
        assert!(find(FD).is_none());
    }

    #[test]
    fn numbers_out_of_range_are_no_sockets() {
        assert!(find(-1).is_none());
        assert!(find(c_int::MAX).is_none());
        assert!(!open(DESCRIPTORS_MAX as c_int, false));
        forget_range(u32::MAX, u32::MAX);
        forget(-1);
    }

    #[test]
    fn a_copy_knows_what_the_original_knew() {
        assert!(open(FD + 1, false));
        let slot = find(FD + 1).unwrap();
        slot.bind(77);
        slot.change_groups(0b101, true);
        slot.change_groups(0b001, false);
        slot.set_option(NetlinkOption::ExtAck, true);
        assert!(copy(slot, FD + 2));
        let copied = find(FD + 2).unwrap();
        assert_eq!(copied.port(), Some(77));
        assert_eq!(copied.groups(), 0b100);
        assert!(copied.option(NetlinkOption::ExtAck));
        assert!(!copied.option(NetlinkOption::CapAck));
        forget_range(FD as u32 + 1, FD as u32 + 1);
        assert!(find(FD + 1).is_none());
        assert!(find(FD + 2).is_some());
        forget_range(FD as u32 + 1, u32::MAX);
        assert!(find(FD + 2).is_none());
    }

    #[test]
    fn a_number_that_was_closed_or_opened_is_of_another_generation() {
        assert!(open(FD + 5, false));
        let slot = find(FD + 5).unwrap();
        let opened = slot.generation();
        assert!(slot.advance(opened));
        let replaced = slot.generation();
        assert!(!slot.advance(opened));
        forget(FD + 5);
        let closed = slot.generation();
        assert!(open(FD + 5, false));
        assert!(replaced != closed && !slot.advance(closed) && !slot.advance(replaced));
        forget(FD + 5);
    }

    #[test]
    fn a_number_is_heard_once_it_came_until_it_is_expected_again() {
        assert!(open(FD + 7, false));
        let slot = find(FD + 7).unwrap();
        for number in [0, 1, 15, 16, u32::MAX] {
            slot.expect(number);
            assert!(!slot.has_heard(number));
            slot.hear(number);
            assert!(slot.has_heard(number));
            // Others of its place are not taken for it, and do not take it away by being expected.
            let other = number.wrapping_add(HEARD as u32);
            slot.expect(other);
            assert!(!slot.has_heard(other) && slot.has_heard(number));
            slot.expect(number);
            assert!(!slot.has_heard(number));
        }
        forget(FD + 7);
    }

    #[test]
    fn one_thread_replaces_and_one_that_is_gone_does_not() {
        assert!(open(FD + 6, false));
        let slot = find(FD + 6).unwrap();
        assert!(slot.claim() && slot.claim());
        let elsewhere = |slot: &'static Slot| std::thread::spawn(|| slot.claim()).join().unwrap();
        assert!(!elsewhere(slot));
        slot.release();
        assert!(elsewhere(slot));
        // Joined is not yet gone: the kernel is done with a thread a moment later.
        while !slot.claim() {
            std::thread::yield_now();
        }
        forget(FD + 6);
    }

    #[test]
    fn the_first_socket_has_the_process_number_as_its_port() {
        let own = std::process::id();
        assert!(open(FD + 3, false));
        assert_eq!(choose_port(FD + 3), own);
        assert_eq!(choose_port(FD + 3), own);
        let other = choose_port(FD + 4);
        assert!(other as i32 <= -4097);
        assert_ne!(choose_port(FD + 4), other);
        forget(FD + 3);
        assert_eq!(choose_port(FD + 4), own);
    }
}
