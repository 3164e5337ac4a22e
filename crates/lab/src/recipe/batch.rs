//! The text that `ip -batch` reads on each gateway: addresses, routes, SAs, policies.
//!
//! The same commands that an operator would type, so a run can be repeated by hand. XFRM lines go
//! through the gateway's XFRM interface, the others to the kernel.

use std::fmt::Write as _;
use std::net::IpAddr;

use super::{Net, Recipe, Side, Tunnel, test_key};

/// Priority of the tunnels' policies. The value is free; a bypass with a smaller one goes first.
const POLICY_PRIORITY: u32 = 1000;
/// The salt that RFC 4106 §4 appends to the key.
const SALT_BYTES: usize = 4;

impl Recipe {
    /// Addresses and routes of one gateway for `tunnels` tunnels, for `ip -batch`. The links have
    /// to exist and to be up.
    pub fn network_batch(&self, side: Side, tunnels: u32) -> String {
        let (site, peer) = (self.site(side), self.site(side.peer()));
        let mut text = String::new();
        line(&mut text, format_args!("address add {} dev {}", site.clear, site.clear_link));
        let endpoints = match side {
            Side::Near => 1..=self.pairs(),
            Side::Far => 1..=tunnels.max(self.pairs()),
        };
        let links: Vec<&str> = site.black_links().collect();
        for tunnel in endpoints.filter_map(|number| self.tunnel(number)) {
            let (endpoint, link) = (tunnel.endpoint(side), links[tunnel.pair as usize]);
            let prefix = site.endpoint.prefix();
            line(&mut text, format_args!("address add {endpoint}/{prefix} dev {link}"));
        }
        for pair in 0..self.pairs() {
            let (Some(own), Some(beyond)) = (site.route_of(pair), peer.route_of(pair)) else {
                continue;
            };
            line(&mut text, format_args!("route add {own} via {}", site.generator.address()));
            let router = self.router.as_ref().and_then(|router| router.address(side, pair));
            let via = router.unwrap_or(peer.endpoint).address();
            if let Some(ends) = router.and(peer.endpoint.nth(pair)) {
                line(&mut text, format_args!("route add {} via {via}", ends.network()));
            }
            // Clear packets need a route to be forwarded at all; the policies catch them on the
            // way. IPv6 packets cannot take a route through an IPv4 neighbour without `inet6`, and
            // the other way round.
            let family = match (beyond.is_ipv6(), via.is_ipv6()) {
                (false, true) => "inet6 ",
                (true, false) => "inet ",
                _ => "",
            };
            line(&mut text, format_args!("route add {beyond} via {family}{via}"));
        }
        text
    }

    /// SAs and policies of one gateway for `tunnels` tunnels, for `ip -batch`.
    pub fn xfrm_batch(&self, side: Side, tunnels: u32) -> String {
        let mut text = String::new();
        for tunnel in (1..=tunnels).filter_map(|number| self.tunnel(number)) {
            let (out, back) = (tunnel.endpoint(side), tunnel.endpoint(side.peer()));
            self.state(&mut text, &tunnel, out, back, tunnel.spi_from(side));
            self.state(&mut text, &tunnel, back, out, tunnel.spi_from(side.peer()));
            let (own, other) = (tunnel.selector(side), tunnel.selector(side.peer()));
            policy(&mut text, &tunnel, (own, other), "out", (out, back));
            policy(&mut text, &tunnel, (other, own), "in", (back, out));
            policy(&mut text, &tunnel, (other, own), "fwd", (back, out));
        }
        text
    }

    fn state(&self, text: &mut String, tunnel: &Tunnel, src: IpAddr, dst: IpAddr, spi: u32) {
        let esp = &self.esp;
        let key_bytes = usize::from(esp.key_bits / 8) + SALT_BYTES;
        let mut key = String::with_capacity(2 * key_bytes);
        for byte in test_key(self.seed, spi, key_bytes) {
            let _ = write!(key, "{byte:02x}");
        }
        // Without `af-unspec` an SA carries only packets of its own family.
        let mixed = tunnel.near_selector.is_ipv6() != src.is_ipv6();
        let flags = match (esp.esn, mixed) {
            (false, false) => "",
            (true, false) => " flag esn",
            (false, true) => " flag af-unspec",
            (true, true) => " flag esn af-unspec",
        };
        line(
            text,
            format_args!(
                "xfrm state add src {src} dst {dst} proto esp spi 0x{spi:08x} reqid {} mode tunnel \
                 replay-window {}{flags} aead {} 0x{key} {}",
                tunnel.reqid, esp.replay_window, esp.algorithm, esp.icv_bits
            ),
        );
    }
}

impl Tunnel {
    /// The endpoint on one side.
    pub fn endpoint(&self, side: Side) -> IpAddr {
        match side {
            Side::Near => self.near_endpoint,
            Side::Far => self.far_endpoint,
        }
    }

    /// The protected network on one side.
    pub fn selector(&self, side: Side) -> Net {
        match side {
            Side::Near => self.near_selector,
            Side::Far => self.far_selector,
        }
    }

    /// The SPI of the SA on which `side` sends.
    pub fn spi_from(&self, side: Side) -> u32 {
        match side {
            Side::Near => self.spi_towards_far,
            Side::Far => self.spi_towards_near,
        }
    }
}

fn policy(
    text: &mut String,
    tunnel: &Tunnel,
    selector: (Net, Net),
    direction: &str,
    template: (IpAddr, IpAddr),
) {
    line(
        text,
        format_args!(
            "xfrm policy add src {} dst {} dir {direction} priority {POLICY_PRIORITY} \
             tmpl src {} dst {} proto esp reqid {} mode tunnel",
            selector.0, selector.1, template.0, template.1, tunnel.reqid
        ),
    );
}

/// Writing into a String cannot fail.
fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    let _ = writeln!(text, "{arguments}");
}
