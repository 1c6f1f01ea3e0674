use gpuwhy_schema::{Entity, EntityKind, Id, Ns, Part, Rows, SourceId, SourceState, Track, names};

use super::*;
use crate::correspondents::Correspondents;
use crate::demand::Demands;
use crate::detect::{Detection, Expected, Step, incidents};
use crate::gpu::Readings;
use crate::roofline::Mix;

/// A part: kind, who is blamed, ns.
type Made = (PartKind, Option<u32>, i64);

/// Two hundred usual steps of 10 ms (run 4, gpu 6), then forty slow ones made of `slow`, where
/// process 1 is `job` and process 2 is `hog`.
fn judged(slow: &[Made], dropped: u64) -> Finding {
    judged_steps(&[slow; 40], dropped)
}

/// The same with these slow steps.
fn judged_steps(slow: &[&[Made]], dropped: u64) -> Finding {
    judged_with(slow, dropped, None)
}

/// The same, with the clock of a GPU before and in the slow steps.
fn judged_with(slow: &[&[Made]], dropped: u64, clock: Option<(f64, f64)>) -> Finding {
    judged_of(slow, dropped, clock, &[])
}

/// The same, with what processes took of the CPUs before and during the incident, and more of these: pid - 1000,
/// command.
fn judged_of(
    slow: &[&[Made]],
    dropped: u64,
    clock: Option<(f64, f64)>,
    took: &[(u32, &str, f64, f64)],
) -> Finding {
    judged_as(Scene { dropped, clock, took, ..Scene::new(slow) })
}

/// The same of what processes took, each so long after the onset.
fn judged_from(
    slow: &[&[Made]],
    took: &[(u32, &str, f64, f64)],
    begins: impl Fn(u32) -> Ns,
) -> Finding {
    judged_as(Scene { took, begins: &begins, ..Scene::new(slow) })
}

/// The thread whose steps are judged.
const THREAD: u32 = 99;
/// The process whose steps they are.
const WORKLOAD: u32 = 9;
/// Exchanges messages with those who take the steps.
const CORRESPONDENT: u32 = 60;
/// The process that recorded.
const RECORDER: u32 = 8;

/// What happens to a program.
#[derive(Clone, Copy)]
struct Scene<'a> {
    /// What its 200 usual steps are made of,
    usual: &'a [Made],
    /// and each of the slow ones after them.
    slow: &'a [&'a [Made]],
    /// What these take besides, which is in no part, ns.
    in_no_part: i64,
    /// Events that were lost.
    dropped: u64,
    /// The clock of a GPU before and in the slow steps.
    clock: Option<(f64, f64)>,
    /// Pid - 1000 and command of processes, and what they took of the CPUs before and during the incident,
    took: &'a [(u32, &'a str, f64, f64)],
    /// from so long after the onset.
    begins: &'a dyn Fn(u32) -> Ns,
    /// Whether what they took was recorded.
    counts: bool,
    /// What its steps are expected to take.
    expected: Expected,
    /// What they are called.
    name: &'static str,
}

impl<'a> Scene<'a> {
    /// Of slow steps, and nothing else.
    fn new(slow: &'a [&'a [Made]]) -> Scene<'a> {
        Scene {
            usual: &[(PartKind::Run, None, 4_000_000), (PartKind::Gpu, None, 6_000_000)],
            slow,
            in_no_part: 0,
            dropped: 0,
            clock: None,
            took: &[],
            begins: &|_| Ns::ZERO,
            counts: true,
            expected: Expected::Alike,
            name: "step",
        }
    }
}

fn judged_as(scene: Scene<'_>) -> Finding {
    let Scene { usual, slow, dropped, clock, took, begins, counts, expected, name, .. } = scene;
    let mut steps = Vec::new();
    let mut parts = Vec::new();
    let mut at = Ns::ZERO;
    for n in 0..200 + slow.len() as u64 {
        let made = if n < 200 { usual } else { slow[n as usize - 200] };
        let jitter = (n % 7) as i64 * 10_000;
        let ts = at.max(Ns::millis(50 * n as i64));
        at = ts;
        let id = Id::new(0, n);
        for (i, &(kind, blame, ns)) in made.iter().enumerate() {
            let dur = Ns(ns + if i == 0 { jitter } else { 0 });
            let blame = blame.map(EntityId);
            let thread = EntityId(THREAD);
            parts.push(Part { step: id, ts: at, dur, kind, thread, blame, hops: 0 });
            at += dur;
        }
        at += if n < 200 { Ns::ZERO } else { Ns(scene.in_no_part) };
        steps.push(Step {
            id,
            ts,
            dur: at - ts,
            thread: EntityId(THREAD),
            series: None,
            rank: Some(0),
            name: name.into(),
            size: None,
            ran: None,
            expected,
        });
    }
    let entity = |id, name: &str| Entity {
        id: EntityId(id),
        kind: EntityKind::Process,
        parent: None,
        key: format!("{id}@0").into(),
        name: name.into(),
        number: Some(i64::from(id) + 1000),
        from: None,
        to: None,
    };
    let source = gpuwhy_schema::Source {
        id: SourceId(1),
        kind: "bpf:run_queue".into(),
        tool: "gpuwhy".into(),
        version: "0".into(),
        config: format!("hz=10 pid={}", RECORDER + 1000).into(),
        state: SourceState::Ok,
        note: None,
        recorded: 100,
        dropped,
        one_in: 1,
    };
    let mut entities = vec![entity(1, "job"), entity(2, "hog"), entity(3, "other")];
    entities.push(entity(WORKLOAD, "ranks"));
    entities.push(Entity {
        kind: EntityKind::Thread,
        parent: Some(EntityId(WORKLOAD)),
        ..entity(THREAD, "rank")
    });
    let gpu = Entity { kind: EntityKind::Gpu, ..entity(4, "gpu 0") };
    if clock.is_some() {
        entities.push(gpu.clone());
    }
    entities.extend(took.iter().filter(|t| t.0 > 3).map(|t| entity(t.0, t.1)));
    let rows = Rows { entity: entities, source: vec![source], ..Rows::default() };
    let steps = Steps::from(steps);
    let found = incidents(&steps, &Detection::default());
    assert_eq!(found.len(), 1, "{found:?}");
    let track = Track {
        id: gpuwhy_schema::TrackId(1),
        entity: gpu.id,
        parent: None,
        shape: gpuwhy_schema::Shape::Counter,
        name: names::SM_CLOCK.into(),
        unit: None,
        measure: None,
        discipline: None,
        source: SourceId(1),
    };
    let (before, during) = clock.unzip();
    let reading = |s: i64, value: Option<f64>| {
        let ts = Ns::millis(s * 100);
        Some(gpuwhy_schema::Counter { ts, track: track.id, value: value? })
    };
    let readings = (0..100).map(|s| (s, before)).chain((100..130).map(|s| (s, during)));
    let readings: Vec<_> = readings.filter_map(|(s, value)| reading(s, value)).collect();
    let readings = Readings::new([&gpu], [&track], crate::classes::reads, &readings, &[]);
    let incident = found[0].where_it_hung(&steps);
    let cpu_time = |n: u32| Track {
        id: gpuwhy_schema::TrackId(100 + n),
        entity: EntityId(n),
        name: names::CPU_TIME.into(),
        ..track.clone()
    };
    let counted = if counts { took } else { &[] };
    let tracks: Vec<Track> = counted.iter().map(|t| cpu_time(t.0)).collect();
    let mut used = Vec::new();
    let last = incident.to.0 / 100_000_000 + 1;
    for tick in 1..=last.max(130) {
        let ts = Ns::millis(tick * 100);
        for (n, _, before, during) in counted {
            let value = if ts > incident.from + begins(*n) { during } else { before } * 1e8;
            used.push(gpuwhy_schema::Counter { ts, track: gpuwhy_schema::TrackId(100 + n), value });
        }
    }
    let demands = Demands::new(&tracks, &used, (incident.from, incident.to));
    let context = JudgeContext::new(&rows).with_readings(readings).with_demands(demands);
    let correspondents = Correspondents::known([EntityId(CORRESPONDENT)]);
    let rows = StepRows { parts, correspondents, ..StepRows::default() };
    judge(&steps, &incident, &rows, &context, &Judgement::default())
}

#[test]
fn who_occupied_the_cpu_is_named_and_the_parts_sum_to_the_excess() {
    use PartKind::*;
    let finding = judged(
        &[
            (Run, None, 4_000_000),
            (Runnable, Some(2), 8_000_000),
            (Runnable, Some(3), 500_000),
            (Gpu, None, 2_000_000),
            (Unknown, None, 100_000),
        ],
        0,
    );
    assert_eq!(finding.class, "cpu_contention");
    let culprit = finding.culprit.as_ref().unwrap();
    assert_eq!((culprit.pid, culprit.comm.as_deref()), (Some(1002), Some("hog")));
    assert!(finding.confidence > 0.9, "{}", finding.confidence);
    let sum: f64 = finding.parts_ms.values().sum::<f64>() + finding.unexplained_ms;
    assert!((sum - finding.excess_ms).abs() < 1e-6, "{sum} {}", finding.excess_ms);
    assert!((finding.unexplained_ms - 0.1).abs() < 1e-6);
    assert!(finding.summary.contains("by hog (pid 1002) "), "{}", finding.summary);
}

/// Two ranks and a loader had two CPUs; then a hog takes half of one, and they wait for each other.
#[test]
fn who_is_in_the_way_and_takes_no_more_than_before_was_displaced_by_who_does() {
    use PartKind::*;
    let slow = [
        (Run, None, 4_000_000),
        (Runnable, Some(1), 6_000_000),
        (Runnable, Some(2), 2_000_000),
        (Gpu, None, 6_000_000),
    ];
    let took = [(1, "job", 0.9, 0.7), (2, "hog", 0.0, 0.5), (3, "other", 0.3, 0.3)];
    let finding = judged_of(&[&slow[..]; 40], 0, None, &took);
    let culprit = finding.culprit.as_ref().unwrap();
    assert_eq!((finding.class, culprit.pid), ("cpu_contention", Some(1002)));
    let cause = &finding.causes[0];
    assert!((cause.culprit_ms - 8.0).abs() < 0.1 && cause.others.is_empty(), "{cause:?}");
    let said = |what: &str| cause.evidence_for.iter().any(|e| e.says.contains(what));
    assert!(said("hog (pid 1002) took 0.50 CPUs, 0.00 before"), "{:?}", cause.evidence_for);
    assert!(said("job (pid 1001) was in the way") && said("displaced itself"), "{cause:?}");
    // Had nobody been compared, the one most in the way would have been named.
    assert_eq!(judged(&slow, 0).culprit.unwrap().pid, Some(1001));
}

/// Beside somebody who shares its cores the same work takes more CPU time.
#[test]
fn who_takes_the_steps_is_not_named_where_others_began_to_take_more_than_it_did() {
    use PartKind::*;
    let slow = [
        (Run, None, 4_000_000),
        (Runnable, Some(WORKLOAD), 6_000_000),
        (Runnable, Some(2), 2_000_000),
        (Gpu, None, 6_000_000),
    ];
    let named = |hog: f64| {
        let took = [(WORKLOAD, "ranks", 0.5, 0.8), (2, "hog", 0.0, hog)];
        let finding = judged_of(&[&slow[..]; 40], 0, None, &took);
        (finding.outcome, finding.causes[0].culprit.as_ref().unwrap().pid)
    };
    assert_eq!(named(0.5), (Outcome::Decided, Some(1002)));
    let itself = (Outcome::InsufficientEvidence, Some(i64::from(WORKLOAD) + 1000));
    assert_eq!(named(0.1), itself, "it does more itself");
}

/// A hog on its CPUs, whose use of their caches makes it run for longer as well.
#[test]
fn who_is_in_the_way_and_may_have_slowed_the_rest_comes_before_the_program_itself() {
    use PartKind::*;
    let judge = |ran: i64, waited: i64, hog: f64| {
        let slow =
            [(Run, None, 4_000_000 + ran), (Runnable, Some(2), waited), (Gpu, None, 6_000_000)];
        let took = [(1, "job", 0.9, 0.9), (2, "hog", 0.0, hog)];
        let finding = judged_of(&[&slow[..]; 40], 0, None, &took);
        let first = &finding.causes[0];
        let culprit = first.culprit.as_ref().and_then(|culprit| culprit.pid);
        (finding.outcome, first.class, culprit, first.rank)
    };
    let by_the_hog = (Outcome::Decided, "cpu_contention", Some(1002), 1);
    assert_eq!(judge(3_000_000, 2_500_000, 0.9), by_the_hog);
    let (outcome, class, ..) = judge(6_000_000, 2_200_000, 0.9);
    assert_eq!(
        (outcome, class),
        (Outcome::InsufficientEvidence, "cpu_contention"),
        "little is seen"
    );
    let (outcome, class, ..) = judge(9_000_000, 1_000_000, 0.9);
    assert_eq!((outcome, class), (Outcome::InsufficientEvidence, "engine_software"));
    // So little CPU does not make the same work take so much longer.
    assert_eq!(judge(3_000_000, 2_500_000, 0.1).1, "engine_software");
}

#[test]
fn where_nobody_takes_more_than_before_nobody_is_named() {
    use PartKind::*;
    let slow = [(Run, None, 4_000_000), (Runnable, Some(1), 8_000_000), (Gpu, None, 6_000_000)];
    let took = [(1, "job", 0.9, 0.9), (2, "hog", 0.4, 0.4)];
    let finding = judged_of(&[&slow[..]; 40], 0, None, &took);
    assert_eq!((finding.class, &finding.culprit), ("cpu_contention", &None));
    let against = &finding.causes[0].evidence_against;
    assert!(against.iter().any(|e| e.says.contains("nobody took more")), "{against:?}");
}

/// Two threads of a solver share one CPU more often than before.
#[test]
fn threads_of_one_program_that_wait_for_each_other_are_nobodys_doing() {
    use PartKind::*;
    let judge = |own: i64, name| {
        let slow = [
            (Run, None, 4_000_000),
            (Runnable, Some(WORKLOAD), own),
            (Runnable, Some(1), 6_000_000 - own),
            (Gpu, None, 6_000_000),
        ];
        let took = [(1, "job", 0.3, 0.3), (WORKLOAD, "ranks", 0.9, 0.9)];
        judged_as(Scene { took: &took, name, ..Scene::new(&[&slow[..]; 40]) }).outcome
    };
    assert_eq!(judge(5_000_000, names::QUANTUM), Outcome::InsufficientEvidence);
    assert_eq!(judge(1_000_000, names::QUANTUM), Outcome::Decided);
    assert_eq!(judge(5_000_000, "step"), Outcome::Decided, "its CPUs were taken away");
}

/// A request that waits for others at the device, seen through the kernel's worker that hands it over.
#[test]
fn a_worker_of_the_kernel_is_not_named_for_what_others_asked_of_a_disk() {
    use PartKind::*;
    let named = |who: u32| {
        let slow = [
            (Run, None, 4_000_000),
            (BlockQueue, Some(who), 6_000_000),
            (BlockQueue, Some(20), 3_000_000),
            (Gpu, None, 6_000_000),
        ];
        let took = [(20, "fio", 0.0, 0.1), (21, "kworker/1:1H", 0.0, 0.0), (22, "dd", 0.0, 0.0)];
        let finding = judged_of(&[&slow[..]; 40], 0, None, &took);
        (finding.class, finding.culprit.and_then(|culprit| culprit.pid))
    };
    assert_eq!(named(22), ("block_io", Some(1022)));
    assert_eq!(named(21), ("block_io", Some(1020)), "who is named beside it");
}

/// What it takes is told from hour to hour; that it is waited for now is its doing all the same.
#[test]
fn the_recorder_is_named_for_what_it_is_in_the_way_though_it_takes_no_more_than_always() {
    use PartKind::*;
    let slow = |recorder: i64| {
        let others = 8_000_000 - recorder;
        let slow = [
            (Run, None, 4_000_000),
            (Runnable, Some(RECORDER), recorder),
            (Runnable, Some(1), others),
            (Gpu, None, 6_000_000),
        ];
        let took = [(1, "job", 0.9, 0.9), (RECORDER, "gpuwhy", 0.04, 0.05)];
        let finding = judged_of(&[&slow[..]; 40], 0, None, &took);
        (finding.class, finding.culprit.and_then(|culprit| culprit.pid))
    };
    assert_eq!(slow(7_500_000), ("cpu_contention", Some(i64::from(RECORDER) + 1000)));
    assert_eq!(slow(2_000_000), ("cpu_contention", None));
}

/// What a batch takes is not all in its size.
#[test]
fn steps_of_batches_that_wait_somewhat_longer_while_nobody_takes_more_are_not_decided() {
    use PartKind::*;
    let judge = |waited| {
        let slow = [(Run, None, 4_000_000), (Runnable, Some(1), waited), (Gpu, None, 6_000_000)];
        let expected = Expected::Priced { mix: Mix::Decode, ns: 1e7, first_ns: None };
        let took = &[(1, "job", 0.9, 0.9)][..];
        judged_as(Scene { took, expected, ..Scene::new(&[&slow[..]; 40]) })
    };
    let longer = judge(6_000_000);
    assert_eq!((longer.class, longer.outcome), ("unexplained", Outcome::InsufficientEvidence));
    assert!(against(&longer).contains("now and then"), "{}", against(&longer));
    assert_eq!(judge(14_000_000).outcome, Outcome::Decided);
}

/// A kernel thread ran a little more than before, while the ranks waited for each other.
#[test]
fn who_is_hardly_in_the_way_and_takes_little_more_displaced_nobody() {
    use PartKind::*;
    let slow = [
        (Run, None, 4_000_000),
        (Runnable, Some(1), 5_000_000),
        (Runnable, Some(2), 50_000),
        (Gpu, None, 6_000_000),
    ];
    let named = |rise| {
        let took = [(1, "job", 0.9, 0.9), (2, "rcu", 0.01, 0.01 + rise)];
        judged_of(&[&slow[..]; 40], 0, None, &took).culprit.and_then(|culprit| culprit.pid)
    };
    assert_eq!((named(0.06), named(0.3)), (None, Some(1002)));
}

/// It is not known yet who takes more; a client and two hogs have one name.
#[test]
fn who_was_in_the_way_before_is_not_blamed_for_others_of_its_name() {
    use PartKind::*;
    const CLIENT: u32 = 29;
    let usual =
        &[(Run, None, 4_000_000), (Runnable, Some(CLIENT), 1_000_000), (Gpu, None, 5_000_000)][..];
    let slow = [
        (Run, None, 4_000_000),
        (Runnable, Some(CLIENT), 3_500_000),
        (Runnable, Some(30), 2_500_000),
        (Runnable, Some(31), 2_500_000),
        (Gpu, None, 6_000_000),
    ];
    let took = &[CLIENT, 30, 31].map(|id| (id, "python3", 0.0, 0.0))[..];
    let finding = judged_as(Scene { usual, took, counts: false, ..Scene::new(&[&slow[..]; 40]) });
    let culprit = finding.culprit.unwrap();
    assert_eq!((culprit.pid, culprit.processes), (Some(1030), 2));
}

/// None of them is in the way for long, all of them together are.
#[test]
fn many_short_processes_of_one_command_are_one_culprit() {
    use PartKind::*;
    let slow: Vec<Vec<Made>> = (0..40)
        .map(|n| {
            let one = Some(10 + n / 2);
            vec![(Run, None, 4_000_000), (Runnable, one, 8_000_000), (Gpu, None, 6_000_000)]
        })
        .collect();
    let slow: Vec<&[Made]> = slow.iter().map(|made| &made[..]).collect();
    let mut took = vec![(1, "job", 0.9, 0.7)];
    took.extend((10..30).map(|n| (n, "bash", 0.0, 0.04)));
    let finding = judged_of(&slow, 0, None, &took);
    let culprit = finding.culprit.as_ref().unwrap();
    assert_eq!((culprit.comm.as_deref(), culprit.processes), (Some("bash"), 20));
    assert!(finding.summary.contains("bash (20 processes, such as pid 10"), "{}", finding.summary);
    assert!(finding.counterfactual.unwrap().mean_without_ms < 11.0);
}

#[test]
fn what_accounts_for_next_to_nothing_of_the_steps_is_not_decided() {
    use PartKind::*;
    let slow = [(Run, None, 4_000_000), (Gpu, None, 6_000_000), (Softirq, None, 15_000)];
    let slow = &[&slow[..]; 40];
    let finding = judged_as(Scene { in_no_part: 4_000_000, ..Scene::new(slow) });
    assert_eq!(finding.outcome, Outcome::InsufficientEvidence, "{}", finding.summary);
}

/// A script is started beside ranks that are `python3` as well, and takes the CPU from both.
#[test]
fn a_newcomer_of_the_same_command_as_the_ranks_is_named_without_them() {
    use PartKind::*;
    let slow = [
        (Run, None, 4_000_000),
        (Runnable, Some(10), 6_000_000),
        (Runnable, Some(11), 5_000_000),
        (Gpu, None, 6_000_000),
    ];
    let slow: Vec<&[Made]> = (0..40).map(|_| &slow[..]).collect();
    let took = [(1, "python3", 0.9, 0.6), (10, "python3", 0.9, 0.65), (11, "python3", 0.0, 0.75)];
    let finding = judged_of(&slow, 0, None, &took);
    let culprit = finding.culprit.as_ref().unwrap();
    assert_eq!((culprit.pid, culprit.processes), (Some(1011), 1), "{}", finding.summary);
}

/// The backends of a server queue behind the one that holds the lock, and behind each other.
#[test]
fn of_the_processes_of_a_server_the_one_that_holds_the_lock_is_named_alone() {
    use PartKind::*;
    let slow = [(Run, None, 10_000_000), (Lock, Some(10), 7_000_000), (Lock, Some(11), 1_500_000)];
    let slow: Vec<&[Made]> = (0..40).map(|_| &slow[..]).collect();
    let took = [(1, "postgres", 0.5, 0.5), (10, "postgres", 0.0, 0.0), (11, "postgres", 0.3, 0.3)];
    let finding = judged_of(&slow, 0, None, &took);
    assert_eq!(finding.class, "lock_contention", "{}", finding.summary);
    let culprit = finding.culprit.as_ref().unwrap();
    assert_eq!((culprit.pid, culprit.processes), (Some(1010), 1), "{}", finding.summary);
}

#[test]
fn what_the_hypervisor_took_is_told_as_its_doing() {
    use PartKind::*;
    let usual = [(Run, None, 4_000_000), (Gpu, None, 6_000_000)];
    let judge = |stolen: i64, behind: i64| {
        let more = [(Steal, None, stolen), (Runnable, None, behind)];
        let slow: Vec<Made> = usual.into_iter().chain(more).collect();
        judged_steps(&[&slow[..]; 40], 0)
    };
    let most = judge(6_000_000, 2_000_000);
    assert_eq!((most.class, &most.culprit), ("cpu_steal", &None), "{}", most.summary);
    assert_eq!(most.causes[1].class, "cpu_contention", "{}", most.summary);
    let little = judge(1_000_000, 7_000_000);
    assert_eq!(little.class, "cpu_contention", "{}", little.summary);
}

/// It came long after the onset.
#[test]
fn who_comes_in_the_middle_did_not_begin_it() {
    use PartKind::*;
    let of =
        |who| [(Run, None, 4_000_000), (Runnable, Some(who), 8_000_000), (Gpu, None, 6_000_000)];
    let (first, later) = (of(3), of(2));
    let slow: Vec<&[Made]> =
        (0..80).map(|n| if n < 30 { &first[..] } else { &later[..] }).collect();
    let finding = judged_steps(&slow, 0);
    assert_eq!(finding.culprit.as_ref().unwrap().pid, Some(1003), "{:?}", finding.causes[0]);
    let against = &finding.causes[0].evidence_against;
    assert!(against.iter().any(|e| e.says.contains("did not begin this")), "{against:?}");
}

/// Something small came first and dates the incident.
#[test]
fn who_came_late_and_cost_most_of_it_is_named() {
    use PartKind::*;
    let of = |behind, ns| [(Run, None, 4_000_000), (Runnable, behind, ns), (Gpu, None, 6_000_000)];
    let (first, later) = (of(None, 1_500_000), of(Some(2), 12_000_000));
    let slow: Vec<&[Made]> =
        (0..120).map(|n| if n < 60 { &first[..] } else { &later[..] }).collect();
    let took = [(2, "hog", 0.0, 0.6)];
    let finding = judged_from(&slow, &took, |_| Ns::secs(3));
    assert_eq!(finding.culprit.as_ref().unwrap().pid, Some(1002), "{:?}", finding.causes[0]);
    // As much of it was lost before as after.
    let even = judged_from(&[&later[..]; 120], &took, |_| Ns::secs(3));
    assert_eq!(even.culprit, None, "{:?}", even.causes[0]);
}

/// Something small came first, so that the onset is dated before the device was held back.
#[test]
fn a_device_that_was_held_back_is_named_however_late_that_was_seen() {
    use PartKind::*;
    let first = [(Run, None, 5_000_000), (Gpu, None, 6_000_000)];
    let later =
        [(Run, None, 4_000_000), (GpuThrottled, Some(4), 8_000_000), (Gpu, None, 6_000_000)];
    let slow: Vec<&[Made]> =
        (0..80).map(|n| if n < 30 { &first[..] } else { &later[..] }).collect();
    let finding = judged_with(&slow, 0, Some((1980.0, 990.0)));
    assert_eq!(finding.class, "gpu_throttling");
    assert_eq!(finding.culprit.as_ref().unwrap().name.as_deref(), Some("gpu 0"));
}

#[test]
fn who_slept_longer_in_each_step_is_told() {
    use PartKind::*;
    let slow = [(Run, None, 4_000_000), (Timer, Some(1), 18_000_000), (Gpu, None, 6_000_000)];
    let finding = judged(&slow, 0);
    assert_eq!((finding.class, finding.outcome), ("own_sleep", Outcome::Decided));
    assert_eq!(finding.culprit.unwrap().pid, Some(1001));
}

#[test]
fn time_that_nothing_explains_is_insufficient_evidence() {
    use PartKind::*;
    let finding =
        judged(&[(Run, None, 4_000_000), (Unknown, None, 9_000_000), (Gpu, None, 6_000_000)], 0);
    assert_eq!(finding.outcome, Outcome::InsufficientEvidence);
    assert_eq!((finding.class, &finding.culprit), ("unexplained", &None));
    assert!(finding.summary.contains("insufficient evidence"), "{}", finding.summary);
}

#[test]
fn two_equal_causes_are_believed_less_than_one() {
    use PartKind::*;
    let usual = (Run, None, 4_000_000);
    let gpu = (Gpu, None, 6_000_000);
    let one = judged(&[usual, (Network, None, 8_000_000), gpu], 0);
    let two = judged(&[usual, (Network, None, 4_100_000), (BlockDevice, None, 3_900_000), gpu], 0);
    assert_eq!((one.class, two.causes[0].class), ("network", "network"));
    assert!(two.confidence < one.confidence, "{} {}", two.confidence, one.confidence);
    assert!(two.causes[0].evidence_against.iter().any(|e| e.says.contains("block_io")));
}

#[test]
fn of_few_steps_with_two_equal_causes_none_is_believed() {
    use PartKind::*;
    let step =
        |other| [(Run, None, 4_000_000), (Network, None, 8_200_000_000), (Lock, None, other)];
    let one = judged_steps(&[&step(1_000_000_000)[..]], 0);
    assert_eq!((one.outcome, one.class), (Outcome::Decided, "network"), "{}", one.summary);
    let tied = judged_steps(&[&step(7_800_000_000)[..]], 0);
    assert_eq!(tied.outcome, Outcome::InsufficientEvidence, "{}", tied.summary);
    assert_eq!(tied.causes[0].class, "network");
}

#[test]
fn lost_records_speak_against_every_cause() {
    use PartKind::*;
    let slow = [(Run, None, 4_000_000), (Lock, Some(2), 9_000_000), (Gpu, None, 6_000_000)];
    let (whole, lossy) = (judged(&slow, 0), judged(&slow, 50));
    assert!(lossy.confidence < whole.confidence);
    let against = &lossy.causes[0].evidence_against;
    assert!(against.iter().any(|e| e.says == "bpf:run_queue lost 50 of 150 events"), "{against:?}");
}

#[test]
fn what_was_checked_and_is_not_it_is_said() {
    use PartKind::*;
    let finding = judged(&[(Run, None, 4_000_000), (Stopped, Some(1), 9_000_000)], 0);
    assert_eq!(finding.class, "collective_straggler");
    let said: Vec<_> = finding.ruled_out.iter().map(|e| e.says.as_str()).collect();
    assert!(said.contains(&"network: 0.000 ms a step before, 0.000 ms during"), "{said:?}");
}

#[test]
fn a_step_that_hangs_amid_many_that_are_a_little_slow_is_what_is_judged() {
    use PartKind::*;
    let behind = [(Run, None, 4_000_000), (Runnable, Some(2), 20_000_000)];
    let hung = [(Run, None, 4_000_000), (Stopped, Some(1), 20_000_000_000)];
    let mut slow = vec![&behind[..]; 100];
    assert_eq!(judged_steps(&slow, 0).class, "cpu_contention");
    slow.push(&hung);
    let finding = judged_steps(&slow, 0);
    assert_eq!((finding.class, finding.slow_steps), ("collective_straggler", 1), "{finding:?}");
    assert!(finding.confidence > 0.8, "{}", finding.confidence);
    // Two seconds of the neighbour and two of the stop are both worth reporting.
    let hung = [(Run, None, 4_000_000), (Stopped, Some(1), 2_000_000_000)];
    slow[100] = &hung;
    let finding = judged_steps(&slow, 0);
    assert_eq!(finding.slow_steps, 101, "{finding:?}");
    assert_eq!(finding.causes.len(), 2, "{finding:?}");
}

/// Steps of which the GPU's own work takes longer, and what its clock was before and then.
fn slower_gpu(clock: Option<(f64, f64)>) -> Finding {
    let slow = [(PartKind::Run, None, 4_000_000), (PartKind::Gpu, None, 12_000_000)];
    judged_with(&[&slow[..]; 40], 0, clock)
}

#[test]
fn a_gpu_is_throttled_if_its_clock_was_lowered_and_only_suspected_where_it_was_not_recorded() {
    let lowered = slower_gpu(Some((1980.0, 990.0)));
    assert_eq!((lowered.class, lowered.outcome), ("gpu_throttling", Outcome::Decided));
    let unknown = slower_gpu(None);
    assert_eq!(unknown.outcome, Outcome::InsufficientEvidence);
    assert_eq!(unknown.causes[0].class, "gpu_throttling");
    let steady = slower_gpu(Some((1980.0, 1980.0)));
    assert_eq!(steady.outcome, Outcome::InsufficientEvidence);
    assert_eq!(steady.causes[0].class, "unexplained");
}

/// Hog and disk, one of which accounts for a tenth.
#[test]
fn a_culprit_without_whom_the_steps_would_have_been_slow_as_well_is_none() {
    use PartKind::*;
    let slow = [
        (Run, None, 4_000_000),
        (Runnable, None, 4_000_000),
        (BlockDevice, Some(2), 500_000),
        (BlockDevice, None, 600_000),
        (Gpu, None, 6_000_000),
    ];
    let finding = judged(&slow, 0);
    let disk = finding.causes.iter().find(|cause| cause.class == "block_io").unwrap();
    assert_eq!((&disk.culprit, disk.culprit_support), (&None, None), "{disk:?}");
    assert_eq!(disk.others[0].0.pid, Some(1002));
    let against = &disk.evidence_against;
    assert!(against.iter().any(|e| e.says.contains("slow as well")), "{against:?}");
}

#[test]
fn how_sure_the_class_is_and_how_well_its_culprit_is_supported_are_two_numbers() {
    use PartKind::*;
    let behind = |who: &[(u32, i64)]| -> Vec<Made> {
        let usual = [(Run, None, 4_000_000), (Gpu, None, 6_000_000)];
        let who = who.iter().map(|(id, ms)| (Runnable, Some(*id), ms * 1_000_000));
        usual.into_iter().chain(who).collect()
    };
    let took = [(1, "job", 0.5, 0.5), (2, "hog", 0.0, 0.5), (3, "other", 0.0, 0.45)];
    let judge = |slow: &[Made], took: &[_]| judged_of(&[slow; 40], 0, None, took);
    let one = judge(&behind(&[(2, 8)]), &took);
    let two = judge(&behind(&[(2, 4), (3, 4)]), &took);
    let unknown = judge(&behind(&[(2, 8)]), &[]);
    for finding in [&one, &two, &unknown] {
        assert!(finding.confidence > 0.95, "{}", finding.summary);
        assert_eq!(finding.culprit_support, finding.causes[0].culprit_support);
    }
    let support = |finding: &Finding| finding.culprit_support.unwrap();
    assert!(support(&one) > 0.9, "{}", one.summary);
    assert!(support(&two) < 0.6, "{}", two.summary);
    // Who took more than before was not recorded.
    assert!((0.5..0.7).contains(&support(&unknown)), "{}", unknown.summary);
    let text =
        format!("cpu_contention {:.2}, by hog (pid 1002) {:.2}", two.confidence, support(&two));
    assert!(two.summary.ends_with(&text), "{}", two.summary);
}

/// What processes took before, in steps that were usual, is not known, and one that takes the steps was in the way.
#[test]
fn a_process_that_takes_the_steps_is_not_named_where_its_demand_is_not_known() {
    use PartKind::*;
    let beside = |hog: i64| {
        let others = (Runnable, Some(WORKLOAD), 9_000_000 - hog);
        let hog = (Runnable, Some(2), hog);
        judged(&[(Run, None, 4_000_000), others, hog, (Gpu, None, 6_000_000)], 0)
    };
    assert_eq!(beside(3_000_000).culprit, None, "who was in the way for a third is a guess");
    let finding = beside(5_000_000);
    assert_eq!(finding.culprit.as_ref().unwrap().pid, Some(1002), "{}", finding.summary);
    let against = &finding.causes[0].evidence_against;
    assert!(against.iter().any(|e| e.says.contains("takes such steps itself")), "{against:?}");
    let alone =
        [(Run, None, 4_000_000), (Runnable, Some(WORKLOAD), 9_000_000), (Gpu, None, 6_000_000)];
    assert_eq!(judged(&alone, 0).culprit, None);
}

/// Several took more of the CPUs than before, among them who works for the steps itself.
#[test]
fn the_class_is_open_where_who_took_more_works_for_the_steps_itself_or_is_not_named() {
    use PartKind::*;
    let judge = |ranks: f64, others: &[(u32, &'static str, f64)]| {
        let each = 8_000_000 / (1 + others.len() as i64);
        let mut slow = vec![(Run, None, 4_000_000), (Gpu, None, 6_000_000)];
        slow.push((Runnable, Some(WORKLOAD), each));
        slow.extend(others.iter().map(|(id, ..)| (Runnable, Some(*id), each)));
        let mut took = vec![(WORKLOAD, "ranks", 0.3, 0.3 + ranks)];
        took.extend(others.iter().map(|(id, name, rise)| (*id, *name, 0.0, *rise)));
        judged_of(&[&slow[..]; 40], 0, None, &took)
    };
    let alone = judge(0.9, &[]);
    assert_eq!(alone.outcome, Outcome::InsufficientEvidence, "{}", alone.summary);
    let suspect = alone.causes[0].culprit.as_ref().and_then(|c| c.pid);
    assert_eq!(suspect, Some(i64::from(WORKLOAD) + 1000));
    assert!(against(&alone).contains("works for these steps itself"), "{}", against(&alone));
    // It took most more, and a third of what was waited for went to it.
    let shared = judge(0.9, &[(20, "a", 0.4), (21, "b", 0.4)]);
    assert_eq!((&shared.culprit, shared.outcome), (&None, Outcome::InsufficientEvidence));
    assert!(against(&shared).contains("in its own way"), "{}", against(&shared));
    assert_eq!(shared.causes[0].class, "cpu_contention");
    // As the server that an engine's clients talk to.
    let server = judge(0.0, &[(CORRESPONDENT, "server", 0.9)]);
    assert_eq!(server.outcome, Outcome::InsufficientEvidence, "{}", server.summary);
    assert!(against(&server).contains("server (pid 1060) works for these"), "{}", against(&server));
    // Somebody else did.
    let hog = judge(0.0, &[(20, "hog", 0.9)]);
    assert_eq!((hog.culprit.unwrap().pid, hog.outcome), (Some(1020), Outcome::Decided));
    // Nobody took more: CPUs were taken away.
    let fewer = judge(0.0, &[]);
    assert_eq!((fewer.culprit, fewer.outcome), (None, Outcome::Decided));
}

/// It was in the way all the time; what it took, it took more of long after the onset.
#[test]
fn who_began_to_take_more_long_after_the_onset_did_not_begin_it() {
    use PartKind::*;
    let slow = [
        (Run, None, 4_000_000),
        (Runnable, Some(2), 8_000_000),
        (Runnable, Some(3), 4_000_000),
        (Gpu, None, 6_000_000),
    ];
    let took = [(2, "hog", 0.2, 0.6), (3, "other", 0.0, 0.4)];
    let finding =
        judged_from(&[&slow[..]; 80], &took, |n| if n == 2 { Ns::secs(2) } else { Ns::ZERO });
    assert_eq!(finding.culprit.as_ref().unwrap().pid, Some(1003), "{:?}", finding.causes[0]);
    let against = &finding.causes[0].evidence_against;
    assert!(against.iter().any(|e| e.says.contains("began to take more")), "{against:?}");
}

/// Since something is slow, it looks closer. It is in the way itself from the eighth slow step on, 350 ms after the onset.
#[test]
fn the_recorder_that_takes_more_once_something_is_slow_did_not_begin_it() {
    use PartKind::*;
    let waits = |who: u32| {
        [(Run, None, 4_000_000), (Runnable, Some(who), 6_000_000), (Gpu, None, 6_000_000)]
    };
    let (others, recorders) = (waits(1), waits(RECORDER));
    let slow: Vec<&[Made]> =
        (0..80).map(|n| if n < 7 { &others[..] } else { &recorders[..] }).collect();
    let took = [(1, "job", 0.4, 0.4), (RECORDER, "gpuwhy", 0.02, 0.6)];
    let finding = judged_of(&slow, 0, None, &took);
    assert_eq!((finding.causes[0].class, &finding.culprit), ("cpu_contention", &None));
    assert_eq!(finding.outcome, Outcome::InsufficientEvidence, "{}", finding.summary);
    let against = &finding.causes[0].evidence_against;
    assert!(against.iter().any(|e| e.says.contains("to look into it")), "{against:?}");
    // It is named where it was in the way when that began.
    let slow: Vec<&[Made]> = (0..80).map(|_| &recorders[..]).collect();
    let culprit = judged_of(&slow, 0, None, &took).culprit.unwrap();
    assert_eq!(culprit.pid, Some(i64::from(RECORDER) + 1000));
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(32))]

    /// Any number of processes, each of which is in the way for some time or is not, and takes some of the CPUs before
    /// and from some time after the onset on.
    #[test]
    fn whose_demand_did_not_rise_or_rose_too_late_is_never_named(
        made in proptest::collection::vec((0i64..12, 0.0f64..1.0, 0.0f64..1.0, 0i64..40), 1..6),
    ) {
        use PartKind::*;
        let mut slow = vec![(Run, None, 4_000_000), (Gpu, None, 6_000_000), (Runnable, None, 3_000_000)];
        slow.extend(made.iter().zip(10..).map(|(m, n)| (Runnable, Some(n), m.0 * 500_000)));
        let names = ["a", "b", "c", "d", "e", "f"];
        let took: Vec<_> =
            made.iter().zip(10..).zip(names).map(|((m, n), name)| (n, name, m.1, m.2)).collect();
        let begins = |n: u32| Ns::millis(100 * made[n as usize - 10].3);
        let finding = judged_from(&vec![&slow[..]; 80], &took, begins);
        for cause in finding.causes.iter().filter(|cause| cause.class == "cpu_contention") {
            let Some(culprit) = &cause.culprit else { continue };
            let (_, before, then, begins) = made[culprit.entity as usize - 10];
            let lasted = (finding.to_ns - finding.from_ns) as f64 / 1e9;
            let allowed = (lasted / 4.0).max(1.0);
            proptest::prop_assert!(then > before, "{culprit} took {then}, {before} before");
            // Readings are made ten times a second, and rises of a few hundredths are dated by them.
            let began = begins as f64 / 10.0;
            proptest::prop_assert!(began <= allowed + 0.3, "{culprit} began {began} s after, of {lasted}");
            let support = cause.culprit_support.unwrap();
            proptest::prop_assert!((0.0..=1.0).contains(&support));
        }
    }
}

#[test]
fn a_thread_that_holds_a_lock_of_its_own_program_is_named_by_its_tid_and_its_process() {
    use PartKind::*;
    let slow = [(Run, None, 4_000_000), (Lock, Some(THREAD), 9_000_000), (Gpu, None, 6_000_000)];
    let finding = judged(&slow, 0);
    let culprit = finding.culprit.as_ref().unwrap();
    assert_eq!((finding.class, culprit.kind), ("lock_contention", "thread"));
    assert_eq!((culprit.pid, culprit.tid), (Some(1009), Some(1099)));
    assert!(finding.summary.contains("by rank (tid 1099 of pid 1009)"), "{}", finding.summary);
    let hog = judged(&[(Run, None, 4_000_000), (Lock, Some(2), 9_000_000)], 0);
    assert_eq!(hog.culprit.unwrap().tid, None);
}

/// Steps that run for so many ms before and after their wait for the GPU, which are 4 and none usually, while
/// processes take so many CPUs before and then.
fn ran(before: i64, after: i64, took: &[(u32, &str, f64, f64)]) -> Finding {
    use PartKind::*;
    let ms = 1_000_000;
    let slow = [(Run, None, before * ms), (Gpu, None, 6 * ms), (Run, None, after * ms)];
    judged_of(&[&slow[..]; 40], 0, None, took)
}

/// What speaks against the first cause.
fn against(finding: &Finding) -> String {
    finding.causes[0].evidence_against.iter().map(|e| format!("{}; ", e.says)).collect()
}

#[test]
fn code_that_runs_where_it_did_not_while_nobody_else_began_to_run_is_more_work() {
    let finding = ran(4, 12, &[(1, "job", 0.5, 0.5)]);
    assert_eq!((finding.class, finding.outcome), ("engine_software", Outcome::Decided));
    assert!(finding.confidence > 0.9, "{}", finding.summary);
    let said = &finding.causes[0].evidence_for;
    assert!(said.iter().any(|e| e.says.contains("1.00 times as long elsewhere")), "{said:?}");
    // What records it looks closer meanwhile.
    let with_recorder = ran(4, 12, &[(1, "job", 0.5, 0.5), (RECORDER, "gpuwhy", 0.02, 0.6)]);
    assert_eq!(with_recorder.outcome, Outcome::Decided, "{}", with_recorder.summary);
    // Nor does a neighbour make a program run where it never ran.
    let beside = ran(4, 12, &[(1, "job", 0.5, 0.5), (2, "hog", 0.0, 0.95)]);
    assert_eq!((beside.class, beside.outcome), ("engine_software", Outcome::Decided));
}

/// Somebody emptied the page cache.
#[test]
fn what_a_program_runs_to_read_its_files_again_is_not_told_from_more_work() {
    use PartKind::*;
    let ms = 1_000_000;
    let judge = |misses: i64| {
        let slow = [
            (Run, None, 4 * ms),
            (Gpu, None, 6 * ms),
            (CacheMiss, Some(2), misses * ms),
            (Run, None, 12 * ms),
        ];
        judged_of(&[&slow[..]; 40], 0, None, &[(1, "job", 0.5, 0.5)])
    };
    let one = judge(1);
    assert_eq!((one.class, one.outcome), ("engine_software", Outcome::Decided), "{}", one.summary);
    let two = judge(2);
    assert_eq!(two.outcome, Outcome::InsufficientEvidence, "{}", two.summary);
    assert!(against(&two).contains("read them again"), "{}", against(&two));
}

#[test]
fn the_same_code_that_runs_longer_beside_a_new_neighbour_is_not_told_to_do_more() {
    for (before, after) in [(12, 0), (12, 2)] {
        let finding = ran(before, after, &[(1, "job", 0.5, 0.5), (2, "hog", 0.0, 0.95)]);
        assert_eq!(finding.outcome, Outcome::InsufficientEvidence, "{}", finding.summary);
        assert!(finding.confidence <= 0.5, "{}", finding.summary);
        assert_eq!((finding.causes[0].class, &finding.culprit), ("engine_software", &None));
        let against = against(&finding);
        assert!(against.contains("hog (pid 1002) took 0.95 CPUs, 0.00 before"), "{against}");
        assert!(against.contains("no counter was recorded that would tell"), "{against}");
        assert!(finding.causes[0].verify.contains("instructions"), "{}", finding.causes[0].verify);
    }
}

#[test]
fn code_that_runs_at_one_place_only_may_run_on_a_slower_cpu() {
    let finding = ran(12, 0, &[(1, "job", 0.5, 0.5)]);
    assert_eq!(finding.outcome, Outcome::InsufficientEvidence, "{}", finding.summary);
    assert!(against(&finding).contains("hardly anywhere else"), "{}", against(&finding));
}

#[test]
fn more_work_is_not_told_from_slower_work_where_nobody_knows_who_else_ran() {
    let finding = ran(4, 12, &[]);
    assert_eq!(finding.outcome, Outcome::InsufficientEvidence, "{}", finding.summary);
    assert!(against(&finding).contains("is not known"), "{}", against(&finding));
}

/// It came long after the onset.
#[test]
fn a_neighbour_that_began_to_run_in_the_middle_did_not_slow_what_was_slow_before() {
    use PartKind::*;
    let ms = 1_000_000;
    let slow = [(Run, None, 4 * ms), (Gpu, None, 6 * ms), (Run, None, 12 * ms)];
    let took = [(1, "job", 0.5, 0.5), (2, "hog", 0.0, 0.95)];
    let begins = |n: u32| if n == 2 { Ns::secs(2) } else { Ns::ZERO };
    let finding = judged_from(&[&slow[..]; 80], &took, begins);
    assert_eq!((finding.class, finding.outcome), ("engine_software", Outcome::Decided));
}

#[test]
fn where_the_steps_that_were_accounted_for_took_no_longer_nothing_is_decided() {
    use PartKind::*;
    let finding = judged(&[(Run, None, 4_000_000), (Runnable, Some(2), 8_000_000)], 0);
    assert_eq!(finding.outcome, Outcome::Decided);
    let again = |slow_ms: f64| {
        let mut other = Finding { outcome: Outcome::InsufficientEvidence, ..finding.clone() };
        (other.slow_ms, other.excess_ms) = (slow_ms, slow_ms - finding.usual_ms);
        conclude(&mut other, finding.causes.clone(), &[], &Judgement::default());
        other
    };
    assert_eq!(again(finding.slow_ms).outcome, Outcome::Decided);
    let other = again(0.9 * finding.usual_ms);
    assert_eq!(other.outcome, Outcome::InsufficientEvidence);
    assert!(other.summary.contains("(-"), "{}", other.summary);
    assert!(other.causes[0].evidence_against.iter().any(|e| e.says.contains("they are others")));
}

/// A checkpoint among steps of 10 ms, say.
#[test]
fn a_few_steps_that_ran_for_long_may_be_a_habit_and_more_would_show_it() {
    use PartKind::*;
    let long = [(Run, None, 2_000_000_000), (Gpu, None, 6_000_000)];
    let finding =
        |many| judged_of(&vec![&long[..]; many], 0, None, &[(WORKLOAD, "ranks", 0.5, 0.5)]);
    for few in [2, 3, 4] {
        let few = finding(few);
        let said = (few.outcome, few.causes[0].class);
        assert_eq!(said, (Outcome::InsufficientEvidence, "engine_software"));
        assert!(few.causes[0].evidence_against.iter().any(|e| e.says.contains("more would show")));
    }
    let many = finding(5);
    assert_eq!((many.outcome, many.class), (Outcome::Decided, "engine_software"));
}
