//! The plot as pixels: the SVG rendered with the machine's fonts, 1400 × 1000.

use std::sync::Arc;

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree, fontdb};
use thiserror::Error;

/// Fonts to look for, best first. The widths that the layout reckons with are DejaVu's.
const FAMILIES: [&str; 4] = ["DejaVu Sans", "Verdana", "Liberation Sans", "Noto Sans"];

/// Why there is no PNG.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PngError {
    /// The machine has no font at all, and a plot without text says nothing.
    #[error(
        "no font was found on this machine; install one (Debian: fonts-dejavu-core) and redraw"
    )]
    NoFont,
    /// The SVG could not be read, or has no size.
    #[error("the SVG cannot be rendered: {0}")]
    Svg(String),
}

/// Renders an SVG with the fonts of this machine.
///
/// # Errors
/// [`PngError`] if the machine has no font, or the text is no SVG.
pub fn render(svg: &str) -> Result<Vec<u8>, PngError> {
    let mut fonts = fontdb::Database::new();
    fonts.load_system_fonts();
    render_with(svg, fonts)
}

fn render_with(svg: &str, mut fonts: fontdb::Database) -> Result<Vec<u8>, PngError> {
    let family = family(&fonts).ok_or(PngError::NoFont)?;
    fonts.set_sans_serif_family(family.clone());
    let options = Options { font_family: family, fontdb: Arc::new(fonts), ..Options::default() };
    let error = |error: &dyn std::fmt::Display| PngError::Svg(error.to_string());
    let tree = Tree::from_str(svg, &options).map_err(|e| error(&e))?;
    let size = tree.size().to_int_size();
    let mut pixels = Pixmap::new(size.width(), size.height())
        .ok_or_else(|| PngError::Svg("its size is zero".into()))?;
    resvg::render(&tree, Transform::identity(), &mut pixels.as_mut());
    pixels.encode_png().map_err(|e| error(&e))
}

/// The best family there is, or any.
fn family(fonts: &fontdb::Database) -> Option<String> {
    let has = |name: &str| {
        fonts.faces().any(|face| face.families.iter().any(|(family, _)| family == name))
    };
    let any = || fonts.faces().find_map(|face| face.families.first().map(|(name, _)| name.clone()));
    FAMILIES.into_iter().find(|name| has(name)).map(str::to_owned).or_else(any)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_fonts_it_says_what_to_install() {
        let error = render_with("<svg/>", fontdb::Database::new()).unwrap_err();
        assert_eq!(error, PngError::NoFont);
        assert!(error.to_string().contains("fonts-dejavu-core"));
    }
}
