//! Level of detail: what a screen can show of a track, made here so that the page stays small.
//!
//! A column takes the state that held longest in it, counting what the columns before left out, so
//! that shares of time stay what they were. Of a measurement it takes the mean and the greatest
//! value, so a peak of one tick is seen in any width.

use gpuwhy_schema::{Counter, Measure, Ns, State, ThreadState};

use crate::data::{Band, Interval, Lane, Level, Piece, Shares, StepPoint};

/// Columns of a level: more than the pixels of a wide window.
pub const COLUMNS: usize = 2_000;
/// Different values of one track that get a colour of their own; the others are `other`.
const VALUES: usize = 255;

/// Where page time 0 is on the trace clock, and which times to show in which order of detail.
#[derive(Clone, Debug)]
pub struct View {
    /// Trace time of page time 0.
    pub start: Ns,
    /// What to show, in page time; the whole first, then what deserves a closer look.
    pub levels: Vec<Interval>,
}

impl View {
    /// The time from `start` to `end`, and `close` (trace time) within it in more detail.
    pub fn new(start: Ns, end: Ns, close: &[(Ns, Ns)]) -> View {
        let page = |t: Ns| t.saturating_sub(start).0;
        let whole = Interval { from: 0, to: page(end).max(0) };
        let within = |&(from, to): &(Ns, Ns)| Interval {
            from: page(from).clamp(0, whole.to),
            to: page(to).clamp(0, whole.to),
        };
        let close = close.iter().map(within).filter(|level| !level.is_empty());
        View { start, levels: std::iter::once(whole).chain(close).collect() }
    }

    fn page(&self, t: Ns) -> i64 {
        t.saturating_sub(self.start).0
    }
}

/// The track of a thread's states, in order of time.
pub fn thread_states(states: &[State], view: &View) -> Lane {
    bands(states, view, |state| state_name(state.value))
}

/// What a state of a thread is called.
pub fn state_name(value: i64) -> String {
    ThreadState::from_code(value).map_or("unknown", ThreadState::as_str).to_owned()
}

/// The states of any track, in order of time; `name` gives a state's name.
pub fn bands(states: &[State], view: &View, name: impl Fn(&State) -> String) -> Lane {
    let mut values = Values::default();
    let mut all: Vec<Band> = Vec::with_capacity(states.len());
    for (i, state) in states.iter().enumerate() {
        let from = view.page(state.ts);
        let next = states.get(i + 1).map_or(i64::MAX, |next| view.page(next.ts));
        let to = state.dur.map_or(i64::MAX, |dur| from.saturating_add(dur.0.max(0)));
        let band = Band(from, to.min(next.max(from)), values.index(name(state)));
        match all.last_mut() {
            Some(last) if last.1 == band.0 && last.2 == band.2 => last.1 = band.1,
            _ => all.push(band),
        }
    }
    let levels = view.levels.iter().map(|&during| band_level(&all, during, COLUMNS)).collect();
    Lane::Bands { values: values.names, levels }
}

fn band_level(all: &[Band], during: Interval, most: usize) -> Level<Band> {
    let first = all.partition_point(|b| b.1 <= during.from);
    let last = all.partition_point(|b| b.0 < during.to).max(first);
    let inside = &all[first..last];
    let clip = |b: &Band| Band(b.0.max(during.from), b.1.min(during.to), b.2);
    if inside.len() <= most {
        return Level { during, items: inside.iter().map(clip).collect() };
    }
    let mut at = 0;
    let held = columns(during, most).map(|column| {
        let mut held: Vec<(u32, i64)> = Vec::new();
        while let Some(band) = inside.get(at) {
            if band.0 >= column.to {
                break;
            }
            let part = (band.1.min(column.to) - band.0.max(column.from)).max(0);
            match held.iter_mut().find(|(value, _)| *value == band.2) {
                Some((_, sum)) => *sum += part,
                None => held.push((band.2, part)),
            }
            if band.1 > column.to {
                break;
            }
            at += 1;
        }
        (column, held)
    });
    Level { during, items: thinned(held) }
}

/// One value for each column, by how long each value held in it.
fn thinned(columns: impl Iterator<Item = (Interval, Vec<(u32, i64)>)>) -> Vec<Band> {
    let mut items: Vec<Band> = Vec::with_capacity(COLUMNS);
    // Time that a value (or nobody looking) held but was not shown for, carried to the next
    // column in which it occurs. Without it a state that never has the most of a column, like the
    // wait for a disk in each of many short steps, would not show at all.
    let mut owed: std::collections::HashMap<Option<u32>, i64> = std::collections::HashMap::new();
    for (column, held) in columns {
        let seen: i64 = held.iter().map(|(_, time)| *time).sum();
        let mut held: Vec<(Option<u32>, i64)> =
            held.into_iter().map(|(value, time)| (Some(value), time)).collect();
        held.push((None, (column.len() - seen).max(0)));
        held.retain(|(_, time)| *time > 0);
        for (value, time) in &mut held {
            *time += owed.get(value).copied().unwrap_or(0);
        }
        let Some(&(shown, _)) = held.iter().max_by_key(|(_, time)| *time) else { continue };
        for &(value, time) in &held {
            let paid = if value == shown { column.len() } else { 0 };
            // Old debts lapse: a band is shown near where it was.
            owed.insert(value, (time - paid).clamp(-column.len(), 8 * column.len()));
        }
        let Some(value) = shown else { continue };
        match items.last_mut() {
            Some(last) if last.1 == column.from && last.2 == value => last.1 = column.to,
            _ => items.push(Band(column.from, column.to, value)),
        }
    }
    items
}

/// How long each value of a track of states held within a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The column, in page time. Columns follow each other.
    pub column: Interval,
    /// The values, each with how long it held, ns.
    pub values: Vec<(i64, i64)>,
}

/// The states of any track by what they sum up to in columns, where they are too many to be listed; one list of columns
/// for each degree of detail, with what it covers. `name` gives a state's name.
pub fn held_bands(levels: Vec<(Interval, Vec<Held>)>, name: impl Fn(i64) -> String) -> Lane {
    let mut values = Values::default();
    let levels = levels.into_iter().map(|(during, columns)| {
        let held = columns.into_iter().map(|Held { column, values: held }| {
            let of = |(value, time): (i64, i64)| (values.index(name(value)), time);
            (column, held.into_iter().map(of).collect())
        });
        let clip = |b: Band| Band(b.0.max(during.from), b.1.min(during.to), b.2);
        let items = thinned(held).into_iter().map(clip).filter(|b| b.0 < b.1).collect();
        Level { during, items }
    });
    let levels = levels.collect();
    Lane::Bands { values: values.names, levels }
}

/// The different values of a track, of which the first ones get a place of their own.
#[derive(Debug, Default)]
struct Values {
    names: Vec<String>,
    known: std::collections::HashMap<String, u32>,
}

impl Values {
    fn index(&mut self, value: String) -> u32 {
        if let Some(&at) = self.known.get(&value) {
            return at;
        }
        let name = if self.names.len() < VALUES { &*value } else { "other" };
        let at = self.names.iter().position(|known| known == name).unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        });
        if self.known.len() <= 16 * VALUES {
            self.known.insert(value, at as u32);
        }
        at as u32
    }
}

/// The values of one counter track, in order of time. Totals and deltas are shown per second:
/// nanoseconds as a share (1 is one CPU, one disk, one link), everything else by its unit.
pub fn counter(rows: &[Counter], measure: Measure, unit: &str, view: &View) -> Lane {
    let (scale, unit) = match (measure, unit) {
        (Measure::Gauge, unit) => (1.0, unit.to_owned()),
        (_, "ns") => (1.0, "s/s".to_owned()),
        (_, "us") => (1e3, "s/s".to_owned()),
        (_, "By") => (1e9 / 1e6, "MB/s".to_owned()),
        (_, "1") => (1e9, "/s".to_owned()),
        (_, unit) => (1e9, format!("{unit}/s")),
    };
    let mut all: Vec<Piece> = Vec::with_capacity(rows.len());
    // Sources leave out the zeros of a pause, so a delta after a zero counts for one tick only.
    let tick = rows.windows(2).map(|w| w[1].ts.0 - w[0].ts.0).filter(|&gap| gap > 0).min();
    for (i, row) in rows.iter().enumerate() {
        let at = view.page(row.ts);
        let piece = match measure {
            Measure::Gauge => {
                let next = rows.get(i + 1).map(|next| view.page(next.ts));
                Piece(
                    at,
                    next.unwrap_or(at.saturating_add(tick.unwrap_or(1))),
                    row.value,
                    row.value,
                )
            }
            Measure::Total | Measure::Delta => {
                let Some(last) = i.checked_sub(1).map(|i| &rows[i]) else { continue };
                let before = view.page(last.ts);
                let (from, value) = match measure {
                    Measure::Delta if last.value == 0.0 => {
                        (before.max(at - tick.unwrap_or(0)), row.value)
                    }
                    Measure::Delta => (before, row.value),
                    // A total that fell was set back: what it counts began at zero.
                    _ if row.value < last.value => (before, row.value),
                    _ => (before, row.value - last.value),
                };
                if from > before {
                    all.push(Piece(before, from, 0.0, 0.0));
                }
                if at <= from {
                    continue;
                }
                let rate = value * scale / (at - from) as f64;
                Piece(from, at, rate, rate)
            }
        };
        if piece.1 > piece.0 && piece.2.is_finite() {
            all.push(piece);
        }
    }
    let levels = view.levels.iter().map(|&during| line_level(&all, during, COLUMNS)).collect();
    Lane::Line { unit, levels }
}

fn line_level(all: &[Piece], during: Interval, most: usize) -> Level<Piece> {
    let first = all.partition_point(|p| p.1 <= during.from);
    let last = all.partition_point(|p| p.0 < during.to).max(first);
    let inside = &all[first..last];
    let mut items: Vec<Piece> = Vec::new();
    let mut push = |piece: Piece| match items.last_mut() {
        Some(last) if last.1 == piece.0 && last.2 == piece.2 && last.3 == piece.3 => {
            last.1 = piece.1;
        }
        _ => items.push(piece),
    };
    if inside.len() <= most {
        for p in inside {
            push(Piece(p.0.max(during.from), p.1.min(during.to), digits(p.2), digits(p.3)));
        }
        return Level { during, items };
    }
    let mut at = 0;
    for column in columns(during, most) {
        let (mut sum, mut seen, mut greatest) = (0.0, 0, f64::NEG_INFINITY);
        while let Some(piece) = inside.get(at) {
            if piece.0 >= column.to {
                break;
            }
            let part = (piece.1.min(column.to) - piece.0.max(column.from)).max(0);
            sum += piece.2 * part as f64;
            seen += part;
            greatest = greatest.max(piece.3);
            if piece.1 > column.to {
                break;
            }
            at += 1;
        }
        if seen > 0 {
            let mean = sum / seen as f64;
            push(Piece(column.from, column.to, digits(mean), digits(greatest)));
        }
    }
    Level { during, items }
}

/// Four digits are more than a pixel can show, and a quarter of the bytes.
fn digits(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let power = 10_f64.powi(3 - value.abs().log10().floor() as i32);
    if power.is_finite() && power > 0.0 { (value * power).round() / power } else { value }
}

fn columns(during: Interval, count: usize) -> impl Iterator<Item = Interval> {
    let edge = move |i: usize| {
        let part = i128::from(during.len()) * i as i128 / count.max(1) as i128;
        during.from.saturating_add(part as i64)
    };
    (0..count).map(move |i| Interval { from: edge(i), to: edge(i + 1) }).filter(|c| !c.is_empty())
}

/// Into how many parts a tile of a pyramid is cut.
const PARTS: i64 = 8;
/// Columns of a level, of which a level of shares has one, since a column has a share for each value.
const SHARES: i64 = 4;

/// How much of tracks is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Detail {
    /// How often tiles are cut into parts, at most.
    pub depth: usize,
    /// Columns of a tile: [`COLUMNS`], or fewer where a page would be too large.
    pub columns: usize,
}

/// A track in ever more detail: the whole, its eighths, their eighths, as long as a level leaves something out.
#[derive(Clone, Debug, PartialEq)]
pub struct Pyramid<T> {
    /// The coarsest first.
    pub levels: Vec<Level<T>>,
    /// The length of a column of the finest level that still leaves something out, ns; `None` if none does.
    pub finest: Option<i64>,
}

/// Cuts the time from 0 to `length` into tiles. `level` makes a tile of a stretch, and says how
/// long its columns are if it leaves something out.
fn pyramid<T>(
    length: i64,
    depth: usize,
    level: impl Fn(Interval) -> (Level<T>, Option<i64>),
) -> Pyramid<T> {
    let mut out = Pyramid { levels: Vec::new(), finest: None };
    let mut tiles = vec![Interval { from: 0, to: length }];
    for step in 0..=depth {
        let mut thinned = Vec::new();
        for during in std::mem::take(&mut tiles) {
            let (level, column) = level(during);
            if !level.items.is_empty() {
                out.levels.push(level);
            }
            if let Some(column) = column {
                thinned.push(during);
                if step == depth {
                    out.finest = Some(out.finest.unwrap_or(0).max(column));
                }
            }
        }
        for during in thinned {
            let edge = |at: i64| {
                during.from + (i128::from(during.len()) * i128::from(at) / i128::from(PARTS)) as i64
            };
            let parts = (0..PARTS).map(|at| Interval { from: edge(at), to: edge(at + 1) });
            tiles.extend(parts.filter(|part| !part.is_empty()));
        }
    }
    out
}

/// How many of these, which are in the order of time and do not overlap, are within a stretch.
fn inside<T>(all: &[T], during: Interval, span: impl Fn(&T) -> (i64, i64)) -> &[T] {
    let first = all.partition_point(|one| span(one).1 <= during.from);
    let last = all.partition_point(|one| span(one).0 < during.to).max(first);
    &all[first..last]
}

fn column(during: Interval, count: usize, most: usize) -> Option<i64> {
    (count > most).then(|| (during.len() / most.max(1) as i64).max(1))
}

/// Bands in the order of time, without overlap, in ever more detail.
pub fn band_pyramid(all: &[Band], length: i64, Detail { depth, columns }: Detail) -> Pyramid<Band> {
    pyramid(length, depth, |during| {
        let count = inside(all, during, |one| (one.0, one.1)).len();
        (band_level(all, during, columns), column(during, count, columns))
    })
}

/// A measurement in the order of time, without overlap, in ever more detail.
pub fn line_pyramid(
    all: &[Piece],
    length: i64,
    Detail { depth, columns }: Detail,
) -> Pyramid<Piece> {
    pyramid(length, depth, |during| {
        let count = inside(all, during, |one| (one.0, one.1)).len();
        (line_level(all, during, columns), column(during, count, columns))
    })
}

/// What share of each column each of `values` values had, in ever more detail as long as columns have several values.
pub fn share_pyramid(
    all: &[Band],
    values: usize,
    length: i64,
    Detail { depth, columns }: Detail,
) -> Pyramid<Shares> {
    let columns = (columns as i64 / SHARES).max(1);
    pyramid(length, depth, |during| {
        let bands = inside(all, during, |one| (one.0, one.1));
        let level = share_level(bands, values, during, columns);
        let is_thinned = bands.len() as i64 > columns / 4;
        (level, is_thinned.then(|| (during.len() / columns).max(1)))
    })
}

fn share_level(bands: &[Band], values: usize, during: Interval, most: i64) -> Level<Shares> {
    let columns = most.min(during.len());
    let edge = |at: i64| {
        during.from + (i128::from(during.len()) * i128::from(at) / i128::from(columns)) as i64
    };
    let mut items: Vec<Shares> = Vec::new();
    let mut at = 0;
    for column in 0..columns {
        let (from, to) = (edge(column), edge(column + 1));
        let mut held = vec![0i64; values];
        while let Some(band) = bands.get(at).filter(|band| band.0 < to) {
            if let Some(sum) = held.get_mut(band.2 as usize) {
                *sum += (band.1.min(to) - band.0.max(from)).max(0);
            }
            if band.1 > to {
                break;
            }
            at += 1;
        }
        let share = |held: &i64| digits(100.0 * *held as f64 / (to - from).max(1) as f64);
        let shares: Vec<f64> = held.iter().map(share).collect();
        match items.last_mut() {
            Some(last) if last.1 == from && last.2 == shares => last.1 = to,
            _ => items.push(Shares(from, to, shares)),
        }
    }
    Level { during, items }
}

/// At most about two steps a column: the slowest and the quickest, and slow ones first.
pub fn thin_steps(points: &[StepPoint], during: Interval) -> Vec<StepPoint> {
    if points.len() <= 2 * COLUMNS {
        return points.to_vec();
    }
    let mut thin = Vec::with_capacity(2 * COLUMNS);
    for column in columns(during, COLUMNS) {
        let first = points.partition_point(|p| p.at < column.from);
        let last = points.partition_point(|p| p.at < column.to).max(first);
        let inside = &points[first..last];
        let by = |a: &&StepPoint, b: &&StepPoint| (a.slow, a.ms).partial_cmp(&(b.slow, b.ms));
        let or = std::cmp::Ordering::Equal;
        let slowest = inside.iter().max_by(|a, b| by(a, b).unwrap_or(or));
        let quickest = inside.iter().min_by(|a, b| by(a, b).unwrap_or(or));
        let mut kept: Vec<StepPoint> = slowest.into_iter().chain(quickest).copied().collect();
        kept.sort_by_key(|p| p.at);
        kept.dedup();
        thin.append(&mut kept);
    }
    thin
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwhy_schema::TrackId;

    fn view(to: i64) -> View {
        View::new(Ns(1_000), Ns(1_000 + to), &[])
    }

    fn state(from: i64, dur: Option<i64>, value: i64) -> State {
        State { ts: Ns(1_000 + from), dur: dur.map(Ns), track: TrackId(1), value, arg: None }
    }

    fn row(at: i64, value: f64) -> Counter {
        Counter { ts: Ns(1_000 + at), track: TrackId(1), value }
    }

    fn pieces(lane: Lane) -> Vec<Piece> {
        match lane {
            Lane::Line { mut levels, .. } => levels.remove(0).items,
            _ => panic!("a line"),
        }
    }

    fn band_items(lane: Lane) -> Vec<Band> {
        match lane {
            Lane::Bands { mut levels, .. } => levels.remove(0).items,
            _ => panic!("bands"),
        }
    }

    #[test]
    fn tiles_become_finer_until_nothing_is_left_out_and_no_time_is_lost() {
        // 40,000 bands of two values, 3 ns and 1 ns, in the first eighth of the time; nothing after it.
        let all: Vec<Band> = (0..80_000i64)
            .map(|n| Band(n / 2 * 4 + n % 2 * 3, n / 2 * 4 + 3 + n % 2, (n % 2) as u32))
            .collect();
        let length = 8 * 160_000;
        let whole = |depth| Detail { depth, columns: COLUMNS };
        let none = band_pyramid(&all, length, whole(0));
        assert_eq!((none.levels.len(), none.finest), (1, Some(length / 2_000)));
        // The first eighth, its eighths with 10,000 bands, and theirs with 1,250.
        let some = band_pyramid(&all, length, whole(3));
        assert_eq!((some.levels.len(), some.finest), (1 + 1 + 8 + 64, None));
        let finest = &some.levels[10..];
        let items: Vec<Band> = finest.iter().flat_map(|level| level.items.clone()).collect();
        assert_eq!(items, all);
        let shares = share_pyramid(&all, 2, length, whole(0));
        let first = &shares.levels[0].items[0];
        assert_eq!((first.2.clone(), first.0), (vec![75.0, 25.0], 0));
        let last = shares.levels[0].items.last().unwrap();
        // The 63rd column of 2,560 ns has the last bands.
        assert_eq!((last.0, last.1, last.2.clone()), (63 * 2_560, length, vec![0.0, 0.0]));
    }

    #[test]
    fn an_open_state_ends_with_the_view_or_with_the_next() {
        let states = [state(0, None, 1), state(10, Some(5), 2), state(20, None, 1)];
        assert_eq!(
            band_items(thread_states(&states, &view(30))),
            [Band(0, 10, 0), Band(10, 15, 1), Band(20, 30, 0)]
        );
    }

    /// How much of what is shown has each value, in columns.
    fn shown(items: &[Band], column: i64) -> Vec<i64> {
        let mut sums = vec![0; 8];
        for band in items {
            sums[band.2 as usize] += (band.1 - band.0) / column;
        }
        sums.truncate(sums.iter().rposition(|&n| n > 0).map_or(0, |last| last + 1));
        sums
    }

    #[test]
    fn of_more_states_than_columns_each_shows_as_often_as_it_held() {
        // 20 ns a column: 10 of one state, then 6 and 4 of others in little pieces.
        let mut states = Vec::new();
        for column in 0..COLUMNS as i64 {
            states.push(state(column * 20, Some(10), 1));
            states.extend(
                (0..10).map(|i| state(column * 20 + 10 + i, Some(1), if i < 6 { 2 } else { 3 })),
            );
        }
        let items = band_items(thread_states(&states, &view(20 * COLUMNS as i64)));
        let n = COLUMNS as i64;
        let shares = shown(&items, 20);
        for (share, expected) in shares.iter().zip([n / 2, 3 * n / 10, n / 5]) {
            assert!((share - expected).abs() <= n / 100, "{shares:?}");
        }
    }

    #[test]
    fn where_mostly_nobody_looked_little_shows() {
        let n = 3 * COLUMNS as i64;
        let states: Vec<State> = (0..n).map(|i| state(10 * i, Some(1), i % 2)).collect();
        let shares = shown(&band_items(thread_states(&states, &view(10 * n))), 30);
        let all: i64 = shares.iter().sum();
        assert!((all - COLUMNS as i64 / 10).abs() <= COLUMNS as i64 / 100, "{shares:?}");
    }

    #[test]
    fn a_delta_after_a_pause_counts_for_its_own_tick() {
        let rows = [row(10, 5.0), row(20, 0.0), row(50, 8.0), row(60, 8.0)];
        assert_eq!(
            pieces(counter(&rows, Measure::Delta, "ns", &view(100))),
            [Piece(10, 40, 0.0, 0.0), Piece(40, 60, 0.8, 0.8),]
        );
    }

    #[test]
    fn a_total_that_was_set_back_does_not_go_below_zero() {
        let rows = [row(0, 100.0), row(10, 300.0), row(20, 50.0)];
        let rates: Vec<f64> =
            pieces(counter(&rows, Measure::Total, "By", &view(20))).iter().map(|p| p.2).collect();
        assert_eq!(rates, [20_000.0, 5_000.0]);
    }

    #[test]
    fn a_peak_of_one_tick_shows_in_any_width() {
        let n = 50 * COLUMNS as i64;
        let rows: Vec<Counter> =
            (0..n).map(|i| row(i * 10, if i == n / 2 { 9.0 } else { 1.0 })).collect();
        let peak = pieces(counter(&rows, Measure::Gauge, "W", &view(n * 10)));
        assert!(peak.len() <= 3 && peak.iter().any(|p| p.3 == 9.0 && p.2 < 2.0), "{peak:?}");
    }

    #[test]
    fn thinning_keeps_the_slow_steps_of_a_column() {
        let n = 40 * COLUMNS as i64;
        let points: Vec<StepPoint> = (0..n)
            .map(|i| StepPoint { at: i, ms: 1.0 + (i % 7) as f64, slow: i == n / 3 })
            .collect();
        let thin = thin_steps(&points, Interval { from: 0, to: n });
        assert!(thin.len() <= 2 * COLUMNS && thin.iter().any(|p| p.slow));
        assert!(thin.windows(2).all(|w| w[0].at <= w[1].at));
    }
}
