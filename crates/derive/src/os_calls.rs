//! What calls of the operating system's libraries do, by their names, as profilers record them.

/// Those that read and write files,
const READS_AND_WRITES: &[&str] = &[
    "read",
    "pread",
    "readv",
    "preadv",
    "write",
    "pwrite",
    "writev",
    "pwritev",
    "fread",
    "fwrite",
    "getc",
    "fgetc",
    "getchar",
    "fgets",
    "getline",
    "getdelim",
    "putc",
    "fputc",
    "putchar",
    "fputs",
    "puts",
    "fflush",
    "fsync",
    "fdatasync",
    "sync",
    "syncfs",
    "msync",
    "open",
    "openat",
    "creat",
    "close",
    "fopen",
    "fdopen",
    "freopen",
    "fclose",
    "fseek",
    "lseek",
    "sendfile",
    "splice",
    "copy_file_range",
    "printf",
    "fprintf",
    "vprintf",
    "vfprintf",
    "dprintf",
    "scanf",
    "fscanf",
    "vfscanf",
];
/// sleep,
const SLEEPS: &[&str] = &["sleep", "usleep", "nanosleep", "clock_nanosleep", "pause"];
/// wait for events,
const EVENTS: &[&str] = &[
    "poll",
    "ppoll",
    "select",
    "pselect",
    "epoll_wait",
    "epoll_pwait",
    "sigwait",
    "sigwaitinfo",
    "sigtimedwait",
    "sigsuspend",
];
/// wait for threads and processes,
const THREADS: &[&str] =
    &["futex", "waitpid", "wait", "wait3", "wait4", "waitid", "flock", "lockf"];
/// and send and receive.
const NETWORK: &[&str] = &[
    "send", "sendto", "sendmsg", "sendmmsg", "recv", "recvfrom", "recvmsg", "recvmmsg", "accept",
    "accept4", "connect",
];

/// What a call does that takes long, in words of its callers: it reads or writes, sleeps, or waits for another
/// thread, for an event, or for the network.
pub fn kind(name: &str) -> &'static str {
    // `fread_unlocked` and `__read_chk` do what `fread` and `read` do, `open64` what `open` does.
    let name = name.trim_start_matches('_');
    let name = name.strip_suffix("_unlocked").or_else(|| name.strip_suffix("_chk")).unwrap_or(name);
    let name = name.strip_suffix("64").unwrap_or(name);
    let is = |names: &[&str]| names.contains(&name);
    let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    match name {
        _ if is(READS_AND_WRITES) => "reading and writing",
        _ if is(SLEEPS) => "sleeping",
        _ if is(EVENTS) => "waiting for events",
        _ if is(THREADS) || starts(&["pthread_", "sem_", "mq_"]) => "waiting for threads",
        _ if is(NETWORK) => "sending and receiving",
        _ => "other OS calls",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_of_a_call_do_what_the_call_does() {
        let of = [
            "getc",
            "fread_unlocked",
            "open64",
            "__read_chk",
            "pthread_cond_timedwait",
            "sem_wait",
            "poll",
            "usleep",
            "recvmsg",
            "ioctl",
            "",
        ];
        let io = "reading and writing";
        assert_eq!(
            of.map(kind),
            [
                io,
                io,
                io,
                io,
                "waiting for threads",
                "waiting for threads",
                "waiting for events",
                "sleeping",
                "sending and receiving",
                "other OS calls",
                "other OS calls",
            ]
        );
    }
}
