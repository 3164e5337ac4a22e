//! One run is one folder; this file reads and writes the three data files in it.
//!
//! Plots and the HTML report are derived from them and are written by [`crate::report`].

use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use super::{Environment, RunResult, SCHEMA, Sample, SampleError, read_samples, write_samples};

/// Name of the result file in a run's folder.
pub const RESULT_FILE: &str = "result.json";
/// Name of the samples file.
pub const SAMPLES_FILE: &str = "samples.csv";
/// Name of the environment file.
pub const ENVIRONMENT_FILE: &str = "env.json";

/// Everything one folder holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// `result.json`.
    pub result: RunResult,
    /// `samples.csv`.
    pub samples: Vec<Sample>,
    /// `env.json`.
    pub environment: Environment,
}

impl Run {
    /// The samples of one curve, in order.
    pub fn samples_of<'a>(&'a self, curve: &'a str) -> impl Iterator<Item = &'a Sample> {
        self.samples.iter().filter(move |sample| sample.curve == curve)
    }
}

/// Why a folder could not be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// A file is missing or unreadable.
    #[error(
        "cannot read {path}: {source}; a run's folder holds result.json, samples.csv, env.json"
    )]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file was written by a later program.
    #[error(
        "{path} has schema {found}, this program reads up to {SCHEMA}; \
         use the version of peregrine that wrote it, or a newer one"
    )]
    NewerSchema {
        /// The file.
        path: PathBuf,
        /// The schema it names.
        found: u64,
    },
    /// The file is not what its name says.
    #[error("{path} is not a valid result of schema {SCHEMA}: {source}")]
    Json {
        /// The file.
        path: PathBuf,
        /// The parser's words, with line and column.
        source: serde_json::Error,
    },
    /// The samples are damaged.
    #[error("{path}: {source}")]
    Samples {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        source: SampleError,
    },
}

/// Why a folder could not be written.
#[derive(Debug, Error)]
pub enum WriteError {
    /// The system refused.
    #[error("cannot write {path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A number that JSON cannot hold, or a map with unusual keys.
    #[error("cannot express {path} as JSON: {source}")]
    Json {
        /// The file.
        path: PathBuf,
        /// The writer's words.
        source: serde_json::Error,
    },
}

/// Reads a run's folder. Refuses a newer schema before it looks at anything else.
///
/// # Errors
/// [`ReadError`] with the file: it is not there, of a newer schema, or not as this program writes it.
pub fn read(folder: &Path) -> Result<Run, ReadError> {
    let result = read_json(&folder.join(RESULT_FILE))?;
    let environment = read_json(&folder.join(ENVIRONMENT_FILE))?;
    let path = folder.join(SAMPLES_FILE);
    let samples =
        read_samples(&read_text(&path)?).map_err(|source| ReadError::Samples { path, source })?;
    Ok(Run { result, samples, environment })
}

/// Writes the three files, creating the folder. Each file appears whole or not at all.
///
/// # Errors
/// [`WriteError`] with the file that cannot be written.
pub fn write(folder: &Path, run: &Run) -> Result<(), WriteError> {
    fs::create_dir_all(folder)
        .map_err(|source| WriteError::Io { path: folder.to_owned(), source })?;
    write_whole(&folder.join(SAMPLES_FILE), write_samples(&run.samples).as_bytes())?;
    write_json(&folder.join(ENVIRONMENT_FILE), &run.environment)?;
    write_json(&folder.join(RESULT_FILE), &run.result)
}

/// Writes beside the target and renames, so that an interrupted run leaves no half file.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), WriteError> {
    let error = |source| WriteError::Io { path: path.to_owned(), source };
    let mut beside = path.as_os_str().to_owned();
    beside.push(".part");
    fs::write(&beside, bytes).map_err(error)?;
    fs::rename(&beside, path).map_err(error)
}

fn write_json<T: serde::Serialize>(path: &Path, value: &T) -> Result<(), WriteError> {
    let mut text = serde_json::to_string_pretty(value)
        .map_err(|source| WriteError::Json { path: path.to_owned(), source })?;
    text.push('\n');
    write_whole(path, text.as_bytes())
}

fn read_text(path: &Path) -> Result<String, ReadError> {
    fs::read_to_string(path).map_err(|source| ReadError::Io { path: path.to_owned(), source })
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, ReadError> {
    /// The one field that every schema, past and future, has.
    #[derive(Deserialize)]
    struct Versioned {
        schema: u64,
    }
    let json = |source| ReadError::Json { path: path.to_owned(), source };
    let text = read_text(path)?;
    let version: Versioned = serde_json::from_str(&text).map_err(json)?;
    if version.schema > u64::from(SCHEMA) {
        return Err(ReadError::NewerSchema { path: path.to_owned(), found: version.schema });
    }
    serde_json::from_str(&text).map_err(json)
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;

    #[test]
    fn a_folder_reads_back_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("deep/er");
        let run = example::run();
        write(&target, &run).unwrap();
        assert_eq!(read(&target).unwrap(), run);
        let mut names: Vec<_> = fs::read_dir(&target)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, [ENVIRONMENT_FILE, RESULT_FILE, SAMPLES_FILE]);
    }

    #[test]
    fn a_newer_schema_is_refused_even_when_its_fields_differ() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &example::run()).unwrap();
        fs::write(folder.path().join(RESULT_FILE), r#"{"schema": 2, "all": "new"}"#).unwrap();
        let sentence = read(folder.path()).unwrap_err().to_string();
        assert!(
            sentence.ends_with(
                "result.json has schema 2, this program reads up to 1; \
                 use the version of peregrine that wrote it, or a newer one"
            ),
            "{sentence}"
        );
    }

    #[test]
    fn missing_and_broken_files_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let sentence = read(folder.path()).unwrap_err().to_string();
        assert!(sentence.contains("result.json") && sentence.contains("No such file"));
        write(folder.path(), &example::run()).unwrap();
        fs::write(folder.path().join(RESULT_FILE), r#"{"schema": 1, "recipe": 7}"#).unwrap();
        let sentence = read(folder.path()).unwrap_err().to_string();
        assert!(sentence.contains("result.json is not a valid result of schema 1"), "{sentence}");
    }
}
