//! `gpuwhy probe run -- COMMAND`: a program with probes in its kernels, which it does not know of.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use gpuwhy_gpubpf::contents::{Contents, Record, SAMPLED};
use gpuwhy_gpubpf::policy::{Machine, Policy};
use gpuwhy_gpubpf::splice::Plan;
use gpuwhy_schema::terminal;
use gpuwhy_schema::text::Screen;
use gpuwhy_wire::images::{
    Desk, Outcome, POLICY_ENV, PROBES_ENV, PROBES_WAIT_ENV, Records, SANITIZER_ENV,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Sent};

use crate::cache::Cache;
use crate::code::Reach;
use crate::desk::{Books, Controller, Loaded, Rules, Shown};
use crate::policies::Policies;
use crate::programs::{Allowed, Sampling, accepted};
use crate::shared::{Pinned, Shared};
use crate::{decisions, desk, launches, show, standby, steal};

/// The object that stands between the program and its driver.
const LIBRARY: &str = "libgpuwhy_interpose.so";
/// What the driver loads when it is initialised: one object.
const INJECTION_ENV: &str = "CUDA_INJECTION64_PATH";
/// Where it is, if not beside this program.
const LIBRARY_ENV: &str = "GPUWHY_INTERPOSE";

/// A command, and the probes that are put into its kernels.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The command's kernels are taken as it loads them, by the driver's own interface: fat binaries and PTX of any CUDA
program, statically linked or not, and what Triton and NVRTC compile while it runs. Kernels of which there is machine
code alone stay as they are, and are told; with --sanitizer NVIDIA's Sanitizer calls the programs there. The command's output, input and exit status are its own; what the probes
have counted is printed to standard error at the end.

Example: how many warps enter each kernel, and how many bytes they load
  gpuwhy probe new counts && make -C counts
  gpuwhy probe run --object counts/probe.bpf.o -- python3 train.py

To run a kernel without a GPU: gpuwhy probe simulate")]
pub(crate) struct Options {
    /// What clang -target bpf wrote: its programs are put into the kernels
    #[arg(long, value_name = "OBJECT", required_unless_present = "steal")]
    object: Vec<PathBuf>,
    /// Let the blocks of these kernels (a name or pattern) take their turns themselves, as many as run at once; programs
    /// in sections gpu/order/KERNEL say in which order. Which kernels do, and why others do not, is told
    #[arg(long, value_name = "KERNEL")]
    steal: Vec<String>,
    #[command(flatten)]
    session: Session,
}

/// A command, and how programs are put into its kernels.
#[derive(Debug, clap::Args)]
pub(crate) struct Session {
    /// The command, with its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    #[command(flatten)]
    sampling: Sampling,
    /// Threads of the largest launch, for maps with a value per thread (1502); later threads are counted as lost
    #[arg(long, value_name = "COUNT", default_value_t = 1 << 20)]
    threads: u64,
    /// The most memory that the maps of an image take on each device, MiB
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    memory: u64,
    /// Load the programs switched off: what they cost when they are not used
    #[arg(long)]
    off: bool,
    /// Load the programs switched off, and switch them on while `gpuwhy watch`, under which this command has to run, finds
    /// steps that wait for their GPU's own work: for 3 s at a time, for 30 s and a twentieth of its time in all
    #[arg(long, conflicts_with = "off")]
    stand_by: bool,
    /// Share an array of the programs (1504) with the kernel: its name, and where a map of the kernel is pinned that was
    /// declared with BPF_F_MMAPABLE and values of __u64. Programs of the kernel and of the device count in the same memory
    #[arg(long = "map", value_name = "NAME=PINNED")]
    maps: Vec<Pinned>,
    /// How long loading an image waits for its probes, ms; then it is loaded as it is
    #[arg(long, value_name = "MS", default_value_t = 5000)]
    wait: u64,
    /// Where images with probes in them are kept (default: ~/.cache/gpuwhy/probes)
    #[arg(long, value_name = "DIR", conflicts_with = "no_cache")]
    cache: Option<PathBuf>,
    /// Keep nothing
    #[arg(long)]
    no_cache: bool,
    /// Write what was found to a file, as one JSON document
    #[arg(short, long, value_name = "FILE.json")]
    output: Option<PathBuf>,
    #[command(flatten)]
    reach: Reach,
    #[command(flatten)]
    allowed: Allowed,
}

/// How policies are run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Decides {
    /// What they ask for is told and not done.
    pub dry_run: bool,
}

/// Exit code: that of the command, or 128 + N if signal N ended it; 127 if there is no such command.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    session(&options.session, &options.object, &options.steal, None)
}

/// Runs a command with the programs of objects in its kernels, with kernels that steal, and under policies of the objects if
/// these are asked for.
pub(crate) fn session(
    options: &Session,
    objects: &[PathBuf],
    steal: &[String],
    decides: Option<Decides>,
) -> Result<ExitCode> {
    let controller = Controller::new(rules(options, objects, steal, decides)?);
    let library = library()?;
    let dir =
        tempfile::Builder::new().prefix("gpuwhy-").tempdir().context("cannot make a folder")?;
    let socket = dir.path().join("probes");
    let desk = Desk::listen(&socket)
        .with_context(|| format!("cannot listen on `{}`", socket.display()))?;
    if controller.sanitizer().is_some()
        && let Some(told) = in_the_place_of(std::env::var_os(INJECTION_ENV), &library)
    {
        terminal::note(&told);
        controller.books().notes.push(told);
    }
    let stop = AtomicBool::new(false);
    let stand_by = if options.stand_by { Some(standby::wait()?) } else { None };
    let status = std::thread::scope(|scope| {
        scope.spawn(|| controller.serve(&desk, &stop));
        let on = stand_by.as_ref().map(|s| scope.spawn(|| standby::serve(s, &controller, &stop)));
        let status = command(options, &library, &socket, &controller);
        stop.store(true, Relaxed);
        if let Some(on) = on.and_then(|on| on.join().ok()) {
            controller.books().notes.push(standby::told(on));
        }
        status
    })?;
    let mut books = controller.books();
    books.take_records();
    let _ = terminal::show_beside(&page(&books, &controller));
    if let Some(path) = &options.output {
        let mut document = document(&books);
        if let Some(policies) = controller.policies() {
            document["policy"] = decisions::document(policies);
        }
        let document = format!("{document:#}\n");
        std::fs::write(path, document)
            .with_context(|| format!("cannot write `{}`", path.display()))?;
    }
    Ok(ExitCode::from(code(status)))
}

/// The policies of a plan, with the maps of its device programs that they see.
fn policies(plan: &Plan, decides: Option<Decides>) -> Result<Option<Policies>> {
    let policy = Policy::of(plan);
    match (decides, policy.programs().first()) {
        (None, None) => Ok(None),
        (None, Some(program)) => bail!(
            "program `{}` is a policy, which `gpuwhy probe policy` runs; `probe run` asks nothing of a driver",
            program.name
        ),
        (Some(_), None) => {
            bail!("the objects have no program in a section gpu/policy/alloc, …/launch or …/tick")
        }
        (Some(Decides { dry_run }), Some(_)) => {
            let shared = policy.shared(plan).map_err(|why| anyhow::anyhow!(why))?;
            // Whatever cannot be run here is told before the command starts.
            Machine::new(&policy).map_err(|why| anyhow::anyhow!(why))?;
            Ok(Some(Policies::new(policy, shared, dry_run)))
        }
    }
}

fn rules(
    options: &Session,
    objects: &[PathBuf],
    steal: &[String],
    decides: Option<Decides>,
) -> Result<Rules> {
    let how = options.sampling.how(&options.allowed, true);
    let (mut plan, mut made_of) = accepted(objects, how)?;
    plan.steal(steal);
    made_of.push(format!("{how:?} {steal:?}").into_bytes());
    if let Some(order) = plan.probes().iter().find(|probe| probe.attach.orders().is_some())
        && steal.is_empty()
    {
        bail!(
            "program `{}` orders the blocks of kernels that steal work; name them with --steal",
            order.name
        );
    }
    let policies = policies(&plan, decides)?;
    let maps = plan.table().maps;
    let has = |name| maps.iter().any(|(map, _)| map.name == name);
    let nobody = maps.iter().all(|(map, _)| map.name == SAMPLED);
    if nobody && steal.is_empty() && policies.is_none() {
        bail!("the programs have no map, so that nobody would see what they do");
    }
    if how.samples() && has(desk::LAUNCHES) {
        bail!(
            "the programs tell each launch (map `{}`), which calls are matched with: run them in all launches, blocks \
             and warps, without --one-launch-in, --one-block-in and --one-warp-in",
            desk::LAUNCHES
        );
    }
    let shared = Arc::new(Shared::open(&options.maps, &plan.table())?);
    let cache = if options.no_cache { None } else { Cache::new(options.cache.as_deref()) };
    let most = options.memory.saturating_mul(1 << 20);
    let (threads, off) = (options.threads, options.off || options.stand_by);
    let sanitizer = options.reach.sanitizer()?;
    Ok(Rules { plan, made_of, threads, most, cache, off, shared, policies, sanitizer })
}

/// The object beside this program, or where it is installed.
fn library() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(LIBRARY_ENV).filter(|path| !path.is_empty()) {
        return Ok(path.into());
    }
    let program = std::env::current_exe().context("cannot tell where this program is")?;
    let beside = program.ancestors().skip(1).take(2).map(|dir| dir.join(LIBRARY));
    let found = beside.into_iter().find(|path| path.exists());
    found.with_context(|| {
        format!("there is no {LIBRARY} beside `{}`; {LIBRARY_ENV} names it", program.display())
    })
}

/// What is not recorded since Sanitizer has the driver's only place for such a library.
fn in_the_place_of(other: Option<OsString>, library: &Path) -> Option<String> {
    let other = other.filter(|other| !other.is_empty() && Path::new(other) != library)?;
    Some(format!(
        "Sanitizer takes the place of `{}`: what that would have recorded of this command's kernels is not there",
        other.display()
    ))
}

/// Runs the command to its end.
fn command(
    options: &Session,
    library: &Path,
    socket: &Path,
    controller: &Controller,
) -> Result<ExitStatus> {
    let (program, arguments) = options.command.split_first().context("there is no command")?;
    let mut preload = library.as_os_str().to_owned();
    // The dynamic linker takes spaces and colons for the end of a name.
    if preload.to_string_lossy().contains([' ', ':']) {
        bail!("`{}` cannot be preloaded: its path has a space or a colon", library.display());
    }
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let mut command = Command::new(program);
    command.args(arguments).env("LD_PRELOAD", preload).env(PROBES_ENV, socket);
    command.env(PROBES_WAIT_ENV, options.wait.to_string());
    if controller.policies().is_some() {
        command.env(POLICY_ENV, "1");
    }
    if let Some(sanitizer) = controller.sanitizer() {
        // The driver calls the object when it is initialised, which is when Sanitizer can begin.
        command.env(SANITIZER_ENV, &sanitizer.library).env(INJECTION_ENV, library);
    }
    // Before there is a command: what comes now is passed on when there is one.
    let signals =
        SignalsInfo::<WithOrigin>::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2]);
    let mut signals = signals.context("cannot take signals")?;
    let started = command.spawn();
    let mut child = match started {
        Ok(child) => child,
        Err(error) => {
            terminal::fail(format_args!(
                "gpuwhy: cannot start `{}`: {error}",
                Path::new(program).display()
            ));
            let code = if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
            return Ok(ExitStatus::from_raw(code << 8));
        }
    };
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let handle = signals.handle();
        let (pid, ended) = (child.id(), &ended);
        scope.spawn(move || {
            for origin in &mut signals {
                // What a terminal sends reaches the command without us.
                let by_somebody =
                    matches!(origin.cause, Cause::Sent(Sent::User | Sent::TKill | Sent::Queue));
                if by_somebody && !ended.load(Relaxed) {
                    pass_on(pid, origin.signal);
                }
            }
        });
        let status = child.wait().context("cannot wait for the command");
        ended.store(true, Relaxed);
        handle.close();
        status
    })
}

fn pass_on(pid: u32, signal: i32) {
    if let Some((pid, signal)) = Pid::from_raw(pid as i32).zip(Signal::from_named_raw(signal)) {
        let _ = kill_process(pid, signal);
    }
}

/// As shells count.
fn code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, signal) => signal.map_or(255, |signal| 128 | signal as u8),
    }
}

/// How an image was loaded, in words.
fn fate(loaded: &Loaded) -> String {
    match (&loaded.made.why, loaded.outcome) {
        (Some(why), _) => why.clone(),
        (None, Some(Outcome::Taken)) if loaded.made.machine_code => "called by Sanitizer".into(),
        (None, Some(Outcome::Taken)) => "with probes".into(),
        (None, Some(Outcome::Refused(code))) if loaded.made.machine_code => {
            format!("Sanitizer refused it (SanitizerResult {code}); it stays as it is")
        }
        (None, Some(Outcome::Refused(code))) => {
            format!("the driver refused it with probes (CUresult {code}); it was loaded as it is")
        }
        (None, Some(Outcome::Unfilled(code))) => {
            format!("its maps found no place on the device (CUresult {code}); its probes are off")
        }
        (None, None) => "the program did not say what became of it".into(),
    }
}

/// The maps of a context, and what is to be said of them.
fn shown(loaded: &Loaded, shown: &Shown) -> Option<(Vec<Contents>, Option<String>)> {
    let layout = loaded.layout.as_ref()?;
    let (drains, at, failed) = shown.state.drained();
    let whole = (0..50).find_map(|_| {
        let maps = shown.state.maps(layout.bytes);
        if maps.is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        maps
    });
    let torn = whole.is_none();
    let mut maps = layout.read(&whole.unwrap_or_else(|| shown.state.torn(layout.bytes)));
    loaded.shared.fill(layout, &mut maps);
    // Rings were emptied while kernels ran.
    for (number, _, _, _) in layout.rings() {
        let of = |(map, record): &(u32, Record)| (*map as usize == number).then(|| record.clone());
        let records = &mut maps[number].records;
        *records = shown.records.iter().filter_map(of).collect();
        records.sort_by_key(|record| record.sm);
    }
    let closed = shown.state.is_closed();
    let left = loaded.records_at().map(|at| Records::new(&shown.state, at).left());
    let note = if drains == 0 && layout.host_bytes > 0 {
        Some("the maps were never read, but for those that lie in the host's memory".to_owned())
    } else if drains == 0 {
        Some("the maps were never read".to_owned())
    } else if torn {
        Some(
            "the program ended while the maps were read: parts of them are older than others"
                .to_owned(),
        )
    } else if !closed {
        let age = gpuwhy_wire::now().saturating_sub(at) / 1_000_000;
        Some(format!("the program ended without a last reading; this one is {age} ms old"))
    } else if shown.left_out > 0 {
        Some(format!("{} more records than are kept were left out", shown.left_out))
    } else if let Some(left) = left.filter(|left| *left > 0) {
        Some(format!("{left} records found no room on their way here when the program ended"))
    } else if shown.garbled {
        Some("some records were lost: what the program wrote beside them was not right".to_owned())
    } else if failed > 0 {
        Some(format!("the last of {failed} readings that failed may be missing"))
    } else {
        None
    };
    Some((maps, note))
}

/// Whether what a map tells is shown in another form.
fn is_read_for_people(contents: &Contents) -> bool {
    contents.map.name == desk::LAUNCHES
}

/// An image with probes, its kernels and maps.
fn with_probes(screen: &mut Screen, loaded: &Loaded) {
    let place = format!("{} (pid {})", loaded.program, loaded.pid);
    screen.end().line(format_args!(
        "{place}: {} bytes, {} ms",
        loaded.bytes,
        loaded.took.as_millis()
    ));
    if loaded.made.machine_code {
        screen.line("  machine code, from which NVIDIA's Sanitizer calls the programs");
    }
    for (_, readable, sites) in &loaded.made.kernels {
        screen.line(format_args!("  {readable}: {}", many(*sites, "site")));
    }
    if let Some((ptx, machine)) = &loaded.made.older {
        screen.line(format_args!(
            "  its PTX is for {ptx}; without probes it has machine code for {machine}"
        ));
    }
    for note in &loaded.made.notes {
        screen.line(format_args!("  {note}"));
    }
    steal::show(screen, loaded);
    if loaded.states.is_empty() {
        screen.line("  no kernel of it was launched");
    }
    for state in &loaded.states {
        let Some((maps, note)) = shown(loaded, state) else { continue };
        if loaded.states.len() > 1 {
            screen
                .end()
                .line(format_args!("on device {}, context {:#x}", state.device, state.context));
        }
        launches::show(screen, loaded, state);
        let shown: Vec<Contents> =
            maps.into_iter().filter(|maps| !is_read_for_people(maps)).collect();
        show::maps(screen, &shown);
        if let Some(note) = note {
            screen.line(note);
        }
    }
}

fn page(books: &Books, controller: &Controller) -> Screen {
    let mut screen =
        Screen::new(terminal::stderr_is_terminal() && std::env::var_os("NO_COLOR").is_none());
    let policies = controller.policies();
    if policies.is_none() || controller.has_probes() {
        images(&mut screen, books);
    }
    if let Some(policies) = policies {
        decisions::show(&mut screen, policies);
    }
    screen
}

/// What became of images, and what the maps of probes hold.
fn images(screen: &mut Screen, books: &Books) {
    let with = books.images.iter().filter(|i| i.outcome == Some(Outcome::Taken)).count();
    let all = books.images.len() + books.uncounted;
    screen
        .end()
        .bold(format_args!(
            "gpuwhy probe: probes lie in {with} of {} of GPU code",
            many(all, "image")
        ))
        .end();
    if all == 0 {
        screen.line(
            "No image was seen. The command loaded no GPU code, is statically linked, or clears LD_PRELOAD.",
        );
    }
    // Images that have no probes: why, how many, and their kernels by the way in which a probe would reach them.
    let mut others: BTreeMap<String, (usize, BTreeMap<&str, usize>)> = BTreeMap::new();
    for loaded in &books.images {
        let fate = fate(loaded);
        if loaded.outcome == Some(Outcome::Taken) {
            with_probes(screen, loaded);
            continue;
        }
        steal::show_refused(screen, loaded);
        let (count, ways) = others.entry(fate).or_default();
        *count += 1;
        for (way, kernels) in &loaded.made.ways {
            *ways.entry(way).or_default() += kernels;
        }
    }
    for (fate, (count, ways)) in others {
        let kernels: Vec<String> = ways
            .iter()
            .map(|(way, n)| format!("{}: {}", way.replace('_', " "), many(*n, "kernel")))
            .collect();
        let kernels =
            if kernels.is_empty() { String::new() } else { format!(" ({})", kernels.join(", ")) };
        screen.end().line(format_args!("{}: {fate}{kernels}", many(count, "image")));
    }
    if books.uncounted > 0 {
        screen.line(format_args!(
            "{} more images were loaded as they are and not looked at",
            books.uncounted
        ));
    }
    for note in &books.notes {
        screen.line(note);
    }
}

/// `1 image`, `2 images`.
fn many(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

fn document(books: &Books) -> Value {
    let images: Vec<Value> = books
        .images
        .iter()
        .map(|loaded| {
            let made = &loaded.made;
            let kernels: Vec<Value> = made
                .kernels
                .iter()
                .map(|(name, readable, sites)| json!({ "name": name, "readable": readable, "sites": sites }))
                .collect();
            let ways: serde_json::Map<String, Value> =
                made.ways.iter().map(|(way, count)| (way.replace(' ', "_"), json!(count))).collect();
            let contexts: Vec<Value> = loaded
                .states
                .iter()
                .filter_map(|state| {
                    let (maps, note) = shown(loaded, state)?;
                    let (drains, _, failed) = state.state.drained();
                    Some(json!({
                        "device": state.device,
                        "readings": drains,
                        "failed_readings": failed,
                        "complete": state.state.is_closed() && note.is_none(),
                        "note": note,
                        "launches": launches::document(loaded, state),
                        "sampled": show::sampled_document(&maps),
                        "maps": show::documents(&maps),
                    }))
                })
                .collect();
            json!({
                "pid": loaded.pid,
                "program": loaded.program,
                "bytes": loaded.bytes,
                "probes": loaded.outcome == Some(Outcome::Taken),
                "fate": fate(loaded),
                "ms": loaded.took.as_secs_f64() * 1e3,
                "kernels": kernels,
                "ways": ways,
                "notes": made.notes,
                "stealing": steal::document(loaded),
                "contexts": contexts,
            })
        })
        .collect();
    json!({ "images": images, "not_looked_at": books.uncounted, "notes": books.notes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_sanitizer_takes_the_place_of_is_told() {
        let told =
            |other: Option<&str>| in_the_place_of(other.map(OsString::from), Path::new("/o.so"));
        assert!(
            told(Some("/lib/libgpuwhy_inject.so")).unwrap().contains("`/lib/libgpuwhy_inject.so`")
        );
        assert_eq!([told(None), told(Some("")), told(Some("/o.so"))], [None, None, None]);
    }
}
