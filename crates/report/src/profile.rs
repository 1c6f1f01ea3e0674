//! What a verdict says besides its first finding: what was judged, what a profile rests on, the phases of its
//! programs, and the other findings.

use std::fmt::Write;

use crate::data::ReportData;
use crate::html::esc;

/// Lines on what was judged that are shown without being asked for.
const JUDGED: usize = 5;

/// What stands before everything else: it qualifies all of it.
pub fn before(out: &mut String, report: &ReportData) {
    for source in &report.incomplete {
        let _ = writeln!(out, "<p class=\"warning\">⚠ This {}.</p>", esc(source));
    }
    let many = report.judged.len() > JUDGED;
    if many {
        let _ =
            writeln!(out, "<details><summary>What was judged ({})</summary>", report.judged.len());
    }
    for line in &report.judged {
        let _ = writeln!(out, "<p class=\"note\">{}</p>", esc(line));
    }
    if many {
        out.push_str("</details>\n");
    }
    for says in &report.mostly {
        let _ = writeln!(out, "<p class=\"mostly\">{}.</p>", esc(says));
    }
}

/// What stands after the explanations.
pub fn beside(out: &mut String, report: &ReportData) {
    if report.without.is_some() || !report.ruled_out.is_empty() {
        out.push_str("<section id=\"checked\">\n");
        if let Some(without) = &report.without {
            let _ = writeln!(out, "<p>{}</p>", esc(without));
        }
        if !report.ruled_out.is_empty() {
            out.push_str("<h2>Checked, and not it</h2>\n<ul>\n");
            for says in &report.ruled_out {
                let _ = writeln!(out, "<li>{}</li>", esc(says));
            }
            out.push_str("</ul>\n");
        }
        out.push_str("</section>\n");
    }
    report.others.write(out);
}

/// What verdicts rest on, where a profiler recorded.
pub fn rests_on(out: &mut String, report: &ReportData) {
    for line in &report.rests_on {
        let _ = writeln!(out, "<p>{}</p>", esc(line));
    }
}
