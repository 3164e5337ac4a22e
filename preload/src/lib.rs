//! The XFRM shim: gives a program's `NETLINK_XFRM` sockets to Peregrine instead of the kernel.
//!
//! Loaded by `LD_PRELOAD`, it stands in front of the libc calls that make and use sockets. A socket
//! of family `AF_NETLINK`, protocol `NETLINK_XFRM`, becomes a connection to the gateway's Unix
//! socket (`PEREGRINE_XFRM`); its descriptor is real, so `poll`, `select`, `epoll` and `ioctl` need
//! nothing from us. Every other descriptor costs one look at a table.
//!
//! ```text
//!   program ── socket, bind, send, recv ──▶ hook ──▶ libc ──▶ kernel
//!                                            │ descriptor in the table?
//!                                            ▼
//!                                       connection ── SOCK_SEQPACKET ──▶ the gateway's XFRM server
//! ```
//!
//! A datagram of the program is one write, byte for byte; what the server writes is what the
//! program reads. Beside that the server only learns what a netlink socket holds on its own side:
//! the bound port, the groups and the socket options (`frame`).
//!
//! It does not look into messages, except to know whether to wait for an answer (`request`). It
//! does not follow a descriptor through `exec` without close-on-exec, through a Unix socket, or
//! into calls that libc makes inside itself (`fclose`), and it does not stand in front of
//! `io_uring`; no program that speaks XFRM needs these. Static programs and
//! set-user-ID programs do not load it.
//!
//! Hooks allocate nothing and hold no lock, but for a socket's while they give it another connection, which a
//! thread that is cancelled, or that `fork` did not copy, does not keep. They keep errno where they
//! succeed, and have no destructors, so that a thread may be cancelled inside them (`C-unwind`).

mod address;
mod answer;
mod connection;
mod errno;
mod frame;
mod hook;
mod next;
mod request;
mod table;
