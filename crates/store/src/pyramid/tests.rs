//! What is drawn is what the rows say, whatever the window, and wherever it is read from.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use gpuwhy_schema::{Discipline, EntityKind, Id, Lane, Lanes, Rows};
use tempfile::TempDir;

use super::*;
use crate::{Bulk, Options, Writer};

/// Track, shape, value and column, with the time held and the rows that begin.
type Picture = BTreeMap<(u32, &'static str, i64, usize), (i64, u64)>;

fn add(picture: &mut Picture, at: (u32, &'static str, i64, usize), held: i64, count: u64) {
    if held > 0 || count > 0 {
        let sums = picture.entry(at).or_default();
        *sums = (sums.0 + held, sums.1 + count);
    }
}

fn drawn(pyramid: &Pyramid<'_>, grid: &Grid) -> Picture {
    let mut out = Picture::new();
    let see = |piece: Piece| {
        for column in piece.columns.clone() {
            let at = (piece.track.0, piece.shape.as_str(), piece.value, column);
            add(&mut out, at, piece.held, piece.count);
        }
    };
    pyramid.draw(grid, see).unwrap();
    out
}

/// All rows of a trace that are drawn: track, shape, value, from, to.
struct All(Vec<(u32, &'static str, i64, Ns, Ns)>);

impl All {
    fn of(trace: &Trace) -> All {
        let ever = Ns::MIN..Ns::MAX;
        let states = trace.read::<State>(ever.clone()).flat_map(Result::unwrap);
        let spans = trace.read::<Span>(ever.clone()).flat_map(Result::unwrap);
        let marks = trace.read::<Mark>(ever).flat_map(Result::unwrap);
        let states = states.map(|s| (s.track.0, "state", s.value, s.ts, s.end().unwrap()));
        let spans = spans.map(|s| (s.track.0, "span", 0, s.ts, s.end().unwrap()));
        let marks = marks.map(|m| (m.track.0, "mark", 0, m.ts, m.ts));
        All(states.chain(spans).chain(marks).collect())
    }

    /// What is to be drawn, one column after the other.
    fn counted(&self, grid: &Grid) -> Picture {
        let mut out = Picture::new();
        let range = grid.range();
        let seen = self.0.iter().filter(|row| row.3 < range.end && row.4 >= range.start);
        for &(track, shape, value, from, to) in seen {
            for column in 0..grid.columns() {
                let (begin, end) = (grid.begin(column), grid.begin(column + 1));
                let held = to.min(end).0 - from.max(begin).0;
                let begins = (begin..end).contains(&from);
                add(&mut out, (track, shape, value, column), held.max(0), u64::from(begins));
            }
        }
        out
    }
}

/// A generator of numbers (xorshift).
struct Random(u64);

/// Ids of rows, each of which is given once.
static IDS: AtomicU64 = AtomicU64::new(1);

fn id() -> Id {
    Id(IDS.fetch_add(1, Ordering::Relaxed))
}

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }

    /// Log-uniform up to 2ⁿ.
    fn length(&mut self, n: u32) -> i64 {
        let bits = self.below(u64::from(n) + 1);
        self.below(1 << bits) as i64
    }
}

/// Rows of three lanes, from `from` on, and when they end. States follow each other, with gaps; spans overlap.
fn rows(random: &mut Random, lanes: [TrackId; 3], count: u64, from: i64, out: &mut Rows) -> i64 {
    let [states, spans, marks] = lanes;
    let mut now = from;
    for _ in 0..count {
        let dur = random.length(22);
        let value = random.below(4) as i64 - 1;
        // Now and then one lasts for long, and one for no time.
        let dur = dur << (6 * u32::from(random.below(40) == 0));
        out.state.push(State { ts: Ns(now), dur: Some(Ns(dur)), track: states, value, arg: None });
        let (ts, length) = (Ns(now - random.length(12)), Ns(random.length(24)));
        let name = "s".into();
        out.span.push(Span { id: id(), ts, dur: Some(length), track: spans, parent: None, name });
        for _ in 0..random.below(3) {
            let ts = Ns(now + random.length(20));
            out.mark.push(Mark { id: id(), ts, track: marks, name: "m".into(), value: None });
        }
        now += dur + if random.below(3) == 0 { random.length(20) } else { 0 };
    }
    now
}

fn lanes(out: &mut Rows) -> [TrackId; 3] {
    let mut lanes = Lanes::default();
    let source = lanes.source("test", "test", "1", "");
    let host = lanes.entity(EntityKind::Host, "h", |_| {});
    let of = [
        Lane::states("occupant", Discipline::Sparse),
        Lane::spans("work", Discipline::Overlap),
        Lane::marks("marks"),
    ];
    let tracks = of.map(|lane| lanes.track(host, None, lane, source));
    lanes.drain(out);
    tracks
}

/// An imported trace of so many segments.
fn imported(path: &Path, seed: u64, segments: u64, count: u64) {
    let mut random = Random(seed);
    let mut bulk = Bulk::create(path, &Options::default(), 0).unwrap();
    let mut all = Rows::default();
    let tracks = lanes(&mut all);
    let mut now = -5_000_000;
    for _ in 0..segments {
        now = rows(&mut random, tracks, count, now, &mut all);
        bulk.append(&mut all).unwrap();
    }
    bulk.finish().unwrap();
}

/// A pyramid of fine levels, however few the rows are.
fn fine(trace: &Trace) -> Pyramid<'_> {
    let mut builder = Builder::in_memory().unwrap();
    builder.finest = Some(10);
    Pyramid::made(trace, builder).unwrap()
}

fn random_window(random: &mut Random, trace: &Trace) -> Range<Ns> {
    let known = trace.summary();
    let (start, end) = (known.start.unwrap_or(0), known.end.unwrap_or(0));
    let width = random.length(64 - (end - start).max(1).leading_zeros()).max(1);
    let from = start - width + random.below((end - start + 2 * width) as u64) as i64;
    Ns(from)..Ns(from + width)
}

#[test]
fn every_window_of_any_width_shows_what_the_rows_say() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("t.trace");
    imported(&path, 7, 5, 6000);
    let trace = Trace::open(&path).unwrap();
    assert!(trace.manifest().next_segment >= 3, "several segments");
    let (fine, rows_only) = (fine(&trace), Pyramid::open(&trace).unwrap());
    assert!(fine.levels.len() > 3 && fine.finest() == Some(Ns(1024)), "{:?}", fine.levels);
    assert_eq!(rows_only.finest(), None, "so few rows need no levels");
    assert!(fine.chunks_of(Holds::Long).count() > 0, "some rows are kept as rows");
    let (mut random, all) = (Random(3), All::of(&trace));
    let mut of_level = BTreeMap::new();
    for at in 0..200 {
        let columns = [1, 7, 40][at % 3];
        let grid = Grid::new(random_window(&mut random, &trace), columns);
        let expected = all.counted(&grid);
        assert_eq!(drawn(&fine, &grid), expected, "cells, {grid:?}");
        assert_eq!(drawn(&rows_only, &grid), expected, "rows, {grid:?}");
        let mut of_parts = Picture::new();
        for (first, part) in grid.parts(3) {
            let moved = |((track, shape, value, column), sums)| {
                ((track, shape, value, first + column), sums)
            };
            of_parts.extend(drawn(&fine, &part).into_iter().map(moved));
        }
        assert_eq!(of_parts, expected, "parts, {grid:?}");
        *of_level.entry(fine.levels.iter().rfind(|level| **level <= grid.level)).or_insert(0) += 1;
    }
    // Rows, and several levels.
    assert!(of_level.len() > 4 && of_level.contains_key(&None), "{of_level:?}");
}

#[test]
fn columns_are_buckets_that_cover_the_window() {
    for (from, to, columns, expected) in [
        (0, 1000, 10, (64, 16)),
        (5, 5, 10, (1, 1)),
        (-3, 4, 100, (1, 7)),
        (1023, 1025, 1, (1, 2)),
        (i64::MIN, i64::MAX, 2000, (1 << 53, 2048)),
    ] {
        let grid = Grid::new(Ns(from)..Ns(to), columns);
        assert_eq!((grid.column().0, grid.columns()), expected, "{from}..{to}");
        assert!(grid.begin(0) <= Ns(from) && grid.begin(grid.columns()) >= Ns(to));
    }
}

#[test]
fn an_empty_trace_has_empty_pictures_and_a_single_row_is_seen_in_its_column() {
    let folder = TempDir::new().unwrap();
    let empty = folder.path().join("empty.trace");
    Bulk::create(&empty, &Options::default(), 0).unwrap().finish().unwrap();
    let trace = Trace::open(&empty).unwrap();
    let grid = Grid::new(Ns(0)..Ns(1 << 30), 100);
    assert!(drawn(&Pyramid::open(&trace).unwrap(), &grid).is_empty());
    assert!(drawn(&fine(&trace), &grid).is_empty());
    let one = folder.path().join("one.trace");
    let mut bulk = Bulk::create(&one, &Options::default(), 0).unwrap();
    let mut rows = Rows::default();
    let [states, ..] = lanes(&mut rows);
    rows.state.push(State { ts: Ns(3), dur: Some(Ns(0)), track: states, value: 5, arg: None });
    bulk.append(&mut rows).unwrap();
    bulk.finish().unwrap();
    let trace = Trace::open(&one).unwrap();
    let expected = Picture::from([((states.0, "state", 5, 0), (0, 1))]);
    for pyramid in [Pyramid::open(&trace).unwrap(), fine(&trace)] {
        assert_eq!(drawn(&pyramid, &grid), expected);
        let behind = Grid::new(Ns(4)..Ns(5), 100);
        assert!(drawn(&pyramid, &behind).is_empty());
    }
}

/// A recorder writes what lasts as open, and again when it has ended.
#[test]
fn rows_that_were_written_open_are_drawn_once_and_those_that_last_to_the_end_of_the_window() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("t.trace");
    let mut writer = Writer::create(&path, Options::default()).unwrap();
    let mut all = Rows::default();
    let [states, spans, _] = lanes(&mut all);
    let state = |ts, dur: Option<i64>, value| State {
        ts: Ns(ts),
        dur: dur.map(Ns),
        track: states,
        value,
        arg: None,
    };
    let span = |id, ts, dur: Option<i64>| Span {
        id: Id(id),
        ts: Ns(ts),
        dur: dur.map(Ns),
        track: spans,
        parent: None,
        name: "s".into(),
    };
    all.state = vec![state(0, Some(5000), 1), state(5000, None, 2)];
    all.span = vec![span(1, 10, None), span(2, 10, None), span(3, 20, Some(7))];
    writer.append(&mut all).unwrap();
    writer.seal().unwrap();
    all.state = vec![state(5000, Some(100_000), 2), state(105_000, None, 3)];
    all.span = vec![span(1, 10, Some(200_000))];
    writer.append(&mut all).unwrap();
    writer.seal().unwrap();
    let check = |what: &str| {
        let trace = Trace::open(&path).unwrap();
        let (fine, usual) = (fine(&trace), Pyramid::open(&trace).unwrap());
        let (mut random, all) = (Random(11), All::of(&trace));
        for at in 0..60 {
            let grid = Grid::new(random_window(&mut random, &trace), [1, 30][at % 2]);
            let expected = all.counted(&grid);
            assert_eq!(drawn(&fine, &grid), expected, "cells, {what}, {grid:?}");
            assert_eq!(drawn(&usual, &grid), expected, "rows, {what}, {grid:?}");
        }
    };
    check("some have not ended");
    // Their ends are in the journal.
    all.state = vec![state(105_000, Some(1000), 3), state(106_000, None, 4)];
    all.span = vec![span(2, 10, Some(300_000))];
    writer.append(&mut all).unwrap();
    writer.flush_journal().unwrap();
    check("some have ended in the journal");
    writer.finish().unwrap();
    check("the recorder has finished");
}

/// A trace that is large enough to have levels in its file.
fn large(path: &Path) {
    imported(path, 5, 12, 20_000);
}

#[test]
fn the_file_of_an_import_is_used_and_what_is_missing_stale_or_cut_off_is_made_anew() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("t.trace");
    large(&path);
    let file = path.join(PATH);
    let made_by_import = fs::read(&file).unwrap();
    let trace = Trace::open(&path).unwrap();
    let mut random = Random(9);
    let mut grids = Vec::new();
    while grids.len() < 12 {
        grids.push(Grid::new(random_window(&mut random, &trace), 9));
    }
    let all = All::of(&trace);
    let expected: Vec<Picture> = grids.iter().map(|grid| all.counted(grid)).collect();
    let check = |what: &str| {
        let pyramid = Pyramid::open(&trace).unwrap();
        assert!(matches!(pyramid.source, Source::File(_)) && pyramid.finest().is_some(), "{what}");
        for (grid, expected) in grids.iter().zip(&expected) {
            assert_eq!(drawn(&pyramid, grid), *expected, "{what}, {grid:?}");
        }
    };
    check("as imported");
    assert!(fs::read(&file).unwrap() == made_by_import, "nothing is written where all is well");
    fs::remove_file(&file).unwrap();
    check("missing");
    assert!(fs::read(&file).unwrap() == made_by_import, "the same rows make the same file");
    for length in [0, 7, 20, 3000, made_by_import.len() - 1] {
        fs::write(&file, &made_by_import[..length]).unwrap();
        check(&format!("cut off at {length}"));
    }
    // The pyramid of another trace.
    let other = folder.path().join("other.trace");
    imported(&other, 6, 12, 20_000);
    fs::copy(other.join(PATH), &file).unwrap();
    check("of another trace");
    // A later version, as its last byte says.
    let mut later = made_by_import.clone();
    *later.last_mut().unwrap() += 1;
    fs::write(&file, later).unwrap();
    check("of another version");
}

#[test]
fn a_chunk_that_is_garbled_is_told_and_not_drawn() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("t.trace");
    large(&path);
    let file = path.join(PATH);
    let trace = Trace::open(&path).unwrap();
    let whole = Grid::new(random_window(&mut Random(1), &trace), 1);
    let whole = Grid { level: 40, first: -1, columns: 2.max(whole.columns) };
    let chunk = {
        let pyramid = Pyramid::open(&trace).unwrap();
        let level = *pyramid.levels.iter().rfind(|level| **level <= 40).unwrap();
        *pyramid.chunks_of(Holds::Cells(level)).next().unwrap()
    };
    let mut bytes = fs::read(&file).unwrap();
    bytes[chunk.at as usize + 1] ^= 1;
    fs::write(&file, bytes).unwrap();
    let said = Pyramid::open(&trace).unwrap().draw(&whole, |_| {}).unwrap_err().to_string();
    assert!(said.contains(PATH) && said.contains(&format!("byte {}", chunk.at)), "{said}");
}

#[test]
fn where_we_may_not_write_it_is_made_in_memory() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("t.trace");
    large(&path);
    let trace = Trace::open(&path).unwrap();
    fs::remove_file(path.join(PATH)).unwrap();
    // Another process writes.
    let lock = trace.dir().lock();
    assert!(matches!(lock, Locking::Taken(_)));
    let pyramid = Pyramid::open(&trace).unwrap();
    assert!(matches!(pyramid.source, Source::Memory(_)) && pyramid.finest().is_some());
    assert!(!path.join(PATH).exists());
    let grid = Grid::new(random_window(&mut Random(2), &trace), 30);
    assert_eq!(drawn(&pyramid, &grid), All::of(&trace).counted(&grid));
}
