//! `strongswan.conf` for a daemon that has many tunnels and shares its machine with others.

use std::path::PathBuf;

/// What one daemon needs to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Its control socket; daemons of one machine have one each.
    pub socket: PathBuf,
    /// Its log; standard error where there is none.
    pub log: Option<PathBuf>,
    /// How much it says: 0 is a line or two per tunnel, 1 some twenty.
    pub log_level: u8,
    /// Its IKE ports, where they are not 500 and 4500.
    pub ports: Option<(u16, u16)>,
    /// Tunnels it is to carry.
    pub tunnels: u32,
}

/// Only what is needed: other plugins bring sockets in /run that two daemons would fight for.
const PLUGINS: &str = "random nonce openssl aes gcm sha1 sha2 hmac kdf pem pkcs1 x509 pubkey \
                       constraints kernel-netlink socket-default vici";
/// Handshakes wait in a thread each when they are initiated over the control socket; the daemon
/// itself needs five or so.
const THREADS: u32 = 32;
/// A table of IKE SAs below this size gains nothing.
const TABLE_MIN: u32 = 256;
/// Beyond this, buckets of a few SAs are cheaper than the memory.
const TABLE_MAX: u32 = 65_536;

impl Settings {
    /// The file.
    pub fn text(&self) -> String {
        let table = self.tunnels.next_power_of_two().clamp(TABLE_MIN, TABLE_MAX);
        let ports = self.ports.map_or(String::new(), |(port, nat)| {
            format!(
                "  # Several daemons share this gateway, and one port 500 is there.\n  \
                 port = {port}\n  port_nat_t = {nat}\n"
            )
        });
        let log = self.log.as_ref().map_or(String::new(), |path| {
            format!(
                "  filelog {{\n    lab {{\n      path = {}\n      default = {}\n      \
                 time_format = %H:%M:%S\n      flush_line = yes\n    }}\n  }}\n",
                path.display(),
                self.log_level
            )
        });
        let socket = self.socket.display();
        format!(
            "charon {{\n  load = {PLUGINS}\n{ports}  \
             # Routes are the address plan's; strongSwan's own would bypass it.\n  \
             install_routes = no\n  install_virtual_ip = no\n  \
             # A mass start looks like an attack to these.\n  \
             dos_protection = no\n  init_limit_half_open = 0\n  init_limit_job_load = 0\n  \
             # Without a hash table every message is looked up in one list of all IKE SAs.\n  \
             ikesa_table_size = {table}\n  ikesa_table_segments = 16\n  threads = {THREADS}\n{log}  \
             plugins {{\n    vici {{\n      socket = unix://{socket}\n    }}\n  }}\n}}\n\
             swanctl {{\n  load = random openssl pem pkcs1 x509 pubkey\n  \
             socket = unix://{socket}\n}}\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_grows_with_the_tunnels_and_ports_are_named_only_when_shared() {
        let mut settings = Settings {
            socket: "/run/x.vici".into(),
            log: None,
            log_level: 0,
            ports: None,
            tunnels: 1,
        };
        let text = settings.text();
        assert!(text.contains("ikesa_table_size = 256\n"), "{text}");
        assert!(!text.contains("port =") && !text.contains("filelog"), "{text}");
        assert_eq!(text.matches('{').count(), text.matches('}').count());
        settings.ports = Some((10_501, 14_501));
        settings.tunnels = 2001;
        settings.log = Some("/tmp/a.log".into());
        let text = settings.text();
        assert!(text.contains("port = 10501\n  port_nat_t = 14501\n"), "{text}");
        assert!(text.contains("ikesa_table_size = 2048\n"), "{text}");
        assert!(text.contains("path = /tmp/a.log\n      default = 0\n"), "{text}");
        assert_eq!(text.matches('{').count(), text.matches('}').count());
    }
}
