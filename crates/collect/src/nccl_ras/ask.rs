//! Asks NCCL's RAS: lines over TCP, an answer until the end of the stream.
//!
//! The client says `CLIENT PROTOCOL 2`, the server answers `SERVER PROTOCOL 2`; `TIMEOUT seconds` and
//! `SET FORMAT json` are answered by `OK`, or by `ERROR: ...` where they are not known; `STATUS` is
//! answered by the report, after which the server closes (NCCL's `src/ras/client.cc`).
//!
//! Whoever listens there may be slow or endless: every wait ends, and so does the whole.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::answer::{self, Answer};

/// Where RAS listens unless NCCL_RAS_ADDR says otherwise.
pub(crate) const USUAL: &str = "localhost:28028";

/// An answer that is longer is cut.
const LONGEST: usize = 1 << 20;
/// A line of the conversation before that.
const LINE: usize = 4096;
/// How long NCCL may wait for its other processes, in s; they are asked twice at worst.
const LEG: u64 = 3;

/// How long who answers may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// To connect, and for each line of the conversation.
    pub line: Duration,
    /// For all of it.
    pub whole: Duration,
}

impl Patience {
    /// The one that NCCL needs.
    pub const USUAL: Patience =
        Patience { line: Duration::from_secs(1), whole: Duration::from_secs(4 * LEG) };
}

/// What the report is to look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// All ranks with all their counts, some 600 bytes each.
    Json,
    /// What is not as it should be.
    Text,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Silence {
    /// Nobody is there.
    #[error("nobody answers at {address}")]
    Nobody {
        /// Where.
        address: String,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// Somebody else is there.
    #[error("who answers at {address} is not NCCL's RAS")]
    Stranger {
        /// Where.
        address: String,
    },
    /// The conversation broke off.
    #[error("NCCL's RAS at {address} broke off")]
    BrokeOff {
        /// Where.
        address: String,
        /// What the system says.
        #[source]
        source: io::Error,
    },
}

/// Which protocol RAS speaks at this address; asks it for nothing else.
///
/// # Errors
/// Nobody or somebody else is there.
pub(crate) fn greet(address: &str, patience: Patience) -> Result<String, Silence> {
    Line::open(address, patience).map(|(_, protocol)| protocol)
}

/// What RAS knows of its job.
///
/// # Errors
/// Nobody or somebody else is there, or it says nothing.
pub(crate) fn ask(address: &str, form: Form, patience: Patience) -> Result<Answer, Silence> {
    let broke_off = |source| Silence::BrokeOff { address: address.to_owned(), source };
    let (mut line, _) = Line::open(address, patience)?;
    // What it does not know it refuses, and goes on.
    line.say(&format!("TIMEOUT {LEG}\n")).map_err(broke_off)?;
    line.hear().map_err(broke_off)?;
    if form == Form::Json {
        line.say("SET FORMAT json\n").map_err(broke_off)?;
        line.hear().map_err(broke_off)?;
    }
    line.say("STATUS\n").map_err(broke_off)?;
    let (bytes, whole) = line.rest().map_err(broke_off)?;
    Ok(answer::read(&bytes, whole))
}

/// A conversation.
struct Line {
    stream: TcpStream,
    until: Instant,
    patience: Patience,
    /// What was heard beyond the last line.
    heard: Vec<u8>,
}

impl Line {
    fn open(address: &str, patience: Patience) -> Result<(Line, String), Silence> {
        let nobody = |source| Silence::Nobody { address: address.to_owned(), source };
        let until = Instant::now() + patience.whole;
        let mut why = io::Error::from(io::ErrorKind::AddrNotAvailable);
        // `localhost` may be two addresses, of which RAS listens at one.
        for place in address.to_socket_addrs().map_err(nobody)?.take(4) {
            match TcpStream::connect_timeout(&place, patience.line) {
                Ok(stream) => {
                    let mut line = Line { stream, until, patience, heard: Vec::new() };
                    let protocol = line.greet().map_err(|source| Silence::BrokeOff {
                        address: address.to_owned(),
                        source,
                    })?;
                    let stranger = || Silence::Stranger { address: address.to_owned() };
                    return protocol.map(|protocol| (line, protocol)).ok_or_else(stranger);
                }
                Err(error) => why = error,
            }
        }
        Err(nobody(why))
    }

    fn greet(&mut self) -> io::Result<Option<String>> {
        self.say("CLIENT PROTOCOL 2\n")?;
        let answer = self.hear()?;
        Ok(answer.strip_prefix("SERVER PROTOCOL ").map(|version| version.trim().to_owned()))
    }

    fn say(&mut self, line: &str) -> io::Result<()> {
        self.stream.set_write_timeout(Some(self.left(self.patience.line)?))?;
        self.stream.write_all(line.as_bytes())
    }

    /// How long to wait at most, for so long or until all patience is spent.
    fn left(&self, at_most: Duration) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now()).min(at_most);
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }

    /// More bytes, after which `heard` is no longer than `limit`; 0 at the end of the stream.
    fn more(&mut self, at_most: Duration, limit: usize) -> io::Result<usize> {
        let mut buffer = [0; 16 << 10];
        let room = limit.saturating_sub(self.heard.len()).min(buffer.len());
        self.stream.set_read_timeout(Some(self.left(at_most)?))?;
        loop {
            match self.stream.read(&mut buffer[..room]) {
                Ok(read) => {
                    self.heard.extend_from_slice(&buffer[..read]);
                    return Ok(read);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// One line, with its end.
    fn hear(&mut self) -> io::Result<String> {
        let until = Instant::now() + self.patience.line;
        loop {
            if let Some(end) = self.heard.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.heard.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line).into_owned());
            }
            // Drop by drop is too slow as well.
            let left = until.saturating_duration_since(Instant::now());
            if self.heard.len() >= LINE || left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if self.more(left, LINE)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// All that comes until the end of the stream, and whether that end was seen.
    fn rest(mut self) -> io::Result<(Vec<u8>, bool)> {
        loop {
            if self.heard.len() >= LONGEST {
                return Ok((self.heard, false));
            }
            match self.more(self.patience.whole, LONGEST) {
                Ok(0) => return Ok((self.heard, true)),
                Ok(_) => {}
                Err(error) if self.heard.is_empty() => return Err(error),
                Err(_) => return Ok((self.heard, false)),
            }
        }
    }
}
