//! Programs of kernels that stand by: they are loaded switched off, and switched on for some seconds by who watches.
//!
//! Whoever has such programs waits at a socket in the folder of the watcher's own; it keeps what it is asked for within bounds of
//! its own.

use std::fs;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

const MAGIC: [u8; 8] = *b"GPUWHYSB";
/// What the names of sockets begin and end with; between them stands the process.
const NAME: (&str, &str) = ("standby.", ".sock");
/// The longest time that can be asked for.
const MOST: Duration = Duration::from_secs(60);

/// A place where a request is waited for; removed with the value.
#[derive(Debug)]
pub struct StandBy {
    socket: UnixDatagram,
    path: PathBuf,
}

impl StandBy {
    /// In this folder.
    ///
    /// # Errors
    /// It cannot be written to, or its path is longer than a socket's may be (107 bytes).
    pub fn wait_in(folder: &Path) -> io::Result<StandBy> {
        let path = folder.join(format!("{}{}{}", NAME.0, std::process::id(), NAME.1));
        // Of a process that had this number before.
        let _ = fs::remove_file(&path);
        let socket = UnixDatagram::bind(&path)?;
        Ok(StandBy { socket, path })
    }

    /// For how long the programs are to be on from now, if anybody asks within this time.
    pub fn asked(&self, within: Duration) -> Option<Duration> {
        self.socket.set_read_timeout(Some(within.max(Duration::from_millis(1)))).ok()?;
        let mut bytes = [0; 17];
        let length = self.socket.recv(&mut bytes).ok()?;
        let (magic, rest) = bytes.split_at(8);
        if length != 16 || magic != MAGIC {
            return None;
        }
        let ms = u64::from_le_bytes(rest[..8].try_into().ok()?);
        Some(Duration::from_millis(ms).min(MOST))
    }
}

impl Drop for StandBy {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Asks all who stand by in a folder to be on for so long from now. How many were asked; who does not take it at once is not
/// waited for.
pub fn switch_on(folder: &Path, time: Duration) -> usize {
    let Ok(socket) = UnixDatagram::unbound() else { return 0 };
    if socket.set_nonblocking(true).is_err() {
        return 0;
    }
    let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let message = [MAGIC, ms.to_le_bytes()].concat();
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let stands_by = |name: &str| name.starts_with(NAME.0) && name.ends_with(NAME.1);
    let sockets = entries.filter(|entry| entry.file_name().to_str().is_some_and(stands_by));
    sockets.filter(|entry| socket.send_to(&message, entry.path()).is_ok()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_stands_by_in_a_folder_is_asked_and_nobody_else() {
        let folder = std::env::temp_dir().join(format!("gpuwhy-standby-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        assert_eq!(switch_on(&folder, MOST), 0, "nobody is there");
        let here = StandBy::wait_in(&folder).unwrap();
        let short = Duration::from_millis(20);
        assert_eq!(here.asked(short), None);
        fs::write(folder.join("standby.1.sock"), "").unwrap();
        fs::write(folder.join("agent.sock"), "").unwrap();
        assert_eq!(switch_on(&folder, Duration::from_millis(1500)), 1);
        assert_eq!(here.asked(short), Some(Duration::from_millis(1500)));
        switch_on(&folder, Duration::from_secs(1 << 40));
        assert_eq!(here.asked(short), Some(MOST));
        // What is none of these messages is nothing.
        let other = UnixDatagram::unbound().unwrap();
        for message in [&b"GPUWHYSB"[..], b"GPUWHYSA12345678", b"GPUWHYSB123456789", b""] {
            other.send_to(message, &here.path).unwrap();
            assert_eq!(here.asked(short), None, "{message:?}");
        }
        let path = here.path.clone();
        drop(here);
        assert!(!path.exists());
        assert!(StandBy::wait_in(Path::new("/nowhere")).is_err());
        fs::remove_dir_all(&folder).unwrap();
    }
}
