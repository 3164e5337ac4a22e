//! The aims, and whether what was measured keeps them.
//!
//! An aim is data (`reference/aims.toml`): a figure or a quotient of two, and a bound. What was not
//! measured is said to be unmeasured, never to be met. Nothing here measures or draws.

use serde::Deserialize;

use crate::figure::Figures;

/// The built-in aims.
const AIMS_TOML: &str = include_str!("../reference/aims.toml");

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
}

impl Judged {
    /// Whether the aim is met; nothing is known of what was not measured.
    pub fn is_met(&self) -> Option<bool> {
        let value = self.value?;
        let low = self.aim.at_least.is_none_or(|bound| value >= bound);
        let high = self.aim.at_most.is_none_or(|bound| value <= bound);
        Some(low && high)
    }

    /// How the value compares with the bound: 1 or more is met, 2 is twice as good as asked for.
    /// Nothing where the bound or the value is zero, or the value negative.
    pub fn ratio(&self) -> Option<f64> {
        let value = self.value?;
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
    Judged { aim, value, at: at.filter(|part| !part.is_empty()), part }
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
        let part = None;
        Aim { group, text, figure: figure.to_owned(), over, unit, at_most, at_least, part }
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
