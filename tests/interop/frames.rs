//! The frames that a peer's network card saw, from the file that QEMU writes, and how to repeat one.

use std::path::Path;

use lab::topology::Namespace;

/// Bytes before the first frame of a file, and before each frame.
const FILE_HEADER_LEN: usize = 24;
const FRAME_HEADER_LEN: usize = 16;
/// Bytes of an Ethernet header.
const ETHERNET_LEN: usize = 14;
/// The protocol number of ESP, and of UDP, which may carry it.
const ESP: u8 = 50;
const UDP: u8 = 17;
/// The port of UDP encapsulation (RFC 3948), as it lies in a packet.
const NAT_T: [u8; 2] = 4500u16.to_be_bytes();
const UDP_LEN: usize = 8;

/// Every frame of a file, in order. The last is left out if it is not complete yet.
pub fn read(path: &Path) -> Result<Vec<Vec<u8>>, String> {
    let file = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut rest = file.get(FILE_HEADER_LEN..).unwrap_or_default();
    let mut frames = Vec::new();
    while let Some((header, after)) = rest.split_at_checked(FRAME_HEADER_LEN) {
        // Seconds, microseconds, bytes in the file, bytes on the wire.
        let length = header[8..12].try_into().map(u32::from_le_bytes).unwrap_or_default() as usize;
        let Some((frame, next)) = after.split_at_checked(length) else { break };
        frames.push(frame.to_vec());
        rest = next;
    }
    Ok(frames)
}

/// Protocol and payload of an IP frame without options.
fn payload(frame: &[u8]) -> Option<(u8, &[u8])> {
    match frame.get(12..ETHERNET_LEN)? {
        [0x08, 0x00] => Some((*frame.get(ETHERNET_LEN + 9)?, frame.get(ETHERNET_LEN + 20..)?)),
        [0x86, 0xdd] => Some((*frame.get(ETHERNET_LEN + 6)?, frame.get(ETHERNET_LEN + 40..)?)),
        _ => None,
    }
}

/// The SPI, if a frame carries ESP, in UDP or not.
pub fn spi(frame: &[u8]) -> Option<u32> {
    let esp = match payload(frame)? {
        (ESP, esp) => esp,
        (UDP, udp) if udp.get(..2)? == NAT_T || udp.get(2..4)? == NAT_T => udp.get(UDP_LEN..)?,
        _ => return None,
    };
    let spi = u32::from_be_bytes(esp.get(..4)?.try_into().ok()?);
    // Zero there marks IKE (RFC 3948 section 2.2).
    (spi != 0).then_some(spi)
}

/// Whether a frame shows an address of the networks that are to be protected.
pub fn is_inner(frame: &[u8]) -> bool {
    let at = |from: usize, length: usize| frame.get(from..from + length).unwrap_or_default();
    match frame.get(12..ETHERNET_LEN) {
        Some([0x08, 0x00]) => [26, 30].iter().any(|&from| matches!(at(from, 1), [16] | [48])),
        Some([0x86, 0xdd]) => {
            [22, 38].iter().any(|&from| matches!(at(from, 2), [0xfd, 0x16] | [0xfd, 0x48]))
        }
        _ => false,
    }
}

/// Whether a frame shows what the ends of transport mode send each other in a test: echoes, TCP, and
/// UDP but that of IKE.
pub fn is_clear(frame: &[u8]) -> bool {
    const IKE: [u8; 2] = 500u16.to_be_bytes();
    match payload(frame) {
        Some((1 | 6, _)) => true,
        Some((58, icmp)) => matches!(icmp.first(), Some(128 | 129)),
        Some((UDP, udp)) => ![IKE, NAT_T].iter().any(|port| udp.get(..2) == Some(port)),
        _ => false,
    }
}

/// Sends a frame once more, on an interface of the bridge.
pub fn repeat(wire: &Namespace, interface: &str, frame: &[u8]) -> Result<(), String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/inject.py");
    let script = script.to_string_lossy();
    let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
    let sent = wire.run("/usr/bin/python3", &[&script, interface, &hex]);
    sent.map(|_| ()).map_err(|error| error.to_string())
}
