use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::sync::{Arc, Mutex};

use gpuwhy_schema::{Rows, SourceState, names};
use tempfile::TempDir;

use super::*;

/// What each counter has come to, by what it counts; others do not exist.
type Machine = Arc<Mutex<HashMap<u64, u64>>>;

struct Scene {
    root: TempDir,
    machine: Machine,
    reader: Reader,
    rows: FunctionRows,
    cx: Context,
    seconds: i64,
}

/// What is counted of an engine, by the layout of the kernel: the event, tile, class, instance and function.
fn config(event: u64, tile: u64, class: u64, instance: u64, function: u64) -> u64 {
    event | tile << 60 | class << 20 | instance << 12 | function << 44
}

impl Scene {
    fn new(functions: u32) -> Scene {
        let root = TempDir::new().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        };
        let pmu = "bus/event_source/devices/xe_0000_03_00.0";
        for (file, text) in [
            ("type", "16"),
            ("cpumask", "2-3"),
            ("events/engine-active-ticks", "event=0x02"),
            ("events/engine-total-ticks", "event=0x03"),
            ("format/gt", "config:60-63"),
            ("format/function", "config:44-59"),
            ("format/engine_class", "config:20-27"),
            ("format/engine_instance", "config:12-19"),
        ] {
            put(&format!("{pmu}/{file}"), text);
        }
        put("bus/event_source/devices/cpu/type", "4");
        put("bus/pci/devices/0000:03:00.0/sriov_numvfs", &functions.to_string());
        let machine = Machine::default();
        let of = machine.clone();
        let open: Open = Box::new(move |event| {
            assert_eq!((event.kind, event.cpu), (16, 2));
            let (of, config) = (of.clone(), event.config);
            let read = move || of.lock().unwrap().get(&config).copied();
            read().ok_or(io::ErrorKind::InvalidInput)?;
            Ok(Box::new(move || read().ok_or(io::ErrorKind::NotFound.into())) as Ticks)
        });
        let mut cx = Context::new();
        let source = cx.catalog.source("xe_pmu", "test", "0", "");
        let rows = FunctionRows { source, ..FunctionRows::default() };
        Scene { root, machine, reader: Reader::new(open), rows, cx, seconds: 0 }
    }

    /// An engine worked so many more ticks for a function, of so many.
    fn works(&self, (tile, class, instance): (u64, u64, u64), function: u64, ticks: (u64, u64)) {
        let mut machine = self.machine.lock().unwrap();
        let config = |event| config(event, tile, class, instance, function);
        *machine.entry(config(2)).or_default() += ticks.0;
        *machine.entry(config(3)).or_default() += ticks.1;
    }

    fn read(&mut self) {
        self.seconds += 1;
        let reading = self.reader.read(self.root.path(), Ns::secs(self.seconds));
        self.rows.take(reading, &mut self.cx);
    }

    fn told(mut self) -> (String, Rows) {
        let mut rows = std::mem::take(&mut self.cx.rows);
        self.cx.catalog.drain(&mut rows);
        let mut out = String::new();
        for track in rows.track.iter().filter(|one| &*one.name == names::PROCESS_ENGINE_TIME) {
            let entity = |id| rows.entity.iter().rev().find(|e| e.id == id).unwrap();
            let parent = rows.track.iter().find(|one| Some(one.id) == track.parent).unwrap();
            let (of, engine) = (entity(track.entity), entity(parent.entity));
            write!(out, "{} {} on {}:", of.name, of.number.unwrap(), engine.key).unwrap();
            for row in rows.counter.iter().filter(|row| row.track == track.id) {
                write!(out, " {}={}", row.ts.0 / 1_000_000_000, row.value / 1e6).unwrap();
            }
            out.push('\n');
        }
        (out, rows)
    }
}

#[test]
fn each_function_has_its_time_on_each_kind_of_engine() {
    let mut scene = Scene::new(2);
    let (render, first, second) = ((0, 0, 0), (1, 2, 0), (1, 2, 1));
    for (engine, function) in [(render, 0), (render, 1), (render, 2), (first, 1), (second, 1)] {
        scene.works(engine, function, (7, 1000));
    }
    // What was before does not count.
    scene.read();
    scene.works(render, 1, (500, 1000));
    scene.works(render, 2, (250, 1000));
    scene.works(render, 0, (0, 1000));
    scene.works(first, 1, (1000, 1000));
    scene.works(second, 1, (100, 1000));
    scene.read();
    scene.works(render, 1, (100, 2000));
    scene.read();
    scene.read();
    let (told, rows) = scene.told();
    let gpu = "drm:xe 0000:03:00.0";
    assert_eq!(
        told,
        format!(
            "virtual function 1 on {gpu}/rcs: 2=500 3=50 4=0\n\
             virtual function 1 on {gpu}/vcs: 2=1100 3=0\n\
             virtual function 2 on {gpu}/rcs: 2=250 3=0\n"
        )
    );
    let engines = |key: &str| rows.entity.iter().rev().find(|e| *e.key == *key).unwrap().number;
    assert_eq!(engines(&format!("{gpu}/vcs")), Some(2), "two engines of the kind");
}

#[test]
fn functions_that_come_later_are_counted_from_then_on() {
    let mut scene = Scene::new(1);
    scene.works((0, 0, 0), 0, (0, 1000));
    scene.works((0, 0, 0), 1, (0, 1000));
    scene.read();
    scene.works((0, 0, 0), 2, (900, 1000));
    let path = scene.root.path().join("bus/pci/devices/0000:03:00.0/sriov_numvfs");
    fs::write(path, "2\n").unwrap();
    scene.seconds += 10;
    scene.read();
    scene.works((0, 0, 0), 2, (300, 1000));
    scene.read();
    assert_eq!(scene.told().0, "virtual function 2 on drm:xe 0000:03:00.0/rcs: 13=300\n");
}

#[test]
fn a_gpu_without_functions_is_none_and_a_refusal_is_told_once() {
    let scene = Scene::new(0);
    assert_eq!(pmu::all(scene.root.path()), []);
    let mut scene = Scene::new(1);
    scene.reader.open = Box::new(|_| Err(io::ErrorKind::PermissionDenied.into()));
    scene.read();
    scene.read();
    let (told, rows) = scene.told();
    let source = rows.source.iter().rev().find(|one| one.state == SourceState::Degraded).unwrap();
    let note = source.note.as_deref().unwrap();
    assert!(told.is_empty() && note.contains("CAP_PERFMON"), "{note}");
}
