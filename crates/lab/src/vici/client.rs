//! One connection to a daemon's VICI socket; one question at a time, answered in order.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use thiserror::Error;

use super::message::{DecodeError, Message};

const COMMAND_REQUEST: u8 = 0;
const COMMAND_RESPONSE: u8 = 1;
const COMMAND_UNKNOWN: u8 = 2;
/// The longest packet the protocol allows.
const PACKET_BYTES_MAX: usize = 512 * 1024;
/// Longest silence before a daemon counts as dead. A handshake that is waited for ends before, by
/// the timeout that travels with the request.
const PATIENCE: Duration = Duration::from_secs(120);

/// A connection.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
}

/// Why a command has no answer, or a bad one.
#[derive(Debug, Error)]
pub enum ViciError {
    /// The socket failed.
    #[error("the daemon's control socket: {0}")]
    Io(#[from] io::Error),
    /// The answer is not a message.
    #[error("the answer to {command} is not a message: {source}")]
    Decode {
        /// The command.
        command: String,
        /// What is wrong with it.
        source: DecodeError,
    },
    /// A packet that does not belong here.
    #[error("the answer to {command} is a packet of type {kind}")]
    Packet {
        /// The command.
        command: String,
        /// The packet's type.
        kind: u8,
    },
    /// The daemon does not know the command.
    #[error("the daemon does not know the command {0}; is its plugin loaded?")]
    Unknown(String),
    /// The daemon says no.
    #[error("{command} failed: {reason}")]
    Refused {
        /// The command.
        command: String,
        /// Its words.
        reason: String,
    },
}

impl Client {
    /// Connects to the socket of a daemon.
    ///
    /// # Errors
    /// [`ViciError`] if nobody accepts the connection.
    pub fn connect(socket: &Path) -> Result<Client, ViciError> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Client { stream })
    }

    /// Sends a command and returns the answer, whatever it says.
    ///
    /// # Errors
    /// [`ViciError`] if the connection ends or is silent too long, the command is unknown, or the answer no message.
    pub fn ask(&mut self, command: &str, message: &Message) -> Result<Message, ViciError> {
        let mut packet = vec![0; 4];
        packet.extend([COMMAND_REQUEST, command.len() as u8]);
        packet.extend(command.as_bytes());
        message.encode(&mut packet);
        let length = packet.len() - 4;
        if length > PACKET_BYTES_MAX {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge).into());
        }
        packet[..4].copy_from_slice(&(length as u32).to_be_bytes());
        self.stream.write_all(&packet)?;
        let answer = self.packet()?;
        match answer.split_first() {
            Some((&COMMAND_RESPONSE, body)) => Message::decode(body)
                .map_err(|source| ViciError::Decode { command: command.to_owned(), source }),
            Some((&COMMAND_UNKNOWN, _)) => Err(ViciError::Unknown(command.to_owned())),
            other => Err(ViciError::Packet {
                command: command.to_owned(),
                kind: other.map_or(u8::MAX, |(&kind, _)| kind),
            }),
        }
    }

    /// Sends a command that answers `success = yes`, or else why not.
    ///
    /// # Errors
    /// As of [`Client::ask`], and with the daemon's words, if it refused.
    pub fn order(&mut self, command: &str, message: &Message) -> Result<(), ViciError> {
        let answer = self.ask(command, message)?;
        if answer.text("success") == Some("yes") {
            return Ok(());
        }
        let reason = answer.text("errmsg").unwrap_or("no reason given").to_owned();
        Err(ViciError::Refused { command: command.to_owned(), reason })
    }

    fn packet(&mut self) -> Result<Vec<u8>, ViciError> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let length = u32::from_be_bytes(length) as usize;
        if length > PACKET_BYTES_MAX {
            return Err(io::Error::from(io::ErrorKind::InvalidData).into());
        }
        let mut packet = vec![0; length];
        self.stream.read_exact(&mut packet)?;
        Ok(packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::thread;

    /// Answers each request with the next of `answers` and returns the requests.
    fn daemon(socket: &Path, answers: Vec<Vec<u8>>) -> thread::JoinHandle<Vec<Vec<u8>>> {
        let listener = UnixListener::bind(socket).unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            answers
                .into_iter()
                .map(|answer| {
                    let mut length = [0; 4];
                    stream.read_exact(&mut length).unwrap();
                    let mut request = vec![0; u32::from_be_bytes(length) as usize];
                    stream.read_exact(&mut request).unwrap();
                    stream.write_all(&(answer.len() as u32).to_be_bytes()).unwrap();
                    stream.write_all(&answer).unwrap();
                    request
                })
                .collect()
        })
    }

    fn response(message: &Message) -> Vec<u8> {
        let mut bytes = vec![COMMAND_RESPONSE];
        message.encode(&mut bytes);
        bytes
    }

    #[test]
    fn questions_are_asked_and_refusals_are_said() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("vici");
        let no = Message::new().value("success", "no").value("errmsg", "CHILD_SA not found");
        let answers = vec![
            response(&Message::new().value("version", "5.9.8")),
            response(&Message::new().value("success", "yes")),
            response(&no),
            vec![COMMAND_UNKNOWN],
            vec![7],
            vec![],
            b"\x01\x03\x01a".to_vec(),
        ];
        let daemon = daemon(&socket, answers);
        let mut client = Client::connect(&socket).unwrap();
        let version = client.ask("version", &Message::new()).unwrap();
        assert_eq!(version.text("version"), Some("5.9.8"));
        client.order("load-conn", &Message::new().value("a", "b")).unwrap();
        let mut failure = || client.order("initiate", &Message::new()).unwrap_err().to_string();
        assert_eq!(failure(), "initiate failed: CHILD_SA not found");
        assert!(failure().contains("does not know the command initiate"));
        assert_eq!(failure(), "the answer to initiate is a packet of type 7");
        assert_eq!(failure(), "the answer to initiate is a packet of type 255");
        assert!(failure().contains("it ends inside an element"));
        let requests = daemon.join().unwrap();
        assert_eq!(requests[0], b"\x00\x07version");
        assert_eq!(requests[1], b"\x00\x09load-conn\x03\x01a\x00\x01b");
        // The daemon is gone: an error, not a wait.
        assert!(matches!(client.ask("stats", &Message::new()), Err(ViciError::Io(_))));
    }
}
