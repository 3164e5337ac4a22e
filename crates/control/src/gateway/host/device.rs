//! A device by which the host's own packets come: its settings in the kernel, its MTU, and its end.
//!
//! What leads packets to it is not known here. Its queues are the workers' (`xsk::TunPort`).

use std::io;
use std::path::Path;

use rustix::io::Errno;
use tracing::warn;

use super::super::rtnetlink::Writer;
use crate::config::DEVICE_MTU_MIN;
use crate::route_feed::Kernel;

/// What a tunnel adds at most: IPv6 and UDP headers.
const OUTER_BYTES_MAX: u32 = 40 + 8;

/// A device that may have been made, and is not needed.
pub fn remove_device(device: &str) {
    let removed = Writer::open().and_then(|mut writer| {
        let index = writer.index_of(device)?;
        writer.delete_link(index)
    });
    if let Err(error) = removed
        && Errno::from_io_error(&error) != Some(Errno::NODEV)
    {
        warn!(%error, device, "the host's device was not removed");
    }
}

/// What fits into a tunnel on the port with the smallest MTU; no more than `max`, which fits into a frame: a
/// port's MTU may grow while the gateway runs.
pub fn mtu_of(configured: Option<u32>, max: u32, ports: &[u32], kernel: &Kernel) -> u32 {
    let smallest = ports.iter().filter_map(|port| Some(kernel.link(*port)?.mtu)).min();
    let room = smallest.unwrap_or(1500).saturating_sub(OUTER_BYTES_MAX) as usize;
    let fits = wire::esp::payload_len_max(room) as u32;
    configured.unwrap_or(fits.max(DEVICE_MTU_MIN).min(max))
}

/// The kernel's settings of a device that has a side without a wire: it trusts what the data plane
/// writes, makes up no addresses, asks no routers, and forwards nothing from there.
pub fn settle_device(device: &str) -> io::Result<()> {
    let ipv4 = [
        ("rp_filter", "0"),
        ("disable_policy", "1"),
        ("disable_xfrm", "1"),
        ("forwarding", "0"),
        ("send_redirects", "0"),
        ("accept_redirects", "0"),
    ];
    // `addr_gen_mode` 1: no link-local address, and so no duplicate address detection.
    let ipv6 = [
        ("addr_gen_mode", "1"),
        ("accept_ra", "0"),
        ("accept_redirects", "0"),
        ("disable_policy", "1"),
        ("forwarding", "0"),
    ];
    for (family, settings) in [("ipv4", &ipv4[..]), ("ipv6", &ipv6[..])] {
        let directory = Path::new("/proc/sys/net").join(family).join("conf").join(device);
        if family == "ipv6" && !directory.exists() {
            continue;
        }
        for (name, value) in settings {
            let path = directory.join(name);
            std::fs::write(&path, value).map_err(|error| {
                io::Error::new(error.kind(), format!("{}: {error}", path.display()))
            })?;
        }
    }
    Ok(())
}
