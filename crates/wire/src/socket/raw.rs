//! One end of a connection that keeps no rules.

use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use super::client::Client;
use super::unix::{self, Control};

/// One end of a connection that sends anything, for tests and fuzzing.
#[derive(Debug)]
pub struct RawEnd(OwnedFd);

impl RawEnd {
    /// Connects to the agent at `path`, and sends nothing.
    ///
    /// # Errors
    /// No agent listens there.
    pub fn connect(path: &Path) -> io::Result<RawEnd> {
        unix::connect(path).map(RawEnd)
    }

    /// The agent's end of a connection, and the client at the other end.
    ///
    /// # Errors
    /// The system gives no sockets.
    pub fn with_client() -> io::Result<(RawEnd, Client)> {
        let mut ends = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: two descriptors fit into `ends`.
        if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: descriptors that were just opened and that nobody else owns.
        let [ours, theirs] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        Ok((RawEnd(ours), Client { socket: theirs }))
    }

    /// Sends one message, with at most two descriptors.
    ///
    /// # Errors
    /// The other end has gone, or does not read.
    pub fn send(&self, bytes: &[u8], descriptors: &[RawFd]) -> io::Result<()> {
        let mut part =
            libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut room = Control([0; 24]);
        // SAFETY: all-zero bytes are an empty message.
        let mut message: libc::msghdr = unsafe { zeroed() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        let descriptors = &descriptors[..descriptors.len().min(2)];
        if !descriptors.is_empty() {
            message.msg_control = room.0.as_mut_ptr().cast();
            message.msg_controllen = room.0.len();
            let bytes = size_of_val(descriptors) as u32;
            // SAFETY: the room is for one header and two descriptors.
            unsafe {
                let head = libc::CMSG_FIRSTHDR(&raw const message);
                (*head).cmsg_level = libc::SOL_SOCKET;
                (*head).cmsg_type = libc::SCM_RIGHTS;
                (*head).cmsg_len = libc::CMSG_LEN(bytes) as usize;
                let to = libc::CMSG_DATA(head).cast::<RawFd>();
                for (i, fd) in descriptors.iter().enumerate() {
                    to.add(i).write_unaligned(*fd);
                }
                message.msg_controllen = libc::CMSG_SPACE(bytes) as usize;
            }
        }
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: the message points to parts that live through the call.
        let sent = unsafe { libc::sendmsg(self.0.as_raw_fd(), &raw const message, flags) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}
