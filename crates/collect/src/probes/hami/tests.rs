use std::fmt::Write as _;
use std::os::unix::fs::symlink;

use gpuwhy_schema::{Rows, SourceState};
use tempfile::TempDir;

use super::region::tests::{file, limit};
use super::*;

const POD: &str = "3b7c1f2e-0d4a-4c8b-9e21-5f6a7b8c9d0e";

/// A node with files of containers, and what reads them.
struct Node {
    dir: TempDir,
    reader: Reader,
    rows: LimitRows,
    cx: Context,
    seconds: i64,
}

impl Node {
    fn new() -> Node {
        let dir = TempDir::new().unwrap();
        let mut cx = Context::new();
        let source = cx.catalog.source("hami", "test", "0", "");
        let rows = LimitRows { source, ..LimitRows::default() };
        let reader =
            Reader::new(&dir.path().join("containers"), Proc::at(&dir.path().join("proc")));
        Node { dir, reader, rows, cx, seconds: 0 }
    }

    /// A process of a pod, or of whatever cgroup.
    fn process(&self, pid: u32, cgroup: &str) {
        let folder = self.dir.path().join(format!("proc/{pid}"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("cgroup"), format!("0::{cgroup}\n")).unwrap();
        let stat = format!("{pid} (python3) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 500 0 0\n");
        fs::write(folder.join("stat"), stat).unwrap();
    }

    fn path(&self, container: &str) -> PathBuf {
        let folder = self.dir.path().join(format!("containers/{container}"));
        fs::create_dir_all(&folder).unwrap();
        folder.join("7a1e.cache")
    }

    fn says(&self, container: &str, region: &Region) {
        fs::write(self.path(container), file(region)).unwrap();
    }

    /// So many seconds later.
    fn read(&mut self, seconds: i64) {
        self.reader.searches = Every::new(SEARCH);
        self.seconds += seconds;
        let mut reading = self.reader.read();
        reading.at = Ns::secs(self.seconds);
        self.rows.take(reading, &mut self.cx);
    }

    fn written(mut self) -> Rows {
        let mut rows = std::mem::take(&mut self.cx.rows);
        self.cx.catalog.drain(&mut rows);
        rows
    }
}

/// The counters of processes: whose, of which GPU, seconds and values.
fn told(rows: &Rows) -> String {
    let mut out = String::new();
    for track in &rows.track {
        let entity = |id| rows.entity.iter().rev().find(|e| e.id == id).unwrap();
        let Some(parent) = rows.track.iter().find(|one| Some(one.id) == track.parent) else {
            continue;
        };
        let (pid, gpu) = (entity(track.entity).number.unwrap(), entity(parent.entity));
        write!(out, "{} of {pid} on {}:", track.name, gpu.key).unwrap();
        for row in rows.counter.iter().filter(|row| row.track == track.id) {
            write!(out, " {}={}", row.ts.0 / 1_000_000_000, row.value).unwrap();
        }
        out.push('\n');
    }
    out
}

fn half() -> Region {
    Region {
        limits: vec![limit("GPU-1", 4 << 30, 50)],
        processes: vec![70],
        in_force: true,
        held_back: false,
    }
}

#[test]
fn limits_and_waits_for_others_are_told_when_they_change_and_now_and_then() {
    let mut node = Node::new();
    node.process(70, &format!("/kubepods.slice/kubepods-pod{}.slice/x", POD.replace('-', "_")));
    node.says(&format!("{POD}_train"), &half());
    node.read(1);
    node.read(1);
    node.says(&format!("{POD}_train"), &Region { held_back: true, ..half() });
    node.read(1);
    node.says(&format!("{POD}_train"), &Region { in_force: false, ..half() });
    node.read(1);
    node.read(10);
    assert_eq!(node.rows.left_out, 0);
    assert_eq!(
        told(&node.written()),
        "gpu.memory_limit of 70 on GPU-1: 1=4294967296 14=4294967296\n\
         gpu.sm_limit of 70 on GPU-1: 1=50 4=100 14=100\n\
         gpu.held_back of 70 on GPU-1: 1=0 3=1 4=0 14=0\n"
    );
}

#[test]
fn a_container_speaks_of_its_own_processes_alone_and_its_file_may_be_anything() {
    let mut node = Node::new();
    node.process(70, &format!("/kubepods/pod{POD}/x"));
    node.process(71, "/system.slice/sshd.service");
    let region = Region { processes: vec![71, 70, 9999], ..half() };
    node.says(&format!("{POD}_train"), &region);
    // Neither a link to somebody else's file nor a pipe is opened, nor a name that is no pod's believed.
    let (link, pipe) = (node.path("a_link"), node.path("b_pipe"));
    symlink(node.path(&format!("{POD}_train")), link).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(pipe).status().unwrap().success());
    node.says("system.slice_x", &region);
    node.read(1);
    // Process 71 is of no pod, in two files; 70 is not of what is no pod; 9999 is gone.
    assert_eq!(node.rows.left_out, 3);
    let said = told(&node.written());
    assert!(said.contains("of 70 on GPU-1") && !said.contains("of 71"), "{said}");
}

#[test]
fn another_version_of_the_file_is_named() {
    let mut node = Node::new();
    node.process(70, &format!("/kubepods/pod{POD}/x"));
    let mut bytes = file(&half());
    bytes[4] = 3;
    fs::write(node.path(&format!("{POD}_train")), bytes).unwrap();
    node.read(1);
    let rows = node.written();
    let source = rows.source.iter().rev().find(|one| one.state == SourceState::Degraded).unwrap();
    assert_eq!(
        source.note.as_deref(),
        Some("files of HAMi's version 3.2 are not read; 1 is known")
    );
    assert!(rows.counter.is_empty());
}
