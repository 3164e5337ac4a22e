//! Attaching XDP programs to interfaces, and taking off only what is ours.
//!
//! A program is attached to the interface itself and not to a file descriptor of this process: when
//! the process is killed the program stays and, its sockets gone, drops what was for the workers.
//! The gateway fails closed. A restarted gateway recognises its own program by its name and
//! replaces it in one step. A program of somebody else is never touched.
//!
//! Does not load programs: [`Steer`](crate::Steer) and [`Sink`](crate::Sink) do.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use libbpf_rs::{MapCore, MapFlags, PrintLevel};

use crate::error::XskError;
use crate::sys;

/// How the names of all our programs begin, as the kernel shows them.
const OURS: &str = "peregrine_";

/// Where the kernel runs an attached program.
#[derive(Debug)]
pub enum AttachMode {
    /// In the driver, before the kernel spends any work on the packet.
    Native,
    /// In the network stack, on any interface and slower. Says why the driver refused, unless the
    /// program replaced one that already ran there.
    Generic(Option<io::Error>),
}

/// Where the kernel shall run a program. A program that takes the place of an older one of ours runs
/// where that one ran, whatever is wished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttachWish {
    /// In the driver if it can, else in the network stack.
    #[default]
    Any,
    /// In the driver; it is an error if it cannot.
    Native,
    /// In the network stack.
    Generic,
}

/// A program found on an interface.
struct Found {
    id: u32,
    name: String,
    fd: OwnedFd,
    /// `XDP_FLAGS_…_MODE` of its place.
    mode: u32,
}

/// An interface that programs of ours are put on.
#[derive(Debug)]
pub(crate) struct Interface {
    name: String,
    index: u32,
}

impl Interface {
    /// Finds an interface of the calling thread's network namespace.
    pub(crate) fn find(name: &str) -> Result<Interface, XskError> {
        let index = sys::interface_index(name).map_err(|e| XskError::interface(name, e))?;
        Ok(Interface { name: name.to_owned(), index })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Attaches `program`, in place of an older one of ours.
    pub(crate) fn attach(
        &self,
        program: BorrowedFd<'_>,
        wanted: AttachWish,
    ) -> Result<AttachMode, XskError> {
        if let Some(found) = self.found()? {
            if !found.name.starts_with(OURS) {
                let interface = self.name.clone();
                let (program, id) = (found.name, found.id);
                return Err(XskError::ForeignProgram { interface, program, id });
            }
            // In the place where it is: to change the mode it would have to be off for a moment.
            sys::attach_program(self.index, Some(program), found.mode, Some(found.fd.as_fd()))
                .map_err(|error| self.error(error))?;
            return Ok(match found.mode {
                sys::GENERIC_MODE => AttachMode::Generic(None),
                _ => AttachMode::Native,
            });
        }
        if wanted == AttachWish::Generic {
            return sys::attach_program(self.index, Some(program), sys::GENERIC_MODE, None)
                .map(|()| AttachMode::Generic(None))
                .map_err(|error| self.error(error));
        }
        let native = sys::attach_program(self.index, Some(program), sys::NATIVE_MODE, None);
        let Err(refusal) = native else { return Ok(AttachMode::Native) };
        let certain =
            matches!(refusal.raw_os_error(), Some(libc::EPERM | libc::EBUSY | libc::EEXIST));
        if certain || wanted == AttachWish::Native {
            return Err(self.error(refusal));
        }
        match sys::attach_program(self.index, Some(program), sys::GENERIC_MODE, None) {
            Ok(()) => Ok(AttachMode::Generic(Some(refusal))),
            Err(source) => {
                Err(XskError::NoXdp { interface: self.name.clone(), native: refusal, source })
            }
        }
    }

    /// Takes `program` off. Returns `false`, and changes nothing, when it is not on the interface:
    /// a newer gateway has replaced it, or the interface is gone.
    pub(crate) fn detach(&self, program: BorrowedFd<'_>) -> Result<bool, XskError> {
        let (id, _) = sys::program_info(program).map_err(|error| self.error(error))?;
        let places = match sys::attached_programs(self.index) {
            Ok(places) => places,
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(false),
            Err(error) => return Err(self.error(error)),
        };
        let Some((mode, _)) = places.into_iter().find(|place| place.1 == id) else {
            return Ok(false);
        };
        match sys::attach_program(self.index, None, mode, Some(program)) {
            Ok(()) => Ok(true),
            // Somebody was quicker.
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(false),
            Err(error) => Err(self.error(error)),
        }
    }

    /// The program on this interface, if any.
    fn found(&self) -> Result<Option<Found>, XskError> {
        let places = sys::attached_programs(self.index).map_err(|error| self.error(error))?;
        let Some((mode, id)) = places.into_iter().find(|place| place.1 != 0) else {
            return Ok(None);
        };
        let fd = sys::program_fd(id).map_err(|error| self.error(error))?;
        let (_, name) = sys::program_info(fd.as_fd()).map_err(|error| self.error(error))?;
        Ok(Some(Found { id, name, fd, mode }))
    }

    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    pub(crate) fn error(&self, source: io::Error) -> XskError {
        match source.raw_os_error() {
            Some(libc::EPERM) => XskError::Permission {
                doing: "attach an XDP program",
                capability: "CAP_NET_ADMIN and CAP_BPF",
            },
            _ => XskError::kernel("attach the XDP program", &self.name, source),
        }
    }
}

/// Takes a program of ours off `interface`, whichever process put it there: the tidying up after a
/// gateway that was killed and is not to come back. Returns whether there was one.
///
/// From then on the kernel forwards again, in clear.
///
/// # Errors
///
/// When the interface does not exist, or the kernel refuses.
pub fn remove_stale(interface: &str) -> Result<bool, XskError> {
    let interface = Interface::find(interface)?;
    match interface.found()? {
        Some(found) if found.name.starts_with(OURS) => interface.detach(found.fd.as_fd()),
        _ => Ok(false),
    }
}

/// Takes the program of this [id](crate::Steer::id) off the interface of this index, if it is there still and one
/// of ours: what a process left that is gone. A program that was put there since is not touched. Returns
/// whether it was there.
///
/// From then on the kernel forwards again, in clear.
///
/// # Errors
///
/// When the kernel refuses; `interface` is the name for the error.
pub fn remove_left(interface: &str, index: u32, id: u32) -> Result<bool, XskError> {
    let interface = Interface { name: interface.to_owned(), index };
    let program = match sys::program_fd(id) {
        // It went with its interface, or somebody took it off.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(false),
        found => found.map_err(|error| interface.error(error))?,
    };
    let (_, name) = sys::program_info(program.as_fd()).map_err(|error| interface.error(error))?;
    if name.starts_with(OURS) { interface.detach(program.as_fd()) } else { Ok(false) }
}

/// One counter of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerdictCount {
    /// The name, the same everywhere.
    pub name: &'static str,
    /// Packets that met this fate.
    pub packets: u64,
    /// What is counted, in a sentence.
    pub meaning: &'static str,
}

/// Reads a per-CPU array of counters, summed over the CPUs.
pub(crate) fn read_counters<const N: usize>(
    map: &impl MapCore,
    verdicts: [(&'static str, &'static str); N],
) -> [VerdictCount; N] {
    let mut index = 0u32;
    verdicts.map(|(name, meaning)| {
        // An array has every entry from the start; a read of it cannot fail.
        let per_cpu = map.lookup_percpu(&index.to_ne_bytes(), MapFlags::ANY).ok().flatten();
        index += 1;
        let numbers = per_cpu.unwrap_or_default().into_iter();
        let packets =
            numbers.map(|bytes| bytes.try_into().map_or(0, u64::from_ne_bytes)).sum::<u64>();
        VerdictCount { name, packets, meaning }
    })
}

/// Puts a socket into the XSKMAP of a program.
pub(crate) fn register(
    map: &impl MapCore,
    interface: &str,
    queue: u32,
    socket: BorrowedFd<'_>,
) -> Result<(), XskError> {
    let value = socket.as_raw_fd().to_ne_bytes();
    map.update(&queue.to_ne_bytes(), &value, MapFlags::ANY)
        .map_err(|error| map_error("register a socket with the XDP program", interface, &error))
}

/// An error of an operation on a map.
pub(crate) fn map_error(
    doing: &'static str,
    interface: &str,
    error: &libbpf_rs::Error,
) -> XskError {
    XskError::kernel(doing, interface, io::Error::other(error.to_string()))
}

/// What libbpf said last; it explains failures in text only, through one callback per process.
static LOADER_MESSAGES: Mutex<String> = Mutex::new(String::new());

/// Longest text kept: the end of a verifier log says what is wrong.
const MESSAGES_LEN_MAX: usize = 2000;

/// Collects what the loader says from now on and returns what makes an error of it.
pub(crate) fn capture_loader_messages(
    program: &'static str,
) -> impl Fn(libbpf_rs::Error) -> XskError {
    fn keep(_: PrintLevel, message: String) {
        let mut kept = LOADER_MESSAGES.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_str(&message);
        let surplus = kept.len().saturating_sub(MESSAGES_LEN_MAX);
        let cut = (surplus..).find(|&at| kept.is_char_boundary(at)).unwrap_or(0);
        kept.drain(..cut);
    }
    LOADER_MESSAGES.lock().unwrap_or_else(PoisonError::into_inner).clear();
    libbpf_rs::set_print(Some((PrintLevel::Warn, keep)));
    move |error| {
        if error.kind() == libbpf_rs::ErrorKind::PermissionDenied {
            return XskError::Permission {
                doing: "load an XDP program",
                capability: "CAP_BPF and CAP_NET_ADMIN",
            };
        }
        let messages = LOADER_MESSAGES.lock().unwrap_or_else(PoisonError::into_inner);
        let reason = format!("{error}; {}", messages.trim().replace('\n', " | "));
        XskError::Load { program, reason }
    }
}
