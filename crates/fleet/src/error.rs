//! What can go wrong, and on what.

use std::io;
use std::path::PathBuf;

/// A fleet that cannot be joined or made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No credentials, and an address that others can reach.
    #[error(
        "`{address}` is not on loopback, and there is no key: make one with `gpuwhy fleet key fleet.key`, copy \
         it to every host, and pass --fleet-key fleet.key (or pass --insecure in a network that you trust)"
    )]
    NoKey {
        /// The address.
        address: String,
    },
    /// The correlator cannot listen.
    #[error("cannot listen at `{address}`")]
    Listen {
        /// Where.
        address: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The operating system cannot wait for connections.
    #[error("cannot wait for connections")]
    Wait(#[source] io::Error),
    /// A file cannot be read, written or made.
    #[error("cannot {action} `{}`", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Others can read a key.
    #[error(
        "`{}` holds a key and its mode is {mode:03o}: others may have read it; make a new one, or `chmod 600` it",
        path.display()
    )]
    Readable {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// A key belongs to another user.
    #[error("`{}` holds a key and belongs to user {owner}, who is neither root nor us", path.display())]
    Owner {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
    },
    /// A file does not hold what it should.
    #[error("`{}` {problem}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// What a certificate or the name of a node is made of is not allowed in it.
    #[error(
        "`{name}` is no name for a host: use letters, digits, `.`, `-` and `_`, at most 64 of them"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// A certificate could not be made.
    #[error("cannot make the certificate of `{name}`")]
    Certificate {
        /// Whose.
        name: String,
        /// Why not.
        #[source]
        source: rcgen::Error,
    },
    /// The operating system gives no random numbers.
    #[error("the operating system gives no random numbers")]
    Random,
    /// TLS refuses these keys.
    #[error("TLS cannot be set up with {what}")]
    Tls {
        /// What was given.
        what: String,
        /// Why not.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// What this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;
