//! How many files an addition touches, as the commits show that made one of each kind.
//!
//! Such a commit says so in a trailer, `Adds: a probe`, so that it is found in any clone.

use std::fmt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// What is added often, and the word of its trailer.
const KINDS: &[&str] = &["probe", "class", "importer", "subcommand"];

/// One addition.
pub struct Addition {
    /// What was added.
    pub what: &'static str,
    /// The commit.
    pub commit: String,
    /// Code, tests included: an importer's own folder left out.
    pub code: Vec<String>,
    /// Pages and changelog.
    pub pages: Vec<String>,
}

impl Addition {
    /// For `bench/results/house.json`.
    pub fn json(&self) -> Value {
        json!({
            "added": self.what, "commit": self.commit, "files": self.code.join(" "),
            "pages": self.pages.join(" "),
        })
    }
}

impl fmt::Display for Addition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Addition { what, commit, code, .. } = self;
        let article = if what.starts_with('i') { "an" } else { "a" };
        write!(f, "{article} {what} touched {} files ({commit}): {}", code.len(), code.join(" "))
    }
}

/// The latest addition of each kind in the history of `root`; a shallow clone may lack some.
pub fn find(root: &Path) -> Result<Vec<Addition>> {
    let mut found = Vec::new();
    for what in KINDS {
        let grep = format!("--grep=^Adds: an\\? {what}$");
        let log = git(root, &["log", "-1", "--format=%h", &grep])?;
        let commit = log.trim();
        if commit.is_empty() {
            continue;
        }
        let names = git(root, &["show", "--format=", "--name-only", commit])?;
        let (pages, mut code): (Vec<String>, Vec<String>) =
            names.lines().map(str::to_owned).partition(|name| is_page(name));
        if *what == "importer" {
            // The folder that it brought is its own.
            let new = git(root, &["show", "--format=", "--name-only", "--diff-filter=A", commit])?;
            let own: Vec<&str> = new.lines().filter_map(|name| folder(name)).collect();
            code.retain(|name| folder(name).is_none_or(|f| !own.contains(&f)));
        }
        found.push(Addition { what, commit: commit.to_owned(), code, pages });
    }
    Ok(found)
}

fn is_page(name: &str) -> bool {
    name.ends_with(".md") || name == "Cargo.lock"
}

/// The folder of an importer's file: `crates/formats/src/NAME`.
fn folder(name: &str) -> Option<&str> {
    let rest = name.strip_prefix("crates/formats/src/")?;
    let (folder, _) = rest.split_once('/')?;
    name.get(..name.len() - rest.len() + folder.len())
}

fn git(root: &Path, args: &[&str]) -> Result<String> {
    let out =
        Command::new("git").args(args).current_dir(root).output().context("cannot run git")?;
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}
