//! The system calls: Unix sockets that keep messages apart (`SOCK_SEQPACKET`), with descriptors.

use core::ptr::{null, null_mut};
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::messages::BYTES;

/// A non-blocking socket that keeps messages apart.
pub fn new_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that was just opened and that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn address(path: &Path) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: all-zero bytes are a valid address of no family.
    let mut address: libc::sockaddr_un = unsafe { zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    // The last byte stays zero.
    if bytes.len() >= address.sun_path.len() || bytes.contains(&0) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a socket's path has at most 107 bytes: choose a shorter one",
        ));
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    Ok((address, size_of::<libc::sockaddr_un>() as libc::socklen_t))
}

/// Binds the socket to `path`.
///
/// # Errors
/// The path is taken, cannot be written to, or is longer than 107 bytes.
pub fn bind(socket: &OwnedFd, path: &Path) -> io::Result<()> {
    let (address, bytes) = address(path)?;
    // SAFETY: the descriptor is open; the address lies on our stack, `bytes` long.
    let failed = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), bytes) };
    if failed != 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Listens on a bound socket.
///
/// # Errors
/// Another socket listens there.
pub fn listen(socket: &OwnedFd, backlog: i32) -> io::Result<()> {
    // SAFETY: the descriptor is open.
    let failed = unsafe { libc::listen(socket.as_raw_fd(), backlog) };
    if failed != 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A socket that is connected to the agent at `path`.
///
/// # Errors
/// No agent listens there, or too many connect at once.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    let (address, bytes) = address(path)?;
    // SAFETY: the descriptor is open; the address lies on our stack, `bytes` long.
    let failed = unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), bytes) };
    if failed != 0 { Err(io::Error::last_os_error()) } else { Ok(socket) }
}

/// The next connection to a listening socket, if one waits.
pub fn accept(listener: RawFd) -> Option<OwnedFd> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the descriptor is open; no address is asked for.
    let fd = unsafe { libc::accept4(listener, null_mut(), null_mut(), flags) };
    // SAFETY: a descriptor that was just opened and that nobody else owns.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Pid and uid of the other end when it connected.
pub fn credentials(socket: RawFd) -> Option<(i32, u32)> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open; `peer` has the size that `bytes` says.
    let failed = unsafe {
        libc::getsockopt(
            socket,
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut bytes,
        )
    };
    (failed == 0).then_some((peer.pid, peer.uid))
}

/// Whether the other end has closed its socket. A library sends nothing after its hello; whatever
/// comes is thrown away.
pub fn has_ended(socket: RawFd) -> bool {
    let mut bytes = [0; BYTES + 1];
    for _ in 0..16 {
        match receive(socket, &mut bytes) {
            Ok((0, _)) => return true,
            Ok(_) => {}
            Err(e) => return e.kind() != io::ErrorKind::WouldBlock,
        }
    }
    // No library of ours sends that much.
    true
}

/// Room for one descriptor that travels with a message (a control message of `SCM_RIGHTS`), aligned as
/// its header is.
#[repr(C, align(8))]
pub struct Control(pub [u8; 24]);

const _: () = assert!(size_of::<libc::cmsghdr>() + size_of::<RawFd>() <= 24);

/// Sends one message, and a descriptor with it.
///
/// # Errors
/// The other end has gone, or does not read.
pub fn send(socket: RawFd, bytes: &[u8; BYTES], fd: Option<RawFd>) -> io::Result<()> {
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: BYTES };
    let mut control = Control([0; 24]);
    // SAFETY: all-zero bytes are an empty message.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if let Some(fd) = fd {
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = control.0.len();
        // SAFETY: `control` has room for one header with one descriptor (asserted above), so the
        // first header and its data lie within it.
        unsafe {
            let head = libc::CMSG_FIRSTHDR(&raw const message);
            (*head).cmsg_level = libc::SOL_SOCKET;
            (*head).cmsg_type = libc::SCM_RIGHTS;
            (*head).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
            libc::CMSG_DATA(head).cast::<RawFd>().write_unaligned(fd);
            message.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as usize;
        }
    }
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the message points to parts on our stack that live through the call.
    let sent = unsafe { libc::sendmsg(socket, &raw const message, flags) };
    if sent == BYTES as isize { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Receives one message, and the descriptor that came with it. 0 bytes are the end of the connection.
///
/// # Errors
/// `WouldBlock` if there is no message, or the connection is broken.
pub fn receive(socket: RawFd, bytes: &mut [u8; BYTES + 1]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = Control([0; 24]);
    // SAFETY: all-zero bytes are an empty message.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len();
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
    // SAFETY: the message points to parts on our stack that live through the call, and says how
    // long they are.
    let n = unsafe { libc::recvmsg(socket, &raw mut message, flags) };
    if n < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut fd = None;
    // SAFETY: the kernel wrote whole headers into `control` and said how many bytes of it.
    let head = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    if head != null::<libc::cmsghdr>().cast_mut() {
        // SAFETY: as above. A header of descriptors says how many lie behind it, all of them ours
        // now; the room behind ours is for two, since headers are padded.
        unsafe {
            if (*head).cmsg_level == libc::SOL_SOCKET && (*head).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*head).cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                let first = libc::CMSG_DATA(head).cast::<RawFd>();
                for i in 0..bytes / size_of::<RawFd>() {
                    // All but the first are closed, so that they do not pile up here.
                    let one = OwnedFd::from_raw_fd(first.add(i).read_unaligned());
                    fd = fd.or(Some(one));
                }
            }
        }
    }
    Ok((n as usize, fd))
}
