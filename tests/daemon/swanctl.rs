//! swanctl.conf, as the tests write it: one connection between the two ends of a pair.

use std::fmt::Write;

use super::pair::Side;

/// One end's configuration of one connection.
#[derive(Clone, Debug)]
pub struct Connection {
    side: Side,
    here: String,
    there: String,
    ike: String,
    local: String,
    remote: String,
    children: String,
    pools: String,
}

impl Connection {
    /// A connection over IPv4 or IPv6 between the ends' outer addresses, with a shared secret.
    pub fn new(side: Side, v6: bool) -> Connection {
        Connection {
            side,
            here: format!("local_addrs = {}\n", side.outer(v6)),
            there: format!("remote_addrs = {}\n", side.other().outer(v6)),
            ike: "proposals = aes256gcm16-prfsha256-x25519\n".to_owned(),
            local: "auth = psk\n".to_owned(),
            remote: "auth = psk\n".to_owned(),
            children: String::new(),
            pools: String::new(),
        }
    }

    /// The end that it is for.
    pub fn side(&self) -> Side {
        self.side
    }

    /// From whatever address this end has.
    pub fn at_any_address(mut self) -> Connection {
        self.here.clear();
        self
    }

    /// To or from a peer at whatever address.
    pub fn anywhere(mut self) -> Connection {
        self.there.clear();
        self
    }

    /// More settings of the connection.
    pub fn ike(mut self, lines: &str) -> Connection {
        let _ = writeln!(self.ike, "{lines}");
        self
    }

    /// Authenticates with certificates instead.
    pub fn certificates(mut self) -> Connection {
        self.local = format!("auth = pubkey\ncerts = {}.pem\n", self.side.id());
        self.remote = "auth = pubkey\n".to_owned();
        self
    }

    /// A child between the networks of number `n`, IPv4 or IPv6, with more settings.
    pub fn child(self, name: &str, n: u8, v6: bool, lines: &str) -> Connection {
        let (here, there) = (self.side.network(n, v6), self.side.other().network(n, v6));
        self.child_between(name, &here, &there, lines)
    }

    /// A child with traffic selectors of its own.
    pub fn child_between(mut self, name: &str, here: &str, there: &str, lines: &str) -> Connection {
        let _ = writeln!(
            self.children,
            "{name} {{\nlocal_ts = {here}\nremote_ts = {there}\n\
             esp_proposals = aes256gcm16-esn\n{lines}\n}}"
        );
        self
    }

    /// A section beside the connection, `pools` for one.
    pub fn beside(mut self, section: &str) -> Connection {
        let _ = writeln!(self.pools, "{section}");
        self
    }

    /// The file.
    pub fn text(&self) -> String {
        let other = self.side.other();
        format!(
            "connections {{\nsite {{\nversion = 2\n{}{}{}\
             local {{\n{}id = {}\n}}\nremote {{\n{}id = {}\n}}\nchildren {{\n{}}}\n}}\n}}\n\
             secrets {{\nike {{\nsecret = \"not the one of any other test\"\n}}\n}}\n{}",
            self.here,
            self.there,
            self.ike,
            self.local,
            self.side.id(),
            self.remote,
            other.id(),
            self.children,
            self.pools
        )
    }
}
