//! What is known of each class of cause, in words: for people and for programs.

use std::fmt::Write as _;

use gpuwhy_diagnose::classes::{self, ClassSpec};
use gpuwhy_schema::PartKind;
use serde_json::{Value, json};

/// One line a class.
pub fn list() -> String {
    let mut out = String::new();
    for spec in classes::ALL {
        let _ = writeln!(out, "{:<21} {}", spec.class.as_str(), spec.class.doc());
    }
    out + "\n`gpuwhy explain CLASS` says how one is recognised, how to verify it, and what fools it.\n"
}

/// All about one class.
pub fn page(spec: &ClassSpec) -> String {
    let mut out = format!("{}: {}\n", spec.class, spec.class.doc());
    for (title, text) in sections(spec) {
        let _ = write!(out, "\n{title}\n{}", wrapped(&text));
    }
    out
}

/// What is said of a class, each with its title.
fn sections(spec: &ClassSpec) -> Vec<(&'static str, String)> {
    let part = |kind: PartKind| format!("{kind} ({})", kind.doc().trim_end_matches('.'));
    let parts: Vec<String> = spec.kinds().map(part).collect();
    let sources: Vec<&str> = spec.sources().map(|source| source.kind).collect();
    let verify = [spec.verify.culprit, Some(spec.verify.otherwise)];
    let verify: Vec<&str> = verify.into_iter().flatten().collect();
    [
        ("What it looks like", spec.looks_like.to_owned()),
        ("Parts of a step that point to it", parts.join("; ")),
        ("Evidence", spec.evidence.to_owned()),
        ("Sources without which it is seen less well", sources.join(", ")),
        ("How to verify it", verify.join(". Without a culprit: ").replace("{pid}", "PID")),
        ("What fools it", spec.fooled_by.to_owned()),
    ]
    .into_iter()
    .filter(|(_, text)| !text.is_empty())
    .collect()
}

/// The same for programs.
pub fn document(spec: &ClassSpec) -> Value {
    json!({
        "class": spec.class.as_str(),
        "meaning": spec.class.doc(),
        "looks_like": spec.looks_like,
        "parts": spec.kinds().map(|kind| kind.to_string()).collect::<Vec<_>>(),
        "evidence": spec.evidence,
        "sources": spec.sources().map(|source| source.kind).collect::<Vec<_>>(),
        "verify_culprit": spec.verify.culprit,
        "verify_otherwise": spec.verify.otherwise,
        "fooled_by": spec.fooled_by,
    })
}

/// Text in lines of at most 100 characters, indented by two; what stands between backticks is not cut.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    let mut quoted = false;
    let is_gap = |c: char| {
        quoted ^= c == '`';
        !quoted && c.is_whitespace()
    };
    for word in text.split(is_gap).filter(|word| !word.is_empty()) {
        if lines.last().is_some_and(|line| line.len() + word.len() >= 97 && !line.is_empty()) {
            lines.push(String::new());
        }
        let line = lines.last_mut().expect("there is a first line");
        *line += if line.is_empty() { "" } else { " " };
        *line += word;
    }
    lines.into_iter().map(|line| format!("  {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_is_explained_by_what_it_looks_like_its_evidence_and_how_to_verify_it() {
        for spec in classes::ALL {
            let page = page(spec);
            assert!(page.starts_with(spec.class.as_str()), "{page}");
            for title in ["What it looks like", "Evidence", "How to verify it", "What fools it"] {
                assert!(page.contains(&format!("\n{title}\n  ")), "{title}: {page}");
            }
            assert!(page.lines().all(|line| line.chars().count() <= 110), "{page}");
            assert!(list().contains(spec.class.doc()), "{}", spec.class);
        }
    }
}
