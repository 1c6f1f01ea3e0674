//! The generated pages: `docs/schema.md` from the declarations in `schema`, `docs/cli.md` from
//! the program's own help, and benchmark tables between their markers from `bench/results`.
//!
//! A page that can be made is never written by hand, and `cargo xtask docs --check` fails when
//! one lags behind, or when a link between pages leads nowhere.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{bench, source};

/// Writes every generated page that differs.
pub fn write(root: &Path) -> Result<()> {
    for (path, text) in pages(root)? {
        if std::fs::read_to_string(root.join(&path)).is_ok_and(|old| old == text) {
            continue;
        }
        std::fs::write(root.join(&path), text)
            .with_context(|| format!("cannot write `{}`", path.display()))?;
        println!("docs: wrote {}", path.display());
    }
    Ok(())
}

/// The pages that are not what [`write()`] would make of them, with the first line that differs.
pub fn stale(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for (path, text) in pages(root)? {
        let old = std::fs::read_to_string(root.join(&path)).unwrap_or_default();
        if let Some((line, is, should)) = first_difference(&old, &text) {
            found.push(format!(
                "{}:{line} says `{is}` where `{should}` belongs; run `cargo xtask docs`",
                path.display()
            ));
        }
    }
    for path in markdown(root)? {
        let text = std::fs::read_to_string(root.join(&path))
            .with_context(|| format!("cannot read `{}`", path.display()))?;
        let folder = root.join(&path);
        let folder = folder.parent().unwrap_or(root);
        for (line, target) in links(&text) {
            if !folder.join(target).exists() {
                found.push(format!("{}:{line} leads to `{target}`, not there", path.display()));
            }
        }
    }
    Ok(found)
}

/// The pages for people: those at the root and in `docs/`.
fn markdown(root: &Path) -> Result<Vec<PathBuf>> {
    let mut pages = source::files(root)?;
    pages.retain(|path| {
        let is_ours = path.parent() == Some(Path::new("")) || path.starts_with("docs");
        is_ours && path.extension().is_some_and(|e| e == "md")
    });
    Ok(pages)
}

/// The links of a page that lead to files of the repository, with their lines from 1.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (i, line) in text.lines().enumerate() {
        for rest in line.split("](").skip(1) {
            let target = rest.split([')', '#']).next().unwrap_or("");
            if !target.is_empty() && !target.contains("://") {
                found.push((i + 1, target));
            }
        }
    }
    found
}

/// Every page that is made, wholly or in part: its path from `root` and its whole text.
fn pages(root: &Path) -> Result<Vec<(PathBuf, String)>> {
    let mut pages = vec![(PathBuf::from("docs/schema.md"), gpuwhy_schema::docs::markdown())];
    if root.join("crates/cli/Cargo.toml").exists() {
        pages.push((PathBuf::from("docs/cli.md"), help_all(root)?));
    }
    for path in markdown(root)? {
        if pages.iter().any(|(made, _)| *made == path) {
            continue;
        }
        let text = std::fs::read_to_string(root.join(&path))
            .with_context(|| format!("cannot read `{}`", path.display()))?;
        let made = bench::fill(&text, |wanted| bench::table(root, wanted))
            .with_context(|| format!("cannot fill the tables of `{}`", path.display()))?;
        if made != text {
            pages.push((path, made));
        }
    }
    Ok(pages)
}

/// What `gpuwhy help-all` prints: the page `docs/cli.md`.
///
/// `GPUWHY_BIN` names a binary that was built already. Without it Cargo builds one, which compiles
/// more than a build of the whole workspace left behind: other features are on.
fn help_all(root: &Path) -> Result<String> {
    let mut command = match std::env::var_os("GPUWHY_BIN") {
        Some(binary) => Command::new(binary),
        None => {
            let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
            cargo.args(["run", "--quiet", "--package", "gpuwhy", "--bin", "gpuwhy", "--"]);
            cargo
        }
    };
    let out = command
        .arg("help-all")
        .current_dir(root)
        // The width of somebody's terminal is not part of the page.
        .env("COLUMNS", "100")
        .env("NO_COLOR", "1")
        .output()
        .with_context(|| format!("cannot run `{}`", command.get_program().display()))?;
    if !out.status.success() {
        bail!("`gpuwhy help-all` failed: {}", String::from_utf8_lossy(&out.stderr).trim());
    }
    String::from_utf8(out.stdout).context("`gpuwhy help-all` printed what is not UTF-8")
}

/// The first line, from 1, at which the texts differ, as it is and as it should be.
fn first_difference<'a>(is: &'a str, should: &'a str) -> Option<(usize, &'a str, &'a str)> {
    if is == should {
        return None;
    }
    let (mut a, mut b) = (is.lines(), should.lines());
    let mut line = 1;
    loop {
        match (a.next(), b.next()) {
            (x, y) if x == y && x.is_some() => line += 1,
            (x, y) => return Some((line, x.unwrap_or("(the end)"), y.unwrap_or("(the end)"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_files_are_found_and_links_to_the_world_are_not() {
        let text = "[a](docs/a.md)\n[b](https://x.y/z) [c](../c.h#part) [d](#here)\n";
        assert_eq!(links(text), [(1, "docs/a.md"), (2, "../c.h")]);
    }

    #[test]
    fn a_stale_page_is_told_by_its_first_wrong_line() {
        assert_eq!(first_difference("a\nb\n", "a\nb\n"), None);
        assert_eq!(first_difference("a\nb\n", "a\nc\n"), Some((2, "b", "c")));
        assert_eq!(first_difference("a\n", "a\nc\n"), Some((2, "(the end)", "c")));
        assert_eq!(first_difference("a", "a\n"), Some((2, "(the end)", "(the end)")));
    }
}
