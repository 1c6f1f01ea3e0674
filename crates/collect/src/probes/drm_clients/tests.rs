use std::fmt::Write as _;
use std::os::unix::fs::symlink;

use gpuwhy_schema::Rows;
use tempfile::TempDir;

use super::*;

/// A folder like /proc, and what reads it.
struct Scene {
    proc: TempDir,
    reader: Reader,
    rows: ClientRows,
    cx: Context,
    seconds: i64,
}

impl Scene {
    fn new() -> Scene {
        let proc = TempDir::new().unwrap();
        let mut cx = Context::new();
        let source = cx.catalog.source("drm_clients", "test", "0", "");
        let rows = ClientRows { source, ..ClientRows::default() };
        let reader = Reader::new(Proc::at(proc.path()));
        Scene { proc, reader, rows, cx, seconds: 0 }
    }

    /// A process has a descriptor, of which the kernel says this.
    fn holds(&self, pid: u32, fd: u32, device: &str, says: &str) {
        for folder in ["fd", "fdinfo"] {
            fs::create_dir_all(self.proc.path().join(format!("{pid}/{folder}"))).unwrap();
        }
        let link = self.proc.path().join(format!("{pid}/fd/{fd}"));
        let _ = fs::remove_file(&link);
        symlink(device, link).unwrap();
        fs::write(self.proc.path().join(format!("{pid}/fdinfo/{fd}")), says).unwrap();
    }

    fn ends(&self, pid: u32) {
        fs::remove_dir_all(self.proc.path().join(pid.to_string())).unwrap();
    }

    /// The next second.
    fn read(&mut self) {
        self.reader.searches = Every::new(SEARCH);
        self.seconds += 1;
        let mut reading = self.reader.read();
        (reading.before, reading.after) = (Ns::secs(self.seconds), Ns::secs(self.seconds));
        self.rows.take(reading, &mut self.cx);
    }

    fn written(mut self) -> Rows {
        let mut rows = std::mem::take(&mut self.cx.rows);
        self.cx.catalog.drain(&mut rows);
        rows
    }
}

fn amdgpu(client: u64, gfx_ns: u64, vram_kib: u64) -> String {
    format!(
        "pos:\t0\ndrm-driver:\tamdgpu\ndrm-client-id:\t{client}\ndrm-pdev:\t0000:03:00.0\n\
         drm-memory-vram:\t{vram_kib} KiB\ndrm-engine-gfx:\t{gfx_ns} ns\n"
    )
}

/// The counters of this name: whose they are, and seconds and values.
fn counters(rows: &Rows, name: &str) -> String {
    let mut out = String::new();
    for track in rows.track.iter().filter(|track| &*track.name == name) {
        let entity = rows.entity.iter().rev().find(|e| e.id == track.entity).unwrap();
        let parent = rows.track.iter().find(|one| Some(one.id) == track.parent);
        let parent = parent.map_or("", |one| &*one.name);
        let who = entity.number.filter(|_| entity.kind == EntityKind::Process);
        write!(out, "{} <{parent}>:", who.map_or(entity.key.to_string(), |pid| pid.to_string()))
            .unwrap();
        for row in rows.counter.iter().filter(|row| row.track == track.id) {
            write!(out, " {}={}", row.ts.0 / 1_000_000_000, row.value).unwrap();
        }
        out.push('\n');
    }
    out
}

const RENDER: &str = "/dev/dri/renderD128";

#[test]
fn two_processes_that_share_an_engine_are_told_apart_and_summed() {
    let mut scene = Scene::new();
    scene.holds(70, 5, RENDER, &amdgpu(27, 1_000_000, 0));
    scene.holds(71, 9, RENDER, &amdgpu(28, 500, 0));
    scene.read();
    // What was before it was first seen does not count.
    scene.holds(70, 5, RENDER, &amdgpu(27, 5_000_000, 0));
    scene.holds(71, 9, RENDER, &amdgpu(28, 1_500, 0));
    scene.read();
    scene.holds(71, 9, RENDER, &amdgpu(28, 2_500, 0));
    scene.read();
    scene.read();
    let rows = scene.written();
    assert_eq!(
        counters(&rows, names::PROCESS_ENGINE_TIME),
        "70 <engine_time>: 2=4000000 3=0\n71 <engine_time>: 2=1000 3=1000 4=0\n"
    );
    assert_eq!(
        counters(&rows, names::ENGINE_TIME),
        "drm:amdgpu 0000:03:00.0/gfx <>: 2=4001000 3=1000 4=0\n"
    );
    let marks: Vec<_> = rows.mark.iter().map(|mark| (&*mark.name, mark.value)).collect();
    let of = "client of amdgpu 0000:03:00.0";
    assert_eq!(marks, [(of, Some(27.0)), (of, Some(28.0))]);
}

#[test]
fn a_client_with_several_descriptors_counts_once_and_several_clients_of_a_process_add_up() {
    let mut scene = Scene::new();
    // A descriptor that a child has inherited is of the same client.
    for ns in [0, 100] {
        scene.holds(70, 5, RENDER, &amdgpu(27, ns, 1));
        scene.holds(70, 6, RENDER, &amdgpu(27, ns, 1));
        scene.holds(70, 7, "/dev/dri/card0", &amdgpu(29, 3 * ns, 2));
        scene.read();
        scene.holds(71, 5, RENDER, &amdgpu(27, ns, 1));
    }
    scene.read();
    let rows = scene.written();
    assert_eq!(counters(&rows, names::PROCESS_ENGINE_TIME), "70 <engine_time>: 2=400 3=0\n");
    assert_eq!(counters(&rows, names::PROCESS_GPU_MEMORY), "70 <gpu_memory_used>: 1=3072\n");
}

#[test]
fn a_count_that_goes_back_stands_still_until_it_has_caught_up() {
    let mut scene = Scene::new();
    for ns in [1000, 3000, 2000, 2900, 3500] {
        scene.holds(70, 5, RENDER, &amdgpu(27, ns, 0));
        scene.read();
    }
    let rows = scene.written();
    assert_eq!(counters(&rows, names::PROCESS_ENGINE_TIME), "70 <engine_time>: 2=2000 3=0 5=500\n");
}

#[test]
fn cycles_are_time_by_those_that_passed() {
    let mut scene = Scene::new();
    for (cycles, total) in [(100, 1000), (350, 2000), (350, 2000)] {
        let says = format!(
            "drm-driver: xe\ndrm-client-id: 6\ndrm-pdev: 0000:03:00.0\ndrm-cycles-rcs: {cycles}\n\
             drm-total-cycles-rcs: {total}\ndrm-engine-capacity-rcs: 1\n"
        );
        scene.holds(70, 5, RENDER, &says);
        scene.read();
    }
    let rows = scene.written();
    // A quarter of the second that lies between the readings.
    let told = counters(&rows, names::PROCESS_ENGINE_TIME);
    assert_eq!(told, "70 <engine_time>: 2=250000000 3=0\n");
}

#[test]
fn a_process_that_ends_has_nothing_any_more() {
    let mut scene = Scene::new();
    for ns in [0, 1000] {
        scene.holds(70, 5, RENDER, &amdgpu(27, ns, 4));
        scene.read();
    }
    scene.ends(70);
    scene.read();
    scene.read();
    let rows = scene.written();
    assert_eq!(counters(&rows, names::PROCESS_ENGINE_TIME), "70 <engine_time>: 2=1000 3=0\n");
    assert_eq!(counters(&rows, names::PROCESS_GPU_MEMORY), "70 <gpu_memory_used>: 1=4096 3=0\n");
}

#[test]
fn a_descriptor_that_now_is_something_else_is_not_read_as_what_it_was() {
    let mut scene = Scene::new();
    scene.holds(70, 5, RENDER, &amdgpu(27, 1_000_000, 0));
    scene.read();
    // Another client under the same number of a descriptor, and then a file.
    scene.holds(70, 5, RENDER, &amdgpu(90, 9_000_000, 0));
    scene.read();
    scene.holds(70, 5, "/etc/passwd", "pos:\t0\nflags:\t0100000\n");
    scene.read();
    let rows = scene.written();
    assert_eq!(counters(&rows, names::PROCESS_ENGINE_TIME), "");
    let clients: Vec<_> = rows.mark.iter().filter_map(|mark| mark.value).collect();
    assert_eq!(clients, [27.0, 90.0]);
}

#[test]
fn descriptors_beyond_the_limit_are_counted_and_nobody_takes_the_places_of_all() {
    let mut scene = Scene::new();
    for fd in 0..OF_ONE as u32 + 7 {
        scene.holds(70, fd, RENDER, &amdgpu(u64::from(fd), 0, 0));
    }
    // Files that are only called like a device take no place.
    for fd in 0..DESCRIPTORS as u32 {
        scene.holds(71, fd, "/dev/dri/mine", "pos:\t0\nflags:\t0100000\n");
    }
    scene.holds(72, 5, RENDER, &amdgpu(5000, 0, 0));
    scene.read();
    assert_eq!((scene.rows.clients.len(), scene.rows.left_out), (OF_ONE + 1, 7));
    let others = DESCRIPTORS / OF_ONE + 1;
    for pid in 0..others as u32 {
        for fd in 0..OF_ONE as u32 {
            let id = u64::from(pid) * 100 + u64::from(fd) + 10_000;
            scene.holds(1000 + pid, fd, RENDER, &amdgpu(id, 0, 0));
        }
    }
    scene.read();
    assert_eq!(scene.rows.clients.len(), DESCRIPTORS);
    assert_eq!(scene.rows.left_out, (7 + OF_ONE + 1 + others * OF_ONE - DESCRIPTORS) as u64);
}

#[test]
fn a_host_without_a_gpu_has_no_clients() {
    let class = TempDir::new().unwrap();
    assert!(!is_expected(class.path()));
    for name in ["version", "card0-HDMI-A-1", "ttm"] {
        fs::write(class.path().join(name), "").unwrap();
    }
    assert!(!is_expected(class.path()) && !is_expected(&class.path().join("absent")));
    fs::write(class.path().join("renderD128"), "").unwrap();
    assert!(is_expected(class.path()));
}

#[test]
fn where_nobody_has_a_gpu_open_there_are_no_clients() {
    let proc = TempDir::new().unwrap();
    assert!(Reader::new(Proc::at(proc.path())).read().clients.is_empty());
}
