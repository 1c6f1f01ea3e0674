//! Files of /proc that several probes read.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Bytes of a `maps` that are read: of some 40,000 mappings.
const MAPS: u64 = 4 << 20;

/// Processes of one tree that are followed at most.
const TREE: usize = 16_000;

/// `pid` and its descendants that live now.
pub(crate) fn process_tree(pid: i32) -> Vec<u32> {
    let Ok(pid) = u32::try_from(pid) else { return Vec::new() };
    let mut tree = vec![pid];
    let mut next = 0;
    while let Some(&pid) = tree.get(next) {
        next += 1;
        let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for task in tasks.flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            tree.extend(children.split_whitespace().filter_map(|c| c.parse::<u32>().ok()));
        }
        if tree.len() > TREE {
            break;
        }
    }
    tree
}

/// Some fields of `/proc/PID/stat`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    /// What the thread is called.
    pub name: String,
    /// The pid of the parent process.
    pub parent: u32,
    /// When it began, in clock ticks since boot.
    pub start: u64,
}

impl Stat {
    /// The fields of a line. The name may hold spaces and parentheses: it ends at the last one.
    pub fn parse(line: &str) -> Option<Stat> {
        let (open, close) = (line.find('(')?, line.rfind(')')?);
        let name = line.get(open + 1..close)?.to_owned();
        let fields: Vec<&str> = line[close + 1..].split_whitespace().take(20).collect();
        let number = |i: usize| fields.get(i)?.parse::<u64>().ok();
        Some(Stat { name, parent: u32::try_from(number(1)?).ok()?, start: number(19)? })
    }
}

/// When a process began, in clock ticks since boot; `None` if it has ended.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    Some(Stat::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?.start)
}

/// The process that started this one; `None` if it has ended.
pub(crate) fn parent(pid: u32) -> Option<u32> {
    Some(Stat::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?.parent)
}

/// How much code of libraries a process maps, in KiB: it changes whenever a library is loaded. `None` if the
/// process has ended, or is a kernel thread.
pub(crate) fn library_code(pid: u32) -> Option<u64> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    library_code_in(&status)
}

fn library_code_in(status: &[u8]) -> Option<u64> {
    let line = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"VmLib:"))?;
    str::from_utf8(line).ok()?.trim().strip_suffix(" kB")?.parse().ok()
}

/// The number of the latest process or thread that was made: as long as it is the same, no process has
/// new descendants. `None` if it cannot be known.
pub(crate) fn latest_process() -> Option<u32> {
    latest_process_in(&fs::read_to_string("/proc/loadavg").ok()?)
}

fn latest_process_in(loadavg: &str) -> Option<u32> {
    loadavg.trim_end().rsplit(' ').next()?.parse().ok()
}

/// The letter for a thread's state: `R` for running, `S` for sleeping, and so on; `None` if the thread
/// has ended.
pub(crate) fn state_letter(pid: u32, tid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    stat[stat.rfind(')')? + 1..].trim_start().chars().next()
}

/// What the kernel calls the file of a virtual CPU (virt/kvm/kvm_main.c), before its number.
const VCPU: &str = "anon_inode:kvm-vcpu:";

/// The number of the virtual CPU that a descriptor of a process stands for; `None` if it stands for something else.
pub(crate) fn vcpu_number(pid: u32, descriptor: i32) -> Option<u32> {
    let target = fs::read_link(format!("/proc/{pid}/fd/{descriptor}")).ok()?;
    vcpu_of_link(target.to_str()?)
}

fn vcpu_of_link(target: &str) -> Option<u32> {
    target.strip_prefix(VCPU)?.parse().ok()
}

/// The processes of this host that hold a virtual CPU of KVM now, ascending; those of which we may not see the
/// descriptors are not among them.
pub fn virtual_machines() -> Vec<i32> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = processes.flatten().filter_map(|one| one.file_name().to_str()?.parse().ok());
    let holds = |pid: &i32| {
        let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        files.flatten().any(|file| {
            let target = fs::read_link(file.path()).unwrap_or_default();
            target.to_str().is_some_and(|target| vcpu_of_link(target).is_some())
        })
    };
    let mut machines: Vec<i32> = pids.filter(holds).collect();
    machines.sort_unstable();
    machines
}

/// The numbers that a process or thread has, from our own pid namespace to its innermost one: `NSpid` of
/// a `status`.
pub(crate) fn namespace_pids(status: &str) -> Vec<u32> {
    // The name comes first, but the kernel writes a newline in it as `\n`.
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or("");
    line.split_whitespace().map_while(|number| number.parse().ok()).collect()
}

/// The folder of processes: /proc, or another one in tests.
#[derive(Clone, Debug)]
pub(crate) struct Proc(PathBuf);

impl Default for Proc {
    fn default() -> Proc {
        Proc("/proc".into())
    }
}

impl Proc {
    /// A folder that looks like /proc.
    pub fn at(root: &Path) -> Proc {
        Proc(root.to_owned())
    }

    /// A path in it.
    pub fn path(&self, rest: impl AsRef<Path>) -> PathBuf {
        self.0.join(rest)
    }

    /// When a process began, in clock ticks since boot; `None` if there is none.
    pub fn start_time(&self, pid: u32) -> Option<u64> {
        Some(Stat::parse(&self.read(format!("{pid}/stat"))?)?.start)
    }

    /// When a thread of a process began, likewise.
    pub fn thread_start(&self, pid: u32, tid: u32) -> Option<u64> {
        Some(Stat::parse(&self.read(format!("{pid}/task/{tid}/stat"))?)?.start)
    }

    /// See [`namespace_pids`]; empty if there is no such process or none may see it.
    pub fn namespace_pids(&self, pid: u32) -> Vec<u32> {
        self.read(format!("{pid}/status")).map_or_else(Vec::new, |text| namespace_pids(&text))
    }

    /// The threads of a process, as their tids here and in their innermost namespace; at most `most`.
    pub fn inner_tids(&self, pid: u32, most: usize) -> Vec<(u32, u32)> {
        let tasks = fs::read_dir(self.path(format!("{pid}/task"))).into_iter().flatten().flatten();
        let tids = tasks.filter_map(|task| task.file_name().to_str()?.parse::<u32>().ok());
        let inner = |tid: u32| {
            let status = self.read(format!("{pid}/task/{tid}/status"))?;
            Some((tid, *namespace_pids(&status).last()?))
        };
        tids.take(most).filter_map(inner).collect()
    }

    /// The numbers of all processes; at most `most`.
    pub fn processes(&self, most: usize) -> Vec<u32> {
        let all = fs::read_dir(&self.0).into_iter().flatten().flatten();
        all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).take(most).collect()
    }

    /// Whether a process has mapped this file; `false` if that cannot be known. Reads [`MAPS`] bytes at
    /// most.
    pub fn maps_file(&self, pid: u32, device: &str, inode: u64) -> bool {
        let Ok(file) = fs::File::open(self.path(format!("{pid}/maps"))) else { return false };
        let mut maps = Vec::new();
        let _ = file.take(MAPS).read_to_end(&mut maps);
        let maps = String::from_utf8_lossy(&maps);
        mappings(&maps).any(|mapping| mapping.inode == inode && mapping.device == device)
    }

    fn read(&self, rest: String) -> Option<String> {
        // Names of threads may hold any bytes.
        let bytes = fs::read(self.0.join(rest)).ok()?;
        Some(
            String::from_utf8(bytes)
                .unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()),
        )
    }
}

/// One line of `/proc/PID/maps`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapping<'a> {
    /// Its addresses as the file has them: `55d0c000-55d0e000`.
    pub range: &'a str,
    /// Its first address.
    pub from: u64,
    /// The address behind its last one.
    pub to: u64,
    /// Whether code in it can be executed.
    pub executable: bool,
    /// Where in the file it begins.
    pub offset: u64,
    /// The device that the file is on: `fe:00`.
    pub device: &'a str,
    /// The file's inode; 0 for none.
    pub inode: u64,
    /// The file, `[heap]` and the like, or nothing.
    pub path: &'a str,
}

impl Mapping<'_> {
    /// Whether an address lies in it.
    pub fn contains(&self, address: u64) -> bool {
        (self.from..self.to).contains(&address)
    }

    /// Where in the file an address that lies in it is.
    pub fn file_offset(&self, address: u64) -> u64 {
        address - self.from + self.offset
    }
}

/// The mappings in a `/proc/PID/maps`; lines of another form are left out.
pub(crate) fn mappings(maps: &str) -> impl Iterator<Item = Mapping<'_>> {
    maps.lines().filter_map(|line| {
        // "7f0a-7f0b r-xp 00059000 fe:00 1234      /usr/lib/libnccl.so.2"
        let mut rest: &str = line;
        let mut word = || {
            let (word, behind) = rest.trim_start().split_once(' ').unwrap_or((rest, ""));
            rest = behind;
            word
        };
        let (range, rights, offset, device, inode) = (word(), word(), word(), word(), word());
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let (from, to) = range.split_once('-')?;
        Some(Mapping {
            range,
            from: hex(from)?,
            to: hex(to)?,
            executable: rights.as_bytes().get(2) == Some(&b'x'),
            offset: hex(offset)?,
            device,
            inode: inode.parse().unwrap_or(0),
            path: rest.trim(),
        })
    })
}

/// Resident memory of this process in bytes; 0 if /proc cannot be read.
pub(crate) fn resident_bytes() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|s| s.split(' ').nth(1)?.parse::<u64>().ok());
    pages.unwrap_or(0) * crate::sys::page_size()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_a_virtual_cpu_says_its_number() {
        assert_eq!(vcpu_of_link("anon_inode:kvm-vcpu:0"), Some(0));
        assert_eq!(vcpu_of_link("anon_inode:kvm-vcpu:17"), Some(17));
        for other in ["anon_inode:kvm-vm", "anon_inode:kvm-vcpu:", "/tmp/kvm-vcpu:0", "socket:[3]"]
        {
            assert_eq!(vcpu_of_link(other), None, "{other}");
        }
        assert_eq!(vcpu_number(std::process::id(), 0), None);
    }

    #[test]
    fn a_thread_name_may_hold_any_characters() {
        let tail = "S 1 2 3 0 -1 2129984 0 0 0 0 5 6 0 0 20 0 1 0 4711 8192 0";
        let stat = Stat::parse(&format!("42 (a) (b c) {tail}")).unwrap();
        assert_eq!(stat.name, "a) (b c");
        assert_eq!((stat.parent, stat.start), (1, 4711));
        for broken in ["", "42 (a", "42 )a( S", "42 (a) S 1 2", "42 (a) S x 2 3 0 -1 0"] {
            assert_eq!(Stat::parse(broken), None, "{broken}");
        }
    }

    #[test]
    fn what_tells_of_new_libraries_and_of_new_processes_is_read() {
        let status =
            b"Name:\t\xffVmLib:\nVmExe:\t    2816 kB\nVmLib:\t  413004 kB\nVmPTE:\t 1 kB\n";
        assert_eq!(library_code_in(status), Some(413_004));
        assert_eq!(library_code_in(b"Name:\tkthreadd\n"), None);
        assert!(library_code(std::process::id()).is_some_and(|kib| kib > 0));
        assert_eq!(latest_process_in("0.20 0.18 0.12 1/80 11206\n"), Some(11_206));
        assert_eq!(latest_process_in(""), None);
        let before = latest_process();
        std::thread::spawn(|| ()).join().unwrap();
        assert!(before.is_some() && before != latest_process());
    }

    #[test]
    fn a_containers_thread_is_found_by_its_inner_tid() {
        let status = "Name:\tpython\nPid:\t4242\nNSpid:\t4242\t31\t7\nThreads:\t1\n";
        assert_eq!(namespace_pids(status), [4242, 31, 7]);
        assert_eq!(namespace_pids("Name:\tpython\n"), [0u32; 0]);
        let me = std::process::id();
        let all = Proc::default().inner_tids(me, 100);
        assert!(all.contains(&(me, me)), "we have no namespace of our own: {all:?}");
    }

    #[test]
    fn a_mapping_says_where_in_its_file_an_address_lies() {
        let text = "55d0c000-55d0e000 r-xp 00002000 fe:00 42 /usr/bin/x y\nnonsense\n\
                    7f000000-7f001000 rw-p 00000000 00:00 0\n";
        let found: Vec<Mapping<'_>> = mappings(text).collect();
        assert_eq!(found.len(), 2);
        let code = found[0];
        assert_eq!((code.device, code.inode, code.path), ("fe:00", 42, "/usr/bin/x y"));
        assert!(code.executable && code.contains(0x55d0_c010) && !code.contains(0x55d0_e000));
        assert_eq!(code.file_offset(0x55d0_c010), 0x2010);
        assert_eq!((found[1].executable, found[1].inode, found[1].path), (false, 0, ""));
    }
}
