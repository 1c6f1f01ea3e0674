//! A small recorder: one thread that takes ten steps a second, and everything that hangs on them.

use std::path::Path;

use gpuwhy_schema::*;
use gpuwhy_store::{Durability, Options, Writer};

/// Rows a second, of all tables, but for lanes.
pub const STEPS: i64 = 10;

pub struct Sim {
    lanes: Lanes,
    ids: Ids,
    second: i64,
    source: SourceId,
    thread: EntityId,
    waker: EntityId,
    steps: TrackId,
    states: TrackId,
    memory: TrackId,
    wakeups: TrackId,
    steal: TrackId,
    recorded: u64,
    /// A state that began in an earlier second and has not ended.
    asleep: Option<State>,
}

impl Sim {
    pub fn new(shard: u16, host: &str) -> Sim {
        let mut lanes = Lanes::default();
        let source = lanes.source("bpf:run_queue", "sim", "1", "");
        let h = lanes.entity(EntityKind::Host, host, |_| {});
        let key = |what: &str| format!("{host}/{what}");
        let process = lanes.entity(EntityKind::Process, &key("42@1"), |e| {
            e.parent = Some(h);
            e.number = Some(42);
        });
        let mut thread =
            |n: &str| lanes.entity(EntityKind::Thread, &key(n), |e| e.parent = Some(process));
        let (thread, waker) = (thread("42"), thread("43"));
        let cpu = lanes.entity(EntityKind::Cpu, &key("cpu0"), |e| e.parent = Some(h));
        let spans = |name| Lane::spans(name, Discipline::Nested);
        let steps = lanes.track(thread, None, spans(names::STEPS), source);
        let memory = lanes.track(thread, None, spans(names::MEMORY), source);
        let states = lanes.track(
            thread,
            None,
            Lane::states(names::THREAD_STATE, Discipline::Sparse),
            source,
        );
        let wakeups = lanes.track(thread, None, Lane::marks(names::WAKEUPS), source);
        let steal =
            lanes.track(cpu, None, Lane::counter(names::STEAL, "ns", Measure::Delta), source);
        Sim {
            lanes,
            ids: Ids::of_shard(shard),
            second: 0,
            source,
            thread,
            waker,
            steps,
            states,
            memory,
            wakeups,
            steal,
            recorded: 0,
            asleep: None,
        }
    }

    /// The rows of the next second, in the order in which a recorder would come to know them.
    ///
    /// Each step runs for 60 ms, of which 10 ms in reclaim, sleeps 30 ms, and is woken; the sleep
    /// of the last step of each second lasts into the next.
    pub fn second(&mut self) -> Rows {
        let mut rows = Rows::default();
        let begin = Ns::secs(self.second);
        for i in 0..STEPS {
            let ts = begin + Ns::millis(100 * i);
            self.wake(ts, &mut rows);
            self.step(self.second * STEPS + i, ts, &mut rows);
        }
        // The recorder tells each second of what is still open.
        rows.state.extend(self.asleep.clone());
        rows.counter.push(Counter { ts: begin + Ns::secs(1), track: self.steal, value: 7.0 });
        self.recorded += rows.len() as u64;
        let recorded = self.recorded;
        self.lanes.update_source(self.source, |s| s.recorded = recorded);
        self.lanes.drain(&mut rows);
        self.second += 1;
        rows
    }

    /// The thread wakes up, if it sleeps.
    fn wake(&mut self, ts: Ns, rows: &mut Rows) {
        if let Some(asleep) = self.asleep.take() {
            rows.state.push(State { dur: Some(ts - asleep.ts), ..asleep });
            let id = self.ids.next_id();
            rows.mark.push(Mark {
                id,
                ts,
                track: self.wakeups,
                name: "wakeup".into(),
                value: None,
            });
            rows.wakeup.push(Wakeup {
                id,
                ts,
                woken: self.thread,
                waker: Some(self.waker),
                context: WakeContext::Task,
                cpu: 0,
            });
        }
    }

    /// One step, after which the thread sleeps.
    fn step(&mut self, seq: i64, ts: Ns, rows: &mut Rows) {
        let ms = Ns::millis;
        let step = self.ids.next_id();
        let child = self.ids.next_id();
        rows.span.push(Span {
            id: child,
            ts: ts + ms(20),
            dur: Some(ms(10)),
            track: self.memory,
            parent: Some(step),
            name: "direct_reclaim".into(),
        });
        rows.attr.push(Attr { id: child, key: "order".into(), value: "0".into() });
        rows.span.push(Span {
            id: step,
            ts,
            dur: Some(ms(60)),
            track: self.steps,
            parent: None,
            name: "step".into(),
        });
        rows.step.push(Step {
            id: step,
            ts,
            thread: self.thread,
            seq: seq as u64,
            size: None,
            rank: None,
        });
        for (at, dur, kind) in
            [(0, 20, PartKind::Run), (20, 10, PartKind::Reclaim), (30, 30, PartKind::Run)]
        {
            rows.part.push(Part {
                step,
                ts: ts + ms(at),
                dur: ms(dur),
                kind,
                thread: self.thread,
                blame: None,
                hops: 0,
            });
        }
        rows.state.push(State {
            ts,
            dur: Some(ms(60)),
            track: self.states,
            value: ThreadState::Running.code(),
            arg: Some(0),
        });
        self.asleep = Some(State {
            ts: ts + ms(60),
            dur: None,
            track: self.states,
            value: ThreadState::Sleep.code(),
            arg: Some(-1),
        });
    }

    /// Everything of `seconds` seconds, as one who reads it should get it.
    pub fn truth(shard: u16, host: &str, seconds: i64) -> Rows {
        let mut sim = Sim::new(shard, host);
        let mut rows = Rows::default();
        for _ in 0..seconds {
            rows.append(&mut sim.second());
        }
        // An open row that ended later is told once, as ended.
        let ended: Vec<Ns> = rows.state.iter().filter(|s| s.dur.is_some()).map(|s| s.ts).collect();
        rows.state.retain(|s| s.dur.is_some() || !ended.contains(&s.ts));
        sorted(rows)
    }
}

/// In the order in which a trace hands them out, and of lanes the last row of each.
pub fn sorted(mut rows: Rows) -> Rows {
    struct Sort;
    impl EachTable for Sort {
        type Error = std::convert::Infallible;
        fn table<T: Table>(&mut self, rows: &mut Vec<T>) -> Result<(), Self::Error> {
            rows.sort_by_key(|r| (r.start(), std::cmp::Reverse(r.end())));
            Ok(())
        }
    }
    let Ok(()) = rows.each(&mut Sort);
    fn last<T: Clone>(rows: &mut Vec<T>, id: impl Fn(&T) -> u32) {
        let all = std::mem::take(rows);
        for row in all {
            match rows.iter_mut().find(|r| id(r) == id(&row)) {
                Some(known) => *known = row,
                None => rows.push(row),
            }
        }
    }
    last(&mut rows.source, |s| s.id.0);
    rows
}

pub fn scratch() -> Options {
    Options { durability: Durability::ProcessDeath, ..Options::default() }
}

/// A writer that never seals by itself.
pub fn create(path: &Path) -> Writer {
    Writer::create(path, scratch()).unwrap()
}
