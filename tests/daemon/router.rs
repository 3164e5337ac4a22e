//! What the router between the gateways can be: a NAT, and one that forgets its mappings.

use super::pair::{Pair, Side};

/// nftables' table of the NAT.
const TABLE: &str = "peregrine_nat";

/// The port that the NAT gives to the west end's UDP 4500, the first time.
pub const FIRST_PORT: u16 = 40_001;
/// The port that it gives after [`Pair::rebind`].
pub const SECOND_PORT: u16 = 40_002;

impl Pair {
    /// Puts the west end behind the router's address on the east end's network.
    pub fn translate(&self) {
        self.masquerade(FIRST_PORT);
    }

    /// The router forgets what it translated and gives the west end another port, as one does that
    /// was restarted.
    pub fn rebind(&self) {
        self.masquerade(SECOND_PORT);
        let flush = self.wan.run("conntrack", &["-D", "-p", "udp"]);
        flush.unwrap_or_else(|e| panic!("{e}"));
    }

    fn masquerade(&self, port: u16) {
        let rules = format!(
            "table ip {TABLE}\ndelete table ip {TABLE}\ntable ip {TABLE} {{\n\
             chain post {{\ntype nat hook postrouting priority srcnat;\n\
             oifname \"east\" ip saddr 192.0.2.0/24 udp sport 4500 masquerade to :{port}\n\
             oifname \"east\" ip saddr 192.0.2.0/24 masquerade\n}}\n}}\n"
        );
        let command = self.wan.command("nft");
        let done = lab::topology::batch(command, &["-f", "-"], &[rules]);
        done.unwrap_or_else(|e| panic!("{e}"));
    }

    /// The address that the east end sees instead of the west end's.
    pub fn translated_address(&self) -> &'static str {
        "198.51.100.1"
    }

    /// Gives an end another address in the place of its own.
    pub fn move_to(&self, side: Side, address: &str) {
        let namespace = &self.end(side).namespace;
        namespace.sysctl("net.ipv4.conf.all.promote_secondaries", "1").expect("a setting");
        let lines = [
            format!("address add {address}/24 dev black0"),
            format!("address del {}/24 dev black0", side.outer(false)),
        ];
        namespace.ip_batch(&lines).unwrap_or_else(|e| panic!("{e}"));
    }
}
