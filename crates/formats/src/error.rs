//! What can go wrong with other people's files, and on what.

use std::io;
use std::path::{Path, PathBuf};

use gpuwhy_guard::Unsound;

/// A file that cannot be read as asked.
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
    /// Something else than what was expected.
    #[error("`{}` is not {format}: {why}", path.display())]
    NotThis {
        /// The file.
        path: PathBuf,
        /// What was expected, with its article.
        format: &'static str,
        /// What gave it away, and what would help.
        why: String,
    },
    /// It is what was expected, but cut off or garbled.
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
    /// It is sound, but cannot be read as it lies there.
    #[error("`{}` cannot be read: {why}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why, and what would help.
        why: String,
    },
}

impl Error {
    pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        let path = path.to_path_buf();
        move |source| Error::Io { what, path, source }
    }

    /// Of a file that was looked over and is not to be read.
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

/// What reading a file comes to.
pub type Result<T, E = Error> = std::result::Result<T, E>;
