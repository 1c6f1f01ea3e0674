//! The agent socket: how a library inside a process finds the agent, and the agent learns whose
//! process it is.
//!
//! The agent, which is a recorder, listens on a Unix socket ([`Server`]); a library connects
//! ([`Client`]) and sends a hello. It receives a ring of its own, as a descriptor, and what to record
//! ([`Settings`]), now and whenever that changes. So a process in a container needs to see nothing of
//! the host but the socket: no path into its mount namespace, and it cannot lie about which process it
//! is, since the kernel says whose socket that is (SO_PEERCRED), in the agent's pid namespace.
//!
//! The ring is the agent's memory: sealed, so that it cannot be truncated, and still there when the
//! process has crashed, with the last records that it wrote. Each process has one ring, so that one
//! that writes too much, or garbage, harms itself alone. When the socket closes, the process is gone.
//!
//! Neither end trusts the other: messages have one size and a version, every wait has a limit, and
//! the number of processes is bounded.
//!
//! | file | what it knows |
//! |---|---|
//! | `client` | the library's end |
//! | `server` | the agent's end |
//! | `messages` | what is sent, byte by byte |
//! | `unix` | the system calls |
//! | `raw` | an end that sends anything, for tests and fuzzing |

mod client;
mod messages;
mod raw;
mod server;
#[cfg(test)]
mod tests;
pub(crate) mod unix;

pub use client::{Client, Received};
pub(crate) use messages::hello;
pub use messages::{Collectives, Kernels, Settings};
pub use raw::RawEnd;
pub use server::{ClientLimits, Host, Peer, Polled, Server, ServerOptions};

/// The environment variable that names the agent socket.
pub const SOCKET_ENV: &str = "GPUWHY_SOCKET";
/// The environment variable that turns all libraries off in a process, unless it is empty or `0`.
pub const OFF_ENV: &str = "GPUWHY_OFF";
/// Where the agent of a whole host listens. A container sees it if it is mounted there.
pub const DEFAULT_SOCKET: &str = "/run/gpuwhy/agent.sock";

/// Whether [`OFF_ENV`] says that nothing is to be done in this process.
pub fn is_off() -> bool {
    std::env::var_os(OFF_ENV).is_some_and(|v| !v.is_empty() && v != "0")
}
