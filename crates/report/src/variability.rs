//! The page of `gpuwhy variability`: stalls over time, who shares them, what the worst look like.
//!
//! All of it is HTML and SVG; there is no script.

use std::fmt::Write;

use crate::html::esc;

/// What the page shows.
#[derive(Clone, Debug, Default)]
pub struct Variability {
    /// Of what.
    pub title: String,
    /// How long it is, s.
    pub seconds: f64,
    /// How long an interval is, ms.
    pub interval_ms: f64,
    /// What the page rests on that is not whole, a clause each.
    pub incomplete: Vec<String>,
    /// Devices, in the order of their ranks.
    pub lanes: Vec<StallLane>,
    /// The worst intervals, seen closely.
    pub worst: Vec<CloseUp>,
    /// What was found, and a query that shows the rows.
    pub findings: Vec<(String, Option<String>)>,
    /// Kernels by time: name, calls, total ms, mean us, p50 us, p99 us.
    pub kernels: Vec<(String, u64, f64, f64, f64, f64)>,
}

/// One device over time.
#[derive(Clone, Debug, Default)]
pub struct StallLane {
    /// Its name.
    pub name: String,
    /// Exposed copy in each interval, ms.
    pub exposed_ms: Vec<f64>,
    /// Kernels in each interval, ms.
    pub kernel_ms: Vec<f64>,
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

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1b1b1b;--paper:#fff;--soft:#666;--line:#ddd;--hot:#d55e00;--calm:#0072b2}\
@media(prefers-color-scheme:dark){:root{--ink:#eee;--paper:#161616;--soft:#aaa;--line:#3a3a3a;--hot:#ff8c42;--calm:#56b4e9}}\
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:1220px;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2.2rem}p.note{color:var(--soft);margin:.2rem 0 .6rem}\
svg{width:100%;height:auto;display:block}text{font:12px system-ui,sans-serif;fill:var(--ink)}text.soft{fill:var(--soft)}\
.name{text-anchor:end}.axis{stroke:var(--line)}.bar{fill:var(--calm)}.hot{fill:var(--hot)}.kernel{fill:var(--calm);opacity:.75}\
.cell{fill:var(--hot)}.frame{fill:none;stroke:var(--line)}\
table{border-collapse:collapse;width:100%}td,th{padding:.25rem .6rem;border-bottom:1px solid var(--line);text-align:right}\
td:last-child,th:last-child{text-align:left;overflow-wrap:anywhere}code{font-size:.85em;color:var(--soft);overflow-wrap:anywhere}\
li{margin:.4rem 0}";

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
         base-uri 'none'; form-action 'none'\">\n<meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>gpuwhy variability: {}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <h1>Variability of {}</h1>\n<p class=\"note\">{} devices, {:.3} s in intervals of {} ms. A stall is \
         exposed copy: time in which a copy ran and no kernel.</p>\n",
        crate::page::hash(STYLE),
        esc(&page.title),
        esc(&page.title),
        page.lanes.len(),
        page.seconds,
        page.interval_ms
    );
    for source in &page.incomplete {
        let _ = writeln!(out, "<p class=\"note\">This {}.</p>", esc(source));
    }
    findings(&mut out, page);
    heat(&mut out, page);
    over_time(&mut out, page);
    kinds(&mut out, page);
    close_ups(&mut out, page);
    kernels(&mut out, page);
    out.push_str("</body>\n</html>\n");
    out
}

fn findings(out: &mut String, page: &Variability) {
    if page.findings.is_empty() {
        return;
    }
    out.push_str("<h2>Findings</h2>\n<ul>\n");
    for (says, sql) in &page.findings {
        let _ = write!(out, "<li>{}", esc(says));
        if let Some(sql) = sql {
            let _ = write!(out, "<br><code>{}</code>", esc(sql));
        }
        out.push_str("</li>\n");
    }
    out.push_str("</ul>\n");
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
    for i in 0..=4 {
        let x = LEFT + (WIDTH - LEFT) * f64::from(i) / 4.0;
        let anchor = ["start", "middle", "middle", "middle", "end"][i as usize];
        let _ = write!(
            out,
            "<text class=\"soft\" x=\"{x:.1}\" y=\"{top:.1}\" text-anchor=\"{anchor}\">{:.2} s</text>",
            seconds * f64::from(i) / 4.0
        );
    }
}

/// Devices against time: the darker, the longer the stall.
fn heat(out: &mut String, page: &Variability) {
    let most = page.lanes.iter().flat_map(|l| &l.exposed_ms).copied().fold(0.0, f64::max);
    if most <= 0.0 {
        return;
    }
    let row = 22.0;
    let height = row * page.lanes.len() as f64 + 22.0;
    let _ = write!(
        out,
        "<h2>Who stalls when</h2>\n<p class=\"note\">One row a device; full colour is {most:.1} ms.</p>\n\
         <svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"Stalls by device and time\">\n"
    );
    for (i, lane) in page.lanes.iter().enumerate() {
        let top = row * i as f64;
        let _ = write!(
            out,
            "<text class=\"name\" x=\"{}\" y=\"{:.1}\">{}</text>",
            LEFT - 8.0,
            top + 15.0,
            esc(&lane.name)
        );
        let values = thinned(&lane.exposed_ms);
        let width = (WIDTH - LEFT) / values.len().max(1) as f64;
        for (column, value) in values.iter().enumerate().filter(|(_, v)| **v > 0.0) {
            let _ = write!(
                out,
                "<rect class=\"cell\" x=\"{:.2}\" y=\"{:.1}\" width=\"{:.2}\" height=\"{}\" \
                 opacity=\"{:.3}\"/>",
                LEFT + column as f64 * width,
                top + 1.0,
                width.max(0.8),
                row - 2.0,
                (value / most).sqrt()
            );
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

fn over_time(out: &mut String, page: &Variability) {
    out.push_str(
        "<h2>Stalls over time</h2>\n<p class=\"note\">Exposed copy in each interval; those beyond the fence \
         stand out.</p>\n",
    );
    for lane in &page.lanes {
        let most = lane.exposed_ms.iter().copied().fold(0.0, f64::max);
        let (height, base) = (110.0, 86.0);
        let _ = write!(
            out,
            "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"Stalls of {}\">\n\
             <text class=\"name\" x=\"{1}\" y=\"20\">{0}</text>\
             <text class=\"name soft\" x=\"{1}\" y=\"38\">up to {most:.2} ms</text>\
             <text class=\"name soft\" x=\"{1}\" y=\"56\">{2} anomalous ({3})</text>\
             <line class=\"axis\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{base}\" y2=\"{base}\"/>\n",
            esc(&lane.name),
            LEFT - 8.0,
            lane.anomalous.len(),
            lane.rule
        );
        let values = thinned(&lane.exposed_ms);
        let columns = values.len().max(1);
        let width = (WIDTH - LEFT) / columns as f64;
        let hot: Vec<usize> =
            lane.anomalous.iter().map(|i| i * columns / lane.exposed_ms.len().max(1)).collect();
        for (column, value) in values.iter().enumerate().filter(|(_, v)| **v > 0.0) {
            let tall = (base - 6.0) * value / most;
            let class = if hot.contains(&column) { "hot" } else { "bar" };
            let _ = write!(
                out,
                "<rect class=\"{class}\" x=\"{:.2}\" y=\"{:.2}\" width=\"{:.2}\" height=\"{tall:.2}\"/>",
                LEFT + column as f64 * width,
                base - tall,
                (width - 0.3).max(0.8)
            );
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
    out.push_str(
        "<h2>Copies by kind</h2>\n<p class=\"note\">Full: exposed; pale: beneath kernels.</p>\n",
    );
    for lane in &page.lanes {
        let height = 20.0 * lane.kinds.len() as f64 + 24.0;
        let _ = write!(
            out,
            "<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"Copies of {0}\">\n\
             <text x=\"0\" y=\"14\">{0}</text>",
            esc(&lane.name)
        );
        for (i, (kind, exposed, all)) in lane.kinds.iter().enumerate() {
            let top = 20.0 + 20.0 * i as f64;
            let scale = (WIDTH - LEFT - 180.0) / most;
            let (name, base, shown) = (LEFT - 8.0, top + 12.0, exposed.min(*all) * scale);
            let (whole, words, paint) = (all * scale, LEFT + all * scale + 8.0, colour(kind));
            let _ = write!(
                out,
                "<text class=\"name\" x=\"{name}\" y=\"{base:.1}\">{kind}</text>\
                 <rect x=\"{LEFT}\" y=\"{top:.1}\" width=\"{whole:.2}\" height=\"14\" fill=\"{paint}\" \
                 opacity=\".35\"/>\
                 <rect x=\"{LEFT}\" y=\"{top:.1}\" width=\"{shown:.2}\" height=\"14\" fill=\"{paint}\"/>\
                 <text class=\"soft\" x=\"{words:.1}\" y=\"{base:.1}\">{exposed:.1} of {all:.1} ms</text>"
            );
        }
        out.push_str("</svg>\n");
    }
}

/// Kernels and copies of the worst intervals, one above the other.
fn close_ups(out: &mut String, page: &Variability) {
    if page.worst.is_empty() {
        return;
    }
    out.push_str(
        "<h2>The worst intervals</h2>\n<p class=\"note\">Above kernels, below copies; where there are only \
         copies, the device waits.</p>\n",
    );
    for close in &page.worst {
        let _ = write!(
            out,
            "<svg viewBox=\"0 0 {WIDTH} 74\" role=\"img\" aria-label=\"{0}\">\n\
             <text x=\"{LEFT}\" y=\"12\">{0}</text>\
             <text class=\"name soft\" x=\"{1}\" y=\"34\">kernels</text>\
             <text class=\"name soft\" x=\"{1}\" y=\"60\">copies</text>\
             <rect class=\"frame\" x=\"{LEFT}\" y=\"18\" width=\"{2}\" height=\"52\"/>",
            esc(&close.title),
            LEFT - 8.0,
            WIDTH - LEFT
        );
        let x = |share: f64| LEFT + (WIDTH - LEFT) * share.clamp(0.0, 1.0);
        for (from, to) in close.kernels.iter().take(PIECES) {
            let _ = write!(
                out,
                "<rect class=\"kernel\" x=\"{:.2}\" y=\"20\" width=\"{:.2}\" height=\"22\"/>",
                x(*from),
                (x(*to) - x(*from)).max(0.3)
            );
        }
        for (kind, from, to) in close.copies.iter().take(PIECES) {
            let _ = write!(
                out,
                "<rect x=\"{:.2}\" y=\"46\" width=\"{:.2}\" height=\"22\" fill=\"{}\"><title>{kind}</title>\
                 </rect>",
                x(*from),
                (x(*to) - x(*from)).max(0.3),
                colour(kind)
            );
        }
        out.push_str("</svg>\n");
    }
}

fn kernels(out: &mut String, page: &Variability) {
    if page.kernels.is_empty() {
        return;
    }
    out.push_str(
        "<h2>Kernels by time</h2>\n<table>\n<tr><th>total ms</th><th>calls</th><th>mean µs</th>\
         <th>p50 µs</th><th>p99 µs</th><th>name</th></tr>\n",
    );
    for (name, calls, total, mean, p50, p99) in &page.kernels {
        let _ = writeln!(
            out,
            "<tr><td>{total:.3}</td><td>{calls}</td><td>{mean:.2}</td><td>{p50:.2}</td><td>{p99:.2}</td>\
             <td>{}</td></tr>",
            esc(name)
        );
    }
    out.push_str("</table>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> Variability {
        let lane = |name: &str, hot: usize| {
            let mut exposed_ms = vec![1.0; 2000];
            exposed_ms[hot] = 90.0;
            StallLane {
                name: name.into(),
                kernel_ms: vec![50.0; 2000],
                exposed_ms,
                anomalous: vec![hot],
                rule: "iqr",
                kinds: vec![("d2h", 90.0, 120.0), ("p2p", 0.5, 0.5)],
            }
        };
        Variability {
            title: "<b>job</b>.trace".into(),
            seconds: 200.0,
            interval_ms: 100.0,
            lanes: vec![lane("rank 0", 7), lane("rank </svg>", 1500)],
            worst: vec![CloseUp {
                title: "rank 0, 0.700 to 0.800 s".into(),
                kernels: vec![(0.0, 0.1), (0.9, 1.2)],
                copies: vec![("d2h", 0.1, 0.9)],
            }],
            incomplete: vec!["rests on <i>, which lost 3 of 103 rows".into()],
            findings: vec![("rank 3 is waited for".into(), Some("select '<'".into()))],
            kernels: vec![("void k<1>()".into(), 3, 1.0, 2.0, 3.0, 4.0)],
        }
    }

    #[test]
    fn names_stay_text_and_nothing_runs() {
        let html = render(&page());
        assert!(!html.contains("<b>") && !html.contains("<script"), "{html}");
        assert!(html.contains("rests on &lt;i&gt;, which lost 3 of 103 rows"), "{html}");
        assert!(html.contains("rank &lt;/svg&gt;") && html.contains("void k&lt;1&gt;()"));
        assert!(html.contains("default-src 'none'"));
    }

    #[test]
    fn a_picture_stays_small_and_keeps_its_peaks() {
        let html = render(&page());
        // Two pictures of two devices and their frames, and little else.
        assert!(html.matches("<rect").count() < 4 * COLUMNS + 50);
        assert_eq!(html.matches("class=\"hot\"").count(), 2, "each device's anomaly");
        assert_eq!(thinned(&[1.0, f64::NAN, 3.0]), [1.0, 0.0, 3.0]);
        assert!(thinned(&[]).is_empty());
    }

    #[test]
    fn an_empty_page_is_a_page() {
        assert!(render(&Variability::default()).ends_with("</html>\n"));
    }
}
