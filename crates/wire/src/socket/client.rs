//! The library's end of the agent socket.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;

use super::messages::{BYTES, Settings, hello};
use super::unix;
use crate::producer::Producer;

/// A connection to the agent.
#[derive(Debug)]
pub struct Client {
    pub(super) socket: OwnedFd,
}

/// What [`Client::recv`] received.
#[derive(Debug)]
pub enum Received {
    /// The ring to write to, and what to record.
    Welcome(Producer, Settings),
    /// What to record from now on.
    Settings(Settings),
    /// Nothing in the given time.
    Nothing,
    /// The agent has gone, has refused the process, or is of another version.
    Closed,
}

impl Client {
    /// Connects to the agent socket at `path`. Does not wait: the answer comes through
    /// [`Client::recv`].
    ///
    /// # Errors
    /// No agent listens there, or too many connect at once.
    pub fn connect(path: &Path) -> io::Result<Client> {
        let socket = unix::connect(path)?;
        unix::send(socket.as_raw_fd(), &hello(std::process::id()), None)?;
        Ok(Client { socket })
    }

    /// The descriptor, for a fork handler to close in a child.
    pub fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Waits for the agent's next message, `wait_ms` at most.
    pub fn recv(&self, wait_ms: u32) -> Received {
        let fd = self.socket.as_raw_fd();
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let wait = i32::try_from(wait_ms).unwrap_or(i32::MAX);
        // SAFETY: one `pollfd` on our stack.
        match unsafe { libc::poll(&raw mut poll, 1, wait) } {
            0 => return Received::Nothing,
            n if n < 0 => {
                return match io::Error::last_os_error().kind() {
                    io::ErrorKind::Interrupted => Received::Nothing,
                    _ => Received::Closed,
                };
            }
            _ => {}
        }
        let mut bytes = [0; BYTES + 1];
        match unix::receive(fd, &mut bytes) {
            Ok((n, ring)) => match (Settings::decode(&bytes[..n]), ring) {
                (Some(settings), Some(ring)) => match Producer::of(ring) {
                    Ok(producer) => Received::Welcome(producer, settings),
                    Err(_) => Received::Closed,
                },
                (Some(settings), None) => Received::Settings(settings),
                _ => Received::Closed,
            },
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Received::Nothing,
            Err(_) => Received::Closed,
        }
    }
}
