//! Full and failing disks: whether the command that is recorded comes to its own end, and whether the rows
//! that are lost are the rows that are counted as lost.
//!
//! The first is asked of the whole program: `record -- CMD` onto a small disk that gets full, and
//! with the calls of its writer failing by `strace`. The second is asked of the writer, by a program that
//! appends numbered rows under the same faults: in a recording, rows of one thing are merged when they are
//! sealed, so that what lies on the disk cannot be compared to the last row with what was taken in.

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use gpuwhy_schema::*;
use gpuwhy_store::{Options, Trace, Writer};
use gpuwhy_testkit::fate::{self, Disk, Fault, Full, Try, Wrapper, situation};
use serde::{Deserialize, Serialize};

use super::folder::Folder;
use super::{Measured, each};
use crate::program;
use crate::result::Figure;

/// Tries of each half.
const TRIES: usize = 1000;

/// Measures both halves.
pub fn run(args: &super::Args) -> Result<Measured> {
    if let Some(reason) = program::cannot_record() {
        bail!("{reason}");
    }
    if !fate::strace_works() {
        bail!("there is no strace; scripts/setup.sh bench installs it");
    }
    let mut measured = Measured::default();
    let tries = args.tries(TRIES);
    survivors(args, tries, &mut measured)?;
    rows(args, tries, &mut measured)?;
    measured.notes.push(format!(
        "children: {tries} runs of `record -- CMD`, half of them onto a tmpfs that gets full, half with one kind \
         of call of the recorder (pwrite64, ftruncate, fsync, rename, mkdir, unlink) failing with ENOSPC, EIO or \
         EROFS, from a drawn call on or for a while; rows: {tries} runs of the writer alone under the same \
         faults and openat and write besides"
    ));
    Ok(measured)
}

/// Commands behind `record`, half of them on a disk that gets full and half on one that fails.
fn survivors(args: &super::Args, tries: usize, measured: &mut Measured) -> Result<()> {
    let situations = ["the disk of the trace gets full", "the disk of the trace fails"];
    let (mut survived, mut made) = (0, 0);
    let wrapper = Wrapper::Record(program::gpuwhy());
    let seed = |n: usize| args.seed.wrapping_mul(7_368_787).wrapping_add(n as u64);
    let make = |n: usize| {
        let folder = Folder::new("disk")?;
        let this = Try { wrapper: &wrapper, folder: folder.path(), seed: seed(n) };
        anyhow::Ok((situation(situations[n % 2]).run)(&this))
    };
    each(tries, make, |n, kept| {
        made += 1;
        match kept? {
            Ok(()) => survived += 1,
            Err(why) => {
                measured.notes.push(format!("{}, seed {}: {why}", situations[n % 2], seed(n)));
            }
        }
        Ok(())
    })?;
    let figure = Figure::share(survived, made);
    measured.figures.insert("disk_fault_children_survived".into(), figure);
    Ok(())
}

/// What the program that writes under faults says at its end.
#[derive(Debug, Serialize, Deserialize)]
struct Told {
    appended: u64,
    lost: u64,
    complete: bool,
}

/// Writers under faults: rows that are neither there nor counted as lost, or both.
fn rows(args: &super::Args, tries: usize, measured: &mut Measured) -> Result<()> {
    let mut unaccounted = Vec::new();
    let (mut lossy, mut incomplete) = (0, 0);
    let seed = |n: usize| args.seed.wrapping_mul(2_750_159).wrapping_add(n as u64);
    let make = |n: usize| {
        let folder = Folder::new("rows")?;
        let (path, told) = written(folder.path(), seed(n), n)
            .with_context(|| format!("the writer of seed {} said nothing", seed(n)))?;
        let Some(told) = told else { return Ok(None) };
        let there = there(&path).with_context(|| format!("seed {}", seed(n)))?;
        anyhow::Ok(Some((told, there)))
    };
    each(tries, make, |n, ended| {
        let Some((told, there)) = ended? else { return Ok(()) };
        let difference = told.appended.abs_diff(there + told.lost);
        if difference > 0 {
            let seed = seed(n);
            measured.notes.push(format!("seed {seed}: {told:?}, but {there} rows are there"));
        }
        lossy += usize::from(told.lost > 0);
        incomplete += usize::from(!told.complete);
        unaccounted.push(difference as f64);
        Ok(())
    })?;
    let sum = unaccounted.iter().sum();
    let most = unaccounted.iter().copied().fold(0.0, f64::max);
    let figure = Figure { value: sum, spread: [0.0, most], n: unaccounted.len() };
    measured.figures.insert("disk_fault_rows_unaccounted".into(), figure);
    measured.notes.push(format!(
        "of {} writers, {lossy} lost rows and {incomplete} left a trace to be recovered",
        unaccounted.len()
    ));
    Ok(())
}

/// One writer under one fault, and the trace that it left; nothing is told if it could not begin.
fn written(folder: &Path, seed: u64, n: usize) -> Result<(PathBuf, Option<Told>)> {
    let own = program::own()?;
    let wrapper = Wrapper::Supervise(own.clone());
    let this = Try { wrapper: &wrapper, folder, seed };
    // Not by a descriptor that is written to: such calls fail here.
    let answers = UnixDatagram::bind(folder.join("answers"))?;
    answers.set_nonblocking(true)?;
    let write = |mut command: Command, path: &Path| -> Result<Option<Told>> {
        command.arg(&own).arg("__write-rows").arg(path).arg(this.draw(77, 40).to_string());
        command.arg(folder.join("answers"));
        let ran = fate::run(&mut command).map_err(|why| anyhow!(why))?;
        // The first write of all failed: `record` would have refused to begin.
        if ran.status.code() == Some(1) {
            return Ok(None);
        }
        let mut line = [0; 1000];
        let told =
            answers.recv(&mut line).ok().and_then(|n| serde_json::from_slice(&line[..n]).ok());
        // 127: not even the program could be loaded.
        if told.is_none() && ran.status.code() == Some(127) {
            return Ok(None);
        }
        told.map(Some).ok_or_else(|| anyhow!("{}: {}", ran.status, ran.said()))
    };
    if n % 2 == 1 {
        let path = folder.join("t.trace");
        let command = Fault::drawn_for_a_writer(&this).strace();
        return Ok((path.clone(), write(command, &path)?));
    }
    const KIB: u64 = 2048;
    let place = folder.join("disk");
    let disk = Disk::new(&place, KIB).ok_or_else(|| anyhow!("no tmpfs can be mounted here"))?;
    let full = Full::leaving(&disk, KIB, 40 + this.draw(1, 300)).map_err(|why| anyhow!(why))?;
    let path = folder.join("t.trace");
    let ballast = std::thread::spawn({
        let wait = Duration::from_millis(30 + this.draw(2, 700));
        let ends = this.draw(3, 3) > 0;
        move || {
            std::thread::sleep(wait);
            // On two of three disks there is room again after a while.
            if ends { drop(full) } else { std::mem::forget(full) }
        }
    });
    let told = write(Command::new("env"), &disk.path().join("t.trace"));
    let _ = ballast.join();
    // Off the disk, before it goes away.
    let copied =
        Command::new("cp").arg("-r").arg(disk.path().join("t.trace")).arg(&path).status()?;
    let told = told?;
    if told.is_some() && !copied.success() {
        bail!("the trace cannot be copied");
    }
    Ok((path, told))
}

/// How many of the rows a trace holds: the numbered ones, and those of what they refer to.
fn there(path: &Path) -> Result<u64> {
    let trace = Trace::open(path)?;
    let declared = [trace.entities()?.len(), trace.tracks()?.len(), trace.sources()?.len()];
    let mut rows = declared.iter().sum::<usize>() as u64;
    for batch in trace.all::<Counter>() {
        rows += batch?.len() as u64;
    }
    Ok(rows)
}

/// Writes numbered rows for about a second, as a recorder would, and sends `answers` what became of them.
pub fn write_rows(path: &Path, batch: u64, answers: &Path) -> Result<ExitCode> {
    let options = Options { max_pending: 4000, seal_bytes: 60_000, ..Options::default() };
    let mut writer = Writer::create(path, options)?;
    let mut lanes = Lanes::default();
    let source = lanes.source("test", "gpuwhy-bench", "1", "");
    let host = lanes.entity(EntityKind::Host, "host", |_| {});
    let lane = Lane::counter("test", "count", Measure::Gauge);
    let track = lanes.track(host, None, lane, source);
    let mut declared = Rows::default();
    lanes.drain(&mut declared);
    let mut appended = declared.len() as u64;
    // What fails is tried again by the next call, and counted if it is dropped.
    let _ = writer.append(&mut declared);
    for tick in 0..120_i64 {
        let rows = 60 + (batch * 17 + tick as u64 * 7) % 200;
        let counter = (0..rows as i64)
            .map(|n| Counter { ts: Ns(tick * 1_000_000 + n), track, value: n as f64 })
            .collect();
        appended += rows;
        let _ = writer.append(&mut Rows { counter, ..Rows::default() });
        if tick % 4 == 3 {
            let _ = writer.flush_journal();
        }
        std::thread::sleep(Duration::from_millis(6));
    }
    let (written, closed) = writer.close();
    let told = Told { appended, lost: written.lost, complete: closed.is_ok() };
    let socket = UnixDatagram::unbound()?;
    socket.send_to(serde_json::to_string(&told)?.as_bytes(), answers)?;
    Ok(ExitCode::SUCCESS)
}
