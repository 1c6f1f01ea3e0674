//! What each device did when, as one picture: phases of programs as bands, and below them each device's shares
//! of computing, communicating, copying and doing nothing in each column of time.
//!
//! Marks on it are links to rows of tables, so that they work with the keyboard and without a script. The
//! script (`script/timeline.js`) only says the numbers under the pointer.

use std::fmt::Write;

use serde::Serialize;

use crate::html::{esc, json};
use crate::table::shortened;

/// Columns of time: more would be less than two pixels wide.
pub const COLUMNS: usize = 480;
/// Rows of devices.
pub const DEVICES: usize = 48;
/// Bands of programs, and boxes of one of them.
const PROGRAMS: usize = 48;
const BOXES: usize = 200;
/// Marks of one device.
const MARKS: usize = 200;

const WIDTH: f64 = 1180.0;
const LEFT: f64 = 260.0;
/// Characters of a name that fit beside the picture.
const NAME: usize = 35;
const PHASES: f64 = 24.0;
const DEVICE: f64 = 44.0;
/// Of that, what a device did; below it stand marks.
const SHARES: f64 = 26.0;

/// What devices did over time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TimeLine {
    /// When the picture begins, s since the first work of a device; negative if before.
    pub from_s: f64,
    /// When it ends.
    pub to_s: f64,
    /// How long a column is, s; the first begins at 0.
    pub column_s: f64,
    /// From top to bottom.
    pub rows: Vec<TimeRow>,
    /// What is not drawn, in words.
    pub left_out: Vec<String>,
    /// Whether communication is told from computing.
    pub tells_communication: bool,
}

/// A row of the picture.
#[derive(Clone, Debug, PartialEq)]
pub enum TimeRow {
    /// A program.
    Program {
        /// Its name.
        name: String,
        /// Its phases, in order of time.
        phases: Vec<PhaseBox>,
    },
    /// A device.
    Device(DeviceRow),
}

/// A phase of a program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PhaseBox {
    /// Its name.
    pub name: String,
    /// `set_up`, `work`, `between`, `end` or `whole`.
    pub kind: &'static str,
    /// When it begins.
    pub from_s: f64,
    /// When it ends.
    pub to_s: f64,
    /// What it was spent on.
    pub spent: String,
    /// The id of its row in a table.
    pub row: String,
}

/// A device, column by column: shares of a column's time, which have nothing in common.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceRow {
    /// Its name.
    pub name: String,
    /// A kernel computed.
    pub computing: Vec<f64>,
    /// None did, and something communicated.
    pub communicating: Vec<f64>,
    /// Neither, and something copied.
    pub copying: Vec<f64>,
    /// What tables say of it.
    pub marks: Vec<Mark>,
}

/// A stretch of time that a table has a row for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mark {
    /// `stall` or `gap`.
    pub what: &'static str,
    /// The id of the row.
    pub row: String,
    /// When it begins.
    pub from_s: f64,
    /// When it ends.
    pub to_s: f64,
    /// What it is, in words.
    pub says: String,
}

/// What the script says of a device under the pointer.
#[derive(Serialize)]
struct Readable<'a> {
    from: f64,
    to: f64,
    column: f64,
    left: f64,
    width: f64,
    rows: Vec<ReadableRow<'a>>,
}

#[derive(Serialize)]
struct ReadableRow<'a> {
    name: &'a str,
    top: f64,
    bottom: f64,
    /// Percent of computing, communicating and copying, column by column.
    parts: [Vec<u8>; 3],
}

/// A time since the first work, with the unit and the digits that suit a picture `span` seconds long.
pub fn clock(seconds: f64, span: f64) -> String {
    match span {
        s if s < 2e-3 => format!("{:.0} µs", seconds * 1e6),
        s if s < 2.0 => format!("{:.*} ms", usize::from(s < 0.1), seconds * 1e3),
        s => format!("{seconds:.*} s", if s < 100.0 { 2 } else { 0 }),
    }
}

/// Round times from one to another, about eight; not quite at the end, where their names would be cut.
pub fn ticks(from: f64, to: f64) -> Vec<f64> {
    let raw = (to - from).max(1e-9) / 8.0;
    let power = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|step| *step >= raw);
    let step = step.unwrap_or(raw);
    let first = (from / step).ceil();
    let last = ((to - 0.02 * (to - from)) / step).floor();
    // No picture has more than a dozen, whatever its times are.
    let count = (last - first).clamp(-1.0, 12.0) as i32;
    (0..=count).map(|i| (first + f64::from(i)) * step).collect()
}

impl TimeLine {
    fn span(&self) -> f64 {
        (self.to_s - self.from_s).max(1e-9)
    }

    /// Where a time is drawn, within the picture.
    fn x(&self, seconds: f64) -> f64 {
        LEFT + (WIDTH - LEFT) * ((seconds - self.from_s) / self.span()).clamp(0.0, 1.0)
    }

    fn devices(&self) -> impl Iterator<Item = &DeviceRow> {
        self.rows.iter().filter_map(|row| match row {
            TimeRow::Device(device) => Some(device),
            TimeRow::Program { .. } => None,
        })
    }

    /// The picture as a section, with what its script reads; nothing of no devices.
    pub fn write(&self, out: &mut String) {
        if self.devices().next().is_none() {
            return;
        }
        let communication = match self.tells_communication {
            true => "<span class=\"key communicating\"></span> communicates, and computes nothing",
            false => "(communication is not told from computing here)",
        };
        let _ = write!(
            out,
            "<section id=\"time-line\">\n<h2>What each device did when</h2>\n<p class=\"legend\">\
             <span class=\"key computing\"></span> computes {communication} \
             <span class=\"key copying\"></span> only copies <span class=\"key idle\"></span> idle; \
             beneath: <span class=\"key stall\"></span> anomalous stall <span class=\"key gap\"></span> \
             longest gap; click one for its row</p>\n\
             <div class=\"plot\" id=\"time-plot\" tabindex=\"0\" role=\"group\" aria-label=\"What each device \
             did over time. Arrow keys say what was done when; the tables below have the marked rows.\">\n"
        );
        let rows = self.shown();
        let tops = tops(&rows);
        let height = tops.last().copied().unwrap_or(0.0) + 22.0;
        let _ = writeln!(out, "<svg class=\"lanes\" viewBox=\"0 0 {WIDTH} {height:.0}\">");
        self.axis(out, height);
        for (row, top) in rows.iter().zip(&tops) {
            match row {
                TimeRow::Program { name, phases } => self.program(out, name, phases, *top),
                TimeRow::Device(device) => self.device(out, device, *top),
            }
        }
        let _ = writeln!(
            out,
            "<line class=\"hair\" x1=\"-9\" x2=\"-9\" y1=\"0\" y2=\"{:.0}\"/>\n</svg>\n</div>\n\
             <p class=\"note\"><output id=\"at-time\" aria-live=\"polite\"></output>&nbsp;</p>",
            height - 18.0
        );
        let not_drawn = self.rows.len() - rows.len();
        if not_drawn > 0 {
            let _ = writeln!(out, "<p class=\"note\">{not_drawn} more rows are not drawn.</p>");
        }
        for line in &self.left_out {
            let _ = writeln!(out, "<p class=\"note\">{}</p>", esc(line));
        }
        let _ = writeln!(
            out,
            "</section>\n<script type=\"application/json\" id=\"time-data\">{}</script>",
            json(&self.readable(&rows, &tops))
        );
    }

    /// The rows that are drawn.
    fn shown(&self) -> Vec<&TimeRow> {
        let (mut programs, mut devices) = (0, 0);
        let is_shown = |row: &&TimeRow| {
            let (count, most) = match row {
                TimeRow::Program { .. } => (&mut programs, PROGRAMS),
                TimeRow::Device(_) => (&mut devices, DEVICES),
            };
            *count += 1;
            *count <= most
        };
        self.rows.iter().filter(is_shown).collect()
    }

    fn readable<'a>(&self, rows: &[&'a TimeRow], tops: &[f64]) -> Readable<'a> {
        let percent = |shares: &[f64]| -> Vec<u8> {
            shares.iter().map(|share| (100.0 * share).round().clamp(0.0, 100.0) as u8).collect()
        };
        let rows = rows.iter().zip(tops).filter_map(|(row, top)| match row {
            TimeRow::Device(of) => Some(ReadableRow {
                name: &of.name,
                top: *top,
                bottom: top + DEVICE,
                parts: [&of.computing, &of.communicating, &of.copying].map(|part| percent(part)),
            }),
            TimeRow::Program { .. } => None,
        });
        Readable {
            from: self.from_s,
            to: self.to_s,
            column: self.column_s,
            left: LEFT,
            width: WIDTH,
            rows: rows.collect(),
        }
    }

    fn axis(&self, out: &mut String, height: f64) {
        for at in ticks(self.from_s, self.to_s) {
            let x = self.x(at);
            let _ = write!(
                out,
                "<line class=\"tick\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"0\" y2=\"{:.0}\"/>\
                 <text class=\"soft\" x=\"{x:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{}</text>",
                height - 18.0,
                height - 5.0,
                clock(at, self.span())
            );
        }
        out.push('\n');
    }

    fn program(&self, out: &mut String, name: &str, phases: &[PhaseBox], top: f64) {
        label(out, name, top + 15.0);
        for phase in phases.iter().take(BOXES) {
            let (from, to) = (self.x(phase.from_s), self.x(phase.to_s));
            if to - from < 0.05 {
                continue;
            }
            let span = self.span();
            let _ = write!(
                out,
                "<a href=\"#{0}\" id=\"at-{0}\"><title>{1}, {2} to {3}: {4}</title><rect class=\"phase {5}\" \
                 x=\"{from:.1}\" y=\"{6:.1}\" width=\"{7:.1}\" height=\"{8:.1}\"/>",
                esc(&phase.row),
                esc(&shortened(&phase.name, 200).0),
                clock(phase.from_s, span),
                clock(phase.to_s, span),
                esc(&phase.spent),
                phase.kind,
                top + 2.0,
                to - from,
                PHASES - 6.0
            );
            let room = ((to - from - 8.0) / 6.6).max(0.0) as usize;
            if room >= 3 {
                let (name, _) = shortened(&phase.name, room);
                let _ = write!(
                    out,
                    "<text class=\"phase-name\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                    from + 4.0,
                    top + 15.0,
                    esc(&name)
                );
            }
            out.push_str("</a>\n");
        }
    }

    fn device(&self, out: &mut String, device: &DeviceRow, top: f64) {
        label(out, &device.name, top + 19.0);
        let columns = device.computing.len();
        let end = columns as f64 * self.column_s;
        // A column beyond the end of the picture is cut by the border of the inner picture.
        let (from, to) = (self.x(0.0), self.x(end.min(self.to_s)));
        let shown = if end > self.to_s { self.to_s / self.column_s } else { columns as f64 };
        let _ = write!(
            out,
            "<rect class=\"idle\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{SHARES}\"/>\
             <svg x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{SHARES}\" viewBox=\"0 0 {shown:.3} 100\" \
             preserveAspectRatio=\"none\" aria-hidden=\"true\">",
            top + 4.0,
            (to - from).max(0.1),
            top + 4.0,
            (to - from).max(0.1)
        );
        // What is drawn later covers what was drawn before: each is the sum up to it.
        let parts = [&device.computing, &device.communicating, &device.copying];
        for (last, look) in [(2, "copying"), (1, "communicating"), (0, "computing")] {
            let sum = |column: usize| -> f64 {
                parts[..=last].iter().filter_map(|part| part.get(column)).sum()
            };
            if parts[last].iter().any(|share| *share > 0.0) {
                let _ =
                    write!(out, "<path class=\"{look}\" d=\"{}\"/>", steps((0..columns).map(sum)));
            }
        }
        out.push_str("</svg>\n");
        for mark in device.marks.iter().take(MARKS) {
            let (from, to) = (self.x(mark.from_s), self.x(mark.to_s));
            // Wide enough to hit with a pointer.
            let width = (to - from).max(5.0);
            let _ = writeln!(
                out,
                "<a href=\"#{0}\" id=\"at-{0}\" aria-label=\"{1}\"><title>{1}</title><rect class=\"{2}\" \
                 x=\"{3:.1}\" y=\"{4:.1}\" width=\"{width:.1}\" height=\"6\" rx=\"2\"/></a>",
                esc(&mark.row),
                esc(&mark.says),
                mark.what,
                (from + to - width) / 2.0,
                top + 5.0 + SHARES + if mark.what == "gap" { 0.0 } else { 6.0 }
            );
        }
    }
}

/// Where each row begins, and where the last one ends.
fn tops(rows: &[&TimeRow]) -> Vec<f64> {
    let mut tops = vec![4.0];
    for row in rows {
        let height = match row {
            TimeRow::Program { .. } => PHASES,
            TimeRow::Device(_) => DEVICE,
        };
        tops.push(tops.last().copied().unwrap_or(0.0) + height);
    }
    tops
}

fn label(out: &mut String, name: &str, base: f64) {
    let (short, is_cut) = shortened(name, NAME);
    let whole = match is_cut {
        true => format!("<title>{}</title>", esc(&shortened(name, 300).0)),
        false => String::new(),
    };
    let _ = write!(
        out,
        "<text class=\"lane-name\" x=\"{}\" y=\"{base:.1}\">{}{whole}</text>",
        LEFT - 8.0,
        esc(&short)
    );
}

/// Shares as one shape of steps: a column is 1 wide and 100 is the whole. Its borders leave no seams.
fn steps(shares: impl Iterator<Item = f64>) -> String {
    let mut path = String::from("M0 100");
    let mut run: Option<(u32, u32)> = None;
    let mut flush = |run: Option<(u32, u32)>| {
        if let Some((height, columns)) = run {
            let _ = write!(path, "V{}h{columns}", 100 - height);
        }
    };
    for share in shares {
        let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
        // What is there at all is seen.
        let height = (100.0 * share).round().max(if share > 0.0 { 2.0 } else { 0.0 }) as u32;
        run = match run {
            Some((same, columns)) if same == height => Some((same, columns + 1)),
            other => {
                flush(other);
                Some((height, 1))
            }
        };
    }
    flush(run);
    path.push_str("V100z");
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, columns: usize) -> DeviceRow {
        DeviceRow {
            name: name.into(),
            computing: (0..columns).map(|i| (i % 7) as f64 / 10.0).collect(),
            communicating: vec![0.1; columns],
            copying: vec![0.2; columns],
            marks: vec![Mark {
                what: "gap",
                row: "gap-1".into(),
                from_s: 1.0,
                to_s: 2.0,
                says: "gap of <b>1 s</b>".into(),
            }],
        }
    }

    fn html(line: &TimeLine) -> String {
        let mut out = String::new();
        line.write(&mut out);
        out
    }

    #[test]
    fn equal_columns_are_one_step_and_a_trace_of_something_is_seen() {
        let path = steps([0.0, 0.5, 0.5, 0.001, f64::NAN, 7.0].into_iter());
        assert_eq!(path, "M0 100V100h1V50h2V98h1V100h1V0h1V100z");
    }

    #[test]
    fn each_gap_and_stall_is_a_link_to_its_row_and_back() {
        let line = TimeLine {
            to_s: 4.0,
            column_s: 0.01,
            rows: vec![TimeRow::Device(device("rank 0, <i>", 400))],
            ..TimeLine::default()
        };
        let html = html(&line);
        assert!(html.contains(
            "<a href=\"#gap-1\" id=\"at-gap-1\" aria-label=\"gap of &lt;b&gt;1 s&lt;/b&gt;\">"
        ));
        assert!(!html.contains("<i>") && html.contains("rank 0, &lt;i&gt;"));
        // From a quarter to half of the picture.
        assert!(html.contains("class=\"gap\" x=\"490.0\" y=\"35.0\" width=\"230.0\""), "{html}");
    }

    #[test]
    fn phases_stand_where_they_were_and_say_what_they_were_spent_on() {
        let phase = |kind, from_s, to_s| PhaseBox {
            name: format!("{kind}</svg>"),
            kind,
            from_s,
            to_s,
            spent: "GPU: kernels 40 %".into(),
            row: format!("phase-{kind}"),
        };
        let phases = vec![phase("set_up", -1.0, 0.0), phase("work", 0.0, 3.0)];
        let line = TimeLine {
            from_s: -1.0,
            to_s: 3.0,
            column_s: 0.01,
            rows: vec![
                TimeRow::Program { name: "train (pid 7)".into(), phases },
                TimeRow::Device(device("GPU 0", 300)),
            ],
            ..TimeLine::default()
        };
        let html = html(&line);
        assert!(
            html.contains("class=\"phase set_up\" x=\"260.0\" y=\"6.0\" width=\"230.0\""),
            "{html}"
        );
        assert!(
            html.contains("<title>work&lt;/svg&gt;, 0.00 s to 3.00 s: GPU: kernels 40 %</title>")
        );
        assert!(html.contains("-1.00 s"), "the axis begins before the first work");
    }

    #[test]
    fn a_picture_of_the_most_rows_is_below_two_megabytes() {
        let mut rows: Vec<TimeRow> =
            (0..DEVICES).map(|i| TimeRow::Device(device(&format!("rank {i}"), COLUMNS))).collect();
        let phases =
            vec![
                PhaseBox { name: "work".into(), kind: "work", to_s: 4.0, ..PhaseBox::default() };
                9
            ];
        rows.extend(
            (0..500).map(|_| TimeRow::Program { name: "p".into(), phases: phases.clone() }),
        );
        let line = TimeLine { to_s: 4.8, column_s: 0.01, rows, ..TimeLine::default() };
        let html = html(&line);
        assert!(html.len() < 2_000_000, "{} bytes", html.len());
        assert!(html.contains("452 more rows are not drawn"));
    }

    #[test]
    fn ticks_are_round_and_few_whatever_the_times() {
        assert_eq!(ticks(-1.3, 6.5), [-1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(ticks(0.0, 0.1), [0.0, 0.02, 0.04, 0.06, 0.08]);
        for (from, to) in [(0.0, 0.0), (0.0, f64::INFINITY), (-1e300, 1e300), (f64::NAN, 1.0)] {
            assert!(ticks(from, to).len() <= 13);
        }
    }

    #[test]
    fn times_have_the_unit_that_suits_the_picture() {
        assert_eq!(clock(0.00012, 0.001), "120 µs");
        assert_eq!(clock(0.0123, 0.05), "12.3 ms");
        assert_eq!(clock(0.25, 0.3), "250 ms");
        assert_eq!(clock(-1.5, 4.0), "-1.50 s");
        assert_eq!(clock(412.3, 500.0), "412 s");
    }
}
