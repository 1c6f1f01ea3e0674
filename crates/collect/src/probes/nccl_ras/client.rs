//! The client of NCCL's RAS: lines over TCP, a report until the end of the stream.
//!
//! The client sends `CLIENT PROTOCOL 2`, the server answers `SERVER PROTOCOL 2`; `TIMEOUT seconds` and
//! `SET FORMAT json` are answered by `OK`, or by `ERROR: ...` where they are not known; `STATUS` is
//! answered by the report, after which the server closes (NCCL's `src/ras/client.cc`).
//!
//! Any program may listen at that port, be slow, or send without end: every wait has a timeout, and so
//! has the whole conversation.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::answer::{self, Answer};

/// Where RAS listens unless NCCL_RAS_ADDR says otherwise.
pub(crate) const DEFAULT_ADDRESS: &str = "localhost:28028";

/// Bytes of a report; a longer one is cut.
const LONGEST: usize = 1 << 20;
/// Bytes of a line of the conversation before the report.
const LINE: usize = 4096;
/// How long NCCL may wait for its other processes, in s; it asks them twice at worst.
const COLLECTION: u64 = 3;

/// How long the conversation may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    /// To connect, and for each line before the report.
    pub line: Duration,
    /// For all of it.
    pub total: Duration,
}

impl Timeouts {
    /// What NCCL needs.
    pub const DEFAULT: Timeouts =
        Timeouts { line: Duration::from_secs(1), total: Duration::from_secs(4 * COLLECTION) };
}

/// The format of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// All ranks with all their counts, some 600 bytes each.
    Json,
    /// Only what is not as it should be.
    Text,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RasError {
    /// The connection was refused, or the address means nothing.
    #[error("nothing answers at {address}")]
    NoServer {
        /// The address.
        address: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Another program listens there.
    #[error("the server at {address} is not NCCL's RAS")]
    OtherServer {
        /// The address.
        address: String,
    },
    /// The conversation broke off.
    #[error("NCCL's RAS at {address} did not answer in full")]
    Interrupted {
        /// The address.
        address: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

/// The protocol of the RAS at this address; asks it for nothing else.
///
/// # Errors
/// No server or another one is there.
pub(crate) fn protocol(address: &str, timeouts: Timeouts) -> Result<String, RasError> {
    Connection::open(address, timeouts).map(|(_, protocol)| protocol)
}

/// The status of the job that the RAS at this address belongs to.
///
/// # Errors
/// No server or another one is there, or it sends nothing.
pub(crate) fn status(
    address: &str,
    format: Format,
    timeouts: Timeouts,
) -> Result<Answer, RasError> {
    let interrupted = |source| RasError::Interrupted { address: address.to_owned(), source };
    let (mut connection, _) = Connection::open(address, timeouts)?;
    // A server that does not know a command refuses it, and goes on.
    connection.send(&format!("TIMEOUT {COLLECTION}\n")).map_err(interrupted)?;
    connection.receive_line().map_err(interrupted)?;
    if format == Format::Json {
        connection.send("SET FORMAT json\n").map_err(interrupted)?;
        connection.receive_line().map_err(interrupted)?;
    }
    connection.send("STATUS\n").map_err(interrupted)?;
    let (bytes, complete) = connection.receive_rest().map_err(interrupted)?;
    Ok(answer::read(&bytes, complete))
}

struct Connection {
    stream: TcpStream,
    until: Instant,
    timeouts: Timeouts,
    /// Bytes received beyond the last line.
    received: Vec<u8>,
}

impl Connection {
    /// Connects and exchanges the protocol's version.
    fn open(address: &str, timeouts: Timeouts) -> Result<(Connection, String), RasError> {
        let no_server = |source| RasError::NoServer { address: address.to_owned(), source };
        let until = Instant::now() + timeouts.total;
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        // `localhost` may be two addresses, of which RAS listens at one.
        for place in address.to_socket_addrs().map_err(no_server)?.take(4) {
            match TcpStream::connect_timeout(&place, timeouts.line) {
                Ok(stream) => {
                    let mut connection =
                        Connection { stream, until, timeouts, received: Vec::new() };
                    let protocol = connection.greet().map_err(|source| RasError::Interrupted {
                        address: address.to_owned(),
                        source,
                    })?;
                    let other = || RasError::OtherServer { address: address.to_owned() };
                    return protocol.map(|protocol| (connection, protocol)).ok_or_else(other);
                }
                Err(error) => last = error,
            }
        }
        Err(no_server(last))
    }

    fn greet(&mut self) -> io::Result<Option<String>> {
        self.send("CLIENT PROTOCOL 2\n")?;
        let answer = self.receive_line()?;
        Ok(answer.strip_prefix("SERVER PROTOCOL ").map(|version| version.trim().to_owned()))
    }

    fn send(&mut self, line: &str) -> io::Result<()> {
        self.stream.set_write_timeout(Some(self.time_left(self.timeouts.line)?))?;
        self.stream.write_all(line.as_bytes())
    }

    /// How long to wait: for `at_most`, or until the time for all is over.
    fn time_left(&self, at_most: Duration) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now()).min(at_most);
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }

    /// Receives more bytes, until `received` has `limit` at most; 0 at the end of the stream.
    fn receive(&mut self, at_most: Duration, limit: usize) -> io::Result<usize> {
        let mut buffer = [0; 16 << 10];
        let room = limit.saturating_sub(self.received.len()).min(buffer.len());
        self.stream.set_read_timeout(Some(self.time_left(at_most)?))?;
        loop {
            match self.stream.read(&mut buffer[..room]) {
                Ok(read) => {
                    self.received.extend_from_slice(&buffer[..read]);
                    return Ok(read);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// One line, with its end.
    fn receive_line(&mut self) -> io::Result<String> {
        let until = Instant::now() + self.timeouts.line;
        loop {
            if let Some(end) = self.received.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line).into_owned());
            }
            // A server that sends byte by byte must not take longer either.
            let left = until.saturating_duration_since(Instant::now());
            if self.received.len() >= LINE || left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if self.receive(left, LINE)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Everything up to the end of the stream, and whether that end was seen.
    fn receive_rest(mut self) -> io::Result<(Vec<u8>, bool)> {
        loop {
            if self.received.len() >= LONGEST {
                return Ok((self.received, false));
            }
            match self.receive(self.timeouts.total, LONGEST) {
                Ok(0) => return Ok((self.received, true)),
                Ok(_) => {}
                Err(error) if self.received.is_empty() => return Err(error),
                Err(_) => return Ok((self.received, false)),
            }
        }
    }
}
