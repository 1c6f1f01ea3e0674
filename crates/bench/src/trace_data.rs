//! Generated traces of other tools' kinds, as large as wished, with stalls at known places.
//!
//! Everything follows from the row's number and the seed, so that each table is written from end to
//! end without holding any of it, and a file of a size is the same on every machine.

use std::collections::BTreeSet;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use gpuwhy_diagnose::stats::Random;
use gpuwhy_formats::sqlite::Value::{self, Int, Null, Text};
use gpuwhy_formats::sqlite::build::Builder;
use gpuwhy_schema::terminal;
use serde_json::json;

use crate::kernel_trace;

/// Arguments of `bench trace-data`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Kernels, over all GPUs.
    #[arg(long, default_value_t = 1_000_000)]
    kernels: u64,
    /// Copies at most, stalls included.
    #[arg(long, default_value_t = 100_000)]
    copies: u64,
    /// GPUs.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    gpus: u8,
    /// What everything follows from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A trace of the PyTorch profiler instead of a database.
    #[arg(long)]
    kineto: bool,
    /// A kernel trace in CTF instead, of so many events of a host with 64 CPUs and 100 virtual GPUs.
    #[arg(long, value_name = "EVENTS", conflicts_with = "kineto")]
    ctf: Option<u64>,
    /// Where it goes.
    #[arg(short, long, default_value = "target/traces/generated.sqlite")]
    output: PathBuf,
}

/// Kernels of a GPU begin so far apart.
const SLOT: i64 = 2_400_000;
/// Kernel names.
const NAMES: usize = 200;
/// One slot in this many has a copy too.
const COPY_EVERY: i64 = 10;
/// Intervals with a stall, a GPU.
const STALLS: usize = 5;
const SECOND: i64 = 1_000_000_000;

/// What is generated.
struct Plan {
    gpus: i64,
    slots: i64,
    kernels: u64,
    copies: u64,
    seed: u64,
    /// GPU and interval of a second, and how long the stall in it is.
    stalls: Vec<(i64, i64, i64)>,
}

/// A row's own random numbers.
fn random(seed: u64, table: u64, slot: i64, gpu: i64) -> Random {
    let mut random = Random::new(seed ^ table << 56 ^ (slot as u64) << 8 ^ gpu as u64);
    random.bits();
    random
}

/// Uniform in [0, 1).
fn unit(random: &mut Random) -> f64 {
    (random.bits() >> 11) as f64 / (1u64 << 53) as f64
}

/// Log-normal with this median, by the Box-Muller transform.
fn lognormal(random: &mut Random, median: f64, sigma: f64) -> f64 {
    let (a, b) = (1.0 - unit(random), unit(random));
    median * (sigma * (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()).exp()
}

/// A name by Zipf's law with exponent 1: the inverse of the approximate distribution.
fn name(random: &mut Random) -> i64 {
    let rank = (NAMES as f64 + 1.0).powf(unit(random));
    rank as i64 - 1
}

impl Plan {
    fn new(args: &Args) -> Result<Plan> {
        let gpus = i64::from(args.gpus.max(1));
        let slots = i64::try_from(args.kernels)? / gpus + 1;
        let seconds = slots * SLOT / SECOND;
        if seconds < 60 {
            bail!(
                "--kernels {} fill {seconds} s on {gpus} GPUs, and stalls need a minute: choose at least {}",
                args.kernels,
                gpus * 25_000
            );
        }
        let mut stalls = Vec::new();
        for gpu in 0..gpus {
            let mut random = Random::new(args.seed.wrapping_add(gpu as u64));
            let mut intervals = BTreeSet::new();
            while intervals.len() < STALLS {
                // Not the very ends, where an interval may be cut off.
                intervals.insert(2 + random.below((seconds - 4) as usize) as i64);
            }
            for (i, interval) in intervals.into_iter().enumerate() {
                stalls.push((gpu, interval, (300 + 100 * i as i64) * 1_000_000));
            }
        }
        Ok(Plan {
            gpus,
            // Kernels that a stall leaves out are made up for at the end.
            slots: slots + (STALLS as i64 + 1) * SECOND / SLOT,
            kernels: args.kernels,
            copies: args.copies,
            seed: args.seed,
            stalls,
        })
    }

    /// The stall of a GPU that holds `at`.
    fn stall(&self, gpu: i64, at: i64) -> Option<(i64, i64)> {
        let of = |stall: &&(i64, i64, i64)| {
            let begin = stall.1 * SECOND + SECOND / 10;
            stall.0 == gpu && at >= begin - SLOT && at < begin + stall.2
        };
        self.stalls.iter().find(of).map(|s| (s.1 * SECOND + SECOND / 10, s.2))
    }

    /// A kernel: begin, end and name; none where there is a stall.
    fn kernel(&self, slot: i64, gpu: i64) -> Option<(i64, i64, i64)> {
        let mut random = random(self.seed, 1, slot, gpu);
        // GPUs are a little apart, so that rows in the order of slots are in the order of time.
        let start = slot * SLOT + gpu * SLOT / 100 + random.below(SLOT as usize / 200) as i64;
        if self.stall(gpu, start).is_some() {
            return None;
        }
        let dur = lognormal(&mut random, 0.35 * SLOT as f64, 0.6).clamp(2000.0, 0.9 * SLOT as f64);
        Some((start, start + dur as i64, name(&mut random)))
    }

    /// A copy: begin, end, kind and bytes; where a stall begins, the one that is it.
    fn copy(&self, slot: i64, gpu: i64) -> Option<(i64, i64, i64, i64)> {
        let from = slot * SLOT;
        let begins = |stall: &&(i64, i64, i64)| {
            let begin = stall.1 * SECOND + SECOND / 10;
            stall.0 == gpu && begin >= from && begin < from + SLOT
        };
        if let Some((_, interval, length)) = self.stalls.iter().find(begins) {
            let begin = interval * SECOND + SECOND / 10;
            return Some((begin, begin + length, 2, length * 6));
        }
        let mut random = random(self.seed, 2, slot, gpu);
        if (slot + gpu) % COPY_EVERY != 0 || self.stall(gpu, from).is_some() {
            return None;
        }
        let start = from + SLOT / 4 + gpu * SLOT / 100 + random.below(SLOT as usize / 200) as i64;
        let dur = lognormal(&mut random, 0.2 * SLOT as f64, 0.8).clamp(1000.0, 0.6 * SLOT as f64);
        let kind = [1, 2, 8, 10][random.below(4)];
        Some((start, start + dur as i64, kind, dur as i64 * 12))
    }
}

const KERNEL: &str = "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL,
    correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL,
    shortName INTEGER NOT NULL, mangledName INTEGER, launchType INTEGER, cacheConfig INTEGER,
    registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL, gridY INTEGER NOT NULL,
    gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL,
    blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL,
    dynamicSharedMemory INTEGER NOT NULL, localMemoryPerThread INTEGER NOT NULL,
    localMemoryTotal INTEGER NOT NULL, gridId INTEGER NOT NULL, sharedMemoryExecuted INTEGER,
    graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER)";
const MEMCPY: &str = "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL,
    correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL,
    deprecatedSrcId INTEGER, srcKind INTEGER, dstKind INTEGER, srcDeviceId INTEGER,
    srcContextId INTEGER, dstDeviceId INTEGER, dstContextId INTEGER, migrationCause INTEGER,
    graphNodeId INTEGER, virtualAddress INTEGER)";
const RUNTIME: &str = "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (
    start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER,
    correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL,
    callchainId INTEGER)";

/// Writes what was asked for.
pub fn run(args: &Args) -> Result<ExitCode> {
    if let Some(parent) = args.output.parent() {
        std::fs::create_dir_all(parent)?;
    }
    if let Some(events) = args.ctf {
        let host = kernel_trace::write(&args.output, events, args.seed)?;
        terminal::say(format_args!("{host}"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let plan = Plan::new(args)?;
    if args.kineto {
        kineto(args, &plan)?;
    } else {
        nsys(args, &plan)?;
    }
    let mut stalls = plan.stalls.clone();
    stalls.sort_by_key(|s| (s.0, -s.2));
    let stalls_label: Vec<_> = stalls
        .iter()
        .map(|(gpu, interval, ns)| json!({ "gpu": gpu, "interval": interval, "ns": ns }))
        .collect();
    terminal::say(format_args!(
        "{}",
        json!({
            "schema_version": 1,
            "file": args.output.display().to_string(),
            "bytes": std::fs::metadata(&args.output)?.len(),
            "kernels": plan.kernels,
            "copies": plan.copies,
            "stalls": stalls_label,
        })
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Nsight's number of the one process, and of its one thread.
const PROCESS: i64 = 1 << 48 | 4242 << 24;
const THREAD: i64 = PROCESS | 4242;
/// The names of the calls, behind those of the kernels.
const LAUNCH: i64 = NAMES as i64 + 1;
const MEMCPY_CALL: i64 = NAMES as i64 + 2;

fn nsys(args: &Args, plan: &Plan) -> Result<()> {
    let mut builder = Builder::create(&args.output)?;
    let names: Vec<String> = (0..NAMES as i64)
        .map(|i| format!("void kernel_{i}<float, {}>(float const*, float*, int)", i * 7 % 64))
        .chain(["cudaLaunchKernel_v7000".into(), "cudaMemcpyAsync_v3020".into()])
        .collect();
    let strings: Vec<Vec<Value<'_>>> =
        names.iter().map(|name| vec![Null, Text(name.as_bytes())]).collect();
    let sql = "CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)";
    builder.table_of("StringIds", sql, &strings)?;
    let sql = "CREATE TABLE TARGET_INFO_GPU (vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, \
               busLocation TEXT, cuDevice INTEGER)";
    let buses: Vec<String> = (0..plan.gpus).map(|i| format!("0000:{:02x}:00.0", i + 1)).collect();
    let gpus: Vec<Vec<Value<'_>>> = buses
        .iter()
        .zip(0i64..)
        .map(|(bus, i)| {
            vec![Int(1 << 48), Int(i), Text(b"Generated"), Text(bus.as_bytes()), Int(i)]
        })
        .collect();
    builder.table_of("TARGET_INFO_GPU", sql, &gpus)?;
    calls(&mut builder, plan)?;
    kernels(&mut builder, plan)?;
    copies(&mut builder, plan)?;
    builder.finish()?;
    Ok(())
}

/// One call for each kernel and copy, 20 µs before it.
fn calls(builder: &mut Builder, plan: &Plan) -> Result<()> {
    let mut rows = Rows::new(plan);
    builder.table("CUPTI_ACTIVITY_KIND_RUNTIME", RUNTIME, |put| {
        let Some(row) = rows.next(true, true) else { return false };
        let (start, name) = match row {
            Row::Kernel { start, .. } => (start, LAUNCH),
            Row::Copy { start, .. } => (start, MEMCPY_CALL),
        };
        let begin = (start - 20_000).max(0);
        put(&[
            Int(begin),
            Int(begin + 7_000 + start % 3000),
            Int(0),
            Int(THREAD),
            Int(rows.correlation),
            Int(name),
            Int(0),
            Null,
        ]);
        true
    })?;
    Ok(())
}

fn kernels(builder: &mut Builder, plan: &Plan) -> Result<()> {
    let mut rows = Rows::new(plan);
    builder.table("CUPTI_ACTIVITY_KIND_KERNEL", KERNEL, |put| {
        let Some(row) = rows.next(true, false) else { return false };
        let Row::Kernel { start, end, gpu, name } = row else { return false };
        put(&[
            Int(start),
            Int(end),
            Int(gpu),
            Int(1),
            Null,
            Int(7),
            Int(rows.correlation),
            Int(PROCESS),
            Int(name + 1),
            Int(name + 1),
            Int(name + 1),
            Int(2),
            Int(0),
            Int(32 + name % 96),
            Int(1 + start % 2048),
            Int(1),
            Int(1),
            Int(256),
            Int(1),
            Int(1),
            Int(0),
            Int(16_384),
            Int(0),
            Int(70_000_000),
            Int(rows.correlation),
            Int(32_768),
            Null,
            Int(0),
        ]);
        true
    })?;
    Ok(())
}

fn copies(builder: &mut Builder, plan: &Plan) -> Result<()> {
    let mut rows = Rows::new(plan);
    builder.table("CUPTI_ACTIVITY_KIND_MEMCPY", MEMCPY, |put| {
        let Some(row) = rows.next(false, true) else { return false };
        let Row::Copy { start, end, gpu, kind, bytes } = row else { return false };
        let (from, to) = match kind {
            1 => (1, 2),
            2 => (2, 1),
            _ => (2, 2),
        };
        let peer = |device: i64| if kind == 10 { Int(device) } else { Null };
        put(&[
            Int(start),
            Int(end),
            Int(gpu),
            Int(1),
            Null,
            Int(13),
            Int(rows.correlation),
            Int(PROCESS),
            Int(bytes),
            Int(kind),
            Null,
            Int(from),
            Int(to),
            peer(gpu),
            peer(1),
            peer((gpu + 1) % plan.gpus),
            peer(1),
            Null,
            Null,
            Null,
        ]);
        true
    })?;
    Ok(())
}

/// A row, before it is one of a table.
enum Row {
    Kernel { start: i64, end: i64, gpu: i64, name: i64 },
    Copy { start: i64, end: i64, gpu: i64, kind: i64, bytes: i64 },
}

/// The rows in the order of time.
struct Rows<'a> {
    plan: &'a Plan,
    slot: i64,
    /// Of this slot, the next one last.
    waiting: Vec<Row>,
    kernels: u64,
    copies: u64,
    correlation: i64,
}

impl<'a> Rows<'a> {
    fn new(plan: &'a Plan) -> Rows<'a> {
        Rows { plan, slot: 0, waiting: Vec::new(), kernels: 0, copies: 0, correlation: 0 }
    }

    fn next(&mut self, kernels: bool, copies: bool) -> Option<Row> {
        loop {
            if let Some(row) = self.waiting.pop() {
                self.correlation += 1;
                let wanted = match row {
                    Row::Kernel { .. } => kernels,
                    Row::Copy { .. } => copies,
                };
                if wanted {
                    return Some(row);
                }
                continue;
            }
            if self.slot >= self.plan.slots {
                return None;
            }
            for gpu in 0..self.plan.gpus {
                if self.kernels < self.plan.kernels
                    && let Some((start, end, name)) = self.plan.kernel(self.slot, gpu)
                {
                    self.kernels += 1;
                    self.waiting.push(Row::Kernel { start, end, gpu, name });
                }
                if self.copies < self.plan.copies
                    && let Some((start, end, kind, bytes)) = self.plan.copy(self.slot, gpu)
                {
                    self.copies += 1;
                    self.waiting.push(Row::Copy { start, end, gpu, kind, bytes });
                }
            }
            let start = |row: &Row| match row {
                Row::Kernel { start, .. } | Row::Copy { start, .. } => *start,
            };
            self.waiting.sort_by_key(|row| std::cmp::Reverse(start(row)));
            self.slot += 1;
        }
    }
}

/// The same work as a trace of the PyTorch profiler: with an operator and a call for each kernel.
fn kineto(args: &Args, plan: &Plan) -> Result<()> {
    let file = std::fs::File::create(&args.output)
        .with_context(|| format!("cannot create `{}`", args.output.display()))?;
    let mut out = BufWriter::with_capacity(1 << 20, file);
    write!(out, "{{\"schemaVersion\": 1, \"deviceProperties\": [")?;
    for gpu in 0..plan.gpus {
        let comma = if gpu > 0 { ", " } else { "" };
        write!(out, "{comma}{{\"id\": {gpu}, \"name\": \"Generated\", \"numSms\": 132}}")?;
    }
    write!(
        out,
        "], \"distributedInfo\": {{\"backend\": \"nccl\", \"rank\": 0, \"world_size\": 1}},\n\"traceEvents\": ["
    )?;
    let mut rows = Rows::new(plan);
    let mut first = true;
    while let Some(row) = rows.next(true, true) {
        let id = rows.correlation;
        if !first {
            out.write_all(b",")?;
        }
        first = false;
        host_events(&mut out, &row, id)?;
        device_event(&mut out, &row, id)?;
    }
    write!(
        out,
        "\n], \"traceName\": \"generated.json\", \"displayTimeUnit\": \"ms\", \"baseTimeNanoseconds\": 1751410836000000000}}\n"
    )?;
    out.flush().with_context(|| format!("cannot write `{}`", args.output.display()))
}

/// Nanoseconds as microseconds with three digits.
fn us(ns: i64) -> String {
    format!("{}.{:03}", ns / 1000, ns % 1000)
}

/// The operator and the call that launch a kernel or a copy.
fn host_events(out: &mut impl Write, row: &Row, id: i64) -> Result<()> {
    let (start, call) = match row {
        Row::Kernel { start, .. } => (*start, "cudaLaunchKernel"),
        Row::Copy { start, .. } => (*start, "cudaMemcpyAsync"),
    };
    let begin = (start - 20_000).max(0);
    writeln!(
        out,
        "\n  {{\"ph\": \"X\", \"cat\": \"cpu_op\", \"name\": \"aten::mm\", \"pid\": 4242, \"tid\": 4242, \
         \"ts\": {}, \"dur\": 11.500, \"args\": {{\"External id\": {id}, \"Record function id\": 0, \
         \"Concrete Inputs\": [\"\", \"\"], \"Input type\": [\"float\", \"float\"], \"Input Strides\": \
         [[512, 1], [1, 512]], \"Input Dims\": [[64, 512], [512, 512]], \"Ev Idx\": {id}}}}},",
        us(begin - begin.min(2_000))
    )?;
    writeln!(
        out,
        "  {{\"ph\": \"X\", \"cat\": \"cuda_runtime\", \"name\": \"{call}\", \"pid\": 4242, \"tid\": 4242, \
         \"ts\": {}, \"dur\": 7.250, \"args\": {{\"External id\": {id}, \"cbid\": 211, \"correlation\": \
         {id}}}}},",
        us(begin)
    )?;
    Ok(())
}

/// The kernel or the copy.
fn device_event(out: &mut impl Write, row: &Row, id: i64) -> Result<()> {
    match *row {
        Row::Kernel { start, end, gpu, name } => write!(
            out,
            "  {{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"void kernel_{name}<float, \
             {}>(float const*, float*, int)\", \"pid\": {gpu}, \"tid\": 7, \"ts\": {}, \"dur\": {}, \
             \"args\": {{\"External id\": {id}, \"queued\": 0, \"device\": {gpu}, \"context\": 1, \
             \"stream\": 7, \"correlation\": {id}, \"registers per thread\": {}, \"shared memory\": \
             16384, \"blocks per SM\": 1.25, \"warps per SM\": 10.0, \"grid\": [{}, 1, 1], \"block\": \
             [256, 1, 1], \"est. achieved occupancy %\": 15}}}}",
            name * 7 % 64,
            us(start),
            us(end - start),
            32 + name % 96,
            1 + start % 2048
        )?,
        Row::Copy { start, end, gpu, kind, bytes } => {
            let what = match kind {
                1 => "Memcpy HtoD (Pinned -> Device)",
                2 => "Memcpy DtoH (Device -> Pinned)",
                8 => "Memcpy DtoD (Device -> Device)",
                _ => "Memcpy PtoP (Device -> Device)",
            };
            write!(
                out,
                "  {{\"ph\": \"X\", \"cat\": \"gpu_memcpy\", \"name\": \"{what}\", \"pid\": {gpu}, \
                 \"tid\": 13, \"ts\": {}, \"dur\": {}, \"args\": {{\"External id\": {id}, \"device\": \
                 {gpu}, \"context\": 1, \"stream\": 13, \"correlation\": {id}, \"bytes\": {bytes}, \
                 \"memory bandwidth (GB/s)\": 12.0}}}}",
                us(start),
                us(end - start)
            )?;
        }
    }
    Ok(())
}
