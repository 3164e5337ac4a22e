//! Numbers as people read them: SI prefixes for rates, the fitting unit for times.

use crate::result::Rate;

/// A rate in bits per second: `115.27 Gbps`, `812.4 Mbps`.
pub fn bps(value: f64) -> String {
    scaled(value, "bps")
}

/// A rate in packets per second: `1.25 Mpps`.
pub fn pps(value: f64) -> String {
    scaled(value, "pps")
}

/// What each port is asked for, once where it is the same: `68.40 kpps / 178.40 kpps`; a dash where nobody knows.
pub fn by_port(rates: &[Rate], words: impl Fn(&Rate) -> String) -> String {
    let mut all: Vec<String> = rates.iter().map(words).collect();
    all.dedup();
    if all.is_empty() { "–".into() } else { all.join(" / ") }
}

fn scaled(value: f64, unit: &str) -> String {
    for (factor, prefix) in [(1e9, "G"), (1e6, "M"), (1e3, "k")] {
        if value.abs() >= factor * 0.99995 {
            return format!("{:.2} {prefix}{unit}", value / factor);
        }
    }
    format!("{value:.0} {unit}")
}

/// A time given in microseconds, three digits: `61.2 µs`, `2.14 ms`, `1.00 s`.
pub fn microseconds(us: f64) -> String {
    let (value, unit) = match us {
        us if us >= 999_500.0 => (us / 1e6, "s"),
        us if us >= 999.5 => (us / 1e3, "ms"),
        us => (us, "µs"),
    };
    let decimals = match value {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.decimals$} {unit}")
}

/// A chosen time, such as a threshold: like [`microseconds`] without digits that say nothing.
pub fn round_microseconds(us: f64) -> String {
    let (value, unit) = match us {
        us if us >= 1e6 => (us / 1e6, "s"),
        us if us >= 1e3 => (us / 1e3, "ms"),
        us => (us, "µs"),
    };
    format!("{} {unit}", (value * 1000.0).round() / 1000.0)
}

/// Like [`microseconds`]; a dash where nothing was measured.
pub fn latency(us: Option<f64>) -> String {
    us.map_or_else(|| "–".into(), microseconds)
}

/// A percentage given in percent. Small losses keep their digits, because 0.00 % would read as
/// none.
pub fn percent(value: f64) -> String {
    if value > 0.0 && value < 0.01 { format!("{value:.1e} %") } else { format!("{value:.2} %") }
}

/// So many tunnels, in groups of three digits.
pub fn tunnels(count: u32) -> String {
    format!("{} tunnel{}", self::count(count.into()), plural(count))
}

/// What a noun ends in behind this count.
pub fn plural(count: u32) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// A count in groups of three digits.
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push('\u{202f}'); // narrow no-break space, ISO 80000-1
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_follow_size() {
        assert_eq!(bps(115.274e9), "115.27 Gbps");
        assert_eq!(bps(999_990_000.0), "1.00 Gbps");
        assert_eq!(bps(0.0), "0 bps");
        assert_eq!(pps(1_250_000.0), "1.25 Mpps");
        assert_eq!(microseconds(61.24), "61.2 µs");
        assert_eq!(microseconds(228.75), "229 µs");
        assert_eq!(microseconds(2140.0), "2.14 ms");
        assert_eq!(microseconds(1e6), "1.00 s");
        assert_eq!(round_microseconds(1e6), "1 s");
        assert_eq!(round_microseconds(1500.0), "1.5 ms");
        assert_eq!(latency(None), "–");
        assert_eq!(percent(2.98), "2.98 %");
        assert_eq!(percent(0.0), "0.00 %");
        assert_eq!(percent(0.0012), "1.2e-3 %");
        assert_eq!(count(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!(count(123), "123");
        assert_eq!([1, 10_000].map(tunnels), ["1 tunnel", "10\u{202f}000 tunnels"]);
    }
}
