//! What `ip -s xfrm state` and `/proc/net/xfrm_stat` say, as numbers.

use std::collections::{BTreeMap, BTreeSet};

/// The counters of one SA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes that it protected, as its byte limit counts them.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
    /// Packets refused as replays.
    pub replay: u64,
    /// Packets refused because their check value was wrong.
    pub failed: u64,
}

/// SAs by SPI.
pub type States = BTreeMap<u32, Counters>;

/// Reads `ip -s xfrm state`, but for what has no key: an SA that Linux has asked a daemon for.
pub fn states(listing: &str) -> States {
    let mut states = States::new();
    let mut keyed = BTreeSet::new();
    let mut spi = None;
    let mut current = false;
    for line in listing.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let ["proto", "esp", "spi", text, ..] = words[..] {
            let digits = text.trim_start_matches("0x").split('(').next().unwrap_or_default();
            spi = u32::from_str_radix(digits, 16).ok();
        }
        let Some(state) = spi.map(|spi| states.entry(spi).or_default()) else { continue };
        if let ["aead", ..] = words[..] {
            keyed.extend(spi);
        } else if let ["lifetime", kind] = words[..] {
            current = kind == "current:";
        } else if let (true, [bytes, packets]) = (current, &words[..]) {
            if let (Some(bytes), Some(packets)) =
                (bytes.strip_suffix("(bytes),"), packets.strip_suffix("(packets)"))
            {
                state.bytes = bytes.parse().unwrap_or_default();
                state.packets = packets.parse().unwrap_or_default();
                current = false;
            }
        } else if let ["replay-window", _, "replay", replay, "failed", failed] = words[..] {
            state.replay = replay.parse().unwrap_or_default();
            state.failed = failed.parse().unwrap_or_default();
        }
    }
    states.retain(|spi, _| keyed.contains(spi));
    states
}

/// Reads `/proc/net/xfrm_stat`, without the zeros.
pub fn errors(statistics: &str) -> BTreeMap<String, u64> {
    statistics
        .lines()
        .filter_map(|line| line.split_once(char::is_whitespace))
        .filter_map(|(name, count)| Some((name.to_string(), count.trim().parse().ok()?)))
        .filter(|(_, count)| *count > 0)
        .collect()
}
