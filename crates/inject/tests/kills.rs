//! Programs that have loaded our object are killed at random moments, in ten ways, while an agent polls;
//! and the agent is killed, late or stopped, while programs run.
//!
//! The programs are `gpuloop` under the stand-in's driver, which loads the object as the real one
//! would. Each time the agent never hangs, its records are whole, every program that has ended is gone, and the
//! next program is recorded.
//!
//! `GPUWHY_KILLS` is how many programs are killed (40), `GPUWHY_KILLS_SEED` the seed (1), and
//! `GPUWHY_KILLS_JSON` the file of the result (`bench/kills.sh` runs 1,000 of them).

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
use gpuwhy_wire::{
    Consumer, Drained, ENV, Event, Options, Peer, Polled, Record, Ring, SOCKET_ENV, Server,
    ServerOptions, Settings,
};
use serde::{Deserialize, Serialize};

/// What a program does to itself, and after how many µs, in its environment.
const PLAY: &str = "GPUWHY_KILLS_PLAY";
/// Where the object is, in its environment.
const OBJECT: &str = "CUDA_INJECTION64_PATH";
/// Programs at a time.
const AT_ONCE: usize = 6;
/// The longest life of one, ms: records are flushed every 200 ms.
const LIFE_MS: u64 = 500;
/// How the names of the program's kernels begin, as our object records them.
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
    if let Some(socket) = std::env::args().skip_while(|a| a != "--agent").nth(1) {
        return run_agent(Path::new(&socket));
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
    let back_ms = restarted(&house, restarts).context("an agent that is killed and restarted")?;
    println!(
        "an agent killed and restarted {restarts} times ... ok: records again after {back_ms:?} ms"
    );
    let late_ms = late(&house).context("an agent that starts late")?;
    println!("an agent that starts late ... ok: records after {late_ms} ms");
    let stopped = stopped(&house).context("an agent that is stopped")?;
    println!("an agent that is stopped for 2 s ... ok: {stopped:?}");
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

/// The scripted machine, the libraries and the object, and where agents listen.
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

    fn socket(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A program whose agent listens there.
    fn program(&self, socket: &Path, more: &[(&str, String)]) -> Result<HelperProcess<Summary>> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let mut env = vec![
            (SOCKET_ENV.to_owned(), text(socket)),
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

    /// Another process that polls, with a ring of so many slots for each program.
    fn agent(&self, socket: &Path, slots: u32) -> Result<AgentProcess> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--agent").arg(socket).env("GPUWHY_KILLS_SLOTS", slots.to_string());
        sys::die_with_parent(&mut command, libc::SIGKILL);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let out = child.stdout.take().context("no stdout")?;
        let progress = Arc::new(Mutex::new(Progress::default()));
        let shared = progress.clone();
        let listener = std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if let Ok(new) = serde_json::from_str(&line) {
                    *shared.lock().unwrap() = new;
                }
            }
        });
        Ok(AgentProcess { child, progress, listener: Some(listener) })
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
    /// A thread forks; the child opens the socket anew, works as its parent does, and is killed.
    ForkWork,
    /// A thread opens and closes our object all the time, and calls its entry point again.
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
                        call_the_entry_point(libc::RTLD_NOLOAD);
                        libc::usleep(100_000);
                        libc::kill(libc::getpid(), libc::SIGKILL);
                    }
                    libc::waitpid(child, std::ptr::null_mut(), 0);
                    libc::usleep(20_000);
                    libc::kill(libc::getpid(), libc::SIGKILL);
                }
                "dlclose" => {
                    for _ in 0..200 {
                        call_the_entry_point(0);
                    }
                    libc::kill(libc::getpid(), libc::SIGKILL);
                }
                _ => {}
            }
        }
    });
}

/// Loads our object, calls its socket as the driver does, and closes it.
fn call_the_entry_point(flags: i32) {
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
        let socket = libc::dlsym(object, c"InitializeInjection".as_ptr());
        if !socket.is_null() {
            let socket: extern "C" fn() -> i32 = std::mem::transmute(socket);
            socket();
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
    /// Programs whose end the agent noticed, of those that had connected.
    #[serde(rename = "heard")]
    ended: usize,
    came: usize,
    gone: usize,
    refused: usize,
    records: u64,
    lost: u64,
    torn: u64,
    abandoned: u64,
    /// Programs that connected and wrote records.
    #[serde(rename = "told")]
    recorded: usize,
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

/// The agent in this process, and what it received.
struct Agent {
    server: Server,
    records: HashMap<i32, u64>,
    gone: Vec<i32>,
    wrong: Vec<String>,
    begun: u64,
}

impl Agent {
    fn poll(&mut self, outcome: &mut Outcome) {
        let before = Instant::now();
        let (records, gone, wrong) = (&mut self.records, &mut self.gone, &mut self.wrong);
        let begun = self.begun;
        let Polled { drained, connected, gone: left, refused } = self.server.poll(
            |peer, record| {
                *records.entry(peer.pid).or_default() += 1;
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
        outcome.came += connected;
        outcome.gone += left;
        outcome.refused += refused;
        sum(outcome, &drained);
    }

    /// Attends until everybody has gone.
    fn until_gone(&mut self, outcome: &mut Outcome) -> Result<()> {
        let hang = Instant::now() + HANG;
        while self.server.peers().count() > 0 {
            ensure!(Instant::now() < hang, "still here: {:?}", Vec::from_iter(self.server.peers()));
            self.poll(outcome);
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
                return Some("a kernel that no program launched");
            }
            (name, start, dur)
        }
        Event::Copy { name, start, dur, .. } | Event::Wait { name, start, dur, .. } => {
            (name, start, dur)
        }
        Event::Launch { name, start, dur, .. } => (name, start, dur),
        Event::Device { name, at, .. } | Event::Notice { name, at, .. } => (name, at, 0),
        Event::Counter { name, at, value, .. } if value >= 0.0 => (name, at, 0),
        _ => return Some("no program writes that"),
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
    let socket = house.socket("socket");
    let server = Server::listen(
        &socket,
        ServerOptions::default(),
        Settings { launches: true, ..Settings::USUAL },
    )?;
    let begun = gpuwhy_wire::now();
    let mut here =
        Agent { server, records: HashMap::new(), gone: Vec::new(), wrong: Vec::new(), begun };
    let (mut outcome, mut random) = (Outcome { kills, ..Outcome::default() }, Random::new(seed));
    let began = Instant::now();
    // The first ones show what an agent at work takes.
    let first = (kills / 10).max(AT_ONCE.min(kills));
    some_kills(house, &socket, &mut here, &mut outcome, &mut random, first)?;
    (outcome.rss_before_kib, outcome.descriptors_before) = (rss_kib(), descriptors());
    some_kills(house, &socket, &mut here, &mut outcome, &mut random, kills - first)?;
    (outcome.rss_after_kib, outcome.descriptors_after) = (rss_kib(), descriptors());

    // The next program is recorded.
    let pid = {
        let program = house.program(&socket, &[])?;
        let hang = Instant::now() + HANG;
        while here.records.get(&program.pid()).is_none_or(|records| *records < 100) {
            ensure!(Instant::now() < hang, "the next program is not recorded");
            here.poll(&mut outcome);
            std::thread::sleep(Duration::from_millis(2));
        }
        let pid = program.pid();
        program.stop()?;
        pid
    };
    here.until_gone(&mut outcome)?;
    ensure!(here.gone.last() == Some(&pid));

    outcome.recorded = here.records.len();
    outcome.ended = here.gone.len();
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
    socket: &Path,
    here: &mut Agent,
    outcome: &mut Outcome,
    random: &mut Random,
    kills: usize,
) -> Result<()> {
    let (mut started, mut victims): (usize, Vec<Victim>) = (0, Vec::new());
    while started < kills || !victims.is_empty() {
        if started < kills && victims.len() < AT_ONCE {
            started += 1;
            victims.push(victim(house, socket, random)?);
        }
        here.poll(outcome);
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

fn victim(house: &House, socket: &Path, random: &mut Random) -> Result<Victim> {
    let how = How::ALL[(random.next_u64() % How::ALL.len() as u64) as usize];
    let after = random.next_u64() % (LIFE_MS * 1000);
    let mut env = Vec::new();
    if let Some(play) = how.played() {
        env.push((PLAY, format!("{play}:{after}")));
    }
    let program = house.program(socket, &env)?;
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

// ---- agents that end in the middle ----

/// What an agent prints, ten times a second and more.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Progress {
    /// Records of each program.
    records: BTreeMap<i32, u64>,
    lost: u64,
    torn: u64,
    abandoned: u64,
    here: usize,
}

struct AgentProcess {
    child: Child,
    progress: Arc<Mutex<Progress>>,
    listener: Option<JoinHandle<()>>,
}

impl AgentProcess {
    fn progress(&self) -> Progress {
        self.progress.lock().unwrap().clone()
    }

    /// Waits until its progress is so; ms.
    fn until(&self, what: &str, is: impl Fn(&Progress) -> bool) -> Result<u64> {
        let began = Instant::now();
        while !is(&self.progress()) {
            ensure!(began.elapsed() < HANG, "not {what}: {:?}", self.progress());
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(began.elapsed().as_millis() as u64)
    }

    fn signal(&self, signal: i32) {
        let _ = sys::kill(self.child.id() as i32, signal);
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = self.listener.take().map(JoinHandle::join);
    }
}

/// Plays an agent until it is killed.
#[expect(clippy::disallowed_methods, reason = "numbers, for the test that started it")]
fn run_agent(socket: &Path) -> Result<()> {
    let slots = std::env::var("GPUWHY_KILLS_SLOTS").ok().and_then(|n| n.parse().ok());
    let ring = Options { slots: slots.unwrap_or(1 << 14), ..Options::default() };
    let options = ServerOptions::of(64, ring);
    let mut server = Server::listen(socket, options, Settings::USUAL)?;
    let mut progress = Progress::default();
    let mut next = Instant::now();
    loop {
        let records = &mut progress.records;
        let seen = server.poll(|peer, _| *records.entry(peer.pid).or_default() += 1, |_| {});
        progress.lost += seen.drained.lost;
        progress.torn += seen.drained.torn;
        progress.abandoned += seen.drained.abandoned;
        progress.here = server.peers().count();
        if Instant::now() >= next {
            next = Instant::now() + Duration::from_millis(20);
            println!("{}", serde_json::to_string(&progress)?);
            std::io::stdout().flush()?;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Two programs go on while their agent is killed and another one starts: they are recorded again.
fn restarted(house: &House, times: usize) -> Result<Vec<u64>> {
    let socket = house.socket("restarted");
    let mut agent = house.agent(&socket, 1 << 14)?;
    let mut programs = [house.program(&socket, &[])?, house.program(&socket, &[])?];
    let pids = programs.each_ref().map(HelperProcess::pid);
    let all = |progress: &Progress| {
        pids.iter().all(|pid| progress.records.get(pid).is_some_and(|n| *n > 10))
    };
    agent.until("recorded", all)?;
    let mut took = Vec::new();
    for _ in 0..times {
        drop(agent);
        agent = house.agent(&socket, 1 << 14)?;
        took.push(agent.until("recorded again", all)?);
        let progress = agent.progress();
        ensure!(progress.torn + progress.abandoned == 0, "{progress:?}");
    }
    for program in &mut programs {
        ensure!(program.ended()?.is_none(), "{program:?} has ended with its agent");
    }
    for program in programs {
        program.stop()?;
    }
    agent.until("alone", |progress| progress.here == 0)?;
    Ok(took)
}

/// A program runs for half a second before anybody listens.
fn late(house: &House) -> Result<u64> {
    let socket = house.socket("late");
    let program = house.program(&socket, &[])?;
    std::thread::sleep(Duration::from_millis(500));
    let agent = house.agent(&socket, 1 << 14)?;
    let pid = program.pid();
    let took =
        agent.until("recorded", |progress| progress.records.get(&pid).is_some_and(|n| *n > 10))?;
    program.stop()?;
    Ok(took)
}

/// What a program did while its agent did not read.
#[derive(Debug, Serialize)]
struct Stopped {
    /// Steps in the two seconds before, in the two seconds of the stop, and in the two after.
    steps: [u64; 3],
    /// Records that were lost, as the agent counted before and after.
    lost: [u64; 2],
}

/// An agent with a small ring is stopped for two seconds: the program takes its steps, and what
/// found no room was counted.
fn stopped(house: &House) -> Result<Stopped> {
    let socket = house.socket("stopped");
    let agent = house.agent(&socket, 256)?;
    // Its steps go to another ring, which we read.
    let marks = Ring::memfd(Options { slots: 1 << 16, ..Options::default() })?;
    let mut reader = Consumer::open(marks.path())?;
    let program = house.program(&socket, &[(ENV, marks.path().to_string_lossy().into_owned())])?;
    let pid = program.pid();
    agent.until("recorded", |progress| progress.records.get(&pid).is_some_and(|n| *n > 10))?;
    let mut steps = || {
        reader.drain(usize::MAX, |_| {});
        std::thread::sleep(Duration::from_secs(2));
        let mut steps = 0;
        reader.drain(usize::MAX, |r| steps += u64::from(matches!(r.event, Event::Step { .. })));
        steps
    };
    let before = steps();
    let lost = agent.progress().lost;
    agent.signal(libc::SIGSTOP);
    let during = steps();
    agent.signal(libc::SIGCONT);
    let after = steps();
    let records = agent.progress().records.get(&pid).copied().unwrap_or(0);
    agent.until("recorded on", |progress| {
        progress.records.get(&pid).is_some_and(|n| *n > records)
    })?;
    let stopped = Stopped { steps: [before, during, after], lost: [lost, agent.progress().lost] };
    program.stop()?;
    // Not a speed: a program that waits for a stopped agent takes no step at all.
    ensure!(during * 4 > before.min(after), "{stopped:?}");
    ensure!(stopped.lost[1] > stopped.lost[0], "{stopped:?}");
    Ok(stopped)
}
