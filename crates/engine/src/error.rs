//! What can go wrong, and on what.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A request to the engine that cannot be met.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A trace cannot be read or written.
    #[error(transparent)]
    Store(#[from] gpuwhy_store::Error),
    /// Another tool's file cannot be read.
    #[error(transparent)]
    Format(#[from] gpuwhy_formats::Error),
    /// A running recorder failed.
    #[error(transparent)]
    Collect(#[from] gpuwhy_collect::CollectError),
    /// No recorder can be started.
    #[error("cannot record; `gpuwhy doctor` lists what this host allows")]
    Start(#[source] gpuwhy_collect::CollectError),
    /// A part of a trace cannot be read.
    #[error("cannot read the {what} of `{}`", path.display())]
    Read {
        /// Which part.
        what: &'static str,
        /// The trace.
        path: PathBuf,
        /// Why not.
        #[source]
        source: Box<Error>,
    },
    /// Something that is said of one trace is asked of several.
    #[error(
        "{option} compares with one trace: give one, or leave the option out to place machines over several hosts"
    )]
    OneTrace {
        /// The option.
        option: &'static str,
    },
    /// The operating system refused.
    #[error("cannot {action} `{}`", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A file of references is none.
    #[error("`{}` is no reference that `watch --reference` has made: {why}", path.display())]
    Reference {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and where.
        why: String,
    },
    /// A program could not be started.
    #[error("cannot run `{program}`{hint}")]
    Run {
        /// The program.
        program: String,
        /// What would help; begins with a separator, or is empty.
        hint: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A shared-memory ring for marked programs cannot be made.
    #[error("cannot make the ring `{}`", path.display())]
    Ring {
        /// Where.
        path: PathBuf,
        /// Why not.
        #[source]
        source: gpuwhy_wire::Error,
    },
    /// A process that is to be recorded is not there.
    #[error("cannot record process {pid}: there is no such process")]
    NoProcess {
        /// Its number.
        pid: i32,
    },
    /// Virtual machines are to be recorded, and there is none.
    #[error(
        "--vms: no process holds a virtual CPU of KVM (`anon_inode:kvm-vcpu` in /proc/PID/fd) that this user may see"
    )]
    NoMachines,
    /// Something lies where a trace is to be written.
    #[error("`{}` exists already; --force replaces a trace", path.display())]
    Exists {
        /// The path.
        path: PathBuf,
    },
    /// `--force` replaces traces and nothing else.
    #[error("`{}` is not a trace, so --force does not replace it", path.display())]
    NotReplaceable {
        /// The path.
        path: PathBuf,
    },
    /// The command's user cannot be become.
    #[error("cannot run the command as user {uid}")]
    User {
        /// The user.
        uid: u32,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The command is to run as somebody else, and we are not root.
    #[error("only root may run a command as another user; leave --user out, or record with sudo")]
    NotRoot,
    /// What was lent to the recorder cannot be kept from the command.
    #[error("cannot give up the recorder's capabilities before the command begins")]
    Capabilities {
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Signals cannot be passed on to a command.
    #[error("cannot catch signals to pass them on to the command")]
    Signals {
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The recorder ended before the command that waited for it.
    #[error("the recorder ended before it had started to record")]
    RecorderGone,
    /// A library that was named is not there.
    #[error("there is no library `{}`", path.display())]
    NoLibrary {
        /// The path.
        path: PathBuf,
    },
    /// A group that was named is not there.
    #[error("there is no group `{name}`; name one of /etc/group, or give its number")]
    NoGroup {
        /// As it was named.
        name: String,
    },
    /// A trace without GPU work was given to an analysis of GPU work.
    #[error("`{}` holds no kernels and no copies of a GPU, which is what `variability` compares; import it, and `gpuwhy query` shows what else it holds", path.display())]
    NoGpuWork {
        /// The report.
        path: PathBuf,
    },
    /// Nothing to compare, in a trace.
    #[error(
        "the trace `{}` holds no kernels and no copies of a GPU, which is what `variability` compares{holds}; \
         `gpuwhy diagnose` judges what its threads did, and `gpuwhy query` shows it", path.display()
    )]
    NoGpuWorkInTrace {
        /// The trace.
        path: PathBuf,
        /// What it holds instead, as far as that is known, as a clause after a comma.
        holds: String,
    },
    /// A window that holds nothing of a trace.
    #[error(
        "the window from {from:.6} to {to:.6} s holds nothing of `{}`, which is from {begins:.6} to {ends:.6} s; choose \
         one within it",
        path.display()
    )]
    EmptyWindow {
        /// The trace.
        path: PathBuf,
        /// Where the window begins, s on the clock of the trace.
        from: f64,
        /// Where it ends.
        to: f64,
        /// Where the trace begins.
        begins: f64,
        /// Where it ends.
        ends: f64,
    },
    /// A guest's trace that cannot be joined with its host's.
    #[error("{}: cannot be joined with the host's trace as that of `{vgpu}`: {why}", path.display())]
    Guest {
        /// The guest's trace.
        path: PathBuf,
        /// The tenant that it is said to be of.
        vgpu: String,
        /// Why not.
        why: String,
    },
    /// Intervals that are too short for the trace.
    #[error(
        "--interval {interval:?} cuts {seconds:.3} s into more than {most} intervals; choose at least {least:?}"
    )]
    IntervalTooShort {
        /// What was asked for.
        interval: Duration,
        /// Length of the trace.
        seconds: f64,
        /// The most intervals of one analysis.
        most: usize,
        /// The shortest interval that works.
        least: Duration,
    },
    /// Intervals that are longer than the trace.
    #[error(
        "--interval {interval:?} is longer than the trace ({seconds:.3} s); choose at most {at_most:?}"
    )]
    IntervalTooLong {
        /// What was asked for.
        interval: Duration,
        /// Length of the trace.
        seconds: f64,
        /// The longest interval that leaves several to compare.
        at_most: Duration,
    },
    /// Rows of a report are not sorted by time.
    #[error(
        "rows of `{}` are not sorted by their start ({at} ns comes too late); `gpuwhy import` sorts them",
        path.display()
    )]
    Unsorted {
        /// The report.
        path: PathBuf,
        /// The start of the first row that comes too late, ns.
        at: i64,
    },
    /// The query engine reads one trace at a time.
    #[error("--cluster reads one trace at a time; {count} were given")]
    OneTraceOnly {
        /// How many were given.
        count: usize,
    },
    /// A path that cannot be passed to another program.
    #[error("`{}` is not valid UTF-8, so it cannot be passed to gpuwhy-query", path.display())]
    NotUtf8 {
        /// The path.
        path: PathBuf,
    },
    /// The program of the query engine failed.
    #[error("gpuwhy-query failed ({status}); its own message is above")]
    QueryFailed {
        /// How it ended.
        status: std::process::ExitStatus,
    },
    /// The output of the query engine's program makes no sense.
    #[error("cannot understand line {line} of the output of gpuwhy-query: {why}")]
    QueryOutput {
        /// Counted from 1; 0 if the output as a whole is meant.
        line: usize,
        /// What is wrong.
        why: String,
    },
    /// A Perfetto trace could not be written.
    #[error("cannot write `{}`", path.display())]
    Export {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: gpuwhy_formats::perfetto::Error,
    },
    /// More rows than fit into memory.
    #[error("too many rows for one export; choose a window with --from and --to")]
    TooManyRows(#[source] gpuwhy_store::Error),
    /// A correlator cannot be run or joined.
    #[error(transparent)]
    Fleet(#[from] gpuwhy_fleet::Error),
}

/// What this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An operation of the operating system that failed on `path`.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        let path = path.to_path_buf();
        move |source| Error::Io { action, path, source }
    }

    /// The status that shells have for a command that could not be started: 127 if there is no such
    /// program, 126 if it cannot be executed; `None` if this is another error.
    pub fn exit_code(&self) -> Option<u8> {
        match self {
            Error::Run { source, .. } if source.kind() == io::ErrorKind::NotFound => Some(127),
            Error::Run { .. } => Some(126),
            _ => None,
        }
    }

    /// A part of the trace at `path` that cannot be read.
    pub(crate) fn read<E: Into<Error>>(what: &'static str, path: &Path) -> impl FnOnce(E) -> Error {
        let path = path.to_path_buf();
        move |source| Error::Read { what, path, source: Box::new(source.into()) }
    }
}
