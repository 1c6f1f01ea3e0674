//! Views that a user can guess: what happened, with names in place of ids.
//!
//! They are SQL over the tables of the schema and over `lanes`, and nothing else; a user who wants
//! another one copies it from here. Their order is that of their dependence.

/// A view.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// Its name.
    pub name: &'static str,
    /// What a row says.
    pub says: &'static str,
    /// Its columns in their order, with their meaning where the name does not suffice.
    pub columns: &'static [(&'static str, &'static str)],
    /// Its text. `{origin}` stands for when the first device work began, and `{width}` for how long an
    /// interval is, both in ns; `{states}` for the words of a thread's states.
    pub sql: &'static str,
}

impl View {
    /// Its text for a trace.
    pub fn sql(&self, origin: i64, width: i64) -> String {
        // A negative number would be two signs in a row.
        let text = self.sql.replace("{origin}", &format!("({origin})"));
        text.replace("{width}", &width.to_string()).replace("{states}", &state_cases())
    }
}

const ID: (&str, &str) = ("id", "");
const TS: (&str, &str) = ("ts", "When it began, ns on the trace clock.");
const DUR: (&str, &str) = ("dur", "How long it took, ns; null while it has not ended.");
const NAME: (&str, &str) = ("name", "");
const THREAD: (&str, &str) = ("thread", "");
const TID: (&str, &str) = ("tid", "");
const PROCESS: (&str, &str) = ("process", "");
const PID: (&str, &str) = ("pid", "");
const RANK: (&str, &str) = ("rank", "");
const GPU: (&str, &str) = ("gpu", "");
const DEVICE: (&str, &str) =
    ("device", "The GPU's number among the devices of this trace, by rank.");
const STREAM: (&str, &str) = ("stream", "");
const HOST: (&str, &str) = ("host", "");

/// The lanes of host threads whose spans have a view.
macro_rules! of_threads {
    ($name:literal, $says:literal, $condition:literal) => {
        View {
            name: $name,
            says: $says,
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
        says: "A kernel, a copy or a memset: all that streams did.",
        columns: &[
            ID,
            TS,
            DUR,
            NAME,
            DEVICE,
            GPU,
            RANK,
            STREAM,
            ("copy_kind", "`h2d`, `d2h`, `d2d`, `p2p`, `memset` …; null of a kernel."),
            ("bytes", "Null of a kernel."),
        ],
        sql: "select s.id, s.ts, s.dur, s.name, l.device, l.gpu, l.rank, l.entity_name as stream, \
              c.kind as copy_kind, cast(c.bytes as bigint) as bytes \
              from span s join lanes l on l.track = s.track left join \"copy\" c on c.id = s.id \
              where l.lane = 'stream' and l.device is not null and s.dur is not null",
    },
    View {
        name: "kernels",
        says: "A kernel.",
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
            ("correlation", "Ties it to the call that launched it, within its process."),
            ("grid", "Blocks: `x,y,z`."),
            ("block", "Threads of a block: `x,y,z`."),
            ("registers", "A thread."),
            ("shared_bytes", "A block."),
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
        says: "A copy or a memset.",
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
        says: "A call of the CUDA runtime or driver.",
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
        says: "Device work with the call that launched it.",
        columns: &[
            ("work", "The id in `gpu_work`."),
            ("call", "The id in `api`, or of a mark."),
            ("call_ts", "When the call began."),
            TS,
            ("delay", "From the begin of the call to that of the work, ns."),
            DUR,
            NAME,
            DEVICE,
        ],
        sql: "select w.id as work, k.\"from\" as call, c.ts as call_ts, w.ts, w.ts - c.ts as delay, w.dur, \
              w.name, w.device \
              from link k join gpu_work w on w.id = k.\"to\" join span c on c.id = k.\"from\" \
              where k.kind = 'launch'",
    },
    of_threads!("osrt", "A call of the operating system's libraries.", "l.lane = 'os_calls'"),
    of_threads!("mpi", "A call of MPI.", "l.lane = 'mpi_calls'"),
    of_threads!(
        "operators",
        "An operator of a framework, a function of Python or a range that its user named.",
        "l.lane in ('operators', 'python', 'annotations')"
    ),
    View {
        name: "nvtx",
        says: "An NVTX range.",
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
        says: "A collective or point-to-point call of one rank.",
        columns: &[
            ID,
            TS,
            DUR,
            ("op", ""),
            ("bytes", ""),
            ("communicator", ""),
            ("seq", "Equal on all ranks."),
            RANK,
            ("ranks", "How many take part."),
            ("peer", ""),
            ("algorithm", ""),
            ("protocol", ""),
        ],
        sql: "select s.id, s.ts, s.dur, c.op, c.bytes, c.communicator, c.seq, c.rank, c.ranks, c.peer, \
              c.algorithm, c.protocol from collective c join span s on s.id = c.id",
    },
    View {
        name: "collective_stages",
        says: "A stage of a call of one rank on its GPU or in its network, as NCCL tells it.",
        columns: &[
            ID,
            TS,
            DUR,
            ("stage", "`initial_sync`: it waits for the others; `compute`; `final_sync`; `net:…`."),
            ("op", ""),
            ("communicator", ""),
            ("seq", "Equal on all ranks."),
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
        says: "A collective for which ranks waited on their GPUs, and the rank that came last: the one that \
               waited least.",
        columns: &[
            ("op", ""),
            ("communicator", ""),
            ("seq", ""),
            ("ts", "When the first rank's kernel began to wait, ns on the trace clock."),
            ("ranks", "Ranks whose wait is known; those of other hosts are not in this trace."),
            ("last_rank", ""),
            ("last_pid", ""),
            ("lost_ns", "How much longer the first rank waited than the last."),
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
        says: "A step of the work.",
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
        says: "Where a piece of a step's time went.",
        columns: &[
            ("step", "The id in `steps`."),
            ("seq", ""),
            TS,
            DUR,
            ("kind", "`run`, `runnable`, `block_device`, `network`, `peer` …"),
            ("thread", "Whose state this is."),
            ("blame", "Who is to be blamed for it."),
            ("hops", ""),
        ],
        sql: "select p.step, t.seq, p.ts, p.dur, p.kind, e.name as thread, b.name as blame, p.hops \
              from part p join step t on t.id = p.step left join entity e on e.id = p.thread \
              left join entity b on b.id = p.blame",
    },
    View {
        name: "requests",
        says: "A request as its user sees it.",
        columns: &[
            ID,
            TS,
            DUR,
            ("key", ""),
            ("prompt_tokens", ""),
            ("output_tokens", ""),
            ("queue_ns", "Until it was first scheduled."),
            ("first_token_ns", "Until its first token was out."),
            ("outcome", ""),
        ],
        sql: "select s.id, s.ts, s.dur, r.key, r.prompt_tokens, r.output_tokens, \
              r.scheduled - s.ts as queue_ns, r.first_token - s.ts as first_token_ns, r.outcome \
              from request r join span s on s.id = r.id",
    },
    View {
        name: "findings",
        says: "A cause of a finding: what was slower, and who did it.",
        columns: &[
            ("id", "Of the finding; its causes are ranked from 1."),
            TS,
            DUR,
            ("detector", ""),
            ("score", ""),
            ("cause", "Its rank."),
            ("class", ""),
            ("culprit", ""),
            ("excess_ns", "Per step."),
            ("confidence", "From 0 to 1."),
            ("lane", "What was slower."),
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
        says: "A block request.",
        columns: &[
            ID,
            TS,
            DUR,
            ("op", ""),
            ("sync", ""),
            ("bytes", ""),
            ("disk", ""),
            ("thread", "Who submitted it."),
            ("queue_ns", "From its insertion to its issue."),
        ],
        sql: "select s.id, s.ts, s.dur, i.op, i.sync, i.bytes, d.name as disk, e.name as thread, \
              i.issued - s.ts as queue_ns from io i join span s on s.id = i.id \
              left join entity d on d.id = i.disk left join entity e on e.id = i.thread",
    },
    View {
        name: "states",
        says: "A state of a thread.",
        columns: &[TS, DUR, ("state", ""), ("arg", ""), THREAD, TID, PROCESS, PID],
        sql: "select s.ts, s.dur, case s.value {states} end as state, s.arg, l.thread, l.tid, l.process, \
              l.pid from state s join lanes l on l.track = s.track where l.lane = 'thread_state'",
    },
    View {
        name: "samples",
        says: "Where a thread was when it was looked at.",
        columns: &[
            ("ts", "When, ns on the trace clock."),
            ("function", "The innermost one."),
            ("module", ""),
            ("stack", "Its place in the table `stack`, whose rows name their callers."),
            ("weight", "What it stands for, in the unit of its lane."),
            THREAD,
            TID,
            PROCESS,
            PID,
            RANK,
        ],
        // Stacks and functions may have been told more than once.
        sql: "select s.ts, f.name as function, f.module, s.stack, s.weight, \
              l.thread, l.tid, l.process, l.pid, l.rank \
              from sample s join lanes l on l.track = s.track \
              left join (select distinct id, frame from stack) k on k.id = s.stack \
              left join (select id, max(name) as name, max(module) as module from frame group by id) f \
              on f.id = k.frame",
    },
    View {
        name: "counters",
        says: "A measurement.",
        columns: &[
            ("ts", "When it was measured; of a delta, the end of the tick."),
            NAME,
            ("value", ""),
            ("unit", ""),
            ("of", "Whose it is."),
            HOST,
        ],
        sql: "select c.ts, l.lane as name, c.value, l.unit, l.entity_name as \"of\", l.host \
              from counter c join lanes l on l.track = c.track",
    },
    View {
        name: "marks",
        says: "A point in time.",
        columns: &[ID, TS, NAME, ("value", ""), ("lane", ""), THREAD, TID, PROCESS, PID],
        sql: "select m.id, m.ts, m.name, m.value, l.lane, l.thread, l.tid, l.process, l.pid \
              from mark m join lanes l on l.track = m.track",
    },
    View {
        name: "kernel_stats",
        says: "The kernels of one name on one device.",
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
            ("std_ns", "Of a sample."),
        ],
        sql: "select name, device, gpu, rank, t['count'] as \"count\", t['sum'] as sum_ns, \
              t['mean'] as mean_ns, t['min'] as min_ns, t['p50'] as p50_ns, t['p99'] as p99_ns, \
              t['max'] as max_ns, t['std'] as std_ns from ( \
              select name, device, gpu, rank, duration_stats(dur) as t from gpu_work \
              where copy_kind is null group by name, device, gpu, rank)",
    },
    View {
        name: "device_intervals",
        says: "One device in one interval (1 s, or what `--interval` says) in which it did something, as the \
               aggregate of that name.",
        columns: &[
            DEVICE,
            GPU,
            RANK,
            ("shard", "The interval's number."),
            ("stat", "See `device_interval` among the functions."),
        ],
        sql: "select device, gpu, rank, shard, \
              device_interval(copy_kind, ts, dur, bytes, {origin} + shard * {width}, {width}) as stat from ( \
              select device, gpu, rank, copy_kind, ts, dur, bytes, \
              unnest(time_shards(ts, dur, {origin}, {width})) as shard from gpu_work) \
              group by device, gpu, rank, shard",
    },
    View {
        name: "stalls",
        says: "One device in one interval (1 s, or what `--interval` says): how long it computed, copied, \
               waited for copies and was idle.",
        columns: &[
            DEVICE,
            GPU,
            RANK,
            ("shard", "The interval's number."),
            ("ts", "When the interval begins, ns."),
            ("kernel_ns", "A kernel or memset ran."),
            ("copy_ns", "A copy ran."),
            ("exposed_ns", "A copy ran and no kernel: the memory stall."),
            ("overlapped_ns", "A copy ran beneath a kernel."),
            ("idle_ns", "Neither ran."),
            ("kernels", "How many began."),
            ("kernel_std_ns", "How much these vary."),
            ("copies", "How many began."),
            ("copy_std_ns", "How much these vary."),
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
    let mut table = |name: &str, says: &str, columns: &[(&str, &str)]| {
        let _ = writeln!(out, "### `{name}`\n\n{says}\n");
        let told = columns.iter().map(|(column, says)| match says.is_empty() {
            true => format!("`{column}`"),
            false => format!("`{column}` ({})", says.trim_end_matches('.')),
        });
        let _ = writeln!(out, "{}.\n", told.collect::<Vec<_>>().join(", "));
    };
    for view in VIEWS {
        table(view.name, view.says, view.columns);
    }
    table(
        "lanes",
        "A track, with all that it belongs to; a table to join with the schema's own.",
        crate::trace::LANES,
    );
    let _ = writeln!(out, "## Functions\n");
    for told in crate::functions::TOLD {
        let _ = writeln!(out, "- `{}`: {}", told.call, told.says);
    }
    out
}
