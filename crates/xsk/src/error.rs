//! Why a port or a program could not be set up, each in a sentence that says what to do.

use std::io;

/// An error of setting up a port or an XDP program.
///
/// None of them leaves anything behind on the interface.
#[derive(Debug, thiserror::Error)]
pub enum XskError {
    /// The process lacks a capability.
    #[error("not permitted to {doing}: run as root or give the program {capability}")]
    Permission {
        /// What was tried.
        doing: &'static str,
        /// The capability that is missing.
        capability: &'static str,
    },
    /// There is no interface of that name in this network namespace.
    #[error("interface {name} not found; interfaces here: {present}")]
    NoInterface {
        /// The name that was asked for.
        name: String,
        /// The names that exist.
        present: String,
    },
    /// The kernel was built without AF_XDP.
    #[error(
        "this kernel has no AF_XDP sockets: use a kernel with CONFIG_XDP_SOCKETS (4.18 or later)"
    )]
    NoAfXdp,
    /// The interface takes no XDP program in any mode.
    #[error(
        "interface {interface} accepts no XDP program, native ({native}) or generic ({source}): \
         use another interface, or a kernel with CONFIG_XDP_SOCKETS and CONFIG_BPF_SYSCALL"
    )]
    NoXdp {
        /// The interface.
        interface: String,
        /// The driver's answer.
        native: io::Error,
        /// The network stack's answer.
        source: io::Error,
    },
    /// The host's device cannot be had.
    #[error(
        "cannot {doing} of the TUN device {device}: {source}; load the tun driver, choose another \
             name with `device` in [host], or do without with `enable = false` there"
    )]
    Tun {
        /// The device.
        device: String,
        /// What was tried.
        doing: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// Another socket holds the queue.
    #[error(
        "queue {queue} of interface {interface} is in use: \
         stop the other program that has an AF_XDP socket on it"
    )]
    QueueBusy {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
    },
    /// The packet memory may not be locked.
    #[error(
        "the limit on locked memory is too low for {mebibytes} MiB of packet memory: \
         raise it (ulimit -l, LimitMEMLOCK=) or give the program CAP_IPC_LOCK"
    )]
    MemoryLock {
        /// Size of the packet memory.
        mebibytes: usize,
    },
    /// Another program's XDP program is on the interface.
    #[error(
        "interface {interface} already runs the XDP program {program} (id {id}), which is not \
         ours: detach it first (ip link set dev {interface} xdp off)"
    )]
    ForeignProgram {
        /// The interface.
        interface: String,
        /// The program's name.
        program: String,
        /// The program's id in the kernel.
        id: u32,
    },
    /// The kernel refused the BPF program.
    #[error("the kernel did not load the XDP program {program}: {reason}")]
    Load {
        /// The program.
        program: &'static str,
        /// What the loader said.
        reason: String,
    },
    /// Another system call failed.
    #[error("cannot {doing} on {interface}: {source}")]
    Kernel {
        /// What was tried.
        doing: &'static str,
        /// The interface.
        interface: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl XskError {
    /// The error of an interface look-up, which names the interfaces that exist.
    pub(crate) fn interface(name: &str, source: io::Error) -> XskError {
        if source.raw_os_error() == Some(libc::ENODEV) {
            let present = crate::sys::interface_names().join(", ");
            return XskError::NoInterface { name: name.to_owned(), present };
        }
        XskError::Kernel { doing: "look up the interface", interface: name.to_owned(), source }
    }

    pub(crate) fn kernel(doing: &'static str, interface: &str, source: io::Error) -> XskError {
        XskError::Kernel { doing, interface: interface.to_owned(), source }
    }
}
