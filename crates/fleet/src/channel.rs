//! One connection that never blocks: TLS or, where there are no credentials, plain.

use std::io::{self, Read as _, Write as _};
use std::sync::Arc;

use mio::event::Source;
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, Connection, ServerConfig};

/// What waits to be sent at most, bytes; what is more is for the caller to keep or to drop.
const OUT: usize = 256 << 10;
/// What rustls buffers of it.
const TLS_OUT: usize = 32 << 10;
/// What is handed to rustls at once: a record.
const RECORD: usize = 16 << 10;

/// A connection.
pub struct Channel {
    stream: TcpStream,
    tls: Option<Box<Connection>>,
    out: Vec<u8>,
    /// Whether the stream may have something to read, and take something to write.
    readable: bool,
    writable: bool,
}

/// What reading came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that came from the network.
    pub bytes: usize,
    /// Whether the other end has closed the connection.
    pub ended: bool,
    /// Whether there may be more to read.
    pub more: bool,
}

impl Channel {
    /// The correlator's end of a connection.
    pub(crate) fn accepted(
        stream: TcpStream,
        config: Option<&Arc<ServerConfig>>,
    ) -> Result<Channel, rustls::Error> {
        let tls = config.map(|config| rustls::ServerConnection::new(config.clone())).transpose()?;
        Ok(Channel::new(stream, tls.map(Connection::Server)))
    }

    /// A node's end of a connection.
    pub(crate) fn connecting(
        stream: TcpStream,
        config: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    ) -> Result<Channel, rustls::Error> {
        let tls = config.map(|(config, host)| rustls::ClientConnection::new(config, host));
        Ok(Channel::new(stream, tls.transpose()?.map(Connection::Client)))
    }

    fn new(stream: TcpStream, tls: Option<Connection>) -> Channel {
        let mut tls = tls.map(Box::new);
        if let Some(tls) = &mut tls {
            tls.set_buffer_limit(Some(TLS_OUT));
        }
        // Small lines must not wait for each other; where this fails they do.
        let _ = stream.set_nodelay(true);
        Channel { stream, tls, out: Vec::new(), readable: true, writable: true }
    }

    /// Has `registry` report what can be done with it.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.stream.register(registry, token, Interest::READABLE | Interest::WRITABLE)
    }

    /// The registry reported something.
    pub fn ready(&mut self, event: &mio::event::Event) {
        self.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
        self.writable |= event.is_writable() || event.is_error();
    }

    /// Whether both sides know each other.
    pub fn is_established(&self) -> bool {
        self.tls.as_ref().is_none_or(|tls| !tls.is_handshaking())
    }

    /// The certificate of the other end, once it is known.
    pub(crate) fn certificate(&self) -> Option<&CertificateDer<'static>> {
        self.tls.as_ref()?.peer_certificates()?.first()
    }

    /// What went wrong with the stream, such as a connection that was refused.
    pub fn error(&self) -> Option<io::Error> {
        self.stream.take_error().ok().flatten()
    }

    /// Takes a line to be sent; false if too much waits already.
    pub fn send(&mut self, line: &str) -> bool {
        let fits = self.out.len() + line.len() <= OUT;
        if fits {
            self.out.extend_from_slice(line.as_bytes());
        }
        fits
    }

    /// How many lines of those that were taken have not been handed on.
    pub fn unsent_lines(&self) -> u64 {
        self.out.iter().filter(|b| **b == b'\n').count() as u64
    }

    /// Whether something waits to be sent.
    pub fn is_sending(&self) -> bool {
        !self.out.is_empty() || self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Whether there may be something to read now.
    pub fn may_read(&self) -> bool {
        self.readable
    }

    /// Reads at most about `budget` bytes of the network into `into`, which lines are taken from.
    ///
    /// # Errors
    /// The connection broke, or the other end is not who it should be.
    pub fn read(&mut self, budget: usize, into: &mut Vec<u8>) -> io::Result<Progress> {
        let mut progress = Progress::default();
        while self.readable && !progress.ended && progress.bytes < budget {
            let got = match &mut self.tls {
                Some(tls) => read_tls(tls, &mut self.stream, into),
                None => read_plain(&mut self.stream, into),
            };
            match got {
                Ok(0) => progress.ended = true,
                Ok(bytes) => progress.bytes += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // The other end is told what was wrong, where that is possible.
                    let _ = self.flush();
                    return Err(error);
                }
            }
        }
        progress.more = self.readable && !progress.ended;
        Ok(progress)
    }

    /// Sends what waits, as far as the stream takes it.
    ///
    /// # Errors
    /// The connection broke.
    pub fn flush(&mut self) -> io::Result<()> {
        let mut sent = 0;
        while self.writable && self.is_sending_from(sent) {
            let wrote = match &mut self.tls {
                Some(tls) => {
                    if !tls.is_handshaking() {
                        let end = self.out.len().min(sent + RECORD);
                        sent += tls.writer().write(&self.out[sent..end])?;
                    }
                    if !tls.wants_write() {
                        break;
                    }
                    tls.write_tls(&mut self.stream)
                }
                None => self.stream.write(&self.out[sent..]).inspect(|n| sent += n),
            };
            match wrote {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.out.drain(..sent);
        Ok(())
    }

    fn is_sending_from(&self, sent: usize) -> bool {
        sent < self.out.len() || self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Says that nothing more will be sent, as far as the stream takes it.
    pub fn close(&mut self) {
        let _ = self.flush();
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
        }
        let _ = self.flush();
    }
}

fn read_tls(tls: &mut Connection, stream: &mut TcpStream, into: &mut Vec<u8>) -> io::Result<usize> {
    let bytes = tls.read_tls(stream)?;
    let state = tls.process_new_packets().map_err(io::Error::other)?;
    let plain = state.plaintext_bytes_to_read();
    let had = into.len();
    into.resize(had + plain, 0);
    tls.reader().read_exact(&mut into[had..])?;
    // Closed in order, with what came before it taken.
    if state.peer_has_closed() { Ok(0) } else { Ok(bytes) }
}

fn read_plain(stream: &mut TcpStream, into: &mut Vec<u8>) -> io::Result<usize> {
    let had = into.len();
    into.resize(had + 4096, 0);
    let got = stream.read(&mut into[had..]);
    into.truncate(had + got.as_ref().map_or(0, |n| *n));
    got
}
