//! `swanctl --list-sas` beside `peregrine show sa`: the same SAs, as their two owners see them.
//!
//! The daemon asks the gateway for its counters (XFRM GETSA) whenever it lists, so that the two
//! agree whenever no packet comes in between.

use std::fmt::Write as _;
use std::path::Path;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use serde_json::Value;

use crate::topology::{TopologyError, command_apart};

/// Rows of the table: a handful of tunnels, both directions.
const ROWS_MAX: usize = 12;

/// One SA as one of the two sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Its SPI.
    pub spi: u32,
    /// `in` or `out`.
    pub direction: String,
    /// The child (daemon) or the addresses (gateway).
    pub what: String,
    /// Packets so far.
    pub packets: u64,
    /// Bytes so far.
    pub bytes: u64,
}

/// What `swanctl --list-sas` prints for the daemons of these control sockets.
///
/// # Errors
/// [`TopologyError`] with what `swanctl` said, if it failed.
pub fn list(sockets: &[&Path]) -> Result<Vec<Seen>, TopologyError> {
    let mut seen = Vec::new();
    for socket in sockets {
        let uri = format!("unix://{}", socket.display());
        let output = command_apart("swanctl").args(["--list-sas", "--uri", &uri]).output();
        let failed = |reason: String| TopologyError::Command {
            command: format!("swanctl --list-sas --uri {uri}"),
            reason,
        };
        let output = output.map_err(|error| failed(error.to_string()))?;
        if !output.status.success() {
            return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
        seen.extend(parse(&String::from_utf8_lossy(&output.stdout)));
    }
    // A daemon lists as its hash table happens to be; shorter names first is by number.
    seen.sort_by(|a, b| (a.what.len(), &a.what).cmp(&(b.what.len(), &b.what)));
    Ok(seen)
}

/// The lines of children and their two SAs:
///
/// ```text
///   tnl1: #1, reqid 1, INSTALLED, TUNNEL, ESP:AES_GCM_16-256/ESN
///     in  c44ec250,    840 bytes,    10 packets,     2s ago
/// ```
fn parse(text: &str) -> Vec<Seen> {
    let mut child = String::new();
    let mut seen = Vec::new();
    for line in text.lines() {
        let trimmed = line.trim_start();
        let direction = ["in", "out"]
            .into_iter()
            .find(|word| trimmed.strip_prefix(word).is_some_and(|rest| rest.starts_with(' ')));
        match direction {
            Some(direction) => {
                let line = sa_line(&child, direction, trimmed[direction.len()..].trim());
                seen.extend(line);
            }
            None if line.contains("INSTALLED") => {
                child = trimmed.split(':').next().unwrap_or_default().to_owned();
            }
            None => {}
        }
    }
    seen
}

fn sa_line(child: &str, direction: &str, line: &str) -> Option<Seen> {
    let mut fields = line.split(',').map(str::trim);
    let spi = fields.next()?.split_whitespace().next()?;
    let mut number = |unit: &str| fields.next()?.strip_suffix(unit)?.trim().parse::<u64>().ok();
    let (bytes, packets) = (number("bytes")?, number("packets")?);
    Some(Seen {
        spi: u32::from_str_radix(spi, 16).ok()?,
        direction: direction.to_owned(),
        what: child.to_owned(),
        packets,
        bytes,
    })
}

/// The gateway's `show sa --json`.
pub fn shown(sas: &Value) -> Vec<Seen> {
    let one = |sa: &Value| {
        Some(Seen {
            spi: sa["spi"].as_u64()?.try_into().ok()?,
            direction: sa["direction"].as_str()?.to_owned(),
            what: format!("{} → {}", sa["src"].as_str()?, sa["dst"].as_str()?),
            packets: sa["packets"].as_u64()?,
            bytes: sa["bytes"].as_u64()?,
        })
    };
    sas.as_array().into_iter().flatten().filter_map(one).collect()
}

/// Both lists side by side, and whether they agree.
pub fn compare(daemon: &[Seen], gateway: &[Seen]) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header([
        "swanctl --list-sas",
        "SPI",
        "packets",
        "bytes",
        "peregrine show sa",
        "SPI",
        "packets",
        "bytes",
    ]);
    for column in [2, 3, 6, 7] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let find = |own: &Seen| {
        let same = |other: &&Seen| (other.spi, &other.direction) == (own.spi, &own.direction);
        gateway.iter().find(same)
    };
    for own in daemon.iter().take(ROWS_MAX) {
        let mut cells = vec![
            format!("{} {}", own.what, own.direction),
            format!("{:08x}", own.spi),
            own.packets.to_string(),
            own.bytes.to_string(),
        ];
        match find(own) {
            Some(other) => cells.extend([
                other.what.clone(),
                format!("{:08x}", other.spi),
                other.packets.to_string(),
                other.bytes.to_string(),
            ]),
            None => cells.push("not there".to_owned()),
        }
        table.add_row(cells);
    }
    let equal = |own: &&Seen| {
        find(own).is_some_and(|other| (other.packets, other.bytes) == (own.packets, own.bytes))
    };
    let both = daemon.iter().filter(|own| find(own).is_some()).count();
    let mut text = table.to_string();
    let _ = write!(
        text,
        "\n{} SAs of strongSwan, {} of the gateway, {both} of both by SPI, {} with equal counters",
        daemon.len(),
        gateway.len(),
        daemon.iter().filter(equal).count(),
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What swanctl 5.9.8 printed, shortened to what two tunnels show.
    const LISTED: &str = "\
tunnel2: #2, ESTABLISHED, IKEv2, 4d43001c6a75fd69_i* 0739934e719fd258_r
  local  'ipsecgw-0' @ 123.0.0.1[500]
  tnl2: #2, reqid 2, INSTALLED, TUNNEL, ESP:AES_GCM_16-256/ESN
    installed 0s ago, rekeying in 3243s, expires in 3960s
    in  c3fa0af0,      0 bytes,     0 packets
    out c080ea44,   1680 bytes,    20 packets,     3s ago
    local  16.0.0.0/8
tunnel1: #1, ESTABLISHED, IKEv2, 84c832eabb20e65b_i* 11c08d8f6ff32d1b_r
  tnl1: #1, reqid 1, INSTALLED, TUNNEL-in-UDP, ESP:AES_GCM_16-256
    in  c44ec250 (-|0x00000001),      7 bytes,     1 packets
";

    #[test]
    fn a_listing_is_read() {
        let seen = parse(LISTED);
        let brief: Vec<_> =
            seen.iter().map(|sa| (&sa.what[..], &sa.direction[..], sa.spi, sa.packets)).collect();
        assert_eq!(
            brief,
            [
                ("tnl2", "in", 0xc3fa_0af0, 0),
                ("tnl2", "out", 0xc080_ea44, 20),
                ("tnl1", "in", 0xc44e_c250, 1)
            ]
        );
        assert_eq!(seen[1].bytes, 1680);
        assert_eq!(parse("in garbage\nout ,,\nin zz, 1 bytes, 1 packets"), []);
    }

    #[test]
    fn the_comparison_says_what_differs() {
        let daemon = parse(LISTED);
        let json = serde_json::json!([
            {"spi": 0xc3fa_0af0_u32, "direction": "in", "src": "b", "dst": "a", "packets": 0, "bytes": 0},
            {"spi": 0xc080_ea44_u32, "direction": "out", "src": "a", "dst": "b", "packets": 21, "bytes": 1764},
        ]);
        let text = compare(&daemon, &shown(&json));
        assert!(
            text.contains("3 SAs of strongSwan, 2 of the gateway, 2 of both by SPI, 1 with equal")
        );
        assert!(text.contains("not there") && text.contains("a → b"), "{text}");
    }
}
