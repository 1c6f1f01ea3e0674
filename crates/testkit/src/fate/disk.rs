//! Disks that get full or fail while a command is recorded.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::process::{finish, first_line, spawn};
use super::{Kept, Try};

/// A small disk of its own, in memory; it goes away with the value.
pub struct Disk(PathBuf);

impl Disk {
    /// At `path`, of so many KiB; `None` where none can be made.
    pub fn new(path: &Path, kib: u64) -> Option<Disk> {
        std::fs::create_dir_all(path).ok()?;
        let size = format!("size={kib}k");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &size, "gpuwhy-test"]).arg(path);
        let mounted = mount.stderr(Stdio::null()).status().is_ok_and(|status| status.success());
        mounted.then(|| Disk(path.to_path_buf()))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// What fills a disk, until it is dropped.
pub struct Full(PathBuf);

impl Full {
    /// Leaves so many KiB of a disk of `kib`.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn leaving(disk: &Disk, kib: u64, left: u64) -> Result<Full, String> {
        let path = disk.path().join("ballast");
        let bytes = vec![0; (kib.saturating_sub(left) as usize) << 10];
        std::fs::write(&path, bytes).map_err(|error| error.to_string())?;
        Ok(Full(path))
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Whether `strace` can be used here; scripts/setup.sh bench installs it.
pub fn strace_works() -> bool {
    let ran = Command::new("strace").args(["-qq", "-e", "trace=none", "true"]).output();
    ran.is_ok_and(|output| output.status.success())
}

/// A command that does a good deal that is recorded, and comes to its own end.
fn busy(result: &Path, seconds: f64, code: u64) -> String {
    format!(
        "echo ready; end=$(($(date +%s%N) + {:.0})); while [ $(date +%s%N) -lt $end ]; do :; done; echo {code} \
         > {}; exit {code}",
        seconds * 1e9,
        result.display()
    )
}

pub(super) fn gets_full(this: &Try<'_>) -> Kept {
    const KIB: u64 = 4096;
    let Some(disk) = Disk::new(&this.folder.join("disk"), KIB) else {
        return Err("skipped: no tmpfs can be mounted here".into());
    };
    let _full = Full::leaving(&disk, KIB, 60 + this.draw(0, 200))?;
    let code = this.draw(1, 256);
    let result = this.folder.join("result");
    let script = busy(&result, 1.5, code);
    let ran = super::run(
        &mut this.wrapper.command(&disk.path().join("t.trace"), &["sh", "-c", &script]),
    )?;
    comes_to_its_end(&ran, &result, code)
}

/// A call of the writer's fails from some moment on, or for a while, as on a disk that is broken or was made
/// read-only.
pub(super) fn fails(this: &Try<'_>) -> Kept {
    if !strace_works() {
        return Err("skipped: there is no strace; scripts/setup.sh bench installs it".into());
    }
    let code = this.draw(1, 256);
    let result = this.folder.join("result");
    let script = busy(&result, 1.0, code);
    let front = this.wrapper.front(&this.trace());
    let mut command = Fault::drawn(this, 0).strace();
    command.args(&front).args(["sh", "-c", &script]);
    let mut child = spawn(command.stdin(Stdio::null()))?;
    if first_line(&mut child)? != "ready" {
        let ran = finish(child)?;
        // The first write of all failed: then the command must not have begun.
        return match ran.status.code() {
            Some(1) if !result.exists() => Ok(()),
            _ => Err(format!("it neither ran nor was refused: {}, {}", ran.status, ran.said())),
        };
    }
    let ran = finish(child)?;
    comes_to_its_end(&ran, &result, code)
}

fn comes_to_its_end(ran: &super::Finished, result: &Path, code: u64) -> Kept {
    if !result.exists() {
        return Err(format!("gpuwhy ended before the command: {}", ran.said()));
    }
    ran.exits_with(code as i32)
}

/// What a disk does wrong.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The system call that fails.
    pub call: &'static str,
    /// With what.
    pub errno: &'static str,
    /// The first call that fails, from 1 on, and how many after it; `None` for all.
    pub first: u64,
    /// How many fail; all that follow if `None`.
    pub count: Option<u64>,
}

/// What writes, syncs, names and removes: of a journal, of sealed files, of the manifest.
/// Not among them are calls that every program makes, `write` and `openat`: the command would fail too.
const CALLS: &[&str] = &[
    "pwrite64",
    "ftruncate",
    "fsync",
    "rename,renameat,renameat2",
    "mkdir,mkdirat",
    "unlink,unlinkat,rmdir",
];

impl Fault {
    /// One that is drawn.
    pub fn drawn(this: &Try<'_>, what: u64) -> Fault {
        let call = CALLS[this.draw(what << 8 | 2, CALLS.len() as u64) as usize];
        let errno = ["ENOSPC", "EIO", "EROFS"][this.draw(what << 8 | 3, 3) as usize];
        let first = 1 + this.draw(what << 8 | 4, 8);
        let count = (this.draw(what << 8 | 5, 2) == 0).then(|| 1 + this.draw(what << 8 | 6, 5));
        Fault { call, errno, first, count }
    }

    /// One for a program that only writes: also calls that every program makes may fail, but not before it
    /// has been loaded.
    pub fn drawn_for_a_writer(this: &Try<'_>) -> Fault {
        let fault = Fault::drawn(this, 1);
        match this.draw(12, 4) {
            0 => Fault { call: "openat,openat2", first: 20 + this.draw(13, 60), ..fault },
            1 => Fault { call: "write", first: 1 + this.draw(14, 60), ..fault },
            _ => Fault { first: 1 + this.draw(15, 30), ..fault },
        }
    }

    /// `strace` that lets it happen to the program whose words follow, and to those that it starts.
    pub fn strace(&self) -> Command {
        let when = match self.count {
            None => format!("{}+", self.first),
            Some(count) => format!("{}..{}", self.first, self.first + count - 1),
        };
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qqq", "--seccomp-bpf", "-o", "/dev/null"]);
        strace.arg("-e").arg(format!("trace={}", self.call));
        strace.arg("-e").arg(format!("inject={}:error={}:when={when}", self.call, self.errno));
        strace
    }
}
