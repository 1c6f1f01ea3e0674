//! Every table of a trace, declared once.

use crate::cell::Name;
use crate::table::tables;
use crate::words::*;
use crate::{EntityId, Id, Ns, SourceId, TrackId};

tables! {
    /// It took time: a kernel, a copy, a collective, a step, a request, an I/O, a softirq.
    "Shapes: what happened" Span / span: during(ts, dur) {
        /// The span's identity.
        id: Id,
        /// When it began.
        ts: Ns,
        /// How long it took; null while it has not ended.
        dur: Option<Ns>,
        /// The lane it lies on.
        track: TrackId,
        /// The span that contains it, where the source says so.
        parent: Option<Id>,
        /// What it is, as the source names it.
        name: Name,
    }

    /// Exactly one value at a time: a thread's state, an engine's owner, a power state.
    "Shapes: what happened" State / state: during(ts, dur) {
        /// When the value began to hold.
        ts: Ns,
        /// How long it held; null while it still holds.
        dur: Option<Ns>,
        /// The lane it lies on.
        track: TrackId,
        /// The value, in the meaning of the track: a code of `ThreadState` on tracks named
        /// `thread_state`, the entity id of the occupying thread on tracks named `occupant` (0 is the idle task), that
        /// of a process on tracks named `owner` (0 if it is not told).
        value: i64,
        /// More about the value, in the meaning of the value.
        arg: Option<i64>,
    }

    /// A measurement: NVML readings, PCIe bytes, queue depths, time per tick.
    "Shapes: what happened" Counter / counter: at(ts) {
        /// When it was measured; for a delta, the end of the tick.
        ts: Ns,
        /// The lane, which gives the unit and the measure.
        track: TrackId,
        /// The value in the track's unit.
        value: f64,
    }

    /// A point: a wakeup, a launch call, an Xid, a message, a raw imported event.
    "Shapes: what happened" Mark / mark: at(ts) {
        /// The mark's identity.
        id: Id,
        /// When it happened.
        ts: Ns,
        /// The lane it lies on.
        track: TrackId,
        /// What it is, as the source names it.
        name: Name,
        /// A number that belongs to it.
        value: Option<f64>,
    }

    /// Statistics: a stack seen at that time, with the weight it stands for.
    "Shapes: what happened" Sample / sample: at(ts) {
        /// When it was taken.
        ts: Ns,
        /// The lane it lies on.
        track: TrackId,
        /// The stack seen.
        stack: Option<u32>,
        /// The state seen, in the meaning of the track.
        state: Option<i64>,
        /// What it stands for, in the track's unit.
        weight: f64,
    }

    /// Cause or identity between two rows.
    "Shapes: what happened" Link / link: at(ts) {
        /// When the later of the two begins.
        ts: Ns,
        /// The cause: id of a span or mark.
        from: Id,
        /// The effect: id of a span or mark.
        to: Id,
        /// What the link says.
        kind: LinkKind,
    }

    /// Whose: a host, a CPU, a process, a disk, a GPU, a rank.
    "Lanes: whose" Entity / entity: none {
        /// The entity's identity; 0 is never given out.
        id: EntityId,
        /// What it is.
        kind: EntityKind,
        /// What it belongs to: a thread to its process, a process to its cgroup.
        parent: Option<EntityId>,
        /// What distinguishes it from all others of its kind on all hosts.
        key: Name,
        /// The name that users know it by.
        name: Name,
        /// The system's own number for it: pid, tid, CPU index, ifindex, dev_t, rank.
        number: Option<i64>,
        /// When it began, if that was seen or is known.
        from: Option<Ns>,
        /// When it ended, if that was seen.
        to: Option<Ns>,
    }

    /// One lane of one shape of one entity.
    "Lanes: whose" Track / track: none {
        /// The track's identity.
        id: TrackId,
        /// Whose it is.
        entity: EntityId,
        /// The track it is shown under.
        parent: Option<TrackId>,
        /// The shape of its rows.
        shape: Shape,
        /// What it shows: `thread_state`, `occupant`, `steps`, `sm_clock`.
        name: Name,
        /// The unit of a counter's values, in UCUM: `ns`, `By`, `1`, `Cel`, `W`, `MHz`.
        unit: Option<Name>,
        /// What a counter's values are.
        measure: Option<Measure>,
        /// How its rows may lie.
        discipline: Option<Discipline>,
        /// Where its rows come from.
        source: SourceId,
    }

    /// A probe, importer or library that made rows, and how many events it lost.
    "Lanes: whose" Source / source: none {
        /// The source's identity.
        id: SourceId,
        /// The kind of source: `bpf:run_queue`, `proc:psi`, `wire`, `file`.
        kind: Name,
        /// The program that recorded or imported.
        tool: Name,
        /// Its version.
        version: Name,
        /// How it was set up, as `key=value` words.
        config: Name,
        /// Whether it could do what it was asked.
        state: SourceState,
        /// Why not, and what would change that.
        note: Option<Name>,
        /// Events that reached the trace, as rows or in sums.
        recorded: u64,
        /// Events that were seen but lost on the way.
        dropped: u64,
        /// One event in this many was looked at; 1 is all of them.
        one_in: u32,
    }

    /// A point at which two clocks were read together.
    "Lanes: whose" Clock / clock: at(ts_trace) {
        /// The host whose clock it is.
        host: EntityId,
        /// Which clock of that host.
        clock: Name,
        /// What that clock showed.
        ts_source: i64,
        /// What the trace clock showed.
        ts_trace: Ns,
        /// How far off the pair may be, either way.
        error_ns: Ns,
    }

    /// A call stack as a tree of callers: one row a node.
    "Lanes: whose" Stack / stack: none {
        /// The node's identity.
        id: u32,
        /// Its caller; null at the root.
        parent: Option<u32>,
        /// The frame at this node.
        frame: u32,
    }

    /// A function at a place.
    "Lanes: whose" Frame / frame: none {
        /// The frame's identity.
        id: u32,
        /// The function.
        name: Name,
        /// The binary, module or package it lies in.
        module: Option<Name>,
        /// The source file.
        file: Option<Name>,
        /// The line in it.
        line: Option<u32>,
    }

    /// A GPU kernel.
    "Details: a domain's own columns" Kernel / kernel: at(ts) {
        /// The span.
        id: Id,
        /// The span's begin.
        ts: Ns,
        /// The GPU.
        gpu: EntityId,
        /// The process that launched it, where the source says so.
        process: Option<EntityId>,
        /// Correlation id of the launch, unique within its process.
        correlation: Option<u64>,
        /// Blocks of the grid along x.
        grid_x: u32,
        /// Blocks of the grid along y.
        grid_y: u32,
        /// Blocks of the grid along z.
        grid_z: u32,
        /// Threads of a block along x.
        block_x: u32,
        /// Threads of a block along y.
        block_y: u32,
        /// Threads of a block along z.
        block_z: u32,
        /// Registers a thread.
        registers: Option<u32>,
        /// Shared memory a block, static and dynamic, in bytes.
        shared_bytes: Option<u64>,
        /// The node of the CUDA graph that it belongs to.
        graph_node: Option<u64>,
    }

    /// A device copy or memset.
    "Details: a domain's own columns" Copy / copy: at(ts) {
        /// The span.
        id: Id,
        /// The span's begin.
        ts: Ns,
        /// What it connects.
        kind: CopyKind,
        /// Bytes moved.
        bytes: u64,
        /// Where from; null for the host.
        from: Option<EntityId>,
        /// Where to; null for the host.
        to: Option<EntityId>,
        /// Whether the host side was pageable, pinned, or is not known.
        pinned: Option<Name>,
        /// The process that asked for it, where the source says so.
        process: Option<EntityId>,
        /// Correlation id of the call, unique within its process.
        correlation: Option<u64>,
    }

    /// A call of a library that may launch work on a device.
    "Details: a domain's own columns" Call / call: at(ts) {
        /// The span.
        id: Id,
        /// The span's begin.
        ts: Ns,
        /// What ties it to the kernels and copies that it launched; unique within its process.
        correlation: Option<u64>,
        /// What it returned.
        result: Option<i64>,
    }

    /// A collective or point-to-point call of one rank.
    "Details: a domain's own columns" Collective / collective: at(ts) {
        /// The span.
        id: Id,
        /// The span's begin.
        ts: Ns,
        /// The communicator, equal on all its ranks.
        communicator: u64,
        /// The call's number within its communicator and operation, equal on all ranks.
        seq: u64,
        /// The operation: `AllReduce`, `Send`.
        op: Name,
        /// Payload in bytes.
        bytes: u64,
        /// This rank.
        rank: u32,
        /// How many ranks take part.
        ranks: u32,
        /// The root or the peer, where there is one.
        peer: Option<u32>,
        /// The algorithm chosen.
        algorithm: Option<Name>,
        /// The protocol chosen.
        protocol: Option<Name>,
        /// Channels used.
        channels: Option<u32>,
    }

    /// One round of the work that somebody cares about: a training step, an engine step, a marked function.
    "Details: a domain's own columns" Step / step: at(ts) {
        /// The span, which gives duration and name.
        id: Id,
        /// The span's begin.
        ts: Ns,
        /// The thread whose time it is.
        thread: EntityId,
        /// The step's number on its thread, from 0.
        seq: u64,
        /// How much there was to do, in a unit of the workload's own: tokens, bytes, samples. Of a busy period of a thread
        /// that receives from stream sockets: its messages.
        size: Option<i64>,
        /// The rank that took it.
        rank: Option<u32>,
    }

    /// A request as its user sees it.
    "Details: a domain's own columns" Request / request: at(ts) {
        /// The span.
        id: Id,
        /// The span's begin.
        ts: Ns,
        /// The engine's own name for it.
        key: Name,
        /// Tokens given.
        prompt_tokens: Option<u64>,
        /// Tokens made.
        output_tokens: Option<u64>,
        /// When it was first scheduled.
        scheduled: Option<Ns>,
        /// When its first token was out.
        first_token: Option<Ns>,
        /// How it ended.
        outcome: Option<Name>,
        /// The process that saw it so: the one that talks to users, or the engine.
        instance: Option<EntityId>,
        /// Of the tokens given, those that a cache had.
        cached_tokens: Option<u64>,
        /// The trace id of OpenTelemetry that came with it, in hexadecimal digits.
        trace: Option<Name>,
    }

    /// What a step of an engine that serves language models was made of.
    "Details: a domain's own columns" Batch / batch: at(ts) {
        /// The step's span.
        id: Id,
        /// The span's begin.
        ts: Ns,
        /// The engine and its side: `vllm engine`, `vllm worker`.
        engine: Name,
        /// Its process.
        instance: EntityId,
        /// When the batch was put together, or received.
        at: Ns,
        /// Made of who is in the batch and where each stands: equal at the engine and at its workers, and of
        /// no other step.
        digest: u64,
        /// Tokens to be computed.
        tokens: u64,
        /// Requests.
        requests: u64,
        /// Of the tokens, those of prompts; the others are one a request, or drafts.
        prefill_tokens: Option<u64>,
        /// Requests whose prompt is being computed.
        prefill_requests: Option<u64>,
        /// Tokens that its requests had computed before.
        context: Option<u64>,
        /// Requests seen for the first time.
        new_requests: Option<u64>,
        /// Tokens of theirs that a cache had.
        cached_tokens: Option<u64>,
        /// Requests that were sent back to the queue for want of memory.
        preempted: Option<u64>,
        /// Draft tokens to be verified.
        drafts: Option<u64>,
        /// Requests that ran, in the batch or not.
        running: Option<u64>,
        /// Requests that waited.
        waiting: Option<u64>,
        /// The share of the cache's memory in use, in millionths.
        cache_ppm: Option<u64>,
        /// Time that went into giving out that memory, over all requests.
        allocate: Option<Ns>,
        /// Tokens that the device computed, with padding.
        padded: Option<u64>,
        /// Tokens that requests got.
        output_tokens: Option<u64>,
        /// Draft tokens that were kept.
        accepted: Option<u64>,
        /// Draft tokens that had been made for it, of which `drafts` were submitted.
        proposed: Option<u64>,
    }

    /// From this batch on a request takes as many tokens in each, and has as many more computed, until its
    /// next row or the request's end: who is in a batch, without a row for each.
    "Details: a domain's own columns" BatchRequest / batch_request: at(ts) {
        /// The batch: the step's span.
        batch: Id,
        /// The span's begin.
        ts: Ns,
        /// The request's span.
        request: Id,
        /// `runs`, or why it does not: `pauses`, `preempted`.
        state: Name,
        /// Tokens in the batch.
        tokens: u64,
        /// Tokens computed before it.
        computed: u64,
    }

    /// A request to a GPU's hardware, from its submission to its end.
    "Details: a domain's own columns" GpuRequest / gpu_request: at(ts) {
        /// The span.
        id: Id,
        /// The span's begin.
        ts: Ns,
        /// The engine.
        engine: EntityId,
        /// The hardware context.
        context: u64,
        /// The number within its context.
        seq: u64,
        /// When it was submitted to the scheduler.
        submitted: Option<Ns>,
        /// When it was given to the hardware.
        started: Option<Ns>,
        /// The priority it had.
        priority: Option<i64>,
    }

    /// A block request, from its insertion into the queue to its completion.
    "Details: a domain's own columns" Io / io: at(ts) {
        /// The span.
        id: Id,
        /// The span's begin: when the request was queued.
        ts: Ns,
        /// The disk.
        disk: EntityId,
        /// The thread that submitted it.
        thread: EntityId,
        /// What it does.
        op: IoOp,
        /// Whether it is part of a synchronous operation, an fsync or a read that is waited for.
        sync: bool,
        /// Bytes.
        bytes: u64,
        /// First sector, in units of 512 bytes.
        sector: u64,
        /// When it was issued to the device.
        issued: Option<Ns>,
        /// The thread that issued it, where that was seen: the submitter itself, or a worker
        /// that had to be scheduled first.
        issuer: Option<EntityId>,
    }

    /// A thread of a GPU kernel, as a device probe saw it.
    "Details: a domain's own columns" Gthread / gthread: at(ts) {
        /// The span or mark.
        id: Id,
        /// The span's begin.
        ts: Ns,
        /// Streaming multiprocessor.
        sm: u32,
        /// Block, linearised.
        block: u64,
        /// Warp within the block.
        warp: u32,
        /// Lane within the warp.
        lane: Option<u32>,
    }

    /// A wakeup: who ended whose wait.
    "Details: a domain's own columns" Wakeup / wakeup: at(ts) {
        /// The mark, which lies at the end of the woken thread's sleep.
        id: Id,
        /// The mark's time.
        ts: Ns,
        /// The thread that was woken.
        woken: EntityId,
        /// The thread that ran the waking code; to be believed only in context `task`.
        waker: Option<EntityId>,
        /// Where the waking code ran.
        context: WakeContext,
        /// The CPU it ran on.
        cpu: u32,
    }

    /// Bytes handed to or taken from a stream socket by a thread.
    "Details: a domain's own columns" Message / message: at(ts) {
        /// The mark, which lies at the end of the call.
        id: Id,
        /// The mark's time.
        ts: Ns,
        /// The thread.
        thread: EntityId,
        /// Which way the bytes went.
        direction: Direction,
        /// The directed flow, equal at both ends; that of the other direction differs in the lowest bit ([`crate::flow`]).
        flow: u64,
        /// Bytes of this call.
        bytes: u64,
        /// The stream position after this call (TCP `write_seq` or `copied_seq`, modulo 2^32); 0 of a Unix socket, on
        /// which nothing is under way.
        position: u32,
    }

    /// A fact that has no column of its own.
    "Details: a domain's own columns" Attr / attr: none {
        /// The span or mark that it belongs to.
        id: Id,
        /// What it says.
        key: Name,
        /// What it is.
        value: Name,
    }

    /// Where a piece of a step's time went. The parts of one step sum to its duration.
    "Results: what gpuwhy concluded" Part / part: at(ts) {
        /// The step.
        step: Id,
        /// When the piece began.
        ts: Ns,
        /// How long it took.
        dur: Ns,
        /// Where it went.
        kind: PartKind,
        /// The thread whose state this is: the step's own, or the one that it was waiting for.
        thread: EntityId,
        /// Who is to be blamed for it, where somebody is.
        blame: Option<EntityId>,
        /// How many waits the walk crossed to get from the step's thread to `thread`.
        hops: u32,
    }

    /// A counter or a set of spans, summed over equal intervals.
    "Results: what gpuwhy concluded" Bin / bin: during(t, width) {
        /// The track summed.
        track: TrackId,
        /// When the interval begins.
        t: Ns,
        /// How long it is.
        width: Ns,
        /// How many values.
        n: u64,
        /// Their sum.
        sum: f64,
        /// The least.
        min: f64,
        /// The greatest.
        max: f64,
        /// The sum of their squares.
        sumsq: f64,
    }

    /// An interval in which something was slower than it should have been.
    "Results: what gpuwhy concluded" Finding / finding: during(ts, dur) {
        /// The finding's identity.
        id: Id,
        /// When it began.
        ts: Ns,
        /// How long it lasted.
        dur: Ns,
        /// The lane of what was slower.
        track: TrackId,
        /// Who says so.
        detector: Name,
        /// How far beyond its threshold, in the detector's own measure.
        score: f64,
        /// What was expected and what was seen, as JSON.
        baseline: Name,
    }

    /// A cause of a finding.
    "Results: what gpuwhy concluded" Cause / cause: none {
        /// The finding.
        finding: Id,
        /// 1 for the first cause.
        rank: u32,
        /// What it is an instance of.
        class: Class,
        /// Who did it.
        culprit: Option<EntityId>,
        /// How much of the excess it accounts for, per step.
        excess_ns: Ns,
        /// How sure, from 0 to 1.
        confidence: f64,
        /// Evidence for and against, with the rows, as JSON.
        evidence: Name,
    }
}

impl Batch {
    /// A batch of which no more is known than which step it is of, whose, how much is in it, and in how many requests.
    pub fn bare(
        (id, ts): (Id, Ns),
        (engine, instance): (Name, EntityId),
        digest: u64,
        (tokens, requests): (u64, u64),
    ) -> Batch {
        Batch {
            id,
            ts,
            engine,
            instance,
            at: ts,
            digest,
            tokens,
            requests,
            prefill_tokens: None,
            prefill_requests: None,
            context: None,
            new_requests: None,
            cached_tokens: None,
            preempted: None,
            drafts: None,
            running: None,
            waiting: None,
            cache_ppm: None,
            allocate: None,
            padded: None,
            output_tokens: None,
            accepted: None,
            proposed: None,
        }
    }
}

impl Kernel {
    /// A kernel of which no more is known than where and when: its grid counts as one thread.
    pub fn bare(id: Id, ts: Ns, gpu: EntityId) -> Kernel {
        Kernel {
            id,
            ts,
            gpu,
            process: None,
            correlation: None,
            grid_x: 1,
            grid_y: 1,
            grid_z: 1,
            block_x: 1,
            block_y: 1,
            block_z: 1,
            registers: None,
            shared_bytes: None,
            graph_node: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SchemaError, Table, docs, schema};

    #[test]
    fn the_schema_equals_the_golden_text() {
        insta::assert_snapshot!(docs::golden());
    }

    #[test]
    fn rows_come_back_from_their_batch() {
        let rows = vec![
            Span {
                id: Id::new(1, 2),
                ts: Ns(-5),
                dur: None,
                track: TrackId(7),
                parent: Some(Id::new(1, 1)),
                name: "step".into(),
            },
            Span {
                id: Id::new(1, 3),
                ts: Ns(9),
                dur: Some(Ns(4)),
                track: TrackId(7),
                parent: None,
                name: "step".into(),
            },
        ];
        let back = Span::rows(&Span::batch(&rows)).unwrap();
        assert_eq!(back, rows);
        assert_eq!(back[0].end(), Some(Ns::MAX));
        assert_eq!(back[1].end(), Some(Ns(13)));
    }

    #[test]
    fn words_come_back_and_unknown_words_are_named_with_their_row() {
        let row = |kind| Entity {
            id: EntityId(1),
            kind,
            parent: None,
            key: "k".into(),
            name: "n".into(),
            number: None,
            from: None,
            to: None,
        };
        let rows: Vec<Entity> = EntityKind::ALL.iter().copied().map(row).collect();
        let batch = Entity::batch(&rows);
        assert_eq!(Entity::rows(&batch).unwrap(), rows);

        let mut columns = batch.columns().to_vec();
        let words: Vec<&str> = rows
            .iter()
            .enumerate()
            .map(|(i, r)| if i == 2 { "toaster" } else { r.kind.as_str() })
            .collect();
        columns[1] = std::sync::Arc::new(arrow_array::StringArray::from(words));
        let bad = arrow_array::RecordBatch::try_new(schema::<Entity>(), columns).unwrap();
        assert_eq!(
            Entity::rows(&bad).unwrap_err().to_string(),
            "row 2 of `entity.kind` holds \"toaster\""
        );
    }

    #[test]
    fn another_version_or_table_is_refused_by_name() {
        let batch = Link::batch(&[]);
        let err = Mark::rows(&batch).unwrap_err();
        assert_eq!(err, SchemaError::Table { table: "mark", found: "link".into() });

        let old = schema::<Link>();
        let mut metadata = old.metadata.clone();
        metadata.insert(crate::VERSION_KEY.into(), "99".into());
        let old = std::sync::Arc::new(arrow_schema::Schema::clone(&old).with_metadata(metadata));
        let batch = batch
            .with_schema(old.clone())
            .unwrap_or_else(|_| arrow_array::RecordBatch::new_empty(old));
        assert_eq!(
            Link::rows(&batch).unwrap_err().to_string(),
            "table `link` has schema version 99, this program reads version 1"
        );
    }
}
