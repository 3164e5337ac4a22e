//! The few SVG elements that the plot needs, with text escaped and measured.

use std::fmt::Write as _;

/// Advance widths of the printable ASCII characters of DejaVu Sans, thousandths of the size.
const WIDTHS: [u16; 95] = [
    318, 401, 460, 838, 636, 950, 780, 275, 390, 390, 500, 838, 318, 361, 318, 337, 636, 636, 636,
    636, 636, 636, 636, 636, 636, 636, 337, 337, 838, 838, 838, 531, 1000, 684, 686, 698, 770, 632,
    575, 775, 752, 295, 295, 656, 557, 863, 748, 787, 603, 787, 695, 635, 611, 732, 684, 989, 685,
    611, 685, 390, 337, 390, 838, 500, 500, 613, 635, 550, 635, 615, 352, 635, 634, 278, 278, 579,
    278, 974, 634, 612, 635, 635, 411, 521, 392, 634, 592, 818, 592, 592, 525, 636, 337, 636, 838,
];
/// For all other characters; most of those that occur (µ, →, –) are narrower.
const OTHER_WIDTH: u16 = 838;
/// The bold face is wider by about a tenth.
const BOLD: f64 = 1.1;

/// The width of a text in pixels at `size` pixels, if the font is DejaVu Sans.
pub(crate) fn text_width(text: &str, size: f64, bold: bool) -> f64 {
    let width = |c: char| {
        let index = (c as usize).checked_sub(32);
        index.and_then(|index| WIDTHS.get(index)).copied().unwrap_or(OTHER_WIDTH)
    };
    let sum: f64 = text.chars().map(|c| f64::from(width(c))).sum();
    sum / 1000.0 * size * if bold { BOLD } else { 1.0 }
}

/// The text, cut with an ellipsis where it would be wider than `room` pixels.
pub(crate) fn fit(text: &str, size: f64, bold: bool, room: f64) -> String {
    if text_width(text, size, bold) <= room {
        return text.to_owned();
    }
    let mut cut: String = text.to_owned();
    while cut.pop().is_some() {
        let candidate = format!("{}…", cut.trim_end());
        if text_width(&candidate, size, bold) <= room {
            return candidate;
        }
    }
    String::new()
}

/// Text made safe inside elements and attribute values of XML and HTML. Characters that XML
/// forbids become U+FFFD.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(' '),
            // XML 1.0 §2.2.
            '\u{0}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Which end of a text stands at its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

impl Anchor {
    fn as_str(self) -> &'static str {
        match self {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        }
    }
}

/// What can be drawn into: upper left corner and size.
pub(crate) type Clip = ((f64, f64), (f64, f64));

/// An SVG document being written. Attributes are given as text that is already safe.
pub(crate) struct Canvas {
    out: String,
}

impl Canvas {
    /// Opens the document; `title` and `description` are what screen readers say. `clips` are
    /// named `panel0`, `panel1`, …
    pub fn new(
        (width, height): (f64, f64),
        title: &str,
        description: &str,
        clips: &[Clip],
    ) -> Canvas {
        let mut canvas = Canvas { out: String::with_capacity(1 << 16) };
        canvas.element(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" role=\"img\" \
             aria-labelledby=\"plot-title plot-description\" \
             font-family=\"'DejaVu Sans', Verdana, sans-serif\">\n\
             <title id=\"plot-title\">{}</title>\n<desc id=\"plot-description\">{}</desc>\n<defs>\n\
             <pattern id=\"hatch\" width=\"8\" height=\"8\" patternUnits=\"userSpaceOnUse\" \
             patternTransform=\"rotate(45)\"><rect width=\"8\" height=\"8\" fill=\"#808080\" \
             fill-opacity=\"0.07\"/><path d=\"M0 0V8\" stroke=\"#808080\" stroke-width=\"1.5\" \
             stroke-opacity=\"0.28\"/></pattern>",
            escape(title),
            escape(description),
        ));
        for (index, ((x, y), (width, height))) in clips.iter().enumerate() {
            canvas.element(format_args!(
                "<clipPath id=\"panel{index}\"><rect x=\"{x}\" y=\"{y}\" width=\"{width}\" \
                 height=\"{height}\"/></clipPath>",
            ));
        }
        canvas.element(format_args!("</defs>"));
        canvas
    }

    /// Opens a group.
    pub fn open(&mut self, attributes: &str) {
        self.element(format_args!("<g {attributes}>"));
    }

    /// Closes the group opened last.
    pub fn close(&mut self) {
        self.element(format_args!("</g>"));
    }

    /// A rectangle from its upper left corner.
    pub fn rect(&mut self, corner: (f64, f64), size: (f64, f64), attributes: &str) {
        self.element(format_args!(
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" {attributes}/>",
            corner.0, corner.1, size.0, size.1
        ));
    }

    /// A straight line.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), attributes: &str) {
        self.element(format_args!(
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" {attributes}/>",
            from.0, from.1, to.0, to.1
        ));
    }

    /// A path from its commands.
    pub fn path(&mut self, commands: &str, attributes: &str) {
        self.element(format_args!("<path d=\"{commands}\" {attributes}/>"));
    }

    /// One line of text on the baseline at `at`.
    pub fn text(&mut self, at: (f64, f64), anchor: Anchor, attributes: &str, text: &str) {
        self.element(format_args!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{}\" {attributes}>{}</text>",
            at.0,
            at.1,
            anchor.as_str(),
            escape(text)
        ));
    }

    /// Grey text that stays readable over curves, by a margin in the paper's colour.
    pub fn halo_text(&mut self, at: (f64, f64), anchor: Anchor, attributes: &str, text: &str) {
        let halo = format!(
            "class=\"ink halo\" fill=\"#555555\" stroke=\"#ffffff\" stroke-width=\"4\" \
             stroke-linejoin=\"round\" paint-order=\"stroke\" {attributes}"
        );
        self.text(at, anchor, &halo, text);
    }

    /// Text read from bottom to top, centred at `at`.
    pub fn upright_text(&mut self, at: (f64, f64), attributes: &str, text: &str) {
        self.element(format_args!(
            "<text transform=\"translate({:.1} {:.1}) rotate(-90)\" text-anchor=\"middle\" \
             {attributes}>{}</text>",
            at.0,
            at.1,
            escape(text)
        ));
    }

    /// Closes the document.
    pub fn finish(mut self) -> String {
        self.out.push_str("</svg>\n");
        self.out
    }

    /// Writing into a String cannot fail.
    fn element(&mut self, arguments: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.out, "{arguments}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_measured_and_made_safe() {
        assert!((text_width("0123", 10.0, false) - 25.44).abs() < 1e-9);
        assert!(text_width("µ", 10.0, true) > 8.38);
        assert_eq!(fit("0123", 10.0, false, 25.5), "0123");
        assert_eq!(fit("0123456789", 10.0, false, 30.0), "012…");
        assert_eq!(fit("0123", 10.0, false, 1.0), "");
        assert_eq!(escape("a<b> & \"c\"\u{1}\n'"), "a&lt;b&gt; &amp; &quot;c&quot;\u{fffd} &#39;");
    }
}
