//! Steps of unmodified programs: every call of a named function is one.
//!
//! *What it sees*: entry and return of the outermost call on a thread. *Why it matters*: a server
//! that marks nothing still has a function that it calls once per request or step. *What fools
//! it*: functions that are inlined or left by a jump or an exception (the step is counted as
//! lost); coroutines that change their stack inside; a function that is called very often costs
//! microseconds each time, and beyond [`CALLS_PER_SECOND`] on one CPU its steps are counted but
//! not written.
//!
//! Uprobe multi links need CAP_BPF and CAP_PERFMON only. With targets, calls of other processes
//! are let pass; without any, whoever calls becomes a target.

use std::env;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use foldhash::{HashMap, HashMapExt as _, HashSet, HashSetExt as _};
use gpuwhy_schema::{
    Discipline, EntityId, Lane, Name, Ns, SourceId, SourceState, Span, Step, TrackId, names,
};
use libbpf_rs::UprobeMultiOpts;
use object::read::ReadCache;
use object::{Object, ObjectSegment, ObjectSymbol, ObjectSymbolTable, SymbolKind};

use crate::kernel::{Head, Kernel, Loaded, ProbeNumber, bpf_object, bytes_of, plain, record};
use crate::nest::Nest;
use crate::recorder::{Target, UprobeStep};
use crate::{CollectError, Context, Probe, Start};

/// Steps that one CPU may begin in a second, in windows of 10 ms.
pub const CALLS_PER_SECOND: u32 = 20_000;

/// Threads that are kept; more begin anew.
const KEPT: usize = 1 << 16;

const STEP: u16 = (ProbeNumber::Steps as u16) << 8;

// The structs of `steps.bpf.c`, where each field is explained.

record! {
    struct StepRecord {
        head: Head,
        from: u64,
        tgid: u32,
        step: u32,
    }
}

record! {
    struct Tuning {
        everyone: u32,
        hops: u32,
        calls: u32,
        pad: u32,
    }
}

struct Steps {
    book: Book,
    _loaded: Loaded,
}

/// Starts the probe: finds the functions, then attaches to all of them.
pub fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    let Start { kernel, config, cx, source } = start;
    let mut places = Vec::new();
    for step in &config.steps {
        let binary = executable(&step.binary);
        let offsets = find(&binary, &step.symbol)?;
        places.push((binary, offsets, step));
    }
    let tuning = Tuning {
        everyone: u32::from(config.targets.is_empty()),
        hops: u32::from(config.hops),
        calls: CALLS_PER_SECOND / 100,
        pad: 0,
    };
    // Where the kernel has sessions, one link takes both ends of a call.
    let loaded = attached(kernel, &tuning, &places, true)
        .or_else(|_| attached(kernel, &tuning, &places, false))?;
    cx.lanes.update_source(source, |s| {
        let functions: Vec<String> = config
            .steps
            .iter()
            .map(|step| format!("{}:{}", step.binary.display(), step.symbol))
            .collect();
        s.config = format!("{} steps={}", s.config, functions.join(",")).as_str().into();
    });
    let names = config.steps.iter().map(|step| step.symbol.as_str().into()).collect();
    Ok(Box::new(Steps { book: Book::new(source, names), _loaded: loaded }))
}

type Place<'a> = (PathBuf, Vec<usize>, &'a UprobeStep);

fn attached(
    kernel: &Kernel,
    tuning: &Tuning,
    places: &[Place<'_>],
    session: bool,
) -> Result<Loaded, CollectError> {
    let mut loaded = kernel.load("steps", bpf_object!("steps"), |object| {
        for mut map in object.maps_mut() {
            if map.name().to_string_lossy().ends_with(".rodata") {
                map.set_initial_value(bytes_of(tuning))?;
            }
        }
        for mut program in object.progs_mut() {
            let is_session = program.name() == "step_session";
            program.set_autoload(is_session == session);
        }
        Ok(())
    })?;
    let mut links = Vec::new();
    for program in loaded.object.progs_mut() {
        if !program.autoload() {
            continue;
        }
        let retprobe = program.name() == "step_return";
        for (i, (binary, offsets, step)) in places.iter().enumerate() {
            let options = UprobeMultiOpts {
                offsets: offsets.clone(),
                cookies: vec![i as u64; offsets.len()],
                retprobe,
                session,
                ..UprobeMultiOpts::default()
            };
            let link = program.attach_uprobe_multi_with_opts(-1, binary, "", options).map_err(
                |source| CollectError::Attach {
                    probe: "steps",
                    to: format!("`{}` of `{}`", step.symbol, binary.display()),
                    source,
                },
            )?;
            links.push(link);
        }
    }
    loaded.links = links;
    Ok(loaded)
}

/// Attaches to a function of our own program that nobody calls, and lets go.
///
/// Other processes of the same program start while this is attached, so it must not be the entry
/// point: no return address lies on the stack there but the number of arguments, which a return
/// probe would replace.
pub(crate) fn trial(kernel: &Kernel, session: bool) -> Result<(), CollectError> {
    let binary = PathBuf::from("/proc/self/exe");
    let address = never_called as extern "C" fn() -> u64 as usize;
    let maps = PathBuf::from("/proc/self/maps");
    let text = std::fs::read_to_string(&maps)
        .map_err(|source| CollectError::Read { path: maps, source })?;
    let offset = text.lines().find_map(|line| mapped_at(line, address)).into_iter().collect();
    let step = UprobeStep { binary: binary.clone(), symbol: "never_called".into() };
    let tuning = Tuning { everyone: 0, hops: 0, calls: 0, pad: 0 };
    attached(kernel, &tuning, &[(binary, offset, &step)], session).map(drop)
}

/// What [`trial`] attaches to. It is like no other function, so that they are not merged.
#[inline(never)]
extern "C" fn never_called() -> u64 {
    std::hint::black_box(0x6770_7577_6879)
}

/// The offset in its file of what lies at `address`, if this line of /proc/PID/maps covers it.
fn mapped_at(line: &str, address: usize) -> Option<usize> {
    let mut words = line.split_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    let hex = |text: &str| usize::from_str_radix(text, 16).ok();
    let (from, to, offset) = (hex(from)?, hex(to)?, hex(words.nth(1)?)?);
    (from..to).contains(&address).then(|| address - from + offset)
}

/// Where in the file what lies at this address in memory is.
pub(crate) fn offset_of<'data>(elf: &impl Object<'data>, address: u64) -> Option<usize> {
    elf.segments().find_map(|segment| {
        let (in_file, bytes) = segment.file_range();
        let within = address.checked_sub(segment.address())?;
        if within >= bytes { None } else { usize::try_from(within.checked_add(in_file)?).ok() }
    })
}

/// The file that is run under this name.
fn executable(name: &Path) -> PathBuf {
    if name.components().count() == 1 && !name.exists() {
        let path = env::var_os("PATH").unwrap_or_default();
        if let Some(found) = env::split_paths(&path).map(|dir| dir.join(name)).find(|p| p.is_file())
        {
            return found;
        }
    }
    name.to_owned()
}

/// Where in the file the function begins; more than one place if several bear the name.
///
/// # Errors
/// The file cannot be read, is not an ELF file, or has no such function, in which case the error
/// lists names that are near.
pub fn find(binary: &Path, symbol: &str) -> Result<Vec<usize>, CollectError> {
    let read = |source| CollectError::Read { path: binary.to_owned(), source };
    let none = |hint: String| CollectError::Symbol {
        binary: binary.to_owned(),
        symbol: symbol.to_owned(),
        hint,
    };
    let file = File::open(binary).map_err(read)?;
    if !file.metadata().map_err(read)?.is_file() {
        return Err(none(": it is not a file".into()));
    }
    // Libraries of this field have gigabytes; only what is asked for is read.
    let cache = ReadCache::new(file);
    let elf = object::File::parse(&cache)
        .map_err(|error| none(format!(": it cannot be read: {error}")))?;

    let mut offsets = Vec::new();
    let mut near: Vec<(usize, String)> = Vec::new();
    let tables = elf.symbol_table().into_iter().chain(elf.dynamic_symbol_table());
    for entry in tables.flat_map(|table| table.symbols()) {
        if entry.kind() != SymbolKind::Text || entry.address() == 0 || entry.is_undefined() {
            continue;
        }
        let Ok(name) = entry.name() else { continue };
        if name == symbol {
            offsets.extend(offset_of(&elf, entry.address()));
        } else if let Some(distance) = nearness(name, symbol) {
            near.push((distance, name.to_owned()));
            // Bounded, however many functions look alike.
            if near.len() >= 4096 {
                near.sort();
                near.truncate(5);
            }
        }
    }
    offsets.sort_unstable();
    offsets.dedup();
    // A program is not called by a function: where a return address would lie, the number of its
    // arguments does, and a return probe would replace it.
    if offset_of(&elf, elf.entry()).is_some_and(|entry| offsets.contains(&entry)) {
        return Err(none(": the entry point of a program does not return; name a function".into()));
    }
    if !offsets.is_empty() {
        return Ok(offsets);
    }
    near.sort();
    near.dedup();
    let names: Vec<&str> = near.iter().take(5).map(|(_, name)| name.as_str()).collect();
    Err(none(if !names.is_empty() {
        format!("; near it are {}", names.join(", "))
    } else if elf.symbol_table().is_none_or(|table| table.symbols().next().is_none()) {
        ": it is stripped, and exports no function of a near name; install its debug symbols or \
         name an exported function"
            .into()
    } else {
        String::new()
    }))
}

/// How near `name` is to what was asked for: 0 if it contains it, else the edits between them if
/// these are few.
fn nearness(name: &str, asked: &str) -> Option<usize> {
    if asked.len() >= 3 && name.contains(asked) {
        return Some(name.len() - asked.len());
    }
    if name.len().abs_diff(asked.len()) > 2 || asked.len() > 64 {
        return None;
    }
    let (name, asked) = (name.as_bytes(), asked.as_bytes());
    let mut row: Vec<usize> = (0..=asked.len()).collect();
    for (i, a) in name.iter().enumerate() {
        let mut before = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in asked.iter().enumerate() {
            let change = before + usize::from(a != b);
            before = row[j + 1];
            row[j + 1] = change.min(before + 1).min(row[j] + 1);
        }
    }
    let edits = row[asked.len()];
    (edits <= 2 && edits < asked.len()).then_some(edits)
}

impl Probe for Steps {
    fn name(&self) -> &'static str {
        "steps"
    }

    fn kinds(&self) -> Range<u16> {
        ProbeNumber::Steps.kinds()
    }

    fn event(&mut self, kind: u16, bytes: &[u8], cx: &mut Context) {
        if kind == STEP
            && let Some(r) = plain::<StepRecord>(bytes)
        {
            self.book.step(&r, cx);
        }
    }

    fn tick(&mut self, _now: Ns, cx: &mut Context) -> Result<(), CollectError> {
        let book = &mut self.book;
        if book.crossed > 0 && !book.told {
            book.told = true;
            cx.lanes.update_source(book.source, |s| {
                s.state = SourceState::Degraded;
                s.note = Some("calls that cross others on their thread were dropped".into());
            });
        }
        Ok(())
    }

    fn dropped(&self) -> u64 {
        self.book.crossed
    }
}

/// The rows that follow from records.
struct Book {
    source: SourceId,
    names: Vec<Name>,
    threads: HashMap<u32, Thread>,
    processes: HashSet<u32>,
    crossed: u64,
    told: bool,
}

struct Thread {
    entity: EntityId,
    track: TrackId,
    nest: Nest,
    /// How many steps of each function there were.
    seq: Vec<u64>,
}

impl Book {
    fn new(source: SourceId, names: Vec<Name>) -> Book {
        Book {
            source,
            names,
            threads: HashMap::new(),
            processes: HashSet::new(),
            crossed: 0,
            told: false,
        }
    }

    fn step(&mut self, r: &StepRecord, cx: &mut Context) {
        let Some(name) = self.names.get(r.step as usize).cloned() else { return };
        if !self.processes.contains(&r.tgid) {
            if self.processes.len() >= KEPT {
                self.processes.clear();
            }
            self.processes.insert(r.tgid);
            if let Ok(pid) = i32::try_from(r.tgid) {
                cx.wanted.push(Target::Pid(pid));
            }
        }
        if self.threads.len() >= KEPT {
            self.threads.clear();
        }
        let (tid, source, functions) = (r.head.tid, self.source, self.names.len());
        let entity = cx.people.thread(&mut cx.lanes, tid, r.tgid, None);
        let mut begin = || {
            let lane = Lane::spans(names::STEPS, Discipline::Nested);
            let track = cx.lanes.track(entity, None, lane, source);
            Thread { entity, track, nest: Nest::default(), seq: vec![0; functions] }
        };
        let thread = self.threads.entry(tid).or_insert_with(&mut begin);
        if thread.entity != entity {
            // The number was given to another thread.
            *thread = begin();
        }
        let (ts, end) = (ns(r.from), ns(r.head.ts));
        if !thread.nest.fits(ts, end) {
            self.crossed += 1;
            return;
        }
        let id = cx.ids.next_id();
        let seq = thread.seq[r.step as usize];
        thread.seq[r.step as usize] += 1;
        cx.rows.span.push(Span {
            id,
            ts,
            dur: Some(end - ts),
            track: thread.track,
            parent: None,
            name,
        });
        cx.rows.step.push(Step { id, ts, thread: entity, seq, size: None, rank: None });
    }
}

fn ns(n: u64) -> Ns {
    Ns(i64::try_from(n).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_address_lies_where_its_mapping_says() {
        let line = "55d0c000-55d0e000 r-xp 00002000 fe:00 42 /usr/bin/x";
        assert_eq!(super::mapped_at(line, 0x55d0_c010), Some(0x2010));
        assert_eq!(super::mapped_at(line, 0x55d0_e000), None);
        assert_eq!(super::mapped_at("nonsense", 1), None);
    }

    use super::*;
    use crate::kernel::tests::same_layout;
    use crate::recorder;

    #[test]
    fn both_halves_agree_on_the_record() {
        same_layout("steps", "step_record", size_of::<StepRecord>(), StepRecord::LAYOUT);
        same_layout("steps", "tuning", size_of::<Tuning>(), Tuning::LAYOUT);
    }

    /// The test's own binary has this function under its own name.
    #[unsafe(no_mangle)]
    extern "C" fn gpuwhy_test_function() {}

    #[test]
    fn a_function_is_found_and_near_names_are_told() {
        gpuwhy_test_function();
        let own = std::env::current_exe().unwrap();
        assert_eq!(find(&own, "gpuwhy_test_function").unwrap().len(), 1);
        assert!(find(&own, "_start").unwrap_err().to_string().contains("entry point"));
        let hint = |name: &str| find(&own, name).unwrap_err().to_string();
        assert!(hint("gpuwhy_test_funktion").ends_with("; near it are gpuwhy_test_function"));
        assert!(hint("test_function").contains("near it are gpuwhy_test_function"));
        assert!(hint("no such thing at all").ends_with(&format!("in `{}`", own.display())));
    }

    #[test]
    fn what_is_no_program_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notes.txt");
        std::fs::write(&path, "not a program").unwrap();
        let text = find(&path, "main").unwrap_err().to_string();
        assert!(text.contains("notes.txt`: it cannot be read: "), "{text}");
        let text = find(dir.path(), "main").unwrap_err().to_string();
        assert!(text.ends_with(": it is not a file"), "{text}");
        let text = find(&dir.path().join("nothing"), "main").unwrap_err().to_string();
        assert!(text.starts_with("cannot read `"), "{text}");
        // An ELF header and then nothing, at every length.
        let own = std::fs::read("/proc/self/exe").unwrap();
        for len in [4, 16, 63, 64, 100, 1000] {
            std::fs::write(&path, &own[..len]).unwrap();
            assert!(find(&path, "main").is_err());
        }
    }

    #[test]
    fn steps_are_numbered_for_each_function_and_crossing_ones_are_counted() {
        let mut cx = recorder::context();
        let source = cx.lanes.source("bpf:steps", "test", "0", "");
        let mut book = Book::new(source, vec!["outer".into(), "inner".into()]);
        for (step, from, ts) in [(1, 20, 30), (1, 40, 50), (0, 10, 60), (0, 55, 70), (7, 80, 90)] {
            let head = Head { ts, kind: STEP, cpu: 0, tid: 4_000_000_000 };
            book.step(&StepRecord { head, from, tgid: 4_000_000_000, step }, &mut cx);
        }
        let rows: Vec<_> = cx
            .rows
            .span
            .iter()
            .zip(&cx.rows.step)
            .map(|(s, t)| (&*s.name, s.ts.0, t.seq))
            .collect();
        assert_eq!(rows, [("inner", 20, 0), ("inner", 40, 1), ("outer", 10, 0)]);
        assert_eq!(book.crossed, 1);
        assert!(cx.wanted.is_empty(), "no process has such a number");
    }

    #[test]
    fn any_bytes_are_survived() {
        let mut cx = recorder::context();
        let source = cx.lanes.source("bpf:steps", "test", "0", "");
        let mut book = Book::new(source, vec!["call".into()]);
        for fill in [0x00, 0x01, 0x7f, 0xff] {
            for len in 0..64 {
                if let Some(record) = plain::<StepRecord>(&vec![fill; len]) {
                    book.step(&record, &mut cx);
                }
            }
        }
    }

    #[test]
    fn a_step_is_named_by_binary_and_symbol() {
        let step: UprobeStep = "uprobe:/usr/bin/redis-server:call".parse().unwrap();
        assert_eq!((step.binary, step.symbol), ("/usr/bin/redis-server".into(), "call".into()));
        for bad in ["redis-server:call", "uprobe:call", "uprobe::call", "uprobe:x:", ""] {
            let error = bad.parse::<UprobeStep>().unwrap_err().to_string();
            assert!(error.contains("write uprobe:BINARY:SYMBOL"), "{error}");
        }
    }
}
