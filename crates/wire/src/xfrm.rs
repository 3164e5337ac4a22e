//! Bytes of the XFRM netlink protocol: headers, messages, attributes, both directions.
//!
//! The layout is the kernel's user-space ABI (`linux/xfrm.h`, `linux/netlink.h`): native-endian
//! structs with the C compiler's padding made explicit, so that every struct is plain bytes.
//! Numbers go up to the newest kernel known here (`XFRMA_SA_DIR`, `XFRMA_NAT_KEEPALIVE_INTERVAL`,
//! `XFRMA_SA_PCPU`, `XFRMA_IPTFS_*`), whatever the installed headers say.
//!
//! This module does not know what a message *means*: no defaults, no checks of values, no tables.
//! That is the XFRM server's work.

pub mod address;
pub mod algorithm;
pub mod attribute;
pub mod builder;
pub mod event;
pub mod lifetime;
pub mod message;
pub mod netlink;
pub mod number;
pub mod policy;
pub mod replay;
pub mod sa;
pub mod shim;
pub mod statistics;

pub use address::{Address, Be16, Be32, Id, Mark, Selector};
pub use attribute::{Attribute, Attributes};
pub use builder::Builder;
pub use message::Message;
pub use netlink::{Datagram, Header};
