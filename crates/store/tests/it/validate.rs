//! What a trace promises, and what is said when it does not keep it.

use std::path::Path;

use gpuwhy_schema::*;
use gpuwhy_store::{Options, Trace, Writer, validate};

use crate::sim::{Sim, create, scratch};

/// The report on a trace of two seconds after something was done to its rows.
fn verdict(spoil: impl FnOnce(&mut Rows)) -> String {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("t");
    let mut sim = Sim::new(1, "a");
    let mut rows = sim.second();
    rows.append(&mut sim.second());
    spoil(&mut rows);
    let mut writer = create(&path);
    writer.append(&mut rows).unwrap();
    writer.finish().unwrap();
    report(&path)
}

fn report(path: &Path) -> String {
    let trace = Trace::open(path).unwrap();
    validate(&trace).to_string().replace(&format!("{}", path.display()), "t")
}

#[test]
fn a_sound_trace_is_valid_however_it_was_cut_into_segments() {
    assert_eq!(verdict(|_| {}), "t: valid, 231 rows\n");
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("t");
    let mut writer = create(&path);
    let mut sim = Sim::new(1, "a");
    for second in 0..10 {
        writer.append(&mut sim.second()).unwrap();
        writer.flush_journal().unwrap();
        // While it is written, too.
        let live = validate(&Trace::open(&path).unwrap());
        assert!(live.is_valid(), "{live}");
        if second % 2 == 0 {
            writer.seal().unwrap();
        }
    }
    writer.finish().unwrap();
    assert!(report(&path).starts_with("t: valid"), "{}", report(&path));
}

#[test]
fn what_was_dropped_for_its_age_may_be_referred_to() {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("t");
    let options = Options { keep_recent: Some(Ns::secs(2)), ..scratch() };
    let mut writer = Writer::create(&path, options).unwrap();
    let mut sim = Sim::new(1, "a");
    let mut first = None;
    for _ in 0..10 {
        let mut rows = sim.second();
        let first = *first.get_or_insert(rows.mark[0].id);
        let last = rows.mark.last().unwrap();
        rows.link.push(Link { ts: last.ts, from: first, to: last.id, kind: LinkKind::Same });
        writer.append(&mut rows).unwrap();
        writer.seal().unwrap();
        writer.drop_before(Ns::MIN).unwrap();
    }
    writer.finish().unwrap();
    let report = report(&path);
    assert!(report.starts_with("t: valid"), "{report}");
    assert!(report.contains("references to rows that were dropped"), "{report}");
}

#[test]
fn each_broken_promise_is_named_with_its_first_place() {
    let mut said = String::new();
    let mut case = |title: &str, spoil: &dyn Fn(&mut Rows)| {
        said += &format!("# {title}\n{}", verdict(spoil));
    };
    let no = Id::new(9, 9);
    case("a track that nobody declared", &|r| r.counter[1].track = TrackId(99));
    case("a thread that nobody declared", &|r| r.step[3].thread = EntityId(99));
    case("a source that nobody declared", &|r| r.track[0].source = SourceId(7));
    case("an entity within itself", &|r| r.entity[0].parent = Some(EntityId(2)));
    case("a parent that is not there", &|r| r.span[0].parent = Some(no));
    case("an id given out twice", &|r| r.span[5].id = r.span[2].id);
    case("a mark with the id of a span", &|r| {
        let id = r.span[0].id;
        r.wakeup[0].id = id;
        r.mark[0].id = id;
    });
    case("a detail without its span", &|r| r.step[0].id = no);
    case("two details of one span", &|r| r.step.push(r.step[0].clone()));
    case("a detail at another time", &|r| r.step[0].ts += Ns(5));
    case("an attribute of nothing", &|r| r.attr[0].id = no);
    case("a span row on a track of states", &|r| r.span[0].track = r.state[0].track);
    case("a counter without a unit", &|r| {
        let t = r.track.iter_mut().find(|t| t.shape == Shape::Counter).unwrap();
        (t.unit, t.measure) = (None, None);
    });
    case("spans that cannot be tiled", &|r| r.track[0].discipline = Some(Discipline::Tiled));
    case("spans of no discipline", &|r| r.track[0].discipline = None);
    case("spans that cross", &|r| r.span[1].dur = Some(Ns::millis(150)));
    case("spans that were to be serial", &|r| {
        r.track[0].discipline = Some(Discipline::Serial);
        r.span[1].dur = Some(Ns::millis(150));
    });
    case("states that overlap", &|r| r.state[0].dur = Some(Ns::millis(70)));
    case("a gap in states that tile", &|r| {
        let t = r.track.iter_mut().find(|t| t.shape == Shape::State).unwrap();
        t.discipline = Some(Discipline::Tiled);
        r.state[0].dur = Some(Ns::millis(50));
    });
    case("a state after one without an end", &|r| {
        let asleep = r.state.iter_mut().find(|s| s.ts == Ns::millis(60)).unwrap();
        asleep.dur = None;
    });
    case("a thread in a state that there is not", &|r| r.state[0].value = 77);
    case("a duration below zero", &|r| r.span[0].dur = Some(Ns(-1)));
    case("a measurement that is none", &|r| r.counter[0].value = f64::NAN);
    case("a wakeup of somebody else", &|r| r.wakeup[0].woken = EntityId(4));
    case("a wakeup on another track", &|r| r.mark[0].track = TrackId(99));
    case("a link to nothing", &|r| {
        r.link.push(Link { ts: r.span[1].ts, from: r.span[1].id, to: no, kind: LinkKind::Same })
    });
    case("an effect before its cause", &|r| {
        let (early, late) = (r.mark[0].clone(), r.mark[1].clone());
        r.link.push(Link { ts: late.ts, from: late.id, to: early.id, kind: LinkKind::Wakes });
    });
    case("an effect before its cause, by less than the clocks are off", &|r| {
        let (early, late) = (r.mark[0].clone(), r.mark[1].clone());
        r.link.push(Link { ts: late.ts, from: late.id, to: early.id, kind: LinkKind::Wakes });
        r.clock.push(Clock {
            host: r.entity[0].id,
            clock: "ptp".into(),
            ts_source: 0,
            ts_trace: Ns(0),
            error_ns: Ns::secs(1),
        });
    });
    case("a link at the earlier of its ends", &|r| {
        let (early, late) = (r.mark[0].clone(), r.mark[1].clone());
        r.link.push(Link { ts: early.ts, from: early.id, to: late.id, kind: LinkKind::Wakes });
    });
    case("parts that leave a gap", &|r| r.part[1].dur = Ns::millis(9));
    case("parts that overlap", &|r| r.part[1].dur = Ns::millis(11));
    case("parts that end early", &|r| r.part[2].dur = Ns::millis(29));
    case("a part of nothing", &|r| r.part[4].step = no);
    case("a source that failed without a word", &|r| {
        r.source.iter_mut().for_each(|s| s.state = SourceState::Unavailable)
    });
    case("a source that looked at nothing", &|r| r.source.iter_mut().for_each(|s| s.one_in = 0));
    case("a sample of a stack that is not there", &|r| {
        r.track.push(Track { id: TrackId(50), shape: Shape::Sample, ..r.track[4].clone() });
        r.sample.push(Sample {
            ts: Ns(0),
            track: TrackId(50),
            stack: Some(3),
            state: None,
            weight: 1.0,
        });
        r.stack.push(Stack { id: 1, parent: Some(2), frame: 4 });
    });
    case("a cause of no finding, surer than sure", &|r| {
        r.cause.push(Cause {
            finding: no,
            rank: 1,
            class: Class::Network,
            culprit: Some(EntityId(99)),
            excess_ns: Ns(1),
            confidence: 1.5,
            evidence: "{}".into(),
        })
    });
    insta::assert_snapshot!(said);
}

#[test]
fn a_file_that_is_not_what_it_should_be_is_named() {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("t");
    let mut writer = create(&path);
    writer.append(&mut Sim::new(1, "a").second()).unwrap();
    writer.finish().unwrap();
    let manifest = path.join("trace.toml");
    let text = std::fs::read_to_string(&manifest).unwrap();
    let text = text.replacen("min_start = 0", "min_start = -5", 1);
    std::fs::write(&manifest, text).unwrap();
    std::fs::write(path.join("part/00000.parquet"), "PAR1").unwrap();
    insta::assert_snapshot!(report(&path));
}
