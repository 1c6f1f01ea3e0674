//! Views of what happened, with names in place of ids.
//!
//! They are nothing but SQL over the tables of the schema and the table `lanes`, so that users can copy
//! them for queries of their own. A view comes after those that it refers to.

/// A view.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// Its name.
    pub name: &'static str,
    /// What a row is.
    pub row: &'static str,
    /// Its columns in order, with their meaning where it is not clear from the name.
    pub columns: &'static [(&'static str, &'static str)],
    /// Its SQL. `{origin}` stands for the begin of the first device work, and `{width}` for the length of an
    /// interval, both in ns; `{states}` for the names of a thread's states.
    pub sql: &'static str,
}

impl View {
    /// Its SQL for a trace.
    pub fn sql(&self, origin: i64, width: i64) -> String {
        // In parentheses, since it may be negative and follow a minus sign.
        let text = self.sql.replace("{origin}", &format!("({origin})"));
        text.replace("{width}", &width.to_string()).replace("{states}", &state_cases())
    }
}

const ID: (&str, &str) = ("id", "");
const TS: (&str, &str) = ("ts", "Start, ns on the trace clock.");
const DUR: (&str, &str) = ("dur", "Duration, ns; null until it ends.");
const NAME: (&str, &str) = ("name", "");
const THREAD: (&str, &str) = ("thread", "");
const TID: (&str, &str) = ("tid", "");
const PROCESS: (&str, &str) = ("process", "");
const PID: (&str, &str) = ("pid", "");
const RANK: (&str, &str) = ("rank", "");
const GPU: (&str, &str) = ("gpu", "");
const DEVICE: (&str, &str) =
    ("device", "Number of the GPU among the devices of this trace, by rank.");
const STREAM: (&str, &str) = ("stream", "");
const HOST: (&str, &str) = ("host", "");

/// A view of the spans on some tracks of threads.
macro_rules! of_threads {
    ($name:literal, $row:literal, $condition:literal) => {
        View {
            name: $name,
            row: $row,
            columns: &[ID, TS, DUR, NAME, THREAD, TID, PROCESS, PID, RANK],
            sql: concat!(
                "select s.id, s.ts, s.dur, s.name, l.thread, l.tid, l.process, l.pid, l.rank \
                 from span s join lanes l on l.track = s.track where ",
                $condition
            ),
        }
    };
}

/// All views.
pub const VIEWS: &[View] = &[
    View {
        name: "gpu_work",
        row: "All work of streams: one kernel, copy or memset per row.",
        columns: &[
            ID,
            TS,
            DUR,
            NAME,
            DEVICE,
            GPU,
            RANK,
            STREAM,
            ("copy_kind", "`h2d`, `d2h`, `d2d`, `p2p`, `memset` …; null for a kernel."),
            ("bytes", "Null for a kernel."),
        ],
        sql: "select s.id, s.ts, s.dur, s.name, l.device, l.gpu, l.rank, l.entity_name as stream, \
              c.kind as copy_kind, cast(c.bytes as bigint) as bytes \
              from span s join lanes l on l.track = s.track left join \"copy\" c on c.id = s.id \
              where l.lane = 'stream' and l.device is not null and s.dur is not null",
    },
    View {
        name: "kernels",
        row: "One kernel per row.",
        columns: &[
            ID,
            TS,
            DUR,
            NAME,
            DEVICE,
            GPU,
            RANK,
            STREAM,
            PROCESS,
            ("correlation", "Equal to that of the call that launched it; unique within a process."),
            ("grid", "Number of blocks, `x,y,z`."),
            ("block", "Threads per block, `x,y,z`."),
            ("registers", "Per thread."),
            ("shared_bytes", "Shared memory per block."),
            ("graph_node", ""),
        ],
        sql: "select s.id, s.ts, s.dur, s.name, l.device, l.gpu, l.rank, l.entity_name as stream, \
              p.name as process, k.correlation, \
              concat(k.grid_x, ',', k.grid_y, ',', k.grid_z) as grid, \
              concat(k.block_x, ',', k.block_y, ',', k.block_z) as block, \
              k.registers, k.shared_bytes, k.graph_node \
              from kernel k join span s on s.id = k.id join lanes l on l.track = s.track \
              left join entity p on p.id = k.process",
    },
    View {
        name: "copies",
        row: "One copy or memset per row.",
        columns: &[
            ID,
            TS,
            DUR,
            ("kind", "`h2d`, `d2h`, `d2d`, `p2p`, `h2h`, `memset`, `managed`, `other`."),
            ("bytes", ""),
            ("from_gpu", "Null for the host."),
            ("to_gpu", "Null for the host."),
            ("pinned", ""),
            DEVICE,
            GPU,
            RANK,
            STREAM,
            PROCESS,
            ("correlation", ""),
        ],
        sql: "select s.id, s.ts, s.dur, c.kind, c.bytes, f.name as from_gpu, t.name as to_gpu, c.pinned, \
              l.device, l.gpu, l.rank, l.entity_name as stream, p.name as process, c.correlation \
              from \"copy\" c join span s on s.id = c.id join lanes l on l.track = s.track \
              left join entity f on f.id = c.\"from\" left join entity t on t.id = c.\"to\" \
              left join entity p on p.id = c.process",
    },
    View {
        name: "api",
        row: "One call of the CUDA runtime or driver per row.",
        columns: &[
            ID,
            TS,
            DUR,
            NAME,
            THREAD,
            TID,
            PROCESS,
            PID,
            RANK,
            ("correlation", ""),
            ("result", ""),
        ],
        sql: "select s.id, s.ts, s.dur, s.name, l.thread, l.tid, l.process, l.pid, l.rank, \
              a.correlation, a.result \
              from span s join lanes l on l.track = s.track left join \"call\" a on a.id = s.id \
              where l.lane = 'cuda_calls'",
    },
    View {
        name: "launches",
        row: "Device work, joined with the call that launched it.",
        columns: &[
            ("work", "Id of the work, in `gpu_work`."),
            ("call", "Id of the call: in `api`, or of a mark."),
            ("call_ts", "Start of the call, ns."),
            TS,
            ("delay", "From the start of the call to the start of the work, ns."),
            DUR,
            NAME,
            DEVICE,
        ],
        sql: "select w.id as work, k.\"from\" as call, c.ts as call_ts, w.ts, w.ts - c.ts as delay, w.dur, \
              w.name, w.device \
              from link k join gpu_work w on w.id = k.\"to\" join span c on c.id = k.\"from\" \
              where k.kind = 'launch'",
    },
    of_threads!(
        "osrt",
        "One call of the operating system's libraries per row.",
        "l.lane = 'os_calls'"
    ),
    of_threads!("mpi", "One MPI call per row.", "l.lane = 'mpi_calls'"),
    of_threads!(
        "operators",
        "One operator of a framework, Python function or user annotation per row.",
        "l.lane in ('operators', 'python', 'annotations')"
    ),
    View {
        name: "nvtx",
        row: "One NVTX range per row.",
        columns: &[
            ID,
            TS,
            DUR,
            NAME,
            ("domain", "Null for the default domain."),
            THREAD,
            TID,
            PROCESS,
            PID,
            RANK,
        ],
        sql: "select s.id, s.ts, s.dur, s.name, \
              case when strpos(l.lane, '.') > 0 then substr(l.lane, strpos(l.lane, '.') + 1) end as domain, \
              l.thread, l.tid, l.process, l.pid, l.rank \
              from span s join lanes l on l.track = s.track \
              where l.lane in ('nvtx', 'nvtx_ranges') or l.lane like 'nvtx.%' \
              or l.lane like 'nvtx_ranges.%'",
    },
    View {
        name: "collectives",
        row: "One collective or point-to-point call of one rank per row.",
        columns: &[
            ID,
            TS,
            DUR,
            ("op", ""),
            ("bytes", ""),
            ("communicator", ""),
            ("seq", "Number of the call, equal on all ranks."),
            RANK,
            ("ranks", "Number of ranks that take part."),
            ("peer", ""),
            ("algorithm", ""),
            ("protocol", ""),
        ],
        sql: "select s.id, s.ts, s.dur, c.op, c.bytes, c.communicator, c.seq, c.rank, c.ranks, c.peer, \
              c.algorithm, c.protocol from collective c join span s on s.id = c.id",
    },
    View {
        name: "collective_stages",
        row: "One stage of a rank's call, on its GPU or in its network, as NCCL reports it.",
        columns: &[
            ID,
            TS,
            DUR,
            (
                "stage",
                "`initial_sync`: it waits for the other ranks; `compute`; `final_sync`; `net:…`.",
            ),
            ("op", ""),
            ("communicator", ""),
            ("seq", "Number of the call, equal on all ranks."),
            RANK,
            PROCESS,
            PID,
        ],
        sql: "select s.id, s.ts, s.dur, s.name as stage, c.op, c.communicator, c.seq, c.rank, \
              l.process, l.pid from span s join lanes l on l.track = s.track \
              join collective c on c.id = s.parent where l.lane = 'collective_stages'",
    },
    View {
        name: "stragglers",
        row: "One collective per row for which ranks waited on their GPUs, with the rank that arrived last: \
               the rank that waited least.",
        columns: &[
            ("op", ""),
            ("communicator", ""),
            ("seq", ""),
            ("ts", "When the first rank began to wait, ns on the trace clock."),
            (
                "ranks",
                "Number of ranks whose wait is known; ranks of other hosts are not in this trace.",
            ),
            ("last_rank", ""),
            ("last_pid", ""),
            ("lost_ns", "How much longer the first rank waited than the last one, ns."),
        ],
        sql: "select op, communicator, seq, min(ts) as ts, count(*) as ranks, \
              first_value(rank order by dur, rank) as last_rank, \
              first_value(pid order by dur, rank) as last_pid, \
              max(dur) - min(dur) as lost_ns from collective_stages \
              where stage = 'initial_sync' and dur is not null \
              group by op, communicator, seq having count(*) > 1",
    },
    View {
        name: "steps",
        row: "One step of the work per row.",
        columns: &[
            ID,
            TS,
            DUR,
            NAME,
            ("seq", ""),
            ("size", ""),
            RANK,
            THREAD,
            TID,
            PROCESS,
            PID,
            HOST,
        ],
        sql: "select s.id, s.ts, s.dur, s.name, t.seq, t.size, t.rank, l.thread, l.tid, l.process, l.pid, \
              l.host from step t join span s on s.id = t.id join lanes l on l.track = s.track",
    },
    View {
        name: "parts",
        row: "Where the time of a step went: one part per row.",
        columns: &[
            ("step", "Id of the step, in `steps`."),
            ("seq", ""),
            TS,
            DUR,
            ("kind", "`run`, `runnable`, `block_device`, `network`, `peer` …"),
            ("thread", "The thread in this state."),
            ("blame", "The process, cgroup or device that caused it."),
            ("hops", ""),
        ],
        sql: "select p.step, t.seq, p.ts, p.dur, p.kind, e.name as thread, b.name as blame, p.hops \
              from part p join step t on t.id = p.step left join entity e on e.id = p.thread \
              left join entity b on b.id = p.blame",
    },
    View {
        name: "requests",
        row: "One request of a server per row, as its user sees it.",
        columns: &[
            ID,
            TS,
            DUR,
            ("key", ""),
            ("prompt_tokens", ""),
            ("output_tokens", ""),
            ("queue_ns", "Time until it was first scheduled."),
            ("first_token_ns", "Time until its first token was returned."),
            ("outcome", ""),
        ],
        sql: "select s.id, s.ts, s.dur, r.key, r.prompt_tokens, r.output_tokens, \
              r.scheduled - s.ts as queue_ns, r.first_token - s.ts as first_token_ns, r.outcome \
              from request r join span s on s.id = r.id",
    },
    View {
        name: "findings",
        row: "One cause of a finding per row.",
        columns: &[
            ("id", "Id of the finding."),
            TS,
            DUR,
            ("detector", ""),
            ("score", ""),
            ("cause", "Rank of the cause, from 1."),
            ("class", ""),
            ("culprit", ""),
            ("excess_ns", "Excess per step."),
            ("confidence", "From 0 to 1."),
            ("lane", "Track of the slow steps."),
            THREAD,
            RANK,
        ],
        sql: "select f.id, f.ts, f.dur, f.detector, f.score, c.rank as cause, c.class, e.name as culprit, \
              c.excess_ns, c.confidence, l.lane, l.thread, l.rank \
              from finding f join cause c on c.finding = f.id left join entity e on e.id = c.culprit \
              left join lanes l on l.track = f.track",
    },
    View {
        name: "block_io",
        row: "One block request per row.",
        columns: &[
            ID,
            TS,
            DUR,
            ("op", ""),
            ("sync", ""),
            ("bytes", ""),
            ("disk", ""),
            ("thread", "The thread that submitted it."),
            ("queue_ns", "From insertion into the queue to issue."),
        ],
        sql: "select s.id, s.ts, s.dur, i.op, i.sync, i.bytes, d.name as disk, e.name as thread, \
              i.issued - s.ts as queue_ns from io i join span s on s.id = i.id \
              left join entity d on d.id = i.disk left join entity e on e.id = i.thread",
    },
    View {
        name: "states",
        row: "One state of a thread per row.",
        columns: &[TS, DUR, ("state", ""), ("arg", ""), THREAD, TID, PROCESS, PID],
        sql: "select s.ts, s.dur, case s.value {states} end as state, s.arg, l.thread, l.tid, l.process, \
              l.pid from state s join lanes l on l.track = s.track where l.lane = 'thread_state'",
    },
    View {
        name: "samples",
        row: "One stack sample of a thread per row.",
        columns: &[
            ("ts", "Time, ns on the trace clock."),
            ("function", "The innermost function."),
            ("module", ""),
            ("stack", "Its row in the table `stack`, whose rows refer to their callers."),
            ("weight", "What the sample stands for, in the unit of its track."),
            THREAD,
            TID,
            PROCESS,
            PID,
            RANK,
        ],
        // Stacks and functions may have been written more than once.
        sql: "select s.ts, f.name as function, f.module, s.stack, s.weight, \
              l.thread, l.tid, l.process, l.pid, l.rank \
              from sample s join lanes l on l.track = s.track \
              left join (select distinct id, frame from stack) k on k.id = s.stack \
              left join (select id, max(name) as name, max(module) as module from frame group by id) f \
              on f.id = k.frame",
    },
    View {
        name: "counters",
        row: "One value of a counter per row.",
        columns: &[
            ("ts", "Time of the measurement; for a delta, the end of its interval."),
            NAME,
            ("value", ""),
            ("unit", ""),
            ("of", "The entity that was measured."),
            HOST,
        ],
        sql: "select c.ts, l.lane as name, c.value, l.unit, l.entity_name as \"of\", l.host \
              from counter c join lanes l on l.track = c.track",
    },
    View {
        name: "marks",
        row: "One mark (a point in time) per row.",
        columns: &[
            ID,
            ("ts", "Time, ns on the trace clock."),
            NAME,
            ("value", ""),
            ("lane", "Name of the track."),
            THREAD,
            TID,
            PROCESS,
            PID,
        ],
        sql: "select m.id, m.ts, m.name, m.value, l.lane, l.thread, l.tid, l.process, l.pid \
              from mark m join lanes l on l.track = m.track",
    },
    View {
        name: "kernel_stats",
        row: "Statistics of the kernels of one name on one device.",
        columns: &[
            NAME,
            DEVICE,
            GPU,
            RANK,
            ("count", ""),
            ("sum_ns", ""),
            ("mean_ns", ""),
            ("min_ns", ""),
            ("p50_ns", ""),
            ("p99_ns", ""),
            ("max_ns", ""),
            ("std_ns", "Sample standard deviation."),
        ],
        sql: "select name, device, gpu, rank, t['count'] as \"count\", t['sum'] as sum_ns, \
              t['mean'] as mean_ns, t['min'] as min_ns, t['p50'] as p50_ns, t['p99'] as p99_ns, \
              t['max'] as max_ns, t['std'] as std_ns from ( \
              select name, device, gpu, rank, duration_stats(dur) as t from gpu_work \
              where copy_kind is null group by name, device, gpu, rank)",
    },
    View {
        name: "device_intervals",
        row: "One device in one interval (`--interval`, default 1 s) in which it was active, as a struct.",
        columns: &[
            DEVICE,
            GPU,
            RANK,
            ("shard", "Number of the interval."),
            ("stat", "The struct of the function `device_interval`."),
        ],
        sql: "select device, gpu, rank, shard, \
              device_interval(copy_kind, ts, dur, bytes, {origin} + shard * {width}, {width}) as stat from ( \
              select device, gpu, rank, copy_kind, ts, dur, bytes, \
              unnest(time_shards(ts, dur, {origin}, {width})) as shard from gpu_work) \
              group by device, gpu, rank, shard",
    },
    View {
        name: "stalls",
        row: "One device in one interval (`--interval`, default 1 s): how long it computed, copied, \
               waited for copies and was idle.",
        columns: &[
            DEVICE,
            GPU,
            RANK,
            ("shard", "Number of the interval."),
            ("ts", "Start of the interval, ns."),
            ("kernel_ns", "Time with a kernel or memset."),
            ("copy_ns", "Time with a copy."),
            ("exposed_ns", "Time with a copy and no kernel: the memory stall."),
            ("overlapped_ns", "Time with a copy during a kernel."),
            ("idle_ns", "Time with neither."),
            ("kernels", "Number that began in the interval."),
            ("kernel_std_ns", "Standard deviation of their durations."),
            ("copies", "Number that began in the interval."),
            ("copy_std_ns", "Standard deviation of their durations."),
        ],
        sql: "select device, gpu, rank, shard, {origin} + shard * {width} as ts, \
              stat['kernel_ns'] as kernel_ns, stat['copy_ns'] as copy_ns, \
              stat['exposed_ns'] as exposed_ns, stat['overlapped_ns'] as overlapped_ns, \
              stat['idle_ns'] as idle_ns, stat['kernels'] as kernels, \
              stat['kernel_std_ns'] as kernel_std_ns, stat['copies'] as copies, \
              stat['copy_std_ns'] as copy_std_ns from device_intervals",
    },
];

/// Each state's number and word.
fn state_cases() -> String {
    let case = |state: &gpuwhy_schema::ThreadState| {
        format!("when {} then '{}'", state.code(), state.as_str())
    };
    gpuwhy_schema::ThreadState::ALL.iter().map(case).collect::<Vec<_>>().join(" ")
}

/// The page of views and functions, in Markdown.
pub fn markdown() -> String {
    use std::fmt::Write as _;
    let mut out = String::new();
    let mut table = |name: &str, row: &str, columns: &[(&str, &str)]| {
        let _ = writeln!(out, "### `{name}`\n\n{row}\n");
        let columns = columns.iter().map(|(column, meaning)| match meaning.is_empty() {
            true => format!("`{column}`"),
            false => format!("`{column}` ({})", meaning.trim_end_matches('.')),
        });
        let _ = writeln!(out, "{}.\n", columns.collect::<Vec<_>>().join(", "));
    };
    for view in VIEWS {
        table(view.name, view.row, view.columns);
    }
    table(
        "lanes",
        "One track per row, with the entities that it belongs to; for joins with the schema's tables.",
        crate::trace::LANES,
    );
    let _ = writeln!(out, "## Functions\n");
    for function in crate::functions::FUNCTIONS {
        let _ = writeln!(out, "- `{}`: {}", function.call, function.returns);
    }
    out
}
