//! Whose a tid is.

use std::collections::HashMap;
use std::fs;

use gpuwhy_schema::{EntityId, EntityKind, Lanes, Ns};

/// Threads and processes seen so far.
#[derive(Debug)]
pub struct Attribution {
    host: EntityId,
    threads: HashMap<u32, EntityId>,
    processes: HashMap<u32, EntityId>,
}

impl Attribution {
    /// Nobody yet, on `host`.
    pub fn new(host: EntityId) -> Attribution {
        Attribution { host, threads: HashMap::new(), processes: HashMap::new() }
    }

    /// The thread `tid` of process `tgid`. `comm` is what an event said it was called; without it
    /// /proc is asked, on first sight only.
    pub fn thread(
        &mut self,
        lanes: &mut Lanes,
        tid: u32,
        tgid: u32,
        comm: Option<&[u8]>,
    ) -> EntityId {
        if let Some(&id) = self.threads.get(&tid) {
            return id;
        }
        let process = self.process(lanes, tgid, if tid == tgid { comm } else { None });
        let (start, name) = stat(&format!("/proc/{tgid}/task/{tid}/stat"));
        let name = comm.map(text).or(name).unwrap_or_else(|| format!("tid {tid}"));
        let id = lanes.entity(EntityKind::Thread, &format!("{tid}@{start}"), |e| {
            e.parent = Some(process);
            e.number = Some(i64::from(tid));
            e.name = name.as_str().into();
        });
        self.threads.insert(tid, id);
        id
    }

    /// The process `tgid`; `comm` is that of its main thread.
    pub fn process(&mut self, lanes: &mut Lanes, tgid: u32, comm: Option<&[u8]>) -> EntityId {
        if let Some(&id) = self.processes.get(&tgid) {
            return id;
        }
        let (start, name) = stat(&format!("/proc/{tgid}/stat"));
        let name = comm.map(text).or(name).unwrap_or_else(|| format!("pid {tgid}"));
        let id = lanes.entity(EntityKind::Process, &format!("{tgid}@{start}"), |e| {
            e.parent = Some(self.host);
            e.number = Some(i64::from(tgid));
            e.name = name.as_str().into();
        });
        self.processes.insert(tgid, id);
        id
    }

    /// The thread `tid` is called `comm` from now on (exec, prctl).
    pub fn renamed(&mut self, lanes: &mut Lanes, tid: u32, tgid: u32, comm: &[u8]) {
        let thread = self.thread(lanes, tid, tgid, Some(comm));
        let name = text(comm);
        lanes.update(thread, |e| e.name = name.as_str().into());
        if tid == tgid {
            let process = self.process(lanes, tgid, Some(comm));
            lanes.update(process, |e| e.name = name.as_str().into());
        }
    }

    /// The thread `tid` has exited; its number may be given to another.
    pub fn exited(&mut self, lanes: &mut Lanes, tid: u32, tgid: u32, at: Ns) {
        if let Some(id) = self.threads.remove(&tid) {
            lanes.end(id, at);
        }
        if tid == tgid
            && let Some(id) = self.processes.remove(&tgid)
        {
            lanes.end(id, at);
        }
    }
}

/// A comm without what follows its NUL.
fn text(comm: &[u8]) -> String {
    let end = comm.iter().position(|&b| b == 0).unwrap_or(comm.len());
    String::from_utf8_lossy(&comm[..end]).into_owned()
}

/// Start time in clock ticks since boot, and comm.
fn stat(path: &str) -> (u64, Option<String>) {
    let parse = |line: String| {
        let (open, close) = (line.find('(')?, line.rfind(')')?);
        let start = line[close + 1..].split_whitespace().nth(19)?.parse().ok()?;
        Some((start, Some(line[open + 1..close].to_owned())))
    };
    fs::read_to_string(path).ok().and_then(parse).unwrap_or((0, None))
}
