//! Why a request was refused: the error number, and the text that `ip` prints after "Error:".

use rustix::io::Errno;
use thiserror::Error;

/// A refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{}{errno}", .message.map(|text| format!("{text}: ")).unwrap_or_default())]
pub struct Failure {
    /// The error number, sent negated.
    pub errno: Errno,
    /// What to tell a client that asked for texts.
    pub message: Option<&'static str>,
    /// Where in the request the attribute at fault begins.
    pub offset: Option<u32>,
    /// What that attribute's value should have been.
    pub expected: Option<Expected>,
}

/// The integer that an attribute should have held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Number of bytes.
    pub bytes: usize,
    /// Smallest value.
    pub min: u64,
    /// Largest value.
    pub max: u64,
}

impl Failure {
    /// Without a text.
    pub const fn new(errno: Errno) -> Self {
        Self { errno, message: None, offset: None, expected: None }
    }

    /// With a text.
    pub const fn because(errno: Errno, message: &'static str) -> Self {
        Self { errno, message: Some(message), offset: None, expected: None }
    }

    /// `EINVAL` with a text.
    pub const fn invalid(message: &'static str) -> Self {
        Self::because(Errno::INVAL, message)
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::new(errno)
    }
}
