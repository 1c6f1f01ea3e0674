//! What can go wrong with a trace directory, and on what.

use std::io;
use std::path::{Path, PathBuf};

use gpuwhy_guard::Unsound;
use gpuwhy_schema::{SchemaError, VERSION};

/// A trace that cannot be read or written as asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused.
    #[error("cannot {what} `{}`", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Something else than a trace lies there.
    #[error("`{}` is not a trace: {why}", path.display())]
    NotATrace {
        /// What was opened.
        path: PathBuf,
        /// What gave it away.
        why: String,
    },
    /// Something lies where a new trace was to be made.
    #[error("`{}` exists already; choose another path or remove it", path.display())]
    Exists {
        /// The path.
        path: PathBuf,
    },
    /// Another process writes there.
    #[error("another process is writing `{}`", path.display())]
    Busy {
        /// The trace.
        path: PathBuf,
    },
    /// Somebody else's trace is read as it lies, and not written.
    #[error("`{}` is not written, since {why}", path.display())]
    NotOurs {
        /// The trace.
        path: PathBuf,
        /// Whose it is.
        why: String,
    },
    /// Written by another version.
    #[error("`{}` has schema version {found}, this program reads version {VERSION}", path.display())]
    Version {
        /// The file that says so.
        path: PathBuf,
        /// What it says.
        found: String,
    },
    /// `trace.toml` is not what it should be.
    #[error("cannot understand `{}`", path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// Where in it, and why.
        #[source]
        source: Box<toml::de::Error>,
    },
    /// A file is cut off, garbled, or not what `trace.toml` says.
    #[error("`{}` is damaged: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where in the file.
        what: String,
    },
    /// A file is not Parquet as we read it.
    #[error("cannot read `{}` as Parquet, {place}", path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// Where in it.
        place: String,
        /// Why.
        #[source]
        source: parquet::errors::ParquetError,
    },
    /// Rows that their table does not allow.
    #[error("`{}`, {place}", path.display())]
    Schema {
        /// The file.
        path: PathBuf,
        /// Where in it.
        place: String,
        /// What is wrong with it.
        #[source]
        source: Box<SchemaError>,
    },
    /// More than the caller was ready to hold.
    #[error(
        "`{}` holds more than {limit} rows in the range asked for; ask for a shorter range",
        path.display()
    )]
    TooMany {
        /// The trace.
        path: PathBuf,
        /// The limit, in rows of all tables.
        limit: usize,
    },
    /// Rows could not be written for so long that some had to be dropped.
    #[error("{rows} rows for `{}` were dropped, because they could not be written", path.display())]
    Lost {
        /// The trace.
        path: PathBuf,
        /// How many in all.
        rows: u64,
    },
    /// A set of traces cannot be made one.
    #[error("cannot merge into `{}`: {why}", path.display())]
    Merge {
        /// The trace that was to be made.
        path: PathBuf,
        /// Why not.
        why: String,
    },
}

/// What this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Io { what, path: path.into(), source }
    }

    pub(crate) fn schema(
        path: &Path,
        place: impl Into<String>,
    ) -> impl FnOnce(SchemaError) -> Error {
        move |source| Error::Schema {
            path: path.into(),
            place: place.into(),
            source: Box::new(source),
        }
    }

    /// Of a file that was looked over and is not to be read.
    pub(crate) fn unsound(path: &Path) -> impl FnOnce(Unsound) -> Error {
        let path = path.to_path_buf();
        move |unsound| match unsound {
            Unsound::Io { what, source } => Error::Io { what, path, source },
            Unsound::Damaged(what) => Error::Damaged { path, what },
            Unsound::Parquet { place, source } => Error::Parquet { path, place, source },
        }
    }

    pub(crate) fn damaged(path: &Path, what: impl Into<String>) -> Error {
        Error::Damaged { path: path.into(), what: what.into() }
    }

    /// Whether a file was not there.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Error::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}
