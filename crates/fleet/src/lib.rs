//! Several hosts: each node watches for itself and sends one correlator how long its steps took; the
//! correlator finds the rank that came late and asks that rank's node why.
//!
//! - [`Center`] is the correlator without sockets: what connections say goes in, what is to be said and told
//!   comes out. [`Correlator`] connects it to the network, on one thread.
//! - [`Session`] is a node's side of a connection without sockets; [`Link`] connects it to the network, on a
//!   thread of its own, and never blocks the recorder.
//! - [`Credentials`] say how both ends know each other: by a secret that every host has, by certificates, or
//!   not at all, which is for loopback only.
//!
//! The protocol is lines of JSON over TLS 1.3 ([`protocol`]). A node says hello, and, when it is welcome, sends
//! steps about ten times a second, its own findings, and answers to questions. No message carries a time of
//! the node's clock that the correlator would compare with another node's.
//!
//! *Invariants:* every queue, table, line and rate has a limit, on both sides; neither side trusts the other
//! with more than the other's own ranks; nothing that a peer sends reaches a terminal with control characters.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod center;
mod certificates;
mod channel;
mod error;
mod keys;
mod lines;
mod link;
pub mod protocol;
mod rate;
mod server;
mod session;
mod tls;

pub use center::{Action, Center, Conn, FleetEvent, Limits, MayBe, StragglerReport};
pub use certificates::make_certificates;
pub use channel::Channel;
pub use error::{Error, Result};
pub use keys::{add_secret, make_secret};
pub use lines::Lines;
pub use link::{Link, LinkEvent};
pub use server::{Correlator, raise_descriptors};
pub use session::Session;
pub use tls::{ClientTls, Credentials, is_loopback};

/// The port of a correlator.
pub const PORT: u16 = 7777;
