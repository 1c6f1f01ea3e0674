//! Errors about files of other tools.

use std::io;
use std::path::{Path, PathBuf};

use gpuwhy_guard::Unsound;

/// A file that cannot be read as asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
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
    /// The file is of another format.
    #[error("`{}` is not {format}: {why}", path.display())]
    NotThis {
        /// The file.
        path: PathBuf,
        /// What was expected, with its article.
        format: &'static str,
        /// How it differs, and what to do.
        why: String,
    },
    /// The file is of this format, but cut off or garbled.
    #[error("`{}` is damaged, {place}: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where in it.
        place: String,
        /// What is wrong there.
        what: String,
    },
    /// No importer recognises it.
    #[error("cannot import `{}`: none of the known formats; {looks}. Known: {known}", path.display())]
    Unknown {
        /// The file.
        path: PathBuf,
        /// How it begins and what that looks like.
        looks: String,
        /// The formats that can be imported.
        known: String,
    },
    /// Files of two formats were given to be read as one trace.
    #[error(
        "cannot import files of two formats as one trace: `{}` ({first_format}) and `{}` \
         ({other_format}); import each format on its own",
        first.display(), other.display()
    )]
    Mixed {
        /// The first file.
        first: PathBuf,
        /// Its format.
        first_format: &'static str,
        /// The first file of another format.
        other: PathBuf,
        /// The format of that one.
        other_format: &'static str,
    },
    /// Files that were given to be read as one trace are not of one job.
    #[error(
        "cannot import `{}` and `{}` as one trace: {why}; import each on its own",
        first.display(), other.display()
    )]
    Unrelated {
        /// One of the files.
        first: PathBuf,
        /// The file that does not belong to it.
        other: PathBuf,
        /// Why they do not belong together.
        why: String,
    },
    /// The format can be imported, but not summarised as it is.
    #[error(
        "cannot summarise `{}` ({format}) directly; run `gpuwhy import {} -o T.trace` and give \
         T.trace instead",
        path.display(), path.display()
    )]
    ImportFirst {
        /// The file.
        path: PathBuf,
        /// Its format.
        format: &'static str,
    },
    /// Nothing was given to import.
    #[error("no file was given to import")]
    NoFiles,
    /// The file is sound, but cannot be read as it is.
    #[error("`{}` cannot be read: {why}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why, and what to do.
        why: String,
    },
}

impl Error {
    pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        let path = path.to_path_buf();
        move |source| Error::Io { what, path, source }
    }

    /// The error for a table that `guard` refuses.
    pub(crate) fn unsound(path: &Path) -> impl FnOnce(Unsound) -> Error {
        let path = path.to_path_buf();
        move |unsound| match unsound {
            Unsound::Io { what, source } => Error::Io { what, path, source },
            Unsound::Damaged(what) => Error::damaged(&path, "as a table", what),
            Unsound::Parquet { place, source } => Error::damaged(&path, place, source.to_string()),
        }
    }

    pub(crate) fn damaged(path: &Path, place: impl Into<String>, what: impl Into<String>) -> Error {
        Error::Damaged { path: path.into(), place: place.into(), what: what.into() }
    }
}

/// The result of reading a file.
pub type Result<T, E = Error> = std::result::Result<T, E>;
