//! Nothing of one machine is committed: no paths of a developer's machine, no registry hosts (a
//! mirror may serve them under another name), no big or generated files.

use std::path::Path;

use anyhow::{Context, Result};

use crate::source;

/// Texts that must not stand in a file. Cut in two, so that this file passes its own check.
const TEXTS: &[(&str, &str)] = &[
    (concat!("/wo", "rk/"), "a path of one machine"),
    (concat!("/fa", "rm/"), "a path of one machine"),
    (concat!("/ro", "ot/"), "a path of one machine"),
    (concat!("/tmp/", "research"), "a path of one machine"),
    (concat!("/tmp/", "bash_jobs"), "a path of one machine"),
    (concat!("/tmp/", "target"), "a path of one machine"),
    (concat!("/tmp/", "brief"), "a path of one machine"),
    (concat!("pypi", ".org"), "a registry host"),
    (concat!("pythonhosted", ".org"), "a registry host"),
    (concat!("deb.debian", ".org"), "a registry host"),
    (concat!("registry", ".npmjs", ".org"), "a registry host"),
    (concat!("static.crates", ".io"), "a registry host"),
    (concat!("index.crates", ".io"), "a registry host"),
];

/// Larger files belong into a release or are made by a command.
const MOST_BYTES: u64 = 1 << 20;
/// What was measured may be larger: the labels and answers of a thousand trials are one file.
const MOST_RESULT_BYTES: u64 = 2 << 20;

/// Every leak in the repository's files.
pub fn run(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for path in source::files(root)? {
        let name = path.display().to_string();
        let full = root.join(&path);
        let bytes = full.metadata().with_context(|| format!("cannot look at `{name}`"))?.len();
        if let Some(what) = misplaced(&name, bytes) {
            found.push(what);
            continue;
        }
        // Lock files name the registry that answered; their tools write them.
        if name.ends_with(".lock") || name.ends_with("package-lock.json") {
            continue;
        }
        let text = std::fs::read(&full).with_context(|| format!("cannot read `{name}`"))?;
        // Binary files (a fuzz corpus, an image) hold anything.
        if let Ok(text) = String::from_utf8(text) {
            found.extend(check(&name, &text));
        }
    }
    Ok(found)
}

fn misplaced(name: &str, bytes: u64) -> Option<String> {
    let file = name.rsplit('/').next().unwrap_or(name);
    if file == "vmlinux.h" {
        return Some(format!("{name}: declare the few kernel types that are needed instead"));
    }
    if name.split('/').any(|part| part == "node_modules" || part == "__pycache__") {
        return Some(format!("{name}: an installed or generated file"));
    }
    let most = if name.starts_with("bench/results/") { MOST_RESULT_BYTES } else { MOST_BYTES };
    (bytes > most).then(|| format!("{name}: {bytes} bytes, more than {most}"))
}

fn check(name: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (i, line) in text.lines().enumerate() {
        for (what, why) in TEXTS {
            // A path that only ends so (`target/work/x`, `/proc/PID/root/`) is another path.
            let starts = |at: usize| {
                let before = line[..at].chars().next_back();
                !what.starts_with('/')
                    || !before.is_some_and(|c| c.is_alphanumeric() || "_.-}*".contains(c))
            };
            if line.match_indices(what).any(|(at, _)| starts(at)) {
                found.push(format!("{name}:{}: `{what}` is {why}", i + 1));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_one_machine_is_named_with_its_line() {
        let line = concat!("x\ncd /wo", "rk/main");
        let said = concat!("a.md:2: `/wo", "rk/` is a path of one machine");
        assert_eq!(check("a.md", line), [said]);
    }

    #[test]
    fn paths_that_only_end_so_pass() {
        assert!(check("a.md", concat!("target/wo", "rk/x and /proc/7/ro", "ot/etc")).is_empty());
    }

    #[test]
    fn a_registry_host_is_named_within_any_address() {
        let line = concat!("https://registry", ".npmjs", ".org/left-pad");
        assert_eq!(check("a.mjs", line).len(), 1);
    }

    #[test]
    fn generated_and_big_files_do_not_belong() {
        assert!(misplaced("crates/collect/src/bpf/vmlinux.h", 10).is_some());
        assert!(misplaced("scripts/oracle/node_modules/x.js", 10).is_some());
        assert!(misplaced("docs/a.png", MOST_BYTES + 1).is_some());
        assert!(misplaced("docs/a.png", MOST_BYTES).is_none());
        assert!(misplaced("bench/results/a.json", MOST_BYTES + 1).is_none());
        assert!(misplaced("bench/results/a.json", MOST_RESULT_BYTES + 1).is_some());
    }
}
