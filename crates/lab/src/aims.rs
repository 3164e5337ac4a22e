//! The aims, and whether what was measured keeps them.
//!
//! An aim is data (`reference/aims.toml`): a figure or a quotient of two, and a bound. What was not
//! measured is said to be unmeasured, never to be met. Nothing here measures or draws.

use serde::Deserialize;

use crate::figure::Figures;

/// The built-in aims.
const AIMS_TOML: &str = include_str!("../reference/aims.toml");

/// Sizes of packets that `bench path` measures unless others are asked for: those of an aim over all sizes.
pub const SIZES: &str = "64,114,200,491,1000,1428,imix1";

/// One aim.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Aim {
    /// The heading it stands under.
    pub group: String,
    /// What is aimed at, in words.
    pub text: String,
    /// The figure; `*` stands for any part of a name.
    pub figure: String,
    /// What it is divided by; a `*` here stands for what the one in `figure` stands for.
    #[serde(default)]
    pub over: Option<String>,
    /// The `*` is a size of packets, and there has to be a figure of every one in [`SIZES`].
    #[serde(default)]
    pub every_size: bool,
    /// Of the value.
    pub unit: String,
    /// The value may not be above.
    #[serde(default)]
    pub at_most: Option<f64>,
    /// The value may not be below.
    #[serde(default)]
    pub at_least: Option<f64>,
    /// What of the value is measured apart.
    #[serde(default)]
    pub part: Option<Part>,
}

/// A part of a value that was measured by itself, for whoever asks what the rest is.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// What it is, in words.
    pub text: String,
    /// The figure, in the unit of the value; a `*` stands for what the one in the aim's figure stands for.
    pub figure: String,
}

/// What became of an aim.
#[derive(Debug, Clone, PartialEq)]
pub struct Judged {
    /// The aim.
    pub aim: Aim,
    /// The worst value of those that were measured, if any was.
    pub value: Option<f64>,
    /// What stood for `*` in the worst, for example the size of its packets.
    pub at: Option<String>,
    /// Of the worst value the part that was measured apart, if it was.
    pub part: Option<f64>,
    /// The sizes that were not measured of an aim over all.
    pub missing: Vec<&'static str>,
}

impl Judged {
    /// Whether the aim is met; nothing is known of what was not measured, but that it cannot mend what was.
    pub fn is_met(&self) -> Option<bool> {
        let value = self.value?;
        let low = self.aim.at_least.is_none_or(|bound| value >= bound);
        let high = self.aim.at_most.is_none_or(|bound| value <= bound);
        let is_known = self.missing.is_empty() || !(low && high);
        is_known.then_some(low && high)
    }

    /// How the value compares with the bound: 1 or more is met, 2 is twice as good as asked for.
    /// Nothing where the bound or the value is zero, or the value negative, or nobody knows whether it is met.
    pub fn ratio(&self) -> Option<f64> {
        let value = self.is_met().and(self.value)?;
        let ratio = match (self.aim.at_most, self.aim.at_least) {
            (Some(bound), _) => bound / value,
            (None, Some(bound)) => value / bound,
            (None, None) => return None,
        };
        (ratio.is_finite() && ratio > 0.0).then_some(ratio)
    }
}

/// The built-in aims, in the order of the table.
///
/// # Panics
/// Never: a test reads them.
pub fn aims() -> Vec<Aim> {
    #[derive(Deserialize)]
    struct File {
        aim: Vec<Aim>,
    }
    let file: File = toml::from_str(AIMS_TOML).expect("the built-in aims are read by a test");
    file.aim
}

/// Judges every aim by the figures.
pub fn judge(figures: &Figures) -> Vec<Judged> {
    aims().into_iter().map(|aim| judge_one(aim, figures)).collect()
}

fn judge_one(aim: Aim, figures: &Figures) -> Judged {
    let mut worst: Option<(f64, String)> = None;
    for (name, mut value) in figures.matching(&aim.figure) {
        let part = wildcard(&aim.figure, name);
        if let Some(over) = &aim.over {
            let Some(divisor) = figures.value(&over.replace('*', part)) else { continue };
            value /= divisor;
        }
        let is_worse = |than: f64| match aim.at_least {
            Some(_) => value < than,
            None => value > than,
        };
        if value.is_finite() && worst.as_ref().is_none_or(|(than, _)| is_worse(*than)) {
            worst = Some((value, part.to_owned()));
        }
    }
    let (value, at) = worst.unzip();
    let at_worst = |part: &Part| figures.value(&part.figure.replace('*', at.as_deref()?));
    let part = aim.part.as_ref().and_then(at_worst);
    let missing = missing(&aim, figures);
    Judged { aim, value, at: at.filter(|part| !part.is_empty()), part, missing }
}

/// The sizes of an aim over all that nobody measured. Those that VPP was not measured with there is nothing to compare with.
fn missing(aim: &Aim, figures: &Figures) -> Vec<&'static str> {
    let of = |size: &str, is_vpps: bool| {
        let mut names = [Some(&aim.figure), aim.over.as_ref()].into_iter().flatten();
        let is_known = |name: &String| figures.value(&name.replace('*', size)).is_some();
        names.all(|name| name.starts_with("vpp") != is_vpps || is_known(name))
    };
    let sizes = SIZES.split(',').filter(|size| aim.every_size && of(size, true));
    sizes.filter(|size| !of(size, false)).collect()
}

/// What stands for the `*` of a pattern in a name that matches it; nothing where there is none.
fn wildcard<'a>(pattern: &str, name: &'a str) -> &'a str {
    let parts = pattern.split('/').zip(name.split('/'));
    parts.filter(|(wanted, _)| *wanted == "*").map(|(_, part)| part).next().unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aim(figure: &str, over: Option<&str>, at_most: Option<f64>, at_least: Option<f64>) -> Aim {
        let over = over.map(str::to_owned);
        let (group, text, unit) = ("g".to_owned(), "t".to_owned(), "ns".to_owned());
        let (part, figure) = (None, figure.to_owned());
        Aim { group, text, figure, over, every_size: false, unit, at_most, at_least, part }
    }

    fn figures() -> Figures {
        let mut figures = Figures::default();
        for (name, value) in
            [("a/64/x", 10.0), ("a/1428/x", 30.0), ("b/64/x", 40.0), ("b/1428/x", 45.0)]
        {
            figures.add(name, value, "ns");
        }
        figures
    }

    #[test]
    fn the_built_in_aims_have_one_bound_each() {
        let aims = aims();
        assert!(aims.len() > 20);
        for aim in aims {
            assert!(aim.at_most.is_some() != aim.at_least.is_some(), "{}", aim.text);
            let stars = |name: &str| name.matches('*').count();
            let over = aim.over.as_deref().unwrap_or("");
            assert!(stars(&aim.figure) <= 1 && stars(over) <= stars(&aim.figure), "{}", aim.text);
            let is_of_paths = [aim.figure.as_str(), over].iter().any(|one| one.starts_with("path"));
            assert_eq!(aim.every_size, is_of_paths && stars(&aim.figure) == 1, "{}", aim.text);
        }
    }

    /// What is aimed at of all ways to find a tunnel and of both directions is judged of each, not where it is met.
    #[test]
    fn aims_of_all_ways_are_judged_of_each() {
        let aims = aims();
        let judged = |figure: &str, over: &str| {
            let starts = |name: Option<&str>, with: &str| {
                name.is_some_and(|name| name.starts_with(&format!("{with}/")))
            };
            let found = aims
                .iter()
                .find(|aim| starts(Some(&aim.figure), figure) && starts(aim.over.as_deref(), over));
            assert!(found.is_some_and(|aim| aim.every_size), "{figure} over {over}");
        };
        for (ours, theirs, theirs_alone) in [
            ("p2p", "p2p", ["p2p", "p2p"]),
            ("p2mp", "p2mp", ["p2mp", "p2mp"]),
            ("policy", "policy-fastpath", ["policy-flowcache", "policy-fastpath"]),
        ] {
            for (direction, alone) in ["seal", "open"].into_iter().zip(theirs_alone) {
                let path = |tunnels| format!("path/{ours}/{direction}/{tunnels}/*");
                judged(&format!("vpp/{direction}/{alone}/1"), &path("1"));
                let in_turns = format!("path-turns/{ours}/{direction}/10000");
                judged(&format!("vpp/{direction}/{theirs}/10000"), &in_turns);
                judged(&path("50000"), &path("10000"));
            }
            let both = |tunnels| format!("path/{ours}/both/{tunnels}/*");
            judged(&both("50000"), &both("10000"));
        }
        judged("vpp/both/p2p/10000", "path-turns/p2p/both/10000");
        for direction in ["seal", "open"] {
            let uncached = format!("path/policy-uncached/{direction}/10000/*");
            judged(&uncached, &uncached);
        }
        for case in ["cores/many", "cores/fat", "cores-open/many", "cores-open/fat"] {
            for figure in ["ratio", "model/error"] {
                let name = format!("{case}/{figure}");
                assert!(aims.iter().any(|aim| aim.figure == name), "{name}");
            }
        }
    }

    #[test]
    fn the_worst_figure_counts() {
        let judged = judge_one(aim("a/*/x", None, Some(20.0), None), &figures());
        assert_eq!((judged.value, judged.at.as_deref()), (Some(30.0), Some("1428")));
        assert_eq!(judged.is_met(), Some(false));
        assert_eq!(judged.ratio(), Some(20.0 / 30.0));
        let judged = judge_one(aim("a/64/x", None, Some(20.0), None), &figures());
        assert_eq!((judged.is_met(), judged.at, judged.value), (Some(true), None, Some(10.0)));
    }

    #[test]
    fn an_aim_over_all_sizes_is_met_when_all_were_measured() {
        let over_all = |figure: &str, over, at_most, figures: &Figures| {
            let aim = aim(figure, over, Some(at_most), None);
            judge_one(Aim { every_size: true, ..aim }, figures)
        };
        let mut figures = figures();
        let judged = over_all("a/*/x", None, 40.0, &figures);
        assert_eq!((judged.value, judged.is_met(), judged.ratio()), (Some(30.0), None, None));
        assert_eq!(judged.missing, ["114", "200", "491", "1000", "imix1"]);
        assert_eq!(over_all("a/*/x", None, 20.0, &figures).is_met(), Some(false));
        assert_eq!(over_all("c/*/x", None, 20.0, &figures).missing.len(), 7);
        // Of VPP's there are two sizes.
        figures.add("vpp/64/x", 2.0, "ns");
        figures.add("vpp/114/x", 2.0, "ns");
        let judged = over_all("vpp/*/x", Some("a/*/x"), 1.0, &figures);
        assert_eq!((judged.missing.as_slice(), judged.is_met()), (&["114"][..], None));
        for size in SIZES.split(',') {
            figures.add(format!("a/{size}/x"), 15.0, "ns");
        }
        assert_eq!(over_all("a/*/x", None, 20.0, &figures).is_met(), Some(true));
        assert_eq!(over_all("vpp/*/x", Some("a/*/x"), 1.0, &figures).is_met(), Some(true));
    }

    #[test]
    fn a_part_is_that_of_the_worst_figure() {
        let with_part = |figure: &str| {
            let part = Part { text: "p".to_owned(), figure: figure.to_owned() };
            judge_one(Aim { part: Some(part), ..aim("b/*/x", None, Some(20.0), None) }, &figures())
        };
        assert_eq!((with_part("a/*/x").value, with_part("a/*/x").part), (Some(45.0), Some(30.0)));
        assert_eq!(with_part("a/64/x").part, Some(10.0));
        assert_eq!(with_part("c/*/x").part, None);
    }

    #[test]
    fn a_quotient_is_of_the_same_kind_on_both_sides() {
        let judged = judge_one(aim("b/*/x", Some("a/*/x"), None, Some(1.4)), &figures());
        assert_eq!((judged.value, judged.at.as_deref()), (Some(1.5), Some("1428")));
        assert_eq!(judged.is_met(), Some(true));
    }

    #[test]
    fn what_was_not_measured_is_not_met() {
        let judged = judge_one(aim("c/*/x", None, Some(20.0), None), &figures());
        assert_eq!((judged.value, judged.is_met(), judged.ratio()), (None, None, None));
        let judged = judge_one(aim("a/*/x", Some("c/*/x"), Some(20.0), None), &figures());
        assert_eq!(judged.is_met(), None);
    }

    #[test]
    fn nothing_lost_needs_no_ratio() {
        let mut figures = figures();
        figures.add("lost", 0.0, "packets");
        let judged = judge_one(aim("lost", None, Some(0.0), None), &figures);
        assert_eq!((judged.is_met(), judged.ratio()), (Some(true), None));
    }
}
