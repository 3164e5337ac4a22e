//! Size mixes: the four Internet mixes of the published tests, fixed sizes, and their order.
//!
//! A mix says how many frames of each size there are; the order spreads every size evenly, so a
//! queue sees the same mixture over any short stretch and bursts do not depend on chance.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;
use thiserror::Error;

/// The published tables: sizes and their packets per second at multiplier 1.
const IMIX_TOML: &str = include_str!("../../../../recipes/imix.toml");

/// Frames in one period of a mix at most: one byte each, so the order of the largest stays within
/// a megabyte. The two mixes of the published downstream together have 162 578.
const PERIOD_FRAMES_MAX: u64 = 1 << 20;
/// Different sizes in a mix at most; sizes are stored as bytes in the order.
const SIZES_MAX: usize = 64;
/// Sizes of Ethernet frames without FCS that the lab offers.
const SIZE_BYTES: std::ops::RangeInclusive<u16> = 60..=9018;

/// One size of a mix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Stream {
    /// L2 bytes without FCS.
    pub size: u16,
    /// Its weight: packets per second at multiplier 1.
    pub pps: u32,
}

/// Why a mix cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MixError {
    /// The name is neither a table nor a size.
    #[error("mix `{0}` is unknown; known are {known} and plain sizes such as `1428`", known = known())]
    Unknown(String),
    /// Nothing to send.
    #[error("a mix needs at least one size with a weight above zero")]
    Empty,
    /// A frame size outside Ethernet's limits.
    #[error("frame size {0} is outside {min}..={max} bytes (L2 without FCS)",
        min = SIZE_BYTES.start(), max = SIZE_BYTES.end())]
    Size(u32),
    /// The weights have no short common period.
    #[error(
        "the weights repeat only after {0} frames, at most {PERIOD_FRAMES_MAX} are supported; \
        use rounder weights"
    )]
    Period(u64),
    /// More sizes than an order can hold.
    #[error("{0} sizes in one mix, at most {SIZES_MAX} are supported")]
    Sizes(usize),
}

fn known() -> String {
    tables().keys().cloned().collect::<Vec<_>>().join(", ")
}

/// The embedded tables by name.
fn tables() -> &'static BTreeMap<String, Table> {
    static TABLES: LazyLock<BTreeMap<String, Table>> = LazyLock::new(|| {
        toml::from_str(IMIX_TOML).expect("recipes/imix.toml is embedded and tested below")
    });
    &TABLES
}

#[derive(Debug, Deserialize)]
struct Table {
    streams: Vec<Stream>,
}

/// The streams of one embedded table, `imix1` to `imix4`.
pub fn imix(name: &str) -> Option<&'static [Stream]> {
    tables().get(name).map(|table| table.streams.as_slice())
}

/// A mix with its order worked out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mix {
    streams: Vec<Stream>,
    /// Index into `streams` for every frame of one period.
    order: Vec<u8>,
}

impl Mix {
    /// A mix from weighted sizes. Equal sizes are merged.
    ///
    /// # Errors
    /// [`MixError`]: nothing with a weight, a size out of range, too many sizes, or weights without a short common period.
    pub fn new(streams: &[Stream]) -> Result<Mix, MixError> {
        let mut weights: BTreeMap<u16, u64> = BTreeMap::new();
        for stream in streams.iter().filter(|stream| stream.pps > 0) {
            if !SIZE_BYTES.contains(&stream.size) {
                return Err(MixError::Size(stream.size.into()));
            }
            *weights.entry(stream.size).or_default() += u64::from(stream.pps);
        }
        if weights.is_empty() {
            return Err(MixError::Empty);
        }
        if weights.len() > SIZES_MAX {
            return Err(MixError::Sizes(weights.len()));
        }
        let divisor = weights.values().copied().fold(0, greatest_common_divisor);
        weights.values_mut().for_each(|weight| *weight /= divisor);
        let period = weights.values().sum::<u64>();
        if period > PERIOD_FRAMES_MAX {
            return Err(MixError::Period(period));
        }
        let streams: Vec<Stream> =
            weights.iter().map(|(&size, &weight)| Stream { size, pps: weight as u32 }).collect();
        Ok(Mix { order: interleave(&streams), streams })
    }

    /// A mix from names: tables (`imix1`), plain sizes (`1428`), any number of them added up.
    ///
    /// # Errors
    /// [`MixError`] with the names that there are, if one is unknown; else as of [`Mix::new`].
    pub fn from_names<S: AsRef<str>>(names: &[S]) -> Result<Mix, MixError> {
        let mut streams = Vec::new();
        for name in names.iter().map(AsRef::as_ref) {
            match (imix(name), name.parse::<u32>()) {
                (Some(table), _) => streams.extend_from_slice(table),
                (None, Ok(size)) => {
                    let size = u16::try_from(size).map_err(|_| MixError::Size(size))?;
                    streams.push(Stream { size, pps: 1 });
                }
                (None, Err(_)) => return Err(MixError::Unknown(name.to_owned())),
            }
        }
        Mix::new(&streams)
    }

    /// The size of frame `n` of a port: L2 bytes without FCS.
    pub fn size(&self, n: u64) -> u16 {
        self.streams[self.class(n)].size
    }

    /// Which of [`Mix::sizes`] frame `n` has; generators keep one template per class.
    pub fn class(&self, n: u64) -> usize {
        self.order[(n % self.order.len() as u64) as usize].into()
    }

    /// The different sizes, ascending.
    pub fn sizes(&self) -> impl ExactSizeIterator<Item = u16> + '_ {
        self.streams.iter().map(|stream| stream.size)
    }

    /// Frames after which the order repeats.
    pub fn period(&self) -> usize {
        self.order.len()
    }

    /// Mean L2 bytes without FCS.
    pub fn average_bytes(&self) -> f64 {
        let total: u64 = self.streams.iter().map(|s| u64::from(s.size) * u64::from(s.pps)).sum();
        total as f64 / self.order.len() as f64
    }
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Smooth weighted round robin over one period: every turn each class earns its weight, the class
/// with most credit goes and pays the whole period. Each class is never more than one frame away
/// from its fair share times the number of classes.
fn interleave(streams: &[Stream]) -> Vec<u8> {
    let period: i64 = streams.iter().map(|stream| i64::from(stream.pps)).sum();
    let mut credit = vec![0i64; streams.len()];
    (0..period)
        .map(|_| {
            let mut chosen = 0;
            for (class, stream) in streams.iter().enumerate() {
                credit[class] += i64::from(stream.pps);
                if credit[class] > credit[chosen] {
                    chosen = class;
                }
            }
            credit[chosen] -= period;
            // At most SIZES_MAX classes exist.
            chosen as u8
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_published_tables_have_the_published_sums() {
        // Packets per second and mean size of each table, from the benchmark's own statistics.
        let published = [
            ("imix1", 44_166, 370.4),
            ("imix2", 91_158, 990.6),
            ("imix3", 25_492, 459.5),
            ("imix4", 71_420, 1144.2),
        ];
        assert_eq!(tables().len(), published.len());
        for (name, pps, average) in published {
            let streams = imix(name).unwrap();
            assert_eq!(streams.len(), 5);
            assert_eq!(streams.iter().map(|stream| stream.pps).sum::<u32>(), pps);
            let mix = Mix::from_names(&[name]).unwrap();
            assert!((mix.average_bytes() - average).abs() < 0.05, "{name}");
        }
        let both = Mix::from_names(&["imix2", "imix4"]).unwrap();
        assert_eq!(both.period(), 162_578);
        assert!((both.average_bytes() - 1058.07).abs() < 0.01);
    }

    #[test]
    fn every_period_holds_exactly_the_weights() {
        let mix = Mix::from_names(&["imix1"]).unwrap();
        let mut seen = BTreeMap::new();
        for n in 0..mix.period() as u64 {
            *seen.entry(mix.size(n)).or_insert(0u32) += 1;
        }
        let expected: BTreeMap<u16, u32> =
            imix("imix1").unwrap().iter().map(|stream| (stream.size, stream.pps)).collect();
        assert_eq!(seen, expected);
    }

    #[test]
    fn mistakes_say_what_is_known() {
        let sentence = Mix::from_names(&["imix9"]).unwrap_err().to_string();
        assert_eq!(
            sentence,
            "mix `imix9` is unknown; known are imix1, imix2, imix3, imix4 \
             and plain sizes such as `1428`"
        );
        assert_eq!(Mix::from_names(&["70000"]), Err(MixError::Size(70_000)));
        assert_eq!(Mix::from_names(&["59"]), Err(MixError::Size(59)));
        assert_eq!(Mix::from_names::<&str>(&[]), Err(MixError::Empty));
        let coprime = [Stream { size: 64, pps: 1_000_003 }, Stream { size: 128, pps: 999_983 }];
        assert_eq!(Mix::new(&coprime), Err(MixError::Period(1_999_986)));
    }

    proptest! {
        /// Smoothness: any prefix of the order is within a few frames of its fair share.
        #[test]
        fn no_size_comes_in_bursts(weights in prop::collection::vec(1u32..200, 1..8)) {
            let streams: Vec<Stream> = weights
                .iter()
                .enumerate()
                .map(|(i, &pps)| Stream { size: 100 + i as u16, pps })
                .collect();
            let mix = Mix::new(&streams).unwrap();
            let total: f64 = weights.iter().map(|&w| f64::from(w)).sum();
            let mut count = vec![0f64; weights.len()];
            for n in 0..mix.period() as u64 {
                count[usize::from(mix.size(n) - 100)] += 1.0;
                for (class, &weight) in weights.iter().enumerate() {
                    let fair = (n + 1) as f64 * f64::from(weight) / total;
                    prop_assert!((count[class] - fair).abs() <= weights.len() as f64);
                }
            }
        }
    }
}
