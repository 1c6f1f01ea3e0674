use gpuwhy_schema::{
    ClockError, Discipline, EntityKind, Io, Lane, Lanes, Link, LinkKind, Mark, Measure, Message,
    SourceId, Span, State, Step, TrackId, WakeContext, Wakeup, flow, names,
};
use proptest::prelude::*;

use super::*;

/// A drawn situation: one character is one millisecond.
#[derive(Default)]
struct Scene {
    lanes: Lanes,
    rows: Rows,
    ids: u64,
    /// Who issues the requests that are drawn.
    issuer: Option<EntityId>,
    /// The file that what follows was read from.
    source: Option<SourceId>,
}

const MS: i64 = 1_000_000;

impl Scene {
    fn id(&mut self) -> Id {
        self.ids += 1;
        Id::new(0, self.ids)
    }

    /// Threads are called `process/thread`.
    fn who(&mut self, name: &str) -> EntityId {
        let process = name.split('/').next().unwrap();
        let pid = self.lanes.entity(EntityKind::Process, process, |_| {});
        self.lanes.entity(EntityKind::Thread, name, |e| e.parent = Some(pid))
    }

    fn track(&mut self, entity: EntityId, lane: Lane<'_>) -> TrackId {
        self.lanes.track(entity, None, lane, self.source.unwrap_or(SourceId(1)))
    }

    /// What follows was read from this file, whose clock may be off by so much.
    fn read_from(&mut self, file: &str, error: ClockError) -> &mut Scene {
        let config = format!("file={file} {}", error.word());
        self.source = Some(self.lanes.source("nsys", "other", "1", &config));
        self
    }

    /// R running on CPU 0, Q waiting for it, T throttled, X stopped, S sleeping for a time,
    /// F in a futex, G waiting for Python's interpreter lock, L waiting for a lock on a file, E in an epoll_wait, D in an fsync, P in a read that missed, N receiving, W sending, `.` unseen.
    fn thread(&mut self, name: &str, drawn: &str) -> &mut Scene {
        let entity = self.who(name);
        let track = self.track(entity, Lane::states(names::THREAD_STATE, Discipline::Sparse));
        let chars: Vec<char> = drawn.chars().collect();
        let mut at = 0;
        while at < chars.len() {
            let from = at;
            while at < chars.len() && chars[at] == chars[from] {
                at += 1;
            }
            let (state, arg) = match chars[from] {
                'R' => (ThreadState::Running, 0),
                'Q' => (ThreadState::Runnable, 0),
                'T' => (ThreadState::Throttled, 0),
                'X' => (ThreadState::Stopped, -1),
                'S' => (ThreadState::Sleep, 230),
                'F' => (ThreadState::Sleep, 202),
                'G' => (ThreadState::Sleep, gpuwhy_schema::WAIT_FOR_GIL),
                'L' => (ThreadState::Sleep, 73),
                'E' => (ThreadState::Sleep, 232),
                'I' => (ThreadState::Sleep, 0),
                'D' => (ThreadState::DiskWait, 74),
                'P' => (ThreadState::DiskWait, 0),
                'N' => (ThreadState::Sleep, 45),
                'W' => (ThreadState::Sleep, 44),
                _ => continue,
            };
            self.rows.state.push(State {
                ts: Ns(from as i64 * MS),
                dur: Some(Ns((at - from) as i64 * MS)),
                track,
                value: state.code(),
                arg: Some(arg),
            });
        }
        self
    }

    /// Who occupied CPU 0: a letter is the process of that name, `-` is the idle task.
    fn cpu(&mut self, drawn: &str) -> &mut Scene {
        let cpu = self.lanes.entity(EntityKind::Cpu, "0", |e| e.number = Some(0));
        let track = self.track(cpu, Lane::states(names::OCCUPANT, Discipline::Sparse));
        for (at, c) in drawn.chars().enumerate().filter(|(_, c)| *c != '.') {
            let who = if c == '-' { EntityId(0) } else { self.who(&format!("{c}/{c}")) };
            self.rows.state.push(State {
                ts: Ns(at as i64 * MS),
                dur: Some(Ns(MS)),
                track,
                value: who.0.into(),
                arg: None,
            });
        }
        self
    }

    /// A try for a lock of a file that was in vain, up to the next one.
    fn tries(&mut self, name: &str, from: i64, to: i64, holder: &str) -> &mut Scene {
        let (entity, holder) = (self.who(name), self.who(holder));
        let track = self.track(entity, Lane::states(names::FILE_LOCK_HOLDER, Discipline::Sparse));
        self.rows.state.push(State {
            ts: Ns(from * MS),
            dur: Some(Ns((to - from) * MS)),
            track,
            value: holder.0.into(),
            arg: None,
        });
        self
    }

    fn wake(&mut self, woken: &str, at: i64, by: Option<&str>) -> &mut Scene {
        let woken = self.who(woken);
        let waker = by.map(|name| self.who(name));
        let id = self.id();
        let context = if waker.is_some() { WakeContext::Task } else { WakeContext::Hardirq };
        let ts = Ns(at * MS);
        self.rows.wakeup.push(Wakeup { id, ts, woken, waker, context, cpu: 0 });
        self
    }

    fn io(&mut self, by: &str, op: IoOp, [queued, issued, done]: [i64; 3]) -> &mut Scene {
        let thread = self.who(by);
        let disk = self.lanes.entity(EntityKind::Disk, "vda", |_| {});
        let track = self.track(disk, Lane::spans(names::IO, Discipline::Overlap));
        let id = self.id();
        let ts = Ns(queued * MS);
        let dur = Some(Ns((done - queued) * MS));
        self.rows.span.push(Span { id, ts, dur, track, parent: None, name: op.as_str().into() });
        self.rows.io.push(Io {
            id,
            ts,
            disk,
            thread,
            op,
            sync: true,
            bytes: 4096,
            sector: 0,
            issued: Some(Ns(issued * MS)),
            issuer: self.issuer,
        });
        self
    }

    fn message(&mut self, who: &str, direction: Direction, position: u32, at: i64) -> &mut Scene {
        let thread = self.who(who);
        let id = self.id();
        let ts = Ns(at * MS);
        let flow = 7;
        self.rows.message.push(Message { id, ts, thread, direction, flow, bytes: 10, position });
        self
    }

    /// The same of a request to a server, or an answer of it, on the connection of a client with that port.
    fn tcp(&mut self, who: &str, does: (Direction, bool), client: u16, at: i64) -> &mut Scene {
        let (asks, answers) = (([1; 16], client), ([2; 16], 80));
        let (direction, is_request) = does;
        let flow = match is_request {
            true => flow::of_ends(asks, answers),
            false => flow::of_ends(answers, asks),
        };
        let (id, thread, ts) = (self.id(), self.who(who), Ns(at * MS));
        let position = 10 * (at + 1000) as u32;
        self.rows.message.push(Message { id, ts, thread, direction, flow, bytes: 10, position });
        self
    }

    /// A thread takes steps of its own.
    fn steps_too(&mut self, who: &str) -> &mut Scene {
        let (id, thread) = (self.id(), self.who(who));
        self.rows.step.push(Step { id, ts: Ns(-MS), thread, seq: 0, size: None, rank: None });
        self
    }

    /// The thread takes the steps of this rank, which take 2 ms as a rule.
    fn steps_of_rank(&mut self, who: &str, rank: u32) -> &mut Scene {
        let thread = self.who(who);
        let track = self.track(thread, Lane::spans(names::STEPS, Discipline::Nested));
        for seq in 0..3_i64 {
            let (id, ts) = (self.id(), Ns((2 * seq - 100) * MS));
            let (dur, name) = (Some(Ns(2 * MS)), "step".into());
            self.rows.span.push(Span { id, ts, dur, track, parent: None, name });
            let (seq, rank) = (seq as u64, Some(rank));
            self.rows.step.push(Step { id, ts, thread, seq, size: None, rank });
        }
        self
    }

    fn kernel(&mut self, by: &str, [launch, from, to]: [i64; 3]) -> &mut Scene {
        let thread = self.who(by);
        let process = self.lanes.get(thread).unwrap().parent.unwrap();
        let key = self.lanes.get(process).unwrap().key.clone();
        let gpu = self.lanes.entity(EntityKind::Gpu, "0", |_| {});
        let stream = self.lanes.entity(EntityKind::Stream, &key, |e| e.parent = Some(gpu));
        let launches = self.track(thread, Lane::marks(names::LAUNCHES));
        let track = self.track(stream, Lane::spans(names::STREAM, Discipline::Serial));
        let (call, span) = (self.id(), self.id());
        let name: gpuwhy_schema::Name = "gemm".into();
        let ts = Ns(launch * MS);
        self.rows.mark.push(Mark {
            id: call,
            ts,
            track: launches,
            name: name.clone(),
            value: None,
        });
        let (ts, dur) = (Ns(from * MS), Some(Ns((to - from) * MS)));
        self.rows.span.push(Span { id: span, ts, dur, track, parent: None, name });
        self.rows.link.push(Link { ts, from: call, to: span, kind: LinkKind::Launch });
        self
    }

    /// A call on a track of a thread, as profilers record them, or what it marks of its own.
    fn call(&mut self, by: &str, track: &str, name: &str, [from, to]: [i64; 2]) -> &mut Scene {
        let thread = self.who(by);
        let track = self.track(thread, Lane::spans(track, Discipline::Nested));
        let id = self.id();
        let (ts, dur) = (Ns(from * MS), Some(Ns((to - from) * MS)));
        self.rows.span.push(Span { id, ts, dur, track, parent: None, name: name.into() });
        self
    }

    fn copy(
        &mut self,
        by: &str,
        kind: gpuwhy_schema::CopyKind,
        [from, to]: [i64; 2],
    ) -> &mut Scene {
        let thread = self.who(by);
        let process = self.lanes.get(thread).unwrap().parent;
        let key = self.lanes.get(process.unwrap()).unwrap().key.clone();
        let gpu = self.lanes.entity(EntityKind::Gpu, "0", |_| {});
        let stream = self.lanes.entity(EntityKind::Stream, &key, |e| e.parent = Some(gpu));
        let track = self.track(stream, Lane::spans(names::STREAM, Discipline::Serial));
        let id = self.id();
        let (ts, dur) = (Ns(from * MS), Some(Ns((to - from) * MS)));
        self.rows.span.push(Span { id, ts, dur, track, parent: None, name: "copy".into() });
        let (bytes, pinned, correlation) = (1, None, None);
        let (from, to) = (None, Some(gpu));
        self.rows.copy.push(gpuwhy_schema::Copy {
            id,
            ts,
            kind,
            bytes,
            from,
            to,
            pinned,
            process,
            correlation,
        });
        self
    }

    /// The ranks of the processes of a job, as a profile of each of them has them.
    fn ranks(&mut self, processes: &[&str]) -> &mut Scene {
        for (number, process) in processes.iter().enumerate() {
            let rank =
                self.lanes.entity(EntityKind::Rank, process, |e| e.number = Some(number as i64));
            let process = self.lanes.entity(EntityKind::Process, process, |_| {});
            self.lanes.update(process, |e| e.parent = Some(rank));
        }
        self
    }

    fn counted(&mut self, process: &str, name: &str, at: i64, value: f64) -> &mut Scene {
        let thread = self.who(&format!("{process}/{process}"));
        let process = self.lanes.get(thread).unwrap().parent.unwrap();
        let nic = self.lanes.entity(EntityKind::Nic, "veth0", |_| {});
        let lane = Lane::counter(name, "1", Measure::Delta);
        let parent = self.track(nic, lane);
        let track = self.lanes.track(process, Some(parent), lane, SourceId(1));
        self.rows.counter.push(gpuwhy_schema::Counter { ts: Ns(at * MS), track, value });
        self
    }

    /// The hypervisor took `ms` of CPU 0 in the tick of 10 ms that ends at `at`.
    fn stolen(&mut self, at: i64, ms: i64) -> &mut Scene {
        let cpu = self.lanes.entity(EntityKind::Cpu, "0", |e| e.number = Some(0));
        self.grew(cpu, names::STEAL, at, ms)
    }

    /// So many ms are counted in the tick of 10 ms that ends at `at`.
    fn grew(&mut self, of: EntityId, name: &str, at: i64, ms: i64) -> &mut Scene {
        let track = self.track(of, Lane::counter(name, "ns", Measure::Delta));
        for (at, ms) in [(at - 10, 0), (at, ms)] {
            let row = gpuwhy_schema::Counter { ts: Ns(at * MS), track, value: (ms * MS) as f64 };
            self.rows.counter.push(row);
        }
        self
    }

    /// The process is in a cgroup.
    fn in_group(&mut self, process: &str, group: &str) -> &mut Scene {
        let group = self.lanes.entity(EntityKind::Cgroup, group, |_| {});
        let process = self.lanes.entity(EntityKind::Process, process, |_| {});
        self.lanes.update(process, |e| e.parent = Some(group));
        self
    }

    /// The cgroup was out of quota for 5 ms in the tick of 10 ms that ends at `at`.
    fn out_of_quota(&mut self, group: &str, at: i64) -> &mut Scene {
        let group = self.lanes.entity(EntityKind::Cgroup, group, |_| {});
        self.grew(group, names::THROTTLED, at, 5)
    }

    /// A process needed pages of files from which `evictor` had evicted as many, nobody if there is none.
    fn missed(&mut self, reader: &str, evictor: Option<&str>, at: i64, pages: f64) -> &mut Scene {
        let mut process = |name: &str| {
            let thread = self.who(&format!("{name}/{name}"));
            self.lanes.get(thread).unwrap().parent.unwrap()
        };
        let (reader, evictor) = (process(reader), evictor.map(process));
        let lane = |name| Lane::counter(name, "1", Measure::Delta);
        let by = evictor.map(|evictor| self.track(evictor, lane(names::PAGE_CACHE_EVICTED)));
        let lane = lane(names::PAGE_CACHE_MISSED);
        let track = self.lanes.track(reader, by, lane, SourceId(1));
        self.rows.counter.push(gpuwhy_schema::Counter { ts: Ns(at * MS), track, value: pages });
        self
    }

    /// What the parts of a step of `thread` from `from` to `to` ms say.
    fn step(&mut self, thread: &str, from: i64, to: i64) -> String {
        let parts = self.accounted(thread, from, to).parts;
        self.said(&parts)
    }

    fn accounted(&mut self, thread: &str, from: i64, to: i64) -> Accounted {
        let thread = self.who(thread);
        let track = self.track(thread, Lane::spans(names::STEPS, Discipline::Nested));
        let id = self.id();
        let (ts, dur) = (Ns(from * MS), Some(Ns((to - from) * MS)));
        self.rows.span.push(Span { id, ts, dur, track, parent: None, name: "step".into() });
        self.rows.step.push(Step { id, ts, thread, seq: 0, size: None, rank: None });
        self.lanes.drain(&mut self.rows);
        account(&self.rows, &Accounting::default())
    }

    fn said(&self, parts: &[Part]) -> String {
        let said: Vec<String> = parts
            .iter()
            .map(|p| {
                let blame = p.blame.and_then(|b| self.lanes.get(b));
                let blame = blame.map_or(String::new(), |b| format!("({})", b.key));
                let via = ">".repeat(p.hops as usize);
                format!("{via}{}{blame} {}", p.kind, p.dur.0 / MS)
            })
            .collect();
        said.join(", ")
    }
}

#[test]
fn time_behind_a_hog_is_blamed_on_the_hog_and_idle_cpus_on_nobody() {
    let mut scene = Scene::default();
    scene.thread("job/main", "RRQQQQR").cpu("..hh-.");
    assert_eq!(scene.step("job/main", 0, 7), "run 2, runnable(h) 2, runnable 2, run 1");
}

#[test]
fn what_a_helper_waits_for_is_told_as_far_as_the_step_runs_meanwhile() {
    let mut scene = Scene::default();
    scene.thread("job/main", "RRRRRRS").thread("job/omp", "RQQQRRQ").cpu(".hhh..h");
    let Accounted { parts, helpers } = scene.accounted("job/main", 0, 7);
    assert_eq!(scene.said(&parts), "run 6, timer(job) 1");
    assert_eq!(scene.said(&helpers), "run 3, runnable(h) 3");
}

#[test]
fn a_stretch_in_which_several_helpers_wait_is_told_once() {
    let mut scene = Scene::default();
    scene.thread("job/main", "RRRRRR").thread("job/1", "RQQQRR").thread("job/2", "RRQQQR");
    scene.cpu(".hhhh.");
    let helpers = scene.accounted("job/main", 0, 6).helpers;
    assert_eq!(scene.said(&helpers), "run 3, runnable(h) 3, runnable(h) 1");
}

#[test]
fn a_thread_that_does_little_while_the_step_runs_helps_nobody() {
    let mut scene = Scene::default();
    scene.thread("job/main", "RRRRRR").thread("job/log", "SSSQQS").cpu("...hh.");
    assert!(scene.accounted("job/main", 0, 6).helpers.is_empty());
}

#[test]
fn who_is_on_a_cpu_that_the_hypervisor_took_does_not_hold_it() {
    let mut scene = Scene::default();
    scene.thread("job/main", "RRQQQQQQQQQQQQRR").cpu("--hhhhhhhhhhhh--").stolen(10, 10);
    // In the first ten milliseconds the CPU was not there, for the thread and for whom it waits for.
    assert_eq!(scene.step("job/main", 0, 16), "steal 10, runnable(h) 4, run 2");
}

#[test]
fn a_fsync_that_waits_for_a_starved_kworker_is_not_disk() {
    let mut scene = Scene::default();
    scene
        .thread("job/main", "RDDDDDDR")
        .io("job/main", IoOp::Write, [1, 1, 2])
        .wake("job/main", 7, Some("kworker/0"))
        .thread("kworker/0", "SSQQQQRS")
        .cpu("..hhhh..");
    assert_eq!(
        scene.step("job/main", 0, 8),
        "run 1, block_device 1, >runnable(h) 4, >block_completion 1, run 1"
    );
}

/// `I` is a wait in `read` for the next request.
#[test]
fn data_of_a_file_system_in_user_space_is_waited_for_as_its_server_is() {
    let mut scene = Scene::default();
    scene
        .thread("job/main", "RPPPPPPR")
        .wake("job/main", 7, Some("store/serve"))
        .thread("store/serve", "IRRSSQRI")
        .cpu(".....h..");
    assert_eq!(
        scene.step("job/main", 0, 8),
        "run 1, >run(store) 2, >timer(store) 2, >runnable(h) 1, >run(store) 1, run 1"
    );
}

/// The same, ended by somebody who writes: a page that was locked.
#[test]
fn a_page_that_another_process_gave_up_is_not_served_by_it() {
    let mut scene = Scene::default();
    scene
        .thread("job/main", "RPPPPPPR")
        .wake("job/main", 7, Some("writer/main"))
        .thread("writer/main", "RRRSSRRR");
    assert_eq!(
        scene.step("job/main", 0, 8),
        "run 1, >block_completion 2, >block_queue 2, >block_completion 2, run 1"
    );
}

#[test]
fn a_waker_in_an_interrupt_is_not_believed() {
    let mut scene = Scene::default();
    scene.thread("job/main", "RSSR").wake("job/main", 3, None).thread("vim/vim", "RRRR");
    assert_eq!(scene.step("job/main", 0, 4), "run 1, timer(job) 2, run 1");
}

#[test]
fn a_full_disk_queue_is_blamed_on_whose_requests_are_in_it() {
    let mut scene = Scene::default();
    scene
        .thread("job/main", "RDDDDDDR")
        .io("job/main", IoOp::Write, [1, 3, 6])
        .io("hog/hog", IoOp::Write, [0, 0, 5])
        .wake("job/main", 7, None);
    assert_eq!(
        scene.step("job/main", 0, 8),
        "run 1, block_queue(hog) 2, block_device(hog) 3, block_completion 1, run 1"
    );
}

#[test]
fn a_request_that_waits_for_the_worker_that_issues_it_waits_behind_the_hog() {
    let mut scene = Scene::default();
    scene.issuer = Some(scene.who("kblockd/0"));
    scene
        .thread("job/main", "RDDDDDDR")
        .io("job/main", IoOp::Write, [1, 5, 6])
        .wake("job/main", 7, None)
        .thread("kblockd/0", "SQQQRSSS")
        .cpu(".hhh....");
    assert_eq!(
        scene.step("job/main", 0, 8),
        "run 1, >runnable(h) 3, >block_completion 1, block_device 1, block_completion 1, run 1"
    );
}

#[test]
fn a_wait_for_a_place_in_a_full_queue_is_blamed_on_whose_requests_fill_it() {
    let mut scene = Scene::default();
    scene
        .thread("job/main", "RDDDDDDR")
        .io("job/main", IoOp::Write, [5, 5, 7])
        .wake("job/main", 7, None)
        .counted("hog", names::DISK_TIME, 6, 1000.0);
    assert_eq!(scene.step("job/main", 0, 8), "run 1, block_queue(hog) 4, block_device 2, run 1");
}

#[test]
fn a_wait_for_a_disk_without_any_request_is_not_known_to_be_the_disks() {
    let mut scene = Scene::default();
    scene
        .thread("job/main", "RDDDDDDR")
        .io("job/main", IoOp::Write, [5, 5, 7])
        .io("other/o", IoOp::Write, [3, 3, 4])
        .wake("job/main", 7, None);
    assert_eq!(
        scene.step("job/main", 0, 8),
        "run 1, unknown 2, block_queue 1, unknown 1, block_device 2, run 1"
    );
}

#[test]
fn a_worker_that_sleeps_is_not_what_a_request_waits_for() {
    let mut scene = Scene::default();
    scene.issuer = Some(scene.who("kblockd/0"));
    scene
        .thread("job/main", "RDDDDDDR")
        .io("job/main", IoOp::Write, [1, 5, 7])
        .wake("job/main", 7, None)
        .thread("kblockd/0", "SSSSRSSS")
        .counted("hog", names::DISK_TIME, 6, 1000.0);
    assert_eq!(
        scene.step("job/main", 0, 8),
        "run 1, >block_queue(hog) 3, >block_completion 1, block_device 2, run 1"
    );
}

#[test]
fn what_a_process_that_serves_a_call_computes_for_it_is_its_own_doing() {
    let mut scene = Scene::default();
    scene.thread("job/main", "RNNNNR").wake("job/main", 5, Some("daemon/d"));
    scene.thread("daemon/d", "SRRRRS");
    assert_eq!(scene.step("job/main", 0, 6), "run 1, >run(daemon) 4, run 1");
}

/// A read that misses, beside a process that evicted most pages, of its own file.
fn missed(pages: &[(Option<&str>, f64)]) -> String {
    let mut scene = Scene::default();
    scene.thread("rank/r", "RRPPPPRR").io("rank/r", IoOp::Read, [2, 2, 6]);
    scene.counted("innocent", names::PAGE_CACHE_EVICTED, 5, 9000.0);
    for (evictor, pages) in pages {
        scene.missed("rank", *evictor, 5, *pages);
    }
    scene.step("rank/r", 0, 8)
}

#[test]
fn data_that_nobody_evicted_is_read_for_the_first_time_whoever_evicted_most_elsewhere() {
    assert_eq!(missed(&[(None, 100.0)]), "run 2, cold_read 4, run 2");
    let half = missed(&[(None, 50.0), (Some("hog"), 50.0)]);
    assert_eq!(half, "run 2, cache_miss(hog) 2, cold_read 2, run 2");
}

#[test]
fn a_miss_is_blamed_on_who_evicted_pages_of_the_same_file() {
    assert_eq!(missed(&[(Some("hog"), 100.0)]), "run 2, cache_miss(hog) 4, run 2");
    // Where the files were not recorded, on who evicted most.
    assert_eq!(missed(&[]), "run 2, cache_miss(innocent) 4, run 2");
    // Its own pages it freed for somebody, and nobody was seen to need memory.
    assert_eq!(missed(&[(Some("rank"), 100.0)]), "run 2, cache_miss 4, run 2");
}

#[test]
fn a_flush_that_a_worker_submits_for_the_waiter_is_part_of_the_wait() {
    let mut scene = Scene::default();
    scene
        .thread("job/main", "RDDDDDDR")
        .io("job/main", IoOp::Write, [1, 1, 2])
        .io("kblockd/0", IoOp::Flush, [5, 5, 7])
        .wake("job/main", 7, None)
        .thread("kblockd/0", "SSQQRSSS")
        .cpu("..hh....");
    assert_eq!(
        scene.step("job/main", 0, 8),
        "run 1, block_device 1, >runnable(h) 2, >block_completion 1, block_device 2, run 1"
    );
}

#[test]
fn a_rank_that_waits_for_a_rank_behind_a_hog_waits_behind_the_hog() {
    let mut scene = Scene::default();
    scene
        .thread("rank0/main", "RNNNNNR")
        .thread("rank1/main", "RQQQQRR")
        .cpu(".hhhh..")
        .message("rank1/main", Direction::Send, 100, 6)
        .message("rank0/main", Direction::Receive, 100, 6)
        .wake("rank0/main", 6, None);
    assert_eq!(scene.step("rank0/main", 0, 7), "run 1, >runnable(h) 4, >run(rank1) 1, run 1");
}

/// Where a step's time went of which `who` waits for bytes that `peer` hands over after 2 ms and that arrive after 6, while
/// these sent so much over its link.
fn waits_for_bytes(who: &str, peer: &str, sent: &[(&str, f64)]) -> String {
    let (main, other) = (format!("{who}/main"), format!("{peer}/main"));
    let mut scene = Scene::default();
    scene
        .thread(&main, "RNNNNNR")
        .thread(&other, "RRRRRRR")
        .message(&other, Direction::Send, 100, 2)
        .message(&main, Direction::Receive, 100, 6)
        .wake(&main, 6, None)
        .counted(who, names::NIC_TX_BYTES, 5, 10.0);
    for (sender, bytes) in sent {
        scene.counted(sender, names::NIC_TX_BYTES, 5, *bytes);
    }
    scene.step(&main, 0, 7)
}

#[test]
fn from_the_moment_the_bytes_were_handed_over_the_wait_is_the_networks() {
    let found = waits_for_bytes("rank0", "rank1", &[("burst", 1000.0)]);
    assert_eq!(found, "run 1, >run(rank1) 1, network(burst) 4, run 1");
}

/// A Unix socket has no positions, and what is sent is there. Who waits for room waits for the one who reads.
#[test]
fn no_network_lies_between_the_ends_of_a_unix_socket() {
    let mut scene = Scene::default();
    scene
        .thread("client/1", "RNNNNNR")
        .thread("db/2", "RRRQQRR")
        .cpu("...hh..")
        .message("db/2", Direction::Send, 0, 2)
        .message("db/2", Direction::Send, 0, 6)
        .message("client/1", Direction::Receive, 0, 6)
        .wake("client/1", 6, Some("db/2"))
        .counted("burst", names::NIC_TX_BYTES, 5, 1000.0);
    let found = scene.step("client/1", 0, 7);
    assert_eq!(found, "run 1, >run(db) 2, >runnable(h) 2, >run(db) 1, run 1");
    let waits = || {
        let mut scene = Scene::default();
        scene.thread("client/1", "RNNNNNR").thread("db/2", "RRRRRRR");
        scene
    };
    let end_not_recorded = |position| {
        let mut scene = waits();
        scene.wake("client/1", 6, Some("db/2"));
        scene.message("client/1", Direction::Receive, position, 6).step("client/1", 0, 7)
    };
    assert_eq!(end_not_recorded(100), "run 1, network 5, run 1");
    assert_eq!(end_not_recorded(0), "run 1, >run(db) 5, run 1");
    // Who woke it was not recorded.
    let mut scene = waits();
    scene.message("db/2", Direction::Send, 0, 6).message("client/1", Direction::Receive, 0, 6);
    assert_eq!(scene.step("client/1", 0, 7), "run 1, >run(db) 5, run 1");
}

/// A loader hands its batch over through a pipe; the descriptors of its memory are fetched afterwards through a Unix socket, from
/// a thread of it that does nothing else.
#[test]
fn what_is_exchanged_through_a_unix_socket_after_a_wait_is_not_what_it_was_for() {
    let mut scene = Scene::default();
    scene
        .thread("rank/1", "RIIIIIRR")
        .thread("loader/2", "RRRRRRSS")
        .thread("server/3", "IIIIIIRI")
        .wake("rank/1", 6, Some("loader/2"))
        .message("server/3", Direction::Send, 0, 7)
        .message("rank/1", Direction::Receive, 0, 7);
    assert_eq!(scene.step("rank/1", 0, 8), "run 1, >run(loader) 5, run 2");
}

/// A service that is judged by its own busy periods computes for a proxy; a rank computes for another one.
#[test]
fn what_another_process_computes_for_the_step_is_its_own_doing_though_it_takes_steps_itself() {
    let asked = |rank: Option<u32>| {
        let mut scene = Scene::default();
        scene
            .thread("proxy/1", "RNNNNNR")
            .thread("service/2", "SRRRRRS")
            .message("service/2", Direction::Send, 100, 6)
            .message("proxy/1", Direction::Receive, 100, 6)
            .wake("proxy/1", 6, None);
        scene.accounted("service/2", 1, 6);
        scene.rows.step.iter_mut().for_each(|step| step.rank = rank);
        let parts = scene.accounted("proxy/1", 0, 7).parts;
        let proxys = parts.iter().max_by_key(|part| part.step).map(|part| part.step);
        let proxys: Vec<_> = parts.into_iter().filter(|part| Some(part.step) == proxys).collect();
        scene.said(&proxys)
    };
    assert_eq!(asked(None), "run 1, >run(service) 5, run 1");
    assert_eq!(asked(Some(1)), "run 1, >run 5, run 1");
}

/// The service that is asked sends most of all over that link.
#[test]
fn whom_one_waits_for_is_not_in_its_own_way_on_a_link() {
    let found = waits_for_bytes("client", "service", &[("service", 1000.0)]);
    assert_eq!(found, "run 1, >run(service) 1, network 4, run 1");
}

/// What somebody left to a worker of the kernel to send.
#[test]
fn a_worker_of_the_kernel_is_not_named_for_what_it_sends() {
    let sent = |sent: &[(&str, f64)]| waits_for_bytes("rank0", "rank1", sent);
    let worker = ("kworker/1:0", 1000.0);
    assert_eq!(sent(&[worker]), "run 1, >run(rank1) 1, network 4, run 1");
    let burst = ("burst", 100.0);
    assert_eq!(sent(&[worker, burst]), "run 1, >run(rank1) 1, network(burst) 4, run 1");
}

#[test]
fn a_server_that_polls_before_it_answers_waits_for_no_room() {
    let answered = |context, sent: Option<i64>| {
        let mut scene = Scene::default();
        scene.thread("server/1", "RREEEER").wake("server/1", 6, None);
        scene.rows.wakeup[0].context = context;
        scene.message("server/1", Direction::Receive, 100, 1);
        if let Some(at) = sent {
            scene.message("server/1", Direction::Send, 100, at);
        }
        scene.message("server/1", Direction::Send, 200, 6);
        scene.step("server/1", 0, 7)
    };
    use WakeContext::{Hardirq, Softirq};
    assert_eq!(answered(Hardirq, None), "run 2, timer(server) 4, run 1", "its time was up");
    assert_eq!(answered(Softirq, None), "run 2, unknown 4, run 1", "something arrived");
    assert_eq!(answered(Softirq, Some(2)), "run 2, network 4, run 1", "the rest of an answer");
}

#[test]
fn a_sender_that_waits_for_room_is_the_networks_too() {
    let mut scene = Scene::default();
    scene
        .thread("rank0/main", "RNNNNR")
        .thread("rank1/main", "RRWWRR")
        .message("rank1/main", Direction::Send, 100, 5)
        .message("rank0/main", Direction::Receive, 100, 5)
        .wake("rank0/main", 5, None);
    assert_eq!(
        scene.step("rank0/main", 0, 6),
        "run 1, >run(rank1) 1, network 2, >run(rank1) 1, run 1"
    );
}

#[test]
fn a_lock_is_blamed_on_its_holder_unless_the_holder_was_held_up_itself() {
    let mut scene = Scene::default();
    scene
        .thread("job/main", "RFFFFFFR")
        .wake("job/main", 7, Some("other/holder"))
        .thread("other/holder", "RRSSQQRR")
        .cpu("....hh..");
    assert_eq!(
        scene.step("job/main", 0, 8),
        "run 1, >lock(other) 3, >runnable(h) 2, >lock(other) 1, run 1"
    );
}

#[test]
fn waiting_for_own_kernels_is_gpu_time_and_for_others_is_the_queue() {
    let mut scene = Scene::default();
    scene
        .thread("job/main", "RSSSSSSR")
        .kernel("other/main", [0, 0, 3])
        .kernel("job/main", [1, 3, 6])
        .wake("job/main", 7, None);
    assert_eq!(
        scene.step("job/main", 0, 8),
        "run 1, gpu_queue(other) 2, gpu 3, timer(job) 1, run 1"
    );
}

#[test]
fn who_is_out_of_quota_is_the_group_that_is_counted_so_then_or_around_then_and_else_its_own() {
    let told = |group: &str, counted: &[(&str, i64)]| {
        let mut scene = Scene::default();
        scene.thread("job/main", "RTTR").in_group("job", group);
        for (of, at) in counted {
            scene.out_of_quota(of, *at);
        }
        scene.step("job/main", 0, 4)
    };
    let by = |who| format!("run 1, throttled{who} 2, run 1");
    assert_eq!(told("v1:memory:/a", &[("v1:cpu:/", 40), ("v1:cpu:/a", 10)]), by("(v1:cpu:/a)"));
    // The tick that would count it is missing.
    assert_eq!(told("v1:memory:/a", &[("v1:cpu:/a", 900)]), by("(v1:cpu:/a)"));
    assert_eq!(told("v1:memory:/a", &[("v1:cpu:/a", 9000)]), by(""));
    assert_eq!(told("v1:memory:/a", &[]), by(""));
    assert_eq!(told("v1:cpu:/a", &[]), by("(v1:cpu:/a)"));
    assert_eq!(told("v2:/a", &[]), by("(v2:/a)"));
}

#[test]
fn a_stopped_peer_and_a_throttled_thread_say_so() {
    let mut scene = Scene::default();
    scene
        .thread("rank0/main", "RTTNNNR")
        .thread("rank1/main", "RRRRXXR")
        .message("rank1/main", Direction::Send, 100, 6)
        .message("rank0/main", Direction::Receive, 100, 6)
        .wake("rank0/main", 6, None);
    assert_eq!(
        scene.step("rank0/main", 0, 7),
        "run 1, throttled 2, >run(rank1) 1, >stopped(rank1) 2, run 1"
    );
}

#[test]
fn what_was_not_recorded_is_unknown() {
    let mut scene = Scene::default();
    scene.thread("job/main", "RR..RR");
    assert_eq!(scene.step("job/main", 0, 8), "run 2, unknown 2, run 2, unknown 2");
}

#[test]
fn two_ranks_that_wait_for_each_other_do_not_walk_forever() {
    let mut scene = Scene::default();
    scene
        .thread("rank0/main", "RFFFR")
        .thread("rank1/main", "RFFFR")
        .wake("rank0/main", 4, Some("rank1/main"))
        .wake("rank1/main", 4, Some("rank0/main"));
    assert_eq!(scene.step("rank0/main", 0, 5), "run 1, >unknown 3, run 1");
}

const CUDA: &str = names::CUDA_CALLS;
const MPI: &str = names::MPI_CALLS;

#[test]
fn a_thread_that_polls_in_a_copy_waits_for_the_copy_and_does_not_compute() {
    use gpuwhy_schema::CopyKind::DeviceToHost;
    let mut scene = Scene::default();
    scene
        .thread("job/main", "RRRRRRRR")
        .kernel("job/main", [0, 1, 2])
        .copy("job/main", DeviceToHost, [3, 6])
        .call("job/main", CUDA, "cudaMemcpy", [1, 7]);
    // Until it copies, it waits for the kernel; before and after the transfer, the host stages.
    assert_eq!(scene.step("job/main", 0, 8), "run 1, gpu 1, copy 1, copy(0) 3, copy 1, run 1");
}

#[test]
fn calls_say_what_a_thread_without_scheduler_events_did() {
    let mut scene = Scene::default();
    scene
        .call("job/main", CUDA, "cudaMalloc", [1, 3])
        .call("job/main", CUDA, "cuModuleLoadData", [3, 5])
        .kernel("job/main", [5, 6, 8])
        .call("job/main", CUDA, "cudaDeviceSynchronize", [5, 9]);
    assert_eq!(
        scene.step("job/main", 0, 10),
        "unknown 1, allocate 2, load 2, unknown 1, gpu 2, unknown 2"
    );
    // Where calls of the operating system are there too, a thread in none of them computes.
    scene.call("job/main", names::OS_CALLS, "usleep", [9, 10]);
    scene.rows.step.clear();
    assert_eq!(
        scene.step("job/main", 0, 11),
        "run 1, allocate 2, load 2, unknown 1, gpu 2, unknown 1, timer 1, run 1"
    );
}

#[test]
fn a_thread_that_is_ready_to_run_in_a_call_waits_for_its_cpu() {
    let mut scene = Scene::default();
    scene.thread("job/main", "RSSQQR").cpu("...hh.").call("job/main", CUDA, "cudaMalloc", [0, 6]);
    assert_eq!(scene.step("job/main", 0, 6), "allocate 3, runnable(h) 2, allocate 1");
}

#[test]
fn in_a_call_of_mpi_the_rank_that_comes_last_is_waited_for_and_then_the_network() {
    let mut scene = Scene::default();
    scene
        .ranks(&["rank0", "rank1"])
        .thread("rank0/main", "RRRRRRRR")
        .thread("rank1/main", "RRRRRRRR")
        .call("rank0/main", MPI, "MPI_Allreduce", [1, 7])
        .call("rank1/main", MPI, "MPI_Allreduce", [5, 7]);
    assert_eq!(scene.step("rank0/main", 0, 8), "run 1, >peer(rank1) 4, network 2, run 1");
    // The late one was waited for meanwhile, whatever it did.
    scene.rows.step.clear();
    assert_eq!(scene.step("rank1/main", 0, 8), "run 1, peer(rank1) 4, network 2, run 1");
}

#[test]
fn the_rank_that_came_last_is_named_only_where_the_clocks_of_the_files_carry_it() {
    let told = |error| {
        let mut scene = Scene::default();
        scene
            .ranks(&["rank0", "rank1"])
            .read_from("a", error)
            .call("rank0/main", MPI, "MPI_Allreduce", [1, 7])
            .read_from("b", error)
            .call("rank1/main", MPI, "MPI_Allreduce", [5, 7]);
        scene.step("rank0/main", 1, 7)
    };
    // It came 4 ms after the other.
    assert_eq!(told(ClockError::NONE), ">peer(rank1) 4, network 2");
    assert_eq!(told(ClockError::Within(Ns(4 * MS))), ">peer(rank1) 4, network 2");
    assert_eq!(told(ClockError::Within(Ns(4 * MS + 1))), "peer 4, network 2");
    // Nothing says that these are one call.
    assert_eq!(told(ClockError::Unknown), "peer 6");
}

#[test]
fn what_a_late_rank_waited_for_is_why_the_others_wait() {
    let mut scene = Scene::default();
    scene
        .ranks(&["rank0", "rank1"])
        .call("rank0/main", MPI, "MPI_Barrier", [1, 7])
        .call("rank1/main", MPI, "MPI_Barrier", [6, 7])
        .copy("rank1/main", gpuwhy_schema::CopyKind::HostToDevice, [2, 5])
        .call("rank1/main", CUDA, "cudaMemcpy", [2, 5]);
    assert_eq!(
        scene.step("rank0/main", 1, 7),
        ">peer(rank1) 1, >copy(0) 3, >peer(rank1) 1, network 1"
    );
}

#[test]
fn a_call_of_mpi_whose_other_ranks_are_in_no_file_waits_for_a_process_not_seen() {
    let mut scene = Scene::default();
    scene.thread("rank2/main", "RRRR").call("rank2/main", MPI, "MPI_Sendrecv", [1, 3]);
    assert_eq!(scene.step("rank2/main", 0, 4), "run 1, peer 2, run 1");
}

#[test]
fn a_kernel_beneath_which_managed_pages_move_waits_for_them() {
    let mut scene = Scene::default();
    scene
        .kernel("job/main", [0, 1, 9])
        .copy("job/main", gpuwhy_schema::CopyKind::Managed, [3, 7])
        .call("job/main", CUDA, "cudaDeviceSynchronize", [1, 9]);
    assert_eq!(scene.step("job/main", 1, 9), "gpu 2, page_fault 4, gpu 2");
}

/// Checks that the parts of the one step that was drawn lie one behind the other, from `from` on for `len` ms.
fn tile(scene: &Scene, from: i64, len: i64) -> Result<(), TestCaseError> {
    let mut at = Ns(from * MS);
    for part in parts(&scene.rows, &Accounting::default()) {
        prop_assert_eq!(part.ts, at);
        prop_assert!(part.dur > Ns::ZERO);
        at = part.ts + part.dur;
    }
    prop_assert_eq!(at, Ns((from + len) * MS));
    Ok(())
}

proptest! {
    /// Whatever was called, the parts of a step tile it.
    #[test]
    fn parts_of_calls_tile_their_step(
        main in "[RQSF.]{0,16}", peer in "[RQSF.]{0,16}",
        calls in prop::collection::vec((any::<bool>(), 0usize..8, 0i64..16, 0i64..16), 0..16),
        from in 0i64..8, len in 1i64..12,
    ) {
        let mut scene = Scene::default();
        scene.ranks(&["a", "b"]).thread("a/main", &main).thread("b/main", &peer);
        for (of_a, what, x, y) in calls {
            let who = if of_a { "a/main" } else { "b/main" };
            let times = [x.min(y), x.max(y)];
            match what {
                0 => scene.call(who, MPI, "MPI_Allreduce", times),
                1 => scene.call(who, MPI, "MPI_Recv", times),
                2 => scene.call(who, CUDA, "cudaMemcpy", times),
                3 => scene.call(who, CUDA, "cudaFree", times),
                4 => scene.call(who, CUDA, "cudaStreamSynchronize", times),
                5 => scene.call(who, names::OS_CALLS, "fsync", times),
                6 => scene.copy(who, gpuwhy_schema::CopyKind::Managed, times),
                _ => scene.kernel(who, [times[0], times[0], times[1]]),
            };
        }
        scene.step("b/main", from, from + len);
        scene.rows.step.clear();
        scene.step("a/main", from, from + len);
        tile(&scene, from, len)?;
    }

    /// Whatever was drawn, the parts of a step tile it.
    #[test]
    fn parts_tile_their_step(
        main in "[RQTXSFDPNW.]{0,24}", peer in "[RQTXSFDPNW.]{0,24}", cpu in "[hg.-]{0,24}",
        wakes in prop::collection::vec((0i64..24, any::<bool>(), any::<bool>()), 0..12),
        ios in prop::collection::vec((0i64..24, 0i64..24, 0i64..24), 0..6),
        messages in prop::collection::vec((0i64..24, any::<bool>(), 0u32..200), 0..6),
        kernels in prop::collection::vec((0i64..24, 0i64..24, 0i64..24), 0..4),
        from in 0i64..12, len in 1i64..20,
    ) {
        let mut scene = Scene::default();
        scene.thread("a/main", &main).thread("b/main", &peer).cpu(&cpu);
        for (at, first, task) in wakes {
            let (woken, by) = if first { ("a/main", "b/main") } else { ("b/main", "a/main") };
            scene.wake(woken, at, task.then_some(by));
        }
        for (a, b, c) in ios {
            let mut t = [a, b, c];
            t.sort_unstable();
            scene.io("a/main", IoOp::Read, t);
        }
        for (at, send, position) in messages {
            let (who, way) = if send { ("b/main", Direction::Send) } else { ("a/main", Direction::Receive) };
            scene.message(who, way, position, at);
        }
        for (i, (a, b, c)) in kernels.into_iter().enumerate() {
            let mut t = [a, b, c];
            t.sort_unstable();
            scene.kernel(if i % 2 == 0 { "a/main" } else { "b/main" }, t);
        }
        scene.step("a/main", from, from + len);
        tile(&scene, from, len)?;
    }
}

/// A server whose processes wake each other by signals: the step's process waits for a row that a session holds,
/// which waits for its client meanwhile.
fn two_sessions() -> Scene {
    let mut scene = Scene::default();
    scene.thread("waiter/1", "RREEEEEERR").thread("holder/1", "EEEEEEERRE");
    for (n, name) in ["waiter", "holder"].into_iter().enumerate() {
        let process = scene.lanes.entity(EntityKind::Process, name, |_| {});
        scene.lanes.update(process, |e| e.number = Some(100 + n as i64));
    }
    scene.wake("waiter/1", 8, Some("holder/1"));
    // The holder makes such steps as well.
    let holder = scene.who("holder/1");
    let id = scene.id();
    let ts = Ns(900 * MS);
    scene.rows.step.push(Step { id, ts, thread: holder, seq: 0, size: None, rank: None });
    scene
}

impl Scene {
    /// A signal from a process with this pid.
    fn signal(&mut self, to: &str, at: i64, sender: i64) -> &mut Scene {
        let process = self.lanes.entity(EntityKind::Process, to, |_| {});
        let track = self.track(process, Lane::marks(names::SIGNALS));
        let (id, ts, value) = (self.id(), Ns(at * MS), Some(sender as f64));
        self.rows.mark.push(Mark { id, ts, track, name: "SIGURG".into(), value });
        self
    }
}

#[test]
fn who_wakes_another_process_by_a_signal_held_what_that_waited_for() {
    let said = two_sessions().signal("waiter", 8, 101).step("waiter/1", 0, 10);
    assert_eq!(said, "run 2, >lock(holder) 6, run 2");
    // Woken by a descriptor that was written to: the holder is a peer, of whom nothing else is known.
    let said = two_sessions().signal("waiter", 8, 555).step("waiter/1", 0, 10);
    assert!(!said.contains("lock"), "{said}");
}

/// A server with a thread for each connection: one of them waits for a row that another one's transaction holds, which
/// waits for its client meanwhile and then commits.
#[test]
fn a_connection_that_holds_a_row_is_told_and_neither_its_client_nor_the_server() {
    let drawn = || {
        let mut scene = Scene::default();
        scene.thread("db/1", "RRFFFFFFFRR").thread("db/2", "NNNNNNRRRNN");
        scene.thread("client/1", "NSSSSSRNNNN");
        scene.message("client/1", Direction::Send, 100, 6).wake("client/1", 6, None);
        scene.message("db/2", Direction::Receive, 100, 6).wake("db/2", 6, Some("client/1"));
        scene.wake("db/1", 9, Some("db/2"));
        scene
    };
    let mut scene = drawn();
    let other = scene.who("db/2");
    let (id, ts) = (scene.id(), Ns(6 * MS));
    scene.rows.step.push(Step { id, ts, thread: other, seq: 0, size: None, rank: None });
    assert_eq!(scene.step("db/1", 0, 11), "run 2, >lock(db/2) 7, run 2");
    // Without steps of its own it may well do what it was asked for, as a helper does.
    let said = drawn().step("db/1", 0, 11);
    assert_eq!(said, "run 2, >>timer(client) 4, >run 3, run 2");
}

#[test]
fn who_holds_a_lock_on_a_file_is_told_whatever_it_does_meanwhile() {
    let mut scene = Scene::default();
    scene.thread("job/1", "RLLLLLLRR").thread("other/1", "RRRSSSRRR");
    scene.wake("job/1", 7, Some("other/1"));
    assert_eq!(scene.step("job/1", 0, 9), "run 1, >lock(other) 6, run 2");
}

#[test]
fn who_holds_a_lock_on_a_file_that_is_tried_again_and_again_is_told() {
    let mut scene = Scene::default();
    scene.thread("job/1", "RSSSRSSSRSSR").thread("other/1", "RRRSSSRRR");
    scene.tries("job/1", 1, 4, "other/1").tries("job/1", 5, 7, "other/1");
    let said =
        "run 1, >lock(other) 3, run 1, >lock(other) 2, timer(job) 1, run 1, timer(job) 2, run 1";
    assert_eq!(scene.step("job/1", 0, 12), said);
}

#[test]
fn who_tries_for_a_lock_of_its_own_workload_waits_for_what_its_holder_does() {
    let mut scene = Scene::default();
    scene.thread("job/1", "RSSSSR").thread("job/2", "RRRDDR").tries("job/1", 1, 5, "job/2");
    scene.io("job/2", IoOp::Flush, [3, 3, 5]);
    assert_eq!(scene.step("job/1", 0, 6), "run 1, >run 2, >block_device 2, run 1");
}

#[test]
fn a_rank_that_runs_on_while_another_is_stopped_waits_for_it_from_a_step_on() {
    let mut scene = Scene::default();
    scene.thread("rank0/main", "RRRRRRRRRR").thread("rank1/main", "RXXXXXXRRR");
    scene.steps_of_rank("rank0/main", 0).steps_of_rank("rank1/main", 1);
    let said = scene.step("rank0/main", 0, 10);
    assert!(said.ends_with("unknown 2, run 3, stopped(rank1) 4, run 3"), "{said}");
    let mut scene = Scene::default();
    scene.thread("a/main", "RRRRRRRRRR").thread("b/main", "RXXXXXXRRR");
    scene.steps_of_rank("a/main", 0).steps_of_rank("b/main", 0);
    let said = scene.step("a/main", 0, 10);
    assert!(said.ends_with("unknown 2, run 10"), "they are of two jobs: {said}");
}

#[test]
fn a_connection_that_commits_for_others_too_waits_for_the_disk() {
    let mut scene = Scene::default();
    scene.thread("db/1", "RFFFFFR").thread("db/2", "RRDDDRN").wake("db/1", 6, Some("db/2"));
    scene.io("db/2", IoOp::Flush, [2, 2, 5]);
    let other = scene.who("db/2");
    let (id, ts) = (scene.id(), Ns(0));
    scene.rows.step.push(Step { id, ts, thread: other, seq: 0, size: None, rank: None });
    let parts = "run 1, >lock(db/2) 1, >block_device 3, >lock(db/2) 1, run 1";
    assert_eq!(scene.step("db/1", 0, 7), parts);
}

#[test]
fn a_lock_that_is_waited_for_a_few_milliseconds_at_a_time_is_held_by_who_gives_it_up() {
    let mut scene = Scene::default();
    // Two waits time out; the third is ended by the thread that ran all the time.
    scene.thread("job/1", "RFFFRFFFRFFRR").thread("job/2", "RRRRRRRRRRRSS");
    scene.wake("job/1", 4, None).wake("job/1", 8, None).wake("job/1", 11, Some("job/2"));
    let said = scene.step("job/1", 0, 13);
    let holds = ">lock(job/2)";
    assert_eq!(said, format!("run 1, {holds} 3, run 1, {holds} 3, run 1, {holds} 2, run 2"));
}

/// `take_gil` of CPython (Python/ceval_gil.c): the main thread gives the interpreter lock up for each of its calls,
/// and to have it again waits 5 ms, asks the other thread to drop it, and waits again until that signals; between
/// the two it may have to wait for a CPU.
#[test]
fn a_thread_that_computes_and_has_the_interpreter_lock_is_told_to_hold_it() {
    let mut scene = Scene::default();
    scene.thread("py/main", "RNFFFFFQQQFRNFFFFFFRR").thread("py/hog", "RRRRRRRRRRRFRRRRRRRFF");
    scene.thread("neighbour/1", "R").cpu(".......nnn...........");
    for (woken, at, by) in [
        ("py/main", 7, None),
        ("py/main", 11, Some("py/hog")),
        ("py/hog", 12, Some("py/main")),
        ("py/main", 18, None),
        ("py/main", 19, Some("py/hog")),
    ] {
        scene.wake(woken, at, by);
    }
    // The last wait is two: the first timed out at 18.
    let states = &mut scene.rows.state;
    let last =
        states.iter().position(|s| s.ts == Ns(13 * MS) && s.dur == Some(Ns(6 * MS))).unwrap();
    states[last].dur = Some(Ns(5 * MS));
    let again = State { ts: Ns(18 * MS), dur: Some(Ns(MS)), ..states[last].clone() };
    states.push(again);
    let said = scene.step("py/main", 0, 21);
    let expected = "run 1, network 1, >lock(py/hog) 5, runnable(n) 3, >lock(py/hog) 1, run 1, network 1, \
                    >lock(py/hog) 6, run 2";
    assert_eq!(said, expected);
}

/// `Thread.sleep` of Java, `time.sleep` of a thread of Go and timed waits for a condition are futexes with a time-out.
#[test]
fn a_wait_for_a_condition_whose_time_is_up_is_a_sleep() {
    let drawn = || {
        let mut scene = Scene::default();
        scene.thread("java/1", "RFFFFRR").thread("java/2", "RFFFFFFR");
        scene.wake("java/1", 5, None).wake("java/2", 7, Some("java/1"));
        scene
    };
    assert_eq!(drawn().step("java/1", 0, 6), "run 1, timer(java) 4, run 1");
    // Who waits for such a one waits for its sleep.
    assert_eq!(drawn().step("java/2", 0, 8), "run 1, >timer(java) 4, >run 2, run 1");
    // The next wait is for the next request, and not the same one again.
    let mut scene = Scene::default();
    scene.thread("java/1", "RFFFFRFFFFR").thread("java/2", "EEEEEEEEEER");
    scene.wake("java/1", 5, None).wake("java/1", 10, Some("java/2"));
    let states = &mut scene.rows.state;
    let ran = states.iter().position(|s| s.ts == Ns(5 * MS) && s.dur == Some(Ns(MS))).unwrap();
    (states[ran].ts, states[ran].dur) = (Ns(6 * MS - 100_000), Some(Ns(100_000)));
    let woke = states.iter().position(|s| s.ts == Ns(MS) && s.dur == Some(Ns(4 * MS))).unwrap();
    states[woke].dur = Some(Ns(5 * MS - 100_000));
    scene.rows.wakeup[0].ts = Ns(6 * MS - 100_000);
    scene.message("java/1", Direction::Send, 100, 6);
    scene.rows.message[0].ts = Ns(6 * MS - 50_000);
    assert_eq!(scene.step("java/1", 0, 6), "run 1, timer(java) 4, run 0");
    // Of a wait of which nothing is known, how it ended included, it is not.
    let mut scene = Scene::default();
    scene.thread("java/1", "RFFFFR");
    assert_eq!(scene.step("java/1", 0, 6), "run 1, unknown 4, run 1");
}

#[test]
fn what_a_worker_of_the_loader_computes_is_input() {
    let drawn = || {
        let mut scene = Scene::default();
        scene.thread("job/main", "RNNNNNR").thread("loader/main", "SRRSRRS");
        scene.wake("job/main", 6, Some("loader/main"));
        scene
    };
    let mut scene = drawn();
    scene.call("loader/main", names::STEPS, names::LOAD, [1, 3]);
    let parts = "run 1, >input(loader) 2, >timer(loader) 1, >input(loader) 2, run 1";
    assert_eq!(scene.step("job/main", 0, 7), parts);
    // Nor does it hold a lock that another thread of it needs to send the batch.
    let mut scene = Scene::default();
    scene
        .thread("job/main", "RNNNNNR")
        .thread("loader/main", "RRRRRRR")
        .thread("loader/feeder", "SGGGGGR");
    scene.wake("job/main", 6, Some("loader/feeder")).wake("loader/feeder", 6, Some("loader/main"));
    scene.call("loader/main", names::STEPS, names::LOAD, [1, 3]);
    assert_eq!(scene.step("job/main", 0, 7), "run 1, >>input(loader) 5, run 1");
    // Of a process that says nothing of the kind it is not known what it computes.
    let parts = "run 1, >run(loader) 2, >timer(loader) 1, >run(loader) 2, run 1";
    assert_eq!(drawn().step("job/main", 0, 7), parts);
}

/// A step from 0 to 10 of an engine that polls for its worker's answer, from when to when the spans say that it waits, and that
/// the worker answers. The worker was stopped before it began.
fn polled(waits: [i64; 2], answers: [i64; 2]) -> String {
    let mut scene = Scene::default();
    scene.thread("engine/main", "RRRRRRRRRR").thread("worker/main", "RRXXXXRRRR");
    scene.call("engine/main", names::STEPS, names::RPC_WAIT, waits);
    scene.call("worker/main", names::STEPS, names::WORKER_RESPONSE, answers);
    scene.step("engine/main", 0, 10)
}

#[test]
fn an_engine_that_polls_waits_for_what_its_worker_does() {
    // The engine took a while to see that it had ended.
    assert_eq!(polled([1, 9], [7, 8]), "run 1, >run 1, >stopped(worker) 4, >run 2, run 2");
}

#[test]
fn an_engine_that_polls_waits_until_it_sees_the_answer() {
    // It has that before the worker's call that gives it returns.
    assert_eq!(polled([1, 8], [7, 9]), "run 1, >run 1, >stopped(worker) 4, >run 2, run 2");
}

/// An engine whose main thread waits for the interpreter lock from 3 to 8, which another thread of it has; its worker runs.
fn engine_without_its_lock() -> Scene {
    let mut scene = Scene::default();
    scene
        .thread("engine/main", "RRRGGGGGRR")
        .thread("engine/2", "R")
        .thread("worker/main", "RRRRRRRRRR");
    scene.wake("engine/main", 8, Some("engine/2"));
    scene
}

/// The worker polls for the second call of its step, which the engine cannot make.
#[test]
fn a_worker_that_polls_waits_for_what_its_engine_does() {
    let mut scene = engine_without_its_lock();
    scene.call("engine/main", names::STEPS, names::RPC_WAIT, [0, 3]);
    scene.call("worker/main", names::STEPS, names::WORKER_RESPONSE, [1, 2]);
    scene.call("worker/main", names::STEPS, "Worker::Sample", [9, 10]);
    let parts = "run 2, >run 1, >>gil(engine/2) 5, >run 1, run 1";
    assert_eq!(scene.step("worker/main", 0, 10), parts);
}

#[test]
fn an_engine_that_could_not_look_for_an_answer_did_not_wait_for_it() {
    let mut scene = engine_without_its_lock();
    scene.call("engine/main", names::STEPS, names::RPC_WAIT, [1, 9]);
    scene.call("worker/main", names::STEPS, names::WORKER_RESPONSE, [1, 2]);
    let parts = "run 1, >run 1, run 1, >gil(engine/2) 5, run 2";
    assert_eq!(scene.step("engine/main", 0, 10), parts);
}

#[test]
fn the_interpreter_lock_is_held_by_one_thread_after_another() {
    let mut scene = Scene::default();
    // The second one has to wait for it too, behind the third one, which gives it up at 4.
    scene.thread("py/main", "RGGGGGGGGR").thread("py/2", "RRGGRRRRRR").thread("py/3", "RRRRRRRRRR");
    scene.wake("py/2", 4, Some("py/3")).wake("py/main", 9, Some("py/2"));
    assert_eq!(scene.step("py/main", 0, 10), "run 1, >gil(py/3) 3, >gil(py/2) 5, run 1");
}

#[test]
fn who_has_the_interpreter_lock_has_it_while_it_sleeps_too_but_not_while_others_have_its_cpu() {
    let mut scene = Scene::default();
    scene.thread("py/main", "RGGGGGGGR").thread("py/2", "RRSSQQRRR").cpu("....hh...");
    scene.wake("py/main", 8, Some("py/2"));
    let said = scene.step("py/main", 0, 9);
    assert_eq!(said, "run 1, >gil(py/2) 3, >runnable(h) 2, >gil(py/2) 2, run 1");
}

#[test]
fn a_wait_for_the_interpreter_lock_that_nobody_was_seen_to_end_has_no_culprit() {
    let mut scene = Scene::default();
    scene.thread("py/main", "RGGGRRR");
    assert_eq!(scene.step("py/main", 0, 7), "run 1, gil 3, run 3");
    // Waits that time out are ended by who gives it up at last.
    let mut scene = Scene::default();
    scene.thread("py/main", "RGGGRGGGR").thread("py/2", "R");
    scene.wake("py/main", 4, None).wake("py/main", 8, Some("py/2"));
    let said = scene.step("py/main", 0, 9);
    assert_eq!(said, "run 1, >gil(py/2) 3, run 1, >gil(py/2) 3, run 1");
}

/// Where both run at once on CPUs of their own, the other one has often dropped the lock before the first is asleep again.
#[test]
fn who_waits_until_its_interpreter_lock_was_taken_had_it_before() {
    let mut scene = Scene::default();
    scene.thread("py/main", "RGGGGGRRRS").thread("py/2", "RRRRRRGRRR").thread("py/3", "RRGGGGGGGG");
    scene.wake("py/main", 6, None).wake("py/2", 7, Some("py/main"));
    assert_eq!(scene.step("py/main", 0, 9), "run 1, >gil(py/2) 5, run 3");
    // What it wakes for another reason, or later, gave nothing up.
    for (what, by) in [("RRRRRRSRRR", "py/main"), ("RRRRRRGRRR", "py/3")] {
        let mut scene = Scene::default();
        scene.thread("py/main", "RGGGGGRRRS").thread("py/2", what).thread("py/3", "R");
        scene.wake("py/main", 6, None).wake("py/2", 7, Some(by));
        assert_eq!(scene.step("py/main", 0, 9), "run 1, gil 5, run 3");
    }
}

#[test]
fn a_helper_whose_result_is_waited_for_without_an_end_holds_no_lock() {
    let mut scene = Scene::default();
    scene.thread("job/1", "RFFFFFFRR").thread("job/2", "FRRRRRRFF");
    scene.wake("job/2", 1, Some("job/1")).wake("job/1", 7, Some("job/2"));
    assert_eq!(scene.step("job/1", 0, 9), "run 1, >run 6, run 2");
}

#[test]
fn who_holds_a_lock_and_has_to_wait_for_a_cpu_is_held_up_by_who_has_that() {
    let mut scene = Scene::default();
    scene.thread("job/1", "RFFFRFFFRR").thread("job/2", "RQQQQQRRRR").cpu(".hhhhh....");
    scene.wake("job/1", 4, None).wake("job/1", 8, Some("job/2"));
    let said = scene.step("job/1", 0, 10);
    assert_eq!(said, "run 1, >runnable(h) 3, run 1, >runnable(h) 1, >lock(job/2) 2, run 2");
}

#[test]
fn what_the_threads_of_a_loader_wait_for_among_themselves_is_no_lock_that_it_holds() {
    let mut scene = Scene::default();
    scene
        .thread("job/main", "EEEEER")
        .thread("loader/feeder", "FFFFR")
        .thread("loader/main", "SSSR");
    scene.wake("job/main", 5, Some("loader/feeder"));
    scene.wake("loader/feeder", 4, Some("loader/main")).wake("loader/main", 3, None);
    let parts = ">>timer(loader) 3, >>run(loader) 1, >run(loader) 1, run 1";
    assert_eq!(scene.step("job/main", 0, 6), parts);
    // Nor the lock of its interpreter.
    let mut scene = Scene::default();
    scene
        .thread("job/main", "EEEEER")
        .thread("loader/feeder", "GGGGR")
        .thread("loader/main", "SRRRR");
    scene.wake("job/main", 5, Some("loader/feeder")).wake("loader/feeder", 4, Some("loader/main"));
    let parts = ">>timer(loader) 1, >>run(loader) 3, >run(loader) 1, run 1";
    assert_eq!(scene.step("job/main", 0, 6), parts);
    let mut scene = Scene::default();
    scene.thread("job/main", "EEEEER").thread("loader/feeder", "GGGGR");
    scene.wake("job/main", 5, Some("loader/feeder")).wake("loader/feeder", 4, None);
    assert_eq!(scene.step("job/main", 0, 6), ">unknown 4, >run(loader) 1, run 1");
    // But a process that holds a lock does so whatever its threads do.
    let mut scene = Scene::default();
    scene.thread("job/main", "FFFFFR").thread("server/a", "FFFFR").thread("server/b", "SSSR");
    scene.wake("job/main", 5, Some("server/a"));
    scene.wake("server/a", 4, Some("server/b")).wake("server/b", 3, None);
    let parts = ">>lock(server) 4, >lock(server) 1, run 1";
    assert_eq!(scene.step("job/main", 0, 6), parts);
}

const ASKS: (Direction, bool) = (Direction::Send, true);
const IS_ASKED: (Direction, bool) = (Direction::Receive, true);
const ANSWERS: (Direction, bool) = (Direction::Send, false);
const IS_ANSWERED: (Direction, bool) = (Direction::Receive, false);

/// A cache: a thread of its pool has a request and lets another one fetch what is asked for from a service. That one waits as
/// for a condition until a thread that polls for all of them says that the answer is there.
fn cache() -> Scene {
    let mut scene = Scene::default();
    scene.thread("cache/client", "RFFFFFFR").thread("cache/fetch", "FRFFFFRF");
    scene.thread("cache/epoll", "EEEEERE").thread("service/main", "N.SSSR");
    scene.steps_too("cache/fetch").steps_too("cache/epoll");
    scene.wake("cache/fetch", 1, Some("cache/client")).wake("cache/epoll", 5, None);
    scene.wake("cache/fetch", 6, Some("cache/epoll")).wake("cache/client", 7, Some("cache/fetch"));
    scene.tcp("cache/client", IS_ASKED, 5000, 0);
    scene.tcp("cache/fetch", ASKS, 6000, 2).tcp("service/main", IS_ASKED, 6000, 2);
    scene.tcp("service/main", ANSWERS, 6000, 5);
    scene
}

#[test]
fn what_another_thread_was_given_to_do_is_told_by_what_that_waited_for() {
    let mut scene = cache();
    scene.tcp("cache/fetch", IS_ANSWERED, 6000, -5).tcp("cache/fetch", IS_ANSWERED, 6000, 6);
    scene.rows.message.last_mut().unwrap().position = 10 * 1005;
    let said = "run 1, >run 1, >>timer(service) 3, >network 1, >run 1, run 1";
    assert_eq!(scene.step("cache/client", 0, 8), said);
}

#[test]
fn who_has_a_request_of_its_own_and_was_woken_holds_a_lock() {
    let mut scene = cache();
    scene.tcp("cache/fetch", IS_ASKED, 5001, -5).tcp("cache/fetch", IS_ANSWERED, 6000, 6);
    assert_eq!(scene.step("cache/client", 0, 8), "run 1, >lock(cache/fetch) 6, run 1");
}

/// A thread that polls, takes what came and wakes another one had what that waited for.
#[test]
fn who_polls_for_itself_holds_what_it_gives_away() {
    let said = |took: bool| {
        let mut scene = Scene::default();
        scene.thread("db/a", "RFFFFFRR").thread("db/b", "EEEEERRE").steps_too("db/b");
        scene.wake("db/b", 5, None).wake("db/a", 6, Some("db/b"));
        scene.tcp("db/b", IS_ASKED, 5001, -5).tcp("db/b", ANSWERS, 5001, -4);
        if took {
            scene.tcp("db/b", IS_ASKED, 5001, 5);
        }
        scene.tcp("db/a", IS_ASKED, 5000, 0).tcp("db/a", IS_ANSWERED, 7000, 7);
        scene.step("db/a", 0, 8)
    };
    assert_eq!(said(true), "run 1, >lock(db/b) 5, run 2");
    assert_eq!(said(false), "run 1, network 5, run 2");
}

/// A runtime whose threads take up each other's work: who answers has waited for one that does something for it.
#[test]
fn where_requests_wander_between_threads_those_hold_nothing() {
    let mut scene = Scene::default();
    scene.thread("go/m1", "FRRDDDRF").thread("go/m2", "FFFFFFRR").steps_too("go/m1");
    scene.wake("go/m1", 1, None).wake("go/m2", 6, Some("go/m1"));
    assert_eq!(scene.step("go/m2", 1, 8), ">lock(go/m1) 2, >block_queue 3, run 2");
    for n in 0..70 {
        let by = if n % 10 == 0 { "go/m2" } else { "go/m1" };
        scene.tcp("go/m1", IS_ASKED, 5000, 2 * n - 300).tcp(by, ANSWERS, 5000, 2 * n - 299);
    }
    scene.rows.step.pop();
    assert_eq!(scene.step("go/m2", 1, 8), ">run 2, >block_queue 3, run 2");
}
