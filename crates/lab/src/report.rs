//! A run for the eye: the four-panel plot as SVG and PNG, one HTML page, tables for terminals.
//!
//! Everything here is drawn from the three data files alone, so that any run can be redrawn.

pub mod bench;
pub mod chart;
pub mod html;
pub mod matrix;
mod negotiation;
pub(crate) mod number;
pub mod png;
pub mod reference;
pub mod svg;
pub mod text;

use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::plot::{Named, assemble};
use crate::result::{ReadError, Run, WriteError, read, write_whole};

/// Name of the vector plot in a run's folder.
pub const SVG_FILE: &str = "plot.svg";
/// Name of the pixel plot.
pub const PNG_FILE: &str = "plot.png";
/// Name of the page.
pub const HTML_FILE: &str = "report.html";

/// What was drawn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drawn {
    /// The files, in the order they were written.
    pub files: Vec<PathBuf>,
    /// What could not be drawn and what to do about it. The data are complete without it.
    pub warnings: Vec<String>,
}

/// Why nothing could be drawn.
#[derive(Debug, Error)]
pub enum ReportError {
    /// No folder was named.
    #[error("name at least one folder that holds a result.json")]
    NoRun,
    /// A folder could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A file could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Draws plot and page of one run into its folder.
///
/// # Errors
/// [`ReportError`] if the run has nothing to draw, or a file cannot be written.
pub fn draw(folder: &Path, run: &Run) -> Result<Drawn, ReportError> {
    let name = name_of(folder);
    let plot = assemble(&[Named { name: &name, run }]).ok_or(ReportError::NoRun)?;
    let svg = svg::draw(&plot);
    let mut drawn = draw_plot(folder, &svg)?;
    let page = folder.join(HTML_FILE);
    write_whole(&page, html::page(run, &plot, &svg).as_bytes())?;
    drawn.files.push(page);
    Ok(drawn)
}

/// Redraws: one folder in place, page included; several as an overlay into `out`.
///
/// # Errors
/// [`ReportError`] if a folder cannot be read, there is none, or a file cannot be written.
pub fn redraw(folders: &[PathBuf], out: &Path) -> Result<Drawn, ReportError> {
    let runs =
        folders.iter().map(|folder| read(folder)).collect::<Result<Vec<Run>, ReadError>>()?;
    if let ([folder], [run]) = (folders, runs.as_slice()) {
        return draw(folder, run);
    }
    let names: Vec<String> = folders.iter().map(|folder| name_of(folder)).collect();
    let named: Vec<Named<'_>> =
        names.iter().zip(&runs).map(|(name, run)| Named { name, run }).collect();
    let plot = assemble(&named).ok_or(ReportError::NoRun)?;
    draw_plot(out, &svg::draw(&plot))
}

fn draw_plot(folder: &Path, svg: &str) -> Result<Drawn, ReportError> {
    std::fs::create_dir_all(folder)
        .map_err(|source| WriteError::Io { path: folder.to_owned(), source })?;
    let mut drawn = Drawn { files: vec![folder.join(SVG_FILE)], warnings: vec![] };
    write_whole(&drawn.files[0], svg.as_bytes())?;
    match png::render(svg) {
        Ok(bytes) => {
            drawn.files.push(folder.join(PNG_FILE));
            write_whole(&drawn.files[1], &bytes)?;
        }
        Err(error) => drawn.warnings.push(format!("{PNG_FILE} was not drawn: {error}")),
    }
    Ok(drawn)
}

/// The last part of a path that has a name; `.` and `..` are resolved first.
fn name_of(folder: &Path) -> String {
    let full = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    full.file_name().map_or_else(|| "run".into(), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{example, write};
    use std::fs;

    #[test]
    fn one_run_is_redrawn_in_place_and_two_are_overlaid() {
        let root = tempfile::tempdir().unwrap();
        let folders: Vec<PathBuf> = ["one", "two"].map(|name| root.path().join(name)).into();
        for folder in &folders {
            write(folder, &example::run()).unwrap();
        }
        let drawn = redraw(&folders[..1], root.path()).unwrap();
        assert!(drawn.files.contains(&folders[0].join(SVG_FILE)), "{drawn:?}");
        assert!(drawn.files.contains(&folders[0].join(HTML_FILE)), "{drawn:?}");
        assert_eq!(drawn.files.contains(&folders[0].join(PNG_FILE)), drawn.warnings.is_empty());

        let out = root.path().join("both");
        redraw(&folders, &out).unwrap();
        let svg = fs::read_to_string(out.join(SVG_FILE)).unwrap();
        assert!(svg.contains("one: 500 tunnels") && svg.contains("two: 500 tunnels"));
        assert!(!out.join(HTML_FILE).exists());
        assert!(matches!(redraw(&[], &out), Err(ReportError::NoRun)));
    }
}
