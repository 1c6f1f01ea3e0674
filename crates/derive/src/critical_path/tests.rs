//! Small recordings whose critical path is obvious, in ns, and random ones, of which it is a partition.

use gpuwhy_schema::{Entity, EntityId, EntityKind};
use proptest::prelude::*;

use super::*;

/// A recording that is being made up.
#[derive(Default)]
struct Scene {
    work: Vec<(Work, Option<Launch>)>,
    names: Vec<String>,
    hosts: Hosts,
    entities: Vec<Entity>,
}

impl Recording for Scene {
    fn count(&self) -> usize {
        self.work.len()
    }

    fn work(&self, place: usize) -> Work {
        self.work[place].0
    }

    fn launch(&self, place: usize) -> Option<Launch> {
        self.work[place].1
    }
}

/// Who launched something, and when the call began.
type By = Option<(u32, i64)>;

impl Scene {
    /// Times of ranks are off by `apart`.
    fn new(apart: Option<i64>) -> Scene {
        Scene { hosts: Hosts::new(apart), ..Scene::default() }
    }

    /// A thread of a rank.
    fn thread(&mut self, rank: u32, tid: u32) -> u32 {
        let (entity, process, of) =
            (EntityId(1000 * rank + tid), EntityId(rank), EntityId(500 + rank));
        let entities = [
            (of, EntityKind::Rank, None, Some(i64::from(rank) - 1)),
            (process, EntityKind::Process, Some(of), None),
            (entity, EntityKind::Thread, Some(process), None),
        ];
        for (id, kind, parent, number) in entities {
            let (key, name) = ("".into(), "".into());
            let entity = Entity { id, kind, parent, key, name, number, from: None, to: None };
            self.entities.push(entity);
        }
        self.hosts.thread(ThreadOf { entity, process, owner: u64::from(rank), source: rank })
    }

    fn call(&mut self, thread: u32, name: &str, from: i64, to: i64) -> &mut Scene {
        let lane = match name {
            name if name.starts_with("MPI") => Lane::Mpi,
            name if name.starts_with("cuda") => Lane::Device,
            name if name.starts_with("nccl") => Lane::Library,
            _ => Lane::Os,
        };
        self.hosts.call(thread, lane, &name.into(), from, to);
        self
    }

    fn put(&mut self, what: What, stream: u32, name: &str, at: (i64, i64), by: By) -> &mut Scene {
        self.names.push(name.into());
        let name = self.names.len() as u32 - 1;
        let owner = by.map_or(1, |(thread, _)| self.hosts.threads[thread as usize].of.owner);
        let work = Work { start: at.0, end: at.1, stream, owner, what, name };
        self.work.push((work, by.map(|(thread, start)| Launch { thread, start })));
        self
    }

    fn kernel(&mut self, stream: u32, name: &str, at: (i64, i64), by: By) -> &mut Scene {
        self.put(What::Kernel, stream, name, at, by)
    }

    /// A kernel of stream 7 and its launch.
    fn launched(&mut self, by: u32, call: (i64, i64), name: &str, at: (i64, i64)) -> &mut Scene {
        self.call(by, "cudaLaunchKernel", call.0, call.1).kernel(7, name, at, Some((by, call.0)))
    }

    fn copied(&mut self, kind: CopyKind, at: (i64, i64), by: By) -> &mut Scene {
        self.put(What::Copy(kind), 7, "", at, by)
    }

    fn steps(&mut self, range: Range<i64>) -> Vec<Step> {
        self.work.sort_by_key(|(work, _)| work.start);
        self.hosts.finish(&self.entities);
        let mut steps = Vec::new();
        walk(self, &self.hosts, range, |step| steps.push(step));
        steps
    }

    /// The path from 0 to the last end: `kernel a 15-40`, one line a segment.
    fn path(&mut self) -> Vec<String> {
        let end = self.work.iter().map(|(work, _)| work.end).max().unwrap_or(0);
        let steps = self.steps(0..end);
        let segments = steps.iter().filter_map(|step| match step {
            Step::Segment(segment) => Some(segment),
            _ => None,
        });
        let told = segments.map(|Segment { from, to, part, name }| match (part, name) {
            (Part::Kernel | Part::Communication, Some(name)) => {
                format!("{} {} {from}-{to}", part.as_str(), self.names[*name as usize])
            }
            _ => format!("{} {from}-{to}", part.as_str()),
        });
        let mut told: Vec<String> = told.collect();
        told.reverse();
        told
    }
}

#[test]
fn slow_launches_are_the_path_of_a_program_that_is_bound_by_its_host() {
    let mut scene = Scene::default();
    let t = scene.thread(1, 1);
    scene.launched(t, (0, 10), "a", (15, 40));
    scene.launched(t, (100, 110), "b", (115, 140)).launched(t, (200, 210), "c", (215, 240));
    assert_eq!(
        scene.path(),
        [
            "host_launch 0-10",
            "host_no_call 10-100",
            "host_launch 100-110",
            "host_no_call 110-200",
            "host_launch 200-210",
            "launch_latency 210-215",
            "kernel c 215-240",
        ]
    );
}

#[test]
fn a_full_queue_is_the_path_of_a_program_that_is_bound_by_its_device() {
    let mut scene = Scene::default();
    let t = scene.thread(1, 1);
    scene.launched(t, (0, 10), "a", (15, 1000));
    scene.launched(t, (10, 20), "b", (1002, 2000)).launched(t, (20, 30), "c", (2003, 3000));
    // The wait for all of them, its poll of the operating system, and what comes after it.
    scene.call(t, "cudaDeviceSynchronize", 40, 3010).call(t, "poll", 50, 3005);
    scene.call(t, "write", 3020, 3040).launched(t, (3050, 3060), "d", (3065, 3100));
    assert_eq!(
        scene.path(),
        [
            "host_launch 0-10",
            "launch_latency 10-15",
            "kernel a 15-1000",
            "queue_gap 1000-1002",
            "kernel b 1002-2000",
            "queue_gap 2000-2003",
            "kernel c 2003-3000",
            "host_synchronise 3000-3010",
            "host_no_call 3010-3020",
            "host_os 3020-3040",
            "host_no_call 3040-3050",
            "host_launch 3050-3060",
            "launch_latency 3060-3065",
            "kernel d 3065-3100",
        ]
    );
}

#[test]
fn copies_that_the_host_waits_for_are_the_path_and_so_is_what_they_wait_for() {
    let mut scene = Scene::default();
    let t = scene.thread(1, 1);
    scene.call(t, "cudaMemcpy", 0, 500).copied(CopyKind::HostToDevice, (20, 490), Some((t, 0)));
    scene.launched(t, (510, 520), "a", (525, 300_000));
    // Its copy begins when the kernel has ended.
    scene.call(t, "cudaMemcpy", 530, 320_000);
    scene.copied(CopyKind::DeviceToHost, (302_000, 318_000), Some((t, 530)));
    scene.launched(t, (320_000, 320_010), "b", (320_015, 320_020));
    assert_eq!(
        scene.path(),
        [
            "host_copy 0-20",
            "copy_h2d 20-490",
            "host_copy 490-500",
            "host_no_call 500-510",
            "host_launch 510-520",
            "launch_latency 520-525",
            "kernel a 525-300000",
            "queue_gap 300000-302000",
            "copy_d2h 302000-318000",
            "host_copy 318000-320000",
            "host_launch 320000-320010",
            "launch_latency 320010-320015",
            "kernel b 320015-320020",
        ]
    );
}

#[test]
fn a_copy_of_the_default_stream_waits_for_other_streams() {
    let mut scene = Scene::default();
    let t = scene.thread(1, 1);
    scene.call(t, "cudaLaunchKernel", 0, 10).kernel(13, "a", (15, 300_000), Some((t, 0)));
    scene.call(t, "cudaMemcpy", 20, 320_000);
    scene.copied(CopyKind::DeviceToHost, (302_000, 320_000), Some((t, 20)));
    assert_eq!(
        scene.path(),
        [
            "host_launch 0-10",
            "launch_latency 10-15",
            "kernel a 15-300000",
            "queue_gap 300000-302000",
            "copy_d2h 302000-320000",
        ]
    );
}

#[test]
fn a_copy_that_goes_on_after_its_call_was_staged_by_the_host() {
    let mut scene = Scene::default();
    let t = scene.thread(1, 1);
    scene.call(t, "cudaMemcpy", 0, 500).copied(CopyKind::HostToDevice, (450, 700), Some((t, 0)));
    scene.launched(t, (510, 900), "a", (910, 1000));
    assert_eq!(
        scene.path(),
        [
            "host_copy 0-450",
            "copy_h2d 450-500",
            "host_no_call 500-510",
            "host_launch 510-900",
            "launch_latency 900-910",
            "kernel a 910-1000",
        ]
    );
}

/// Rank 0 is in a collective from 100 to 1010; rank 1 computes until 990, and comes at 1000.
fn collective(apart: Option<i64>) -> Scene {
    let mut scene = Scene::new(apart);
    let (one, two) = (scene.thread(1, 1), scene.thread(2, 1));
    scene.call(one, "MPI_Allreduce", 100, 1010);
    scene.launched(two, (0, 10), "solve", (15, 990)).call(two, "cudaDeviceSynchronize", 20, 995);
    scene.call(two, "MPI_Allreduce", 1000, 1012);
    scene.call(one, "cudaLaunchKernel", 1020, 1030);
    scene.kernel(8, "next", (1035, 2000), Some((one, 1020)));
    scene
}

#[test]
fn the_path_crosses_to_the_rank_that_came_last() {
    assert_eq!(
        collective(Some(50)).path(),
        [
            "host_launch 0-10",
            "launch_latency 10-15",
            "kernel solve 15-990",
            "host_synchronise 990-995",
            "host_no_call 995-1000",
            "mpi_transfer 1000-1010",
            "host_no_call 1010-1020",
            "host_launch 1020-1030",
            "launch_latency 1030-1035",
            "kernel next 1035-2000",
        ]
    );
}

#[test]
fn the_path_stays_with_a_rank_where_clocks_do_not_say_who_came_last() {
    for apart in [None, Some(2000)] {
        let mut scene = collective(apart);
        let path = scene.path();
        assert_eq!(path[..2], ["host_no_call 0-100", "mpi_wait 100-1010"], "{apart:?}");
        assert!(scene.steps(0..2000).contains(&Step::NotAligned));
    }
}

/// `b` on stream 2 begins when `a` on stream 1 has ended.
fn two_streams(waits_for_event: bool) -> Scene {
    let mut scene = Scene::default();
    let t = scene.thread(1, 1);
    scene.call(t, "cudaLaunchKernel", 0, 10).kernel(1, "a", (15, 500), Some((t, 0)));
    scene.call(t, "cudaEventRecord", 11, 12);
    if waits_for_event {
        scene.call(t, "cudaStreamWaitEvent", 13, 14);
    }
    scene.call(t, "cudaLaunchKernel", 20, 30).kernel(2, "b", (505, 600), Some((t, 20)));
    scene
}

#[test]
fn a_stream_waits_for_another_where_a_call_says_so() {
    assert_eq!(
        two_streams(true).path(),
        [
            "host_launch 0-10",
            "launch_latency 10-15",
            "kernel a 15-500",
            "queue_gap 500-505",
            "kernel b 505-600",
        ]
    );
    let alone = two_streams(false).path();
    assert_eq!(alone[4..], ["host_launch 20-30", "launch_latency 30-505", "kernel b 505-600"]);
}

#[test]
fn kernels_of_a_graph_wait_for_each_other() {
    let mut scene = Scene::default();
    let t = scene.thread(1, 1);
    scene.call(t, "cudaGraphLaunch", 0, 10);
    scene.kernel(1, "a", (15, 500), Some((t, 0))).kernel(2, "b", (501, 600), Some((t, 0)));
    assert_eq!(
        scene.path(),
        [
            "host_launch 0-10",
            "launch_latency 10-15",
            "kernel a 15-500",
            "queue_gap 500-501",
            "kernel b 501-600",
        ]
    );
}

#[test]
fn work_that_was_queued_for_long_waited_for_something_that_no_row_shows() {
    let mut scene = Scene::default();
    let t = scene.thread(1, 1);
    scene.launched(t, (0, 10), "a", (5_000_000, 6_000_000));
    assert_eq!(scene.path(), ["host_launch 0-10", "queued 10-5000000", "kernel a 5000000-6000000"]);
}

#[test]
fn work_without_a_launch_leads_to_the_work_before_it_and_its_begin_is_not_known() {
    let mut scene = Scene::default();
    let t = scene.thread(1, 1);
    scene.launched(t, (0, 10), "a", (15, 40)).kernel(7, "b", (60, 100), None);
    assert_eq!(
        scene.path(),
        [
            "host_launch 0-10",
            "launch_latency 10-15",
            "kernel a 15-40",
            "not_known 40-60",
            "kernel b 60-100",
        ]
    );
    let mut scene = Scene::default();
    scene.kernel(7, "b", (60, 100), None);
    assert_eq!(scene.path(), ["not_known 0-60", "kernel b 60-100"]);
}

#[test]
fn a_wait_leads_to_work_that_was_launched_before_the_recording_began() {
    let mut scene = Scene::default();
    let t = scene.thread(1, 1);
    scene.kernel(7, "early", (5, 90), None).call(t, "cudaDeviceSynchronize", 0, 100);
    scene.launched(t, (110, 120), "a", (125, 200));
    assert_eq!(
        scene.path(),
        [
            "not_known 0-5",
            "kernel early 5-90",
            "host_synchronise 90-100",
            "host_no_call 100-110",
            "host_launch 110-120",
            "launch_latency 120-125",
            "kernel a 125-200",
        ]
    );
}

#[test]
fn a_launch_that_ends_or_even_begins_after_its_work_began_has_no_latency() {
    let mut scene = Scene::default();
    let t = scene.thread(1, 1);
    scene.call(t, "cudaMalloc", 0, 5).launched(t, (10, 30), "a", (20, 100));
    assert_eq!(
        scene.path(),
        ["host_allocate 0-5", "host_no_call 5-10", "host_launch 10-20", "kernel a 20-100"]
    );
    let mut scene = Scene::default();
    let t = scene.thread(1, 1);
    scene.call(t, "cudaMalloc", 0, 5).launched(t, (30, 40), "a", (20, 100));
    assert_eq!(scene.path(), ["host_allocate 0-5", "host_no_call 5-20", "kernel a 20-100"]);
    assert!(scene.steps(0..100).contains(&Step::Skewed));
}

#[test]
fn a_launch_waits_for_room_in_the_queue() {
    let mut scene = Scene::default();
    let t = scene.thread(1, 1);
    scene.launched(t, (0, 10), "a", (15, 400_000)).launched(t, (20, 30), "b", (400_001, 400_010));
    // It returns when `a` has ended, on a stream that has nothing else to do.
    scene.call(t, "cudaLaunchKernel", 40, 400_005);
    scene.kernel(8, "c", (400_020, 400_100), Some((t, 40)));
    assert_eq!(
        scene.path(),
        [
            "host_launch 0-10",
            "launch_latency 10-15",
            "kernel a 15-400000",
            "host_launch 400000-400005",
            "launch_latency 400005-400020",
            "kernel c 400020-400100",
        ]
    );
}

#[test]
fn a_thread_that_had_nothing_to_do_leads_to_the_one_that_was_seen_last() {
    let mut scene = Scene::default();
    let (main, backward) = (scene.thread(1, 1), scene.thread(1, 2));
    scene.hosts.operator(main, 0, 300_000);
    scene.launched(main, (100_000, 100_010), "forward", (100_020, 100_030));
    scene.hosts.operator(backward, 320_000, 500_000);
    scene.launched(backward, (400_000, 400_010), "backward", (400_020, 400_030));
    // Meanwhile the main thread waits in no operator.
    scene.hosts.operator(main, 510_000, 600_000);
    scene.launched(main, (550_000, 550_010), "step", (550_020, 550_030));
    let mut told = Vec::new();
    for step in scene.steps(0..550_030) {
        match step {
            Step::Segment(Segment { from, to, part: Part::Host(Host::NoCall), .. }) => {
                told.push(format!("{from}-{to}"));
            }
            Step::Edge(edge) => told.push(edge.as_str().into()),
            _ => {}
        }
    }
    assert_eq!(
        told,
        [
            "launch",
            "510000-550000",
            "500000-510000",
            "thread",
            "400010-500000",
            "320000-400000",
            "300000-320000",
            "thread",
            "100010-300000",
            "0-100000",
        ]
    );
}

#[test]
fn a_thread_leads_to_another_before_its_first_call_where_there_are_no_operators() {
    let mut scene = Scene::default();
    let (one, two) = (scene.thread(1, 1), scene.thread(1, 2));
    scene.launched(one, (0, 10), "a", (15, 20)).call(one, "cudaMalloc", 30, 90);
    scene.call(two, "cudaLaunchKernel", 100, 110).kernel(8, "b", (115, 200), Some((two, 100)));
    assert_eq!(
        scene.path(),
        [
            "host_launch 0-10",
            "host_no_call 10-30",
            "host_allocate 30-90",
            "host_no_call 90-100",
            "host_launch 100-110",
            "launch_latency 110-115",
            "kernel b 115-200",
        ]
    );
}

#[test]
fn calls_within_calls_are_the_time_of_the_inner_one() {
    let mut scene = Scene::default();
    let t = scene.thread(1, 1);
    scene.call(t, "ncclAllReduce", 0, 100).call(t, "cudaModuleLoadData", 20, 50);
    scene.call(t, "cudaLaunchKernel", 60, 90);
    scene.put(What::Communication, 7, "ncclDevKernel", (120, 200), Some((t, 60)));
    assert_eq!(
        scene.path(),
        [
            "host_library 0-20",
            "host_load 20-50",
            "host_library 50-60",
            "host_launch 60-90",
            "launch_latency 90-120",
            "communication_kernel ncclDevKernel 120-200",
        ]
    );
}

#[test]
fn a_trace_without_work_of_a_device_has_a_path_of_which_nothing_is_known() {
    let mut scene = Scene::default();
    let t = scene.thread(1, 1);
    scene.call(t, "cudaMalloc", 0, 100);
    let steps = scene.steps(0..100);
    let all = Segment { from: 0, to: 100, part: Part::NotKnown, name: None };
    assert_eq!(steps, [Step::Segment(all)]);
}

const NAMES: &[&str] = &[
    "cudaLaunchKernel",
    "cudaMemcpy",
    "cudaMemcpyAsync",
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaStreamWaitEvent",
    "cudaFree",
    "MPI_Allreduce",
    "MPI_Barrier",
    "poll",
    "ncclAllReduce",
];

type MadeCall = (u32, usize, i64, i64);
type MadeWork = (u32, u8, i64, i64, Option<(u32, usize)>);

fn time() -> impl Strategy<Value = i64> {
    // Many begin and end together; others are far apart.
    prop_oneof![3 => 0i64..40, 2 => 0i64..2_000_000]
}

proptest! {
    #[test]
    fn the_segments_of_any_recording_are_a_partition_of_the_range(
        calls in prop::collection::vec((0u32..4, 0usize..NAMES.len(), time(), time()), 0..60),
        work in prop::collection::vec(
            (0u32..4, 0u8..3, time(), time(), prop::option::of((0u32..4, 0usize..60))), 0..60),
        operators in prop::collection::vec((0u32..4, time(), time()), 0..20),
        range in (-10i64..2_000_000, 0i64..2_500_000),
        apart in prop::option::of(0i64..1000),
    ) {
        let mut scene = made(&calls, &work, operators, apart);
        let range = range.0..range.0 + range.1;
        let mut t = range.end;
        for step in scene.steps(range.clone()) {
            let Step::Segment(segment) = step else { continue };
            prop_assert_eq!(segment.to, t);
            prop_assert!(segment.from < segment.to && segment.from >= range.start);
            t = segment.from;
        }
        prop_assert_eq!(t, range.start);
    }
}

/// Four threads of two ranks, and work that some call launched, another one, or none.
fn made(
    calls: &[MadeCall],
    work: &[MadeWork],
    mut operators: Vec<(u32, i64, i64)>,
    apart: Option<i64>,
) -> Scene {
    let mut scene = Scene::new(apart);
    let threads: Vec<u32> = (0..4).map(|i| scene.thread(1 + i / 2, 1 + i % 2)).collect();
    for (thread, name, from, to) in calls {
        scene.call(threads[*thread as usize], NAMES[*name], *from, *to);
    }
    operators.sort_by_key(|(_, start, _)| *start);
    for (thread, start, end) in operators {
        scene.hosts.operator(threads[thread as usize], start, end);
    }
    for (stream, what, start, end, by) in work {
        let what = match what {
            0 => What::Kernel,
            1 => What::Communication,
            _ => What::Copy(CopyKind::HostToDevice),
        };
        // A launch whose call is not there is possible too.
        let by = by.map(|(thread, call)| {
            let of = calls.get(call).filter(|call| call.0 == thread);
            (threads[thread as usize], of.map_or(7, |call| call.2))
        });
        scene.put(what, *stream, "k", (*start, *end.max(start)), by);
    }
    scene
}
