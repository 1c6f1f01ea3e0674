//! Removing a trace, but never one that somebody writes, and putting one in its place.

use std::path::Path;

use rustix::fs;

use crate::beneath::folder_and_name;
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
    dir.root.remove_all(&dir.path).map_err(Error::io("remove", &dir.path))
}

/// Gives the directory at `made` the name `place`, which lies in the same folder, and where nothing lies or an
/// empty directory. Root follows no link on the way that another user made.
///
/// # Errors
/// Something lies in the place, or it cannot be renamed.
pub fn put_in_place(made: impl AsRef<Path>, place: impl AsRef<Path>) -> Result<()> {
    let (made, place) = (made.as_ref(), place.as_ref());
    let put = || -> std::io::Result<()> {
        let (folder, name) = folder_and_name(place)?;
        let from = made.file_name().filter(|_| made.parent() == place.parent());
        let from = from.ok_or(std::io::ErrorKind::CrossesDevices)?;
        Ok(fs::renameat(&folder, from, &folder, name)?)
    };
    put().map_err(Error::io("put the trace at", place))
}
