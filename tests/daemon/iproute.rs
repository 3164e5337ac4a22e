//! What iproute2 says of a gateway's SAs: `ip -s xfrm state` under `peregrine exec`.

use crate::gateway::Gateway;

/// What an SA carried so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    /// Bytes, as XFRM counts them.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
}

/// What the SA of this SPI carried; panics with the listing if it is not there.
#[track_caller]
pub fn carried(gateway: &Gateway, spi: u64) -> Carried {
    let out = gateway.ip("-s xfrm state");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let block = text.split("\nsrc ").find(|block| block.contains(&format!("{spi:#010x}")));
    let block = block.unwrap_or_else(|| panic!("no SPI {spi:#x} in {text}"));
    let current = block.split("lifetime current:").nth(1).expect("its use");
    let line = current.lines().nth(1).expect("a line").trim();
    let number = |text: &str| text.split('(').next().and_then(|digits| digits.parse().ok());
    let numbers = line.split_once(", ").and_then(|(bytes, packets)| {
        Some(Carried { bytes: number(bytes)?, packets: number(packets)? })
    });
    numbers.unwrap_or_else(|| panic!("no bytes and packets in {line:?}"))
}
