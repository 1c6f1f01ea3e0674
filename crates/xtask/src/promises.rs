//! Each promise of docs/threat-model.md names what holds it, and what it names is there: a test that was
//! renamed or removed takes no promise with it unseen.
//!
//! In tables whose last column is called `test…` or `check…`, each row names something or says `by
//! construction`, and what looks like a name (`lower_case`) is a test, a fuzz target or a figure that is
//! measured. Tests that a macro makes are known by the names that it is given.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};

use crate::source;

/// The page.
const PAGE: &str = "docs/threat-model.md";
/// Where the kills of the in-process library are told.
const KILLS: &str = "crates/inject/tests/kills.rs";

/// Promises that nothing holds.
pub fn run(root: &Path) -> Result<Vec<String>> {
    let read = |name: &str| {
        std::fs::read_to_string(root.join(name)).with_context(|| format!("cannot read `{name}`"))
    };
    let mut there = There { kills: read(KILLS)?, ..There::default() };
    for path in source::files(root)? {
        if path.extension().is_some_and(|e| e == "rs") {
            there.add_tests(&source::code_only(&read(&path.to_string_lossy())?));
        }
    }
    there.add_fuzz_targets(&read("fuzz/Cargo.toml")?);
    there.add_figures(&read("bench/keys.toml")?);
    Ok(check(&read(PAGE)?, &there))
}

/// What a promise may name.
#[derive(Default)]
struct There {
    names: BTreeSet<String>,
    kills: String,
}

impl There {
    /// Adds the tests of a file whose comments and literals were blanked.
    fn add_tests(&mut self, code: &str) {
        let lines: Vec<&str> = code.lines().map(str::trim).collect();
        let is_attribute = |line: &&&str| line.starts_with("#[") || line.is_empty();
        for (at, line) in lines.iter().enumerate() {
            let Some((_, name)) = line.split_once("fn ") else { continue };
            let attributes = || lines[..at].iter().rev().take_while(is_attribute);
            if attributes().any(|line| line.starts_with("#[test]") || line.contains("::test")) {
                self.names.extend(words(name).next().map(str::to_owned));
            }
        }
        // Of a macro that makes tests, all that it is given may be their names.
        if code.contains("macro_rules!") && code.contains("#[test]") {
            self.names.extend(words(code).filter(|word| is_name(word)).map(str::to_owned));
        }
    }

    fn add_fuzz_targets(&mut self, manifest: &str) {
        let name = |line: &str| Some(line.strip_prefix("name = \"")?.strip_suffix('"')?.to_owned());
        let targets = manifest.split("[[bin]]").skip(1).flat_map(str::lines).filter_map(name);
        self.names.extend(targets);
    }

    fn add_figures(&mut self, keys: &str) {
        let key = |line: &str| Some(line.split_once(" = ")?.0.to_owned());
        self.names.extend(keys.lines().filter_map(key));
    }
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// `a_test_that_is_called_so`; not `root_`, with which names begin.
fn is_name(text: &str) -> bool {
    let is_lower = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
    text.contains('_') && !text.ends_with('_') && text.bytes().all(is_lower)
}

/// What a page says that is not so, with its line.
fn check(page: &str, there: &There) -> Vec<String> {
    let (mut found, mut is_of_tests) = (Vec::new(), false);
    let mut before = "";
    for (at, line) in page.lines().enumerate() {
        let row = line.strip_prefix("| ").and_then(|row| row.strip_suffix(" |"));
        let last = row.and_then(|row| row.rsplit(" | ").next());
        if let Some(last) = last {
            if !before.starts_with('|') {
                is_of_tests = last.starts_with("test") || last.starts_with("check");
            } else if is_of_tests {
                let says = |what| format!("{PAGE}:{}: {what}", at + 1);
                found.extend(unheld(last, there).into_iter().map(says));
            }
        }
        before = line;
    }
    found
}

/// What is wrong with the cell that says what holds a promise.
fn unheld(cell: &str, there: &There) -> Vec<String> {
    let quoted: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
    if quoted.is_empty() && !cell.contains("by construction") {
        return vec!["the promise names nothing that holds it".into()];
    }
    let missing = quoted.iter().filter(|name| is_name(name) && !there.names.contains(**name));
    let mut all: Vec<String> =
        missing.map(|name| format!("there is no test, fuzz target or figure `{name}`")).collect();
    let kill = cell.split_once("kills: `").and_then(|(_, rest)| rest.split('`').next());
    if let Some(kill) = kill.filter(|kill| !there.kills.contains(*kill)) {
        all.push(format!("{KILLS} has no `{kill}`"));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there() -> There {
        let mut there = There { kills: "\"an agent that dies\"".into(), ..There::default() };
        there.add_tests(
            "#[test]\n#[ignore]\nfn a_test() {}\n\n    #[tokio::test]\n    async fn another_test() {}\n\
             fn no_test() {}\n",
        );
        there
            .add_tests("macro_rules! m { () => { #[test] fn $n() {} } }\nm! { made_by_a_macro }\n");
        there.add_fuzz_targets("[package]\nname = \"not_this\"\n[[bin]]\nname = \"journal_x\"\n");
        there.add_figures("[safety]\nrss_mib = \"memory\"\n");
        there
    }

    #[test]
    fn a_promise_whose_test_was_renamed_is_named_with_its_line() {
        let page = "| promise | test |\n|---|---|\n| a | `a_test`, `another_test` (`root_` too) |\n\
            | b | `made_by_a_macro`; fuzz target `journal_x`; `rss_mib` |\n| c | `no_test` |\n\
            | d | `was_renamed`, `a_test` |\n| e | nothing |\n| f | by construction: it is so |\n\
            | g | kills: `an agent that dies` |\n| h | kills: `an agent that was renamed` |\n\n\
            | who | may |\n|---|---|\n| i | `what_ever` |\n";
        let lines = check(page, &there());
        let at: Vec<&str> = lines.iter().filter_map(|l| l.split(": ").next()).collect();
        assert_eq!(at, [5, 6, 7, 10].map(|n| format!("{PAGE}:{n}")));
        assert!(lines[1].ends_with("`was_renamed`"), "{lines:?}");
    }
}
