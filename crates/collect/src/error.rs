//! Why something could not be recorded.

use std::error::Error;
use std::io;
use std::path::PathBuf;

/// Why something could not be recorded.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// The kernel refused a BPF object.
    #[error("cannot load the BPF programs of `{probe}`{message}")]
    Load {
        /// The probe.
        probe: &'static str,
        /// The last warning of the verifier or of libbpf, in brackets; may be empty.
        message: String,
        /// libbpf's error.
        #[source]
        source: libbpf_rs::Error,
    },
    /// The kernel refused to attach a BPF program.
    #[error("cannot attach `{probe}` to {target}")]
    Attach {
        /// The probe.
        probe: &'static str,
        /// The tracepoint or function.
        target: String,
        /// libbpf's error.
        #[source]
        source: libbpf_rs::Error,
    },
    /// A BPF map could not be read or written.
    #[error("cannot access the BPF map `{map}`")]
    Map {
        /// The map.
        map: &'static str,
        /// libbpf's error.
        #[source]
        source: libbpf_rs::Error,
    },
    /// A file could not be read.
    #[error("cannot read `{path}`")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A system call failed.
    #[error("cannot {action}")]
    System {
        /// What was tried, on what.
        action: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A target that does not exist.
    #[error("cannot record process {pid}: there is no such process")]
    NoProcess {
        /// Its number.
        pid: i32,
    },
    /// The ring of marked steps cannot be opened.
    #[error("cannot read marked steps from the ring `{path}`")]
    Ring {
        /// The ring.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: gpuwhy_wire::Error,
    },
    /// The socket at which in-process libraries connect cannot be opened.
    #[error("cannot listen on the agent socket `{path}`")]
    Socket {
        /// The socket.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: gpuwhy_wire::Error,
    },
    /// A function to be traced was not found.
    #[error("no function `{symbol}` in `{binary}`{hint}")]
    Symbol {
        /// The binary.
        binary: PathBuf,
        /// The function that was asked for.
        symbol: String,
        /// Similar names, or what else would help; begins with a separator.
        hint: String,
    },
    /// This host lacks what the probe needs.
    #[error("{missing}; {fix}")]
    Unsupported {
        /// What is missing.
        missing: String,
        /// What would change that.
        fix: String,
    },
}

/// An error with its causes, in one line.
pub(crate) fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
