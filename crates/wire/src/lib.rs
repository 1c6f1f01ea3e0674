//! How programs report their steps to gpuwhy: fixed-size records in a bounded ring of shared memory,
//! with many producers (threads of many processes) and one consumer.
//!
//! The producers are other people's programs, so nothing here blocks, prints or fails in them: a full
//! ring means count and go on, and without a ring every call is a branch. The consumer trusts nothing
//! that it reads: every value is copied out first and checked afterwards, every loop is bounded, and
//! lost, torn and abandoned records are counted.
//!
//! # The ring
//!
//! Slots carry sequence numbers, after Vyukov's bounded MPMC queue. A slot is *free for position
//! p* when its sequence is `p`; a producer reserves the position by moving `head` from `p` to
//! `p + 1`, writes the record, and publishes it by compare-exchange of the sequence from `p` to
//! `p + 1`; the consumer copies the record out and frees the slot for the next lap, `p + slots`.
//!
//! A producer may be killed or stopped between reserve and publish. The consumer waits for such a
//! slot for a bounded time and then takes it away, by compare-exchange from `p` to `p + slots`.
//! If the producer comes back, its publish fails, but it may have written into a slot that is
//! somebody else's by now. Therefore each record carries a checksum over its words *and its
//! position*: a mixture, and a whole record of another lap, are both seen as torn.
//!
//! # Names
//!
//! Records name things by number. The numbers are places in an append-only table in the same
//! memory, so that they outlive the processes on either side.
//!
//! # The agent socket
//!
//! A program that marks its steps opens a ring by its path ([`Producer`]). A library that is loaded
//! into another program's process connects to the agent's socket instead ([`Client`], [`Server`]) and
//! receives a ring of its own, whenever the agent comes ([`connected`]).
//!
//! # GPU code
//!
//! [`images`] is how an object between a program and its GPU driver hands the program's kernels to a controller
//! that puts probes into them.
//!
//! # C
//!
//! `include/gpuwhy.h` is the same client for C and C++ programs, without a library to link.

#![cfg_attr(not(any(feature = "std", loom)), no_std)]

#[cfg(feature = "std")]
mod clock;
#[cfg(all(feature = "std", not(loom)))]
pub mod connected;
#[cfg(feature = "std")]
mod consumer;
#[cfg(feature = "std")]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(feature = "std")]
pub mod images;
#[cfg(feature = "std")]
mod map;
#[cfg(feature = "std")]
mod pidfd;
#[cfg(feature = "std")]
mod producer;
#[cfg(any(feature = "std", loom))]
mod published;
#[cfg(feature = "std")]
mod socket;
#[cfg(feature = "std")]
mod thread;

pub mod layout;
mod record;
pub mod ring;
mod sync;

#[cfg(feature = "std")]
pub use clock::now;
#[cfg(feature = "std")]
pub use consumer::{Consumer, Drained};
#[cfg(feature = "std")]
pub use map::{Error, Options, Ring};
#[cfg(feature = "std")]
pub use pidfd::PidFd;
#[cfg(feature = "std")]
pub use producer::{ENV, Label, Phase, Producer, Step, Stream};
pub use record::{BadRecord, Event, NameId, Record, decode, encode, seal};
#[cfg(feature = "std")]
pub use socket::{
    Client, ClientLimits, Collectives, DEFAULT_SOCKET, Host, Kernels, OFF_ENV, Peer, Polled,
    Received, SOCKET_ENV, Server, ServerOptions, Settings, is_off,
};
#[cfg(feature = "std")]
pub use thread::spawn_without_signals;
