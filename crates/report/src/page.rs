//! The page itself: text and tables as HTML, and the data that the script draws.

use std::fmt::Write;

use serde::Serialize;

use crate::bars;
use crate::data::*;
use crate::html::{esc, json};
use crate::profile;
use crate::table;

pub(crate) const STYLE: &str = include_str!("report.css");
// One function, cut into files by what it is about, and one for tables.
pub(crate) const SCRIPT: &str = concat!(
    include_str!("script/page.js"),
    include_str!("script/colours.js"),
    include_str!("script/numbers.js"),
    include_str!("script/drawing.js"),
    include_str!("script/steps_plot.js"),
    include_str!("script/arrows.js"),
    include_str!("script/navigation.js"),
    include_str!("script/tables.js"),
);

/// How a content security policy names a text.
pub(crate) fn hash(text: &str) -> String {
    use base64::Engine;
    use sha2::Digest;
    let hash = sha2::Sha256::digest(text);
    format!("'sha256-{}'", base64::engine::general_purpose::STANDARD.encode(hash))
}

/// Slow steps that are listed one by one.
const LISTED_STEPS: usize = 100;

/// What the script needs; all else is in the HTML.
#[derive(Serialize)]
struct Drawn<'a> {
    length_ns: i64,
    steps: &'a StepPlot,
    tracks: &'a [TimeTrack],
    gaps: &'a [Gap],
}

/// The page as one HTML document. Makes no judgement and cannot fail.
pub fn render(report: &ReportData) -> String {
    let mut out = String::with_capacity(1 << 18);
    let title = format!("gpuwhy: {}", report.verdict.sentence);
    // What the browser may run and apply: our two texts and nothing else, whatever else should
    // ever get into a page.
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
         style-src {}; script-src {}; base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n",
        hash(STYLE),
        hash(SCRIPT),
        esc(&title)
    );
    header(&mut out, report);
    profile::before(&mut out, report);
    let has_steps = report.steps.series.iter().any(|s| !s.points.is_empty());
    toolbar(&mut out, !report.steps.anomalies.is_empty(), has_steps);
    out.push_str("<main>\n");
    steps(&mut out, report);
    parts(&mut out, report);
    culprits(&mut out, report);
    causes(&mut out, report);
    profile::beside(&mut out, report);
    report.threads.iter().for_each(|table| table.write(&mut out));
    let whole = Interval { from: 0, to: report.trace.length_ns };
    tracks(
        &mut out,
        &report.tracks,
        (whole, "in the anomaly", &report.steps.anomalies),
        &report.not_drawn,
    );
    report.phases.write(&mut out);
    loss(&mut out, report);
    commands(&mut out, report);
    out.push_str("</main>\n");
    let drawn = Drawn {
        length_ns: report.trace.length_ns,
        steps: &report.steps,
        tracks: &report.tracks,
        gaps: &report.gaps,
    };
    let _ = write!(
        out,
        "<script type=\"application/json\" id=\"data\">{}</script>\n<script>{SCRIPT}</script>\n\
         </body>\n</html>\n",
        json(&drawn)
    );
    out
}

/// `1 234.5 ms`-like numbers: as many digits as say something.
fn ms(value: f64) -> String {
    match value.abs() {
        v if v >= 1_000.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn signed(value: f64) -> String {
    if value > 0.0 { format!("+{}", ms(value)) } else { ms(value) }
}

fn seconds(ns: i64) -> String {
    format!("{:.3} s", ns as f64 / 1e9)
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// A class in words: `cpu_contention` is "CPU contention".
fn words(class: &str) -> String {
    let text = class.replace('_', " ");
    for name in ["cpu", "gpu", "pcie"] {
        if let Some(rest) = text.strip_prefix(name) {
            return format!("{}{rest}", name.to_uppercase());
        }
    }
    if text == "block io" { "block I/O".to_owned() } else { text }
}

fn header(out: &mut String, report: &ReportData) {
    let (v, t) = (&report.verdict, &report.trace);
    let (kind, mark) = match v.outcome {
        Outcome::Explained => ("slow", "⚠ slower than it should have been"),
        Outcome::InsufficientEvidence => ("unsure", "? slower, but the evidence is insufficient"),
        Outcome::Nothing if v.all_steps == 0 => ("unsure", "? no steps, so nothing to compare"),
        Outcome::Nothing => ("fine", "✓ nothing anomalous"),
    };
    let place: Vec<String> = [&t.host, &t.recorded, &t.path, &t.tool]
        .iter()
        .filter(|text| !text.is_empty())
        .map(|text| esc(text))
        .collect();
    let _ = write!(
        out,
        "<header class=\"{kind}\">\n<p class=\"place\">{} · {} of trace</p>\n\
         <p class=\"outcome\">{mark}</p>\n<h1>{}</h1>\n<dl class=\"tiles\">\n",
        place.join(" · "),
        seconds(t.length_ns),
        esc(&v.sentence)
    );
    let mut tile = |name: &str, value: String, more: String| {
        let _ = writeln!(out, "<div><dt>{name}</dt><dd>{value}<small>{more}</small></dd></div>");
    };
    let count = format!("{} of {} steps", v.slow_steps, v.all_steps);
    if v.outcome == Outcome::Nothing && v.all_steps > 0 {
        tile("Steps", v.all_steps.to_string(), format!("{} stood out", v.slow_steps));
        if v.baseline_ms > 0.0 {
            tile("Usual step", format!("{} ms", ms(v.baseline_ms)), String::new());
        }
    } else if v.outcome != Outcome::Nothing {
        let excess = v.observed_ms - v.baseline_ms;
        let times = if v.baseline_ms > 0.0 { v.observed_ms / v.baseline_ms } else { 1.0 };
        tile(
            "Slower by",
            format!("{} ms", signed(excess)),
            format!("{} → {} ms (×{times:.1}), {count}", ms(v.baseline_ms), ms(v.observed_ms)),
        );
        if let Some(class) = &v.class {
            tile("Class", esc(&words(class)), esc(class));
        }
        if let Some(who) = &v.culprit {
            let support = v.culprit_support.map(|s| format!("support {}", percent(s)));
            let more = [Some(whereabouts(who)).filter(|at| !at.is_empty()), support];
            let more: Vec<String> = more.into_iter().flatten().collect();
            tile("Culprit", esc(&who.label()), esc(&more.join(" · ")));
        }
        if let Some(confidence) = v.confidence {
            let next = v.runner_up.as_ref().map_or_else(String::new, |(class, c)| {
                format!("next best {} {}", esc(&words(class)), percent(*c))
            });
            let value = format!("{}{}", percent(confidence), meter(confidence));
            tile("Confidence in the class", value, next);
        }
        let share = if excess > 0.0 { v.unexplained_ms / excess } else { 0.0 };
        tile(
            "Unexplained",
            format!("{} ms", ms(v.unexplained_ms)),
            format!("{} of the excess", percent(share)),
        );
    }
    out.push_str("</dl>\n</header>\n");
}

fn whereabouts(who: &Who) -> String {
    [who.owner.as_deref(), who.cgroup.as_deref()]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(" · ")
}

/// A share as a little bar; what it says also stands beside it as a number.
fn meter(share: f64) -> String {
    let width = 60.0 * share.clamp(0.0, 1.0);
    format!(
        "<svg class=\"meter\" width=\"62\" height=\"12\" aria-hidden=\"true\"><rect class=\"rail\" \
         x=\"0.5\" y=\"0.5\" width=\"61\" height=\"11\"/><rect class=\"level\" x=\"1\" y=\"1\" \
         width=\"{width:.1}\" height=\"10\"/></svg>"
    )
}

/// Buttons to move in time; the page may have anomalies and steps to go to.
pub(crate) fn toolbar(out: &mut String, has_anomalies: bool, has_steps: bool) {
    out.push_str(
        "<nav id=\"tools\" aria-label=\"Time\" hidden>\n\
         <button data-do=\"in\" title=\"Zoom in (W)\">+</button>\
         <button data-do=\"out\" title=\"Zoom out (S)\">−</button>\
         <button data-do=\"left\" title=\"Earlier (A)\">◀</button>\
         <button data-do=\"right\" title=\"Later (D)\">▶</button>\
         <button data-do=\"whole\" title=\"The whole trace (F)\">Whole trace</button>",
    );
    if has_anomalies {
        out.push_str("<button data-do=\"anomaly\" title=\"The anomaly; again for the next one (G)\">Anomaly</button>");
    }
    if has_steps {
        out.push_str(
            "<button data-do=\"slowest\" title=\"The slowest step (X)\">Slowest step</button>",
        );
    }
    out.push_str(
        "<output id=\"range\"></output>\n<output id=\"at\" aria-live=\"polite\"></output>\n\
         <span class=\"keys\">W/S zoom · A/D move · ← → cross-hair · drag: zoom · shift+drag: move</span>\n</nav>\n<noscript><p class=\"note\">Without scripts the plots are not \
         drawn; all tables are below.</p></noscript>\n",
    );
}

fn steps(out: &mut String, report: &ReportData) {
    let plot = &report.steps;
    if plot.series.is_empty() {
        return;
    }
    let _ = write!(
        out,
        "<section id=\"steps\">\n<h2>How long each <em>{}</em> took</h2>\n\
         <p class=\"legend\"><span class=\"key-step\">●</span> step <span class=\"key-slow\">◆</span> slow step \
         <span class=\"key-band\">▒</span> usual, with its median; <span class=\"key-line\">╌</span> threshold \
         <span class=\"key-anomaly\">▒</span> anomaly <span class=\"key-gap\">▨</span> not recorded</p>\n\
         <div class=\"plot\" id=\"step-plot\" tabindex=\"0\" role=\"group\" aria-label=\"Step latency over time. The table \
         below says the same.\"></div>\n",
        esc(if plot.name.is_empty() { "step" } else { &plot.name })
    );
    out.push_str("<details><summary>As a table</summary>\n<table><thead><tr><th>when<th>whose<th class=\"n\">took, ms<th class=\"n\">usual, ms<th class=\"n\">threshold, ms</tr></thead><tbody>\n");
    let usual = |at: i64| plot.baseline.iter().find(|b| b.during.from <= at && at <= b.during.to);
    let mut slow: Vec<(&StepSeries, &StepPoint)> = plot
        .series
        .iter()
        .flat_map(|s| s.points.iter().filter(|p| p.slow).map(move |p| (s, p)))
        .collect();
    slow.sort_by(|a, b| b.1.ms.total_cmp(&a.1.ms));
    let left = slow.len().saturating_sub(LISTED_STEPS);
    slow.truncate(LISTED_STEPS);
    slow.sort_by_key(|(_, p)| p.at);
    for (series, point) in &slow {
        let (median, threshold) = usual(point.at)
            .map_or_else(Default::default, |b| (ms(b.median_ms), ms(b.threshold_ms)));
        let _ = writeln!(
            out,
            "<tr><td>{}<td>{}<td class=\"n\">{}<td class=\"n\">{median}<td class=\"n\">{threshold}</tr>",
            seconds(point.at),
            esc(&series.name),
            ms(point.ms)
        );
    }
    let all: usize = plot.series.iter().map(|s| s.points.len()).sum();
    let _ = writeln!(
        out,
        "</tbody></table>\n<p class=\"note\">{} slow steps listed{}; {all} steps drawn.</p></details>",
        slow.len(),
        if left > 0 { format!(", {left} quicker ones of them left out") } else { String::new() }
    );
    if !plot.anomalies.is_empty() {
        out.push_str("<p class=\"note\">Anomalies: ");
        for (i, a) in plot.anomalies.iter().take(50).enumerate() {
            let sep = if i > 0 { ", " } else { "" };
            let _ = write!(out, "{sep}{}", goto(*a));
        }
        out.push_str("</p>\n");
    }
    out.push_str("</section>\n");
}

/// An interval as a button that brings it into view.
fn goto(during: Interval) -> String {
    table::goto(during.from, during.to)
}

fn parts(out: &mut String, report: &ReportData) {
    if report.parts.is_empty() {
        return;
    }
    let _ = write!(
        out,
        "<section id=\"parts\">\n<h2>Where the time of a step went</h2>\n{}\
         <table><thead><tr><th>part<th class=\"n\">usual, ms<th class=\"n\">slow, ms<th class=\"n\">excess, ms\
         <th>mostly because of</tr></thead><tbody>\n",
        bars::svg(&report.parts)
    );
    let (mut usual, mut slow) = (0.0, 0.0);
    for (i, part) in report.parts.iter().enumerate() {
        usual += part.baseline_ms;
        slow += part.anomalous_ms;
        let _ = writeln!(
            out,
            "<tr><td>{} {} <code>{}</code><td class=\"n\">{}<td class=\"n\">{}<td class=\"n\">{}<td>{}</tr>",
            bars::swatch(i),
            esc(bars::label(&part.kind)),
            esc(&part.kind),
            ms(part.baseline_ms),
            ms(part.anomalous_ms),
            signed(part.excess_ms()),
            part.blame.as_deref().map_or_else(String::new, esc)
        );
    }
    let _ = write!(
        out,
        "</tbody><tfoot><tr><th>sum<td class=\"n\">{}<td class=\"n\">{}<td class=\"n\">{}<td></tr></tfoot></table>\n</section>\n",
        ms(usual),
        ms(slow),
        signed(slow - usual)
    );
}

fn culprits(out: &mut String, report: &ReportData) {
    if report.culprits.is_empty() {
        return;
    }
    out.push_str(
        "<section id=\"culprits\">\n<h2>Who took it</h2>\n<table><thead><tr><th>who<th>took<th>cgroup, owner\
         <th class=\"n\">ms a step<th class=\"n\">share of the excess</tr></thead><tbody>\n",
    );
    for row in &report.culprits {
        let _ = writeln!(
            out,
            "<tr><td><b>{}</b><td class=\"w\">{}<td>{}<td class=\"n\">{}<td class=\"n\">{} {}</tr>",
            esc(&row.who.label()),
            esc(&row.what),
            esc(&whereabouts(&row.who)),
            ms(row.excess_ms),
            meter(row.share),
            percent(row.share)
        );
    }
    out.push_str("</tbody></table>\n</section>\n");
}

fn causes(out: &mut String, report: &ReportData) {
    if report.causes.is_empty() {
        return;
    }
    out.push_str("<section id=\"causes\">\n<h2>Explanations, ranked</h2>\n");
    for (i, cause) in report.causes.iter().enumerate() {
        let who =
            cause.culprit.as_ref().map_or_else(String::new, |w| format!(" by {}", esc(&w.label())));
        let support = cause.culprit_support.map(|s| format!(" · culprit supported {}", percent(s)));
        let _ = write!(
            out,
            "<article>\n<h3>{}. {}{who}</h3>\n<p class=\"facts\">{}{} confidence in the class{} · {} ms a step · \
             <code>{}</code></p>\n<p>{}</p>\n<div class=\"sides\">\n",
            i + 1,
            esc(&words(&cause.class)),
            meter(cause.confidence),
            percent(cause.confidence),
            support.unwrap_or_default(),
            ms(cause.excess_ms),
            esc(&cause.class),
            esc(&cause.summary)
        );
        evidence(out, "✓ for it", "for", &cause.evidence_for, &report.trace);
        evidence(out, "✗ against it", "against", &cause.evidence_against, &report.trace);
        out.push_str("</div>\n");
        if let Some(command) = &cause.verify {
            let _ = writeln!(out, "<p>To check it:</p>{}", copyable(command));
        }
        out.push_str("</article>\n");
    }
    out.push_str("</section>\n");
}

fn evidence(out: &mut String, title: &str, class: &str, list: &[Evidence], trace: &TraceInfo) {
    let _ = writeln!(out, "<div class=\"{class}\"><h4>{title}</h4>");
    if list.is_empty() {
        out.push_str("<p class=\"note\">nothing seen</p>");
    } else {
        out.push_str("<ul>\n");
        for item in list {
            let _ = write!(out, "<li>{}", esc(&item.text));
            if let Some(rows) = &item.rows {
                let track = rows.track.map_or_else(String::new, |t| format!(" track {t}"));
                let _ = write!(
                    out,
                    "<br><span class=\"rows\"><code>{}</code>{track} {}</span><details><summary>rows as SQL</summary>{}</details>",
                    esc(&rows.table),
                    goto(rows.during),
                    copyable(&rows.sql(trace))
                );
            }
            out.push_str("</li>\n");
        }
        out.push_str("</ul>");
    }
    out.push_str("</div>\n");
}

impl RowsRef {
    /// The rows as a query for DuckDB, with times of the trace clock.
    pub fn sql(&self, trace: &TraceInfo) -> String {
        let quote = |text: &str| text.replace('\'', "''");
        let column = |name: &str| {
            let table = gpuwhy_schema::docs::golden();
            let mut lines = table.lines().skip_while(|l| l.split(' ').next() != Some(&self.table));
            lines.next();
            lines
                .take_while(|l| l.starts_with(' '))
                .any(|l| l.trim().split(':').next() == Some(name))
        };
        let at = |t: i64| trace.start_ns.saturating_add(t);
        let mut sql = format!(
            "select * from '{}/{}/*.parquet'",
            quote(trace.path.trim_end_matches('/')),
            quote(&self.table)
        );
        let mut and = " where";
        if let Some(track) = self.track.filter(|_| column("track")) {
            let _ = write!(sql, "{and} track = {track}");
            and = " and";
        }
        if column("ts") && !self.during.is_empty() {
            let _ = write!(sql, "{and} ts < {}", at(self.during.to));
            let end = if column("dur") { "ts + coalesce(dur, 0)" } else { "ts" };
            let _ = write!(sql, " and {end} >= {} order by ts", at(self.during.from));
        }
        sql
    }
}

fn copyable(command: &str) -> String {
    format!(
        "<div class=\"copy\"><pre tabindex=\"0\">{}</pre><button data-do=\"copy\" hidden>Copy</button></div>",
        esc(command)
    )
}

/// The time tracks and a table that sums them up, over all the time and over some stretches, which have a name.
pub(crate) fn tracks(
    out: &mut String,
    tracks: &[TimeTrack],
    (whole, name, close): (Interval, &str, &[Interval]),
    not_drawn: &[String],
) {
    if tracks.is_empty() {
        return;
    }
    let _ = write!(
        out,
        "<section id=\"tracks\">\n<h2>What happened at the same time</h2>\n<p class=\"legend\" id=\"state-legend\"></p>\n\
         <div class=\"plot\" id=\"track-plots\" tabindex=\"0\" role=\"group\" aria-label=\"Time tracks. The table below \
         sums them up.\"></div>\n<details><summary>As a table</summary>\n<table><thead><tr><th>whose<th>track\
         <th>in all the time shown{}</tr></thead><tbody>\n",
        if name.is_empty() { String::new() } else { format!("<th>{}", esc(name)) }
    );
    for track in tracks {
        let _ = writeln!(
            out,
            "<tr><td>{}<td>{}<td>{}{}</tr>",
            esc(&track.group),
            esc(&track.label),
            esc(&sum_up(&track.lane, &[whole])),
            match name {
                "" => String::new(),
                _ => format!("<td>{}", esc(&sum_up(&track.lane, close))),
            }
        );
    }
    out.push_str(
        "</tbody></table>\n<p class=\"note\">Taken from what is drawn; shares are of the time in which the track was \
         looked at.</p></details>\n",
    );
    for line in not_drawn {
        let _ = writeln!(out, "<p class=\"note\">{}</p>", esc(line));
    }
    out.push_str("</section>\n");
}

/// A track within `during`, in words: shares of states, mean and peak of measurements.
fn sum_up(lane: &Lane, during: &[Interval]) -> String {
    let within = |from: i64, to: i64| -> i64 {
        during.iter().map(|d| (to.min(d.to) - from.max(d.from)).max(0)).sum()
    };
    match lane {
        Lane::Bands { values, levels } => {
            let mut held = vec![0_i64; values.len()];
            for band in levels.first().map_or(&[][..], |l| &l.items) {
                if let Some(sum) = held.get_mut(band.2 as usize) {
                    *sum += within(band.0, band.1);
                }
            }
            let all: i64 = held.iter().sum();
            let mut shares: Vec<(&String, i64)> =
                values.iter().zip(held).filter(|(_, held)| *held > 0).collect();
            shares.sort_by_key(|(_, held)| std::cmp::Reverse(*held));
            let text: Vec<String> = shares
                .iter()
                .take(5)
                .map(|(name, held)| format!("{name} {}", percent(*held as f64 / all as f64)))
                .collect();
            if text.is_empty() { "not recorded".to_owned() } else { text.join(", ") }
        }
        Lane::Stack { values, levels } => {
            let mut held = vec![0.0; values.len()];
            let mut all = 0;
            for shares in levels.first().map_or(&[][..], |l| &l.items) {
                let time = within(shares.0, shares.1);
                all += time;
                for (sum, share) in held.iter_mut().zip(&shares.2) {
                    *sum += share * time as f64;
                }
            }
            let share = |(name, sum): (&String, f64)| format!("{name} {:.1} %", sum / all as f64);
            let text: Vec<String> = values.iter().zip(held).map(share).collect();
            if all == 0 { "not recorded".to_owned() } else { text.join(", ") }
        }
        Lane::Line { unit, levels } => {
            let (mut sum, mut time, mut peak) = (0.0, 0, f64::NEG_INFINITY);
            for p in levels.first().map_or(&[][..], |l| &l.items) {
                let part = within(p.0, p.1);
                if part > 0 {
                    sum += p.2 * part as f64;
                    time += part;
                    peak = peak.max(p.3);
                }
            }
            if time == 0 {
                return "not recorded".to_owned();
            }
            format!("mean {} {unit}, peak {} {unit}", ms(sum / time as f64), ms(peak))
        }
    }
}

fn loss(out: &mut String, report: &ReportData) {
    out.push_str("<section id=\"loss\">\n<h2>What was recorded, and what was lost</h2>\n");
    if !report.sources.is_empty() {
        out.push_str(
            "<table><thead><tr><th>source<th>state<th class=\"n\">recorded<th class=\"n\">lost<th class=\"n\">one in<th>note</tr></thead><tbody>\n",
        );
        for s in &report.sources {
            let mark = match s.state.as_str() {
                "ok" => "✓",
                "degraded" => "◐",
                _ => "✗",
            };
            let _ = writeln!(
                out,
                "<tr><td><code>{}</code><td class=\"state-{}\">{mark} {}<td class=\"n\">{}<td class=\"n\">{}<td class=\"n\">{}<td>{}</tr>",
                esc(&s.kind),
                if mark == "✓" { "ok" } else { "not" },
                esc(&s.state),
                s.recorded,
                if s.dropped > 0 { format!("<b>{}</b>", s.dropped) } else { "0".to_owned() },
                s.one_in,
                esc(&s.note)
            );
        }
        out.push_str("</tbody></table>\n");
    }
    profile::rests_on(out, report);
    if report.gaps.is_empty() {
        out.push_str("<p>No gaps in what was recorded.</p>\n");
    } else {
        out.push_str("<h3>Gaps</h3>\n<ul>\n");
        for gap in report.gaps.iter().take(200) {
            let _ = writeln!(out, "<li>{} {}</li>", goto(gap.during), esc(&gap.what));
        }
        out.push_str("</ul>\n");
        if report.gaps.len() > 200 {
            let _ = writeln!(out, "<p class=\"note\">and {} more</p>", report.gaps.len() - 200);
        }
    }
    if !report.not_collected.is_empty() {
        out.push_str("<h3>Not collected</h3>\n<table><thead><tr><th>what<th>why not<th>what would change that</tr></thead><tbody>\n");
        for n in &report.not_collected {
            let _ = writeln!(
                out,
                "<tr><td>{}<td>{}<td>{}</tr>",
                esc(&n.what),
                esc(&n.why),
                esc(&n.fix)
            );
        }
        out.push_str("</tbody></table>\n");
    }
    out.push_str("</section>\n");
}

fn commands(out: &mut String, report: &ReportData) {
    if report.commands.is_empty() {
        return;
    }
    out.push_str("<section id=\"again\">\n<h2>Again, and further</h2>\n");
    for command in &report.commands {
        let _ = writeln!(out, "<p>{}</p>{}", esc(&command.what), copyable(&command.line));
    }
    out.push_str("</section>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_asked_for_by_the_columns_that_their_table_has() {
        let trace = TraceInfo { path: "a'b.trace/".into(), start_ns: 1_000, ..Default::default() };
        let sql = |table: &str, track| {
            RowsRef { table: table.into(), track, during: Interval { from: 5, to: 9 } }.sql(&trace)
        };
        assert_eq!(
            sql("state", Some(7)),
            "select * from 'a''b.trace/state/*.parquet' where track = 7 and ts < 1009 \
             and ts + coalesce(dur, 0) >= 1005 order by ts"
        );
        assert_eq!(
            sql("wakeup", Some(7)),
            "select * from 'a''b.trace/wakeup/*.parquet' where ts < 1009 and ts >= 1005 order by ts"
        );
        assert_eq!(sql("cause", None), "select * from 'a''b.trace/cause/*.parquet'");
    }

    #[test]
    fn classes_read_as_people_say_them() {
        assert_eq!(words("cpu_contention"), "CPU contention");
        assert_eq!(words("block_io"), "block I/O");
        assert_eq!(words("lock_contention"), "lock contention");
    }
}
