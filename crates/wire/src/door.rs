//! How a library inside a process finds its collector, and the collector learns whose process it is.
//!
//! The collector listens on a Unix socket ([`Host`]); a library knocks ([`Visit`]) and says what it
//! can tell. It is handed a ring of its own, as a descriptor, and what it is asked to tell
//! ([`Settings`]), now and whenever that changes. So a process in a container needs to see nothing
//! of the host but the socket: no path into its mount namespace, and no word of its own about who
//! it is, since the kernel says whose socket it is (SO_PEERCRED), in the collector's own numbers.
//!
//! The ring is the collector's memory: sealed, so that nobody can cut it, and still there when the
//! process has crashed, with the last that it told. One ring a process, so that one that writes too
//! much, or garbage, harms itself alone. The socket's end is the process's end.
//!
//! Both ends believe nothing: messages have one size and a version, every wait has a limit, and
//! how many may come is bounded.

use core::ptr::{null, null_mut};
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::consumer::{Consumer, Drained};
use crate::map::{Error, Options, Ring};
use crate::producer::Producer;
use crate::record::Record;

/// The environment variable that names the collector's socket.
pub const DOOR_ENV: &str = "GPUWHY_DOOR";
/// The environment variable that turns all of it off in a process, unless it is empty or `0`.
pub const OFF_ENV: &str = "GPUWHY_OFF";
/// Where a collector of the whole host listens. A container sees it if it is mounted there.
pub const DEFAULT_DOOR: &str = "/run/gpuwhy/door";

/// Of several collectors that begin at once, none is to take the socket that another has made and does
/// not listen at yet for a dead one's: the folder is locked, if nobody holds that up, while the
/// result lives.
fn take_turn(socket: &Path) -> Option<std::fs::File> {
    let folder = socket.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = std::fs::File::open(folder.unwrap_or(Path::new("."))).ok()?;
    for _ in 0..TURN_MS {
        match folder.try_lock() {
            Ok(()) => return Some(folder),
            Err(std::fs::TryLockError::WouldBlock) => {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            Err(std::fs::TryLockError::Error(_)) => return None,
        }
    }
    None
}

/// Whether [`OFF_ENV`] says that nothing is to be done in this process.
pub fn is_off() -> bool {
    std::env::var_os(OFF_ENV).is_some_and(|v| !v.is_empty() && v != "0")
}

/// What a message begins with.
const MAGIC: u64 = u64::from_le_bytes(*b"GPUWHYDR");
const VERSION: u32 = 1;
/// Bytes of every message, either way.
const BYTES: usize = 64;
/// How long another collector may take to begin, ms.
const TURN_MS: u32 = 500;
/// How long a visitor may take to say who it is.
const SPEAK_NS: u64 = 1_000_000_000;

/// What a library may be asked to tell. Zeros are the least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Kernels and copies.
    pub kernels: Kernels,
    /// Calls that launch them.
    pub launches: bool,
    /// Collectives.
    pub collectives: Collectives,
    /// Of every so many ms …
    pub nodes_every_ms: u32,
    /// … so many tell the nodes of CUDA graphs one by one, where [`Settings::kernels`] is
    /// [`Kernels::Graphs`].
    pub nodes_for_ms: u32,
}

/// How kernels are told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Kernels {
    /// Not at all.
    #[default]
    Off = 0,
    /// One by one, but a CUDA graph as a whole.
    Graphs = 1,
    /// One by one, also those of CUDA graphs.
    Nodes = 2,
}

/// How collectives are told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Collectives {
    /// Not at all.
    #[default]
    Off = 0,
    /// That they were called.
    Calls = 1,
    /// And their phases on the device.
    Phases = 2,
    /// And what the network's threads wait for.
    Network = 3,
}

impl Settings {
    /// What costs next to nothing: kernels, copies and collectives, graphs as a whole.
    pub const USUAL: Settings = Settings {
        kernels: Kernels::Graphs,
        launches: false,
        collectives: Collectives::Calls,
        nodes_every_ms: 0,
        nodes_for_ms: 0,
    };

    /// The least: nothing.
    pub const NOTHING: Settings =
        Settings { kernels: Kernels::Off, collectives: Collectives::Off, ..Settings::USUAL };

    pub(crate) fn encode(self) -> [u8; BYTES] {
        let mut out = message();
        out[12] = self.kernels as u8;
        out[13] = self.launches.into();
        out[14] = self.collectives as u8;
        out[16..20].copy_from_slice(&self.nodes_every_ms.to_le_bytes());
        out[20..24].copy_from_slice(&self.nodes_for_ms.to_le_bytes());
        out
    }

    /// What a message says; a value that this version does not know is the least.
    fn decode(bytes: &[u8]) -> Option<Settings> {
        checked(bytes)?;
        Some(Settings {
            kernels: match bytes[12] {
                1 => Kernels::Graphs,
                2 => Kernels::Nodes,
                _ => Kernels::Off,
            },
            launches: bytes[13] == 1,
            collectives: match bytes[14] {
                1 => Collectives::Calls,
                2 => Collectives::Phases,
                3 => Collectives::Network,
                _ => Collectives::Off,
            },
            nodes_every_ms: u32_at(bytes, 16),
            nodes_for_ms: u32_at(bytes, 20),
        })
    }
}

fn message() -> [u8; BYTES] {
    let mut out = [0; BYTES];
    out[..8].copy_from_slice(&MAGIC.to_le_bytes());
    out[8..12].copy_from_slice(&VERSION.to_le_bytes());
    out
}

/// What a visitor of that pid, in its own namespace, says first.
pub(crate) fn hello(pid: u32) -> [u8; BYTES] {
    let mut out = message();
    out[12..16].copy_from_slice(&pid.to_le_bytes());
    out
}

fn checked(bytes: &[u8]) -> Option<()> {
    (bytes.len() == BYTES && bytes[..8] == MAGIC.to_le_bytes() && u32_at(bytes, 8) == VERSION)
        .then_some(())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let four = bytes.get(at..at + 4).and_then(|four| four.try_into().ok());
    four.map_or(0, u32::from_le_bytes)
}

/// Whose process a ring is, as the kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The process, in the collector's pid namespace; 0 if it lies outside it.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// What the process itself takes for its pid, in its own namespace.
    pub own_pid: u32,
}

/// What one [`Host::attend`] saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attended {
    /// All rings together.
    pub drained: Drained,
    /// Processes that have come.
    pub came: usize,
    /// Processes that have gone.
    pub gone: usize,
    /// Processes that were sent away: there were too many already, or they spoke another language.
    pub refused: usize,
}

/// The collector's end: a socket, and a ring for each process that came.
#[derive(Debug)]
pub struct Host {
    socket: OwnedFd,
    path: PathBuf,
    options: Options,
    most: usize,
    settings: Settings,
    waiting: Vec<(OwnedFd, u64)>,
    guests: Vec<Guest>,
}

#[derive(Debug)]
struct Guest {
    socket: OwnedFd,
    peer: Peer,
    consumer: Consumer,
    gone: bool,
    /// It is not asked for the nodes of CUDA graphs any more.
    spared: bool,
}

impl Guest {
    /// Who does not read is asked again by nobody; it tells what it told.
    fn ask(&self, all: Settings) {
        let _ = send(self.socket.as_raw_fd(), &self.settings(all).encode(), None);
    }

    fn settings(&self, all: Settings) -> Settings {
        match self.spared {
            true => Settings {
                kernels: match all.kernels {
                    Kernels::Nodes => Kernels::Graphs,
                    other => other,
                },
                nodes_for_ms: 0,
                nodes_every_ms: 0,
                ..all
            },
            false => all,
        }
    }
}

/// How a [`Host`] receives.
#[derive(Clone, Copy, Debug)]
pub struct Hospitality {
    /// Processes at a time.
    pub most: usize,
    /// What each gets.
    pub ring: Options,
    /// Permissions of the socket: who may connect.
    pub mode: u32,
}

impl Default for Hospitality {
    /// 64 processes of one's own, 1.1 MiB each.
    fn default() -> Hospitality {
        Hospitality { most: 64, ring: Options::default(), mode: 0o600 }
    }
}

impl Host {
    /// Listens at `path`. A socket that nobody listens on any more is replaced.
    ///
    /// # Errors
    /// [`Error::Busy`] if somebody listens there, [`Error::Io`] if it cannot be made or something
    /// else than a socket is there.
    pub fn listen(
        path: impl AsRef<Path>,
        hospitality: Hospitality,
        settings: Settings,
    ) -> Result<Host, Error> {
        let path = path.as_ref();
        let error = |tried, source| Error::Io { tried, path: path.to_owned(), source };
        let _turn = take_turn(path);
        if let Ok(meta) = std::fs::symlink_metadata(path) {
            if !meta.file_type().is_socket() {
                return Err(error("listen on", io::ErrorKind::AlreadyExists.into()));
            }
            if connect(path).is_ok() {
                return Err(Error::Busy { path: path.to_owned() });
            }
            std::fs::remove_file(path).map_err(|e| error("remove", e))?;
        }
        let socket = new_socket().map_err(|e| error("make", e))?;
        let (address, bytes) = address(path).map_err(|e| error("listen on", e))?;
        // SAFETY: the descriptor is open; the address lies on our stack, `bytes` long.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), bytes) };
        if bound != 0 {
            return Err(error("listen on", io::Error::last_os_error()));
        }
        let mode = std::fs::Permissions::from_mode(hospitality.mode);
        std::fs::set_permissions(path, mode).map_err(|e| error("set permissions of", e))?;
        // SAFETY: the descriptor is open.
        if unsafe { libc::listen(socket.as_raw_fd(), 64) } != 0 {
            return Err(error("listen on", io::Error::last_os_error()));
        }
        Ok(Host {
            socket,
            path: path.to_owned(),
            options: hospitality.ring,
            most: hospitality.most,
            settings,
            waiting: Vec::new(),
            guests: Vec::new(),
        })
    }

    /// Where it listens: what belongs into [`DOOR_ENV`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The processes that are here.
    pub fn peers(&self) -> impl Iterator<Item = Peer> {
        self.guests.iter().map(|guest| guest.peer)
    }

    /// What is asked of all, from now on.
    pub fn ask(&mut self, settings: Settings) {
        if settings != self.settings {
            self.settings = settings;
            self.guests.iter().for_each(|guest| guest.ask(settings));
        }
    }

    /// A process is not asked for the nodes of CUDA graphs any more, whatever the others are.
    pub fn spare(&mut self, pid: i32) {
        let settings = self.settings;
        for guest in self.guests.iter_mut().filter(|guest| guest.peer.pid == pid) {
            guest.spared = true;
            guest.ask(settings);
        }
    }

    /// What is asked.
    pub fn asked(&self) -> Settings {
        self.settings
    }

    /// Lets in who knocks, and gives everything that was told to `told`, process by process, and
    /// then who has gone to `left`. Does not wait.
    pub fn attend(
        &mut self,
        mut told: impl FnMut(Peer, Record<&Arc<str>>),
        mut left: impl FnMut(Peer),
    ) -> Attended {
        let now = crate::clock::now();
        let mut seen = Attended::default();
        self.open_the_door(now, &mut seen);
        self.guests.retain_mut(|guest| {
            // First the socket: whoever has closed it has written all that it will.
            guest.gone = guest.gone || has_ended(guest.socket.as_raw_fd());
            let peer = guest.peer;
            let got = guest.consumer.drain_at(now, usize::MAX, |record| told(peer, record));
            let sum = &mut seen.drained;
            sum.records += got.records;
            sum.lost += got.lost;
            sum.torn += got.torn;
            sum.abandoned += got.abandoned;
            sum.waiting |= got.waiting;
            // Behind a slot that a killed thread has left there may be whole records.
            let done = guest.gone && !got.waiting;
            if done {
                seen.gone += 1;
                left(peer);
            }
            !done
        });
        seen
    }

    fn open_the_door(&mut self, now: u64, seen: &mut Attended) {
        // As many as a full backlog a call, so that a flood of knocks takes no longer.
        for _ in 0..64 {
            let Some(socket) = accept(self.socket.as_raw_fd()) else { break };
            if self.waiting.len() + self.guests.len() >= self.most {
                seen.refused += 1;
                continue;
            }
            self.waiting.push((socket, now));
        }
        for (socket, since) in std::mem::take(&mut self.waiting) {
            let mut bytes = [0; BYTES + 1];
            match receive(socket.as_raw_fd(), &mut bytes) {
                Ok((0, _)) => {}
                Ok((n, _)) => match self.let_in(socket, &bytes[..n]) {
                    Ok(Some(guest)) => {
                        seen.came += 1;
                        self.guests.push(guest);
                    }
                    Ok(None) => seen.refused += 1,
                    // It went between its knock and its welcome: nobody was sent away.
                    Err(_) => {}
                },
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    if now.saturating_sub(since) < SPEAK_NS {
                        self.waiting.push((socket, since));
                    } else {
                        seen.refused += 1;
                    }
                }
                Err(_) => {}
            }
        }
    }

    /// A guest, or none where it is sent away; an error if it is not there any more.
    fn let_in(&self, socket: OwnedFd, hello: &[u8]) -> io::Result<Option<Guest>> {
        let who = checked(hello).and_then(|()| credentials(socket.as_raw_fd()));
        let Some((pid, uid)) = who else { return Ok(None) };
        let Ok(ring) = Ring::memfd(self.options) else { return Ok(None) };
        let peer = Peer { pid, uid, own_pid: u32_at(hello, 12) };
        let consumer = Consumer::of(ring);
        send(socket.as_raw_fd(), &self.settings.encode(), Some(consumer.as_raw_fd()))?;
        Ok(Some(Guest { socket, peer, consumer, gone: false, spared: false }))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The library's end: a ring to write to, for as long as the collector is there.
#[derive(Debug)]
pub struct Visit {
    socket: OwnedFd,
}

/// What a collector said.
#[derive(Debug)]
pub enum Heard {
    /// Write here, and what.
    Welcome(Producer, Settings),
    /// From now on, what.
    Asked(Settings),
    /// Nothing for so long.
    Nothing,
    /// It has gone, or never was one.
    Gone,
}

impl Visit {
    /// Knocks at `path`. Does not wait: the answer comes through [`Visit::hear`].
    ///
    /// # Errors
    /// Nobody listens there, or too many knock at once.
    pub fn knock(path: &Path) -> io::Result<Visit> {
        let socket = connect(path)?;
        send(socket.as_raw_fd(), &hello(std::process::id()), None)?;
        Ok(Visit { socket })
    }

    /// The descriptor, for a fork handler to close in a child.
    pub fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Waits for the collector's next word, `wait_ms` at most.
    pub fn hear(&self, wait_ms: u32) -> Heard {
        let fd = self.socket.as_raw_fd();
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let wait = i32::try_from(wait_ms).unwrap_or(i32::MAX);
        // SAFETY: one `pollfd` on our stack.
        match unsafe { libc::poll(&raw mut poll, 1, wait) } {
            0 => return Heard::Nothing,
            n if n < 0 => {
                return match io::Error::last_os_error().kind() {
                    io::ErrorKind::Interrupted => Heard::Nothing,
                    _ => Heard::Gone,
                };
            }
            _ => {}
        }
        let mut bytes = [0; BYTES + 1];
        match receive(fd, &mut bytes) {
            Ok((n, ring)) => match (Settings::decode(&bytes[..n]), ring) {
                (Some(settings), Some(ring)) => match Producer::of(ring) {
                    Ok(producer) => Heard::Welcome(producer, settings),
                    Err(_) => Heard::Gone,
                },
                (Some(settings), None) => Heard::Asked(settings),
                _ => Heard::Gone,
            },
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Heard::Nothing,
            Err(_) => Heard::Gone,
        }
    }
}

fn new_socket() -> io::Result<OwnedFd> {
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
            "a socket's path has at most 107 bytes",
        ));
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    Ok((address, size_of::<libc::sockaddr_un>() as libc::socklen_t))
}

fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    let (address, bytes) = address(path)?;
    // SAFETY: the descriptor is open; the address lies on our stack, `bytes` long.
    let failed = unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), bytes) };
    if failed != 0 { Err(io::Error::last_os_error()) } else { Ok(socket) }
}

fn accept(listener: RawFd) -> Option<OwnedFd> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the descriptor is open; no address is asked for.
    let fd = unsafe { libc::accept4(listener, null_mut(), null_mut(), flags) };
    // SAFETY: a descriptor that was just opened and that nobody else owns.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Pid and uid of the other end when it connected.
fn credentials(socket: RawFd) -> Option<(i32, u32)> {
    let mut who = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open; `who` has the size that `bytes` says.
    let failed = unsafe {
        libc::getsockopt(
            socket,
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut who).cast(),
            &raw mut bytes,
        )
    };
    (failed == 0).then_some((who.pid, who.uid))
}

/// Whether the other end has closed its socket. Visitors say nothing after their hello; whatever
/// they say is thrown away.
fn has_ended(socket: RawFd) -> bool {
    let mut bytes = [0; BYTES + 1];
    for _ in 0..16 {
        match receive(socket, &mut bytes) {
            Ok((0, _)) => return true,
            Ok(_) => {}
            Err(e) => return e.kind() != io::ErrorKind::WouldBlock,
        }
    }
    // Who talks without end is no visitor of ours.
    true
}

/// Room for one descriptor beside a message; aligned as headers of it are.
#[repr(C, align(8))]
struct Beside([u8; 24]);

const _: () = assert!(size_of::<libc::cmsghdr>() + size_of::<RawFd>() <= 24);

fn send(socket: RawFd, bytes: &[u8; BYTES], fd: Option<RawFd>) -> io::Result<()> {
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: BYTES };
    let mut beside = Beside([0; 24]);
    // SAFETY: all-zero bytes are an empty message.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if let Some(fd) = fd {
        message.msg_control = beside.0.as_mut_ptr().cast();
        message.msg_controllen = beside.0.len();
        // SAFETY: `beside` has room for one header with one descriptor (asserted above), so the
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

/// One message and the descriptor beside it; 0 bytes are the end.
fn receive(socket: RawFd, bytes: &mut [u8; BYTES + 1]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut beside = Beside([0; 24]);
    // SAFETY: all-zero bytes are an empty message.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = beside.0.as_mut_ptr().cast();
    message.msg_controllen = beside.0.len();
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
    // SAFETY: the message points to parts on our stack that live through the call, and says how
    // long they are.
    let n = unsafe { libc::recvmsg(socket, &raw mut message, flags) };
    if n < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut fd = None;
    // SAFETY: the kernel wrote whole headers into `beside` and said how many bytes of it.
    let head = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    if head != null::<libc::cmsghdr>().cast_mut() {
        // SAFETY: as above. A header of descriptors says how many lie behind it, all of them ours
        // now; the room behind ours is for two, since headers are padded.
        unsafe {
            if (*head).cmsg_level == libc::SOL_SOCKET && (*head).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*head).cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                let first = libc::CMSG_DATA(head).cast::<RawFd>();
                for i in 0..bytes / size_of::<RawFd>() {
                    // Who sends more than one has the others closed, lest they pile up here.
                    let one = OwnedFd::from_raw_fd(first.add(i).read_unaligned());
                    fd = fd.or(Some(one));
                }
            }
        }
    }
    Ok((n as usize, fd))
}

/// One end of a conversation that says anything, for tests and fuzzing.
#[derive(Debug)]
pub struct Stranger(OwnedFd);

impl Stranger {
    /// Connects to whoever listens at `path`, and says nothing.
    ///
    /// # Errors
    /// Nobody listens there.
    pub fn connect(path: &Path) -> io::Result<Stranger> {
        connect(path).map(Stranger)
    }

    /// A visitor, and who is its collector.
    ///
    /// # Errors
    /// The system gives no sockets.
    pub fn with_visit() -> io::Result<(Stranger, Visit)> {
        let mut ends = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: two descriptors fit into `ends`.
        if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: descriptors that were just opened and that nobody else owns.
        let [ours, theirs] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        Ok((Stranger(ours), Visit { socket: theirs }))
    }

    /// Says it, with at most two descriptors beside it.
    ///
    /// # Errors
    /// The other end has gone, or does not read.
    pub fn say(&self, bytes: &[u8], beside: &[RawFd]) -> io::Result<()> {
        let mut part =
            libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut room = Beside([0; 24]);
        // SAFETY: all-zero bytes are an empty message.
        let mut message: libc::msghdr = unsafe { zeroed() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        let beside = &beside[..beside.len().min(2)];
        if !beside.is_empty() {
            message.msg_control = room.0.as_mut_ptr().cast();
            message.msg_controllen = room.0.len();
            let bytes = size_of_val(beside) as u32;
            // SAFETY: the room is for one header and two descriptors.
            unsafe {
                let head = libc::CMSG_FIRSTHDR(&raw const message);
                (*head).cmsg_level = libc::SOL_SOCKET;
                (*head).cmsg_type = libc::SCM_RIGHTS;
                (*head).cmsg_len = libc::CMSG_LEN(bytes) as usize;
                let to = libc::CMSG_DATA(head).cast::<RawFd>();
                for (i, fd) in beside.iter().enumerate() {
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

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::Event;

    fn host(folder: &Path, most: usize) -> Host {
        let hospitality = Hospitality { most, ..Hospitality::default() };
        Host::listen(folder.join("door"), hospitality, Settings::USUAL).unwrap()
    }

    /// Knocks while the host attends; what the visitor heard.
    fn visit(host: &mut Host) -> (Visit, Heard, Attended) {
        let visit = Visit::knock(host.path()).unwrap();
        let seen = host.attend(|_, _| {}, |_| {});
        let heard = visit.hear(1000);
        (visit, heard, seen)
    }

    fn told(host: &mut Host) -> (Vec<(i32, String)>, Vec<i32>, Attended) {
        let (mut names, mut left) = (Vec::new(), Vec::new());
        let seen = host.attend(
            |peer, record| {
                let Event::Mark { name, .. } = record.event else { panic!("{record:?}") };
                names.push((peer.pid, name.to_string()));
            },
            |peer| left.push(peer.pid),
        );
        (names, left, seen)
    }

    #[test]
    fn a_visitor_gets_a_ring_and_is_known_by_the_kernels_word() {
        let folder = tempfile::tempdir().unwrap();
        let mut host = host(folder.path(), 4);
        let (visit, heard, seen) = visit(&mut host);
        let Heard::Welcome(producer, settings) = heard else { panic!("{heard:?}") };
        assert_eq!((seen.came, settings), (1, Settings::USUAL));
        producer.mark("hello", None);
        let me = std::process::id() as i32;
        assert_eq!(told(&mut host).0, [(me, "hello".to_string())]);

        let more = Settings { kernels: Kernels::Nodes, nodes_for_ms: 7, ..settings };
        host.ask(more);
        let Heard::Asked(asked) = visit.hear(1000) else { panic!() };
        assert_eq!(asked, more);

        producer.mark("the last word", None);
        drop(visit);
        let (names, left, _) = told(&mut host);
        assert_eq!(names, [(me, "the last word".to_string())]);
        assert_eq!(left, [me]);
        assert_eq!(host.peers().count(), 0);
    }

    #[test]
    fn who_comes_when_the_house_is_full_or_speaks_another_language_is_sent_away() {
        let folder = tempfile::tempdir().unwrap();
        let mut host = host(folder.path(), 1);
        let (_first, heard, _) = visit(&mut host);
        assert!(matches!(heard, Heard::Welcome(..)));
        let (_second, heard, seen) = visit(&mut host);
        assert!(matches!(heard, Heard::Gone));
        assert_eq!(seen.refused, 1);

        let folder = tempfile::tempdir().unwrap();
        let mut host = self::host(folder.path(), 4);
        let stranger = connect(host.path()).unwrap();
        send(stranger.as_raw_fd(), &[b'x'; BYTES], None).unwrap();
        assert_eq!(host.attend(|_, _| {}, |_| {}).refused, 1);
    }

    /// Descriptors that a stranger sends are not kept, not even those that happen to fit into the
    /// padding of the first.
    #[test]
    fn descriptors_that_nobody_asked_for_are_closed() {
        let folder = tempfile::tempdir().unwrap();
        let mut host = host(folder.path(), 4);
        // The reading end of a pipe is closed when all its copies are.
        let (reader, mut writer) = io::pipe().unwrap();
        let stranger = Stranger::connect(host.path()).unwrap();
        let fds = [reader.as_raw_fd(), reader.as_raw_fd()];
        stranger.say(&message(), &fds).unwrap();
        stranger.say(b"more", &fds).unwrap();
        assert_eq!(host.attend(|_, _| {}, |_| {}).came, 1);
        drop(reader);
        let error = io::Write::write(&mut writer, b"x").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn who_is_killed_between_knock_and_welcome_was_not_sent_away() {
        let folder = tempfile::tempdir().unwrap();
        let mut host = host(folder.path(), 4);
        let stranger = Stranger::connect(host.path()).unwrap();
        stranger.say(&hello(7), &[]).unwrap();
        drop(stranger);
        assert_eq!(host.attend(|_, _| {}, |_| {}), Attended::default());
        assert_eq!(host.peers().count(), 0);
    }

    #[test]
    fn a_door_that_nobody_answers_any_more_is_opened_again() {
        let folder = tempfile::tempdir().unwrap();
        let first = host(folder.path(), 4);
        let path = first.path().to_owned();
        let busy = Host::listen(&path, Hospitality::default(), Settings::USUAL);
        assert!(matches!(busy, Err(Error::Busy { .. })), "{busy:?}");
        // As a collector that was killed leaves it.
        let left = folder.path().join("left");
        std::fs::rename(&path, &left).unwrap();
        drop(first);
        std::fs::rename(&left, &path).unwrap();
        let mut again = Host::listen(&path, Hospitality::default(), Settings::USUAL).unwrap();
        let (_visit, heard, _) = visit(&mut again);
        assert!(matches!(heard, Heard::Welcome(..)));

        let file = folder.path().join("file");
        std::fs::write(&file, "no socket").unwrap();
        let error = Host::listen(&file, Hospitality::default(), Settings::USUAL).unwrap_err();
        assert!(error.to_string().contains("file"), "{error}");
        assert_eq!(std::fs::read(&file).unwrap(), b"no socket");
    }

    #[test]
    fn of_collectors_that_begin_at_once_one_listens_and_the_others_hear_that() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("door");
        for _ in 0..50 {
            // What a killed one has left, as often as not.
            drop(std::os::unix::net::UnixListener::bind(&path));
            let start = std::sync::Barrier::new(4);
            let listen = || {
                start.wait();
                Host::listen(&path, Hospitality::default(), Settings::USUAL)
            };
            let all: Vec<_> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(listen)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let busy = all.iter().filter(|host| matches!(host, Err(Error::Busy { .. }))).count();
            assert_eq!(busy, 3, "{all:?}");
            let mut host = all.into_iter().find_map(Result::ok).unwrap();
            let (_visit, heard, _) = visit(&mut host);
            assert!(matches!(heard, Heard::Welcome(..)));
        }
    }

    #[test]
    fn a_visitor_hears_that_its_collector_has_gone() {
        let folder = tempfile::tempdir().unwrap();
        let mut host = host(folder.path(), 4);
        let (visit, _heard, _) = visit(&mut host);
        let before = Instant::now();
        assert!(matches!(visit.hear(1), Heard::Nothing));
        drop(host);
        assert!(matches!(visit.hear(10_000), Heard::Gone));
        assert!(before.elapsed() < Duration::from_secs(9));
    }
}
