//! Pairs of SAs that are typed in on both sides, without a daemon.

use crate::bench::{OUTER, hosts, networks};

/// One pair of SAs and the traffic it protects.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// Names its networks, its SPIs and its key.
    pub number: usize,
    /// 4 or 6.
    pub inner: u8,
    /// 4 or 6.
    pub outer: u8,
    /// 128, 192 or 256.
    pub key_bits: usize,
    /// Extended sequence numbers.
    pub esn: bool,
}

/// Which side types something in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Peregrine.
    Gateway,
    /// The peer.
    Peer,
}

impl Pair {
    /// Every combination of families, keys of 128 and 256 bits, and ESN.
    pub fn all() -> Vec<Pair> {
        let mut pairs = Vec::new();
        for inner in [4, 6] {
            for outer in [4, 6] {
                for key_bits in [128, 256] {
                    for esn in [false, true] {
                        let number = pairs.len() + 1;
                        pairs.push(Pair { number, inner, outer, key_bits, esn });
                    }
                }
            }
        }
        pairs
    }

    /// What tells it from others.
    pub fn name(&self) -> String {
        let esn = if self.esn { "ESN" } else { "32-bit numbers" };
        format!("IPv{} in IPv{}, AES-GCM-{}, {esn}", self.inner, self.outer, self.key_bits)
    }

    /// Address of a host behind the gateway, and of the peer, inside the tunnel.
    pub fn ends(&self) -> (String, String) {
        let family = usize::from(self.inner == 6);
        (hosts("16", self.number)[family].clone(), hosts("48", self.number)[family].clone())
    }

    /// The SPI of what the gateway sends.
    pub fn spi_to_peer(&self) -> u32 {
        0x1000 + self.number as u32
    }

    /// The SPI of what the gateway receives.
    pub fn spi_to_gateway(&self) -> u32 {
        0x2000 + self.number as u32
    }

    /// Key and salt in hexadecimal, different for every pair and direction.
    fn key(&self, spi: u32) -> String {
        let byte = |at: usize| (self.number * 37 + spi as usize / 0x1000 * 101 + at * 7) & 0xff;
        (0..self.key_bits / 8 + 4).map(|at| format!("{:02x}", byte(at))).collect()
    }

    /// What one side feeds to `ip -batch`.
    pub fn lines(&self, side: Side) -> Vec<String> {
        let [gateway, peer] = OUTER[usize::from(self.outer == 6)];
        let family = usize::from(self.inner == 6);
        let (red, far) =
            (&networks("16", self.number)[family], &networks("48", self.number)[family]);
        let replay = if self.esn { "replay-window 128 flag esn" } else { "replay-window 32 flag" };
        let state = |src: &str, dst: &str, spi: u32| {
            format!(
                "xfrm state add src {src} dst {dst} proto esp spi {spi:#x} reqid {} mode tunnel \
                 {replay} af-unspec aead rfc4106(gcm(aes)) 0x{} 128",
                self.number,
                self.key(spi)
            )
        };
        let policy = |from: &str, to: &str, direction: &str, src: &str, dst: &str| {
            format!(
                "xfrm policy add src {from} dst {to} dir {direction} \
                 tmpl src {src} dst {dst} proto esp reqid {} mode tunnel",
                self.number
            )
        };
        let mut lines = vec![
            state(gateway, peer, self.spi_to_peer()),
            state(peer, gateway, self.spi_to_gateway()),
        ];
        let (out, back) = match side {
            Side::Gateway => ((red, far, gateway, peer), (far, red, peer, gateway)),
            Side::Peer => ((far, red, peer, gateway), (red, far, gateway, peer)),
        };
        lines.push(policy(out.0, out.1, "out", out.2, out.3));
        for direction in ["in", "fwd"] {
            lines.push(policy(back.0, back.1, direction, back.2, back.3));
        }
        lines
    }
}
