//! The asking side: one request, one reply, in a few lines and with limits.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

use super::status::Upgrade;
use super::types::{Envelope, Reply, Request, SCHEMA, Show};

/// How long to wait for an answer: 100 000 SAs take well under a second, and a gateway whose
/// control thread does not answer in this time is worth an error.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The longest reply taken: some 500 000 SAs.
const REPLY_BYTES_MAX: u64 = 256 << 20;

/// A reply, and the line that it came in.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The line as received, without its end: what `--json` prints.
    pub json: String,
    /// The same, typed.
    pub reply: Reply,
}

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum AskError {
    /// The socket does not work.
    #[error(
        "cannot {doing} {} ({source}); is the gateway running, and are you root?",
        path.display()
    )]
    Socket {
        /// What was tried.
        doing: &'static str,
        /// The socket.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// What came is not a reply.
    #[error(
        "{} sent something that is not a reply ({what}); is it another version of peregrine?",
        path.display()
    )]
    Garbled {
        /// The socket.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The gateway speaks a newer format.
    #[error(
        "{} replies in format {found} and this program knows {SCHEMA}; use the peregrine that \
         runs the gateway",
        path.display()
    )]
    Schema {
        /// The socket.
        path: PathBuf,
        /// The gateway's format.
        found: u32,
    },
    /// The gateway said no.
    #[error("the gateway answers: {0}")]
    Refused(String),
}

/// Asks a gateway by the path of its show socket.
///
/// # Errors
///
/// [`AskError`]: nobody answers there, the answer is none or of another version, or the gateway refuses.
pub fn ask(path: &Path, show: Show) -> Result<Answer, AskError> {
    request(path, &Request::Show(show))
}

/// Has a gateway replaced by another binary.
///
/// # Errors
///
/// As of [`ask`].
pub fn upgrade(path: &Path, wanted: Upgrade) -> Result<Answer, AskError> {
    request(path, &Request::Upgrade(wanted))
}

fn request(path: &Path, request: &Request) -> Result<Answer, AskError> {
    let failed = |doing| move |source| AskError::Socket { doing, path: path.to_owned(), source };
    let garbled = |what: String| AskError::Garbled { path: path.to_owned(), what };
    let mut stream = UnixStream::connect(path).map_err(failed("connect to"))?;
    let limits = stream.set_read_timeout(Some(TIMEOUT));
    limits.and_then(|()| stream.set_write_timeout(Some(TIMEOUT))).map_err(failed("prepare"))?;

    let mut request = serde_json::to_vec(request).map_err(|e| garbled(e.to_string()))?;
    request.push(b'\n');
    match stream.write_all(&request) {
        // A server that hangs up early may have said why.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        other => other.map_err(failed("ask"))?,
    }

    let mut json = String::new();
    let mut reader = BufReader::new(stream.take(REPLY_BYTES_MAX));
    reader.read_line(&mut json).map_err(failed("read the reply of"))?;
    if json.pop() != Some('\n') {
        return Err(garbled("the reply has no end".to_owned()));
    }
    // The version first: a reply of another version need not fit the types.
    #[derive(serde::Deserialize)]
    struct Version {
        schema: u32,
    }
    let version: Version = serde_json::from_str(&json).map_err(|e| garbled(e.to_string()))?;
    if version.schema != SCHEMA {
        return Err(AskError::Schema { path: path.to_owned(), found: version.schema });
    }
    let envelope: Envelope = serde_json::from_str(&json).map_err(|e| garbled(e.to_string()))?;
    match envelope.reply {
        Reply::Error(sentence) => Err(AskError::Refused(sentence)),
        reply => Ok(Answer { json, reply }),
    }
}
