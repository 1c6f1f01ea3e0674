//! Whose rows are whose: a million records of honest processes and of liars, in two pid namespaces, with
//! threads that live for a moment and numbers that are used again. Each record says in its name who really
//! wrote it; a row that lies on another process or thread is foreign.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use gpuwhy_collect::{Config, Recorder, SocketConfig};
use gpuwhy_schema::{Entity, EntityId, EntityKind, Mark, Rows, TrackId};
use gpuwhy_testkit::guest::{self, Manner, Place, Summary, Task};
use gpuwhy_testkit::helper::HelperProcess;

use super::{Args, Measured};
use crate::result::Figure;

/// Records, of all processes.
const RECORDS: usize = 1_000_000;
/// Records a second of one process.
const PACE: u32 = 3000;
/// A pod that the liars' cgroups pretend to be of.
const POD: &str = "3b7c1f2e-0d4a-4c8b-9e21-5f6a7b8c9d0e";

/// Where one can have been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Truth {
    pid: u32,
    start: u64,
    /// Whether its threads say their names.
    named: bool,
}

/// Measures it.
pub fn run(args: &Args) -> Result<Measured> {
    let folder = std::env::temp_dir().join(format!("gpuwhy-attribution-{}", std::process::id()));
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot make `{}`", folder.display()))?;
    let mut stage = Stage::open(&folder, args.seed)?;
    let played = stage.play(args.tries(RECORDS));
    let _ = std::fs::remove_dir_all(&folder);
    played?;
    let (foreign, n) = (stage.foreign.values().sum::<usize>(), stage.marks);
    let figure = Figure { value: foreign as f64, spread: [foreign as f64; 2], n };
    let mut notes = vec![format!(
        "{n} rows of {} processes, {} of them in a pid namespace of their own; {} rows lie on threads \
         that could not be verified, {} on processes",
        stage.truths.len(),
        stage.nested,
        stage.unverified_threads,
        stage.unverified_processes
    )];
    notes.append(&mut stage.notes);
    let table = |(who, count): (&String, &usize)| {
        BTreeMap::from([
            ("written_by".to_owned(), who.clone()),
            ("rows".to_owned(), count.to_string()),
            ("foreign".to_owned(), stage.foreign.get(who).copied().unwrap_or(0).to_string()),
        ])
    };
    Ok(Measured {
        figures: [("foreign_rows".to_owned(), figure)].into(),
        tables: [("attribution".to_owned(), stage.by_manner.iter().map(table).collect())].into(),
        notes,
    })
}

/// A recorder, and the processes around it.
struct Stage {
    recorder: Recorder,
    socket: PathBuf,
    ring: PathBuf,
    seed: u64,
    running: Vec<HelperProcess<Summary>>,
    /// By the number in their marks.
    truths: HashMap<u32, Truth>,
    manners: HashMap<u32, &'static str>,
    nested: usize,
    entities: HashMap<EntityId, Entity>,
    tracks: HashMap<TrackId, EntityId>,
    marks: usize,
    unverified_threads: usize,
    unverified_processes: usize,
    by_manner: BTreeMap<String, usize>,
    foreign: BTreeMap<String, usize>,
    notes: Vec<String>,
}

impl Stage {
    fn open(folder: &Path, seed: u64) -> Result<Stage> {
        let (socket, ring) = (folder.join("agent.sock"), folder.join("ring"));
        let config = Config {
            agent_socket: Some(SocketConfig::usual(socket.clone())),
            wire: Some(ring.clone()),
            ..Config::default()
        };
        Ok(Stage {
            recorder: Recorder::start(config)?,
            socket,
            ring,
            seed,
            running: Vec::new(),
            truths: HashMap::new(),
            manners: HashMap::new(),
            nested: 0,
            entities: HashMap::new(),
            tracks: HashMap::new(),
            marks: 0,
            unverified_threads: 0,
            unverified_processes: 0,
            by_manner: BTreeMap::new(),
            foreign: BTreeMap::new(),
            notes: Vec::new(),
        })
    }

    /// Honest and lying processes on both ways and in both kinds of namespaces, until as many records have
    /// become rows.
    fn play(&mut self, records: usize) -> Result<()> {
        // Enough of it, also on a busy machine.
        let seconds = records as f64 / f64::from(4 * PACE) + 2.0;
        let honest = || Manner::Honest { threads: 4, per_second: PACE };
        let reused = |reused| Manner::ShortLived { per_second: PACE / 10, reused };
        for in_ring in [false, true] {
            for nested in [false, true] {
                for (what, manner) in [
                    ("honest", honest()),
                    ("short-lived threads", reused(false)),
                    ("threads with used numbers", reused(nested)),
                ] {
                    self.start(what, manner, in_ring, nested, seconds)?;
                }
            }
        }
        // Everybody's numbers, and those of this host that are not theirs.
        let mut victims: Vec<u32> = self.truths.values().map(|truth| truth.pid).collect();
        victims.extend([1, 2, std::process::id()]);
        for nested in [false, true] {
            let manner = Manner::Liar { per_second: PACE, victims: victims.clone() };
            self.start("liar", manner, false, nested, seconds)?;
            if nested {
                self.forge_cgroup();
            }
        }
        while self.marks < records && !self.all_over()? {
            self.tick()?;
            // A number that was its testator's is given to an innocent process.
            self.pass_on()?;
        }
        for process in std::mem::take(&mut self.running) {
            let _ = process.stop();
        }
        self.tick()
    }

    fn start(
        &mut self,
        what: &'static str,
        manner: Manner,
        in_ring: bool,
        nested: bool,
        seconds: f64,
    ) -> Result<u32> {
        let index = self.manners.len() as u32 + 1;
        let at = match in_ring {
            true => Place::Ring(self.ring.clone()),
            false => Place::Socket(self.socket.clone(), 1),
        };
        let named = !matches!(manner, Manner::Liar { .. } | Manner::Testator { .. });
        let seed = self.seed.wrapping_add(u64::from(index));
        let task = Task { index, at, seconds, seed, manner, own_namespace: nested, uid: None };
        let process = guest::start(&task)?;
        let pid = match nested {
            true => guest::inner_process(process.pid())?,
            false => process.pid() as u32,
        };
        self.nested += usize::from(nested);
        let start = start_of(pid).with_context(|| format!("{what} has ended at once"))?;
        self.truths.insert(index, Truth { pid, start, named });
        self.manners.insert(index, what);
        self.running.push(process);
        Ok(pid)
    }

    /// A process leaves its socket and ring to an heir, and its number to somebody else.
    fn pass_on(&mut self) -> Result<()> {
        if self.manners.len() > 200 {
            return Ok(());
        }
        let manner = Manner::Testator { per_second: 100 };
        let number = self.start("passed on", manner, false, false, 0.5)?;
        let mut testator = self.running.pop().context("it was just started")?;
        while testator.ended()?.is_none() {
            self.tick()?;
        }
        drop(testator);
        if guest::set_last_pid(number - 1).is_ok() {
            let manner = Manner::Honest { threads: 1, per_second: 500 };
            let given = self.start("with a used pid", manner, false, false, 0.3)?;
            if given == number {
                *self.by_manner.entry("pids that were used again".into()).or_default() += 1;
            }
            let mut innocent = self.running.pop().context("it was just started")?;
            while innocent.ended()?.is_none() {
                self.tick()?;
            }
        }
        Ok(())
    }

    /// The last process moves into a cgroup that its user was given, and that he calls like a pod.
    fn forge_cgroup(&mut self) {
        let Some(pid) = self.truths.get(&(self.manners.len() as u32)).map(|truth| truth.pid) else {
            return;
        };
        let id = "0123456789abcdef".repeat(4);
        let below = format!("user.slice/user-1000.slice/user@1000.service/kubepods/pod{POD}/{id}");
        let mut moved = 0;
        for mount in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/cpu"] {
            let folder = Path::new(mount).join(&below);
            let is_moved = std::fs::create_dir_all(&folder).is_ok()
                && std::fs::write(folder.join("cgroup.procs"), pid.to_string()).is_ok();
            moved += usize::from(is_moved);
        }
        self.notes.push(format!("a liar is in {moved} cgroups with forged names"));
    }

    fn all_over(&mut self) -> Result<bool> {
        for process in &mut self.running {
            if process.ended()?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn tick(&mut self) -> Result<()> {
        let rows = self.recorder.poll(Duration::from_millis(20))?;
        self.look(&rows);
        Ok(())
    }

    fn look(&mut self, rows: &Rows) {
        for entity in &rows.entity {
            self.entities.insert(entity.id, entity.clone());
        }
        self.tracks.extend(rows.track.iter().map(|track| (track.id, track.entity)));
        for mark in &rows.mark {
            let Some((index, name)) = mark.name.split_once(':') else { continue };
            let Ok(index) = index.parse::<u32>() else { continue };
            let (Some(truth), Some(what)) =
                (self.truths.get(&index).copied(), self.manners.get(&index).copied())
            else {
                continue;
            };
            self.marks += 1;
            *self.by_manner.entry(what.to_owned()).or_default() += 1;
            if let Some(why) = self.is_foreign(mark, truth, name) {
                *self.foreign.entry(what.to_owned()).or_default() += 1;
                if self.notes.len() < 12 {
                    self.notes.push(format!("{what} {}: {why}", mark.name));
                }
            }
        }
    }

    /// Why a row is not where it belongs.
    fn is_foreign(&mut self, mark: &Mark, truth: Truth, name: &str) -> Option<String> {
        let of = |id: EntityId| self.entities.get(&id);
        let Some(thread) = self.tracks.get(&mark.track).and_then(|id| of(*id)) else {
            return Some("it lies on no track".into());
        };
        let Some(process) = thread.parent.and_then(of) else {
            return Some(format!("{} has no process", thread.key));
        };
        let key = format!("{}@{}", truth.pid, truth.start);
        if process.kind != EntityKind::Process {
            return Some(format!("{} is no process", process.key));
        }
        if process.number.is_some() && *process.key != *key {
            return Some(format!("it lies on {} and not on {key}", process.key));
        }
        // A thread may have been seen before it gave itself a name: until then it is called as its process.
        let is_unnamed = thread.name == process.name && thread.number != process.number;
        if thread.number.is_some() && truth.named && *thread.name != *name && !is_unnamed {
            return Some(format!("it lies on the thread `{}`", thread.name));
        }
        let mut above = process.parent.and_then(of);
        while let Some(entity) = above {
            // The cgroup is called so; nothing is made of its name.
            if entity.kind != EntityKind::Cgroup && entity.key.contains(POD) {
                return Some("a forged pod was believed".into());
            }
            above = entity.parent.and_then(of);
        }
        self.unverified_threads += usize::from(thread.number.is_none());
        self.unverified_processes += usize::from(process.number.is_none());
        None
    }
}

/// When a process began, in clock ticks since boot.
fn start_of(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat[stat.rfind(')')? + 1..].split_whitespace().nth(19)?.parse().ok()
}
