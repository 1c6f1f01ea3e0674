//! The page of `gpuwhy variability`: what each device did when, who stalls, and the tables of the text.
//!
//! All of it is HTML and SVG; the scripts only sort tables and say the numbers under the pointer.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;

use crate::html::esc;
use crate::page::hash;
use crate::table::{Table, shortened};
use crate::timeline::{TimeLine, clock, ticks};

/// What the page shows.
#[derive(Clone, Debug, Default)]
pub struct Variability {
    /// Of what.
    pub title: String,
    /// How long it is, s.
    pub seconds: f64,
    /// How long an interval is, ms.
    pub interval_ms: f64,
    /// Whether that was chosen from the length.
    pub interval_chosen: bool,
    /// How many there are.
    pub intervals: usize,
    /// What the page rests on that is not whole, a clause each.
    pub incomplete: Vec<String>,
    /// What takes most of the time of programs.
    pub mostly: Vec<String>,
    /// What was found, and a query that shows the rows.
    pub findings: Vec<(String, Option<String>)>,
    /// What devices did when.
    pub time_line: TimeLine,
    /// Devices, in the order of their ranks.
    pub lanes: Vec<StallLane>,
    /// The worst intervals, seen closely.
    pub worst: Vec<CloseUp>,
    /// What the text says in tables, in the order in which they are shown.
    pub tables: Vec<Table>,
    /// What was looked at and is no finding.
    pub no_findings: Vec<String>,
    /// What was not looked for, and why.
    pub not_looked_for: Vec<String>,
}

/// One device over time.
#[derive(Clone, Debug, Default)]
pub struct StallLane {
    /// Its name.
    pub name: String,
    /// Exposed copy in each interval, ms.
    pub exposed_ms: Vec<f64>,
    /// Anomalous intervals.
    pub anomalous: Vec<usize>,
    /// By which rule.
    pub rule: &'static str,
    /// Kinds of copies: name, exposed ms, all ms.
    pub kinds: Vec<(&'static str, f64, f64)>,
}

/// One interval of one device.
#[derive(Clone, Debug, Default)]
pub struct CloseUp {
    /// Whose and when.
    pub title: String,
    /// Kernels: begin and end as shares of the interval.
    pub kernels: Vec<(f64, f64)>,
    /// Copies: kind, begin and end.
    pub copies: Vec<(&'static str, f64, f64)>,
}

const WIDTH: f64 = 1180.0;
const LEFT: f64 = 250.0;
/// Columns of a picture: more would be less than a pixel wide.
const COLUMNS: usize = 500;
/// Rectangles of a close-up row.
const PIECES: usize = 1500;
/// Devices whose stalls are drawn one by one, and rows of the picture of all of them.
const LANES: usize = 12;
const HEAT_ROWS: usize = 128;
/// Degrees of the colour of a stall.
const DEGREES: usize = 8;
/// Findings that are listed.
const FINDINGS: usize = 200;

const STYLE: &str = concat!(include_str!("../report.css"), include_str!("variability.css"));
const SCRIPT: &str =
    concat!(include_str!("../script/tables.js"), include_str!("../script/timeline.js"));

/// Kinds of copies in Okabe and Ito's colours, which survive the common kinds of colour blindness.
fn colour(kind: &str) -> &'static str {
    match kind {
        "h2d" => "#E69F00",
        "d2h" => "#D55E00",
        "d2d" => "#009E73",
        "p2p" => "#CC79A7",
        "h2h" => "#999999",
        "managed" => "#F0E442",
        _ => "#56B4E9",
    }
}

/// The page as one HTML document.
pub fn render(page: &Variability) -> String {
    let mut out = String::with_capacity(1 << 18);
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src {}; \
         script-src {}; base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>gpuwhy variability: {}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n",
        hash(STYLE),
        hash(SCRIPT),
        esc(&page.title),
    );
    header(&mut out, page);
    out.push_str("<main>\n");
    findings(&mut out, page);
    page.time_line.write(&mut out);
    // The pictures of stalls stand around the table of them.
    let stalls_at = page.tables.iter().position(|table| table.id == "stalls");
    let (before, from) = page.tables.split_at(stalls_at.unwrap_or(page.tables.len()));
    let (of_stalls, after) = from.split_at(from.len().min(1));
    before.iter().for_each(|table| table.write(&mut out));
    stalls(&mut out, page);
    of_stalls.iter().for_each(|table| table.write(&mut out));
    close_ups(&mut out, page);
    kinds(&mut out, page);
    after.iter().for_each(|table| table.write(&mut out));
    let none = ("no-findings", "Looked at, and no finding");
    list(&mut out, none, &page.no_findings);
    let not = ("not-looked-for", "Not looked for, or not in the trace");
    list(&mut out, not, &page.not_looked_for);
    let _ = write!(out, "</main>\n<script>{SCRIPT}</script>\n</body>\n</html>\n");
    out
}

fn header(out: &mut String, page: &Variability) {
    let kind = if page.findings.is_empty() { "fine" } else { "slow" };
    let _ = write!(
        out,
        "<header class=\"{kind}\">\n<p class=\"place\">gpuwhy variability · {}</p>\n\
         <h1>{}</h1>\n<dl class=\"tiles\">\n",
        esc(&page.title),
        match page.findings.len() {
            0 => "No findings".to_owned(),
            1 => "1 finding".to_owned(),
            n => format!("{n} findings"),
        }
    );
    let anomalous: usize = page.lanes.iter().map(|lane| lane.anomalous.len()).sum();
    let chosen = if page.interval_chosen { "chosen; --interval sets it" } else { "as asked for" };
    let (devices, seconds) = (page.lanes.len(), page.seconds);
    for (name, value, more) in [
        ("Devices", devices.to_string(), String::new()),
        ("From the first work to the last", format!("{seconds:.3} s"), String::new()),
        ("Intervals", format!("{} of {} ms", page.intervals, page.interval_ms), chosen.to_owned()),
        ("Anomalous intervals", anomalous.to_string(), "of any device".to_owned()),
    ] {
        let _ = writeln!(out, "<div><dt>{name}</dt><dd>{value}<small>{more}</small></dd></div>");
    }
    out.push_str("</dl>\n</header>\n");
    for source in &page.incomplete {
        let _ = writeln!(out, "<p class=\"warning\">⚠ This {}.</p>", esc(source));
    }
}

fn findings(out: &mut String, page: &Variability) {
    if page.findings.is_empty() && page.mostly.is_empty() {
        return;
    }
    out.push_str("<section id=\"findings\">\n<h2>Findings</h2>\n<ul>\n");
    for (says, sql) in page.findings.iter().take(FINDINGS) {
        let _ = write!(out, "<li>{}", esc(says));
        if let Some(sql) = sql {
            let _ = write!(
                out,
                "<details><summary>rows as SQL</summary><code>{}</code></details>",
                esc(sql)
            );
        }
        out.push_str("</li>\n");
    }
    out.push_str("</ul>\n");
    let left_out = page.findings.len().saturating_sub(FINDINGS);
    if left_out > 0 {
        let _ = writeln!(out, "<p class=\"note\">The page leaves out {left_out} more.</p>");
    }
    for says in page.mostly.iter().take(FINDINGS) {
        let _ = writeln!(out, "<p>{}.</p>", esc(says));
    }
    out.push_str("</section>\n");
}

/// A section of sentences, if there are any.
fn list(out: &mut String, (id, title): (&str, &str), all: &[String]) {
    if all.is_empty() {
        return;
    }
    let _ = write!(out, "<section id=\"{id}\">\n<h2>{title}</h2>\n<ul>\n");
    for says in all {
        let _ = writeln!(out, "<li>{}</li>", esc(says));
    }
    out.push_str("</ul>\n</section>\n");
}

/// Values thinned to columns, each the greatest of those that it stands for.
fn thinned(values: &[f64]) -> Vec<f64> {
    let columns = values.len().min(COLUMNS);
    let mut out = vec![0.0f64; columns];
    for (i, value) in values.iter().enumerate().filter(|(_, v)| v.is_finite()) {
        let column = &mut out[i * columns / values.len()];
        *column = column.max(*value);
    }
    out
}

/// Time under a picture.
fn time_axis(out: &mut String, seconds: f64, top: f64) {
    for at in ticks(0.0, seconds) {
        let x = LEFT + (WIDTH - LEFT) * at / seconds.max(1e-9);
        let anchor = if at == 0.0 { "start" } else { "middle" };
        let said = clock(at, seconds);
        let _ = write!(
            out,
            "<text class=\"soft\" x=\"{x:.1}\" y=\"{top:.1}\" text-anchor=\"{anchor}\">{said}</text>"
        );
    }
}

/// Stalls: of all devices, and of those that stall most one by one.
fn stalls(out: &mut String, page: &Variability) {
    if page.lanes.iter().flat_map(|l| &l.exposed_ms).all(|ms| *ms <= 0.0) {
        return;
    }
    out.push_str(
        "<section id=\"stalls-over-time\">\n<h2>Stalls over time</h2>\n<p class=\"note\">A stall is exposed \
         copy: time in which a copy ran and no kernel.</p>\n",
    );
    if page.lanes.len() > 1 {
        heat(out, page);
    }
    over_time(out, page);
    out.push_str("</section>\n");
}

/// Devices against time: the darker, the longer the stall.
fn heat(out: &mut String, page: &Variability) {
    let most = page.lanes.iter().flat_map(|l| &l.exposed_ms).copied().fold(0.0, f64::max);
    let rows = page.lanes.len().min(HEAT_ROWS);
    let row = if rows > 32 { 14.0 } else { 20.0 };
    let height = row * rows as f64 + 22.0;
    let _ = write!(
        out,
        "<h3>Who stalls when</h3>\n<p class=\"note\">One row a device; full colour is {most:.3} ms of an \
         interval.{}</p>\n\
         <svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"Stalls by device and time\">\n",
        match page.lanes.len() - rows {
            0 => String::new(),
            more => format!(" {more} more devices are not drawn."),
        }
    );
    for (i, lane) in page.lanes.iter().take(rows).enumerate() {
        let top = row * i as f64;
        lane_name(out, &lane.name, top + row - 5.0, "lane-name");
        let values = thinned(&lane.exposed_ms);
        let width = (WIDTH - LEFT) / values.len().max(1) as f64;
        // One shape for each degree of colour.
        let mut shapes = vec![String::new(); DEGREES + 1];
        // What is less than a two-hundredth of the longest stall would only colour everything.
        for (column, value) in values.iter().enumerate().filter(|(_, v)| **v > most / 200.0) {
            let degree = ((value / most).sqrt() * DEGREES as f64).ceil().clamp(1.0, DEGREES as f64);
            let (x, wide) = (LEFT + column as f64 * width, width.max(0.8));
            let _ = write!(
                shapes[degree as usize],
                "M{x:.1} {:.0}h{wide:.1}v{1}h-{wide:.1}z",
                top + 1.0,
                row - 2.0
            );
        }
        for (degree, shape) in shapes.iter().enumerate().filter(|(_, shape)| !shape.is_empty()) {
            let opacity = degree as f64 / DEGREES as f64;
            let _ = write!(out, "<path class=\"cell\" opacity=\"{opacity:.2}\" d=\"{shape}\"/>");
        }
        let _ = writeln!(
            out,
            "<rect class=\"frame\" x=\"{LEFT}\" y=\"{:.1}\" width=\"{}\" height=\"{}\"/>",
            top + 0.5,
            WIDTH - LEFT,
            row - 1.0
        );
    }
    time_axis(out, page.seconds, height - 5.0);
    out.push_str("</svg>\n");
}

/// A name to the left of a picture.
fn lane_name(out: &mut String, name: &str, base: f64, class: &str) {
    let (short, is_cut) = shortened(name, 36);
    let _ =
        write!(out, "<text class=\"{class}\" x=\"{}\" y=\"{base:.1}\">{}", LEFT - 8.0, esc(&short));
    if is_cut {
        let _ = write!(out, "<title>{}</title>", esc(&shortened(name, 300).0));
    }
    out.push_str("</text>");
}

/// The devices that are drawn one by one: those with most anomalous intervals, then most stalls.
fn drawn(page: &Variability) -> Vec<&StallLane> {
    let mut order: Vec<(usize, &StallLane)> = page.lanes.iter().enumerate().collect();
    let sum = |lane: &StallLane| lane.exposed_ms.iter().sum::<f64>();
    order.retain(|(_, lane)| sum(lane) > 0.0);
    order.sort_by(|(_, a), (_, b)| {
        b.anomalous.len().cmp(&a.anomalous.len()).then(sum(b).total_cmp(&sum(a)))
    });
    order.truncate(LANES);
    order.sort_by_key(|(place, _)| *place);
    order.into_iter().map(|(_, lane)| lane).collect()
}

fn over_time(out: &mut String, page: &Variability) {
    let drawn = drawn(page);
    let of = match page.lanes.len() {
        all if all > drawn.len() => {
            format!(" Drawn are the {} of {all} devices with most of them.", drawn.len())
        }
        _ => String::new(),
    };
    let _ = writeln!(
        out,
        "<h3>How long</h3>\n<p class=\"note\">Exposed copy in each interval; those beyond the fence stand \
         out.{of}</p>"
    );
    for lane in drawn {
        let most = lane.exposed_ms.iter().copied().fold(0.0, f64::max);
        let (height, base) = (110.0, 86.0);
        let _ = writeln!(
            out,
            "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"Stalls of {}\">",
            esc(&shortened(&lane.name, 90).0)
        );
        lane_name(out, &lane.name, 20.0, "lane-name");
        let fence = match lane.rule {
            "too_few" => "too few intervals to compare".to_owned(),
            "several_files" => "not compared: of several files".to_owned(),
            rule => format!("{} anomalous (rule {rule})", lane.anomalous.len()),
        };
        lane_name(out, &format!("up to {most:.3} ms"), 38.0, "lane-name soft");
        lane_name(out, &fence, 56.0, "lane-name soft");
        let _ = writeln!(
            out,
            "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{base}\" y2=\"{base}\"/>"
        );
        let values = thinned(&lane.exposed_ms);
        let columns = values.len().max(1);
        let width = (WIDTH - LEFT) / columns as f64;
        let hot: HashSet<usize> =
            lane.anomalous.iter().map(|i| i * columns / lane.exposed_ms.len().max(1)).collect();
        let (mut calm, mut stands_out) = (String::new(), String::new());
        for (column, value) in values.iter().enumerate().filter(|(_, v)| **v > 0.0) {
            let tall = (base - 6.0) * value / most;
            let shape = if hot.contains(&column) { &mut stands_out } else { &mut calm };
            let (x, wide) = (LEFT + column as f64 * width, (width - 0.3).max(0.8));
            let _ = write!(shape, "M{x:.2} {base}v-{tall:.2}h{wide:.2}v{tall:.2}z");
        }
        for (class, shape) in [("bar", calm), ("hot", stands_out)] {
            if !shape.is_empty() {
                let _ = write!(out, "<path class=\"{class}\" d=\"{shape}\"/>");
            }
        }
        time_axis(out, page.seconds, height - 6.0);
        out.push_str("</svg>\n");
    }
}

/// Copies by kind: what of them was exposed, and what lay beneath kernels.
fn kinds(out: &mut String, page: &Variability) {
    let most = page.lanes.iter().flat_map(|l| &l.kinds).map(|k| k.2).fold(0.0, f64::max);
    if most <= 0.0 {
        return;
    }
    let drawn = drawn(page);
    if drawn.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "<section id=\"kinds\">\n<h2>Copies by kind, exposed or beneath kernels</h2>\n<p class=\"note\">Full: \
         exposed; pale: beneath kernels. {} of {} devices.</p>",
        drawn.len(),
        page.lanes.len()
    );
    for lane in drawn {
        let height = 20.0 * lane.kinds.len() as f64 + 24.0;
        let _ = write!(
            out,
            "<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"Copies of {0}\">\n\
             <text x=\"0\" y=\"14\">{0}</text>",
            esc(&shortened(&lane.name, 90).0)
        );
        for (i, (kind, exposed, all)) in lane.kinds.iter().enumerate() {
            let top = 20.0 + 20.0 * i as f64;
            let scale = (WIDTH - LEFT - 180.0) / most;
            let (name, base, shown) = (LEFT - 8.0, top + 12.0, exposed.min(*all) * scale);
            let (whole, words, paint) = (all * scale, LEFT + all * scale + 8.0, colour(kind));
            let _ = write!(
                out,
                "<text class=\"lane-name\" x=\"{name}\" y=\"{base:.1}\">{kind}</text>\
                 <rect x=\"{LEFT}\" y=\"{top:.1}\" width=\"{whole:.2}\" height=\"14\" fill=\"{paint}\" \
                 opacity=\".35\"/>\
                 <rect x=\"{LEFT}\" y=\"{top:.1}\" width=\"{shown:.2}\" height=\"14\" fill=\"{paint}\"/>\
                 <text class=\"soft\" x=\"{words:.1}\" y=\"{base:.1}\">{exposed:.1} of {all:.1} ms</text>"
            );
        }
        out.push_str("</svg>\n");
    }
    out.push_str("</section>\n");
}

/// Kernels and copies of the worst intervals, one above the other.
fn close_ups(out: &mut String, page: &Variability) {
    if page.worst.is_empty() {
        return;
    }
    out.push_str(
        "<section id=\"worst\">\n<h2>The worst intervals</h2>\n<p class=\"note\">Above kernels, below copies; where there are only \
         copies, the device waits.</p>\n",
    );
    for close in &page.worst {
        let _ = write!(
            out,
            "<svg viewBox=\"0 0 {WIDTH} 74\" role=\"img\" aria-label=\"{0}\">\n\
             <text x=\"{LEFT}\" y=\"12\">{0}</text>\
             <text class=\"lane-name soft\" x=\"{1}\" y=\"34\">kernels</text>\
             <text class=\"lane-name soft\" x=\"{1}\" y=\"60\">copies</text>\
             <rect class=\"frame\" x=\"{LEFT}\" y=\"18\" width=\"{2}\" height=\"52\"/>",
            esc(&close.title),
            LEFT - 8.0,
            WIDTH - LEFT
        );
        let left_out =
            close.kernels.len().saturating_sub(PIECES) + close.copies.len().saturating_sub(PIECES);
        let kernels: Vec<_> = close.kernels.iter().take(PIECES).copied().collect();
        let _ = write!(out, "<path class=\"kernel\" d=\"{}\"/>", boxes(&kernels, 20.0));
        let mut by_kind: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
        for (kind, from, to) in close.copies.iter().take(PIECES) {
            by_kind.entry(kind).or_default().push((*from, *to));
        }
        for (kind, copies) in by_kind {
            let _ = write!(
                out,
                "<path fill=\"{}\" d=\"{}\"><title>{kind}</title></path>",
                colour(kind),
                boxes(&copies, 46.0)
            );
        }
        if left_out > 0 {
            let _ = write!(
                out,
                "<text class=\"soft\" x=\"{WIDTH}\" y=\"12\" text-anchor=\"end\">{left_out} more pieces are \
                 not drawn</text>"
            );
        }
        out.push_str("</svg>\n");
    }
    out.push_str("</section>\n");
}

/// Pieces of a close-up as one shape.
fn boxes(pieces: &[(f64, f64)], top: f64) -> String {
    let x = |share: f64| LEFT + (WIDTH - LEFT) * share.clamp(0.0, 1.0);
    let mut shape = String::new();
    for (from, to) in pieces {
        let (x, width) = (x(*from), (x(*to) - x(*from)).max(0.3));
        let _ = write!(shape, "M{x:.2} {top:.0}h{width:.2}v22h-{width:.2}z");
    }
    shape
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Cell, Row};
    use crate::timeline::{DeviceRow, TimeRow};

    const HOSTILE: &str = "</script><img src=x onerror=alert(1)>'\"&\u{202e}";

    fn lane(name: &str, hot: usize) -> StallLane {
        let mut exposed_ms = vec![1.0; 2000];
        exposed_ms[hot] = 90.0;
        StallLane {
            name: name.into(),
            exposed_ms,
            anomalous: vec![hot],
            rule: "iqr",
            kinds: vec![("d2h", 90.0, 120.0), ("p2p", 0.5, 0.5)],
        }
    }

    fn page() -> Variability {
        let device =
            DeviceRow { name: HOSTILE.into(), computing: vec![0.5; 400], ..DeviceRow::default() };
        let table = |id| Table {
            id,
            title: format!("Table of {id}"),
            columns: vec!["name"],
            rows: vec![Row { id: None, cells: vec![Cell::Name(HOSTILE.into())] }],
            ..Table::default()
        };
        Variability {
            title: HOSTILE.into(),
            seconds: 200.0,
            interval_ms: 100.0,
            intervals: 2000,
            lanes: vec![lane("rank 0", 7), lane(HOSTILE, 1500)],
            worst: vec![CloseUp {
                title: HOSTILE.into(),
                kernels: vec![(0.0, 0.1), (0.9, 1.2)],
                copies: vec![("d2h", 0.1, 0.9)],
            }],
            incomplete: vec![format!("rests on {HOSTILE}, which lost 3 of 103 rows")],
            mostly: vec![format!("{HOSTILE}: 96 % of the time goes to copies")],
            findings: vec![(format!("rank 3 {HOSTILE}"), Some(HOSTILE.into()))],
            time_line: TimeLine {
                to_s: 200.0,
                column_s: 0.5,
                rows: vec![TimeRow::Device(device)],
                ..TimeLine::default()
            },
            tables: vec![table("devices"), table("stalls"), table("kernels")],
            no_findings: vec![format!("as chance makes it {HOSTILE}")],
            not_looked_for: vec![format!("phases {HOSTILE}")],
            ..Variability::default()
        }
    }

    #[test]
    fn names_stay_text_wherever_they_stand() {
        let html = render(&page());
        assert!(!html.contains("<img") && !html.contains('\u{202e}'), "{html}");
        assert_eq!(html.matches("<script").count(), 2, "ours and the data");
        assert_eq!(html.matches("</script>").count(), 2);
        let escaped = "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;&#39;&quot;&amp;\\u{202e}";
        assert!(html.matches(escaped).count() >= 12, "{html}");
        assert!(html.contains("default-src 'none'; style-src 'sha256-"));
    }

    #[test]
    fn each_section_is_there_in_its_order() {
        let html = render(&page());
        let places = [
            "which lost 3 of 103 rows",
            "id=\"findings\"",
            "96 % of the time goes to copies",
            "id=\"time-line\"",
            "Table of devices",
            "id=\"stalls-over-time\"",
            "Table of stalls",
            "id=\"worst\"",
            "id=\"kinds\"",
            "Table of kernels",
            "id=\"not-looked-for\"",
        ]
        .map(|what| html.find(what).unwrap_or_else(|| panic!("{what} is not there: {html}")));
        assert!(places.is_sorted(), "{places:?}");
    }

    #[test]
    fn a_picture_stays_small_and_keeps_its_peaks() {
        let html = render(&page());
        assert!(html.len() < 150_000, "{} bytes", html.len());
        assert_eq!(html.matches("class=\"hot\"").count(), 2, "each device's anomaly");
        assert_eq!(thinned(&[1.0, f64::NAN, 3.0]), [1.0, 0.0, 3.0]);
        assert!(thinned(&[]).is_empty());
    }

    #[test]
    fn a_thousand_devices_are_a_page_below_some_megabytes_that_says_what_is_left_out() {
        let mut many = page();
        many.lanes = (0..1000).map(|i| lane(&format!("rank {i}"), i)).collect();
        let device = |i| DeviceRow {
            name: format!("rank {i}"),
            computing: (0..480).map(|c| f64::from((c + i) % 9) / 9.0).collect(),
            copying: vec![0.1; 480],
            ..DeviceRow::default()
        };
        many.time_line.rows = (0..1000).map(|i| TimeRow::Device(device(i))).collect();
        let piece = |i: usize| (i as f64 / 5000.0, (i as f64 + 0.5) / 5000.0);
        let close = CloseUp {
            title: "rank 0".into(),
            kernels: (0..5000).map(piece).collect(),
            copies: (0..5000).map(|i| ("h2d", piece(i).0, piece(i).1)).collect(),
        };
        many.worst = vec![close; 6];
        let html = render(&many);
        assert!(html.len() < 4_000_000, "{} bytes", html.len());
        for said in [
            "952 more rows are not drawn",
            "872 more devices are not drawn",
            "Drawn are the 12 of 1000 devices",
            "7000 more pieces are not drawn",
        ] {
            assert!(html.contains(said), "{said}");
        }
    }

    #[test]
    fn an_empty_page_is_a_page() {
        assert!(render(&Variability::default()).ends_with("</html>\n"));
    }
}
