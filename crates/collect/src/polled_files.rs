//! Files of the kernel that are kept open and read again and again.

use std::io;
use std::path::PathBuf;

use crate::error::CollectError;

/// Reads every one of `files`. A file whose cgroup was removed is dropped.
///
/// # Errors
/// The last file that could not be read; it is kept, and the others have been read.
pub(crate) fn read_each<T>(
    files: &mut Vec<T>,
    path: impl Fn(&T) -> PathBuf,
    mut read: impl FnMut(&mut T) -> io::Result<()>,
) -> Result<(), CollectError> {
    let mut failed = None;
    files.retain_mut(|file| match read(file) {
        Ok(()) => true,
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => false,
        Err(source) => {
            failed = Some(CollectError::Read { path: path(file), source });
            true
        }
    });
    failed.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_file_is_dropped_and_a_broken_one_is_named() {
        let mut files = vec![libc::ENODEV, 0, libc::EIO];
        let path = |errno: &i32| PathBuf::from(format!("/errno/{errno}"));
        let read = |errno: &mut i32| match *errno {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        };
        let error = read_each(&mut files, path, read).unwrap_err();
        assert_eq!(error.to_string(), format!("cannot read `/errno/{}`", libc::EIO));
        assert_eq!(files, [0, libc::EIO]);
    }
}
