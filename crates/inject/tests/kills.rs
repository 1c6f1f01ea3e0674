//! Programs that our object lives in are killed at random moments, in ten ways, while a collector
//! attends; and the collector is killed, late or stopped, while programs run.
//!
//! The programs are `gpuloop` under the stand-in's driver, which loads the object as the real one
//! would. Each time: the collector never hangs, what it is given is whole, everybody who has gone
//! is gone, and who comes next is heard.
//!
//! `GPUWHY_KILLS` says how many (40), `GPUWHY_KILLS_SEED` which (1), `GPUWHY_KILLS_JSON` where the
//! result goes (`bench/kills.sh` runs 1,000 of them).

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use gpuwhy_testkit::gpu::{self, Environment};
use gpuwhy_testkit::gpuloop::{self, Config, Summary};
use gpuwhy_testkit::helper::{self, HelperProcess};
use gpuwhy_testkit::sys::{self, Random};
use gpuwhy_wire::{Attended, Consumer, DOOR_ENV, Drained, ENV, Event, Hospitality, Host, Options};
use gpuwhy_wire::{Peer, Record, Ring, Settings};
use serde::{Deserialize, Serialize};

/// What a program does to itself, and after how many µs, in its environment.
const PLAY: &str = "GPUWHY_KILLS_PLAY";
/// Where the object is, in its environment.
const OBJECT: &str = "CUDA_INJECTION64_PATH";
/// Programs at a time.
const AT_ONCE: usize = 6;
/// The longest life of one, ms: records are flushed every 200 ms.
const LIFE_MS: u64 = 500;
/// How the names of the program's kernels begin, as our object tells them.
const KERNELS: [&str; 4] = [
    "gpuloop::gemm",
    "gpuloop::softmax",
    "at::native::vectorized_elementwise_kernel",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n",
];
/// Only what hangs takes so long.
const HANG: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    if let Ok(play) = std::env::var(PLAY) {
        play_it(&play);
    }
    helper::dispatch();
    if let Some(door) = std::env::args().skip_while(|a| a != "--collector").nth(1) {
        return collect(Path::new(&door));
    }
    // Programs that crash on purpose leave no cores behind.
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a limit on our stack.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) };
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    let kills = number("GPUWHY_KILLS").unwrap_or(40) as usize;
    let house = House::new()?;

    let outcome = kill(&house, kills, number("GPUWHY_KILLS_SEED").unwrap_or(1))?;
    println!("programs killed at random moments ... ok: {outcome}");
    let restarts = (kills / 40).clamp(1, 10);
    let back_ms =
        restarted(&house, restarts).context("a collector that is killed and restarted")?;
    println!(
        "a collector killed and restarted {restarts} times ... ok: heard again after {back_ms:?} ms"
    );
    let late_ms = late(&house).context("a collector that comes late")?;
    println!("a collector that comes late ... ok: heard after {late_ms} ms");
    let stopped = stopped(&house).context("a collector that is stopped")?;
    println!("a collector that is stopped for 2 s ... ok: {stopped:?}");
    if let Some(path) = std::env::var_os("GPUWHY_KILLS_JSON") {
        let all = serde_json::json!({
            "kills": outcome, "restarted_heard_ms": back_ms, "late_heard_ms": late_ms,
            "stopped": stopped,
        });
        std::fs::write(&path, serde_json::to_string_pretty(&all)? + "\n")
            .with_context(|| format!("cannot write `{}`", path.display()))?;
    }
    Ok(())
}

/// The scripted machine, the libraries and the object, and where collectors listen.
struct House {
    dir: tempfile::TempDir,
    object: PathBuf,
}

impl House {
    fn new() -> Result<House> {
        let dir = tempfile::tempdir()?;
        let standin = gpu::find_standin().context("cargo builds the stand-in for this test")?;
        gpu::link_libraries(&dir.path().join("lib"), &standin)?;
        let program = std::env::current_exe()?;
        let near = program.ancestors().skip(1).take(2);
        let object = near
            .map(|dir| dir.join("libgpuwhy_inject.so"))
            .filter(|path| path.exists())
            .max_by_key(|path| path.metadata().and_then(|m| m.modified()).ok())
            .context("no libgpuwhy_inject.so beside this program")?;
        Ok(House { dir, object })
    }

    fn door(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A program whose collector listens there.
    fn program(&self, door: &Path, more: &[(&str, String)]) -> Result<HelperProcess<Summary>> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let mut env = vec![
            (DOOR_ENV.to_owned(), text(door)),
            (OBJECT.to_owned(), text(&self.object)),
            (ENV.to_owned(), String::new()),
        ];
        env.extend(more.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        let machine = Some(self.dir.path().to_owned());
        let libraries = Some(self.dir.path().join("lib"));
        gpuloop::start(&Config {
            kernels: 24,
            kernel_us: 20,
            batch_mib: 1,
            environment: Environment { machine, libraries, variables: env },
            ..Config::default()
        })
    }

    /// Another process that attends, with a ring of so many slots for each program.
    fn collector(&self, door: &Path, slots: u32) -> Result<Collector> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--collector").arg(door).env("GPUWHY_KILLS_SLOTS", slots.to_string());
        sys::die_with_parent(&mut command, libc::SIGKILL);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let out = child.stdout.take().context("no stdout")?;
        let said = Arc::new(Mutex::new(Said::default()));
        let heard = said.clone();
        let listener = std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if let Ok(new) = serde_json::from_str(&line) {
                    *heard.lock().unwrap() = new;
                }
            }
        });
        Ok(Collector { child, said, listener: Some(listener) })
    }
}

// ---- programs that end in the middle ----

/// How a program is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum How {
    /// SIGKILL.
    Kill,
    /// SIGSTOP, and SIGKILL while it is stopped.
    StopKill,
    /// Stopped for longer than a consumer's patience, then going on, then SIGKILL.
    StopContinueKill,
    /// SIGTERM, which it answers by ending in good order.
    Term,
    /// One of its threads reads where nothing is.
    Fault,
    /// One of its threads calls `abort`.
    Abort,
    /// One of its threads calls `exit` while others work.
    Exit,
    /// A thread forks; the child runs another program and outlives its parent, which is killed.
    ForkExec,
    /// A thread forks; the child opens the door anew, works as its parent does, and is killed.
    ForkWork,
    /// Somebody opens and closes our object all the time, and calls its door again.
    Dlclose,
}

impl How {
    const ALL: [How; 10] = [
        How::Kill,
        How::StopKill,
        How::StopContinueKill,
        How::Term,
        How::Fault,
        How::Abort,
        How::Exit,
        How::ForkExec,
        How::ForkWork,
        How::Dlclose,
    ];

    /// What the program does to itself, if it is not done to it from outside.
    fn played(self) -> Option<&'static str> {
        Some(match self {
            How::Fault => "fault",
            How::Abort => "abort",
            How::Exit => "exit",
            How::ForkExec => "fork-exec",
            How::ForkWork => "fork-work",
            How::Dlclose => "dlclose",
            How::Kill | How::StopKill | How::StopContinueKill | How::Term => return None,
        })
    }

    fn is_right(self, status: ExitStatus) -> bool {
        match self {
            How::Fault => status.signal() == Some(libc::SIGSEGV),
            How::Abort => status.signal() == Some(libc::SIGABRT),
            How::Exit => status.code() == Some(0),
            // The signal may come before it is ready to answer it.
            How::Term => status.code() == Some(0) || status.signal() == Some(libc::SIGTERM),
            _ => status.signal() == Some(libc::SIGKILL),
        }
    }
}

/// In a program that is to end: a thread that does it.
fn play_it(play: &str) {
    let Some((what, after)) = play.split_once(':') else { return };
    let (what, after) = (what.to_owned(), after.parse().unwrap_or(0));
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_micros(after));
        // SAFETY: this process exists to end in the middle of what it does. Between fork and exec
        // only system calls are made; what a working child does is what is tested.
        unsafe {
            match &*what {
                "fault" => {
                    let none = libc::mmap(
                        std::ptr::null_mut(),
                        4096,
                        libc::PROT_NONE,
                        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                        -1,
                        0,
                    );
                    none.cast::<u8>().read_volatile();
                }
                "abort" => libc::abort(),
                "exit" => libc::exit(0),
                "fork-exec" => {
                    if libc::fork() == 0 {
                        libc::prctl(libc::PR_SET_PDEATHSIG, 0);
                        let args = [c"sleep".as_ptr(), c"0.3".as_ptr(), std::ptr::null()];
                        libc::execv(c"/bin/sleep".as_ptr(), args.as_ptr());
                        libc::_exit(1);
                    }
                    libc::kill(libc::getpid(), libc::SIGKILL);
                }
                "fork-work" => {
                    let child = libc::fork();
                    if child == 0 {
                        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                        open_the_door(libc::RTLD_NOLOAD);
                        libc::usleep(100_000);
                        libc::kill(libc::getpid(), libc::SIGKILL);
                    }
                    libc::waitpid(child, std::ptr::null_mut(), 0);
                    libc::usleep(20_000);
                    libc::kill(libc::getpid(), libc::SIGKILL);
                }
                "dlclose" => {
                    for _ in 0..200 {
                        open_the_door(0);
                    }
                    libc::kill(libc::getpid(), libc::SIGKILL);
                }
                _ => {}
            }
        }
    });
}

/// Loads our object, calls its door as the driver does, and closes it.
fn open_the_door(flags: i32) {
    let Ok(path) = std::env::var(OBJECT).map(|p| std::ffi::CString::new(p).unwrap_or_default())
    else {
        return;
    };
    // SAFETY: C strings; the function has this type for the driver too.
    unsafe {
        let object = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | flags);
        if object.is_null() {
            return;
        }
        let door = libc::dlsym(object, c"InitializeInjection".as_ptr());
        if !door.is_null() {
            let door: extern "C" fn() -> i32 = std::mem::transmute(door);
            door();
        }
        libc::dlclose(object);
    }
}

/// A program that lives.
struct Victim {
    how: How,
    program: HelperProcess<Summary>,
    /// What is still to be done to it, when.
    next: Vec<(Instant, i32)>,
    /// When it must have ended by itself.
    hang: Instant,
}

/// What was done, and what was seen meanwhile.
#[derive(Debug, Default, Serialize)]
struct Outcome {
    kills: usize,
    by: BTreeMap<String, usize>,
    /// Programs whose end was seen by the collector, of those that it had let in.
    heard: usize,
    came: usize,
    gone: usize,
    refused: usize,
    records: u64,
    lost: u64,
    torn: u64,
    abandoned: u64,
    /// Programs that were let in and told something.
    told: usize,
    attend_calls: u64,
    attend_max_ms: f64,
    rss_before_kib: u64,
    rss_after_kib: u64,
    descriptors_before: usize,
    descriptors_after: usize,
    seconds: f64,
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = serde_json::to_string(self).map_err(|_| std::fmt::Error)?;
        f.write_str(&text)
    }
}

/// The collector in this process, and what it was told.
struct Listening {
    host: Host,
    told: HashMap<i32, u64>,
    gone: Vec<i32>,
    wrong: Vec<String>,
    begun: u64,
}

impl Listening {
    fn attend(&mut self, outcome: &mut Outcome) {
        let before = Instant::now();
        let (told, gone, wrong) = (&mut self.told, &mut self.gone, &mut self.wrong);
        let begun = self.begun;
        let Attended { drained, came, gone: left, refused } = self.host.attend(
            |peer, record| {
                *told.entry(peer.pid).or_default() += 1;
                if let Some(why) = is_wrong(peer, &record, begun)
                    && wrong.len() < 10
                {
                    wrong.push(format!("{why}: {peer:?} {record:?}"));
                }
            },
            |peer| gone.push(peer.pid),
        );
        let took = before.elapsed().as_secs_f64() * 1e3;
        outcome.attend_max_ms = outcome.attend_max_ms.max(took);
        outcome.attend_calls += 1;
        outcome.came += came;
        outcome.gone += left;
        outcome.refused += refused;
        sum(outcome, &drained);
    }

    /// Attends until everybody has gone.
    fn until_gone(&mut self, outcome: &mut Outcome) -> Result<()> {
        let hang = Instant::now() + HANG;
        while self.host.peers().count() > 0 {
            ensure!(Instant::now() < hang, "still here: {:?}", Vec::from_iter(self.host.peers()));
            self.attend(outcome);
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

fn sum(outcome: &mut Outcome, drained: &Drained) {
    outcome.records += drained.records;
    outcome.lost += drained.lost;
    outcome.torn += drained.torn;
    outcome.abandoned += drained.abandoned;
}

/// What cannot be in a record of a sound program.
fn is_wrong(peer: Peer, record: &Record<&Arc<str>>, begun: u64) -> Option<&'static str> {
    let now = gpuwhy_wire::now() + 1_000_000;
    let (name, at, dur) = match record.event {
        Event::Kernel { name, start, dur, .. } => {
            if !KERNELS.iter().any(|kernel| name.starts_with(kernel)) {
                return Some("a kernel that nobody launched");
            }
            (name, start, dur)
        }
        Event::Copy { name, start, dur, .. } | Event::Wait { name, start, dur, .. } => {
            (name, start, dur)
        }
        Event::Launch { name, start, dur, .. } => (name, start, dur),
        Event::Device { name, at, .. } | Event::Notice { name, at, .. } => (name, at, 0),
        Event::Counter { name, at, value, .. } if value >= 0.0 => (name, at, 0),
        _ => return Some("nobody tells that"),
    };
    if record.pid != peer.own_pid {
        return Some("of another process");
    }
    if **name == *Consumer::UNNAMED || name.is_empty() {
        return Some("without a name");
    }
    (at < begun || at.saturating_add(dur) > now).then_some("at no time of the test")
}

fn kill(house: &House, kills: usize, seed: u64) -> Result<Outcome> {
    let door = house.door("door");
    let host = Host::listen(
        &door,
        Hospitality::default(),
        Settings { launches: true, ..Settings::USUAL },
    )?;
    let begun = gpuwhy_wire::now();
    let mut here =
        Listening { host, told: HashMap::new(), gone: Vec::new(), wrong: Vec::new(), begun };
    let (mut outcome, mut random) = (Outcome { kills, ..Outcome::default() }, Random::new(seed));
    let began = Instant::now();
    // The first ones show what a collector at work takes.
    let first = (kills / 10).max(AT_ONCE.min(kills));
    some_kills(house, &door, &mut here, &mut outcome, &mut random, first)?;
    (outcome.rss_before_kib, outcome.descriptors_before) = (rss_kib(), descriptors());
    some_kills(house, &door, &mut here, &mut outcome, &mut random, kills - first)?;
    (outcome.rss_after_kib, outcome.descriptors_after) = (rss_kib(), descriptors());

    // Who comes next is heard.
    let pid = {
        let program = house.program(&door, &[])?;
        let hang = Instant::now() + HANG;
        while here.told.get(&program.pid()).is_none_or(|told| *told < 100) {
            ensure!(Instant::now() < hang, "the next program is not heard");
            here.attend(&mut outcome);
            std::thread::sleep(Duration::from_millis(2));
        }
        let pid = program.pid();
        program.stop()?;
        pid
    };
    here.until_gone(&mut outcome)?;
    ensure!(here.gone.last() == Some(&pid));

    outcome.told = here.told.len();
    outcome.heard = here.gone.len();
    outcome.seconds = began.elapsed().as_secs_f64();
    ensure!(here.wrong.is_empty(), "{:#?}", here.wrong);
    ensure!(outcome.came == outcome.gone && outcome.refused == 0, "{outcome}");
    ensure!(outcome.records > 0, "{outcome}");
    // A thread that was killed or stopped in a record leaves one slot; programs have a few threads.
    ensure!(outcome.abandoned + outcome.torn <= 4 * kills as u64, "{outcome}");
    ensure!(outcome.descriptors_after <= outcome.descriptors_before, "{outcome}");
    // A megabyte for what an allocator keeps; a ring that stays mapped would be one for each.
    let grown = outcome.rss_after_kib.saturating_sub(outcome.rss_before_kib);
    ensure!(
        std::env::var_os("GPUWHY_SANITIZED").is_some() || grown < 4096,
        "grown by {grown} KiB: {outcome}"
    );
    Ok(outcome)
}

fn some_kills(
    house: &House,
    door: &Path,
    here: &mut Listening,
    outcome: &mut Outcome,
    random: &mut Random,
    kills: usize,
) -> Result<()> {
    let (mut started, mut victims): (usize, Vec<Victim>) = (0, Vec::new());
    while started < kills || !victims.is_empty() {
        if started < kills && victims.len() < AT_ONCE {
            started += 1;
            victims.push(victim(house, door, random)?);
        }
        here.attend(outcome);
        let now = Instant::now();
        let mut still = Vec::new();
        for mut victim in victims {
            while let Some(&(at, signal)) = victim.next.first()
                && at <= now
            {
                victim.next.remove(0);
                // One that has ended is a zombie until it is asked below, so the number is its own.
                let _ = sys::kill(victim.program.pid(), signal);
            }
            match victim.program.ended()? {
                None => {
                    ensure!(now < victim.hang, "{:?} hangs by {:?}", victim.program, victim.how);
                    still.push(victim);
                }
                Some(status) => {
                    ensure!(victim.how.is_right(status), "{:?} by {:?}", status, victim.how);
                    *outcome.by.entry(format!("{:?}", victim.how)).or_default() += 1;
                }
            }
        }
        victims = still;
        std::thread::sleep(Duration::from_micros(500));
    }
    here.until_gone(outcome)
}

fn victim(house: &House, door: &Path, random: &mut Random) -> Result<Victim> {
    let how = How::ALL[(random.next_u64() % How::ALL.len() as u64) as usize];
    let after = random.next_u64() % (LIFE_MS * 1000);
    let mut env = Vec::new();
    if let Some(play) = how.played() {
        env.push((PLAY, format!("{play}:{after}")));
    }
    let program = house.program(door, &env)?;
    let at = Instant::now() + Duration::from_micros(after);
    let later =
        |random: &mut Random, ms: u64| Duration::from_micros(random.next_u64() % (ms * 1000));
    let next = match how {
        How::Kill => vec![(at, libc::SIGKILL)],
        How::Term => vec![(at, libc::SIGTERM)],
        How::StopKill => vec![(at, libc::SIGSTOP), (at + later(random, 30), libc::SIGKILL)],
        How::StopContinueKill => {
            let on = at + Duration::from_millis(120);
            let end = on + later(random, 50);
            vec![(at, libc::SIGSTOP), (on, libc::SIGCONT), (end, libc::SIGKILL)]
        }
        _ => Vec::new(),
    };
    Ok(Victim { how, program, next, hang: at + HANG })
}

fn rss_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    line.and_then(|l| l.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

// ---- collectors that end in the middle ----

/// What a collector says of itself, ten times a second and more.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Said {
    /// Records of each program.
    told: BTreeMap<i32, u64>,
    lost: u64,
    torn: u64,
    abandoned: u64,
    here: usize,
}

struct Collector {
    child: Child,
    said: Arc<Mutex<Said>>,
    listener: Option<JoinHandle<()>>,
}

impl Collector {
    fn said(&self) -> Said {
        self.said.lock().unwrap().clone()
    }

    /// Waits until it says so; ms.
    fn until(&self, what: &str, is: impl Fn(&Said) -> bool) -> Result<u64> {
        let began = Instant::now();
        while !is(&self.said()) {
            ensure!(began.elapsed() < HANG, "not {what}: {:?}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(began.elapsed().as_millis() as u64)
    }

    fn signal(&self, signal: i32) {
        let _ = sys::kill(self.child.id() as i32, signal);
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = self.listener.take().map(JoinHandle::join);
    }
}

/// Plays a collector until it is killed.
fn collect(door: &Path) -> Result<()> {
    let slots = std::env::var("GPUWHY_KILLS_SLOTS").ok().and_then(|n| n.parse().ok());
    let ring = Options { slots: slots.unwrap_or(1 << 14), ..Options::default() };
    let hospitality = Hospitality { ring, ..Hospitality::default() };
    let mut host = Host::listen(door, hospitality, Settings::USUAL)?;
    let mut said = Said::default();
    let mut next = Instant::now();
    loop {
        let told = &mut said.told;
        let seen = host.attend(|peer, _| *told.entry(peer.pid).or_default() += 1, |_| {});
        said.lost += seen.drained.lost;
        said.torn += seen.drained.torn;
        said.abandoned += seen.drained.abandoned;
        said.here = host.peers().count();
        if Instant::now() >= next {
            next = Instant::now() + Duration::from_millis(20);
            println!("{}", serde_json::to_string(&said)?);
            std::io::stdout().flush()?;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Two programs go on while their collector is killed and another one comes: they are heard again.
fn restarted(house: &House, times: usize) -> Result<Vec<u64>> {
    let door = house.door("restarted");
    let mut collector = house.collector(&door, 1 << 14)?;
    let mut programs = [house.program(&door, &[])?, house.program(&door, &[])?];
    let pids = programs.each_ref().map(HelperProcess::pid);
    let all = |said: &Said| pids.iter().all(|pid| said.told.get(pid).is_some_and(|n| *n > 10));
    collector.until("heard", all)?;
    let mut took = Vec::new();
    for _ in 0..times {
        drop(collector);
        collector = house.collector(&door, 1 << 14)?;
        took.push(collector.until("heard again", all)?);
        let said = collector.said();
        ensure!(said.torn + said.abandoned == 0, "{said:?}");
    }
    for program in &mut programs {
        ensure!(program.ended()?.is_none(), "{program:?} has ended with its collector");
    }
    for program in programs {
        program.stop()?;
    }
    collector.until("alone", |said| said.here == 0)?;
    Ok(took)
}

/// A program runs for half a second before anybody listens.
fn late(house: &House) -> Result<u64> {
    let door = house.door("late");
    let program = house.program(&door, &[])?;
    std::thread::sleep(Duration::from_millis(500));
    let collector = house.collector(&door, 1 << 14)?;
    let pid = program.pid();
    let took = collector.until("heard", |said| said.told.get(&pid).is_some_and(|n| *n > 10))?;
    program.stop()?;
    Ok(took)
}

/// What a program did while its collector did not read.
#[derive(Debug, Serialize)]
struct Stopped {
    /// Steps in the two seconds before, in the two seconds of the stop, and in the two after.
    steps: [u64; 3],
    /// Records that found no room, as the collector knew before and after.
    lost: [u64; 2],
}

/// A collector with a small ring is stopped for two seconds: the program takes its steps, and what
/// found no room was counted.
fn stopped(house: &House) -> Result<Stopped> {
    let door = house.door("stopped");
    let collector = house.collector(&door, 256)?;
    // Its steps are told in another ring, which we read.
    let marks = Ring::memfd(Options { slots: 1 << 16, ..Options::default() })?;
    let mut reader = Consumer::open(marks.path())?;
    let program = house.program(&door, &[(ENV, marks.path().to_string_lossy().into_owned())])?;
    let pid = program.pid();
    collector.until("heard", |said| said.told.get(&pid).is_some_and(|n| *n > 10))?;
    let mut steps = || {
        reader.drain(usize::MAX, |_| {});
        std::thread::sleep(Duration::from_secs(2));
        let mut steps = 0;
        reader.drain(usize::MAX, |r| steps += u64::from(matches!(r.event, Event::Step { .. })));
        steps
    };
    let before = steps();
    let lost = collector.said().lost;
    collector.signal(libc::SIGSTOP);
    let during = steps();
    collector.signal(libc::SIGCONT);
    let after = steps();
    let told = collector.said().told.get(&pid).copied().unwrap_or(0);
    collector.until("heard on", |said| said.told.get(&pid).is_some_and(|n| *n > told))?;
    let stopped = Stopped { steps: [before, during, after], lost: [lost, collector.said().lost] };
    program.stop()?;
    // Not a speed: one who waits for a stopped collector takes no step at all.
    ensure!(during * 4 > before.min(after), "{stopped:?}");
    ensure!(stopped.lost[1] > stopped.lost[0], "{stopped:?}");
    Ok(stopped)
}
