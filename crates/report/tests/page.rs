//! A page of made-up data that has everything, with names that try to break out of it.

use gpuwhy_report::detail::{self, View};
use gpuwhy_report::table::{Cell, Row, Table};
use gpuwhy_report::*;
use gpuwhy_schema::{Counter, Measure, Ns, State, ThreadState, TrackId};

const SECOND: i64 = 1_000_000_000;
const MS: i64 = 1_000_000;
const START: Ns = Ns(5_000 * SECOND);
const HOSTILE: &str = "</script><img src=x onerror=alert(1)>'\"&\u{202e}hog";

/// Numbers that look random and are the same each time.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f64 / (1_u64 << 24) as f64
    }
}

fn who() -> Who {
    Who {
        name: HOSTILE.into(),
        pid: Some(4242),
        cgroup: Some("v2:/system.slice/batch.service".into()),
        owner: Some("container 3f2a91".into()),
    }
}

fn evidence(text: &str, table: &str, track: Option<u32>) -> Evidence {
    let during = Interval { from: 12 * SECOND, to: 18 * SECOND };
    Evidence { text: text.into(), rows: Some(RowsRef { table: table.into(), track, during }) }
}

fn part(kind: &str, baseline_ms: f64, anomalous_ms: f64, blame: Option<&str>) -> PartRow {
    PartRow { kind: kind.into(), baseline_ms, anomalous_ms, blame: blame.map(Into::into) }
}

/// A table of this cell and a name.
fn one_row(id: &'static str, cell: Cell) -> Table {
    Table {
        id,
        title: format!("The {id}"),
        columns: vec!["first", "name"],
        rows: vec![Row { id: None, cells: vec![cell, Cell::Name(HOSTILE.into())] }],
        ..Table::default()
    }
}

/// 30 s of steps of two ranks; between 12 s and 18 s a hog is on the CPU of the first.
fn sample() -> ReportData {
    let length_ns = 30 * SECOND;
    let anomaly = Interval { from: 12 * SECOND, to: 18 * SECOND };
    let at = |t: i64| Ns(START.0 + t);
    let view = View::new(START, at(length_ns), &[(at(11 * SECOND), at(19 * SECOND))]);
    let mut noise = Noise(7);

    let mut series = Vec::new();
    let mut states = Vec::new();
    let mut occupant = Vec::new();
    for rank in 0..2 {
        let mut points = Vec::new();
        let mut t = 0;
        while t < length_ns {
            let hog = anomaly.from <= t && t < anomaly.to;
            let wait = if hog {
                (14.0 + 6.0 * noise.next()) * MS as f64
            } else {
                noise.next() * MS as f64
            };
            let ends = [
                (ThreadState::Running, 9.0 * MS as f64 + noise.next() * MS as f64),
                (ThreadState::Runnable, wait),
                (ThreadState::DiskWait, 2.0 * MS as f64 * noise.next()),
                (ThreadState::Sleep, 8.0 * MS as f64),
            ];
            let begin = t;
            for (state, dur) in ends {
                let track = TrackId(10);
                let row = State {
                    ts: at(t),
                    dur: Some(Ns(dur as i64)),
                    track,
                    value: state.code(),
                    arg: None,
                };
                if rank == 0 {
                    if state == ThreadState::Runnable {
                        occupant.push(State { value: if hog { 2 } else { 3 }, ..row.clone() });
                    }
                    states.push(row);
                }
                t += dur as i64;
            }
            points.push(StepPoint { at: t, ms: (t - begin) as f64 / MS as f64, slow: hog });
        }
        series.push(StepSeries { name: format!("rank {rank}"), points });
    }
    let counter = |track, f: &mut dyn FnMut(i64) -> f64| -> Vec<Counter> {
        (0..3_000)
            .map(|i| Counter { ts: at(i * 10 * MS), track: TrackId(track), value: f(i) })
            .collect()
    };
    let hogged = |i: i64| (1_200..1_800).contains(&i);
    let runq = counter(20, &mut |i| (if hogged(i) { 8.0 } else { 0.4 } + noise.next()) * MS as f64);
    let mut noise = Noise(11);
    let disk = counter(21, &mut |i| if i % 170 < 12 { 900_000.0 * noise.next() } else { 0.0 });
    let mut noise = Noise(13);
    let clock = counter(22, &mut |_| 1_980.0 - 15.0 * noise.next().floor());
    let track = |group: &str, label: &str, lane| TimeTrack {
        group: group.into(),
        label: label.into(),
        lane,
    };

    ReportData {
        trace: TraceInfo {
            path: "demo.trace".into(),
            host: "node1".into(),
            recorded: "2026-03-01 12:00:03 UTC".into(),
            tool: "gpuwhy 0.1.0".into(),
            start_ns: START.0,
            length_ns,
        },
        verdict: Verdict {
            outcome: Outcome::Explained,
            sentence: format!(
                "Steps took 18.1 ms longer than usual (19.9 → 38.0 ms) for 6.0 s because {HOSTILE} \
                 (pid 4242) had their CPU."
            ),
            class: Some("cpu_contention".into()),
            culprit: Some(who()),
            baseline_ms: 19.9,
            observed_ms: 38.0,
            unexplained_ms: 0.7,
            culprit_support: Some(0.62),
            confidence: Some(0.93),
            runner_up: Some(("block_io".into(), 0.04)),
            slow_steps: 158,
            all_steps: 2_716,
        },
        steps: StepPlot {
            name: "train_step".into(),
            series,
            baseline: vec![Baseline {
                during: Interval { from: 0, to: length_ns },
                median_ms: 19.9,
                low_ms: 18.5,
                threshold_ms: 23.5,
            }],
            anomalies: vec![anomaly],
        },
        parts: vec![
            part("run", 9.5, 9.4, None),
            part("runnable", 0.5, 17.0, Some(HOSTILE)),
            part("block_device", 1.0, 1.6, Some("jbd2/sda1-8 (pid 311)")),
            part("block_queue", 0.1, 0.3, None),
            part("gpu", 8.0, 8.1, None),
            part("softirq", 0.2, 0.3, None),
            part("peer", 0.6, 0.6, None),
            part("unexplained", 0.0, 0.7, None),
        ],
        culprits: vec![
            CulpritRow { who: who(), what: "CPU".into(), excess_ms: 16.5, share: 0.91 },
            CulpritRow {
                who: Who { name: "jbd2/sda1-8".into(), pid: Some(311), ..Who::default() },
                what: "disk sda".into(),
                excess_ms: 0.6,
                share: 0.03,
            },
        ],
        causes: vec![
            CauseRow {
                class: "cpu_contention".into(),
                culprit: Some(who()),
                excess_ms: 16.5,
                culprit_support: Some(0.62),
                confidence: 0.93,
                summary: "The threads of rank 0 were ready to run for 17.0 ms of a slow step, and this process \
                          was on their CPU for 97 % of that time."
                    .into(),
                evidence_for: vec![
                    evidence("runnable for 17.0 ms a step, usually 0.5 ms", "state", Some(10)),
                    evidence(&format!("CPU 3 was occupied by {HOSTILE} for 97 % of it"), "state", Some(11)),
                    evidence("the wait began 4 ms after the process was born", "entity", None),
                ],
                evidence_against: vec![evidence("rank 1, on CPU 2, was not slower", "step", None)],
                verify: Some("taskset -cp 2 4242 && gpuwhy record --for 10s".into()),
            },
            CauseRow {
                class: "block_io".into(),
                culprit: None,
                excess_ms: 0.6,
                culprit_support: None,
                confidence: 0.04,
                summary: "Requests were with the disk for 0.6 ms longer.".into(),
                evidence_for: vec![evidence("p99 of reads rose from 1.1 to 1.9 ms", "io", None)],
                evidence_against: vec![],
                verify: None,
            },
        ],
        tracks: vec![
            track("rank 0: steploop (1201)", "thread state", detail::thread_states(&states, &view)),
            track(
                "rank 0: steploop (1201)",
                "CPU 3 occupied by",
                detail::bands(&occupant, &view, |s| {
                    if s.value == 2 { HOSTILE.into() } else { "kworker/3:1 (77)".into() }
                }),
            ),
            track("host", "run-queue wait", detail::counter(&runq, Measure::Delta, "ns", &view)),
            track("disk sda", "bytes", detail::counter(&disk, Measure::Delta, "By", &view)),
            track("gpu 0", "SM clock", detail::counter(&clock, Measure::Gauge, "MHz", &view)),
        ],
        sources: vec![
            SourceRow {
                kind: "bpf:run_queue".into(),
                state: "ok".into(),
                note: String::new(),
                recorded: 812_345,
                dropped: 0,
                one_in: 1,
            },
            SourceRow {
                kind: "bpf:block_io".into(),
                state: "degraded".into(),
                note: "no tp_btf block_rq_insert: queueing is not told from the device".into(),
                recorded: 9_120,
                dropped: 14,
                one_in: 1,
            },
            SourceRow {
                kind: "nvml".into(),
                state: "unavailable".into(),
                note: "libnvidia-ml.so.1 was not found".into(),
                recorded: 0,
                dropped: 0,
                one_in: 1,
            },
        ],
        gaps: vec![Gap {
            during: Interval { from: 25 * SECOND, to: 25 * SECOND + 300 * MS },
            what: "bpf:block_io: 14 events lost, ring full".into(),
        }],
        not_collected: vec![NotCollected {
            what: "GPU clocks and throttling".into(),
            why: "libnvidia-ml.so.1 was not found".into(),
            fix: "install the NVIDIA driver, or pass --nvml PATH".into(),
        }],
        commands: vec![
            CommandLine { what: "This report again:".into(), line: "gpuwhy diagnose demo.trace --html report.html".into() },
            CommandLine {
                what: "The trace in Perfetto:".into(),
                line: "gpuwhy export demo.trace --perfetto demo.pftrace".into(),
            },
        ],
        judged: vec![format!("No steps are marked: {HOSTILE} has 40 rounds")],
        mostly: vec![format!("{HOSTILE}: 96 % of the time goes to copies")],
        incomplete: vec![format!("rests on {HOSTILE}, which lost 3 of 48 rows")],
        without: Some(format!("without {HOSTILE}: 19.9 ms")),
        ruled_out: vec![format!("the disk of {HOSTILE}")],
        others: one_row("others", Cell::Show(anomaly.from, anomaly.to)),
        phases: one_row("phases", Cell::Number(1.5, 3)),
        threads: vec![one_row("threads", Cell::Number(1.5, 1))],
        rests_on: vec![format!("Rests on calls of CUDA of {HOSTILE}.")],
        not_drawn: vec!["Drawn are 8 of 12 devices.".into()],
    }
}

/// The page without what is not ours to review line by line: style, script and drawn data.
fn text_of(page: &str) -> String {
    let cut = |text: String, from: &str, to: &str| -> String {
        let start = text.find(from).unwrap() + from.len();
        let end = start + text[start..].find(to).unwrap();
        format!("{}…{}", &text[..start], &text[end..])
    };
    let text = cut(page.to_owned(), "<style>", "</style>");
    let text = cut(text, "id=\"data\">", "</script>");
    let text = cut(text, "<script>", "</script>");
    let text = cut(text, "style-src 'sha256-", "'");
    cut(text, "script-src 'sha256-", "'")
}

#[test]
fn the_page_says_what_it_was_given() {
    let page = render(&sample());
    // For a look in a browser: GPUWHY_REPORT_OUT=/some/file.html cargo test -p gpuwhy-report
    if let Some(path) = std::env::var_os("GPUWHY_REPORT_OUT") {
        std::fs::write(path, &page).unwrap();
    }
    insta::assert_snapshot!(text_of(&page));
}

#[test]
fn names_from_a_trace_cannot_leave_their_place() {
    let page = render(&sample());
    assert!(!page.contains("<img"), "a name became an element");
    assert_eq!(page.matches("<script").count(), 2, "ours and the data");
    assert_eq!(page.matches("</script>").count(), 2);
    assert!(!page.contains('\u{202e}'), "a name turned the direction of the text");
    assert!(page.contains("default-src 'none'"));
    for handler in ["onerror=alert(1)>", "javascript:"] {
        let places = page.matches(handler).count();
        assert_eq!(places, 0, "{handler}");
    }
}

#[test]
fn the_page_stays_small() {
    let empty = render(&ReportData::default());
    assert!(empty.len() < 60_000, "{} bytes without data", empty.len());
    let full = render(&sample());
    assert!(full.len() < 1_000_000, "{} bytes with 5 tracks", full.len());
}

#[test]
fn what_a_profile_rests_on_and_its_phases_are_on_the_page() {
    let page = render(&sample());
    let name = "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;&#39;&quot;&amp;\\u{202e}hog";
    for said in [
        format!("⚠ This rests on {name}, which lost 3 of 48 rows."),
        format!("No steps are marked: {name} has 40 rounds"),
        format!("{name}: 96 % of the time goes to copies."),
        format!("without {name}: 19.9 ms"),
        format!("<li>the disk of {name}</li>"),
        format!("Rests on calls of CUDA of {name}."),
        "Drawn are 8 of 12 devices.".to_owned(),
        format!(">12.000–18.000 s</button><td class=\"name\">{name}"),
        format!("<td class=\"n\">1.500<td class=\"name\">{name}"),
    ] {
        assert!(page.contains(&said), "{said}");
    }
    let empty = render(&ReportData::default());
    assert!(!empty.contains("id=\"phases\"") && !empty.contains("id=\"others\""));
    assert!(
        empty.contains("no steps, so nothing to compare") && !empty.contains("id=\"step-plot\"")
    );
}

#[test]
fn nothing_found_is_said_plainly() {
    let mut report = ReportData::default();
    report.verdict.sentence = "Nothing anomalous in 900 steps.".into();
    report.verdict.all_steps = 900;
    let page = render(&report);
    assert!(page.contains("✓ nothing anomalous"));
    assert!(!page.contains("Culprit") && !page.contains("Explanations"));
}
