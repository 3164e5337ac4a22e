//! What a daemon is told about a tunnel: one tree, written as `swanctl.conf` or as VICI message.
//!
//! The two differ in little: a list is comma-separated text in the file and a list on the socket,
//! and a secret names its owners one by one in the file.

use std::fmt::Write as _;

use super::Auth;
use crate::vici::{Element, Message};

/// One IKE connection and its children.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    /// Unique within a daemon.
    pub name: String,
    /// This gateway.
    pub local: Party,
    /// The other one.
    pub remote: Party,
    /// The other daemon's port, where it is not 500.
    pub remote_port: Option<u16>,
    /// IKE proposals, as strongSwan writes them.
    pub proposals: String,
    /// Several IKE SAs between two identities are several tunnels, not a peer that restarted.
    pub shares_identities: bool,
    /// Encapsulate in UDP even where no NAT is seen.
    pub encap: bool,
    /// How the two know each other. Certificates are files that are named after the identity.
    pub auth: Auth,
    /// The tunnels.
    pub children: Vec<Child>,
}

/// One end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Party {
    /// An address, or `%any`.
    pub address: String,
    /// The identity that the pre-shared key belongs to.
    pub id: String,
}

/// One CHILD_SA.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Child {
    /// Unique within the connection.
    pub name: String,
    /// What this gateway protects.
    pub local_ts: String,
    /// What the other protects.
    pub remote_ts: String,
    /// ESP proposals, as strongSwan writes them.
    pub esp_proposals: String,
    /// More keys and values, in order.
    pub extra: Vec<(&'static str, String)>,
}

/// A pre-shared key and whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Secret {
    /// Unique within a daemon.
    pub name: String,
    /// The identities.
    pub owners: Vec<String>,
    /// The key.
    pub data: String,
}

impl Connection {
    /// The same as the other gateway sees it. Both daemons of a pair listen at the same port.
    pub fn mirrored(&self) -> Connection {
        let child = |child: &Child| Child {
            local_ts: child.remote_ts.clone(),
            remote_ts: child.local_ts.clone(),
            ..child.clone()
        };
        Connection {
            local: self.remote.clone(),
            remote: self.local.clone(),
            children: self.children.iter().map(child).collect(),
            ..self.clone()
        }
    }

    /// The section under the connection's name.
    pub fn section(&self) -> Message {
        let mut section = Message::new()
            .list("local_addrs", [&self.local.address])
            .list("remote_addrs", [&self.remote.address]);
        if let Some(port) = self.remote_port {
            section = section.value("remote_port", port.to_string());
        }
        let children = self
            .children
            .iter()
            .fold(Message::new(), |children, child| children.section(&child.name, child.section()));
        section = section
            .section("local", self.local.section(self.auth, true))
            .section("remote", self.remote.section(self.auth, false))
            .section("children", children)
            .value("version", "2")
            .value("mobike", "no")
            .value("reauth_time", "0");
        if self.encap {
            section = section.value("encap", "yes");
        }
        if self.shares_identities {
            section = section.value("unique", "never");
        }
        section.list("proposals", [&self.proposals])
    }

    /// The VICI message of `load-conn`.
    pub fn message(&self) -> Message {
        Message::new().section(&self.name, self.section())
    }
}

impl Party {
    fn section(&self, auth: Auth, is_own: bool) -> Message {
        let section = match (auth, is_own) {
            (Auth::Psk, _) => Message::new().value("auth", "psk"),
            (Auth::Cert, false) => Message::new().value("auth", "pubkey"),
            (Auth::Cert, true) => {
                let file = format!("{}.pem", self.id);
                Message::new().value("auth", "pubkey").list("certs", [&file])
            }
        };
        section.value("id", &self.id)
    }
}

impl Child {
    fn section(&self) -> Message {
        let section = Message::new()
            .list("local_ts", [&self.local_ts])
            .list("remote_ts", [&self.remote_ts])
            .list("esp_proposals", [&self.esp_proposals])
            .value("mode", "tunnel")
            .value("policies_fwd_out", "yes");
        self.extra.iter().fold(section, |section, (name, value)| section.value(name, value))
    }
}

impl Secret {
    /// The VICI message of `load-shared`.
    pub fn message(&self) -> Message {
        Message::new()
            .value("id", &self.name)
            .value("type", "IKE")
            .value("data", &self.data)
            .list("owners", &self.owners)
    }

    fn section(&self) -> Message {
        let numbered = self.owners.iter().zip(1..);
        numbered
            .fold(Message::new(), |section, (owner, number)| {
                section.value(&format!("id-{number}"), owner)
            })
            .value("secret", &self.data)
    }
}

/// `swanctl.conf` as it grows.
#[derive(Debug, Default)]
pub struct Text(String);

impl Text {
    /// A file that begins with these lines of comment.
    pub fn new(comment: &str) -> Text {
        Text(comment.lines().map(|line| format!("# {line}\n")).collect())
    }

    /// The file.
    pub fn finish(self) -> String {
        self.0
    }

    /// A `connections` section. A file may have several; they add up.
    pub fn connections<'a>(&mut self, connections: impl IntoIterator<Item = &'a Connection>) {
        self.0.push_str("connections {\n");
        for connection in connections {
            self.section(&connection.name, &connection.section(), 1);
        }
        self.0.push_str("}\n");
    }

    /// A `secrets` section.
    pub fn secrets<'a>(&mut self, secrets: impl IntoIterator<Item = &'a Secret>) {
        self.0.push_str("secrets {\n");
        for secret in secrets {
            self.section(&format!("ike-{}", secret.name), &secret.section(), 1);
        }
        self.0.push_str("}\n");
    }

    fn section(&mut self, name: &str, section: &Message, depth: usize) {
        let indent = "  ".repeat(depth);
        let _ = writeln!(self.0, "{indent}{name} {{");
        for (name, element) in section.elements() {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let value = match element {
                Element::Section(inner) => {
                    self.section(name, inner, depth + 1);
                    continue;
                }
                Element::Value(value) => text(value),
                Element::List(items) => {
                    items.iter().map(|item| text(item)).collect::<Vec<_>>().join(", ")
                }
            };
            let value = if name == "secret" { quoted(&value) } else { value };
            let _ = writeln!(self.0, "{indent}  {name} = {value}");
        }
        let _ = writeln!(self.0, "{indent}}}");
    }
}

/// A value that may hold anything but a line break.
fn quoted(value: &str) -> String {
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection() -> Connection {
        Connection {
            name: "tunnel1".into(),
            local: Party { address: "123.0.0.1".into(), id: "ipsecgw-0".into() },
            remote: Party { address: "123.0.0.2".into(), id: "ipsecgw-1".into() },
            remote_port: Some(10500),
            proposals: "aes256-sha256-modp2048".into(),
            shares_identities: false,
            encap: false,
            auth: Auth::Psk,
            children: vec![Child {
                name: "tnl1".into(),
                local_ts: "16.0.0.0/8".into(),
                remote_ts: "48.0.0.0/24".into(),
                esp_proposals: "aes256gcm16-esn".into(),
                extra: vec![("replay_window", "128".into())],
            }],
        }
    }

    #[test]
    fn a_connection_as_text_and_as_message() {
        let mut text = Text::new("Two\nlines.");
        text.connections([&connection()]);
        assert_eq!(
            text.finish(),
            "# Two\n# lines.\nconnections {\n  tunnel1 {\n    local_addrs = 123.0.0.1\n    \
             remote_addrs = 123.0.0.2\n    remote_port = 10500\n    local {\n      auth = psk\n      \
             id = ipsecgw-0\n    }\n    remote {\n      auth = psk\n      id = ipsecgw-1\n    }\n    \
             children {\n      tnl1 {\n        local_ts = 16.0.0.0/8\n        \
             remote_ts = 48.0.0.0/24\n        esp_proposals = aes256gcm16-esn\n        \
             mode = tunnel\n        policies_fwd_out = yes\n        replay_window = 128\n      }\n    \
             }\n    version = 2\n    mobike = no\n    reauth_time = 0\n    \
             proposals = aes256-sha256-modp2048\n  }\n}\n"
        );
        let message = connection().message();
        let section = message.part("tunnel1").unwrap();
        assert_eq!(section.part("remote").unwrap().text("id"), Some("ipsecgw-1"));
        let proposals = Element::List(vec![b"aes256-sha256-modp2048".to_vec()]);
        assert!(section.elements().any(|element| element == ("proposals", &proposals)));
    }

    #[test]
    fn with_certificates_each_end_shows_its_own() {
        let mut text = Text::new("");
        text.connections([&Connection { auth: Auth::Cert, ..connection() }.mirrored()]);
        let text = text.finish();
        let ends = "local {\n      auth = pubkey\n      certs = ipsecgw-1.pem\n      \
                    id = ipsecgw-1\n    }\n    remote {\n      auth = pubkey\n      \
                    id = ipsecgw-0\n    }\n";
        assert!(text.contains(ends), "{text}");
    }

    #[test]
    fn the_mirror_swaps_both_ends() {
        let mirrored = connection().mirrored();
        assert_eq!(
            (&mirrored.local.id[..], &mirrored.remote.address[..]),
            ("ipsecgw-1", "123.0.0.1")
        );
        assert_eq!(mirrored.children[0].local_ts, "48.0.0.0/24");
        assert_eq!(mirrored.mirrored(), connection());
    }

    #[test]
    fn secrets_are_quoted() {
        let secret = Secret {
            name: "tnl1".into(),
            owners: vec!["ipsecgw-0".into(), "ipsecgw-1".into()],
            data: "a \"b\\ #c".into(),
        };
        let mut text = Text::new("");
        text.secrets([&secret]);
        assert_eq!(
            text.finish(),
            "secrets {\n  ike-tnl1 {\n    id-1 = ipsecgw-0\n    id-2 = ipsecgw-1\n    \
             secret = \"a \\\"b\\\\ #c\"\n  }\n}\n"
        );
        assert_eq!(secret.message().text("data"), Some("a \"b\\ #c"));
    }
}
