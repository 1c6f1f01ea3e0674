//! Removing a trace, but never one that somebody writes.

use std::path::Path;

use crate::dir::{Dir, Durability};
use crate::writer::take_lock;
use crate::{Error, Result};

/// Removes the trace at `path`, with all that lies in its directory.
///
/// # Errors
/// Another process writes it ([`Error::Busy`]), or it cannot be removed.
pub fn remove(path: impl AsRef<Path>) -> Result<()> {
    let dir = Dir::open_to_write(path.as_ref(), Durability::ProcessDeath, None)?;
    // Held until all is gone: whoever waits for the lock finds a file without a name, and looks again.
    let _lock = take_lock(&dir)?;
    std::fs::remove_dir_all(&dir.path).map_err(Error::io("remove", &dir.path))
}
