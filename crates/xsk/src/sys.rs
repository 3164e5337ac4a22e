//! The raw system calls: memory mappings, AF_XDP sockets and their options, two interface ioctls.
//!
//! Does not know what a ring or a frame is, keeps no state beside the mapping it owns, and retries
//! nothing: policy belongs to `socket` and `umem`.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use libbpf_rs::libbpf_sys;

/// `XDP_MAX_TX_SKB_BUDGET` of linux/if_xdp.h, in kernels since 6.17; not yet in libc.
const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;

/// A memory mapping, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is plain memory, valid from any thread; all access to it goes through types
// that state their own rules (`ring`, `umem`).
unsafe impl Send for Mapping {}
// SAFETY: as above; `Mapping` itself offers no access to the bytes.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` zeroed bytes of private memory, from the huge-page pool when `hugepages`.
    pub(crate) fn anonymous(len: usize, hugepages: bool) -> io::Result<Mapping> {
        let huge = if hugepages { libc::MAP_HUGETLB } else { 0 };
        Mapping::map(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | huge, -1, 0)
    }

    /// Maps a ring of an AF_XDP socket.
    pub(crate) fn of_socket(fd: BorrowedFd<'_>, len: usize, offset: i64) -> io::Result<Mapping> {
        Mapping::map(len, libc::MAP_SHARED | libc::MAP_POPULATE, fd.as_raw_fd(), offset)
    }

    /// Maps a part of a file, shared with the file.
    pub(crate) fn of_file(fd: BorrowedFd<'_>, len: usize, offset: i64) -> io::Result<Mapping> {
        Mapping::map(len, libc::MAP_SHARED | libc::MAP_POPULATE, fd.as_raw_fd(), offset)
    }

    fn map(len: usize, flags: libc::c_int, fd: libc::c_int, offset: i64) -> io::Result<Mapping> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a null hint lets the kernel choose the place, so no existing mapping is touched.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { start, len })
    }

    /// Gives the kernel advice about the whole mapping (`MADV_…`).
    pub(crate) fn advise(&self, advice: libc::c_int) -> io::Result<()> {
        // SAFETY: the range is exactly this mapping; the advices used here never drop its content.
        check(unsafe { libc::madvise(self.start.as_ptr().cast(), self.len, advice) }).map(drop)
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is exactly what `mmap` returned, and whoever borrows from the mapping
        // keeps it alive (rings hold an `Arc`, the UMEM is never dropped).
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Opens an AF_XDP socket in the network namespace of the calling thread.
pub(crate) fn xdp_socket() -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    let fd = check(unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the descriptor was just made and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn set_option<T>(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: &T,
) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: pointer and length describe `value`, which outlives the call.
    check(unsafe {
        libc::setsockopt(fd.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), len)
    })
    .map(drop)
}

/// Reads an option that the kernel fills completely; a shorter answer, of an older kernel, is an
/// error.
///
/// `T` must be a plain C structure of integers.
fn get_option<T: Copy>(fd: BorrowedFd<'_>, name: libc::c_int) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `value`.
    check(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_XDP,
            name,
            value.as_mut_ptr().cast(),
            &raw mut len,
        )
    })?;
    if (len as usize) < size_of::<T>() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    // SAFETY: zeroed before and filled by the kernel; every bit pattern of the C structures that
    // the three callers below use is valid.
    Ok(unsafe { value.assume_init() })
}

/// Registers `memory` as the UMEM of this socket; the kernel pins its pages.
pub(crate) fn register_umem(
    fd: BorrowedFd<'_>,
    memory: &Mapping,
    chunk_size: u32,
) -> io::Result<()> {
    let registration = libc::xdp_umem_reg {
        addr: memory.start().as_ptr() as u64,
        len: memory.len() as u64,
        chunk_size,
        headroom: 0,
        flags: 0,
        tx_metadata_len: 0,
    };
    set_option(fd, libc::SOL_XDP, libc::XDP_UMEM_REG, &registration)
}

/// Sets the number of entries of one ring (`XDP_RX_RING`, `XDP_TX_RING`, …).
pub(crate) fn set_ring_size(
    fd: BorrowedFd<'_>,
    option: libc::c_int,
    entries: u32,
) -> io::Result<()> {
    set_option(fd, libc::SOL_XDP, option, &entries)
}

/// Raises the number of packets that one kick may send.
pub(crate) fn set_send_budget(fd: BorrowedFd<'_>, packets: u32) -> io::Result<()> {
    set_option(fd, libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &packets)
}

/// Sets the bytes that packets of this socket may hold in the kernel, above the system's limit.
pub(crate) fn set_send_buffer(fd: BorrowedFd<'_>, bytes: libc::c_int) -> io::Result<()> {
    set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes)
}

/// Where the indices and entries of the four rings lie in their mappings.
pub(crate) fn mmap_offsets(fd: BorrowedFd<'_>) -> io::Result<libc::xdp_mmap_offsets> {
    get_option(fd, libc::XDP_MMAP_OFFSETS)
}

/// The kernel's counters of one socket.
pub(crate) fn statistics(fd: BorrowedFd<'_>) -> io::Result<libc::xdp_statistics> {
    get_option(fd, libc::XDP_STATISTICS)
}

/// Whether the bound socket got zero copy.
pub(crate) fn is_zero_copy(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let options: libc::xdp_options = get_option(fd, libc::XDP_OPTIONS)?;
    Ok(options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
}

/// Binds the socket to one queue of one interface.
pub(crate) fn bind(fd: BorrowedFd<'_>, address: &libc::sockaddr_xdp) -> io::Result<()> {
    let len = size_of::<libc::sockaddr_xdp>() as libc::socklen_t;
    // SAFETY: pointer and length describe `address`, which outlives the call.
    check(unsafe { libc::bind(fd.as_raw_fd(), std::ptr::from_ref(address).cast(), len) }).map(drop)
}

/// Asks the kernel to send what is in the TX ring.
pub(crate) fn kick_send(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: an empty message; no pointer is read.
    let sent = unsafe {
        libc::sendto(fd.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Asks the driver to look at the fill ring again.
pub(crate) fn kick_receive(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: a zero-length receive; no pointer is written.
    let received = unsafe {
        libc::recvfrom(
            fd.as_raw_fd(),
            std::ptr::null_mut(),
            0,
            libc::MSG_DONTWAIT,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
        )
    };
    if received < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A request about the interface of a name.
fn interface_named(name: &str, content: libc::__c_anonymous_ifr_ifru) -> io::Result<libc::ifreq> {
    let mut request = libc::ifreq { ifr_name: [0; libc::IFNAMSIZ], ifr_ifru: content };
    if name.len() >= libc::IFNAMSIZ {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

/// One request to the kernel about an interface of the calling thread's network namespace.
fn interface_request(
    name: &str,
    request: libc::Ioctl,
    content: libc::__c_anonymous_ifr_ifru,
) -> io::Result<libc::ifreq> {
    let mut frame = interface_named(name, content)?;
    // SAFETY: no pointers are passed.
    let fd =
        check(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the descriptor was just made and nobody else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: the two requests used here read and write an `ifreq`, and the memory that its data
    // pointer names, which the caller keeps alive.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw mut frame) })?;
    Ok(frame)
}

/// Makes an open `/dev/net/tun` a queue of the device `name`, which is made if there is none, and
/// makes the device outlive its queues.
pub(crate) fn attach_tun_queue(fd: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let flags = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_MULTI_QUEUE;
    let content = libc::__c_anonymous_ifr_ifru { ifru_flags: flags as libc::c_short };
    let mut request = interface_named(name, content)?;
    // SAFETY: this request reads and writes an `ifreq`.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
    let persistent: libc::c_ulong = 1;
    // SAFETY: this request takes a number and no pointer.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETPERSIST, persistent) }).map(drop)
}

/// The index of an interface.
pub(crate) fn interface_index(name: &str) -> io::Result<u32> {
    let content = libc::__c_anonymous_ifr_ifru { ifru_ifindex: 0 };
    let answer = interface_request(name, libc::SIOCGIFINDEX, content)?;
    // SAFETY: the kernel answered this request with an index.
    Ok(unsafe { answer.ifr_ifru.ifru_ifindex } as u32)
}

/// The Ethernet address of an interface.
pub(crate) fn interface_mac(name: &str) -> io::Result<[u8; 6]> {
    let content = libc::__c_anonymous_ifr_ifru { ifru_ifindex: 0 };
    let answer = interface_request(name, libc::SIOCGIFHWADDR, content)?;
    // SAFETY: the kernel answered this request with a hardware address; any bytes are valid.
    let address = unsafe { answer.ifr_ifru.ifru_hwaddr };
    let mut mac = [0; 6];
    for (to, from) in mac.iter_mut().zip(address.sa_data) {
        *to = from as u8;
    }
    Ok(mac)
}

/// `struct ethtool_channels` of linux/ethtool.h.
#[repr(C)]
#[derive(Default)]
struct Channels {
    command: u32,
    max: [u32; 4],
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}

/// `ETHTOOL_GCHANNELS`.
const GET_CHANNELS: u32 = 0x3c;

/// The numbers of queues of an interface to receive from and to transmit by; 1 for drivers that have no
/// such setting.
pub(crate) fn interface_queues(name: &str) -> io::Result<(u32, u32)> {
    let mut channels = Channels { command: GET_CHANNELS, ..Channels::default() };
    let content = libc::__c_anonymous_ifr_ifru { ifru_data: (&raw mut channels).cast() };
    match interface_request(name, libc::SIOCETHTOOL, content) {
        Ok(_) => {
            let Channels { rx, tx, combined, .. } = channels;
            Ok(((rx + combined).max(1), (tx + combined).max(1)))
        }
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok((1, 1)),
        Err(error) => Err(error),
    }
}

/// The names of all interfaces of the calling thread's network namespace.
pub(crate) fn interface_names() -> Vec<String> {
    // SAFETY: no arguments; the result is null or an array that ends with a zero entry.
    let list = unsafe { libc::if_nameindex() };
    let mut names = Vec::new();
    if list.is_null() {
        return names;
    }
    // SAFETY: reads up to the terminating entry, whose index is 0; each name is a C string that
    // lives until the list is freed, once, at the end.
    unsafe {
        let mut entry = list;
        while (*entry).if_index != 0 {
            let name = std::ffi::CStr::from_ptr((*entry).if_name);
            names.push(name.to_string_lossy().into_owned());
            entry = entry.add(1);
        }
        libc::if_freenameindex(list);
    }
    names
}

/// One descriptor that is readable when any of `fds` is.
pub(crate) fn any_of(fds: &[BorrowedFd<'_>]) -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
    // SAFETY: the descriptor was just made and nobody else owns it.
    let any = unsafe { OwnedFd::from_raw_fd(fd) };
    for one in fds {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: `event` is read during the call only.
        check(unsafe {
            libc::epoll_ctl(fd, libc::EPOLL_CTL_ADD, one.as_raw_fd(), &raw mut event)
        })?;
    }
    Ok(any)
}

/// Flag of a program that runs in the driver.
pub(crate) const NATIVE_MODE: u32 = libbpf_sys::XDP_FLAGS_DRV_MODE;
/// Flag of a program that runs in the network stack.
pub(crate) const GENERIC_MODE: u32 = libbpf_sys::XDP_FLAGS_SKB_MODE;

/// libbpf returns a negative error number.
fn check_bpf(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result) }
}

/// The flag of each mode, and the id of the XDP program that runs in it (0 for none).
pub(crate) fn attached_programs(interface: u32) -> io::Result<[(u32, u32); 3]> {
    let mut found = libbpf_sys::bpf_xdp_query_opts {
        sz: size_of::<libbpf_sys::bpf_xdp_query_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    // SAFETY: `found` is an options structure that names its own size.
    check_bpf(unsafe { libbpf_sys::bpf_xdp_query(interface as i32, 0, &raw mut found) })?;
    Ok([
        (NATIVE_MODE, found.drv_prog_id),
        (GENERIC_MODE, found.skb_prog_id),
        (libbpf_sys::XDP_FLAGS_HW_MODE, found.hw_prog_id),
    ])
}

/// Puts `program` on an interface in `mode`, or takes off what is there (`None`). With `old` only
/// if exactly that program is there, without it only if none is.
pub(crate) fn attach_program(
    interface: u32,
    program: Option<BorrowedFd<'_>>,
    mode: u32,
    old: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let program = program.map_or(-1, |fd| fd.as_raw_fd());
    let options = libbpf_sys::bpf_xdp_attach_opts {
        sz: size_of::<libbpf_sys::bpf_xdp_attach_opts>() as libbpf_sys::size_t,
        old_prog_fd: old.map_or(0, |fd| fd.as_raw_fd()),
        ..Default::default()
    };
    let only_if_none = if old.is_none() { libbpf_sys::XDP_FLAGS_UPDATE_IF_NOEXIST } else { 0 };
    let flags = mode | only_if_none;
    // SAFETY: `options` names its own size and is only read.
    check_bpf(unsafe {
        libbpf_sys::bpf_xdp_attach(interface as i32, program, flags, &raw const options)
    })
    .map(drop)
}

/// A descriptor of the program with this id.
pub(crate) fn program_fd(id: u32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    let fd = check_bpf(unsafe { libbpf_sys::bpf_prog_get_fd_by_id(id) })?;
    // SAFETY: the descriptor was just made and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The id and the name of a program.
pub(crate) fn program_info(program: BorrowedFd<'_>) -> io::Result<(u32, String)> {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut len = size_of_val(&info) as u32;
    // SAFETY: the kernel writes at most `len` bytes into `info`, whose pointers are all null.
    check_bpf(unsafe {
        libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut len)
    })?;
    let name = info.name.iter().map(|&byte| byte as u8).take_while(|&byte| byte != 0).collect();
    Ok((info.id, String::from_utf8(name).unwrap_or_default()))
}
