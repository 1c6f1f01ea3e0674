use std::fmt::Write as _;

use gpuwhy_schema::{Rows, SourceState};

use super::*;

const GPU: &str = "GPU-1";
/// What the GPU's clock is ahead of ours, ms.
const AHEAD: i64 = 5_000;

struct Scene {
    rows: SwitchRows,
    cx: Context,
}

impl Scene {
    fn new() -> Scene {
        let mut cx = Context::new();
        let source = cx.catalog.source("gpu_switches", "test", "0", "");
        Scene { rows: SwitchRows { source, ..SwitchRows::default() }, cx }
    }

    /// What the log says at a time: whether a context has the GPU now, whose it is, and since when; times in ms.
    fn says(&mut self, at: i64, switches: &[(bool, Option<u32>, i64)]) {
        self.says_of(None, at, switches);
    }

    fn says_of(
        &mut self,
        partition: Option<(u8, u8)>,
        at: i64,
        switches: &[(bool, Option<u32>, i64)],
    ) {
        let switch = |&(begins, pid, at): &(bool, Option<u32>, i64)| Switch {
            begins,
            pid,
            context: 9,
            partition,
            at: ((at + AHEAD) * 1_000_000) as u64,
        };
        let switches = switches.iter().map(switch).collect();
        let clock = Some((-AHEAD * 1_000_000, 700));
        let said = Ok(Said { switches, lost: 0, clock });
        self.rows.take(Reading { uuid: GPU.into(), at: Ns::millis(at), said }, &mut self.cx);
    }

    /// Whose turn it was, and what each had, by engine.
    fn told(mut self) -> (String, Rows) {
        let rows = self.cx.take_rows();
        let name = |id: i64| match rows.entity.iter().find(|e| i64::from(e.id.0) == id) {
            Some(entity) => {
                entity.number.map_or_else(|| entity.name.to_string(), |n| n.to_string())
            }
            None => "nobody that is told".into(),
        };
        let mut text = String::new();
        for state in &rows.state {
            let track = rows.track.iter().find(|track| track.id == state.track).unwrap();
            let engine = rows.entity.iter().find(|e| e.id == track.entity).unwrap();
            assert_eq!((&*track.name, state.arg), (names::ENGINE_OWNER, Some(9)));
            let (from, to) = (state.ts.0, state.ts.0 + state.dur.unwrap().0);
            let (engine, who) = (&engine.name, name(state.value));
            writeln!(text, "{engine}: {who} {}..{}", from / 1_000_000, to / 1_000_000).unwrap();
        }
        (text, rows)
    }
}

#[test]
fn turns_of_processes_are_told_by_our_clock() {
    let mut scene = Scene::new();
    scene.says(100, &[]);
    scene.says(200, &[(true, Some(7), 110), (false, Some(7), 130), (true, Some(8), 131)]);
    scene.says(300, &[(false, Some(8), 140), (true, Some(7), 141)]);
    let (text, rows) = scene.told();
    assert_eq!(text, "kernels: 7 110..130\nkernels: 8 131..140\n");
    // The GPU is the one that NVML tells of.
    let gpu = rows.entity.iter().find(|e| e.kind == EntityKind::Gpu).unwrap();
    assert_eq!(&*gpu.key, GPU);
    let source = rows.source.last().unwrap();
    assert!(source.config.contains("clock_error_ns=700"), "{}", source.config);
}

#[test]
fn who_had_it_before_the_log_began_is_told_from_there_on() {
    let mut scene = Scene::new();
    scene.says(100, &[]);
    scene.says(200, &[(false, Some(7), 150), (true, None, 151), (false, None, 160)]);
    let told = "kernels: 7 100..150\nkernels: nobody that is told 151..160\n";
    assert_eq!(scene.told().0, told);
}

#[test]
fn an_end_that_was_lost_is_where_the_next_turn_begins() {
    let mut scene = Scene::new();
    scene.says(200, &[(true, Some(7), 110), (true, Some(8), 130), (false, Some(8), 140)]);
    assert_eq!(scene.told().0, "kernels: 7 110..130\nkernels: 8 130..140\n");
}

#[test]
fn a_long_turn_is_seen_while_it_lasts_and_nothing_overlaps() {
    let mut scene = Scene::new();
    scene.says(200, &[(true, Some(7), 110)]);
    scene.says(1_000, &[]);
    scene.says(1_500, &[]);
    scene.says(1_600, &[(false, Some(7), 1_340)]);
    scene.says(1_700, &[(true, Some(8), 1_680)]);
    scene.rows.finish(Ns::millis(2_000), &mut scene.cx);
    let told = "kernels: 7 110..1350\nkernels: 8 1680..1850\n";
    assert_eq!(scene.told().0, told);
}

#[test]
fn partitions_are_engines_of_their_own() {
    let mut scene = Scene::new();
    scene.says_of(Some((1, 0)), 200, &[(true, Some(7), 110), (false, Some(7), 150)]);
    scene.says_of(Some((2, 0)), 200, &[(true, Some(8), 120), (false, Some(8), 160)]);
    let told = "kernels of GPU instance 1, compute instance 0: 7 110..150\n\
                kernels of GPU instance 2, compute instance 0: 8 120..160\n";
    assert_eq!(scene.told().0, told);
}

#[test]
fn what_each_had_is_summed_by_the_second() {
    let mut scene = Scene::new();
    scene.says(200, &[(true, Some(7), 110), (false, Some(7), 140), (true, Some(8), 140)]);
    scene.says(300, &[(false, Some(8), 150)]);
    scene.says(1_300, &[]);
    scene.says(2_400, &[]);
    scene.says(3_500, &[]);
    let (_, rows) = scene.told();
    let mut had: Vec<(i64, i64, f64)> = Vec::new();
    for row in &rows.counter {
        let track = rows.track.iter().find(|track| track.id == row.track).unwrap();
        assert_eq!(&*track.name, names::PROCESS_ENGINE_TIME);
        let process = rows.entity.iter().find(|e| e.id == track.entity).unwrap();
        had.push((process.number.unwrap(), row.ts.0 / 1_000_000, row.value / 1e6));
    }
    had.sort_by(|a, b| a.partial_cmp(b).unwrap());
    // One zero, and then nothing more.
    assert_eq!(had, [(7, 1_150, 30.0), (7, 2_250, 0.0), (8, 1_150, 10.0), (8, 2_250, 0.0)]);
}

#[test]
fn a_log_that_ends_is_said_and_losses_are_counted() {
    let mut scene = Scene::new();
    scene.says(200, &[(true, Some(7), 110)]);
    let said = Ok(Said { lost: 3, ..Said::default() });
    scene.rows.take(Reading { uuid: GPU.into(), at: Ns::millis(300), said }, &mut scene.cx);
    let said = Err("its log says what cannot be".into());
    scene.rows.take(Reading { uuid: GPU.into(), at: Ns::millis(400), said }, &mut scene.cx);
    assert_eq!(scene.rows.dropped(), 3);
    let (_, rows) = scene.told();
    assert_eq!(rows.source.last().unwrap().state, SourceState::Degraded);
    assert!(rows.source.last().unwrap().note.as_ref().unwrap().contains("GPU-1: its log"));
}
