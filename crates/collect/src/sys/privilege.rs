//! What this process and its threads may do.

use std::ffi::OsString;

/// Whether this program has privileges that whoever started it may lack (file capabilities, set-user-id):
/// then its environment is theirs and not to be believed where it names code to load. The dynamic loader
/// drops `LD_*` in the same case, and knows no other variables.
pub(crate) fn is_privileged_by_its_file() -> bool {
    // SAFETY: takes a plain number and returns one.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// The library that the environment variable names, unless that would let whoever starts this program
/// load code with its file's privileges.
pub(crate) fn library_from_env(variable: &str) -> Option<OsString> {
    let named = std::env::var_os(variable).filter(|path| !path.is_empty());
    if is_privileged_by_its_file() { None } else { named }
}

/// `CAP_SYS_ADMIN` (`linux/capability.h`).
const SYS_ADMIN: u32 = 1 << 21;
/// `_LINUX_CAPABILITY_VERSION_3`: two words of 32 capabilities each.
const VERSION: u32 = 0x2008_0522;

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Words {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Takes from the calling thread, for ever, every capability that a driver's library has no use for.
/// `CAP_SYS_ADMIN` stays if the thread has it: the driver asks for it where performance counters are
/// kept to administrators (`NVreg_RestrictProfilingToAdminUsers`). Other threads keep what they have.
pub(crate) fn drop_capabilities() {
    let header = Header { version: VERSION, pid: 0 };
    let mut held = [Words::default(); 2];
    // SAFETY: the kernel reads a header and writes two words of this version; both live through the call.
    let failed = unsafe { libc::syscall(libc::SYS_capget, &raw const header, held.as_mut_ptr()) };
    if failed != 0 {
        return;
    }
    let kept = |word: u32| word & SYS_ADMIN;
    let low = Words {
        effective: kept(held[0].effective),
        permitted: kept(held[0].permitted),
        inheritable: 0,
    };
    let less = [low, Words::default()];
    // SAFETY: as above; the kernel reads the words. Fewer capabilities than before are always allowed.
    unsafe { libc::syscall(libc::SYS_capset, &raw const header, less.as_ptr()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value of a field of the calling thread's status, in hexadecimal.
    fn field(name: &str) -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("/proc is mounted");
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect(name);
        u64::from_str_radix(line.trim_start_matches(':').trim(), 16).expect(name)
    }

    #[test]
    fn a_thread_without_capabilities_leaves_its_siblings_theirs() {
        let before = field("CapEff");
        let dropped = std::thread::spawn(|| {
            drop_capabilities();
            ["CapEff", "CapPrm", "CapInh", "CapAmb"].map(field)
        });
        let dropped = dropped.join().expect("the thread ends");
        assert!(dropped.iter().all(|caps| caps & !u64::from(SYS_ADMIN) == 0), "{dropped:x?}");
        assert_eq!(field("CapEff"), before);
        if before == 0 {
            println!("skipped: this process has no capabilities that a thread could drop");
        }
    }
}
