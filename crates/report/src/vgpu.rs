//! The page of `gpuwhy vgpu`: engines, queues, requests, slices and virtual CPUs on one time axis, and who took CPUs from
//! whom; a table beside each picture.
//!
//! It has the script of the other pages, which gives all lanes one cursor, and moves and zooms by keys and mouse.

use std::fmt::Write;

use serde::Serialize;

use crate::data::{Interval, StepPlot, TimeTrack};
use crate::html::{esc, json};
use crate::page::{self, SCRIPT, hash};
use crate::pairs::Pairs;
use crate::table::{Table, shortened};

const STYLE: &str = concat!(include_str!("report.css"), include_str!("vgpu.css"));
/// Rows and columns of the matrix that are drawn; the table has more.
const DRAWN: usize = 12;
/// Sentences of a list that are shown at once.
const SENTENCES: usize = 12;

/// What the page shows.
#[derive(Clone, Debug, Default)]
pub struct Vgpu {
    /// Of which trace.
    pub title: String,
    /// Which stretch of it, and from what the numbers are.
    pub place: String,
    /// The largest change or the costliest finding, or that there is none.
    pub sentence: String,
    /// Whether there is one.
    pub stands_out: bool,
    /// How long the stretch is, ns.
    pub length_ns: i64,
    /// What changed since another run, in sentences, if there is one to compare with.
    pub changes: Vec<String>,
    /// The parts of both runs.
    pub pairs: Vec<Pairs>,
    /// What is not compared, and why.
    pub not_compared: Vec<String>,
    /// What was found, in sentences.
    pub findings: Vec<String>,
    /// What is drawn, on one time axis.
    pub tracks: Vec<TimeTrack>,
    /// Arrows between them.
    pub arrows: Vec<Arrows>,
    /// The names that the legend explains: tenants, states.
    pub legend: Vec<String>,
    /// How fine the finest level is, and what is not drawn.
    pub notes: Vec<String>,
    /// Who took CPUs from whom.
    pub matrix: Option<Matrix>,
    /// Tables, in the order in which they are shown.
    pub tables: Vec<Table>,
    /// What is not known, and what did not fit.
    pub not_known: Vec<String>,
}

/// Arrows that begin in one track.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Arrows {
    /// The place of the track in [`Vgpu::tracks`].
    pub track: usize,
    /// When each is, in page time, and the place of the track that it leads to; in the order of time.
    pub at: Vec<(i64, usize)>,
}

/// How often one took a CPU from another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matrix {
    /// From whom.
    pub of: Vec<String>,
    /// Who did it.
    pub by: Vec<String>,
    /// How often, by `of` and `by`: directly, and in the end.
    pub counts: Vec<Vec<(u64, u64)>>,
}

/// What the script draws.
#[derive(Serialize)]
struct Drawn<'a> {
    length_ns: i64,
    steps: StepPlot,
    tracks: &'a [TimeTrack],
    gaps: [(); 0],
    arrows: &'a [Arrows],
    legend: &'a [String],
    tiled: bool,
}

/// The page as one HTML document.
pub fn render(page: &Vgpu) -> String {
    let mut out = String::with_capacity(1 << 18);
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src {}; \
         script-src {}; base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>gpuwhy vgpu: {}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n",
        hash(STYLE),
        hash(SCRIPT),
        esc(&page.title),
    );
    let kind = if page.stands_out { "slow" } else { "fine" };
    let _ = write!(
        out,
        "<header class=\"{kind}\">\n<p class=\"place\">{} · {}</p>\n<h1>{}</h1>\n</header>\n",
        esc(&page.title),
        esc(&page.place),
        esc(&page.sentence)
    );
    page::toolbar(&mut out, false, false);
    out.push_str("<main>\n");
    list(&mut out, "changes", "What changed", &page.changes);
    page.pairs.iter().for_each(|pairs| pairs.write(&mut out));
    list(&mut out, "not-compared", "What is not compared", &page.not_compared);
    list(&mut out, "findings", "What was found", &page.findings);
    let whole = Interval { from: 0, to: page.length_ns };
    page::tracks(&mut out, &page.tracks, (whole, "", &[]), &page.notes);
    if let Some(matrix) = &page.matrix {
        matrix.write(&mut out);
    }
    page.tables.iter().for_each(|table| table.write(&mut out));
    list(&mut out, "not-known", "What is not known", &page.not_known);
    out.push_str("</main>\n");
    let drawn = Drawn {
        length_ns: page.length_ns,
        steps: StepPlot::default(),
        tracks: &page.tracks,
        gaps: [],
        arrows: &page.arrows,
        legend: &page.legend,
        tiled: true,
    };
    let _ = write!(
        out,
        "<script type=\"application/json\" id=\"data\">{}</script>\n<script>{SCRIPT}</script>\n\
         </body>\n</html>\n",
        json(&drawn)
    );
    out
}

/// Sentences; those beyond the first lie behind a click, so that pictures are near.
fn list(out: &mut String, id: &str, title: &str, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    let _ = writeln!(out, "<section id=\"{id}\">\n<h2>{title}</h2>");
    // One more than fits is no reason to hide it.
    let first = if lines.len() > SENTENCES + 2 { SENTENCES } else { lines.len() };
    items(out, &lines[..first]);
    if first < lines.len() {
        let _ = writeln!(out, "<details><summary>{} more</summary>", lines.len() - first);
        items(out, &lines[first..]);
        out.push_str("</details>\n");
    }
    out.push_str("</section>\n");
}

fn items(out: &mut String, lines: &[String]) {
    out.push_str("<ul>\n");
    for line in lines {
        let _ = writeln!(out, "<li>{}</li>", esc(line));
    }
    out.push_str("</ul>\n");
}

impl Matrix {
    /// As a picture: the stronger the colour, the more often. The numbers are in it and in a table.
    fn write(&self, out: &mut String) {
        const LEFT: usize = 190;
        const CELL: (usize, usize) = (90, 34);
        let (rows, columns) = (self.of.len().min(DRAWN), self.by.len().min(DRAWN));
        let (width, height) = (LEFT + columns * CELL.0 + 10, 30 + rows * CELL.1 + 6);
        let most = self.counts.iter().flatten().map(|count| count.0).max().unwrap_or(0).max(1);
        let _ = write!(
            out,
            "<section id=\"matrix\">\n<h2>Who took CPUs from virtual machines</h2>\n<p class=\"note\">Rows: whose \
             virtual CPU was preempted. Columns: who had the CPU next; in brackets, which other machine had it first \
             before the virtual CPU ran again.</p>\n<div class=\"matrix\"><svg viewBox=\"0 0 {width} {height}\" \
             role=\"img\" aria-label=\"Preemptions by whom. The table below says the same.\">\n"
        );
        for (at, name) in self.by.iter().take(columns).enumerate() {
            let x = LEFT + at * CELL.0 + CELL.0 / 2;
            let (name, _) = shortened(name, 13);
            let _ =
                writeln!(out, "<text class=\"by soft\" x=\"{x}\" y=\"20\">{}</text>", esc(&name));
        }
        for (row, (name, counts)) in self.of.iter().zip(&self.counts).take(rows).enumerate() {
            let y = 30 + row * CELL.1;
            let (name, _) = shortened(name, 26);
            let _ = writeln!(
                out,
                "<text class=\"of\" x=\"{}\" y=\"{}\">{}</text>",
                LEFT - 10,
                y + 22,
                esc(&name)
            );
            for (at, (direct, eventual)) in counts.iter().take(columns).enumerate() {
                let x = LEFT + at * CELL.0;
                let depth = 0.75 * *direct as f64 / most as f64;
                let _ = writeln!(
                    out,
                    "<rect class=\"cell\" x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\" fill-opacity=\"{depth:.2}\"/>\
                     <rect class=\"frame\" x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\"/><text class=\"count\" \
                     x=\"{}\" y=\"{}\">{direct} ({eventual})</text>",
                    CELL.0,
                    CELL.1,
                    CELL.0,
                    CELL.1,
                    x + CELL.0 / 2,
                    y + 22
                );
            }
        }
        let left_out = (self.of.len() - rows) + (self.by.len() - columns);
        out.push_str("</svg></div>\n");
        if left_out > 0 {
            let _ = writeln!(
                out,
                "<p class=\"note\">{left_out} rows and columns are in the table only.</p>"
            );
        }
        out.push_str("</section>\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_findings_the_first_are_shown_and_the_others_lie_behind_a_click() {
        let findings: Vec<String> = (1..=40).map(|n| format!("vGPU {n} <waits>")).collect();
        let page = render(&Vgpu { findings, length_ns: 1, ..Vgpu::default() });
        let (shown, behind) = page.split_once("<details><summary>28 more</summary>").unwrap();
        assert!(shown.contains("<li>vGPU 12 &lt;waits&gt;</li>") && !shown.contains("vGPU 13 "));
        assert!(behind.contains("<li>vGPU 40 &lt;waits&gt;</li>"), "{behind}");
        let findings = vec!["vGPU 1".to_owned(); SENTENCES + 2];
        let page = render(&Vgpu { findings, length_ns: 1, ..Vgpu::default() });
        assert_eq!(page.matches("<li>vGPU 1</li>").count(), SENTENCES + 2);
        assert!(!page.contains("more</summary>"), "{page}");
    }
}
